//! Analysis of which tensors follow the valid rows of a run.
//!
//! A tensor *follows rows* under two conditions. Its first axis is the entry's row axis, or a
//! multiple or a divisor of it. And no row is computed from a row beyond the valid ones. Then only
//! the valid rows are computed, and the other rows keep their old contents.
//!
//! A node that looks across rows (a transposition, a product over rows) must not read these old
//! contents, so its operands are padded with zeros. A row that combines several rows is valid if
//! one of these is valid.

use shardwright_shim_abi::raw;

use super::graph::{Graph, Source};
use super::recognise::Operation;

/// Result of the analysis, by tensor index.
#[derive(Debug)]
pub struct Rows {
    /// Whether the tensor follows rows.
    pub follows: Vec<bool>,
    /// Whether the tensor is read across rows, so that zeros must follow the valid rows.
    pub crossed: Vec<bool>,
}

/// Analyses every live node in order.
pub fn analyse(graph: &Graph<'_>, operations: &[Option<Operation>]) -> Rows {
    let rows = graph.rows();
    let count = graph.tensors.len();
    let mut result = Rows { follows: vec![false; count], crossed: vec![false; count] };
    if rows == 1 {
        // One row is always valid.
        return result;
    }
    let extent = |tensor: u32| graph.tensors[tensor as usize].shape.first().copied().unwrap_or(1);
    // A single row for all rows of the entry is always valid.
    let by_rows = |tensor: u32| {
        let extent = extent(tensor);
        extent > 1 && (extent.is_multiple_of(rows) || rows.is_multiple_of(extent))
    };
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
            | raw::SW_ROLE_HIDDEN => extent(port.tensor()) == rows,
            raw::SW_ROLE_FEATURES | raw::SW_ROLE_VALID => extent(port.tensor()).is_multiple_of(rows),
            _ => false,
        };
        result.follows[port.tensor() as usize] = by_row;
    }
    for (index, operation) in operations.iter().enumerate() {
        let Some(operation) = operation else { continue };
        let node = graph.nodes[index];
        let inputs: Vec<u32> = node.inputs().flatten().collect();
        let Some(&output) = node.outputs().first() else { continue };
        let rank = |tensor: u32| graph.tensors[tensor as usize].shape.len();
        let follows = |rows: &Rows, tensor: u32| rows.follows[tensor as usize];
        let cross = |rows: &mut Rows, tensors: &[u32]| {
            for &tensor in tensors {
                rows.crossed[tensor as usize] |= rows.follows[tensor as usize];
            }
        };
        let x = inputs[0];
        let follow = match operation {
            Operation::Unary(_) | Operation::Clamp => follows(&result, x),
            Operation::Linear { .. }
            | Operation::RmsNorm { .. }
            | Operation::LayerNorm { .. }
            | Operation::Glu
            | Operation::Softmax
            | Operation::L2Normalize
            | Operation::Reduce(_)
            | Operation::Rope { .. }
            | Operation::AxialRope { .. }
            | Operation::Rotate { .. } => {
                let row = rank(x) >= 2 && follows(&result, x);
                if !row {
                    cross(&mut result, &inputs);
                }
                row
            }
            Operation::Attention { .. } => {
                // The result follows the entry's rows, regardless of how its queries were computed.
                // Rows beyond the valid ones are not used as keys either.
                let row = extent(x) == rows;
                if !row {
                    cross(&mut result, &inputs);
                }
                row
            }
            // Rows only see valid rows, or only rows before them.
            Operation::RelativeAttention(_) | Operation::Depthwise { .. } => {
                let row = follows(&result, x);
                if !row {
                    cross(&mut result, &inputs);
                }
                row
            }
            // The kernel reads rows beyond the valid ones as zeros.
            Operation::Convolution(plane) => {
                let even = extent(x) == plane.stride.saturating_mul(extent(output));
                let row = follows(&result, x) && even && by_rows(output);
                if !row {
                    cross(&mut result, &inputs);
                }
                row
            }
            Operation::MeanRows { .. } => {
                let row = follows(&result, x) && by_rows(output);
                if !row {
                    cross(&mut result, &inputs);
                }
                row
            }
            Operation::StateUpdate => false,
            Operation::Binary(_) => {
                let aligned =
                    |rows: &Rows, tensor: u32| follows(rows, tensor) && rank(tensor) == rank(output);
                let row = by_rows(output) && inputs.iter().any(|tensor| aligned(&result, *tensor));
                for &tensor in &inputs {
                    if !(row && aligned(&result, tensor)) {
                        cross(&mut result, &[tensor]);
                    }
                }
                row
            }
            Operation::MatMul { .. } => {
                // Rows of the left matrix are independent. A right matrix that follows rows is read
                // across rows.
                let row = rank(x) == 2 && rank(output) == 2 && follows(&result, x);
                cross(&mut result, if row { &inputs[1..] } else { &inputs });
                row
            }
            Operation::Reshape => {
                let row = follows(&result, x) && by_rows(output);
                // A row that combines several rows may include rows beyond the valid ones.
                if !row || (extent(output) < rows && extent(output) != extent(x)) {
                    cross(&mut result, &inputs);
                }
                row
            }
            Operation::Transpose(perm) => {
                let row = follows(&result, x) && perm.first() == Some(&0);
                if !row {
                    cross(&mut result, &inputs);
                }
                row
            }
            Operation::Slice { axis, .. } => {
                let row = follows(&result, x) && *axis != 0;
                if !row {
                    cross(&mut result, &inputs);
                }
                row
            }
            Operation::Concat { axis } => {
                let row = *axis != 0 && inputs.iter().any(|tensor| follows(&result, *tensor));
                if !row {
                    cross(&mut result, &inputs);
                }
                row
            }
        };
        result.follows[output as usize] = follow;
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
