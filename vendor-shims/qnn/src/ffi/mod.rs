//! The C interface of the vendor's libraries, declared by hand: sizes, offsets and numbers as
//! observed at the interface, with no header text.
//!
//! Everything here is for LP64 little-endian (x86-64, aarch64). `tests/lowering/layout.rs` checks
//! the size and offsets of every struct. Structs that the library hands out are read through
//! pointers and never constructed, so they may be longer than declared.

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

/// What every function returns: 0 or an error.
pub type Code = u64;

/// An object of the library.
pub type Handle = *mut c_void;

/// The callback of a log: format, level, time, arguments.
///
/// The last is a `va_list`. As a parameter that is one pointer on x86-64 System V (an array
/// decays), on AAPCS64 (a composite of 32 bytes goes by reference to a copy) and on Apple's arm64
/// (`char *`), and it is passed on to `vsnprintf` the same way, so no C is needed.
pub type LogCallback = unsafe extern "C" fn(*const std::ffi::c_char, u32, u64, *mut c_void);

/// Numbers of the interface.
pub mod number {
    /// Tensor kinds.
    pub const APP_WRITE: u32 = 0;
    /// Read by the application.
    pub const APP_READ: u32 = 1;
    /// Between operations.
    pub const NATIVE: u32 = 3;
    /// A constant.
    pub const STATIC: u32 = 4;

    /// A tensor's memory is a plain pointer.
    pub const MEMORY_RAW: u32 = 0;
    /// A tensor's memory was registered.
    pub const MEMORY_HANDLE: u32 = 1;

    /// A tensor has an encoding.
    pub const DEFINED: u32 = 1;
    /// It has none.
    pub const UNDEFINED: u32 = 0x7fff_ffff;

    /// Kinds of encodings.
    pub const ENCODING_SCALE_OFFSET: u32 = 0;
    /// Per axis.
    pub const ENCODING_AXIS: u32 = 1;
    /// Fewer bits.
    pub const ENCODING_BIT_WIDTH: u32 = 2;
    /// Fewer bits, per axis.
    pub const ENCODING_BIT_WIDTH_AXIS: u32 = 3;
    /// Per block.
    pub const ENCODING_BLOCK: u32 = 4;
    /// Per channel times multiples per block.
    pub const ENCODING_BLOCK_EXPANSION: u32 = 5;
    /// Per block, float.
    pub const ENCODING_FLOAT_BLOCK: u32 = 7;
    /// Per block, float, fewer bits.
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
    /// Optimisation: how hard finalize tries, 1 to 3.
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
    /// Priority: the highest; may be restricted, and is then silently the default.
    pub const PRIORITY_HIGH: u32 = 200;
    /// Device: the chip.
    pub const DEVICE_SOC: u32 = 0;
    /// Of a device: number of the device and version of its architecture.
    pub const DEVICE_ARCHITECTURE: u32 = 1;

    /// Times and, at finalize, estimates.
    pub const PROFILE_BASIC: u32 = 1;
    /// With names.
    pub const PROFILE_DETAILED: u32 = 2;

    /// Memory of the ION allocator.
    pub const MEMORY_ION: u32 = 1;
    /// Memory of a DMA-BUF heap.
    pub const MEMORY_DMA_BUF: u32 = 3;

    /// Infrastructure: the functions that set power.
    pub const INFRASTRUCTURE_POWER: u32 = 0;
    /// Power: a vote on the clocks.
    pub const POWER_CLOCKS: u32 = 1;
    /// Power: the latency of calls that is asked for.
    pub const POWER_CALL_LATENCY: u32 = 2;
    /// Power: how long a caller polls before it sleeps.
    pub const POWER_POLLING: u32 = 3;
    /// Clocks rise and fall with the load.
    pub const CLOCKS_UP_DOWN: u32 = 0x1;
    /// Clocks rise late and fall early.
    pub const CLOCKS_SAVE: u32 = 0x4;
    /// Clocks rise early and fall late.
    pub const CLOCKS_PERFORM: u32 = 0x10;
    /// Voltages, from low to high.
    pub const CORNER_SVS2: u32 = 0x30;
    /// The next.
    pub const CORNER_SVS: u32 = 0x40;
    /// Above the nominal one.
    pub const CORNER_NOM_PLUS: u32 = 0x70;
    /// Higher.
    pub const CORNER_TURBO: u32 = 0x80;
    /// The highest a chip has.
    pub const CORNER_MAX: u32 = 0xa0;

    /// `backendId` of the HTP provider.
    pub const BACKEND_HTP: u32 = 6;
}
