use serde::{Deserialize, Serialize};
use shardwright_vocabulary::OpKind;

/// Rotary position embedding of every head, half-split pairs.
///
/// For head vectors of `head_dim` values, pair `i` is `(x[i], x[i + head_dim/2])`. Pairs
/// `i < rotated_pairs` turn by `position · theta^(−2i/head_dim) / (factor · divisors[i])` radians
/// (all in f32); the others stay. "Proportional" partial rotary of Gemma 4 is `rotated_pairs <
/// head_dim/2` with the exponent's denominator still the whole `head_dim`. A pair that turns is
/// multiplied by `magnitude`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Values per head.
    pub head_dim: u32,
    /// Base of the frequencies.
    pub theta: f32,
    /// Pairs that turn; the rest have cos 1, sin 0.
    pub rotated_pairs: u32,
    /// Divisor of every frequency (1 = none).
    pub factor: f32,
    /// Further divisor of the frequency of each pair, `head_dim/2` of them; empty for none. The
    /// shim contract has no attribute for it, so that [`legalise`](crate::legalise) always
    /// decomposes an operation that has some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub divisors: Vec<f32>,
    /// Factor on the cosine and the sine of pairs that turn (1 = none). As with divisors, the shim
    /// contract has no attribute for it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub magnitude: f32,
}

const fn one() -> f32 {
    1.0
}

fn is_one(number: &f32) -> bool {
    *number == 1.0
}

impl Rope {
    /// Returns whether the attributes of the shim contract describe the operation.
    pub fn is_in_contract(&self) -> bool {
        self.divisors.is_empty() && is_one(&self.magnitude)
    }

    /// Returns the divisor of the frequency of a pair.
    pub fn divisor(&self, pair: u32) -> f32 {
        self.factor * self.divisors.get(pair as usize).copied().unwrap_or(1.0)
    }
}

/// Rotary position embedding of every head by two coordinates: the first half of a head turns by
/// the column, the second half by the row, each as a [`Rope`] of half the size, all pairs turning.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AxialRope {
    /// Values per head; a multiple of four.
    pub head_dim: u32,
    /// Base of the frequencies.
    pub theta: f32,
}

impl AxialRope {
    /// What each half of a head turns as.
    pub const fn half(&self) -> Rope {
        let head_dim = self.head_dim / 2;
        Rope {
            head_dim,
            theta: self.theta,
            rotated_pairs: head_dim / 2,
            factor: 1.0,
            divisors: Vec::new(),
            magnitude: 1.0,
        }
    }
}

/// Attention of every row to itself and the rows before it within a window, with a vector for each
/// distance that is added to the key: `softmax(soft-capped q_i · (k_j + distances[i − j])) · v_j`.
///
/// The window is the number of distances; a window as long as the entry is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelativeAttention {
    /// Heads.
    pub heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// `cap · tanh(score / cap)`; 0 for none.
    pub softcap: f32,
}

/// Where attention keys come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeySource {
    /// Rows of a key/value state, addressed by slot.
    State,
    /// The entry's own rows (encoders).
    Rows,
}

/// Scaled dot-product attention with grouped heads:
/// `softmax(scale · q·k, soft-capped, over the visible keys) · v`.
///
/// Which keys are visible is the rule of [`Mask`](crate::Mask). A query that sees no key, which
/// only a row beyond the valid ones can be, gives anything finite.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Query heads.
    pub heads: u32,
    /// Key/value heads; query head `h` reads key/value head `h / (heads / kv_heads)`.
    pub kv_heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Factor on `q·k`.
    pub scale: f32,
    /// `cap · tanh(score / cap)` before the mask; 0 for none.
    pub softcap: f32,
    /// Visible distance (the query itself counts); 0 for none.
    pub window: u32,
    /// Whether later keys are invisible. Always true with [`KeySource::State`].
    pub causal: bool,
    /// Where keys and values lie.
    pub keys: KeySource,
}

