use super::Code;

/// The library's functions to set the clocks. They are null if it has none.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Infrastructure {
    /// 0 for the functions below.
    pub kind: u32,
    /// Device and core to an identifier of a client.
    pub create: Option<unsafe extern "C" fn(u32, u32, *mut u32) -> Code>,
    /// Removes a client.
    pub destroy: Option<unsafe extern "C" fn(u32) -> Code>,
    /// A client's settings, a list that ends with null.
    pub set: Option<unsafe extern "C" fn(u32, *const *const PowerConfig) -> Code>,
}

/// One setting.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PowerConfig {
    /// Which member.
    pub option: u32,
    /// By the option.
    pub value: PowerValue,
}

/// By [`PowerConfig::option`].
#[derive(Clone, Copy)]
#[repr(C)]
pub union PowerValue {
    /// Option 1.
    pub clocks: Clocks,
    /// Options 2 and 3, in microseconds.
    pub microseconds: u32,
}

/// A vote on the clocks, the third version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Clocks {
    /// The client.
    pub client: u32,
    /// Whether `scaling` counts.
    pub set_scaling: u32,
    /// Whether clocks follow the load.
    pub scaling: u32,
    /// How they follow it.
    pub mode: u32,
    /// Whether `sleep_latency` counts.
    pub set_sleep_latency: u32,
    /// Microseconds waking up may take.
    pub sleep_latency: u32,
    /// Whether `sleep_disable` counts.
    pub set_sleep_disable: u32,
    /// Never sleeps.
    pub sleep_disable: u32,
    /// Whether `bus` counts.
    pub set_bus: u32,
    /// Voltage of the bus.
    pub bus: Corners,
    /// Whether `core` counts.
    pub set_core: u32,
    /// Voltage of the processor.
    pub core: Corners,
}

/// A range of voltages and what is aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Corners {
    /// Least.
    pub least: u32,
    /// Aimed at.
    pub target: u32,
    /// Most.
    pub most: u32,
}
