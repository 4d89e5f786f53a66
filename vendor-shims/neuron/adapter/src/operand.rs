//! Operands: the structs that describe them and the numbers of their types.

use std::ffi::c_void;

/// Type and shape of an operand. A scalar has no dimensions. Google's client sends tensors of rank
/// 0 as `[1]` and an open dimension as `u32::MAX`. (R)
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct OperandType {
    /// One of the numbers in this module, or a number returned by
    /// `NeuronModel_getExtensionOperandType`.
    pub kind: i32,
    /// Number of entries of `dimensions`.
    pub dimension_count: u32,
    /// Dimensions, outermost first. May be null for a scalar. Read only during the call.
    pub dimensions: *const u32,
    /// Scale of types that are quantised per tensor: real = scale × (stored − zero point). 0 for
    /// other types.
    pub scale: f32,
    /// Zero point of types that are quantised per tensor. 0 for other types.
    pub zero_point: i32,
}

/// Scales per channel. All zero points are 0. (R)
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SymmPerChannelQuantParams {
    /// Dimension of the channels.
    pub channel_dimension: u32,
    /// Number of scales, equal to the length of that dimension.
    pub scale_count: u32,
    /// Read only during the call.
    pub scales: *const f32,
}

/// Scales and zero points per channel. (R)
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PerChannelQuantParams {
    /// Dimension of the channels.
    pub channel_dimension: u32,
    /// Number of scales, equal to the length of that dimension.
    pub scale_count: u32,
    /// Read only during the call.
    pub scales: *const f32,
    /// Number of zero points, equal to the number of scales.
    pub zero_point_count: u32,
    /// Read only during the call.
    pub zero_points: *const i32,
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// Only pointers to it exist.
            #[repr(C)]
            #[derive(Debug)]
            pub struct $name {
                _opaque: [c_void; 0],
            }
        )*
    };
}

handles! {
    /// Operands and operations. Unchangeable once finished. Outlives its compilations.
    Model;
    /// A compilation of a model, and the compiled code. Outlives its executions.
    Compilation;
    /// Buffers for one run at a time.
    Execution;
    /// Memory shared with the hardware.
    Memory;
    /// The end of a run that was started without waiting for it.
    Event;
    /// A unit of the processor. The library owns it, so it is never freed.
    Device;
    /// Android's `AHardwareBuffer`.
    AHardwareBuffer;
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $bytes:expr, $known:literal;)*) => {
        $(
            $(#[$doc])*
            #[doc = concat!("(", $known, ")")]
            pub const $name: i32 = $number;
        )*
        /// Every number with its name and the bytes of one element (0 if the type does not
        /// determine it).
        pub const KINDS: &[(i32, &str, usize)] = &[$(($number, stringify!($name), $bytes)),*];
    };
}

