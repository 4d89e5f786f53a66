//! A shim's descriptions of itself, its devices and its artefacts.

use serde::{Deserialize, Serialize};

use crate::Provenance;

/// A shim's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Name, such as `cpu` or `qnn`.
    pub name: String,
    /// Vendor of the device that the shim supports.
    pub vendor: String,
    /// Version of the shim itself.
    pub version: String,
    /// Name, version and path of the vendor's library. `None` if there is none or it is not loaded
    /// yet.
    pub vendor_library: Option<String>,
    /// Maximum number of instances that may be open at once. 0 means unlimited.
    pub instance_limit: u64,
}

/// A device or offline target of a shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Name, unique within the shim.
    pub name: String,
    /// SoC name in lower case, such as `mt6989`.
    pub soc: Option<String>,
    /// Description for people.
    pub detail: Option<String>,
    /// Kind of device: in this machine, offline or simulated.
    pub kind: DeviceKind,
    /// Memory kinds that a run accepts.
    pub memory_kinds: MemoryKinds,
    /// Bytes that the device can address. 0 if unknown.
    pub memory_bytes: u64,
}

/// Kind of a device, by its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// A device of this machine.
    Present,
    /// A named SoC that the shim can only compile for.
    Offline,
    /// A named SoC that runs in a simulator.
    Simulated,
}

/// A set of memory kinds that a run accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryKinds(pub u32);

impl MemoryKinds {
    /// Any memory of the process.
    pub const HOST: MemoryKinds = MemoryKinds(1);
    /// Memory that the shim allocates.
    pub const SHIM: MemoryKinds = MemoryKinds(2);
    /// Imported dma-buf.
    pub const DMA_BUF: MemoryKinds = MemoryKinds(4);
    /// Imported AHardwareBuffer.
    pub const HARDWARE_BUFFER: MemoryKinds = MemoryKinds(8);

    /// Returns the union of both sets.
    pub const fn and(self, other: MemoryKinds) -> MemoryKinds {
        MemoryKinds(self.0 | other.0)
    }

    /// Returns whether plain memory of the process can be bound.
    pub const fn host(self) -> bool {
        self.0 & MemoryKinds::HOST.0 != 0
    }

    /// Returns whether the shim's own buffers can be bound.
    pub const fn shim(self) -> bool {
        self.0 & MemoryKinds::SHIM.0 != 0
    }
}

/// Estimated cost of one run of an entry point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// Time of one run with all rows, without the uncosted nodes.
    pub time_microseconds: u64,
    /// Source of the number.
    pub provenance: Provenance,
    /// Bytes moved from and to main memory. 0 if unknown.
    pub bytes_moved: u64,
    /// Indices of nodes that the time does not include. All nodes if no time is known.
    pub uncosted: Vec<u64>,
    /// Number of vendor operations that the entry point is lowered to, as a limit `ops` counts
    /// them. 0 means one per node. The sum over the layers of a shard must equal the count of the
    /// compiled shard.
    pub operations: u64,
    /// Bytes of an artefact with only this entry point, weights included. 0 if unknown.
    pub artefact_bytes: u64,
    /// Part of `artefact_bytes` that an artefact stores once for all its entry points.
    pub shared_bytes: u64,
}

/// Whether an artefact can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compatibility {
    /// Made by another shim, for the given reason.
    NotMine(String),
    /// As good as a new compilation.
    Optimal,
    /// Should be compiled again. It may still load, but runs less well.
    Recompile(String),
    /// Made by this shim, but cannot run here.
    Unsupported(String),
}
