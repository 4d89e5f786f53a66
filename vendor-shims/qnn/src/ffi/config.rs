use super::Scalar;
use std::ffi::{c_char, c_void};

macro_rules! generic_config {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub struct $name {
            /// 0 selects the vendor's own config.
            pub option: u32,
            /// The vendor's config for option 0.
            pub value: *const c_void,
        }
    )*};
}

generic_config! {
    /// Config of a backend.
    BackendConfig,
    /// Config of a device.
    DeviceConfig,
    /// Config of a graph.
    GraphConfig,
}

/// Config of a context.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ContextConfig {
    /// 0 selects the vendor's own config.
    pub option: u32,
    pub value: ContextValue,
}

/// Member selected by [`ContextConfig::option`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union ContextValue {
    /// For option 0, the vendor's config.
    pub custom: *const c_void,
    /// For option 1, one of the numbers of priorities.
    pub priority: u32,
}

/// The vendor's graph options.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GraphCustomConfig {
    pub option: u32,
    pub value: GraphCustomValue,
}

/// Member selected by [`GraphCustomConfig::option`]. The union is as long as its longest known
/// member.
#[derive(Clone, Copy)]
#[repr(C)]
pub union GraphCustomValue {
    /// For option 1.
    pub optimisation: Optimisation,
    /// For most options.
    pub u32: u32,
    /// For numbers of threads.
    pub u64: u64,
    /// For switches.
    pub bool8: u8,
    /// For option 7.
    pub finalize_key: FinalizeKey,
    /// The whole union.
    pub all: [u64; 6],
}

/// A kind of optimisation and its strength.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Optimisation {
    pub kind: u32,
    pub value: f32,
}

/// A key for finalize. Unknown keys are accepted silently.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FinalizeKey {
    /// Null-terminated.
    pub key: *const c_char,
    pub value: Scalar,
}

/// The vendor's context options.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ContextCustomConfig {
    pub option: u32,
    pub value: ContextCustomValue,
}

/// Member selected by [`ContextCustomConfig::option`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union ContextCustomValue {
    /// For switches.
    pub bool8: u8,
    /// For sizes.
    pub u64: u64,
    /// The whole union.
    pub all: [u64; 2],
}

/// The vendor's device options up to backend API 5.43. The union has no pointer and its offset is
/// 4.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DeviceCustomConfig12 {
    pub option: u32,
    /// The chip or the device number.
    pub first: u32,
    /// The architecture, if `first` is a device number.
    pub second: u32,
}

/// The vendor's device options from backend API 5.51. The union has a pointer and its offset is 8.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct DeviceCustomConfig16 {
    pub option: u32,
    /// Space added by the pointer's alignment.
    pub padding: u32,
    /// The chip or the device number.
    pub first: u32,
    /// The architecture, if `first` is a device number.
    pub second: u32,
}
