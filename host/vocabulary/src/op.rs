use std::fmt;

/// Type of an attribute's value in the shim contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttributeKind {
    /// An integer, also for booleans (0, 1).
    Integer,
    /// A 32-bit float, widened.
    Float,
    /// A list of integers.
    Integers,
    /// A word.
    Text,
}

/// An attribute of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpAttribute {
    /// Snake-case name, unique within the operation.
    pub name: &'static str,
    /// Kind of its value.
    pub kind: AttributeKind,
}

/// Calls the macro named `$with` with all operations, each in the form `Case SW_OP_CASE NUMBER
/// "name" ["operand" …] [attribute: Kind …] "meaning";`.
///
/// This is the one list of operations. Numbers are part of the shim contract: they are only
/// appended and never reassigned. Semantic operations, which have a decomposition, start at 1,
/// primitives at 64.
#[macro_export]
macro_rules! operations {
    ($with:ident) => {
        $with! {
            Linear SW_OP_LINEAR 1 "linear"
                ["x [.., K]", "weight [N, K]", "bias [N]?"] []
                "x · weightᵀ (+ bias)";
            RmsNorm SW_OP_RMS_NORM 2 "rms-norm"
                ["x", "weight [width]?"] [width: Integer, eps: Float, weight_offset: Float]
                "x / sqrt(mean(x²) + eps) ⊙ (weight + weight_offset) over each `width` values of the last axis";
            Rope SW_OP_ROPE 3 "rope"
                ["x [R, heads·head_dim]", "positions i32 [R]"]
                [head_dim: Integer, theta: Float, rotated_pairs: Integer, factor: Float]
                "pairs are (i, i + head_dim/2); where pairs have divisors of their own or a magnitude, a graph has `rotate`";
            Attention SW_OP_ATTENTION 4 "attention"
                ["q", "k", "v", "positions i32 [R]"]
                [heads: Integer, kv_heads: Integer, head_dim: Integer, scale: Float, softcap: Float,
                 window: Integer, causal: Integer, keys: Text, products: Text]
                "`softcap` 0: none; `window` 0: none; `keys` is `state` or `rows`; `products`, in version 2 alone, is `bf16` or `f16`";
            Gelu SW_OP_GELU 5 "gelu" ["x"] [] "0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))";
            Silu SW_OP_SILU 6 "silu" ["x"] [] "x / (1 + exp(−x))";
            Softcap SW_OP_SOFTCAP 7 "softcap" ["x"] [cap: Float] "cap · tanh(x / cap)";
            Softmax SW_OP_SOFTMAX 8 "softmax" ["x"] [] "over the last axis";
            StateUpdate SW_OP_STATE_UPDATE 9 "state-update"
                ["state [C, W]", "rows [R, W]", "slots i32 [R]"] []
                "row `slots[r]` of the state becomes `rows[r]`, in place; slot −1 writes nothing";
            L2Normalize SW_OP_L2_NORMALIZE 10 "l2-normalize"
                ["x"] [] "x / max(‖x‖₂, 1e-12) over the last axis";
            DynamicLinear SW_OP_DYNAMIC_LINEAR 11 "dynamic-linear"
                ["x [.., K]", "integer weight [N, K]", "bias [N]?"] [block: Integer]
                "linear; each row of x is quantised to 8 bits at run time, in version 2 every `block` values of a row by themselves; `block` 0: the whole row";
            Rotate SW_OP_ROTATE 12 "rotate"
                ["x [R, heads·head_dim]", "cos [R, head_dim/2]", "sin [R, head_dim/2]"] [head_dim: Integer]
                "pair (i, j = i + head_dim/2) becomes (x_i·cos_i − x_j·sin_i, x_j·cos_i + x_i·sin_i)";
            LayerNorm SW_OP_LAYER_NORM 13 "layer-norm"
                ["x [.., K]", "weight [K]?", "bias [K]?"] [eps: Float]
                "(x − mean(x)) / sqrt(variance(x) + eps) ⊙ weight + bias over the last axis; a bias needs a weight";
            AxialRope SW_OP_AXIAL_ROPE 14 "axial-rope"
                ["x [R, heads·head_dim]", "columns i32 [R]", "rows i32 [R]"] [head_dim: Integer, theta: Float]
                "the first half of every head turns by its column, the second by its row, each as a `rope` of head_dim/2";
            RelativeAttention SW_OP_RELATIVE_ATTENTION 15 "relative-attention"
                ["q [R, heads·head_dim]", "k", "v", "by_distance [R, heads·window]"]
                [heads: Integer, head_dim: Integer, softcap: Float]
                "row i sees rows i − window < j ≤ i by the score q_i · k_j + by_distance[i, h·window + window − 1 − (i − j)] of head h; `softcap` 0: none";
            Convolution SW_OP_CONVOLUTION 16 "convolution"
                ["x [H, W, C]", "weight [O, C·kernel·kernel]"] [kernel: Integer, stride: Integer, padding: Integer]
                "2-D, zeros around x; columns of the weight are (channel, row, column); [H', W', O]";
            DepthwiseConvolution SW_OP_DEPTHWISE_CONVOLUTION 17 "depthwise-convolution"
                ["x [R, C]", "weight [C, kernel]"] []
                "Σⱼ weight[c, j] · x[r − kernel + 1 + j, c]; rows before the first are zeros";
            Clamp SW_OP_CLAMP 18 "clamp" ["x", "low [1]", "high [1]"] [] "min(max(x, low), high)";
            Sigmoid SW_OP_SIGMOID 19 "sigmoid" ["x"] [] "1 / (1 + exp(−x))";
            Glu SW_OP_GLU 20 "glu" ["x [.., 2·K]"] [] "a · sigmoid(b) for the halves a and b of the last axis; [.., K]";
            MeanRows SW_OP_MEAN_ROWS 21 "mean-rows"
                ["x [R·rows, K]"] [rows: Integer] "the mean of every `rows` consecutive rows; [R, K]";
            Add SW_OP_ADD 64 "add" ["a", "b"] [] "elementwise, broadcast like NumPy";
            Sub SW_OP_SUB 65 "sub" ["a", "b"] [] "elementwise, broadcast like NumPy";
            Mul SW_OP_MUL 66 "mul" ["a", "b"] [] "elementwise, broadcast like NumPy";
            Div SW_OP_DIV 67 "div" ["a", "b"] [] "elementwise, broadcast like NumPy";
            AddScalar SW_OP_ADD_SCALAR 68 "add-scalar" ["x"] [value: Float] "x + value";
            MulScalar SW_OP_MUL_SCALAR 69 "mul-scalar" ["x"] [value: Float] "x · value";
            Neg SW_OP_NEG 70 "neg" ["x"] [] "−x";
            Exp SW_OP_EXP 71 "exp" ["x"] [] "eˣ";
            Tanh SW_OP_TANH 72 "tanh" ["x"] [] "hyperbolic tangent";
            Sqrt SW_OP_SQRT 73 "sqrt" ["x"] [] "square root";
            Rsqrt SW_OP_RSQRT 74 "rsqrt" ["x"] [] "1 / sqrt(x)";
            Reciprocal SW_OP_RECIPROCAL 75 "reciprocal" ["x"] [] "1 / x";
            ReduceSum SW_OP_REDUCE_SUM 76 "reduce-sum" ["x"] [] "last axis, kept as 1";
            ReduceMean SW_OP_REDUCE_MEAN 77 "reduce-mean" ["x"] [] "last axis, kept as 1";
            ReduceMax SW_OP_REDUCE_MAX 78 "reduce-max" ["x"] [] "last axis, kept as 1";
            MatMul SW_OP_MAT_MUL 79 "mat-mul"
                ["a [.., M, K]", "b [.., K, N]"] [transpose_b: Integer]
                "with `transpose_b` b is [.., N, K]; leading axes broadcast like NumPy";
            Reshape SW_OP_RESHAPE 80 "reshape" ["x"] [shape: Integers] "the same elements in another shape";
            Transpose SW_OP_TRANSPOSE 81 "transpose"
                ["x"] [perm: Integers] "axis i of the result is axis `perm[i]` of x";
            Slice SW_OP_SLICE 82 "slice"
                ["x"] [axis: Integer, start: Integer, end: Integer] "`start..end` along one axis";
            Concat SW_OP_CONCAT 83 "concat" ["inputs"] [axis: Integer] "joined along one axis";
            MaxScalar SW_OP_MAX_SCALAR 84 "max-scalar" ["x"] [value: Float] "max(x, value)";
            Round SW_OP_ROUND 85 "round" ["x"] [] "to the nearest integer, ties to even";
            Convert SW_OP_CONVERT 86 "convert" ["x"] [] "the same values in the encoding of the result";
            Max SW_OP_MAX 87 "max" ["a", "b"] [] "the larger, elementwise, broadcast like NumPy";
            Min SW_OP_MIN 88 "min" ["a", "b"] [] "the smaller, elementwise, broadcast like NumPy";
        }
    };
}

