//! The supported operations, and what storage must know of each.

use crate::kernels::attention::{Heads, Products};
use crate::kernels::convolution::Plane;
use crate::kernels::elementwise::{Binary, Unary};
use crate::kernels::norm::RmsNorm;
use crate::kernels::reduce::Reduction;
use crate::kernels::relative::Relative;

/// Values of a row that share a scale computed at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Rows are not quantised.
    None,
    /// All values.
    Rows,
    /// This many consecutive values.
    Blocks(u32),
}

/// A supported node with its attributes.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Linear map with constant weights.
    Linear {
        /// Quantisation of rows at run time.
        rounding: Rounding,
    },
    /// Root mean square norm.
    RmsNorm(RmsNorm),
    /// Rotary embedding.
    Rope {
        /// Values per head.
        head_dim: usize,
        theta: f32,
        /// Pairs that are rotated.
        pairs: usize,
        /// Divisor of the frequencies.
        factor: f32,
    },
    /// Rotary embedding of all pairs, with cosines and sines as inputs.
    Rotate {
        /// Values per head.
        head_dim: usize,
    },
    Attention {
        heads: Heads,
        /// Visible distance.
        window: u64,
        /// Whether later keys are hidden.
        causal: bool,
        /// Whether the keys are a state.
        state: bool,
        products: Products,
    },
    /// Normalisation to mean 0 and variance 1.
    LayerNorm {
        /// Value added under the root.
        eps: f32,
    },
    /// Rotary embedding by two coordinates.
    AxialRope {
        /// Values per head.
        head_dim: usize,
        theta: f32,
    },
    /// Attention with a vector for each distance.
    RelativeAttention(Relative),
    /// Convolution over a plane.
    Convolution(Plane),
    /// Convolution along rows, channel by channel.
    Depthwise {
        /// Rows of the kernel.
        kernel: usize,
    },
    /// Clamp between two constants.
    Clamp,
    /// Halves of the last axis, one gated by the other.
    Glu,
    /// Means of consecutive rows.
    MeanRows { rows: usize },
    /// Copy of rows to slots of a state.
    StateUpdate,
    /// Function of one value.
    Unary(Unary),
    /// Function of two values.
    Binary(Binary),
    /// Softmax over the last axis.
    Softmax,
    /// L2 normalisation over the last axis.
    L2Normalize,
    /// Reduction of the last axis.
    Reduce(Reduction),
    MatMul {
        /// Whether the right matrix is transposed.
        transpose_b: bool,
    },
    /// Same values with another shape.
    Reshape,
    /// Permutation of axes.
    Transpose(Vec<usize>),
    /// Part of an axis.
    Slice { axis: usize, start: usize },
    /// Concatenation along an axis.
    Concat { axis: usize },
}

/// Memory of an operation's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Memory of its own.
    Own,
    /// Part of the first operand, from this value on. A weight must be copied out.
    View { offset: u64 },
    /// The bound state that is the first operand.
    State,
}

impl Operation {
    /// Checks whether the operation only moves stored elements. Its result then needs no rounding
    /// to its encoding.
    pub fn moves(&self) -> bool {
        matches!(
            self,
            Operation::Reshape
                | Operation::Transpose(_)
                | Operation::Slice { .. }
                | Operation::Concat { .. }
                | Operation::StateUpdate
        )
    }

    /// Checks whether the operation reads the elements of input `place` as stored, in any encoding.
    pub fn reads_stored(&self, place: usize) -> bool {
        match self {
            Operation::StateUpdate => place == 0,
            Operation::Attention { state: true, .. } => matches!(place, 1 | 2),
            _ => false,
        }
    }

    /// Returns the memory of a result of this shape.
    pub fn home(&self, shape: &[usize]) -> Home {
        match self {
            Operation::StateUpdate => Home::State,
            Operation::Reshape => Home::View { offset: 0 },
            // A slice of the outermost axis is contiguous.
            Operation::Slice { axis: 0, start } => {
                Home::View { offset: (start * shape[1..].iter().product::<usize>()) as u64 }
            }
            _ => Home::Own,
        }
    }
}
