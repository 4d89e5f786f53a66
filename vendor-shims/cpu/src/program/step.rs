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

/// Where values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Place {
    /// The shard's own memory, reused from step to step.
    Arena,
    /// The weight section.
    Constant,
    /// A bound tensor, by port index.
    Bound(u32),
}

/// A run of values. In a bound tensor, of its elements, which only some steps can read in their
/// stored encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operand {
    /// Where.
    pub place: Place,
    /// First value.
    pub offset: u64,
    /// Values.
    pub elements: u64,
}

/// A count that may follow the valid rows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extent {
    /// The same for any number of rows.
    Fixed(u64),
    /// A number per valid row.
    PerRow(u64),
    /// A number per group of rows of which one is valid.
    PerRows {
        /// Rows of a group.
        rows: u64,
        /// The number.
        count: u64,
    },
}

impl Extent {
    /// The count for `rows` valid rows.
    pub fn at(self, rows: usize) -> usize {
        match self {
            Extent::Fixed(count) => count as usize,
            Extent::PerRow(count) => count as usize * rows,
            Extent::PerRows { rows: group, count } => count as usize * rows.div_ceil(group as usize),
        }
    }

    /// The count for all rows; `None` on overflow.
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
    /// Stored type.
    pub kind: PanelType,
    /// Scales of integers; `None` for floats.
    pub scales: PackedScales,
    /// Inputs.
    pub inputs: u64,
    /// Outputs.
    pub outputs: u64,
}

/// Scales of packed weights, in the weight section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackedScales {
    /// None.
    None,
    /// A binary32 per output.
    PerOutput {
        /// First byte in the section.
        offset: u64,
    },
    /// Per panel and block sixteen binary16.
    PerBlock {
        /// First byte in the section.
        offset: u64,
        /// Steps of k that share a scale; at most the inputs.
        size: u64,
    },
    /// Per panel and block sixteen scales, and as many minimums if there are some.
    Affine {
        /// First byte in the section.
        offset: u64,
        /// Steps of k that share a map; at most the inputs.
        size: u64,
        /// Stored value that stands for zero.
        zero: i32,
        /// Whether there are minimums.
        minimum: bool,
        /// Whether scales and minimums are binary16 rather than binary32.
        half: bool,
    },
}

impl PackedWeights {
    /// Bytes of the panels and of the scales; `None` on overflow.
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
    /// Stored type.
    pub kind: IntegerType,
    /// The scales.
    pub scales: PackedScales,
    /// Inputs.
    pub inputs: u64,
    /// Outputs.
    pub outputs: u64,
}

impl PackedTiles {
    /// How the inputs are cut into blocks; only for tiles whose dimensions were checked.
    pub fn geometry(&self) -> Geometry {
        let size = match self.scales {
            PackedScales::PerBlock { size, .. } => Some(size as usize),
            _ => None,
        };
        Geometry::new(self.inputs as usize, size)
    }

    /// How rows are cut that have a scale for every `block` inputs, or one scale; only for tiles
    /// whose dimensions were checked. `None` if the blocks of the weights do not suit.
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

    /// Bytes of the tiles and of the scales; only for tiles whose dimensions were checked.
    pub fn bytes(&self) -> [u64; 2] {
        let panels = self.outputs.div_ceil(LANES as u64);
        let geometry = self.geometry();
        let scales = match self.scales {
            // Tiles with affine maps are refused when they are checked.
            PackedScales::None | PackedScales::Affine { .. } => 0,
            PackedScales::PerOutput { .. } => self.outputs * 4,
            PackedScales::PerBlock { .. } => panels * geometry.blocks as u64 * 2 * LANES as u64,
        };
        [panels * geometry.panel_bytes(self.kind) as u64, scales]
    }
}

/// Split signed bytes in the weight section; see [`split`](crate::kernels::integer::split).
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
    /// Inputs.
    pub inputs: u64,
    /// Outputs.
    pub outputs: u64,
}

impl PackedSplit {
    /// Offset and number of bytes of each of the four parts; only for dimensions that were checked.
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
    /// Hold the results.
    pub bounds: Option<[f32; 2]>,
    /// `[rows, outputs]`
    pub out: Operand,
}

