//! The element types of the format, as ggml numbers them.

use shardwright_vocabulary::DType;

use super::Blocks;
use crate::weight_file::{Content, StoredType};

/// An element type: so many values take so many bytes.
pub(super) struct Type {
    number: u32,
    pub stored: StoredType,
    /// Values of a block; rows are whole blocks.
    pub values: u64,
    /// Bytes of a block.
    pub bytes: u64,
}

const fn float(number: u32, name: &'static str, bytes: u64, dtype: DType) -> Type {
    Type { number, stored: StoredType { name, content: Content::Float(dtype) }, values: 1, bytes }
}

const fn blocks(number: u32, name: &'static str, bytes: u64, blocks: Blocks) -> Type {
    Type { number, stored: StoredType { name, content: Content::Blocks(blocks) }, values: 32, bytes }
}

/// A type that no weight here has: its tensors are measured and not read.
const fn other(number: u32, name: &'static str, values: u64, bytes: u64) -> Type {
    Type { number, stored: StoredType { name, content: Content::Other }, values, bytes }
}

const TYPES: &[Type] = &[
    float(0, "F32", 4, DType::F32),
    float(1, "F16", 2, DType::F16),
    blocks(2, "Q4_0", 18, Blocks::Q4_0),
    other(3, "Q4_1", 32, 20),
    other(6, "Q5_0", 32, 22),
    other(7, "Q5_1", 32, 24),
    blocks(8, "Q8_0", 34, Blocks::Q8_0),
    other(9, "Q8_1", 32, 40),
    other(10, "Q2_K", 256, 84),
    other(11, "Q3_K", 256, 110),
    other(12, "Q4_K", 256, 144),
    other(13, "Q5_K", 256, 176),
    other(14, "Q6_K", 256, 210),
    other(15, "Q8_K", 256, 292),
    other(16, "IQ2_XXS", 256, 66),
    other(17, "IQ2_XS", 256, 74),
    other(18, "IQ3_XXS", 256, 98),
    other(19, "IQ1_S", 256, 50),
    other(20, "IQ4_NL", 32, 18),
    other(21, "IQ3_S", 256, 110),
    other(22, "IQ2_S", 256, 82),
    other(23, "IQ4_XS", 256, 136),
    other(24, "I8", 1, 1),
    other(25, "I16", 1, 2),
    other(26, "I32", 1, 4),
    other(27, "I64", 1, 8),
    other(28, "F64", 1, 8),
    other(29, "IQ1_M", 256, 56),
    float(30, "BF16", 2, DType::Bf16),
    other(34, "TQ1_0", 256, 54),
    other(35, "TQ2_0", 256, 66),
    other(39, "MXFP4", 32, 17),
    other(40, "NVFP4", 64, 36),
];

/// The type of that number.
pub(super) fn find(number: u32) -> Option<&'static Type> {
    TYPES.iter().find(|known| known.number == number)
}