macro_rules! kinds {
    ($($case:ident $constant:ident $number:literal $name:literal [$($operand:literal),*]
        [$($attribute:ident: $kind:ident),*] $meaning:literal;)*) => {
        /// An operation of the graph, without the values of its attributes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum OpKind {
            $(#[doc = $meaning] $case = $number,)*
        }

        impl OpKind {
            /// Every operation, in the order of the numbers.
            pub const ALL: &'static [OpKind] = &[$(OpKind::$case,)*];

            /// Returns the operation with that number.
            pub const fn from_number(number: u32) -> Option<OpKind> {
                match number {
                    $($number => Some(OpKind::$case),)*
                    _ => None,
                }
            }

            /// Returns the kebab-case name, as in JSON and reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(OpKind::$case => $name,)*
                }
            }

            /// Returns the operands as documented for authors of shims. An operand that ends in `?`
            /// is optional.
            pub const fn operands(self) -> &'static [&'static str] {
                match self {
                    $(OpKind::$case => &[$($operand),*],)*
                }
            }

            /// Returns the attributes in the order of the shim contract.
            pub const fn attributes(self) -> &'static [OpAttribute] {
                match self {
                    $(OpKind::$case => &[
                        $(OpAttribute { name: stringify!($attribute), kind: AttributeKind::$kind }),*
                    ],)*
                }
            }

            /// Returns a one-line description of the computation.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(OpKind::$case => $meaning,)*
                }
            }
        }
    };
}

operations!(kinds);

impl OpKind {
    /// Returns the frozen number that identifies the operation in the shim contract.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Returns whether the operation has a decomposition.
    pub const fn is_semantic(self) -> bool {
        self.number() < 64
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}
