use serde::{Deserialize, Serialize};

use crate::names::names;

names! {
    /// What kind of device a target is.
    TargetKind, "target kind" {
        /// A neural processing unit.
        Npu = "npu",
        /// A graphics processor.
        Gpu = "gpu",
        /// The general purpose cores.
        Cpu = "cpu",
        /// A program that stands in for a device; every report about it says so.
        Simulator = "simulator",
    }
}

/// One device of one shim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Name under which a plan refers to it; unique in a request.
    pub name: String,
    /// Name of the shim instance that owns it. Two targets share buffers only if shim and device
    /// are equal.
    pub shim: String,
    /// The shim's name for the device, such as an SoC.
    pub device: String,
    /// Kind of device.
    pub kind: TargetKind,
}
