//! A graph as passed to the vendor's compiler: plain data without pointers or handles.
//!
//! Lowering builds it, `session` passes it to the library, tests print it.

use std::borrow::Cow;

/// Index of a tensor within its [`QnnGraph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorIndex(pub u32);

/// A graph of one entry point.
///
/// `'w` is the lifetime of the weights. Large weights are borrowed from the work order's mapping.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QnnGraph<'w> {
    /// Unique within its context.
    pub name: String,
    pub tensors: Vec<QnnTensor<'w>>,
    /// All operations, in an order in which they can run.
    pub nodes: Vec<QnnNode>,
}

/// The role of a tensor in its graph.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorKind<'w> {
    /// Written by the application before a run.
    Input,
    /// Read by the application after a run.
    Output,
    Native,
    Static(StaticData<'w>),
}

/// The bytes of a constant.
#[derive(Clone, Debug, PartialEq)]
pub enum StaticData<'w> {
    /// Dense row-major bytes in the tensor's own type.
    Bytes(Cow<'w, [u8]>),
    /// Two's complement integers of 4 or 2 bits, packed low bits first, each row (last axis) padded
    /// to a whole byte. The library requires one byte per value, so they are widened when passed on
    /// and, if `transposed`, the two innermost axes are exchanged.
    Packed {
        /// Packed bytes as in a work order.
        bytes: &'w [u8],
        /// 4 or 2.
        bits: u32,
        /// Stored as [rows, columns], declared as [.., columns, rows].
        transposed: bool,
    },
    /// One byte per value, stored as [rows, columns] and declared as [.., columns, rows].
    Transposed(&'w [u8]),
    /// The weight has no bytes yet (`estimate`, `check`): filled with numbers that differ from
    /// tensor to tensor, since equal constants would be stored once and underestimate the cost.
    Stand {
        /// Different for every weight.
        seed: u64,
    },
}

/// A tensor with a static shape, dense row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct QnnTensor<'w> {
    /// Unique within the graph.
    pub name: String,
    pub kind: TensorKind<'w>,
    pub dtype: DataType,
    /// Extents of the axes, outermost first.
    pub dims: Vec<u32>,
    pub encoding: QnnEncoding,
}

/// Element types, with the library's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DataType {
    /// Signed 8-bit integers that are not encoded values.
    Int8 = 0x08,
    /// Signed 16-bit integers that are not encoded values.
    Int16 = 0x16,
    /// For positions and slots.
    Int32 = 0x32,
    /// Supported by no known operation.
    Int64 = 0x64,
    /// Unsigned 8-bit integers that are not encoded values.
    Uint8 = 0x108,
    /// Unsigned 16-bit integers that are not encoded values.
    Uint16 = 0x116,
    /// For indices and axes.
    Uint32 = 0x132,
    /// Half precision.
    Float16 = 0x216,
    /// The upper half of a single's bits. Rejected by the tested library.
    Bfloat16 = 0x226,
    /// Single precision.
    Float32 = 0x232,
    /// Signed fixed point of 4 bits. Rejected by the tested library, which requires
    /// [`QnnEncoding::BitWidth`] in a container of 8 bits.
    Sfixed4 = 0x304,
    /// Signed fixed point of 8 bits. Also the container of 4-bit and 2-bit weights.
    Sfixed8 = 0x308,
    /// Signed fixed point of 16 bits.
    Sfixed16 = 0x316,
    /// Signed fixed point of 32 bits: biases.
    Sfixed32 = 0x332,
    /// Unsigned fixed point of 8 bits.
    Ufixed8 = 0x408,
    /// Unsigned fixed point of 16 bits.
    Ufixed16 = 0x416,
    /// Truth values.
    Bool8 = 0x508,
}

