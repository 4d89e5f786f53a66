//! An open instance: the calls it offers, and the checks on the results, wherever the shim runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Mutex, OnceLock};

use shardwright_graph::{EntryGraph, NodeVerdict, Weight};
use shardwright_vocabulary::{Compatibility, Device, Estimate, Flag, FlagSchema, FlagStage, Limit, Watch};

use crate::artefact::{Artefact, ArtefactDestination};
use crate::buffer::Buffer;
use crate::chip::Chip;
use crate::chip_facts;
use crate::compile::Compilation;
use crate::descriptor::Descriptor;
use crate::error::ShimError;
use crate::functions::{Functions, Opener, ShownEntry};
use crate::heads::Heads;
use crate::loaded_shard::{LoadReport, LoadedShard, Measured, Measures, Running};
use crate::local::Local;
use crate::measured_flags::{MeasuredFlag, MeasuredFlags};
use crate::shim::{ArtefactInspection, Claim, Shim, lock};
use crate::times::{CallLog, CallTimes};
use crate::work_order::WorkOrder;

/// An open instance of a shim. Cloning shares it. It closes with the last clone, shard and buffer.
#[derive(Clone)]
pub struct ShimInstance(Arc<Inner>);

struct Inner {
    shim: Shim,
    name: String,
    functions: Box<dyn Functions>,
    times: Arc<CallLog>,
    /// Chips that were announced to the shim, by name, with only the facts that the shim reads.
    chips: Mutex<BTreeMap<String, Chip>>,
    /// The chip of each device that was reported.
    chip_of: Mutex<BTreeMap<String, String>>,
    /// Storage of values of load-time flags, if they are kept.
    measured: OnceLock<MeasuredFlags>,
    /// Load-time flags of each device before anything was loaded on it.
    open_flags: Mutex<BTreeMap<String, Vec<FlagSchema>>>,
    /// Values of load-time flags that the shim has found, as of the last query.
    found: Mutex<BTreeMap<String, Vec<Flag>>>,
}

impl Shim {
    /// Opens an instance in this process. Its options override the manifest's. `name` is for users
    /// and reports. A shim may be open many times.
    pub fn open(&self, name: &str, options: &[(String, String)]) -> Result<ShimInstance, ShimError> {
        self.open_by(name, options, |options, existing| {
            Ok(Box::new(Local::open(self, name, options, existing)?))
        })
    }

    /// Opens an instance elsewhere, for example in a worker process.
    pub fn open_isolated(
        &self,
        name: &str,
        options: &[(String, String)],
        opener: &dyn Opener,
    ) -> Result<ShimInstance, ShimError> {
        self.open_by(name, options, |options, existing| opener.open(self, name, options, existing))
    }

    fn open_by(
        &self,
        name: &str,
        passed: &[(String, String)],
        open: impl FnOnce(&[(String, String)], Claim) -> Result<Box<dyn Functions>, ShimError>,
    ) -> Result<ShimInstance, ShimError> {
        // The manifest's options, except the ones passed by the caller, then the caller's.
        let standing = self.manifest().map(|manifest| manifest.options.clone()).unwrap_or_default();
        let said = |key: &String| passed.iter().any(|(other, _)| other == key);
        let options: Vec<_> =
            standing.into_iter().filter(|(key, _)| !said(key)).chain(passed.iter().cloned()).collect();
        let functions = open(&options, Claim::take(self, name)?)?;
        Ok(ShimInstance(Arc::new(Inner {
            shim: self.clone(),
            name: name.to_owned(),
            functions,
            times: Arc::default(),
            chips: Mutex::default(),
            chip_of: Mutex::default(),
            measured: OnceLock::new(),
            open_flags: Mutex::default(),
            found: Mutex::default(),
        })))
    }
}

impl std::fmt::Debug for ShimInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShimInstance")
            .field("name", &self.0.name)
            .field("shim", &self.0.shim.name())
            .field("running", &self.running())
            .finish_non_exhaustive()
    }
}

impl ShimInstance {
    /// Returns the functions, whose results are not checked.
    pub fn functions(&self) -> &dyn Functions {
        &*self.0.functions
    }

    /// Returns the name under which it was opened.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the shim of this instance.
    pub fn shim(&self) -> &Shim {
        &self.0.shim
    }

