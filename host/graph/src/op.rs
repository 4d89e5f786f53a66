use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{AttentionFormat, OpKind};

/// Rotary position embedding of every head, with half-split pairs.
///
/// For head vectors of `head_dim` values, pair `i` is `(x[i], x[i + head_dim/2])`. Pairs
/// `i < rotated_pairs` are rotated by `position · theta^(−2i/head_dim) / (factor · divisors[i])`
/// radians (all in f32). The other pairs do not change. "Proportional" partial rotary of Gemma 4 is
/// `rotated_pairs < head_dim/2`, where the exponent's denominator is still the whole `head_dim`. A
/// rotated pair is multiplied by `magnitude`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Values per head.
    pub head_dim: u32,
    /// Base of the frequencies.
    pub theta: f32,
    /// Number of rotated pairs. The other pairs have cos 1, sin 0.
    pub rotated_pairs: u32,
    /// Divisor of every frequency. 1 for none.
    pub factor: f32,
    /// Additional divisors of the frequency of each pair, `head_dim/2` values. Empty for none. The
    /// shim contract has no attribute for them, so [`legalise`](crate::legalise) always decomposes
    /// an operation with divisors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub divisors: Vec<f32>,
    /// Factor on the cosine and the sine of rotated pairs. 1 for none. The shim contract has no
    /// attribute for it either.
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

/// Rotary position embedding of every head by two coordinates. The first half of a head is rotated
/// by the column, the second half by the row. Each is a [`Rope`] of half the size in which all
/// pairs are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AxialRope {
    /// Values per head, a multiple of four.
    pub head_dim: u32,
    /// Base of the frequencies.
    pub theta: f32,
}

impl AxialRope {
    /// Returns the rotation of each half of a head.
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

/// Attention of every row to itself and the rows before it within a window, with an additional
/// score for each distance. Row i sees the rows i − window < j ≤ i. The soft-capped score of head h
/// is `q_i · k_j + by_distance[i, h·window + window − 1 − (i − j)]`.
///
/// The window is the number of scores by distance per row and head. A window as long as the entry
/// does not limit attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelativeAttention {
    /// Number of heads.
    pub heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Soft-cap `cap · tanh(score / cap)`. 0 for none.
    pub softcap: f32,
}

/// Source of attention keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeySource {
    /// Rows of a key/value state, addressed by slot.
    State,
    /// The entry's own rows, in encoders.
    Rows,
}

/// Scaled dot-product attention with grouped heads: `softmax(scale · q·k, soft-capped, over the
/// visible keys) · v`.
///
/// [`Mask`](crate::Mask) defines which keys are visible. Only a query in a row beyond the valid
/// ones can have no visible key. Its result is any finite value.
///
/// With `products` in 16 bits, operands are rounded to the nearest value of that format, ties to
/// even, before they are multiplied: queries, keys and values as they are read, and the weights of
/// keys. Products are exact, and scores, sums and results are f32. The order of sums does not
/// depend on how a text is divided into runs, because keys are grouped by their positions:
///
/// * Positions `n · 64` to `n · 64 + 63` are block n ([`Attention::BLOCK`]). A row sees all, some
///   or none of the keys of a block.
/// * Within a block, the weight of a visible key is `exp(score − largest)`, with the largest
///   visible score of the block, rounded to 16 bits. It is 0 below `e⁻⁶⁴`. The block's sum is the
///   sum of the rounded weights, and its result is the sum of the values times these weights.
/// * Blocks are added in their order. `largest` becomes the larger of both, and sums and results
///   are multiplied by `exp(own largest − largest)`, or by 0 below `e⁻⁶⁴`. The final result is
///   divided by the final sum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Number of query heads.
    pub heads: u32,
    /// Number of key/value heads. Query head `h` reads key/value head `h / (heads / kv_heads)`.
    pub kv_heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Factor on `q·k`.
    pub scale: f32,
    /// Soft-cap `cap · tanh(score / cap)`, applied before the mask. 0 for none.
    pub softcap: f32,
    /// Visible distance, including the query itself. 0 for no limit.
    pub window: u32,
    /// Whether later keys are invisible. Always true with [`KeySource::State`].
    pub causal: bool,
    /// Source of keys and values.
    pub keys: KeySource,
    /// Format of the products. A plan sets it ([`prepared`](crate::prepared)), not a model.
    #[serde(default, skip_serializing_if = "is_f32")]
    pub products: AttentionFormat,
}

impl Attention {
    /// Number of positions of a block of keys, if products are rounded.
    pub const BLOCK: u64 = 64;
}

fn is_f32(format: &AttentionFormat) -> bool {
    !format.is_rounded()
}

