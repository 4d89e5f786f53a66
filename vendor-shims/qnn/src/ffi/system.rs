use super::{Tensor, Version};
use std::ffi::{c_char, c_void};

/// The system library's description of a context binary.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BinaryInfo {
    /// 3 at version 1.15 of the system library.
    pub version: u32,
    pub v3: BinaryInfoV3,
}

/// Third version of [`BinaryInfo`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BinaryInfoV3 {
    /// 6 for HTP.
    pub backend_id: u32,
    /// Build of the compiler.
    pub build_id: *const c_char,
    /// Version of the common interface at compile time.
    pub core: Version,
    /// Version of HTP's own interface.
    pub backend: Version,
    /// Text. May be null.
    pub soc_version: *const c_char,
    /// Version of the binary's format.
    pub blob_version: Version,
    /// Bytes of code and constants.
    pub blob_bytes: u64,
    /// Number of tensors common to its graphs.
    pub tensor_count: u32,
    pub tensors: *const Tensor,
    pub graph_count: u32,
    pub graphs: *const GraphInfo,
    /// The vendor's description of the hardware.
    pub hardware: *const c_void,
    pub metadata_bytes: u32,
    /// The target it was compiled for.
    pub metadata: *const ContextMetadata,
    /// Number of the chip.
    pub soc_model: u32,
}

/// A graph of a binary.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GraphInfo {
    /// 1 to 3.
    pub version: u32,
    pub v3: GraphInfoV3,
}

/// Fields at the start of every version of the struct.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GraphInfoCommon {
    /// Null-terminated.
    pub name: *const c_char,
    pub input_count: u32,
    pub inputs: *const Tensor,
    pub output_count: u32,
    pub outputs: *const Tensor,
}

/// Third version of [`GraphInfo`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GraphInfoV3 {
    /// Fields common to all versions.
    pub common: GraphInfoCommon,
    pub updateable_count: u32,
    /// Constants that can be exchanged.
    pub updateable: *const Tensor,
    pub blob_info_bytes: u32,
    pub blob_info: *const GraphBlobInfo,
}

/// Sizes of a compiled graph: two consecutive structs, each with a version.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GraphBlobInfo {
    /// Always 1.
    pub first_version: u32,
    /// Space for data that does not fit the fast memory.
    pub spill_bytes: u64,
    /// Fast memory it uses.
    pub vtcm_bytes: u32,
    /// Optimisation effort of finalize.
    pub level: u32,
    /// Whether bandwidth is compressed.
    pub dlbc: u64,
    /// Number of vector threads.
    pub hvx_threads: u64,
    /// Always 2.
    pub second_version: u32,
    /// Channels of keys in attention's own format.
    pub native_key_channels: u64,
    /// Channels of values in attention's own format.
    pub native_value_channels: u64,
    /// Whether inputs and outputs share a buffer.
    pub shares_io: u64,
    /// Size of inputs and outputs.
    pub io_bytes: u64,
    pub op_bytes: u64,
    /// Size of constants that only this graph uses.
    pub constant_bytes: u64,
    /// Size of tensors that are kept in memory.
    pub tensor_bytes: u64,
    /// Size of constants shared with other graphs.
    pub shared_bytes: u64,
}

/// The target of a binary.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ContextMetadata {
    /// Always 1.
    pub version: u32,
    /// The architecture, such as 73 for v73.
    pub dsp_arch: u32,
}

const _: () = assert!(size_of::<*const c_void>() == 8, "the layouts are those of 64-bit platforms");
