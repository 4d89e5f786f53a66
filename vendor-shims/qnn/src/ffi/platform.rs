use std::ffi::c_void;

/// The library's description of the machine it runs on.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PlatformInfo {
    /// Always 1.
    pub version: u32,
    pub v1: PlatformInfoV1,
}

/// First version of [`PlatformInfo`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PlatformInfoV1 {
    pub device_count: u32,
    /// One per processor.
    pub devices: *const HardwareDevice,
}

/// A processor of the machine.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct HardwareDevice {
    /// Always 1.
    pub version: u32,
    pub v1: HardwareDeviceV1,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct HardwareDeviceV1 {
    /// Number among the devices.
    pub device: u32,
    /// 0 if it does not matter.
    pub kind: u32,
    pub core_count: u32,
    pub cores: *const c_void,
    /// HTP's extension.
    pub extension: *const DeviceExtension,
}

/// HTP's description of a processor.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DeviceExtension {
    /// 0 for a processor on the chip.
    pub kind: u32,
    /// Fast memory in megabytes.
    pub vtcm_megabytes: usize,
    /// The chip, by number.
    pub soc: u32,
    /// Whether signed protection domains are supported.
    pub signed_domain: u8,
    /// Whether bandwidth compression is supported.
    pub dlbc: u8,
    /// The architecture, such as 73 for v73.
    pub arch: u32,
}

const _: () = assert!(size_of::<PlatformInfo>() == 24 && size_of::<HardwareDevice>() == 40);
const _: () = assert!(size_of::<DeviceExtension>() == 32 && std::mem::offset_of!(DeviceExtension, soc) == 16);
