use serde::{Deserialize, Serialize};

use crate::kernels::attention::Heads;
use crate::kernels::convolution::Plane;
use crate::kernels::elementwise::{Binary, Broadcast, Gate, Unary};
use crate::kernels::encoding::Encoding;
use crate::kernels::integer::split::{panel_bytes, row_bytes};
use crate::kernels::integer::{Geometry, IntegerType};
use crate::kernels::linear::PanelType;
use crate::kernels::norm::{LayerNorm, RmsNorm};
use crate::kernels::reduce::Reduction;
use crate::kernels::relative::Relative;
use crate::kernels::shape::Strided;
use crate::simd::LANES;

/// Location of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Place {
    /// The shard's own memory, reused from step to step.
    Arena,
    Constant,
    /// A bound tensor, by port index.
    Bound(u32),
}

/// A run of values. In a bound tensor it is a run of elements, and only some steps can read these
/// in their stored encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operand {
    pub place: Place,
    /// Index of the first value.
    pub offset: u64,
    pub elements: u64,
}

/// A count that may depend on the valid rows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extent {
    /// A count that is independent of the number of rows.
    Fixed(u64),
    /// A count per valid row.
    PerRow(u64),
    /// A count per group of rows with at least one valid row.
    PerRows {
        /// Rows of a group.
        rows: u64,
        count: u64,
    },
}

impl Extent {
    /// Returns the count for `rows` valid rows.
    pub fn at(self, rows: usize) -> usize {
        match self {
            Extent::Fixed(count) => count as usize,
            Extent::PerRow(count) => count as usize * rows,
            Extent::PerRows { rows: group, count } => count as usize * rows.div_ceil(group as usize),
        }
    }

    /// Returns the count for all rows, or `None` on overflow.
    pub fn most(self, rows: u64) -> Option<u64> {
        match self {
            Extent::Fixed(count) => Some(count),
            Extent::PerRow(count) => count.checked_mul(rows),
            Extent::PerRows { rows: 0, .. } => None,
            Extent::PerRows { rows: group, count } => count.checked_mul(rows.div_ceil(group)),
        }
    }
}

/// Panels in the weight section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedWeights {
    /// First byte in the section.
    pub offset: u64,
    pub kind: PanelType,
    /// Scales of integers, [`PackedScales::None`] for floats.
    pub scales: PackedScales,
    pub inputs: u64,
    pub outputs: u64,
}

/// Scales of packed weights, in the weight section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackedScales {
    None,
    /// A binary32 per output.
    PerOutput {
        /// First byte in the section.
        offset: u64,
    },
    /// Sixteen binary16 per panel and block.
    PerBlock {
        /// First byte in the section.
        offset: u64,
        /// Steps of k that share a scale, at most the number of inputs.
        size: u64,
    },
    /// Sixteen scales per panel and block, followed by sixteen minimums if `minimum` is true.
    Affine {
        /// First byte in the section.
        offset: u64,
        /// Steps of k that share a map, at most the number of inputs.
        size: u64,
        /// Stored value that represents zero.
        zero: i32,
        /// Whether there are minimums.
        minimum: bool,
        /// Whether scales and minimums are binary16 rather than binary32.
        half: bool,
    },
}

impl PackedWeights {
    /// Returns the bytes of the panels and of the scales, or `None` on overflow.
    pub fn bytes(&self) -> Option<[u64; 2]> {
        let panels = self.outputs.div_ceil(LANES as u64);
        let steps = panels.checked_mul(self.inputs)?;
        let scales = match self.scales {
            PackedScales::None => Some(0),
            PackedScales::PerOutput { .. } => self.outputs.checked_mul(4),
            PackedScales::PerBlock { size: 0, .. } | PackedScales::Affine { size: 0, .. } => None,
            PackedScales::PerBlock { size, .. } => {
                panels.checked_mul(self.inputs.div_ceil(size))?.checked_mul(2 * LANES as u64)
            }
            PackedScales::Affine { size, minimum, half, .. } => {
                let numbers = if minimum { 2 } else { 1 } * LANES as u64;
                let bytes = if half { 2 } else { 4 };
                panels.checked_mul(self.inputs.div_ceil(size))?.checked_mul(bytes * numbers)
            }
        };
        Some([steps.checked_mul(self.kind.step_bytes() as u64)?, scales?])
    }
}

/// Tiles of integers in the weight section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedTiles {
    /// First byte in the section.
    pub offset: u64,
    pub kind: IntegerType,
    pub scales: PackedScales,
    pub inputs: u64,
    pub outputs: u64,
}

impl PackedTiles {
    /// Returns how the inputs are divided into blocks. Only valid for tiles whose dimensions were
    /// checked.
    pub fn geometry(&self) -> Geometry {
        let size = match self.scales {
            PackedScales::PerBlock { size, .. } => Some(size as usize),
            _ => None,
        };
        Geometry::new(self.inputs as usize, size)
    }

