//! A graph as passed to the vendor's compiler: plain data, before any call into the library.
//!
//! Lowering builds it, `session` passes it on, tests print it. It contains no pointers and no
//! handles.

use std::borrow::Cow;

/// Index of a tensor within its [`QnnGraph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorIndex(pub u32);

/// A graph of one entry point.
///
/// `'w` is the life of the weights: large ones are borrowed from the work order's mapping.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QnnGraph<'w> {
    /// Unique within its context.
    pub name: String,
    /// All tensors.
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
    /// Between two operations.
    Native,
    /// A constant.
    Static(StaticData<'w>),
}

/// The bytes of a constant.
#[derive(Clone, Debug, PartialEq)]
pub enum StaticData<'w> {
    /// As they are, dense row-major in the tensor's own type.
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
    /// One byte per value stored as [rows, columns], declared as [.., columns, rows].
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
    /// Its part in the graph.
    pub kind: TensorKind<'w>,
    /// Element type.
    pub dtype: DataType,
    /// Extents, outermost first.
    pub dims: Vec<u32>,
    /// Encoding of the stored integers.
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
    /// Positions, slots.
    Int32 = 0x32,
    /// Supported by no known operation.
    Int64 = 0x64,
    /// Unsigned 8-bit integers that are not encoded values.
    Uint8 = 0x108,
    /// Unsigned 16-bit integers that are not encoded values.
    Uint16 = 0x116,
    /// Unsigned indices, axes.
    Uint32 = 0x132,
    /// Half precision.
    Float16 = 0x216,
    /// The upper half of a single's bits; rejected by the library tested.
    Bfloat16 = 0x226,
    /// Single precision.
    Float32 = 0x232,
    /// Signed fixed point of 4 bits; rejected by the library tested, which requires
    /// [`QnnEncoding::BitWidth`] in a container of 8.
    Sfixed4 = 0x304,
    /// Signed fixed point of 8 bits; also the container of 4-bit and 2-bit weights.
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
    /// Bytes of one element.
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

    /// All of them.
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

    /// The type of a library's number.
    pub fn from_raw(raw: u32) -> Option<DataType> {
        DataType::ALL.into_iter().find(|kind| *kind as u32 == raw)
    }

    /// A short name: `float16`, `ufixed16`.
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

/// `value = (stored + offset) · scale`: the library adds its offset where this project subtracts a
/// zero point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleOffset {
    /// Above zero.
    pub scale: f32,
    /// The negated zero point.
    pub offset: i32,
}

/// Encoding of the stored integers of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum QnnEncoding {
    /// Floats, indices.
    None,
    /// One scale.
    PerTensor(ScaleOffset),
    /// One scale per index of an axis, 8 bits, offsets 0.
    PerAxis {
        /// Which axis.
        axis: i32,
        /// One per index.
        scales: Vec<f32>,
    },
    /// One scale, fewer bits than the container has.
    BitWidth {
        /// 4 or 2.
        bits: u32,
        /// Of the whole tensor.
        scale_offset: ScaleOffset,
    },
    /// One scale per index of an axis, fewer bits than the container has, offsets 0.
    BitWidthPerAxis {
        /// 4 or 2.
        bits: u32,
        /// Which axis.
        axis: i32,
        /// One per index.
        scales: Vec<f32>,
    },
    /// Low-power block quantisation: one scale per index of an axis times a 4-bit multiple per
    /// block along the other.
    BlockExpansion {
        /// Which axis the channel scales belong to.
        axis: i32,
        /// One per channel.
        scales: Vec<f32>,
        /// Blocks that each channel is cut into.
        blocks_per_channel: u32,
        /// Multiples 1 to 16, channel by channel.
        multiples: Vec<u8>,
    },
    /// One scale and offset per block. The library accepts it for some operations but computes them
    /// wrongly, or crashes.
    Block {
        /// Extent of a block in every axis.
        extents: Vec<u32>,
        /// Block by block, row-major.
        scales: Vec<ScaleOffset>,
    },
    /// One float scale per block. Accepted but computed wrongly by the library tested.
    FloatBlock {
        /// Extent of a block in every axis.
        extents: Vec<u32>,
        /// Block by block, row-major; the float offsets are 0.
        scales: Vec<f32>,
    },
    /// One float scale per block of weights with fewer bits than their container, for float
    /// activations. `MatMul` crashes on it.
    BitWidthFloatBlock {
        /// 4 or 2.
        bits: u32,
        /// Extent of a block in every axis.
        extents: Vec<u32>,
        /// Block by block, row-major; the float offsets are 0.
        scales: Vec<f32>,
    },
}

/// An operation.
#[derive(Clone, Debug, PartialEq)]
pub struct QnnNode {
    /// Unique within the graph.
    pub name: String,
    /// The library's name of the operation, `FullyConnected`.
    pub op: &'static str,
    /// In any order.
    pub params: Vec<(&'static str, Param)>,
    /// Operands.
    pub inputs: Vec<TensorIndex>,
    /// Results.
    pub outputs: Vec<TensorIndex>,
    /// The node of the shard's entry graph it comes from, for errors, placement and costs.
    pub origin: Option<u32>,
}

/// A parameter of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// Axis numbers, modes.
    U32(u32),
    /// Signed numbers.
    I32(i32),
    /// Epsilons, factors.
    F32(f32),
    /// Switches.
    Bool(bool),
    /// A list: permutations, axes.
    U32s(Vec<u32>),
    /// Unsigned numbers with their extents: paddings `[2, 2]`.
    U32Block(Vec<u32>, Vec<u32>),
    /// A list with its extents: ranges `[rank, 3]`.
    I32s(Vec<i32>, Vec<u32>),
}
