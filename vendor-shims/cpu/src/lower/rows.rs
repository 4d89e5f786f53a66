//! Which tensors follow the valid rows of a run.
//!
//! A tensor *follows rows* when its first axis is the entry's row axis, or so many rows to each of
//! those, or one to so many, and no row is computed from a row beyond the valid ones. Then only the
//! valid rows are computed, and the rest keeps its old contents. A node that looks across rows (a
//! transposition, a product over rows) must not see those, so its operands are padded with zeros.
//! Of rows that stand for several, one is valid where one of those is.

use shardwright_shim_abi::raw;

use super::graph::{Graph, Source};
use super::recognise::Operation;

/// Result of the analysis, by tensor index.
#[derive(Debug)]
pub struct Rows {
    /// Follows rows.
    pub follows: Vec<bool>,
    /// Read across rows: zeros must follow the valid ones.
    pub crossed: Vec<bool>,
}

/// Looks at every live node in order.
pub fn analyse(graph: &Graph<'_>, operations: &[Option<Operation>]) -> Rows {
    let rows = graph.rows();
    let count = graph.tensors.len();
    let mut result = Rows { follows: vec![false; count], crossed: vec![false; count] };
    if rows == 1 {
        // One row is always valid.
        return result;
    }
    let extent = |tensor: u32| graph.tensors[tensor as usize].shape.first().copied().unwrap_or(1);
    // One row for all of the entry's is always valid.
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
                // Of the entry's rows, however its queries were made: what is beyond the valid ones
                // is no key either.
                let row = extent(x) == rows;
                if !row {
                    cross(&mut result, &inputs);
                }
                row
            }
            // Rows see only valid rows, or only rows before them.
            Operation::RelativeAttention(_) | Operation::Depthwise { .. } => {
                let row = follows(&result, x);
                if !row {
                    cross(&mut result, &inputs);
                }
                row
            }
            // Zeros stand for rows beyond the valid ones.
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
                // Rows of the left matrix are independent; a right matrix that follows rows is
                // crossed.
                let row = rank(x) == 2 && rank(output) == 2 && follows(&result, x);
                cross(&mut result, if row { &inputs[1..] } else { &inputs });
                row
            }
            Operation::Reshape => {
                let row = follows(&result, x) && by_rows(output);
                // A row that stands for several may stand for some beyond the valid ones.
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
