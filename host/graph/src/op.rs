use serde::{Deserialize, Serialize};

/// Rotary position embedding of every head, half-split pairs.
///
/// For head vectors of `head_dim` values, pair `i` is `(x[i], x[i + head_dim/2])`. Pairs `i < rotated_pairs` turn
/// by `position · theta^(−2i/head_dim) / factor` radians (all in f32); the others stay. "Proportional" partial rotary of
/// Gemma 4 is `rotated_pairs < head_dim/2` with the exponent's denominator still the whole `head_dim`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Values per head.
    pub head_dim: u32,
    /// Base of the frequencies.
    pub theta: f32,
    /// Pairs that turn; the rest have cos 1, sin 0.
    pub rotated_pairs: u32,
    /// Divisor of every frequency (1 = none).
    pub factor: f32,
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

/// Scaled dot-product attention with grouped heads: `softmax(scale · q·k, soft-capped, over the visible keys) · v`.
///
/// Which keys are visible is the rule of [`Mask`](crate::Mask). A query that sees no key, which only a row beyond the valid ones can be,
/// gives anything finite.
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
/// Reductions are over the last axis. Every operation means the same whatever its tensors' encodings: operands are decoded to
/// f32, the result is computed as in the float graph and encoded once (see [`Affine`](crate::Affine)). Two exceptions: operations that only move
/// values ([`Op::is_movement`]) move the stored ones, and products of two integer operands ([`Op::Linear`], [`Op::MatMul`]) sum the products of
/// `stored − zero point` exactly, for block formats block by block in their order, before the scales are multiplied in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "op")]
pub enum Op {
    /// `x [.., K] · wᵀ [N, K] (+ bias [N]) → [.., N]`.
    Linear,
    /// `x / sqrt(mean(x²) + eps) ⊙ (weight + weight_offset)` over each consecutive `width` values of the last axis.
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
    /// See [`Attention`]. Inputs `q [R, heads·d]`, `k [S, kv·d]`, `v [S, kv·d]`, `positions i32 [R]` → `[R, heads·d]`.
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
    /// Inputs `state [C, W]`, `rows [R, W]`, `slots i32 [R]` → the state with row `slots[r]` replaced by `rows[r]`; slot −1 writes nothing.
    /// In place wherever it runs.
    StateUpdate,
    /// `x / max(‖x‖₂, 1e-12)` over the last axis.
    L2Normalize,
    /// [`Op::Linear`] with an integer weight, whose `x` is quantised to 8 bit at run time, row by row:
    /// `s = max(max|x|, 1e-30) · (1/127)` and `q = round(x / s)`, ties to even, all in f32; then `y = s · scale · Σ q·w`, the sum exact
    /// (+ bias).
    DynamicLinear,
    /// [`Rope`] by tables: inputs `x [R, heads·head_dim]`, `cos [R, head_dim/2]`, `sin [R, head_dim/2]`. Of every head, pair
    /// `(x[i], x[i + head_dim/2])` becomes `(x[i]·cos[i] − x[i + head_dim/2]·sin[i], x[i + head_dim/2]·cos[i] + x[i]·sin[i])`.
    Rotate {
        /// Values per head.
        head_dim: u32,
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
    /// `a [.., M, K] · b [.., K, N]` (or `b [.., N, K]` with `transpose_b`); leading axes broadcast like NumPy.
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
    /// The frozen number: semantic operations from 1, primitives from 64.
    pub const fn number(&self) -> u32 {
        match self {
            Op::Linear => 1,
            Op::RmsNorm { .. } => 2,
            Op::Rope(_) => 3,
            Op::Attention(_) => 4,
            Op::Gelu => 5,
            Op::Silu => 6,
            Op::Softcap { .. } => 7,
            Op::Softmax => 8,
            Op::StateUpdate => 9,
            Op::L2Normalize => 10,
            Op::DynamicLinear => 11,
            Op::Rotate { .. } => 12,
            Op::Add => 64,
            Op::Sub => 65,
            Op::Mul => 66,
            Op::Div => 67,
            Op::AddScalar { .. } => 68,
            Op::MulScalar { .. } => 69,
            Op::Neg => 70,
            Op::Exp => 71,
            Op::Tanh => 72,
            Op::Sqrt => 73,
            Op::Rsqrt => 74,
            Op::Reciprocal => 75,
            Op::ReduceSum => 76,
            Op::ReduceMean => 77,
            Op::ReduceMax => 78,
            Op::MatMul { .. } => 79,
            Op::Reshape { .. } => 80,
            Op::Transpose { .. } => 81,
            Op::Slice { .. } => 82,
            Op::Concat { .. } => 83,
            Op::MaxScalar { .. } => 84,
            Op::Round => 85,
            Op::Convert => 86,
        }
    }

    /// Version of the operation's meaning; grows when a default of an attribute changes.
    pub const fn version(&self) -> u32 {
        1
    }

    /// Kebab-case name, as in JSON and reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Op::Linear => "linear",
            Op::RmsNorm { .. } => "rms-norm",
            Op::Rope(_) => "rope",
            Op::Attention(_) => "attention",
            Op::Gelu => "gelu",
            Op::Silu => "silu",
            Op::Softcap { .. } => "softcap",
            Op::Softmax => "softmax",
            Op::StateUpdate => "state-update",
            Op::L2Normalize => "l2-normalize",
            Op::DynamicLinear => "dynamic-linear",
            Op::Rotate { .. } => "rotate",
            Op::Add => "add",
            Op::Sub => "sub",
            Op::Mul => "mul",
            Op::Div => "div",
            Op::AddScalar { .. } => "add-scalar",
            Op::MulScalar { .. } => "mul-scalar",
            Op::MaxScalar { .. } => "max-scalar",
            Op::Neg => "neg",
            Op::Exp => "exp",
            Op::Tanh => "tanh",
            Op::Sqrt => "sqrt",
            Op::Rsqrt => "rsqrt",
            Op::Reciprocal => "reciprocal",
            Op::ReduceSum => "reduce-sum",
            Op::ReduceMean => "reduce-mean",
            Op::ReduceMax => "reduce-max",
            Op::MatMul { .. } => "mat-mul",
            Op::Reshape { .. } => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::Slice { .. } => "slice",
            Op::Concat { .. } => "concat",
            Op::Round => "round",
            Op::Convert => "convert",
        }
    }

    /// Whether it only moves stored values: operands and result have one encoding, and nothing is decoded.
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
        self.number() < 64
    }

    /// The attributes in the order in which they cross the shim contract.
    pub fn attributes(&self) -> Vec<Attribute> {
        use AttributeValue::{Float, Integer, Integers, Text};
        let attribute = |name, value| Attribute { name, value };
        match self {
            Op::RmsNorm { width, eps, weight_offset } => vec![
                attribute("width", Integer(i64::from(*width))),
                attribute("eps", Float(f64::from(*eps))),
                attribute("weight_offset", Float(f64::from(*weight_offset))),
            ],
            Op::Rope(rope) => vec![
                attribute("head_dim", Integer(i64::from(rope.head_dim))),
                attribute("theta", Float(f64::from(rope.theta))),
                attribute("rotated_pairs", Integer(i64::from(rope.rotated_pairs))),
                attribute("factor", Float(f64::from(rope.factor))),
            ],
            Op::Attention(attention) => vec![
                attribute("heads", Integer(i64::from(attention.heads))),
                attribute("kv_heads", Integer(i64::from(attention.kv_heads))),
                attribute("head_dim", Integer(i64::from(attention.head_dim))),
                attribute("scale", Float(f64::from(attention.scale))),
                attribute("softcap", Float(f64::from(attention.softcap))),
                attribute("window", Integer(i64::from(attention.window))),
                attribute("causal", Integer(i64::from(attention.causal))),
                attribute(
                    "keys",
                    Text(match attention.keys {
                        KeySource::State => "state",
                        KeySource::Rows => "rows",
                    }),
                ),
            ],
            Op::Softcap { cap } => vec![attribute("cap", Float(f64::from(*cap)))],
            Op::Rotate { head_dim } => vec![attribute("head_dim", Integer(i64::from(*head_dim)))],
            Op::AddScalar { value } | Op::MulScalar { value } | Op::MaxScalar { value } => {
                vec![attribute("value", Float(f64::from(*value)))]
            }
            Op::MatMul { transpose_b } => vec![attribute("transpose_b", Integer(i64::from(*transpose_b)))],
            Op::Reshape { shape } => {
                vec![attribute("shape", Integers(shape.iter().map(|&d| d as i64).collect()))]
            }
            Op::Transpose { perm } => {
                vec![attribute("perm", Integers(perm.iter().map(|&axis| i64::from(axis)).collect()))]
            }
            Op::Slice { axis, start, end } => vec![
                attribute("axis", Integer(i64::from(*axis))),
                attribute("start", Integer(*start as i64)),
                attribute("end", Integer(*end as i64)),
            ],
            Op::Concat { axis } => vec![attribute("axis", Integer(i64::from(*axis)))],
            Op::Linear
            | Op::Gelu
            | Op::Silu
            | Op::Softmax
            | Op::StateUpdate
            | Op::L2Normalize
            | Op::DynamicLinear
            | Op::Round
            | Op::Convert
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
