use std::ffi::{c_char, c_void};

/// A typed number.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Scalar {
    /// Element type.
    pub data_type: u32,
    /// Which member, by the type.
    pub value: ScalarValue,
}

/// The number.
#[derive(Clone, Copy)]
#[repr(C)]
pub union ScalarValue {
    /// Float.
    pub f32: f32,
    /// Unsigned.
    pub u32: u32,
    /// Signed.
    pub i32: i32,
    /// 0 or 1.
    pub bool8: u8,
    /// Null-terminated.
    pub text: *const c_char,
    /// All bits.
    pub bits: u64,
}

/// `value = (stored + offset) · scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct ScaleOffset {
    /// Above zero.
    pub scale: f32,
    /// Added to the stored integer.
    pub offset: i32,
}

/// The same with a float offset.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct FloatScaleOffset {
    /// Above zero.
    pub scale: f32,
    /// Added.
    pub offset: f32,
}

/// One scale, fewer bits.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BitWidthScaleOffset {
    /// Bits used of the container.
    pub bits: u32,
    /// Above zero.
    pub scale: f32,
    /// Added.
    pub offset: i32,
}

/// Scales along an axis.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AxisScaleOffset {
    /// Which axis.
    pub axis: i32,
    /// How many.
    pub count: u32,
    /// Them.
    pub scale_offsets: *const ScaleOffset,
}

/// Scales along an axis, fewer bits.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BitWidthAxisScaleOffset {
    /// Bits used of the container.
    pub bits: u32,
    /// Which axis.
    pub axis: i32,
    /// How many.
    pub count: u32,
    /// Scales.
    pub scales: *const f32,
    /// Offsets, or null for zeros.
    pub offsets: *const i32,
}

/// Scales per block.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BlockEncoding {
    /// Extents of a block, one per axis.
    pub extents: *const u32,
    /// One per block.
    pub scale_offsets: *const ScaleOffset,
}

/// Float scales per block.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FloatBlock {
    /// Extents of a block, one per axis.
    pub extents: *const u32,
    /// One per block.
    pub scale_offsets: *const FloatScaleOffset,
}

/// Float scales per block, fewer bits.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BitWidthFloatBlock {
    /// Bits used of the container.
    pub bits: u32,
    /// Extents of a block, one per axis.
    pub extents: *const u32,
    /// One per block.
    pub scale_offsets: *const FloatScaleOffset,
}

/// Scales along an axis times integer multiples per block.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BlockwiseExpansion {
    /// Axis of the scales.
    pub axis: i32,
    /// One per index of the axis.
    pub scale_offsets: *const ScaleOffset,
    /// Blocks per index of the axis.
    pub blocks_per_axis: u32,
    /// Bits of a multiple.
    pub multiple_bits: u32,
    /// 0: multiples are bytes, 1: 16 bits.
    pub multiple_storage: u32,
    /// Multiples.
    pub multiples: *const u8,
}

/// The encoding of a tensor's integers.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct QuantiseParams {
    /// Defined or not.
    pub definition: u32,
    /// Kind of encoding.
    pub encoding: u32,
    /// By the kind.
    pub value: QuantiseUnion,
}

/// By [`QuantiseParams::encoding`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union QuantiseUnion {
    /// Kind 0.
    pub scale_offset: ScaleOffset,
    /// Kind 1.
    pub axis: AxisScaleOffset,
    /// Kind 2.
    pub bit_width: BitWidthScaleOffset,
    /// Kind 3.
    pub bit_width_axis: BitWidthAxisScaleOffset,
    /// Kind 4.
    pub block: BlockEncoding,
    /// Kind 5.
    pub expansion: *const BlockwiseExpansion,
    /// Kind 7.
    pub float_block: FloatBlock,
    /// Kind 11.
    pub bit_width_float_block: BitWidthFloatBlock,
}

/// A plain buffer.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RawBuffer {
    /// First byte.
    pub data: *mut c_void,
    /// Bytes: 4 GiB are the end.
    pub size: u32,
}

/// By the tensor's memory kind.
#[derive(Clone, Copy)]
#[repr(C)]
pub union MemoryHandleOrBuffer {
    /// Kind 0.
    pub buffer: RawBuffer,
    /// Kind 1.
    pub handle: *mut c_void,
}

/// A tensor, first version of the struct.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TensorV1 {
    /// Assigned by the library.
    pub id: u32,
    /// Unique in the graph.
    pub name: *const c_char,
    /// Part in the graph.
    pub kind: u32,
    /// 0: dense.
    pub data_format: u32,
    /// Element type.
    pub data_type: u32,
    /// Encoding.
    pub quantise: QuantiseParams,
    /// Count of `dims`.
    pub rank: u32,
    /// Extents.
    pub dims: *mut u32,
    /// Kind of memory.
    pub memory_kind: u32,
    /// Memory.
    pub memory: MemoryHandleOrBuffer,
}

/// A tensor: a version and room for the longest version.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Tensor {
    /// 1 or 2.
    pub version: u32,
    /// Common to both.
    pub v1: TensorV1,
    /// What only the second version has: dynamic extents, sparse parameters, a flag.
    pub second: [u64; 3],
}

/// Memory to register.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MemoryDescriptor {
    /// Count of `dims`.
    pub rank: u32,
    /// Extents.
    pub dims: *const u32,
    /// Null.
    pub shape_config: *const c_char,
    /// Element type.
    pub data_type: u32,
    /// Kind of memory.
    pub memory_kind: u32,
    /// File descriptor.
    pub fd: i32,
    /// Address within it, for DMA-BUF.
    pub data: *mut c_void,
}
