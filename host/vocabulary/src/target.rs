use serde::{Deserialize, Serialize};

use crate::names::names;

names! {
    /// Kind of a target's device.
    TargetKind, "target kind" {
        /// A neural processing unit.
        Npu = "npu",
        /// A graphics processor.
        Gpu = "gpu",
        /// The general-purpose cores.
        Cpu = "cpu",
        /// A program that replaces a device. Every report about it states this.
        Simulator = "simulator",
    }
}

/// One device of one shim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Name of the target in plans, unique in a request.
    pub name: String,
    /// Name of the shim instance that owns it. Two targets share buffers only if shim and device
    /// are equal.
    pub shim: String,
    /// The shim's name for the device, such as an SoC.
    pub device: String,
    /// Kind of device.
    pub kind: TargetKind,
}
