//! The C interface of the vendor's libraries, declared by hand. Sizes, offsets and numbers were
//! observed at the interface. No header text was copied.
//!
//! Everything here is for LP64 little-endian (x86-64, aarch64). `tests/lowering/layout.rs` checks
//! the size and offsets of every struct. Structs that the library returns are read through pointers
//! and never constructed, so they may be longer than declared.

mod config;
mod functions;
mod op;
mod platform;
mod power;
mod profile;
mod system;
mod tensor;

pub use config::{
    BackendConfig, ContextConfig, ContextCustomConfig, ContextCustomValue, ContextValue, DeviceConfig,
    DeviceCustomConfig12, DeviceCustomConfig16, FinalizeKey, GraphConfig, GraphCustomConfig,
    GraphCustomValue, Optimisation,
};
pub use functions::{ApiVersion, Functions, Provider, SystemFunctions, SystemProvider, Version};
pub use op::{OpConfig, OpConfigV1, OperationName, Param, ParamValue};
pub use platform::{DeviceExtension, HardwareDevice, HardwareDeviceV1, PlatformInfo, PlatformInfoV1};
pub use power::{Clocks, Corners, Infrastructure, PowerConfig, PowerValue};
pub use profile::{EventData, EventId};
pub use system::{
    BinaryInfo, BinaryInfoV3, ContextMetadata, GraphBlobInfo, GraphInfo, GraphInfoCommon, GraphInfoV3,
};
pub use tensor::{
    AxisScaleOffset, BitWidthAxisScaleOffset, BitWidthFloatBlock, BitWidthScaleOffset, BlockEncoding,
    BlockwiseExpansion, FloatBlock, FloatScaleOffset, MemoryDescriptor, MemoryHandleOrBuffer, QuantiseParams,
    QuantiseUnion, RawBuffer, Scalar, ScalarValue, ScaleOffset, Tensor, TensorV1,
};

use std::ffi::c_void;

/// Return code of every function: 0 or an error.
pub type Code = u64;

/// An object of the library.
pub type Handle = *mut c_void;

/// The callback of a log, with format, level, time and arguments.
///
/// The last parameter is a `va_list`. It is passed as one pointer on x86-64 System V (an array
/// decays), on AAPCS64 (a composite of 32 bytes is passed by reference to a copy) and on Apple's
/// arm64 (`char *`). It is passed to `vsnprintf` in the same way, so no C is needed.
pub type LogCallback = unsafe extern "C" fn(*const std::ffi::c_char, u32, u64, *mut c_void);

/// Numbers of the interface.
pub mod number {
    /// Tensor kind: written by the application.
    pub const APP_WRITE: u32 = 0;
    /// Tensor kind: read by the application.
    pub const APP_READ: u32 = 1;
    /// Tensor kind: between operations.
    pub const NATIVE: u32 = 3;
    /// Tensor kind: constant.
    pub const STATIC: u32 = 4;

    /// A tensor's memory is a plain pointer.
    pub const MEMORY_RAW: u32 = 0;
    /// A tensor's memory was registered.
    pub const MEMORY_HANDLE: u32 = 1;

    /// The tensor has an encoding.
    pub const DEFINED: u32 = 1;
    /// The tensor has no encoding.
    pub const UNDEFINED: u32 = 0x7fff_ffff;

    /// Encoding: one scale and offset.
    pub const ENCODING_SCALE_OFFSET: u32 = 0;
    /// Encoding: per axis.
    pub const ENCODING_AXIS: u32 = 1;
    /// Encoding: fewer bits than the container.
    pub const ENCODING_BIT_WIDTH: u32 = 2;
    /// Encoding: per axis, fewer bits than the container.
    pub const ENCODING_BIT_WIDTH_AXIS: u32 = 3;
    /// Encoding: per block.
    pub const ENCODING_BLOCK: u32 = 4;
    /// Encoding: per channel, times multiples per block.
    pub const ENCODING_BLOCK_EXPANSION: u32 = 5;
    /// Encoding: per block, float.
    pub const ENCODING_FLOAT_BLOCK: u32 = 7;
    /// Encoding: per block, float, fewer bits than the container.
    pub const ENCODING_BIT_WIDTH_FLOAT_BLOCK: u32 = 11;