    /// Returns how rows are divided into blocks, with a scale for every `block` inputs or one scale
    /// for a row. Returns `None` if the blocks of the weights do not fit. Only valid for tiles
    /// whose dimensions were checked.
    pub fn rows(&self, block: Option<u32>) -> Option<Geometry> {
        let size = match self.scales {
            PackedScales::PerBlock { size, .. } => Some(size as usize),
            _ => None,
        };
        match block {
            Some(0) => None,
            Some(block) => Geometry::scaled(self.inputs as usize, block as usize, size),
            None => Some(self.geometry()),
        }
    }

    /// Returns the bytes of the tiles and of the scales. Only valid for tiles whose dimensions were
    /// checked.
    pub fn bytes(&self) -> [u64; 2] {
        let panels = self.outputs.div_ceil(LANES as u64);
        let geometry = self.geometry();
        let scales = match self.scales {
            // The check rejects tiles with affine maps.
            PackedScales::None | PackedScales::Affine { .. } => 0,
            PackedScales::PerOutput { .. } => self.outputs * 4,
            PackedScales::PerBlock { .. } => panels * geometry.blocks as u64 * 2 * LANES as u64,
        };
        [panels * geometry.panel_bytes(self.kind) as u64, scales]
    }
}

/// Split signed bytes in the weight section (see [`split`](crate::kernels::integer::split)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedSplit {
    /// First byte of the first parts in the section.
    pub high: u64,
    /// First byte of the second parts.
    pub low: u64,
    /// First byte of the spreads.
    pub spread: u64,
    /// First byte of the scales, a binary32 per output.
    pub scales: u64,
    pub inputs: u64,
    pub outputs: u64,
}

