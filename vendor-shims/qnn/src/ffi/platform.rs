use std::ffi::c_void;

/// The library's description of the machine it runs on.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PlatformInfo {
    /// 1.
    pub version: u32,
    /// The first version.
    pub v1: PlatformInfoV1,
}

/// First version of the struct.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PlatformInfoV1 {
    /// Count of `devices`.
    pub device_count: u32,
    /// One per processor.
    pub devices: *const HardwareDevice,
}

/// A processor of the machine.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct HardwareDevice {
    /// 1.
    pub version: u32,
    /// The first version.
    pub v1: HardwareDeviceV1,
}

/// First version of the struct.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct HardwareDeviceV1 {
    /// Number among the devices.
    pub device: u32,
    /// 0 where it does not matter.
    pub kind: u32,
    /// Count of `cores`.
    pub core_count: u32,
    /// Them.
    pub cores: *const c_void,
    /// What HTP adds.
    pub extension: *const DeviceExtension,
}

/// HTP's description of a processor.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DeviceExtension {
    /// 0 for one on the chip.
    pub kind: u32,
    /// Fast memory in megabytes.
    pub vtcm_megabytes: usize,
    /// The chip, by number.
    pub soc: u32,
    /// Signed protection domains.
    pub signed_domain: u8,
    /// Compression of bandwidth.
    pub dlbc: u8,
    /// 73 for v73.
    pub arch: u32,
}

const _: () = assert!(size_of::<PlatformInfo>() == 24 && size_of::<HardwareDevice>() == 40);
const _: () = assert!(size_of::<DeviceExtension>() == 32 && std::mem::offset_of!(DeviceExtension, soc) == 16);
