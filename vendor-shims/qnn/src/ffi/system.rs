use super::{Tensor, Version};
use std::ffi::{c_char, c_void};

/// The system library's description of a context binary.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BinaryInfo {
    /// 3 at version 1.15 of the system library.
    pub version: u32,
    /// The third version.
    pub v3: BinaryInfoV3,
}

/// Third version of the struct.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BinaryInfoV3 {
    /// 6 for HTP.
    pub backend_id: u32,
    /// Build of the compiler.
    pub build_id: *const c_char,
    /// Common interface at compile time.
    pub core: Version,
    /// HTP's own.
    pub backend: Version,
    /// Text, may be null.
    pub soc_version: *const c_char,
    /// Format of the binary.
    pub blob_version: Version,
    /// Bytes of code and constants.
    pub blob_bytes: u64,
    /// Tensors common to its graphs.
    pub tensor_count: u32,
    /// Them.
    pub tensors: *const Tensor,
    /// Count of `graphs`.
    pub graph_count: u32,
    /// Graphs.
    pub graphs: *const GraphInfo,
    /// The vendor's own words on the hardware.
    pub hardware: *const c_void,
    /// Length of `metadata`.
    pub metadata_bytes: u32,
    /// What it was made for.
    pub metadata: *const ContextMetadata,
    /// Chip, by number.
    pub soc_model: u32,
}

/// A graph of a binary.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GraphInfo {
    /// 1 to 3.
    pub version: u32,
    /// The third version.
    pub v3: GraphInfoV3,
}

/// What every version of the struct begins with.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GraphInfoCommon {
    /// Null-terminated.
    pub name: *const c_char,
    /// Count of `inputs`.
    pub input_count: u32,
    /// Inputs.
    pub inputs: *const Tensor,
    /// Count of `outputs`.
    pub output_count: u32,
    /// Outputs.
    pub outputs: *const Tensor,
}

/// Third version of the struct.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GraphInfoV3 {
    /// As in all versions.
    pub common: GraphInfoCommon,
    /// Count of `updateable`.
    pub updateable_count: u32,
    /// Constants that can be exchanged.
    pub updateable: *const Tensor,
    /// Length of `blob_info`.
    pub blob_info_bytes: u32,
    /// Sizes.
    pub blob_info: *const GraphBlobInfo,
}

/// Sizes of a compiled graph: two structs with a version each, one after the other.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GraphBlobInfo {
    /// 1.
    pub first_version: u32,
    /// Space for what does not fit the fast memory.
    pub spill_bytes: u64,
    /// Fast memory.
    pub vtcm_bytes: u32,
    /// How hard finalize tried.
    pub level: u32,
    /// Compression of bandwidth.
    pub dlbc: u64,
    /// Vector threads.
    pub hvx_threads: u64,
    /// 2.
    pub second_version: u32,
    /// Of attention's own formats.
    pub native_key_channels: u64,
    /// The same.
    pub native_value_channels: u64,
    /// Whether inputs and outputs share a buffer.
    pub shares_io: u64,
    /// Inputs and outputs.
    pub io_bytes: u64,
    /// Operations.
    pub op_bytes: u64,
    /// Constants of its own.
    pub constant_bytes: u64,
    /// Tensors that are kept in memory.
    pub tensor_bytes: u64,
    /// Constants shared with other graphs.
    pub shared_bytes: u64,
}

/// What a binary was compiled for.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ContextMetadata {
    /// 1.
    pub version: u32,
    /// 73 for v73.
    pub dsp_arch: u32,
}

const _: () = assert!(size_of::<*const c_void>() == 8, "the layouts are those of 64-bit platforms");