impl PackedSplit {
    /// Returns offset and length in bytes of each of the four parts. Only valid for checked
    /// dimensions.
    pub fn parts(&self) -> [(u64, u64); 4] {
        let panel = panel_bytes(self.inputs as usize) as u64;
        [
            (self.high, self.outputs.div_ceil(LANES as u64) * panel),
            (self.low, self.outputs * row_bytes(self.inputs as usize) as u64),
            (self.spread, self.outputs),
            (self.scales, self.outputs * 4),
        ]
    }
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    /// `out = x · wᵀ (+ bias)`
    Linear {
        /// `[rows, inputs]`
        x: Operand,
        rows: Extent,
        /// Packed `[outputs, inputs]`.
        weights: PackedWeights,
        /// `[outputs]`
        bias: Option<Operand>,
        /// Limits of the results.
        bounds: Option<[f32; 2]>,
        /// `[rows, outputs]`
        out: Operand,
    },
    /// Like [`Step::Linear`], but over integer weights. Each row of `x` is quantised to eight bits
    /// once, in scratch memory, for all maps.
    DynamicLinear {
        /// `[rows, inputs]`
        x: Operand,
        rows: Extent,
        /// Inputs of a row that share a scale, `None` if all of them do.
        block: Option<u32>,
        /// 1 to [`MAX_MAPS`] maps, which divide the rows into the same blocks.
        maps: Vec<DynamicMap>,
    },
    /// Like [`Step::DynamicLinear`], but for few rows and one map to logits. A run may request only
    /// the top-k of each row.
    SplitLinear {
        /// `[rows, inputs]`
        x: Operand,
        rows: Extent,
        /// Packed `[outputs, inputs]`.
        weights: PackedSplit,
        /// Cap in `cap · tanh(result / cap)`, which is applied to every result.
        cap: Option<f32>,
        /// `[rows, outputs]`
        out: Operand,
    },
    /// Batched product of two computed matrices. The right matrix is packed in scratch memory.
    MatMul {
        /// `[.., m, k]`
        a: Operand,
        /// `[.., k, n]` or transposed.
        b: Operand,
        /// `[.., m, n]`
        out: Operand,
        /// Rows, inner length, columns.
        sizes: [u64; 3],
        /// Whether `b` is `[.., n, k]`.
        transpose_b: bool,
        /// The batch axes. Strides count matrices.
        batch: Broadcast,
    },
    /// Root mean square norm.
    RmsNorm {
        norm: RmsNorm,
        x: Operand,
        /// `[width]`
        weight: Option<Operand>,
        /// Added to the result.
        residual: Option<Operand>,
        groups: Extent,
        out: Operand,
    },
    /// Normalisation to unit length.
    L2Normalize {
        x: Operand,
        /// Values per group.
        width: u64,
        groups: Extent,
        out: Operand,
    },
    Softmax {
        x: Operand,
        /// Values per group.
        width: u64,
        groups: Extent,
        out: Operand,
    },
    /// Sum, mean or maximum.
    Reduce {
        kind: Reduction,
        x: Operand,
        /// Values per group.
        width: u64,
        groups: Extent,
        /// Result, one per group.
        out: Operand,
    },
    /// Table of cosines and sines for the positions of a run.
    RotaryTable {
        /// One i32 per row.
        positions: Operand,
        /// Inverse frequency of each pair.
        inverse: Operand,
        rows: Extent,
        /// `[rows, pairs]`
        cos: Operand,
        /// `[rows, pairs]`
        sin: Operand,
    },
    Rope {
        /// `[rows, heads · head_dim]`
        x: Operand,
        /// `[rows, pairs]`
        cos: Operand,
        /// `[rows, pairs]`
        sin: Operand,
        /// Values per head, heads, rotated pairs.
        sizes: [u64; 3],
        rows: Extent,
        /// Same shape as `x`.
        out: Operand,
    },
    Attention {
        heads: Heads,
        /// Visible distance, 0 for no limit.
        window: u64,
        /// Source of the keys.
        keys: AttentionKeys,
        /// `[rows, heads · head_dim]`
        q: Operand,
        /// `[capacity or rows, kv_heads · head_dim]`, may be encoded.
        k: Operand,
        /// Same shape as `k`, possibly in another encoding.
        v: Operand,
        /// One i32 per row, used with a state.
        positions: Operand,
        rows: Extent,
        /// Same shape as `q`.
        out: Operand,
    },
    /// Function of one value.
    Unary {
        kind: Unary,
        x: Operand,
        count: Extent,
        out: Operand,
    },
    /// `f(gate) · up`
    Gated {
        kind: Gate,
        gate: Operand,
        up: Operand,
        count: Extent,
        out: Operand,
    },
    /// Function of two values.
    Binary {
        kind: Binary,
        broadcast: Broadcast,
        /// Number of steps of the outermost axis.
        outer: Extent,
        a: Operand,
        b: Operand,
        out: Operand,
    },
    Copy {
        copy: Strided,
        source: Operand,
        target: Operand,
    },
    /// Copy of rows to their slots.
    StateUpdate {
        /// The state, which may be encoded.
        state: Operand,
        /// Values per row.
        width: u64,
        /// `[rows, width]`
        new: Operand,
        /// One i32 per row.
        slots: Operand,
        rows: Extent,
    },
    /// Decodes elements of a bound tensor to values.
    Decode {
        /// A bound tensor in any encoding.
        source: Operand,
        count: Extent,
        out: Operand,
    },
    /// Encodes values as elements of a bound tensor.
    Encode {
        x: Operand,
        count: Extent,
        /// A bound tensor in any encoding.
        target: Operand,
    },
    /// Rounds results of an operation to values that the encoding of its result tensor can
    /// represent.
    Nearest {
        encoding: Encoding,
        count: Extent,
        values: Operand,
    },
    /// Writes zeros to the rows beyond the valid ones, for a step that reads across rows.
    ZeroTail {
        target: Operand,
        /// Number of values of the valid rows.
        valid: Extent,
    },
    /// Normalisation to mean 0 and variance 1.
    LayerNorm {
        norm: LayerNorm,
        x: Operand,
        /// `[width]`
        weight: Option<Operand>,
        /// `[width]`
        bias: Option<Operand>,
        groups: Extent,
        out: Operand,
    },
    /// Rotary embedding by two coordinates.
    AxialRope {
        /// `[rows, heads · head_dim]`
        x: Operand,
        /// `[rows, head_dim / 4]` each, for the first halves and the second halves.
        cos: [Operand; 2],
        /// Same shapes as `cos`.
        sin: [Operand; 2],
        /// Values per head, heads.
        sizes: [u64; 2],
        rows: Extent,
        /// Same shape as `x`.
        out: Operand,
    },
    /// Attention to the rows just before, with scores for each distance.
    RelativeAttention {
        relative: Relative,
        /// `[rows, heads · head_dim]`
        q: Operand,
        /// Same shape as `q`.
        k: Operand,
        /// Same shape as `q`.
        v: Operand,
        /// `[rows, heads · window]`
        by_distance: Operand,
        rows: Extent,
        /// Same shape as `q`.
        out: Operand,
    },
    /// Convolution over a plane. Covered values are unfolded in scratch memory.
    Convolution {
        plane: Plane,
        /// `[height, width, channels]`
        x: Operand,
        /// Packed `[outputs, channels · kernel²]`.
        weights: PackedWeights,
        /// Rows of `x`. Rows beyond them count as zeros.
        height: Extent,
        /// Rows of the result.
        rows: Extent,
        /// `[rows, columns, outputs]`
        out: Operand,
    },
    /// Convolution along rows. The weight is transposed in scratch memory.
    Depthwise {
        /// `[rows, channels]`
        x: Operand,
        /// `[channels, kernel]`
        weight: Operand,
        /// Channels, kernel.
        sizes: [u64; 2],
        rows: Extent,
        /// Same shape as `x`.
        out: Operand,
    },
    /// `a · sigmoid(b)` of the halves of each group.
    Glu {
        x: Operand,
        /// Values per group of the result.
        width: u64,
        groups: Extent,
        out: Operand,
    },
    /// Means of consecutive rows.
    MeanRows {
        /// `[groups · rows, width]`
        x: Operand,
        /// Values per row, rows of a mean.
        sizes: [u64; 2],
        /// Rows of `x`. Rows beyond them count as zeros.
        valid: Extent,
        groups: Extent,
        /// `[groups, width]`
        out: Operand,
    },
}
