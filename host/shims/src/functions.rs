//! The calls of an open instance, wherever it runs, and the interface that opens it.

use std::fs::File;
use std::path::Path;

use shardwright_graph::{EntryGraph, NodeVerdict, Weight, WeightId};
use shardwright_vocabulary::{Compatibility, Device, Estimate, FlagSchema, Limit};

use crate::artefact::Artefact;
use crate::buffer::Buffer;
use crate::chip::Chip;
use crate::compile::Output;
use crate::descriptor::Descriptor;
use crate::error::{LoadError, ShimError};
use crate::loaded_shard::{LoadReport, Running, Shard};
use crate::shim::{Claim, Facts, Shim};
use crate::work_order::{OrderWeight, WorkOrder};

/// The functions of an open instance. The shim's results are unchecked, and
/// [`ShimInstance`](crate::ShimInstance) checks them. The instance closes with the last of its
/// shards and buffers.
pub trait Functions: Send + Sync {
    /// Announces a chip to the shim.
    fn chip(&self, chip: &Chip) -> Result<(), ShimError>;
    /// Lists the devices of this machine, or of a chip.
    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>, ShimError>;
    /// Lists the limits of a device.
    fn limits(&self, device: &str) -> Result<Vec<Limit>, ShimError>;
    /// Lists the compiler flags of a device.
    fn flags(&self, device: &str) -> Result<Vec<FlagSchema>, ShimError>;
    /// Checks an entry. Returns verdicts, each with the index of its node.
    fn check(&self, device: &str, entry: ShownEntry) -> Result<Vec<(u64, NodeVerdict)>, ShimError>;
    /// Estimates one run. `cancelled` is polled if the call can be ended.
    fn estimate(
        &self,
        device: &str,
        entry: ShownEntry,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Estimate>, ShimError>;
    /// Compiles a work order into `output`.
    fn compile(&self, device: &str, order: &WorkOrder, output: &mut dyn Output) -> Result<(), ShimError>;
    /// Judges from its head whether an artefact can be used.
    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Vec<Compatibility>, ShimError>;
    /// Makes a lost device usable again.
    fn recover(&self, device: &str) -> Result<(), ShimError>;
    /// Identifies the bytes of a file from `offset` on. Returns format and document.
    fn inspect(&self, file: &File, offset: u64, length: u64) -> Result<Vec<(String, String)>, ShimError>;
    /// Makes an artefact ready to run.
    fn load(
        &self,
        device: &str,
        artefact: &Artefact,
        options: &[(String, String)],
    ) -> Result<(Box<dyn Shard>, LoadReport), ShimError>;
    /// Allocates zeroed memory that the device can see.
    fn allocate(&self, device: &str, length: u64, alignment: u64) -> Result<Buffer, ShimError>;
    /// Makes a dma-buf visible to the device.
    fn import(&self, device: &str, fd: Descriptor, offset: u64, length: u64) -> Result<Buffer, ShimError>;
    /// Returns the place where it runs.
    fn running(&self) -> Running;
}

/// Opens shims outside of this process.
pub trait Opener: std::fmt::Debug + Send + Sync {
    /// Describes the library. `sha256` is the hash in its manifest, if any.
    fn facts(&self, library: &Path, sha256: Option<&str>) -> Result<Facts, LoadError>;

    /// Opens an instance of the shim. `claim` is released when the instance closes.
    fn open(
        &self,
        shim: &Shim,
        name: &str,
        options: &[(String, String)],
        claim: Claim,
    ) -> Result<Box<dyn Functions>, ShimError>;
}

/// An entry graph and its weights without their bytes, as the input of a check or an estimate.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct ShownEntry(pub(crate) Box<EntryGraph>, pub(crate) Vec<OrderWeight>);

impl ShownEntry {
    /// Creates it from a graph whose constants index `weights`.
    pub fn of(entry: &EntryGraph, weights: &[Weight]) -> ShownEntry {
        let mut entry = Box::new(entry.clone());
        let mut renumbered = std::collections::BTreeMap::new();
        let mut shown = Vec::new();
        for tensor in &mut entry.tensors {
            let Some(id) = tensor.weight else { continue };
            // A missing weight is skipped here and rejected when the tables are created.
            let Some(weight) = weights.get(id.0 as usize) else {
                tensor.weight = Some(WeightId(u32::MAX));
                continue;
            };
            let next = WeightId(shown.len() as u32);
            let number = *renumbered.entry(id).or_insert(next);
            if number == next {
                shown.push(OrderWeight::of(weight));
            }
            tensor.weight = Some(number);
        }
        ShownEntry(entry, shown)
    }
}

/// Returns the identity of an entry graph and its weights, without the weights' data. Two
/// identities are equal if a check or an estimate passes the same input to the shim.
pub fn entry_identity(entry: &EntryGraph, weights: &[Weight]) -> Result<Vec<u8>, ShimError> {
    let shown = ShownEntry::of(entry, weights);
    serde_json::to_vec(&shown)
        .map_err(|error| ShimError::Argument(format!("cannot serialise the entry as JSON: {error}")))
}
