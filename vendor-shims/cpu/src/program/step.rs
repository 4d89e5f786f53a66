//! The steps of a program, each with its operands. `ops/` has the functions of each step.
//!
//! The order of the cases of [`Step`] and of the members of each step defines the encoding (see
//! [`encode`](super::encode)).

use serde::{Deserialize, Serialize};

use super::operand::{Extent, Operand};
use super::packed::{PackedSplit, PackedTiles, PackedWeights};
use crate::kernels::attention::{Heads, Products};
use crate::kernels::convolution::Plane;
use crate::kernels::elementwise::{self, Broadcast, Gate};
use crate::kernels::encoding::ElementEncoding;
use crate::kernels::norm;
use crate::kernels::reduce::Reduction;
use crate::kernels::relative::Relative;
use crate::kernels::shape::Strided;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    Linear(Linear),
    DynamicLinear(DynamicLinear),
    SplitLinear(SplitLinear),
    MatMul(MatMul),
    RmsNorm(RmsNorm),
    L2Normalize(L2Normalize),
    Softmax(Softmax),
    Reduce(Reduce),
    RotaryTable(RotaryTable),
    Rope(Rope),
    Attention(Attention),
    Unary(Unary),
    Gated(Gated),
    Binary(Binary),
    Copy(StridedCopy),
    StateUpdate(StateUpdate),
    Decode(Decode),
    Encode(Encode),
    Nearest(Nearest),
    ZeroTail(ZeroTail),
    LayerNorm(LayerNorm),
    AxialRope(AxialRope),
    RelativeAttention(RelativeAttention),
    Convolution(Convolution),
    Depthwise(Depthwise),
    Glu(Glu),
    MeanRows(MeanRows),
}

/// Most maps that share the rows they read.
pub const MAX_MAPS: usize = 4;

/// One of the maps of a [`Step::DynamicLinear`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DynamicMap {
    /// Packed `[outputs, inputs]`.
    pub weights: PackedTiles,
    /// `[outputs]`
    pub bias: Option<Operand>,
    /// Limits of the results.
    pub bounds: Option<[f32; 2]>,
    /// `[rows, outputs]`
    pub out: Operand,
}

/// Source of the keys of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttentionKeys {
    /// A state of `capacity` rows. Key position p is in row p mod capacity.
    State { capacity: u64 },
    /// The rows of the run.
    Rows {
        /// Whether later rows are hidden.
        causal: bool,
    },
}

/// `out = x · wᵀ (+ bias)`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Linear {
    /// `[rows, inputs]`
    pub x: Operand,
    pub rows: Extent,
    /// Packed `[outputs, inputs]`.
    pub weights: PackedWeights,
    /// `[outputs]`
    pub bias: Option<Operand>,
    /// Limits of the results.
    pub bounds: Option<[f32; 2]>,
    /// `[rows, outputs]`
    pub out: Operand,
}

/// Like [`Step::Linear`], but over integer weights. Each row of `x` is quantised to eight bits
/// once, in scratch memory, for all maps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DynamicLinear {
    /// `[rows, inputs]`
    pub x: Operand,
    pub rows: Extent,
    /// Inputs of a row that share a scale, `None` if all of them do.
    pub block: Option<u32>,
    /// 1 to [`MAX_MAPS`] maps, which divide the rows into the same blocks.
    pub maps: Vec<DynamicMap>,
}

/// Like [`Step::DynamicLinear`], but for few rows and one map to logits. A run may request only
/// the top-k of each row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SplitLinear {
    /// `[rows, inputs]`
    pub x: Operand,
    pub rows: Extent,
    /// Packed `[outputs, inputs]`.
    pub weights: PackedSplit,
    /// Cap in `cap · tanh(result / cap)`, which is applied to every result.
    pub cap: Option<f32>,
    /// `[rows, outputs]`
    pub out: Operand,
}

/// Batched product of two computed matrices. The right matrix is packed in scratch memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatMul {
    /// `[.., m, k]`
    pub a: Operand,
    /// `[.., k, n]` or transposed.
    pub b: Operand,
    /// `[.., m, n]`
    pub out: Operand,
    /// Rows, inner length, columns.
    pub sizes: [u64; 3],
    /// Whether `b` is `[.., n, k]`.
    pub transpose_b: bool,
    /// The batch axes. Strides count matrices.
    pub batch: Broadcast,
}

/// Root mean square norm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm {
    pub norm: norm::RmsNorm,
    pub x: Operand,
    /// `[width]`
    pub weight: Option<Operand>,
    /// Added to the result.
    pub residual: Option<Operand>,
    pub groups: Extent,
    pub out: Operand,
}

/// Normalisation to unit length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct L2Normalize {
    pub x: Operand,
    /// Values per group.
    pub width: u64,
    pub groups: Extent,
    pub out: Operand,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Softmax {
    pub x: Operand,
    /// Values per group.
    pub width: u64,
    pub groups: Extent,
    pub out: Operand,
}

/// Sum, mean or maximum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduce {
    pub kind: Reduction,
    pub x: Operand,
    /// Values per group.
    pub width: u64,
    pub groups: Extent,
    /// Result, one per group.
    pub out: Operand,
}

