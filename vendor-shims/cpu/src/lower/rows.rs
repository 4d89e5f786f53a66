//! Analysis of which tensors follow the valid rows of a run.
//!
//! A tensor *follows rows* under two conditions. Its first axis is the entry's row axis, or a
//! multiple or a divisor of it. And no row is computed from a row beyond the valid ones. Then only
//! the valid rows are computed, and the other rows keep their old contents.
//!
//! A node that looks across rows (a transposition, a product over rows) must not read these old
//! contents, so its operands are padded with zeros. A row that combines several rows is valid if
//! one of these is valid.

use std::ops::Range;

use shardwright_shim_abi::raw;

use super::graph::{Graph, Source};
use crate::ops::Operation;

/// Result of the analysis, by tensor index.
#[derive(Debug)]
pub struct Rows {
    /// Whether the tensor follows rows.
    pub follows: Vec<bool>,
    /// Whether the tensor is read across rows, so that zeros must follow the valid rows.
    pub crossed: Vec<bool>,
}

/// A node that is analysed, and the tensors before it.
pub struct Following<'n, 'a> {
    graph: &'n Graph<'a>,
    rows: &'n mut Rows,
    /// The existing operands.
    pub inputs: Vec<u32>,
    pub output: u32,
}

impl Following<'_, '_> {
    /// Returns the first operand.
    pub fn x(&self) -> u32 {
        self.inputs[0]
    }

    /// Returns the extent of a tensor's first axis.
    pub fn extent(&self, tensor: u32) -> usize {
        extent(self.graph, tensor)
    }

    pub fn rank(&self, tensor: u32) -> usize {
        self.graph.tensors[tensor as usize].shape.len()
    }

    pub fn follows(&self, tensor: u32) -> bool {
        self.rows.follows[tensor as usize]
    }

    /// Checks whether the first axis has several rows of the entry to one, one to several, or one
    /// to one.
    pub fn by_rows(&self, tensor: u32) -> bool {
        let (rows, extent) = (self.rows(), self.extent(tensor));
        // A single row for all rows of the entry is always valid.
        extent > 1 && (extent.is_multiple_of(rows) || rows.is_multiple_of(extent))
    }

    /// Returns the number of rows of the entry.
    pub fn rows(&self) -> usize {
        self.graph.rows()
    }

    /// Declares that the node reads the operands at these places across rows.
    pub fn cross(&mut self, places: Range<usize>) {
        for &tensor in &self.inputs[places] {
            self.rows.crossed[tensor as usize] |= self.rows.follows[tensor as usize];
        }
    }

    /// Returns whether the result follows rows. If not, the node reads all operands across rows.
    pub fn or_cross(&mut self, follows: bool) -> bool {
        if !follows {
            self.cross(0..self.inputs.len());
        }
        follows
    }

    /// Returns whether the result follows rows, for an operation that computes each row from the
    /// same row of the first operand.
    pub fn row_by_row(&mut self) -> bool {
        self.or_cross(self.rank(self.x()) >= 2 && self.follows(self.x()))
    }
}

fn extent(graph: &Graph<'_>, tensor: u32) -> usize {
    graph.tensors[tensor as usize].shape.first().copied().unwrap_or(1)
}

/// Analyses every live node in order. `follows` is [`follows_rows`](crate::ops::follows_rows).
pub fn analyse(
    graph: &Graph<'_>,
    operations: &[Option<Operation>],
    follows: impl Fn(&Operation, &mut Following<'_, '_>) -> bool,
) -> Rows {
    let rows = graph.rows();
    let count = graph.tensors.len();
    let mut result = Rows { follows: vec![false; count], crossed: vec![false; count] };
    if rows == 1 {
        // One row is always valid.
        return result;
    }
    for port in graph.entry.inputs() {
        let by_row = match port.role() {
            raw::SW_ROLE_POSITIONS
            | raw::SW_ROLE_SLOTS
            | raw::SW_ROLE_ROTARY_COS
            | raw::SW_ROLE_ROTARY_SIN
            | raw::SW_ROLE_MASK
            | raw::SW_ROLE_GATHERED
            | raw::SW_ROLE_GRID
            | raw::SW_ROLE_GATHERED_BY_GRID
            | raw::SW_ROLE_HIDDEN => extent(graph, port.tensor()) == rows,
            raw::SW_ROLE_FEATURES | raw::SW_ROLE_VALID => extent(graph, port.tensor()).is_multiple_of(rows),
            _ => false,
        };
        result.follows[port.tensor() as usize] = by_row;
    }
    for (index, operation) in operations.iter().enumerate() {
        let Some(operation) = operation else { continue };
        let node = graph.nodes[index];
        let Some(&output) = node.outputs().first() else { continue };
        let inputs = node.inputs().flatten().collect();
        let mut node = Following { graph, rows: &mut result, inputs, output };
        result.follows[output as usize] = follows(operation, &mut node);
    }
    debug_assert!(
        graph
            .tensors
            .iter()
            .zip(&result.follows)
            .all(|(tensor, follows)| { !follows || !matches!(tensor.source, Source::Constant(_)) })
    );
    result
}