kinds! {
    /// A scalar of 4 bytes.
    FLOAT32 = 0, 4, "M, R";
    /// A scalar of 4 bytes.
    INT32 = 1, 4, "M, R";
    /// A scalar of 4 bytes.
    UINT32 = 2, 4, "M, R";
    /// Elements of 4 bytes. A bias has the scale input × weight.
    TENSOR_FLOAT32 = 3, 4, "M, R";
    /// Elements of 4 bytes; a bias has scale input × weight.
    TENSOR_INT32 = 4, 4, "M, R";
    /// u8, real = scale × (stored − zero point).
    TENSOR_QUANT8_ASYMM = 5, 1, "M, R";
    /// A scalar of one byte.
    BOOL = 6, 1, "M, R";
    /// i16, zero point 0.
    TENSOR_QUANT16_SYMM = 7, 2, "M, R";
    /// Elements of 2 bytes.
    TENSOR_FLOAT16 = 8, 2, "M, R";
    /// Elements of 1 byte.
    TENSOR_BOOL8 = 9, 1, "M, R";
    /// A scalar of 2 bytes.
    FLOAT16 = 10, 2, "M";
    /// i8 with scales per channel, zero points 0.
    TENSOR_QUANT8_SYMM_PER_CHANNEL = 11, 1, "M, R";
    /// u16 with a zero point.
    TENSOR_QUANT16_ASYMM = 12, 2, "M";
    /// i8, zero point 0.
    TENSOR_QUANT8_SYMM = 13, 1, "M, R";
    /// i8 with a zero point.
    TENSOR_QUANT8_ASYMM_SIGNED = 14, 1, "M, R";
    /// A model as a value, for control flow.
    MODEL = 15, 0, "A";
    /// Signed 4 bits with a zero point, one element per byte.
    EXT_TENSOR_QUANT4_ASYMM_SIGNED = 9004, 1, "R";
    /// Signed 4 bits, zero point 0, one element per byte.
    EXT_TENSOR_QUANT4_SYMM = 9005, 1, "R";
    /// i16 with a zero point.
    EXT_TENSOR_QUANT16_ASYMM_SIGNED = 9006, 2, "R";
    /// i8 with scales and zero points per channel.
    EXT_TENSOR_QUANT8_ASYMM_SIGNED_PER_CHANNEL = 9008, 1, "R";
    /// Signed 4 bits with scales per channel, zero points 0, one element per byte.
    EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL = 9011, 1, "R; name I";
    /// Signed 4 bits with scales and zero points per channel, one element per byte.
    TENSOR_QUANT4_ASYMM_SIGNED_PER_CHANNEL = 9013, 1, "R; name I";
    /// A bias with scales per channel.
    EXT_TENSOR_INT32_SYMM_PER_CHANNEL = 9014, 4, "L, R";
    /// Signed 2 bits with a zero point, one element per byte.
    EXT_TENSOR_QUANT2_ASYMM_SIGNED = 9015, 1, "R; name I";
    /// Signed 2 bits, zero point 0, one element per byte.
    EXT_TENSOR_QUANT2_SYMM = 9016, 1, "R; name I";
    /// Signed 2 bits with scales per channel, one element per byte.
    EXT_TENSOR_QUANT2_SYMM_PER_CHANNEL = 9017, 1, "R; name I";
    /// Signed 2 bits with scales and zero points per channel, one element per byte.
    EXT_TENSOR_QUANT2_ASYMM_SIGNED_PER_CHANNEL = 9018, 1, "R; name I";
}

/// Returns the name of a type. Returns `None` for an unknown number or a number that an extension
/// assigned.
pub fn name(kind: i32) -> Option<&'static str> {
    KINDS.iter().find(|(number, ..)| *number == kind).map(|(_, name, _)| *name)
}

/// Returns the bytes of one element. Returns `None` if the type does not determine it.
pub fn element_bytes(kind: i32) -> Option<usize> {
    KINDS.iter().find(|(number, ..)| *number == kind).map(|(.., bytes)| *bytes).filter(|bytes| *bytes > 0)
}

/// Returns whether the type is a single value without a shape.
pub fn is_scalar(kind: i32) -> bool {
    matches!(kind, FLOAT32 | INT32 | UINT32 | BOOL | FLOAT16)
}

/// Returns whether scale and zero point are in the [`OperandType`].
pub fn is_per_tensor(kind: i32) -> bool {
    matches!(
        kind,
        TENSOR_QUANT8_ASYMM
            | TENSOR_QUANT16_SYMM
            | TENSOR_QUANT16_ASYMM
            | TENSOR_QUANT8_SYMM
            | TENSOR_QUANT8_ASYMM_SIGNED
            | EXT_TENSOR_QUANT4_ASYMM_SIGNED
            | EXT_TENSOR_QUANT4_SYMM
            | EXT_TENSOR_QUANT16_ASYMM_SIGNED
            | EXT_TENSOR_QUANT2_ASYMM_SIGNED
            | EXT_TENSOR_QUANT2_SYMM
    )
}

/// Returns whether one of the two per-channel calls sets the scales.
pub fn is_per_channel(kind: i32) -> bool {
    matches!(
        kind,
        TENSOR_QUANT8_SYMM_PER_CHANNEL
            | EXT_TENSOR_QUANT8_ASYMM_SIGNED_PER_CHANNEL
            | EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL
            | TENSOR_QUANT4_ASYMM_SIGNED_PER_CHANNEL
            | EXT_TENSOR_INT32_SYMM_PER_CHANNEL
            | EXT_TENSOR_QUANT2_SYMM_PER_CHANNEL
            | EXT_TENSOR_QUANT2_ASYMM_SIGNED_PER_CHANNEL
    )
}