    /// Returns the place of a shard that it loads on `device`.
    pub fn place(&self, device: &str) -> shardwright_vocabulary::Place {
        shardwright_vocabulary::Place {
            instance: self.0.name.clone(),
            shim: self.0.shim.name().to_owned(),
            device: device.to_owned(),
        }
    }

    /// Checks whether two handles are the same instance.
    pub fn same(&self, other: &ShimInstance) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns whether it runs in this process or in which worker.
    pub fn running(&self) -> Running {
        self.0.functions.running()
    }

    /// Returns statistics of the calls so far, by function of the contract.
    pub fn call_times(&self) -> BTreeMap<&'static str, CallTimes> {
        self.0.times.times()
    }

    fn timed<T>(&self, function: &'static str, call: impl FnOnce(&dyn Functions) -> T) -> T {
        self.0.times.timed(function, || call(self.functions()))
    }

    /// Announces a chip to the shim, before its devices are queried. Passes only the facts that the
    /// shim reads. A shim that reads no facts is not called.
    ///
    /// # Errors
    /// [`ShimError::Chip`] if a fact is missing, has a wrong kind, or is contradicted by the shim.
    pub fn know(&self, chip: &Chip) -> Result<(), ShimError> {
        let shim = &self.0.shim;
        if shim.chip_facts().is_empty() {
            return Ok(());
        }
        let chip = chip_facts::read_by(shim.chip_facts(), shim.name(), chip).map_err(ShimError::Chip)?;
        self.timed("chip", |functions| functions.chip(&chip))
            .map_err(|error| chip_facts::about(&chip.name, error))?;
        lock(&self.0.chips).insert(chip.name.clone(), chip);
        Ok(())
    }

    /// Returns the chip of a device with the facts that the shim read, if it was announced.
    pub fn chip_of(&self, device: &str) -> Option<Chip> {
        let name = lock(&self.0.chip_of).get(device)?.clone();
        lock(&self.0.chips).get(&name).cloned()
    }

    /// Lists devices of this machine, or with `soc` the devices for which the shim compiles offline
    /// or which it simulates. An empty list is not an error.
    ///
    /// # Errors
    /// [`ShimError::Chip`] if the profile of a chip contradicts the vendor's library.
    pub fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>, ShimError> {
        let reported = self.timed("devices", |functions| functions.devices(soc));
        let reported = reported.map_err(|error| match soc {
            Some(soc) => chip_facts::about(soc, error),
            None => error,
        })?;
        let mut chip_of = lock(&self.0.chip_of);
        for device in &reported {
            if let Some(soc) = &device.soc {
                chip_of.insert(device.name.clone(), soc.clone());
            }
        }
        Ok(reported)
    }

    /// Lists the limits of the device.
    pub fn limits(&self, device: &str) -> Result<Vec<Limit>, ShimError> {
        self.timed("limits", |functions| functions.limits(device))
    }

    /// Lists the flags of the device as they were before anything was loaded on it. So plans do not
    /// depend on later measurements ([`ShimInstance::measured`]).
    pub fn flags(&self, device: &str) -> Result<Vec<FlagSchema>, ShimError> {
        let mut flags = self.flags_now(device)?;
        if let Some(before) = lock(&self.0.open_flags).get(device) {
            for flag in &mut flags {
                if let Some(known) = before.iter().find(|known| known.name == flag.name) {
                    flag.clone_from(known);
                }
            }
        }
        Ok(flags)
    }

    fn flags_now(&self, device: &str) -> Result<Vec<FlagSchema>, ShimError> {
        self.timed("flags", |functions| functions.flags(device))
    }

    /// Checks an entry and returns one verdict per node, in the graph's order. The graph's
    /// constants index `weights`, whose bytes are not passed to the shim.
    pub fn check(
        &self,
        device: &str,
        entry: &EntryGraph,
        weights: &[Weight],
    ) -> Result<Vec<NodeVerdict>, ShimError> {
        let reported =
            self.timed("check", |functions| functions.check(device, ShownEntry::of(entry, weights)))?;
        let wrong = |reason: String| ShimError::contract(&self.0.name, "check", reason);
        let mut verdicts: Vec<Option<NodeVerdict>> = vec![None; entry.nodes.len()];
        for (node, verdict) in reported {
            let place = usize::try_from(node)
                .ok()
                .and_then(|node| verdicts.get_mut(node))
                .ok_or_else(|| wrong(format!("a verdict on node {node}, which does not exist")))?;
            if place.replace(verdict).is_some() {
                return Err(wrong(format!("two verdicts on node {node}")));
            }
        }
        let unsaid = || NodeVerdict::refused("the shim did not report a verdict");
        Ok(verdicts.into_iter().map(|verdict| verdict.unwrap_or_else(unsaid)).collect())
    }

    /// Estimates the time of one run with all rows. Returns `None` if the shim has no estimate.
    pub fn estimate(
        &self,
        device: &str,
        entry: &EntryGraph,
        weights: &[Weight],
    ) -> Result<Option<Estimate>, ShimError> {
        self.estimate_watched(device, entry, weights, &|| false)
    }

    /// Like [`ShimInstance::estimate`], but ends with a cancelled error soon after `cancelled`
    /// returns true. In this process it ends only when the shim has returned.
    pub fn estimate_watched(
        &self,
        device: &str,
        entry: &EntryGraph,
        weights: &[Weight],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Estimate>, ShimError> {
        let entry_shown = ShownEntry::of(entry, weights);
        let mut reported =
            self.timed("estimate", |functions| functions.estimate(device, entry_shown, cancelled))?;
        let wrong = |reason: String| ShimError::contract(&self.0.name, "estimate", reason);
        match (reported.pop(), reported.len()) {
            (Some(estimate), 0) => {
                let nodes = entry.nodes.len() as u64;
                match estimate.uncosted.iter().find(|&&node| node >= nodes) {
                    None => Ok(Some(estimate)),
                    Some(node) => Err(wrong(format!("uncosted node {node}, expected one of {nodes} nodes"))),
                }
            }
            (None, _) => Ok(None),
            _ => Err(wrong("more than one estimate".to_owned())),
        }
    }

    /// Compiles a work order. The artefact is written completely or not at all. It contains a
    /// verdict on every flag of the order.
    pub fn compile(
        &self,
        device: &str,
        order: &WorkOrder,
        place: ArtefactDestination<'_>,
        watch: &mut dyn Watch,
    ) -> Result<Artefact, ShimError> {
        let entries = order.interfaces().map_err(ShimError::work_order)?;
        let mut compilation = Compilation::new(place, watch)?;
        let result = self.timed("compile", |functions| functions.compile(device, order, &mut compilation));
        let description = self.0.shim.description();
        let chip = (self.chip_of(device), self.0.shim.chip_facts());
        compilation.finish(result, order, entries, (&self.0.name, device, description), chip)
    }

    /// Judges from an artefact's heads alone whether this instance can use it.
    pub fn compatibility(&self, device: &str, heads: &Heads) -> Result<Compatibility, ShimError> {
        if heads.head.shim != self.0.shim.name() {
            return Ok(Compatibility::NotMine(format!("compiled by shim `{}`", heads.head.shim)));
        }
        let head = &heads.shim_head;
        let mut reported = self.timed("compatibility", |functions| functions.compatibility(device, head))?;
        match (reported.pop(), reported.len()) {
            (Some(answer), 0) => Ok(answer),
            _ => Err(ShimError::contract(&self.0.name, "compatibility", "expected exactly one answer")),
        }
    }

    /// Makes the instance keep values of load-time flags that the shim finds by measuring.
    pub(crate) fn measuring(self, measured: Option<MeasuredFlags>) -> ShimInstance {
        if let Some(measured) = measured {
            self.0.measured.get_or_init(|| measured);
        }
        self
    }

    /// Returns the load-time flags of a device as they were before anything was loaded on it.
    fn open_flags(&self, device: &str) -> Result<Vec<FlagSchema>, ShimError> {
        if let Some(known) = lock(&self.0.open_flags).get(device) {
            return Ok(known.clone());
        }
        let mut flags = self.flags_now(device)?;
        flags.retain(|flag| flag.stage == FlagStage::Load);
        Ok(lock(&self.0.open_flags).entry(device.to_owned()).or_insert(flags).clone())
    }

    /// Returns values that earlier loads on this device found and that its flags accept.
    fn kept(&self, device: &str) -> Result<Vec<Flag>, ShimError> {
        let Some(measured) = self.0.measured.get() else { return Ok(Vec::new()) };
        let (schema, shim) = (self.open_flags(device)?, self.0.shim.description());
        if schema.is_empty() || !measured.knows(shim) {
            return Ok(Vec::new());
        }
        let devices = self.devices(None)?;
        let found = devices.iter().find(|found| found.name == device);
        let kept = found.map(|found| measured.of(shim, found)).unwrap_or_default();
        let takes = |flag: &Flag| flag.is_taken_at_load(&schema).unwrap_or(false);
        Ok(kept.into_iter().filter(takes).collect())
    }

    /// Returns values of load-time flags that the shim has found since the first query, and keeps
    /// the new ones. A worker that has ended is not restarted for this.
    fn found(&self, device: &str) -> Result<Vec<Flag>, ShimError> {
        let Some(measured) = self.0.measured.get() else { return Ok(Vec::new()) };
        if matches!(self.running(), Running::Worker(worker) if worker.pid.is_none()) {
            return Ok(Vec::new());
        }
        let before = self.open_flags(device)?;
        if before.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.flags_now(device)?.into_iter().filter(|flag| {
            let known = before.iter().find(|known| known.name == flag.name);
            known.is_some_and(|known| known.default != flag.default)
        });
        let found = found.filter_map(|flag| Some(Flag { name: flag.name, value: flag.default? }));
        let found: Vec<Flag> = found.collect();
        let known = lock(&self.0.found).insert(device.to_owned(), found.clone());
        if !found.is_empty()
            && known.as_ref() != Some(&found)
            && let Some(device) = self.devices(None)?.iter().find(|listed| listed.name == device)
        {
            measured.keep(self.0.shim.description(), device, &found);
        }
        Ok(found)
    }

    /// Returns the load-time flags whose values the shim found by measuring, either since the first
    /// query or in an earlier process. The list is empty if such values are not kept
    /// ([`measured_kept_in`](crate::RegistryBuilder::measured_kept_in)).
    pub fn measured(&self, device: &str) -> Result<Vec<MeasuredFlag>, ShimError> {
        let found = self.found(device)?;
        let mut kept = self.kept(device)?;
        kept.retain(|flag| found.iter().all(|newer| newer.name != flag.name));
        let of = |flags: Vec<Flag>, kept| flags.into_iter().map(move |flag| MeasuredFlag { flag, kept });
        Ok(of(kept, true).chain(of(found, false)).collect())
    }

    /// Makes an artefact ready to run. Options are the shim's, such as `threads`.
    pub fn load(
        &self,
        device: &str,
        artefact: &Artefact,
        options: &[(String, String)],
    ) -> Result<LoadedShard, ShimError> {
        self.load_with(device, artefact, options, &[])
    }

    /// Like [`ShimInstance::load`], but with load-time flags, each of which gets a verdict
    /// ([`LoadedShard::flags`]).
    pub fn load_with(
        &self,
        device: &str,
        artefact: &Artefact,
        options: &[(String, String)],
        flags: &[Flag],
    ) -> Result<LoadedShard, ShimError> {
        let mut options = options.to_vec();
        options.extend(flags.iter().map(|flag| (flag.name.clone(), flag.value.clone())));
        let options = options.as_slice();
        Ok(self.loaded(device, artefact, options, flags)?.0)
    }

    /// Like [`ShimInstance::load`], but also returns the shim's own report, for forwarding it.
    pub fn load_reported(
        &self,
        device: &str,
        artefact: &Artefact,
        options: &[(String, String)],
    ) -> Result<(LoadedShard, LoadReport), ShimError> {
        self.loaded(device, artefact, options, &[])
    }

    fn loaded(
        &self,
        device: &str,
        artefact: &Artefact,
        options: &[(String, String)],
        flags: &[Flag],
    ) -> Result<(LoadedShard, LoadReport), ShimError> {
        // These are hints. Without them the shim measures.
        let mut kept = self.kept(device).unwrap_or_default();
        kept.retain(|flag| options.iter().all(|(name, _)| *name != flag.name));
        let kept = kept.into_iter().map(|flag| (flag.name, flag.value));
        let all: Vec<(String, String)> = options.iter().cloned().chain(kept).collect();
        let (shard, report) = self.timed("load", |functions| functions.load(device, artefact, &all))?;
        // A flag with its default value is still open to measurement.
        let open = match self.0.measured.get() {
            Some(_) => self.open_flags(device).unwrap_or_default(),
            None => Vec::new(),
        };
        let is_open = |(name, value): &&(String, String)| {
            open.iter().any(|flag| flag.name == *name && flag.default.as_ref() == Some(value))
        };
        let given = options.iter().filter(|option| !is_open(option)).map(|(name, _)| name.clone()).collect();
        let measured = Measured::new(MeasuredBy { instance: self.clone(), device: device.to_owned(), given });
        let (times, place) = (self.0.times.clone(), self.place(device));
        let loaded = LoadedShard::loaded(shard, report.clone(), place, artefact, flags, times, measured)?;
        Ok((loaded.run_by(self.shim().clone()), report))
    }

    /// Allocates zeroed memory that the device can see. It is the shim's memory if the shim has its
    /// own, otherwise the process's. With a worker it is memory shared with the worker.
    pub fn allocate(&self, device: &str, length: u64, alignment: u64) -> Result<Buffer, ShimError> {
        self.0.functions.allocate(device, length, alignment)
    }

    /// Makes a dma-buf visible to the device. The descriptor must stay open until the buffer is
    /// dropped. A worker does not support this.
    pub fn import_dma_buf(
        &self,
        device: &str,
        fd: Descriptor,
        offset: u64,
        length: u64,
    ) -> Result<Buffer, ShimError> {
        self.0.functions.import(device, fd, offset, length)
    }

    /// Identifies a part of a file: an artefact of this shim or a file of its vendor's tools,
    /// including files that this shim did not write. Returns `None` for other bytes. The file must
    /// not be changed meanwhile.
    pub fn inspect(
        &self,
        file: &File,
        part: std::ops::Range<u64>,
    ) -> Result<Option<ArtefactInspection>, ShimError> {
        let found = file.metadata().map_err(|error| ShimError::Argument(error.to_string()))?.len();
        let length = match part.end.checked_sub(part.start) {
            Some(length) if part.end <= found => length,
            _ => {
                let (first, end) = (part.start, part.end);
                let reason = format!("bytes {first} to {end} are not within the file of {found} bytes");
                return Err(ShimError::Argument(reason));
            }
        };
        let reported = self.timed("inspect", |functions| functions.inspect(file, part.start, length))?;
        let wrong = |reason: &str| ShimError::contract(&self.0.name, "inspect", reason);
        let mut reported = reported.into_iter();
        match (reported.next(), reported.next()) {
            (None, _) => Ok(None),
            (Some((format, document)), None) => {
                let kebab = (1..=64).contains(&format.len())
                    && format
                        .bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
                if !kebab {
                    return Err(wrong("the format must be 1 to 64 characters of a-z, 0-9 and `-`"));
                }
                let mut document: serde_json::Value = serde_json::from_str(&document)
                    .map_err(|error| wrong(&format!("the document is not JSON: {error}")))?;
                if !document.is_object() {
                    return Err(wrong("the document is not a JSON object"));
                }
                document.sort_all_objects();
                Ok(Some(ArtefactInspection { format, document }))
            }
            (Some(_), Some(_)) => Err(wrong("more than one inspection")),
        }
    }

    /// Like [`ShimInstance::inspect`], but for the payload of an artefact.
    pub fn inspect_artefact(&self, artefact: &Artefact) -> Result<Option<ArtefactInspection>, ShimError> {
        match artefact.payload_section() {
            Some(payload) => {
                let (start, end) = (payload.offset(), payload.offset() + payload.length());
                self.inspect(payload.file(), start..end)
            }
            None => Ok(None),
        }
    }

    /// Makes a lost device usable again. Its shards and buffers must have been dropped. A worker
    /// that ended is restarted.
    pub fn recover(&self, device: &str) -> Result<(), ShimError> {
        self.timed("recover", |functions| functions.recover(device))
    }
}

/// Reports the measurements for a loaded shard, except for flags that the caller set.
struct MeasuredBy {
    instance: ShimInstance,
    device: String,
    given: Vec<String>,
}

impl Measures for MeasuredBy {
    fn flags(&self) -> Result<Vec<MeasuredFlag>, ShimError> {
        let mut flags = self.instance.measured(&self.device)?;
        flags.retain(|measured| !self.given.contains(&measured.flag.name));
        Ok(flags)
    }

    fn keep(&self) -> Result<(), ShimError> {
        self.instance.found(&self.device).map(|_| ())
    }
}
