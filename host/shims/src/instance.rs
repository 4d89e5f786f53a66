//! An open instance: the questions one can ask it, and what an answer must be, wherever the shim
//! runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shardwright_graph::{EntryGraph, Verdict, Weight};
use shardwright_vocabulary::{Compatibility, Device, Estimate, Flag, FlagSchema, Limit};

use crate::artefact::{Artefact, Place};
use crate::buffer::Buffer;
use crate::chip::{self, Chip};
use crate::compile::{Compilation, Output};
use crate::error::ShimError;
use crate::isolated::{Launcher, Remote, RemoteShard, Running};
use crate::loaded::{LoadedShard, ShardEngine};
use crate::local::{Local, LocalShard, contract};
use crate::shim::{Inspection, Shim, lock};
use crate::watch::Watch;
use crate::work_order::WorkOrder;

/// What an instance answers, in the shim's words: nothing is judged yet.
pub(crate) trait Answers {
    fn chip(&self, chip: &Chip) -> Result<(), ShimError>;
    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>, ShimError>;
    fn limits(&self, device: &str) -> Result<Vec<Limit>, ShimError>;
    fn flags(&self, device: &str) -> Result<Vec<FlagSchema>, ShimError>;
    fn check(
        &self,
        device: &str,
        entry: &EntryGraph,
        weights: &[Weight],
    ) -> Result<Vec<(u64, Verdict)>, ShimError>;
    /// `cancelled` is asked where the call can be ended.
    fn estimate(
        &self,
        device: &str,
        entry: &EntryGraph,
        weights: &[Weight],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Estimate>, ShimError>;
    fn compile(&self, device: &str, order: &WorkOrder, output: &mut dyn Output) -> Result<(), ShimError>;
    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Vec<Compatibility>, ShimError>;
    fn recover(&self, device: &str) -> Result<(), ShimError>;
    /// Format and document of the bytes of a file from `offset` on.
    fn inspect(&self, file: &File, offset: u64, length: u64) -> Result<Vec<(String, String)>, ShimError>;
}

/// An open instance of a shim; cloning shares it. It closes when the last clone, shard and buffer
/// is gone.
#[derive(Clone)]
pub struct ShimInstance(Arc<Inner>);

struct Inner {
    shim: Shim,
    name: String,
    engine: Engine,
    times: Mutex<BTreeMap<&'static str, CallTimes>>,
    /// Chips that were made known, by name, as far as the shim reads of them.
    chips: Mutex<BTreeMap<String, Chip>>,
    /// The chip of each device that was told of.
    chip_of: Mutex<BTreeMap<String, String>>,
}

enum Engine {
    Local(Arc<Local>),
    Remote(Arc<Remote>),
}

/// How often a function of the contract was called, and how long that took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// Calls, failed ones too.
    pub calls: u64,
    /// All of them together.
    pub total: Duration,
    /// The longest of them.
    pub longest: Duration,
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
    pub(crate) fn in_process(
        shim: &Shim,
        name: &str,
        options: &[(String, String)],
    ) -> Result<ShimInstance, ShimError> {
        let local = Local::open(shim, name, options)?;
        Ok(ShimInstance::new(shim, name, Engine::Local(local)))
    }

    pub(crate) fn in_worker(
        shim: &Shim,
        name: &str,
        options: &[(String, String)],
        isolation: &Launcher,
    ) -> Result<ShimInstance, ShimError> {
        let remote = Remote::open(shim, name, options, isolation)?;
        Ok(ShimInstance::new(shim, name, Engine::Remote(remote)))
    }

    fn new(shim: &Shim, name: &str, engine: Engine) -> ShimInstance {
        let times = Mutex::new(BTreeMap::new());
        let (chips, chip_of) = (Mutex::default(), Mutex::default());
        let (shim, name) = (shim.clone(), name.to_owned());
        ShimInstance(Arc::new(Inner { shim, name, engine, times, chips, chip_of }))
    }

    fn answers(&self) -> &dyn Answers {
        match &self.0.engine {
            Engine::Local(local) => &**local,
            Engine::Remote(remote) => &**remote,
        }
    }

    /// Name given when it was opened.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The shim it is an instance of.
    pub fn shim(&self) -> &Shim {
        &self.0.shim
    }

    /// Where a shard that it loads on `device` runs.
    pub fn place(&self, device: &str) -> shardwright_vocabulary::Place {
        shardwright_vocabulary::Place {
            instance: self.0.name.clone(),
            shim: self.0.shim.name().to_owned(),
            device: device.to_owned(),
        }
    }

    /// Whether two handles are the same instance.
    pub fn same(&self, other: &ShimInstance) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Where it runs: in this process, or in which worker.
    pub fn running(&self) -> Running {
        match &self.0.engine {
            Engine::Local(_) => Running::InProcess,
            Engine::Remote(remote) => Running::Worker(remote.report()),
        }
    }