/// Table of cosines and sines for the positions of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RotaryTable {
    /// One i32 per row.
    pub positions: Operand,
    /// Inverse frequency of each pair.
    pub inverse: Operand,
    pub rows: Extent,
    /// `[rows, pairs]`
    pub cos: Operand,
    /// `[rows, pairs]`
    pub sin: Operand,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// `[rows, heads · head_dim]`
    pub x: Operand,
    /// `[rows, pairs]`
    pub cos: Operand,
    /// `[rows, pairs]`
    pub sin: Operand,
    /// Values per head, heads, rotated pairs.
    pub sizes: [u64; 3],
    pub rows: Extent,
    /// Same shape as `x`.
    pub out: Operand,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    pub heads: Heads,
    /// Visible distance, 0 for no limit.
    pub window: u64,
    pub products: Products,
    /// Source of the keys.
    pub keys: AttentionKeys,
    /// `[rows, heads · head_dim]`
    pub q: Operand,
    /// `[capacity or rows, kv_heads · head_dim]`, may be encoded.
    pub k: Operand,
    /// Same shape as `k`, possibly in another encoding.
    pub v: Operand,
    /// One i32 per row, used with a state.
    pub positions: Operand,
    pub rows: Extent,
    /// Same shape as `q`.
    pub out: Operand,
}

/// Function of one value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unary {
    pub kind: elementwise::Unary,
    pub x: Operand,
    pub count: Extent,
    pub out: Operand,
}

/// `f(gate) · up`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gated {
    pub kind: Gate,
    pub gate: Operand,
    pub up: Operand,
    pub count: Extent,
    pub out: Operand,
}

/// Function of two values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Binary {
    pub kind: elementwise::Binary,
    pub broadcast: Broadcast,
    /// Number of steps of the outermost axis.
    pub outer: Extent,
    pub a: Operand,
    pub b: Operand,
    pub out: Operand,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StridedCopy {
    pub copy: Strided,
    pub source: Operand,
    pub target: Operand,
}

/// Copy of rows to their slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateUpdate {
    /// The state, which may be encoded.
    pub state: Operand,
    /// Values per row.
    pub width: u64,
    /// `[rows, width]`
    pub new: Operand,
    /// One i32 per row.
    pub slots: Operand,
    pub rows: Extent,
}

/// Decodes elements of a bound tensor to values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decode {
    /// A bound tensor in any encoding.
    pub source: Operand,
    pub count: Extent,
    pub out: Operand,
}

/// Encodes values as elements of a bound tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Encode {
    pub x: Operand,
    pub count: Extent,
    /// A bound tensor in any encoding.
    pub target: Operand,
}

/// Rounds results of an operation to values that the encoding of its result tensor can
/// represent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nearest {
    pub encoding: ElementEncoding,
    pub count: Extent,
    pub values: Operand,
}

/// Writes zeros to the rows beyond the valid ones, for a step that reads across rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ZeroTail {
    pub target: Operand,
    /// Number of values of the valid rows.
    pub valid: Extent,
}

/// Normalisation to mean 0 and variance 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    pub norm: norm::LayerNorm,
    pub x: Operand,
    /// `[width]`
    pub weight: Option<Operand>,
    /// `[width]`
    pub bias: Option<Operand>,
    pub groups: Extent,
    pub out: Operand,
}

/// Rotary embedding by two coordinates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AxialRope {
    /// `[rows, heads · head_dim]`
    pub x: Operand,
    /// `[rows, head_dim / 4]` each, for the first halves and the second halves.
    pub cos: [Operand; 2],
    /// Same shapes as `cos`.
    pub sin: [Operand; 2],
    /// Values per head, heads.
    pub sizes: [u64; 2],
    pub rows: Extent,
    /// Same shape as `x`.
    pub out: Operand,
}

/// Attention to the rows just before, with scores for each distance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelativeAttention {
    pub relative: Relative,
    /// `[rows, heads · head_dim]`
    pub q: Operand,
    /// Same shape as `q`.
    pub k: Operand,
    /// Same shape as `q`.
    pub v: Operand,
    /// `[rows, heads · window]`
    pub by_distance: Operand,
    pub rows: Extent,
    /// Same shape as `q`.
    pub out: Operand,
}

/// Convolution over a plane. Covered values are unfolded in scratch memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Convolution {
    pub plane: Plane,
    /// `[height, width, channels]`
    pub x: Operand,
    /// Packed `[outputs, channels · kernel²]`.
    pub weights: PackedWeights,
    /// Rows of `x`. Rows beyond them count as zeros.
    pub height: Extent,
    /// Rows of the result.
    pub rows: Extent,
    /// `[rows, columns, outputs]`
    pub out: Operand,
}

/// Convolution along rows. The weight is transposed in scratch memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Depthwise {
    /// `[rows, channels]`
    pub x: Operand,
    /// `[channels, kernel]`
    pub weight: Operand,
    /// Channels, kernel.
    pub sizes: [u64; 2],
    pub rows: Extent,
    /// Same shape as `x`.
    pub out: Operand,
}

/// `a · sigmoid(b)` of the halves of each group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Glu {
    pub x: Operand,
    /// Values per group of the result.
    pub width: u64,
    pub groups: Extent,
    pub out: Operand,
}

/// Means of consecutive rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeanRows {
    /// `[groups · rows, width]`
    pub x: Operand,
    /// Values per row, rows of a mean.
    pub sizes: [u64; 2],
    /// Rows of `x`. Rows beyond them count as zeros.
    pub valid: Extent,
    pub groups: Extent,
    /// `[groups, width]`
    pub out: Operand,
}
