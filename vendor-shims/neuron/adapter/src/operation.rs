//! Operation numbers. 0 to 94 are the same as in Android's Neural Networks API. (M)
//!
//! Scalar arguments follow the data operands. The orders noted at the numbers are the orders that
//! Google's client uses. (R)

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        $($(#[$doc])* #[doc = concat!("Number ", stringify!($number), ".")] pub const $name: i32 = $number;)*
        /// Every number with its name.
        pub const OPERATIONS: &[(i32, &str)] = &[$(($number, stringify!($name))),*];
    };
}

operations! {
    /// a, b, fuse: i32. (M, R)
    ADD = 0;
    AVERAGE_POOL_2D = 1;
    /// Tensors, axis: i32, negative values count from the end. (M, R)
    CONCATENATION = 2;
    /// x, weight `[out, h, w, in]`, bias, padding: i32, stride w, stride h, fuse, channels first:
    /// bool, dilation w, dilation h. (M, R)
    CONV_2D = 3;
    DEPTHWISE_CONV_2D = 4;
    DEPTH_TO_SPACE = 5;
    /// x. (M, R)
    DEQUANTIZE = 6;
    EMBEDDING_LOOKUP = 7;
    FLOOR = 8;
    /// x, weight `[out, in]`, bias `[out]`, fuse: i32. Input and output of rank 3 are sent
    /// unchanged. (M, R)
    FULLY_CONNECTED = 9;
    /// x. As a composite also gamma. (M, R)
    L2_NORMALIZATION = 11;
    /// x. (M, R)
    LOGISTIC = 14;
    MAX_POOL_2D = 17;
    /// a, b, fuse: i32. (M, R)
    MUL = 18;
    /// x. (M, R)
    RELU = 19;
    RELU1 = 20;
    RELU6 = 21;
    /// x, shape: i32 tensor. (M, R)
    RESHAPE = 22;
    RESIZE_BILINEAR = 23;
    /// x, beta: f32. Computed over the last axis. (M, R)
    SOFTMAX = 25;
    SPACE_TO_DEPTH = 26;
    /// x. (M, R)
    TANH = 28;
    BATCH_TO_SPACE_ND = 29;
    /// a, b, fuse: i32. (M, R)
    DIV = 30;
    /// x, axes: i32 tensor, keep: **i32**. (M, R)
    MEAN = 31;
    /// x, paddings: i32 tensor `[rank, 2]`. (M, R)
    PAD = 32;
    SPACE_TO_BATCH_ND = 33;
    SQUEEZE = 34;
    /// x, begin, end, strides: i32 tensors, begin mask, end mask, shrink mask: i32. (M, R)
    STRIDED_SLICE = 35;
    /// a, b, fuse: i32. (M, R)
    SUB = 36;
    /// x, permutation: i32 tensor. (M, R)
    TRANSPOSE = 37;
    ABS = 38;
    ARGMAX = 39;
    ARGMIN = 40;
    /// x. (M, R)
    CAST = 45;
    EQUAL = 48;
    EXP = 49;
    EXPAND_DIMS = 50;
    GATHER = 51;
    /// a, b. The result is boolean. (M, R)
    GREATER = 53;
    GREATER_EQUAL = 54;
    LESS = 58;
    LESS_EQUAL = 59;
    LOG = 60;
    LOGICAL_AND = 61;
    LOGICAL_NOT = 62;
    LOGICAL_OR = 63;
    /// a, b. (M, R)
    MAXIMUM = 65;
    MINIMUM = 66;
    NEG = 67;
    NOT_EQUAL = 68;
    PAD_V2 = 69;
    POW = 70;
    PRELU = 71;
    /// x. Also converts from one quantisation to another. (M, R)
    QUANTIZE = 72;
    REDUCE_ALL = 75;
    REDUCE_ANY = 76;
    /// x, axes: i32 tensor, keep: **bool**. (M, R)
    REDUCE_MAX = 77;
    REDUCE_MIN = 78;
    REDUCE_PROD = 79;
    /// x, axes: i32 tensor, keep: **bool**. (M, R)
    REDUCE_SUM = 80;
    /// x. (M, R)
    RSQRT = 83;
    SELECT = 84;
    SIN = 85;
    /// x, begin, size: i32 tensors. (M, R)
    SLICE = 86;
    /// x, axis: i32 **tensor** `[1]`, count: i32. Has `count` outputs. (M, R)
    SPLIT = 87;
    /// x. (M, R)
    SQRT = 88;
    /// x, multiples: i32 tensor. (M, R)
    TILE = 89;
    TOPK_V2 = 90;
    TRANSPOSE_CONV_2D = 91;
    RESIZE_NEAREST_NEIGHBOR = 94;
    /// (A)
    QUANTIZED_LSTM = 95;
    /// (A)
    IF = 96;
    /// (A)
    WHILE = 97;
    /// (A)
    ELU = 98;
    HARD_SWISH = 99;
    /// (A)
    FILL = 100;
    /// (A)
    RANK = 101;
    /// a, b, transpose a: bool, transpose b: bool. (A, R)
    BATCH_MATMUL = 102;
    /// (A)
    PACK = 103;
    /// (A)
    MIRROR_PAD = 104;
    /// x, approximate: u32, which Google's client always sends as 1. (R, name L)
    REVERSE = 105;
    /// x, approximate: u32, which Google's client sends as 1 always. (R; name L)
    GELU_V2 = 109;
    /// First number of vendors' own operations.
    OEM_OPERATION = 10000;
    /// An operation that a client could not lower. It is sent so that the library reports it as
    /// unsupported. (L, R)
    UNKNOWN = 10001;
}

/// Returns the name of an operation. Returns `None` for an unknown number or a number that an
/// extension assigned.
pub fn name(operation: i32) -> Option<&'static str> {
    OPERATIONS.iter().find(|(number, _)| *number == operation).map(|(_, name)| *name)
}