/// An operation. The first group is semantic and has a decomposition; the second is primitive.
///
/// Numbers ([`Op::number`]) are part of the shim contract: never renumbered, only appended.
/// Reductions are over the last axis. Every operation means the same whatever its tensors'
/// encodings: operands are decoded to f32, the result is computed as in the float graph and encoded
/// once (see [`Affine`](shardwright_vocabulary::Affine)). Two exceptions: operations that only move
/// values ([`Op::is_movement`]) move the stored ones, and products of two integer operands
/// ([`Op::Linear`], [`Op::MatMul`]) sum the products of `stored − zero point` exactly, for block
/// formats block by block in their order, before the scales are multiplied in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "op")]
pub enum Op {
    /// `x [.., K] · wᵀ [N, K] (+ bias [N]) → [.., N]`.
    Linear,
    /// `x / sqrt(mean(x²) + eps) ⊙ (weight + weight_offset)` over each consecutive `width` values
    /// of the last axis.
    RmsNorm {
        /// Group length; divides the last axis.
        width: u32,
        /// Added under the root.
        eps: f32,
        /// 1 for families that multiply by `1 + w`, else 0.
        weight_offset: f32,
    },
    /// See [`Rope`]. Inputs `x [R, heads·head_dim]`, `positions i32 [R]`.
    Rope(Rope),
    /// See [`Attention`]. Inputs `q [R, heads·d]`, `k [S, kv·d]`, `v [S, kv·d]`,
    /// `positions i32 [R]` → `[R, heads·d]`.
    Attention(Attention),
    /// `0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))`.
    Gelu,
    /// `x / (1 + exp(−x))`.
    Silu,
    /// `cap · tanh(x / cap)`.
    Softcap {
        /// The bound.
        cap: f32,
    },
    /// Over the last axis.
    Softmax,
    /// Inputs `state [C, W]`, `rows [R, W]`, `slots i32 [R]` → the state with row `slots[r]`
    /// replaced by `rows[r]`; slot −1 writes nothing. In place wherever it runs.
    StateUpdate,
    /// `(x − mean(x)) / sqrt(variance(x) + eps) ⊙ weight + bias` over the last axis, the variance
    /// that of the whole population. Weight and bias may be missing, the bias alone not.
    LayerNorm {
        /// Added under the root.
        eps: f32,
    },
    /// `x / max(‖x‖₂, 1e-12)` over the last axis.
    L2Normalize,
    /// [`Op::Linear`] with an integer weight, whose `x` is quantised to 8 bit at run time, row by
    /// row: `s = max(max|x|, 1e-30) · (1/127)` and `q = round(x / s)`, ties to even, all in f32;
    /// then `y = s · scale · Σ q·w`, the sum exact (+ bias). With blocks, every block of a row has
    /// its own `s`, and `y` is the sum over blocks.
    DynamicLinear {
        /// Consecutive values of a row that share a scale; the last block may be shorter. 0 for the
        /// whole row.
        block: u32,
    },
    /// [`Rope`] by tables: inputs `x [R, heads·head_dim]`, `cos [R, head_dim/2]`,
    /// `sin [R, head_dim/2]`. Of every head, pair `(x[i], x[i + head_dim/2])` becomes
    /// `(x[i]·cos[i] − x[i + head_dim/2]·sin[i], x[i + head_dim/2]·cos[i] + x[i]·sin[i])`.
    Rotate {
        /// Values per head.
        head_dim: u32,
    },
    /// See [`AxialRope`]. Inputs `x [R, heads·head_dim]`, `columns i32 [R]`, `rows i32 [R]`.
    AxialRope(AxialRope),
    /// See [`RelativeAttention`]. Inputs `q`, `k`, `v`, each `[R, heads·d]`, and
    /// `distances [window, heads·d]` → `[R, heads·d]`.
    RelativeAttention(RelativeAttention),
    /// 2-D, `x [H, W, C]` with zeros around it and `weight [O, C·kernel²]` → `[H', W', O]`, where
    /// `H' = (H + 2·padding − kernel) / stride + 1` rounded down. Columns of the weight are channel
    /// by channel, in each row by row: what `[O, C, kernel, kernel]` is in memory.
    Convolution {
        /// Rows and columns of the kernel.
        kernel: u32,
        /// Step between results, in both directions; 1 or 2.
        stride: u32,
        /// Rows and columns of zeros on every side, fewer than the kernel has.
        padding: u32,
    },
    /// Along rows, each channel by itself: `Σⱼ weight[c, j] · x[r − kernel + 1 + j, c]` for
    /// `x [R, C]` and `weight [C, kernel]`, with zeros before the first row.
    DepthwiseConvolution,
    /// `min(max(x, low), high)`; inputs `x`, `low [1]`, `high [1]`.
    Clamp,
    /// `1 / (1 + exp(−x))`.
    Sigmoid,
    /// `a · sigmoid(b)`, where a and b are the halves of the last axis.
    Glu,
    /// The mean of every `rows` consecutive rows: `[R·rows, K]` → `[R, K]`.
    MeanRows {
        /// Rows of each mean.
        rows: u32,
    },

