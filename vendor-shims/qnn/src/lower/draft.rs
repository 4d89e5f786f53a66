//! Intermediate graph between an entry and the compiler's graph: the processor's operations.

use shardwright_shim_npu as npu;

use super::encoding::Encoding;
use crate::graph::{DataType, QnnEncoding, StaticData};

/// A graph under construction.
pub(super) type Draft<'w> = npu::Draft<Encoding, Content<'w>, Compute>;
/// One of its operations.
pub(super) type Act = npu::Act<Compute>;
/// Kind of an operation.
pub(super) type ActKind = npu::Kind<Compute>;
/// A tensor known before a run.
pub(super) type Constant<'w> = npu::Constant<Content<'w>>;
/// An entry being converted to a draft.
pub(super) type Work<'s, 'w> = npu::Work<'s, 'w, Encoding, Content<'w>, Compute>;
/// The source entry.
pub(super) type Source<'w> = npu::Source<'w, Encoding>;

/// Contents of a constant.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Content<'w> {
    /// Element type.
    pub dtype: DataType,
    /// Encoding of the stored values.
    pub encoding: QnnEncoding,
    /// The stored values.
    pub data: StaticData<'w>,
}

/// Operations of the processor that compute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Compute {
    /// x `[.., K]`, constant `[N, K]` → `[rows, N]`.
    FullyConnected,
    /// x `[1, 1, R, K]`, constant `[1, 1, K, N]` → `[1, 1, R, N]`.
    Pixel,
    /// x `[1, H, W, C]`, constant `[kernel, kernel, C, O]` → `[1, H', W', O]`.
    Plane {
        /// From one result to the next.
        stride: u32,
        /// Zeros on each side.
        padding: u32,
    },
    /// Of the two innermost axes, the others broadcast.
    MatMul {
        /// The second operand is `[.., N, K]`.
        transpose_second: bool,
    },
    /// Over the last axis, with a scale. Bits of the epsilon.
    RmsNorm(u32),
    /// x `[1, H, R, D]`, cos and sin `[1, R, D/2]`.
    Rotary,
    /// Value by value, one operand; the library's name.
    Unary(&'static str),
    /// Value by value with NumPy broadcasting; the library's name.
    Binary(&'static str),
    /// Over the last axis.
    Softmax,
    /// Over the last axis.
    L2Norm,
    /// Over the last axis, kept as 1; the library's name.
    Reduce(&'static str),
    /// The same values in the encoding of the result.
    Convert,
}

impl Compute {
    /// Whether it works elementwise and has one operand.
    pub fn is_pointwise(&self) -> bool {
        matches!(self, Compute::Unary(_) | Compute::Convert)
    }

    /// Whether it depends only on the last extent of a shape.
    pub fn is_along_last(&self) -> bool {
        matches!(self, Compute::RmsNorm(_) | Compute::Softmax | Compute::L2Norm)
    }
}
