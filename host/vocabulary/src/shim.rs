//! Descriptions by a shim of itself, its devices and its artefacts.

use serde::{Deserialize, Serialize};

use crate::Provenance;

/// A shim's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// `cpu`, `qnn`, …
    pub name: String,
    /// Who makes it.
    pub vendor: String,
    /// Of the shim itself.
    pub version: String,
    /// What it drives.
    pub vendor_library: Option<String>,
    /// Instances that may be open at once; 0 for any number.
    pub instance_limit: u64,
}

/// A device or offline target of a shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Unique within the shim.
    pub name: String,
    /// Lower case, `mt6989`.
    pub soc: Option<String>,
    /// For people.
    pub detail: Option<String>,
    /// Where it is.
    pub kind: DeviceKind,
    /// What a run accepts.
    pub memory_kinds: MemoryKinds,
    /// What it can address; 0 if not known.
    pub memory_bytes: u64,
}

/// Where a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// In this machine.
    Present,
    /// A named SoC, compiles only.
    Offline,
    /// A named SoC, runs in a simulator.
    Simulated,
}

/// A set of memory kinds that a run accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryKinds(pub u32);

impl MemoryKinds {
    /// Any pointer of the process.
    pub const HOST: MemoryKinds = MemoryKinds(1);
    /// Memory that the shim allocates.
    pub const SHIM: MemoryKinds = MemoryKinds(2);
    /// Imported dma-buf.
    pub const DMA_BUF: MemoryKinds = MemoryKinds(4);
    /// Imported AHardwareBuffer.
    pub const HARDWARE_BUFFER: MemoryKinds = MemoryKinds(8);

    /// Both sets.
    pub const fn and(self, other: MemoryKinds) -> MemoryKinds {
        MemoryKinds(self.0 | other.0)
    }

    /// Whether plain memory of the process can be bound.
    pub const fn host(self) -> bool {
        self.0 & MemoryKinds::HOST.0 != 0
    }

    /// Whether the shim's own buffers can be bound.
    pub const fn shim(self) -> bool {
        self.0 & MemoryKinds::SHIM.0 != 0
    }
}

/// What one run costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// Time of one run with all rows, without the uncosted nodes.
    pub time_microseconds: u64,
    /// Where the number comes from.
    pub provenance: Provenance,
    /// Bytes moved from and to main memory; 0 if unknown.
    pub bytes_moved: u64,
    /// Indices of uncosted nodes; all of them if no time is known.
    pub uncosted: Vec<u64>,
    /// Operations of the vendor's that the entry becomes, which a limit `ops` counts; 0 for one to
    /// each node. The sum over the layers of a shard must be what the shard is compiled with.
    pub operations: u64,
    /// Bytes of an artefact of this entry point alone, weights included; 0 if not known.
    pub artefact_bytes: u64,
    /// Of those, what an artefact holds once for all its entry points.
    pub shared_bytes: u64,
}

/// Whether an artefact can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compatibility {
    /// Made by another shim.
    NotMine(String),
    /// As good as freshly compiled.
    Optimal,
    /// Compile it again; it may still load, and then runs less well.
    Recompile(String),
    /// Made by this shim, cannot run here.
    Unsupported(String),
}