    /// Elementwise with NumPy broadcasting.
    Add,
    /// Elementwise with NumPy broadcasting.
    Sub,
    /// Elementwise with NumPy broadcasting.
    Mul,
    /// Elementwise with NumPy broadcasting.
    Div,
    /// `x + value`.
    AddScalar {
        /// The addend.
        value: f32,
    },
    /// `x · value`.
    MulScalar {
        /// The factor.
        value: f32,
    },
    /// `max(x, value)`.
    MaxScalar {
        /// The lower bound.
        value: f32,
    },
    /// `−x`.
    Neg,
    /// `eˣ`.
    Exp,
    /// Hyperbolic tangent.
    Tanh,
    /// Square root.
    Sqrt,
    /// `1 / sqrt(x)`.
    Rsqrt,
    /// `1 / x`.
    Reciprocal,
    /// Last axis, kept as 1.
    ReduceSum,
    /// Last axis, kept as 1.
    ReduceMean,
    /// Last axis, kept as 1.
    ReduceMax,
    /// `a [.., M, K] · b [.., K, N]` (or `b [.., N, K]` with `transpose_b`); leading axes broadcast
    /// like NumPy.
    MatMul {
        /// Whether the last two axes of `b` are swapped.
        transpose_b: bool,
    },
    /// Same elements, other shape.
    Reshape {
        /// The new shape.
        shape: Vec<u64>,
    },
    /// Output axis `i` is input axis `perm[i]`.
    Transpose {
        /// A permutation of the axes.
        perm: Vec<u32>,
    },
    /// `start..end` along one axis.
    Slice {
        /// The axis.
        axis: u32,
        /// First index.
        start: u64,
        /// One past the last index.
        end: u64,
    },
    /// Joins inputs along one axis.
    Concat {
        /// The axis.
        axis: u32,
    },
    /// To the nearest integer, ties to even.
    Round,
    /// The same values in the encoding of the result.
    Convert,
    /// The larger, elementwise with NumPy broadcasting.
    Max,
    /// The smaller, elementwise with NumPy broadcasting.
    Min,
}

/// Value of an attribute as it crosses the shim contract.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// An integer, also for booleans (0, 1).
    Integer(i64),
    /// A 32-bit float, widened.
    Float(f64),
    /// A list of integers.
    Integers(Vec<i64>),
    /// A word.
    Text(&'static str),
}

/// A named attribute of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// Snake-case name, unique within the operation.
    pub name: &'static str,
    /// Its value.
    pub value: AttributeValue,
}

