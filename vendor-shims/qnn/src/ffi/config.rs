use super::Scalar;
use std::ffi::{c_char, c_void};

macro_rules! generic_config {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub struct $name {
            /// Which; 0 is the vendor's own.
            pub option: u32,
            /// For option 0 the vendor's config.
            pub value: *const c_void,
        }
    )*};
}

generic_config! {
    /// Of a backend.
    BackendConfig,
    /// Of a device.
    DeviceConfig,
    /// Of a graph.
    GraphConfig,
}

/// Of a context.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ContextConfig {
    /// Which; 0 is the vendor's own.
    pub option: u32,
    /// By the option.
    pub value: ContextValue,
}

/// By [`ContextConfig::option`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union ContextValue {
    /// Option 0, the vendor's config.
    pub custom: *const c_void,
    /// Option 1, one of the numbers of priorities.
    pub priority: u32,
}

/// The vendor's graph options.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GraphCustomConfig {
    /// Which.
    pub option: u32,
    /// By the option.
    pub value: GraphCustomValue,
}

/// By [`GraphCustomConfig::option`]; as long as the longest member known.
#[derive(Clone, Copy)]
#[repr(C)]
pub union GraphCustomValue {
    /// Option 1.
    pub optimisation: Optimisation,
    /// Most options.
    pub u32: u32,
    /// Threads.
    pub u64: u64,
    /// Switches.
    pub bool8: u8,
    /// Option 7.
    pub finalize_key: FinalizeKey,
    /// All of it.
    pub all: [u64; 6],
}

/// A kind of optimisation and its strength.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Optimisation {
    /// Which.
    pub kind: u32,
    /// How much.
    pub value: f32,
}

/// A key for finalize. Unknown keys are accepted silently.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FinalizeKey {
    /// Null-terminated.
    pub key: *const c_char,
    /// Its value.
    pub value: Scalar,
}

/// The vendor's context options.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ContextCustomConfig {
    /// Which.
    pub option: u32,
    /// By the option.
    pub value: ContextCustomValue,
}

/// By [`ContextCustomConfig::option`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union ContextCustomValue {
    /// Switches.
    pub bool8: u8,
    /// Sizes.
    pub u64: u64,
    /// All of it.
    pub all: [u64; 2],
}

/// The vendor's device options up to backend API 5.43: the union has no pointer and stands at 4.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DeviceCustomConfig12 {
    /// Which.
    pub option: u32,
    /// Chip; or device number.
    pub first: u32,
    /// Architecture, when `first` is a device number.
    pub second: u32,
}

/// The vendor's device options from backend API 5.51: the union got a pointer and moved to 8.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct DeviceCustomConfig16 {
    /// Which.
    pub option: u32,
    /// Space that came with the pointer.
    pub padding: u32,
    /// Chip; or device number.
    pub first: u32,
    /// Architecture, when `first` is a device number.
    pub second: u32,
}
