use super::Code;

/// The library's functions to set the clocks. They are null if the library has none.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Infrastructure {
    /// 0 for the functions below.
    pub kind: u32,
    /// Creates a client of a device and core, and returns its identifier.
    pub create: Option<unsafe extern "C" fn(u32, u32, *mut u32) -> Code>,
    /// Removes a client.
    pub destroy: Option<unsafe extern "C" fn(u32) -> Code>,
    /// Sets a client's settings, a list that ends with null.
    pub set: Option<unsafe extern "C" fn(u32, *const *const PowerConfig) -> Code>,
}

/// A setting of a client.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PowerConfig {
    pub option: u32,
    pub value: PowerValue,
}

/// Member selected by [`PowerConfig::option`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union PowerValue {
    /// For option 1.
    pub clocks: Clocks,
    /// For options 2 and 3, in microseconds.
    pub microseconds: u32,
}

/// A vote on the clocks, third version of the struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Clocks {
    pub client: u32,
    /// Whether `scaling` is set.
    pub set_scaling: u32,
    /// Whether clocks follow the load.
    pub scaling: u32,
    /// How clocks follow the load.
    pub mode: u32,
    /// Whether `sleep_latency` is set.
    pub set_sleep_latency: u32,
    /// Allowed latency of waking up, microseconds.
    pub sleep_latency: u32,
    /// Whether `sleep_disable` is set.
    pub set_sleep_disable: u32,
    /// Whether the processor never sleeps.
    pub sleep_disable: u32,
    /// Whether `bus` is set.
    pub set_bus: u32,
    pub bus: Corners,
    /// Whether `core` is set.
    pub set_core: u32,
    pub core: Corners,
}

/// A range of voltages and the target voltage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Corners {
    pub least: u32,
    pub target: u32,
    pub most: u32,
}