/// An operation. The first group is semantic and has decompositions. The second group is primitive.
///
/// Numbers ([`Op::number`]) are part of the shim contract. They are never changed, only appended.
/// Reductions are over the last axis. Every operation has the same meaning for all encodings of its
/// tensors: operands are decoded to f32, the result is computed as in the float graph and encoded
/// once (see [`Affine`](shardwright_vocabulary::Affine)). There are two exceptions. Operations that
/// only move values ([`Op::is_movement`]) move the stored ones. Products of two integer operands
/// ([`Op::Linear`], [`Op::MatMul`]) sum the products of `stored − zero point` exactly before
/// multiplying by the scales. For block formats they sum block by block, in the order of the
/// blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "op")]
pub enum Op {
    /// `x [.., K] · wᵀ [N, K] (+ bias [N]) → [.., N]`.
    Linear,
    /// `x / sqrt(mean(x²) + eps) ⊙ (weight + weight_offset)` over each consecutive `width` values
    /// of the last axis.
    RmsNorm {
        /// Group length. Divides the last axis.
        width: u32,
        /// Added under the root.
        eps: f32,
        /// 1 for families that multiply by `1 + w`, otherwise 0.
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
    /// Softmax over the last axis.
    Softmax,
    /// Inputs `state [C, W]`, `rows [R, W]`, `slots i32 [R]`. The result is the state with row
    /// `slots[r]` replaced by `rows[r]`. Slot −1 is not written. Always runs in place.
    StateUpdate,
    /// `(x − mean(x)) / sqrt(variance(x) + eps) ⊙ weight + bias` over the last axis. The variance
    /// is the whole population's. Weight and bias are optional, but a bias needs a weight.
    LayerNorm {
        /// Added under the root.
        eps: f32,
    },
    /// `x / max(‖x‖₂, 1e-12)` over the last axis.
    L2Normalize,
    /// Like [`Op::Linear`] with an integer weight, but `x` is quantised to 8 bits at run time, row
    /// by row: `s = max(max|x|, 1e-30) · (1/127)` and `q = round(x / s)`, ties to even, all in f32.
    /// Then `y = s · scale · Σ q·w` with an exact sum (+ bias). With blocks, every block of a row
    /// has its own `s`, and `y` is the sum over blocks.
    DynamicLinear {
        /// Number of consecutive values of a row that share a scale. The last block may be shorter.
        /// 0 for the whole row.
        block: u32,
    },
    /// [`Rope`] by tables: inputs `x [R, heads·head_dim]`, `cos [R, head_dim/2]`,
    /// `sin [R, head_dim/2]`. In every head, pair `(x[i], x[i + head_dim/2])` becomes `(x[i]·cos[i]
    /// − x[i + head_dim/2]·sin[i], x[i + head_dim/2]·cos[i] + x[i]·sin[i])`.
    Rotate {
        /// Values per head.
        head_dim: u32,
    },
    /// See [`AxialRope`]. Inputs `x [R, heads·head_dim]`, `columns i32 [R]`, `rows i32 [R]`.
    AxialRope(AxialRope),
    /// See [`RelativeAttention`]. Inputs `q`, `k`, `v`, each `[R, heads·d]`, and
    /// `by_distance [R, heads·window]` → `[R, heads·d]`.
    RelativeAttention(RelativeAttention),
    /// 2-D convolution of `x [H, W, C]`, padded with zeros, with `weight [O, C·kernel²]` →
    /// `[H', W', O]`, where `H' = (H + 2·padding − kernel) / stride + 1` rounded down. The columns
    /// of the weight are ordered by channel, then row, then column, as in a dense
    /// `[O, C, kernel, kernel]`.
    Convolution {
        /// Number of rows and of columns of the kernel.
        kernel: u32,
        /// Step between results in both directions, 1 or 2.
        stride: u32,
        /// Number of zero rows and columns on every side, less than the kernel's.
        padding: u32,
    },
    /// Convolution along rows, separately for each channel: `Σⱼ weight[c, j] · x[r − kernel + 1 +
    /// j, c]` for `x [R, C]` and `weight [C, kernel]`, with zeros before the first row.
    DepthwiseConvolution,
    /// `min(max(x, low), high)` with inputs `x`, `low [1]`, `high [1]`.
    Clamp,
    /// `1 / (1 + exp(−x))`.
    Sigmoid,
    /// `a · sigmoid(b)`, where a and b are the halves of the last axis.
    Glu,
    /// The mean of every `rows` consecutive rows: `[R·rows, K]` → `[R, K]`.
    MeanRows {
        /// Number of rows per mean.
        rows: u32,
    },

    /// Elementwise sum with NumPy broadcasting.
    Add,
    /// Elementwise difference with NumPy broadcasting.
    Sub,
    /// Elementwise product with NumPy broadcasting.
    Mul,
    /// Elementwise quotient with NumPy broadcasting.
    Div,
    /// `x + value`.
    AddScalar { value: f32 },
    /// `x · value`.
    MulScalar { value: f32 },
    /// `max(x, value)`.
    MaxScalar { value: f32 },
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
    /// Sum of the last axis, which is kept as 1.
    ReduceSum,
    /// Mean of the last axis, which is kept as 1.
    ReduceMean,
    /// Maximum of the last axis, which is kept as 1.
    ReduceMax,
    /// `a [.., M, K] · b [.., K, N]` (or `b [.., N, K]` with `transpose_b`). Leading axes broadcast
    /// as in NumPy.
    MatMul {
        /// Whether the last two axes of `b` are swapped.
        transpose_b: bool,
    },
    /// Keeps the elements and changes the shape.
    Reshape { shape: Vec<u64> },
    /// Output axis `i` is input axis `perm[i]`.
    Transpose {
        /// A permutation of the axes.
        perm: Vec<u32>,
    },
    /// The range `start..end` along one axis.
    Slice {
        axis: u32,
        /// First index.
        start: u64,
        /// One past the last index.
        end: u64,
    },
    /// Joins inputs along one axis.
    Concat { axis: u32 },
    /// Rounds to the nearest integer, ties to even.
    Round,
    /// Converts values to the encoding of the result.
    Convert,
    /// Elementwise maximum with NumPy broadcasting.
    Max,
    /// Elementwise minimum with NumPy broadcasting.
    Min,
}

/// Value of an attribute in the shim contract.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// An integer, also for booleans (0, 1).
    Integer(i64),
    /// A 32-bit float, widened.
    Float(f64),
    /// A list of integers.
    Integers(Vec<i64>),
    Text(&'static str),
}

/// A named attribute of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    /// Snake-case name, unique within the operation.
    pub name: &'static str,
    pub value: AttributeValue,
}

