use std::ffi::{c_char, c_void};

/// A typed number.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Scalar {
    pub data_type: u32,
    /// Member selected by `data_type`.
    pub value: ScalarValue,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union ScalarValue {
    /// For floats.
    pub f32: f32,
    /// For unsigned integers.
    pub u32: u32,
    /// For signed integers.
    pub i32: i32,
    /// For booleans: 0 or 1.
    pub bool8: u8,
    /// For text. Null-terminated.
    pub text: *const c_char,
    /// All bits of the union.
    pub bits: u64,
}

/// Encoding `value = (stored + offset) · scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct ScaleOffset {
    /// Must be positive.
    pub scale: f32,
    /// Added to the stored integer.
    pub offset: i32,
}

/// Encoding `value = (stored + offset) · scale` with a float offset.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct FloatScaleOffset {
    /// Must be positive.
    pub scale: f32,
    /// Added to the stored integer.
    pub offset: f32,
}

/// One scale, with fewer bits than the container.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BitWidthScaleOffset {
    /// Number of bits of the container that are used.
    pub bits: u32,
    /// Must be positive.
    pub scale: f32,
    /// Added to the stored integer.
    pub offset: i32,
}

/// Scales along an axis.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AxisScaleOffset {
    pub axis: i32,
    pub count: u32,
    pub scale_offsets: *const ScaleOffset,
}

/// Scales along an axis, with fewer bits than the container.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BitWidthAxisScaleOffset {
    /// Number of bits of the container that are used.
    pub bits: u32,
    pub axis: i32,
    pub count: u32,
    pub scales: *const f32,
    /// Offsets, or null if all are zero.
    pub offsets: *const i32,
}

/// Scales per block.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BlockEncoding {
    /// Extents of a block, one per axis.
    pub extents: *const u32,
    pub scale_offsets: *const ScaleOffset,
}

/// Float scales per block.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FloatBlock {
    /// Extents of a block, one per axis.
    pub extents: *const u32,
    pub scale_offsets: *const FloatScaleOffset,
}

/// Float scales per block, with fewer bits than the container.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BitWidthFloatBlock {
    /// Number of bits of the container that are used.
    pub bits: u32,
    /// Extents of a block, one per axis.
    pub extents: *const u32,
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
    /// 0: multiples are bytes. 1: multiples have 16 bits.
    pub multiple_storage: u32,
    pub multiples: *const u8,
}

/// The encoding of a tensor's integers.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct QuantiseParams {
    /// Whether the encoding is defined.
    pub definition: u32,
    pub encoding: u32,
    pub value: QuantiseUnion,
}

/// Member selected by [`QuantiseParams::encoding`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union QuantiseUnion {
    /// For kind 0.
    pub scale_offset: ScaleOffset,
    /// For kind 1.
    pub axis: AxisScaleOffset,
    /// For kind 2.
    pub bit_width: BitWidthScaleOffset,
    /// For kind 3.
    pub bit_width_axis: BitWidthAxisScaleOffset,
    /// For kind 4.
    pub block: BlockEncoding,
    /// For kind 5.
    pub expansion: *const BlockwiseExpansion,
    /// For kind 7.
    pub float_block: FloatBlock,
    /// For kind 11.
    pub bit_width_float_block: BitWidthFloatBlock,
}

/// A plain buffer.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RawBuffer {
    pub data: *mut c_void,
    /// Size in bytes, less than 4 GiB.
    pub size: u32,
}

/// Member selected by the tensor's memory kind.
#[derive(Clone, Copy)]
#[repr(C)]
pub union MemoryHandleOrBuffer {
    /// For kind 0.
    pub buffer: RawBuffer,
    /// For kind 1.
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
    /// Role in the graph.
    pub kind: u32,
    /// 0 for dense.
    pub data_format: u32,
    pub data_type: u32,
    pub quantise: QuantiseParams,
    pub rank: u32,
    pub dims: *mut u32,
    pub memory_kind: u32,
    pub memory: MemoryHandleOrBuffer,
}

/// A tensor: a version and room for the longest version.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Tensor {
    /// 1 or 2.
    pub version: u32,
    /// Fields common to both versions.
    pub v1: TensorV1,
    /// Fields of the second version: dynamic extents, sparse parameters, a flag.
    pub second: [u64; 3],
}

/// Memory to register.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MemoryDescriptor {
    pub rank: u32,
    pub dims: *const u32,
    /// Always null.
    pub shape_config: *const c_char,
    pub data_type: u32,
    pub memory_kind: u32,
    pub fd: i32,
    /// Address within the memory, for DMA-BUF.
    pub data: *mut c_void,
}