impl Op {
    /// Which operation it is, without its attributes.
    pub const fn kind(&self) -> OpKind {
        match self {
            Op::Linear => OpKind::Linear,
            Op::RmsNorm { .. } => OpKind::RmsNorm,
            Op::Rope(_) => OpKind::Rope,
            Op::Attention(_) => OpKind::Attention,
            Op::Gelu => OpKind::Gelu,
            Op::Silu => OpKind::Silu,
            Op::Softcap { .. } => OpKind::Softcap,
            Op::Softmax => OpKind::Softmax,
            Op::StateUpdate => OpKind::StateUpdate,
            Op::L2Normalize => OpKind::L2Normalize,
            Op::DynamicLinear { .. } => OpKind::DynamicLinear,
            Op::Rotate { .. } => OpKind::Rotate,
            Op::LayerNorm { .. } => OpKind::LayerNorm,
            Op::AxialRope(_) => OpKind::AxialRope,
            Op::RelativeAttention(_) => OpKind::RelativeAttention,
            Op::Convolution { .. } => OpKind::Convolution,
            Op::DepthwiseConvolution => OpKind::DepthwiseConvolution,
            Op::Clamp => OpKind::Clamp,
            Op::Sigmoid => OpKind::Sigmoid,
            Op::Glu => OpKind::Glu,
            Op::MeanRows { .. } => OpKind::MeanRows,
            Op::Add => OpKind::Add,
            Op::Sub => OpKind::Sub,
            Op::Mul => OpKind::Mul,
            Op::Div => OpKind::Div,
            Op::AddScalar { .. } => OpKind::AddScalar,
            Op::MulScalar { .. } => OpKind::MulScalar,
            Op::Neg => OpKind::Neg,
            Op::Exp => OpKind::Exp,
            Op::Tanh => OpKind::Tanh,
            Op::Sqrt => OpKind::Sqrt,
            Op::Rsqrt => OpKind::Rsqrt,
            Op::Reciprocal => OpKind::Reciprocal,
            Op::ReduceSum => OpKind::ReduceSum,
            Op::ReduceMean => OpKind::ReduceMean,
            Op::ReduceMax => OpKind::ReduceMax,
            Op::MatMul { .. } => OpKind::MatMul,
            Op::Reshape { .. } => OpKind::Reshape,
            Op::Transpose { .. } => OpKind::Transpose,
            Op::Slice { .. } => OpKind::Slice,
            Op::Concat { .. } => OpKind::Concat,
            Op::MaxScalar { .. } => OpKind::MaxScalar,
            Op::Round => OpKind::Round,
            Op::Convert => OpKind::Convert,
            Op::Max => OpKind::Max,
            Op::Min => OpKind::Min,
        }
    }

    /// The frozen number: semantic operations from 1, primitives from 64.
    pub const fn number(&self) -> u32 {
        self.kind().number()
    }

    /// Version of the operation's meaning; grows when a default of an attribute changes. Blocks of
    /// [`Op::DynamicLinear`] have a version of their own, so that a shim that does not know them
    /// refuses the operation.
    pub const fn version(&self) -> u32 {
        match self {
            Op::DynamicLinear { block: 1.. } => 2,
            _ => 1,
        }
    }

    /// Kebab-case name, as in JSON and reports.
    pub const fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Whether it only moves stored values: operands and result have one encoding, and nothing is
    /// decoded.
    pub const fn is_movement(&self) -> bool {
        matches!(
            self,
            Op::Reshape { .. }
                | Op::Transpose { .. }
                | Op::Slice { .. }
                | Op::Concat { .. }
                | Op::StateUpdate
        )
    }

    /// Whether a decomposition exists.
    pub const fn is_semantic(&self) -> bool {
        self.kind().is_semantic()
    }

    /// The attributes in the order in which they cross the shim contract.
    pub fn attributes(&self) -> Vec<Attribute> {
        let names = self.kind().attributes().iter();
        names.zip(self.values()).map(|(attribute, value)| Attribute { name: attribute.name, value }).collect()
    }