/// Where the keys of an attention come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttentionKeys {
    /// A state of so many rows; key position p in row p mod capacity.
    State {
        /// Rows of the state.
        capacity: u64,
    },
    /// The rows of the run.
    Rows {
        /// Whether later rows are invisible.
        causal: bool,
    },
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    /// `out = x · wᵀ (+ bias)`
    Linear {
        /// `[rows, inputs]`
        x: Operand,
        /// Rows.
        rows: Extent,
        /// Packed `[outputs, inputs]`.
        weights: PackedWeights,
        /// `[outputs]`
        bias: Option<Operand>,
        /// Hold the results.
        bounds: Option<[f32; 2]>,
        /// `[rows, outputs]`
        out: Operand,
    },
    /// As [`Step::Linear`] over integer weights; each row of `x` is quantised to eight bits once,
    /// in scratch memory, for all its maps.
    DynamicLinear {
        /// `[rows, inputs]`
        x: Operand,
        /// Rows.
        rows: Extent,
        /// Inputs of a row that share a scale; none if all do.
        block: Option<u32>,
        /// 1 to [`MAX_MAPS`] maps, which cut the rows into the same blocks.
        maps: Vec<DynamicMap>,
    },
    /// As [`Step::DynamicLinear`] for few rows and one map to logits, of which a run may want only
    /// the top-k of each row.
    SplitLinear {
        /// `[rows, inputs]`
        x: Operand,
        /// Rows.
        rows: Extent,
        /// Packed `[outputs, inputs]`.
        weights: PackedSplit,
        /// Applies `cap · tanh(result / cap)` to every result.
        cap: Option<f32>,
        /// `[rows, outputs]`
        out: Operand,
    },
    /// Batched product of two computed matrices; the right one is packed in scratch memory.
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
        /// The batch axes; strides count matrices.
        batch: Broadcast,
    },
    /// Root mean square norm.
    RmsNorm {
        /// Numbers.
        norm: RmsNorm,
        /// Values.
        x: Operand,
        /// `[width]`
        weight: Option<Operand>,
        /// Added to the result.
        residual: Option<Operand>,
        /// Groups.
        groups: Extent,
        /// Result.
        out: Operand,
    },
    /// Unit length.
    L2Normalize {
        /// Values.
        x: Operand,
        /// Values per group.
        width: u64,
        /// Groups.
        groups: Extent,
        /// Result.
        out: Operand,
    },
    /// Softmax.
    Softmax {
        /// Values.
        x: Operand,
        /// Values per group.
        width: u64,
        /// Groups.
        groups: Extent,
        /// Result.
        out: Operand,
    },
    /// Sum, mean or maximum.
    Reduce {
        /// Which.
        kind: Reduction,
        /// Values.
        x: Operand,
        /// Values per group.
        width: u64,
        /// Groups.
        groups: Extent,
        /// Result, one per group.
        out: Operand,
    },
    /// Cosines and sines of this run's positions.
    RotaryTable {
        /// i32 per row.
        positions: Operand,
        /// One per pair.
        inverse: Operand,
        /// Rows.
        rows: Extent,
        /// `[rows, pairs]`
        cos: Operand,
        /// `[rows, pairs]`
        sin: Operand,
    },
    /// Rotary embedding.
    Rope {
        /// `[rows, heads · head_dim]`
        x: Operand,
        /// `[rows, pairs]`
        cos: Operand,
        /// `[rows, pairs]`
        sin: Operand,
        /// Values per head, heads, turning pairs.
        sizes: [u64; 3],
        /// Rows.
        rows: Extent,
        /// As `x`.
        out: Operand,
    },
    /// Attention.
    Attention {
        /// Dimensions.
        heads: Heads,
        /// Visible distance, 0 for none.
        window: u64,
        /// Where keys come from.
        keys: AttentionKeys,
        /// `[rows, heads · head_dim]`
        q: Operand,
        /// `[capacity or rows, kv_heads · head_dim]`, may be encoded.
        k: Operand,
        /// As `k`, in an encoding of its own.
        v: Operand,
        /// i32 per row; used with a state.
        positions: Operand,
        /// Rows.
        rows: Extent,
        /// As `q`.
        out: Operand,
    },
    /// One value from one.
    Unary {
        /// Function.
        kind: Unary,
        /// Values.
        x: Operand,
        /// Values.
        count: Extent,
        /// Result.
        out: Operand,
    },
    /// `f(gate) · up`
    Gated {
        /// Function.
        kind: Gate,
        /// Values.
        gate: Operand,
        /// Values.
        up: Operand,
        /// Values.
        count: Extent,
        /// Result.
        out: Operand,
    },
    /// One value from two.
    Binary {
        /// Function.
        kind: Binary,
        /// Shape and steps.
        broadcast: Broadcast,
        /// Steps of the outermost axis.
        outer: Extent,
        /// Left.
        a: Operand,
        /// Right.
        b: Operand,
        /// Dense result.
        out: Operand,
    },
    /// A strided copy.
    Copy {
        /// Extents and steps.
        copy: Strided,
        /// From.
        source: Operand,
        /// To.
        target: Operand,
    },
    /// Rows to their slots.
    StateUpdate {
        /// The state; may be encoded.
        state: Operand,
        /// Values per row.
        width: u64,
        /// `[rows, width]`
        new: Operand,
        /// i32 per row.
        slots: Operand,
        /// Rows.
        rows: Extent,
    },
    /// Elements of a bound tensor as values.
    Decode {
        /// Bound, in any encoding.
        source: Operand,
        /// Elements.
        count: Extent,
        /// Values.
        out: Operand,
    },
    /// Values as elements of a bound tensor.
    Encode {
        /// Values.
        x: Operand,
        /// Elements.
        count: Extent,
        /// Bound, in any encoding.
        target: Operand,
    },
    /// Rounds results of an operation to the encoding of its result tensor.
    Nearest {
        /// The encoding.
        encoding: Encoding,
        /// Values.
        count: Extent,
        /// Where they are.
        values: Operand,
    },
    /// Zeros in the rows beyond the valid ones, for a step that looks across rows.
    ZeroTail {
        /// All rows.
        target: Operand,
        /// Values of the valid ones.
        valid: Extent,
    },
    /// Mean and variance to 0 and 1.
    LayerNorm {
        /// Numbers.
        norm: LayerNorm,
        /// Values.
        x: Operand,
        /// `[width]`
        weight: Option<Operand>,
        /// `[width]`
        bias: Option<Operand>,
        /// Groups.
        groups: Extent,
        /// Result.
        out: Operand,
    },
    /// Rotary embedding by two coordinates.
    AxialRope {
        /// `[rows, heads · head_dim]`
        x: Operand,
        /// `[rows, head_dim / 4]`, of the first halves, then of the second.
        cos: [Operand; 2],
        /// As `cos`.
        sin: [Operand; 2],
        /// Values per head, heads.
        sizes: [u64; 2],
        /// Rows.
        rows: Extent,
        /// As `x`.
        out: Operand,
    },
    /// Attention to the rows just before, with scores for each distance.
    RelativeAttention {
        /// Dimensions.
        relative: Relative,
        /// `[rows, heads · head_dim]`
        q: Operand,
        /// As `q`.
        k: Operand,
        /// As `q`.
        v: Operand,
        /// `[rows, heads · window]`
        by_distance: Operand,
        /// Rows.
        rows: Extent,
        /// As `q`.
        out: Operand,
    },
    /// Convolution over a plane; what a kernel covers is unfolded in scratch memory.
    Convolution {
        /// Dimensions.
        plane: Plane,
        /// `[height, width, channels]`
        x: Operand,
        /// Packed `[outputs, channels · kernel²]`.
        weights: PackedWeights,
        /// Rows of `x`; zeros stand for those beyond.
        height: Extent,
        /// Rows of the result.
        rows: Extent,
        /// `[rows, columns, outputs]`
        out: Operand,
    },
    /// Convolution along rows; the weight is turned in scratch memory.
    Depthwise {
        /// `[rows, channels]`
        x: Operand,
        /// `[channels, kernel]`
        weight: Operand,
        /// Channels, kernel.
        sizes: [u64; 2],
        /// Rows.
        rows: Extent,
        /// As `x`.
        out: Operand,
    },
    /// `a · sigmoid(b)` of the halves of each group.
    Glu {
        /// Values.
        x: Operand,
        /// Values per group of the result.
        width: u64,
        /// Groups.
        groups: Extent,
        /// Result.
        out: Operand,
    },
    /// Means of consecutive rows.
    MeanRows {
        /// `[groups · rows, width]`
        x: Operand,
        /// Values per row, rows of a mean.
        sizes: [u64; 2],
        /// Rows of `x`; zeros stand for those beyond.
        valid: Extent,
        /// Means.
        groups: Extent,
        /// `[groups, width]`
        out: Operand,
    },
}