impl DataType {
    /// Returns the size of one element in bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            DataType::Int8
            | DataType::Uint8
            | DataType::Sfixed4
            | DataType::Sfixed8
            | DataType::Ufixed8
            | DataType::Bool8 => 1,
            DataType::Int16
            | DataType::Uint16
            | DataType::Float16
            | DataType::Bfloat16
            | DataType::Sfixed16
            | DataType::Ufixed16 => 2,
            DataType::Int32 | DataType::Uint32 | DataType::Float32 | DataType::Sfixed32 => 4,
            DataType::Int64 => 8,
        }
    }

    /// All element types.
    pub const ALL: [DataType; 17] = [
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Uint8,
        DataType::Uint16,
        DataType::Uint32,
        DataType::Float16,
        DataType::Bfloat16,
        DataType::Float32,
        DataType::Sfixed4,
        DataType::Sfixed8,
        DataType::Sfixed16,
        DataType::Sfixed32,
        DataType::Ufixed8,
        DataType::Ufixed16,
        DataType::Bool8,
    ];

    /// Returns the type with a given number of the library.
    pub fn from_raw(raw: u32) -> Option<DataType> {
        DataType::ALL.into_iter().find(|kind| *kind as u32 == raw)
    }

    /// Returns a short name such as `float16` or `ufixed16`.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::Int8 => "int8",
            DataType::Int16 => "int16",
            DataType::Int32 => "int32",
            DataType::Int64 => "int64",
            DataType::Uint8 => "uint8",
            DataType::Uint16 => "uint16",
            DataType::Uint32 => "uint32",
            DataType::Float16 => "float16",
            DataType::Bfloat16 => "bfloat16",
            DataType::Float32 => "float32",
            DataType::Sfixed4 => "sfixed4",
            DataType::Sfixed8 => "sfixed8",
            DataType::Sfixed16 => "sfixed16",
            DataType::Sfixed32 => "sfixed32",
            DataType::Ufixed8 => "ufixed8",
            DataType::Ufixed16 => "ufixed16",
            DataType::Bool8 => "bool8",
        }
    }
}

/// Encoding `value = (stored + offset) · scale`. The library adds the offset, whereas this project
/// subtracts a zero point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleOffset {
    /// Must be positive.
    pub scale: f32,
    /// The negated zero point.
    pub offset: i32,
}

/// Encoding of the stored integers of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum QnnEncoding {
    /// No encoding, as for floats and indices.
    None,
    /// One scale for the tensor.
    PerTensor(ScaleOffset),
    /// One scale per index of an axis. 8 bits, all offsets 0.
    PerAxis { axis: i32, scales: Vec<f32> },
    /// One scale, with fewer bits than the container.
    BitWidth {
        /// 4 or 2.
        bits: u32,
        /// Scale and offset of the whole tensor.
        scale_offset: ScaleOffset,
    },
    /// One scale per index of an axis, with fewer bits than the container. All offsets are 0.
    BitWidthPerAxis {
        /// 4 or 2.
        bits: u32,
        axis: i32,
        scales: Vec<f32>,
    },
    /// Low-power block quantisation: one scale per index of an axis, times a 4-bit multiple per
    /// block along the other axis.
    BlockExpansion {
        /// Which axis the channel scales belong to.
        axis: i32,
        /// One scale per channel.
        scales: Vec<f32>,
        /// Blocks that each channel is cut into.
        blocks_per_channel: u32,
        /// Multiples from 1 to 16, channel by channel.
        multiples: Vec<u8>,
    },
    /// One scale and offset per block. The library accepts it for some operations, but then
    /// computes wrong results or crashes.
    Block {
        /// Extent of a block in every axis.
        extents: Vec<u32>,
        /// One per block, row-major.
        scales: Vec<ScaleOffset>,
    },
    /// One float scale per block. The tested library accepts it but computes wrong results.
    FloatBlock {
        /// Extent of a block in every axis.
        extents: Vec<u32>,
        /// One per block, row-major. The float offsets are 0.
        scales: Vec<f32>,
    },
    /// One float scale per block of weights with fewer bits than their container, for float
    /// activations. `MatMul` crashes on it.
    BitWidthFloatBlock {
        /// 4 or 2.
        bits: u32,
        /// Extent of a block in every axis.
        extents: Vec<u32>,
        /// One per block, row-major. The float offsets are 0.
        scales: Vec<f32>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct QnnNode {
    /// Unique within the graph.
    pub name: String,
    /// The library's name of the operation, such as `FullyConnected`.
    pub op: &'static str,
    /// Parameters in any order.
    pub params: Vec<(&'static str, Param)>,
    /// Operands.
    pub inputs: Vec<TensorIndex>,
    /// Results.
    pub outputs: Vec<TensorIndex>,
    /// The node of the shard's entry graph from which it was lowered. Used for errors, placement
    /// and costs.
    pub origin: Option<u32>,
}

/// A parameter of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// A list, such as a permutation or axes.
    U32s(Vec<u32>),
    /// Unsigned numbers with their extents, such as paddings `[2, 2]`.
    U32Block(Vec<u32>, Vec<u32>),
    /// A list with its extents, such as ranges `[rank, 3]`.
    I32s(Vec<i32>, Vec<u32>),
}