impl Op {
    /// Returns the kind of operation, without its attributes.
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

    /// Returns the frozen number. Semantic operations start at 1, primitives at 64.
    pub const fn number(&self) -> u32 {
        self.kind().number()
    }

    /// Returns the version of the operation's meaning, which increases if the default of an
    /// attribute changes. Blocks of [`Op::DynamicLinear`] and rounded products of
    /// [`Op::Attention`] have a separate version, so that a shim that does not know them refuses
    /// the operation.
    pub const fn version(&self) -> u32 {
        match self {
            Op::DynamicLinear { block: 1.. } => 2,
            Op::Attention(attention) if attention.products.is_rounded() => 2,
            _ => 1,
        }
    }

    /// Returns the kebab-case name, as used in JSON and reports.
    pub const fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Returns the place of an error in the node with this name.
    pub(crate) fn place(&self, node: &str) -> String {
        format!("node `{node}` ({})", self.name())
    }

    /// Returns whether it only moves stored values. Then operands and result have one encoding, and
    /// no value is decoded.
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

    /// Returns whether a decomposition exists.
    pub const fn is_semantic(&self) -> bool {
        self.kind().is_semantic()
    }

    /// Returns whether the operation may be replaced by its decomposition, which computes the same
    /// values up to float rounding. The steps of an attention with rounded products do not round.
    pub fn is_replaceable(&self) -> bool {
        self.is_semantic() && !matches!(self, Op::Attention(attention) if attention.products.is_rounded())
    }

    /// Returns the attributes in the order of the shim contract. Attributes of a version are left
    /// out in earlier versions.
    pub fn attributes(&self) -> Vec<Attribute> {
        let names = self.kind().attributes().iter();
        names.zip(self.values()).map(|(attribute, value)| Attribute { name: attribute.name, value }).collect()
    }

    /// Returns the values of the attributes, in the order of the list of operations.
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
            Op::Attention(attention) => [
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
            ]
            .into_iter()
            .chain(attention.products.is_rounded().then(|| Text(attention.products.name())))
            .collect(),
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

    // The integration tests include this file too.
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
            // The last attribute of an attention belongs to version 2.
            let left_out = usize::from(kind == OpKind::Attention);
            let listed = listed.take(kind.attributes().len() - left_out);
            assert_eq!(kinds.collect::<Vec<_>>(), listed.collect::<Vec<_>>(), "{op:?}");
        }
    }

    #[test]
    fn rounded_products_of_attention_have_a_version_and_an_attribute() {
        for (products, name) in [(AttentionFormat::Bf16, "bf16"), (AttentionFormat::F16, "f16")] {
            let op = Op::Attention(Attention { products, ..ATTENTION });
            let attributes = op.attributes();
            assert_eq!((op.version(), op.is_semantic(), op.is_replaceable()), (2, true, false));
            assert_eq!(attributes.len(), op.kind().attributes().len());
            let last = attributes.last().unwrap();
            assert_eq!((last.name, &last.value), ("products", &AttributeValue::Text(name)));
        }
        let plain = Op::Attention(ATTENTION);
        assert_eq!((plain.version(), plain.is_replaceable()), (1, true));
        assert!(plain.attributes().iter().all(|attribute| attribute.name != "products"));
        assert!(serde_json::to_value(&plain).unwrap().get("products").is_none());
    }
}