    /// The values of the attributes, in the order of the list of operations.
    fn values(&self) -> Vec<AttributeValue> {
        use AttributeValue::{Float, Integer, Integers, Text};
        match self {
            Op::RmsNorm { width, eps, weight_offset } => {
                vec![Integer((*width).into()), Float((*eps).into()), Float((*weight_offset).into())]
            }
            Op::LayerNorm { eps } => vec![Float((*eps).into())],
            Op::Rope(rope) => vec![
                Integer(rope.head_dim.into()),
                Float(rope.theta.into()),
                Integer(rope.rotated_pairs.into()),
                Float(rope.factor.into()),
            ],
            Op::Attention(attention) => vec![
                Integer(attention.heads.into()),
                Integer(attention.kv_heads.into()),
                Integer(attention.head_dim.into()),
                Float(attention.scale.into()),
                Float(attention.softcap.into()),
                Integer(attention.window.into()),
                Integer(attention.causal.into()),
                Text(match attention.keys {
                    KeySource::State => "state",
                    KeySource::Rows => "rows",
                }),
            ],
            Op::AxialRope(rope) => vec![Integer(rope.head_dim.into()), Float(rope.theta.into())],
            Op::RelativeAttention(attention) => vec![
                Integer(attention.heads.into()),
                Integer(attention.head_dim.into()),
                Float(attention.softcap.into()),
            ],
            Op::Convolution { kernel, stride, padding } => {
                vec![Integer((*kernel).into()), Integer((*stride).into()), Integer((*padding).into())]
            }
            Op::MeanRows { rows: count } | Op::DynamicLinear { block: count } => {
                vec![Integer((*count).into())]
            }
            Op::Softcap { cap: value }
            | Op::AddScalar { value }
            | Op::MulScalar { value }
            | Op::MaxScalar { value } => vec![Float((*value).into())],
            Op::Rotate { head_dim } => vec![Integer((*head_dim).into())],
            Op::MatMul { transpose_b } => vec![Integer((*transpose_b).into())],
            Op::Reshape { shape } => vec![Integers(shape.iter().map(|&extent| extent as i64).collect())],
            Op::Transpose { perm } => vec![Integers(perm.iter().map(|&axis| axis.into()).collect())],
            Op::Slice { axis, start, end } => {
                vec![Integer((*axis).into()), Integer(*start as i64), Integer(*end as i64)]
            }
            Op::Concat { axis } => vec![Integer((*axis).into())],
            Op::Linear
            | Op::Gelu
            | Op::Silu
            | Op::Softmax
            | Op::StateUpdate
            | Op::L2Normalize
            | Op::DepthwiseConvolution
            | Op::Clamp
            | Op::Sigmoid
            | Op::Glu
            | Op::Round
            | Op::Convert
            | Op::Max
            | Op::Min
            | Op::Add
            | Op::Sub
            | Op::Mul
            | Op::Div
            | Op::Neg
            | Op::Exp
            | Op::Tanh
            | Op::Sqrt
            | Op::Rsqrt
            | Op::Reciprocal
            | Op::ReduceSum
            | Op::ReduceMean
            | Op::ReduceMax => Vec::new(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use shardwright_vocabulary::AttributeKind;

    use super::*;

    // The tests from outside use the same.
    include!("../tests/support/every_op.rs");

    #[test]
    fn operations_have_the_names_and_attributes_of_the_list() {
        for (op, &kind) in every_op().iter().zip(OpKind::ALL) {
            assert_eq!(op.kind(), kind, "{op:?}");
            let json = serde_json::to_value(op).unwrap();
            assert_eq!(json["op"], kind.name(), "{op:?}");
            let kinds = op.values().into_iter().map(|value| match value {
                AttributeValue::Integer(_) => AttributeKind::Integer,
                AttributeValue::Float(_) => AttributeKind::Float,
                AttributeValue::Integers(_) => AttributeKind::Integers,
                AttributeValue::Text(_) => AttributeKind::Text,
            });
            let listed = kind.attributes().iter().map(|attribute| attribute.kind);
            assert_eq!(kinds.collect::<Vec<_>>(), listed.collect::<Vec<_>>(), "{op:?}");
        }
    }
}