    /// Calls so far, by function of the contract.
    pub fn call_times(&self) -> BTreeMap<&'static str, CallTimes> {
        lock(&self.0.times).clone()
    }

    pub(crate) fn timed<T>(&self, function: &'static str, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        let time = start.elapsed();
        let mut times = lock(&self.0.times);
        let times = times.entry(function).or_default();
        times.calls += 1;
        times.total += time;
        times.longest = times.longest.max(time);
        result
    }

    /// Makes a chip known, before its devices are asked for: of its facts those that the shim
    /// reads. A shim that reads none is not asked.
    ///
    /// # Errors
    /// [`ShimError::Chip`] for a fact that is missing, is not of its kind, or that the shim says
    /// against.
    pub fn know(&self, chip: &Chip) -> Result<(), ShimError> {
        let shim = &self.0.shim;
        if shim.chip_facts().is_empty() {
            return Ok(());
        }
        let chip = chip::read_by(shim.chip_facts(), shim.name(), chip)
            .map_err(|error| ShimError::Chip(Box::new(error)))?;
        self.timed("chip", || self.answers().chip(&chip)).map_err(|error| chip::about(&chip.name, error))?;
        lock(&self.0.chips).insert(chip.name.clone(), chip);
        Ok(())
    }

    /// What the shim read of the chip of a device, if it was made known.
    pub fn chip_of(&self, device: &str) -> Option<Chip> {
        let name = lock(&self.0.chip_of).get(device)?.clone();
        lock(&self.0.chips).get(&name).cloned()
    }

    /// Devices of this machine, or with `soc` those it compiles for offline or simulates. None is
    /// an answer, not an error.
    ///
    /// # Errors
    /// [`ShimError::Chip`] for a chip of which the vendor's library knows otherwise than its
    /// profile says.
    pub fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>, ShimError> {
        let told = self.timed("devices", || self.answers().devices(soc));
        let told = told.map_err(|error| match soc {
            Some(soc) => chip::about(soc, error),
            None => error,
        })?;
        let mut chip_of = lock(&self.0.chip_of);
        for device in &told {
            if let Some(soc) = &device.soc {
                chip_of.insert(device.name.clone(), soc.clone());
            }
        }
        Ok(told)
    }

    /// What the device cannot exceed.
    pub fn limits(&self, device: &str) -> Result<Vec<Limit>, ShimError> {
        self.timed("limits", || self.answers().limits(device))
    }

    /// Compiler flags of the device.
    pub fn flags(&self, device: &str) -> Result<Vec<FlagSchema>, ShimError> {
        self.timed("flags", || self.answers().flags(device))
    }

    /// One verdict per node, in the graph's order. `weights` are those the graph's constants index;
    /// their bytes are not shown.
    pub fn check(
        &self,
        device: &str,
        entry: &EntryGraph,
        weights: &[Weight],
    ) -> Result<Vec<Verdict>, ShimError> {
        let told = self.timed("check", || self.answers().check(device, entry, weights))?;
        let wrong = |reason: String| contract(&self.0.name, "check", reason);
        let mut verdicts: Vec<Option<Verdict>> = vec![None; entry.nodes.len()];
        for (node, verdict) in told {
            let place = usize::try_from(node)
                .ok()
                .and_then(|node| verdicts.get_mut(node))
                .ok_or_else(|| wrong(format!("a verdict on node {node}")))?;
            if place.replace(verdict).is_some() {
                return Err(wrong(format!("two verdicts on node {node}")));
            }
        }
        let unsaid = || Verdict::refused("the shim gave no verdict");
        Ok(verdicts.into_iter().map(|verdict| verdict.unwrap_or_else(unsaid)).collect())
    }

    /// Time of one run with all rows; none when the shim does not know.
    pub fn estimate(
        &self,
        device: &str,
        entry: &EntryGraph,
        weights: &[Weight],
    ) -> Result<Option<Estimate>, ShimError> {
        self.estimate_watched(device, entry, weights, &|| false)
    }

    /// [`ShimInstance::estimate`] that ends with a cancelled error soon after `cancelled` is true.
    /// In this process it ends only when the shim has answered.
    pub fn estimate_watched(
        &self,
        device: &str,
        entry: &EntryGraph,
        weights: &[Weight],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<Estimate>, ShimError> {
        let ask = || self.answers().estimate(device, entry, weights, cancelled);
        let mut told = self.timed("estimate", ask)?;
        let wrong = |reason: String| contract(&self.0.name, "estimate", reason);
        match (told.pop(), told.len()) {
            (Some(estimate), 0) => {
                let nodes = entry.nodes.len() as u64;
                match estimate.uncosted.iter().find(|&&node| node >= nodes) {
                    None => Ok(Some(estimate)),
                    Some(node) => Err(wrong(format!("node {node} of {nodes}"))),
                }
            }
            (None, _) => Ok(None),
            _ => Err(wrong("more than one estimate".to_owned())),
        }
    }

    /// Compiles a work order. The artefact appears whole or not at all; every flag of the order
    /// gets a verdict in it.
    pub fn compile(
        &self,
        device: &str,
        order: &WorkOrder,
        place: Place<'_>,
        watch: &mut dyn Watch,
    ) -> Result<Artefact, ShimError> {
        let entries = order.interfaces()?;
        let mut compilation = Compilation::new(place, watch)?;
        let result = self.timed("compile", || self.answers().compile(device, order, &mut compilation));
        let description = self.0.shim.description();
        let chip = (self.chip_of(device), self.0.shim.chip_facts());
        compilation.finish(result, order, entries, (&self.0.name, device, description), chip)
    }

    /// Whether this instance can use an artefact, judged by its head alone.
    pub fn compatibility(&self, device: &str, artefact: &Artefact) -> Result<Compatibility, ShimError> {
        if artefact.head().shim != self.0.shim.name() {
            return Ok(Compatibility::NotMine(format!("made by shim `{}`", artefact.head().shim)));
        }
        let head = artefact.shim_head();
        let mut told = self.timed("compatibility", || self.answers().compatibility(device, head))?;
        match (told.pop(), told.len()) {
            (Some(answer), 0) => Ok(answer),
            _ => Err(contract(&self.0.name, "compatibility", "not exactly one answer")),
        }
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

    /// [`ShimInstance::load`] with flags that take effect then, each of which gets a verdict
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
        let (engine, told) = self.timed("load", || match &self.0.engine {
            Engine::Local(local) => {
                let shard = LocalShard::load(local, device, artefact, options)?;
                let told = (shard.told()?, shard.told_flags()?);
                Ok::<_, ShimError>((ShardEngine::Local(shard), told))
            }
            Engine::Remote(remote) => {
                let (shard, told) = RemoteShard::load(remote, device, artefact, options)?;
                Ok((ShardEngine::Remote(shard), told))
            }
        })?;
        LoadedShard::new(self, device, artefact, engine, told, flags)
    }

    /// Allocates memory the device can see, zeroed: the shim's when it has its own, else the
    /// process's; with a worker, memory that it shares.
    pub fn allocate(&self, device: &str, length: u64, alignment: u64) -> Result<Buffer, ShimError> {
        match &self.0.engine {
            Engine::Local(local) => Buffer::allocate(local, device, length, alignment),
            Engine::Remote(remote) => remote.allocate(length, alignment),
        }
    }

    /// Makes a dma-buf visible to the device. The descriptor must stay open until the buffer is
    /// gone. A worker takes none.
    pub fn import_dma_buf(
        &self,
        device: &str,
        fd: OwnedFd,
        offset: u64,
        length: u64,
    ) -> Result<Buffer, ShimError> {
        match &self.0.engine {
            Engine::Local(local) => Buffer::import(local, device, fd, offset, length),
            Engine::Remote(_) => {
                Err(ShimError::Missing { shim: self.0.name.clone(), function: "buffer_import" })
            }
        }
    }

    /// What a part of a file is: an artefact of this shim or a file of its vendor's tools, whoever
    /// made it; none when it is neither. The file must not be changed meanwhile.
    pub fn inspect(&self, file: &File, part: std::ops::Range<u64>) -> Result<Option<Inspection>, ShimError> {
        let found = file.metadata().map_err(|error| ShimError::Argument(error.to_string()))?.len();
        let length = match part.end.checked_sub(part.start) {
            Some(length) if part.end <= found => length,
            _ => {
                let reason = format!("bytes {} to {} of a file of {found}", part.start, part.end);
                return Err(ShimError::Argument(reason));
            }
        };
        let told = self.timed("inspect", || self.answers().inspect(file, part.start, length))?;
        let wrong = |reason: &str| contract(&self.0.name, "inspect", reason);
        let mut told = told.into_iter();
        match (told.next(), told.next()) {
            (None, _) => Ok(None),
            (Some((format, document)), None) => {
                let kebab = (1..=64).contains(&format.len())
                    && format
                        .bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
                if !kebab {
                    return Err(wrong("its format is not 1 to 64 of a-z, 0-9, `-`"));
                }
                let document: serde_json::Value = serde_json::from_str(&document)
                    .map_err(|error| wrong(&format!("its document is not JSON: {error}")))?;
                if !document.is_object() {
                    return Err(wrong("its document is not a JSON object"));
                }
                Ok(Some(Inspection { format, document }))
            }
            (Some(_), Some(_)) => Err(wrong("more than one inspection")),
        }
    }

    /// [`ShimInstance::inspect`] of what the shim's compiler made of a work order.
    pub fn inspect_artefact(&self, artefact: &Artefact) -> Result<Option<Inspection>, ShimError> {
        let start = artefact.payload_offset();
        self.inspect(artefact.file(), start..start.saturating_add(artefact.head().payload_length))
    }

    /// Makes a lost device usable again. Its shards and buffers must be gone. A worker that ended
    /// is started anew.
    pub fn recover(&self, device: &str) -> Result<(), ShimError> {
        self.timed("recover", || self.answers().recover(device))
    }
}
