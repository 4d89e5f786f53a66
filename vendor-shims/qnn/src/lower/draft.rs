//! The graph between an entry and the compiler's: operations as the processor has them.

use shardwright_shim_npu as npu;

use super::encoding::Encoding;
use crate::graph::{DataType, QnnEncoding, StaticData};

/// A graph in the making.
pub(super) type Draft<'w> = npu::Draft<Encoding, Content<'w>, Compute>;
/// An operation of it.
pub(super) type Act = npu::Act<Compute>;
/// What an operation does.
pub(super) type ActKind = npu::Kind<Compute>;
/// A tensor known before a run.
pub(super) type Constant<'w> = npu::Constant<Content<'w>>;
/// An entry on its way into a draft.
pub(super) type Work<'s, 'w> = npu::Work<'s, 'w, Encoding, Content<'w>, Compute>;
/// An entry as it comes.
pub(super) type Source<'w> = npu::Source<'w, Encoding>;

/// What a constant holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Content<'w> {
    /// Element type.
    pub dtype: DataType,
    /// What stored values stand for.
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
    /// Whether it works on each value by itself and has one operand.
    pub fn is_pointwise(&self) -> bool {
        matches!(self, Compute::Unary(_) | Compute::Convert)
    }

    /// Whether all it needs of a shape is the last extent.
    pub fn is_along_last(&self) -> bool {
        matches!(self, Compute::RmsNorm(_) | Compute::Softmax | Compute::L2Norm)
    }
}
