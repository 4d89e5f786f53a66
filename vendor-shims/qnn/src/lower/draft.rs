//! Intermediate graph between an entry and the compiler's graph. It contains the processor's
//! operations.

use shardwright_shim_npu as npu;

use super::encoding::TensorEncoding;
use crate::graph::{DataType, QnnEncoding, StaticData};

/// A graph under construction.
pub(super) type GraphDraft<'w> = npu::GraphDraft<TensorEncoding, Content<'w>, Compute>;
pub(super) type Act = npu::Act<Compute>;
pub(super) type ActKind = npu::Kind<Compute>;
/// A tensor known before a run.
pub(super) type Constant<'w> = npu::Constant<Content<'w>>;
/// An entry being converted to a draft.
pub(super) type Work<'s, 'w> = npu::Work<'s, 'w, TensorEncoding, Content<'w>, Compute>;
pub(super) type Source<'w> = npu::Source<'w, TensorEncoding>;

/// Contents of a constant.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Content<'w> {
    pub dtype: DataType,
    /// Encoding of the stored values.
    pub encoding: QnnEncoding,
    pub data: StaticData<'w>,
}

/// Operations of the processor that compute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Compute {
    /// Maps x `[.., K]` and constant `[N, K]` to `[rows, N]`.
    FullyConnected,
    /// Maps x `[1, 1, R, K]` and constant `[1, 1, K, N]` to `[1, 1, R, N]`.
    Pixel,
    /// Maps x `[1, H, W, C]` and constant `[kernel, kernel, C, O]` to `[1, H', W', O]`.
    Plane {
        /// Distance from one result to the next.
        stride: u32,
        /// Zeros added on each side.
        padding: u32,
    },
    /// Product over the two innermost axes. The other axes broadcast.
    MatMul {
        /// Whether the second operand is `[.., N, K]`.
        transpose_second: bool,
    },
    /// Over the last axis, with a scale. Contains the bits of the epsilon.
    RmsNorm(u32),
    /// x `[1, H, R, D]`, cos and sin `[1, R, D/2]`.
    Rotary,
    /// Elementwise operation with one operand, by the library's name.
    Unary(&'static str),
    /// Elementwise operation with NumPy broadcasting, by the library's name.
    Binary(&'static str),
    /// Over the last axis.
    Softmax,
    /// Over the last axis.
    L2Norm,
    /// Reduction of the last axis to 1, by the library's name.
    Reduce(&'static str),
    /// Converts values to the encoding of the result.
    Convert,
}

impl Compute {
    /// Checks whether it is elementwise and has one operand.
    pub fn is_pointwise(&self) -> bool {
        matches!(self, Compute::Unary(_) | Compute::Convert)
    }

    /// Checks whether it depends only on the last extent of a shape.
    pub fn is_along_last(&self) -> bool {
        matches!(self, Compute::RmsNorm(_) | Compute::Softmax | Compute::L2Norm)
    }
}