    /// A parameter is a scalar.
    pub const PARAM_SCALAR: u32 = 0;
    /// A parameter is a tensor.
    pub const PARAM_TENSOR: u32 = 1;

    /// Text, as a scalar.
    pub const TEXT: u32 = 0x608;

    /// A vendor option within a generic config.
    pub const CONFIG_CUSTOM: u32 = 0;
    /// Graph: {type, f32}.
    pub const GRAPH_OPTIMISATION: u32 = 1;
    /// Graph: 0 f32, 1 f16.
    pub const GRAPH_PRECISION: u32 = 2;
    /// Graph: fast memory in MB.
    pub const GRAPH_VTCM_MB: u32 = 3;
    /// Graph: vector threads.
    pub const GRAPH_HVX_THREADS: u32 = 6;
    /// Graph: {key, scalar}.
    pub const GRAPH_FINALIZE_KEY: u32 = 7;
    /// Optimisation: finalize's effort, 1 to 3.
    pub const OPTIMISATION_LEVEL: u32 = 3;
    /// Context: graphs share equal weights.
    pub const CONTEXT_WEIGHT_SHARING: u32 = 1;
    /// Context, not the vendor's own: the priority of its graphs. The x86-64 library
    /// refuses numbers beyond 0 to 500.
    pub const CONTEXT_PRIORITY: u32 = 1;
    /// Priority: after all others.
    pub const PRIORITY_LOW: u32 = 0;
    /// Priority: the default.
    pub const PRIORITY_NORMAL: u32 = 100;
    /// Priority: the highest. If the library restricts it, it silently uses the default.
    pub const PRIORITY_HIGH: u32 = 200;
    /// Device: the chip.
    pub const DEVICE_SOC: u32 = 0;
    /// Device: device number and version of its architecture.
    pub const DEVICE_ARCHITECTURE: u32 = 1;

    /// Profile: times and, at finalize, estimates.
    pub const PROFILE_BASIC: u32 = 1;
    /// Profile: like basic, with names.
    pub const PROFILE_DETAILED: u32 = 2;

    /// Memory of the ION allocator.
    pub const MEMORY_ION: u32 = 1;
    /// Memory of a DMA-BUF heap.
    pub const MEMORY_DMA_BUF: u32 = 3;

    /// Infrastructure: the functions that set power.
    pub const INFRASTRUCTURE_POWER: u32 = 0;
    /// Power: a vote on the clocks.
    pub const POWER_CLOCKS: u32 = 1;
    /// Power: the requested latency of calls.
    pub const POWER_CALL_LATENCY: u32 = 2;
    /// Power: how long a caller polls before it sleeps.
    pub const POWER_POLLING: u32 = 3;
    /// Clock mode: clocks rise and fall with the load.
    pub const CLOCKS_UP_DOWN: u32 = 0x1;
    /// Clock mode: clocks rise late and fall early.
    pub const CLOCKS_SAVE: u32 = 0x4;
    /// Clock mode: clocks rise early and fall late.
    pub const CLOCKS_PERFORM: u32 = 0x10;
    /// Voltage corner: the lowest. The next ones are in ascending order.
    pub const CORNER_SVS2: u32 = 0x30;
    pub const CORNER_SVS: u32 = 0x40;
    /// Above the nominal corner.
    pub const CORNER_NOM_PLUS: u32 = 0x70;
    pub const CORNER_TURBO: u32 = 0x80;
    /// The highest corner of a chip.
    pub const CORNER_MAX: u32 = 0xa0;

    /// `backendId` of the HTP provider.
    pub const BACKEND_HTP: u32 = 6;
}
