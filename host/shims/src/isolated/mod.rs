//! An instance whose shim runs in a worker process: the same questions, asked over a socket, under
//! caps of time and memory.
//!
//! What this gives: a shim that crashes, hangs, exits, grows without end or writes past a buffer
//! costs its worker and a typed error; the host, its descriptors and its files are as before. What
//! it does not give: protection from malice. A worker has the user's rights, and while a run writes
//! a buffer the host must not read it, as in process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardwright_graph::{EntryGraph, Verdict, Weight};
use shardwright_vocabulary::{Compatibility, Device, Estimate, FlagSchema, Limit};

use crate::buffer::Buffer;
use crate::chip::Chip;
use crate::compile::Output;
use crate::error::{LoadError, ShimError};
use crate::instance::Answers;
use crate::os;
use crate::shim::{Facts, Held, Shim, lock};
use crate::work_order::WorkOrder;

mod end;
mod process;
pub(crate) mod protocol;
mod shard;
mod shared;

pub use end::{Touched, WorkerEnd, WorkerFailure};
use process::{Call, Incoming, Step, Worker};
pub(crate) use process::{LINE_LIMIT, SIGNAL_SIZE, Signal};
pub use protocol::entry_identity;
use protocol::{Answer, Ask, Library, Message, shown_entry};
pub(crate) use shard::{RemoteCanceller, RemoteShard};
pub(crate) use shared::SharedMemory;

/// File name of the worker program.
const WORKER: &str = "shardwright-worker";

/// Names the worker program for every program that looks for one.
const WORKER_VARIABLE: &str = "SHARDWRIGHT_WORKER";

/// Says how much memory a worker may have.
const MEMORY_VARIABLE: &str = "SHARDWRIGHT_WORKER_MEMORY";

/// Says how many seconds one run in a worker may take.
const RUN_VARIABLE: &str = "SHARDWRIGHT_WORKER_RUN_SECONDS";

/// With less the worker program itself does not start.
const LEAST_MEMORY: u64 = 64 << 20;

/// Of a machine that does not say how much it has.
const UNKNOWN_MEMORY: u64 = 16 << 30;

/// How an instance is to be isolated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// The program `shardwright-worker`, of this release.
    pub worker: PathBuf,
    /// What a worker cannot exceed.
    pub caps: Caps,
}

impl Launcher {
    /// With the worker that [`find_worker`] finds and the usual caps, as far as
    /// `SHARDWRIGHT_WORKER_MEMORY` and `SHARDWRIGHT_WORKER_RUN_SECONDS` say nothing else.
    pub fn found() -> Result<Launcher, ShimError> {
        let named = |variable| std::env::var_os(variable).filter(|named| !named.is_empty());
        let mut caps = Caps::default();
        if let Some(named) = named(MEMORY_VARIABLE) {
            caps = caps.with_memory(&named.to_string_lossy())?;
        }
        if let Some(named) = named(RUN_VARIABLE) {
            caps = caps.with_run_seconds(&named.to_string_lossy())?;
        }
        Ok(Launcher { worker: find_worker()?, caps })
    }
}

/// What a worker cannot exceed. One that does is killed, and the call fails with
/// [`ShimError::Worker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// For each question but estimating, compiling, loading and running, and for starting.
    pub probe_time: Duration,
    /// For one compilation or estimate.
    pub compile_time: Duration,
    /// For loading a shard, and for one run, whatever its own deadline.
    pub run_time: Duration,
    /// How long a worker that was asked to stop may take: a cancelled call, a run past its
    /// deadline, closing.
    pub grace: Duration,
    /// Private memory in bytes. Mapped files and shared memory do not count.
    pub memory_bytes: u64,
}

impl Caps {
    /// With as much memory as `text` says: bytes, or a number of `MiB` or `GiB`.
    fn with_memory(self, text: &str) -> Result<Caps, ShimError> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit: Option<u64> = match &text[digits.len()..] {
            "" => Some(1),
            "MiB" => Some(1 << 20),
            "GiB" => Some(1 << 30),
            _ => None,
        };
        let bytes =
            digits.trim().parse::<u64>().ok().zip(unit).and_then(|(count, unit)| count.checked_mul(unit));
        match bytes.filter(|bytes| *bytes >= LEAST_MEMORY) {
            Some(memory_bytes) => Ok(Caps { memory_bytes, ..self }),
            None => Err(ShimError::Argument(format!(
                "{MEMORY_VARIABLE} is `{text}`: it takes bytes, MiB or GiB such as `20GiB`, at least {} MiB",
                LEAST_MEMORY >> 20
            ))),
        }
    }

    /// With as much time for loading and for one run as `text` says, in seconds.
    fn with_run_seconds(self, text: &str) -> Result<Caps, ShimError> {
        const MOST: u64 = 7 * 24 * 3600;
        match text.parse::<u64>().ok().filter(|seconds| (1..=MOST).contains(seconds)) {
            Some(seconds) => Ok(Caps { run_time: Duration::from_secs(seconds), ..self }),
            None => Err(ShimError::Argument(format!(
                "{RUN_VARIABLE} is `{text}`: it takes whole seconds from 1 to {MOST}"
            ))),
        }
    }

    /// Seven eighths of a machine's memory: beyond them it would begin to kill, and not the worker
    /// first.
    fn memory_of(machine: u64) -> u64 {
        match machine {
            0 => UNKNOWN_MEMORY,
            bytes => (bytes / 8 * 7).max(LEAST_MEMORY),
        }
    }
}

impl Default for Caps {
    /// Half a minute to answer, an hour to compile, two minutes to load or run, a second to obey;
    /// seven eighths of the machine's memory. A simulator may take longer for a run of a large
    /// shard, and a compiler was seen to take four times the bytes of what it makes:
    /// [`Isolation::found`] takes both from the environment.
    fn default() -> Self {
        Caps {
            probe_time: Duration::from_secs(30),
            compile_time: Duration::from_secs(3600),
            run_time: Duration::from_secs(120),
            grace: Duration::from_secs(1),
            memory_bytes: Caps::memory_of(os::memory_bytes()),
        }
    }
}

/// Where an instance runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Running {
    /// In this process: what its shim does, this process does.
    InProcess,
    /// In a worker.
    Worker(WorkerReport),
}

/// The worker of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerReport {
    /// Its process; none when it ended and nothing was asked since.
    pub pid: Option<u32>,
    /// Most memory it had resident, as far as known.
    pub peak_memory_bytes: Option<u64>,
    /// Workers started for the instance so far.
    pub started: u64,
}

/// The worker program: the one that `SHARDWRIGHT_WORKER` names, else the one beside this program.
pub fn find_worker() -> Result<PathBuf, ShimError> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name(WORKER));
    let named = std::env::var_os(WORKER_VARIABLE).filter(|named| !named.is_empty());
    match named.map(PathBuf::from).or_else(beside) {
        Some(path) if path.is_file() => Ok(path),
        Some(path) => Err(ShimError::NoWorker { looked: format!("`{}`", path.display()) }),
        None => Err(ShimError::NoWorker { looked: WORKER_VARIABLE.to_owned() }),
    }
}

/// Where a worker finds a shim.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// At its path.
    Library,
    /// In the program, under this name.
    Linked(&'static str),
}

fn library(path: &Path, expected: Option<&str>, origin: &Origin) -> Library {
    match origin {
        Origin::Linked(name) => Library::Linked((*name).to_owned()),
        Origin::Library => Library::File {
            path: std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_owned(),
            sha256: expected.map(str::to_owned),
        },
    }
}

/// Opens a library in a worker, asks who it is, and ends the worker.
pub(crate) fn ask_facts(
    path: &Path,
    expected: Option<&str>,
    isolation: &Launcher,
) -> Result<Facts, LoadError> {
    let name = path.display().to_string();
    let started = Worker::start(&name, isolation, library(path, expected, &Origin::Library), None);
    match started {
        Ok((_, facts)) => Ok(facts),
        Err(process::StartError::Refused { reason, message }) => {
            let reason = LoadError::known_reason(&reason).unwrap_or("refused");
            Err(LoadError::InWorker { path: path.to_owned(), reason, message })
        }
        Err(process::StartError::Failed(source)) => {
            Err(LoadError::Worker { path: path.to_owned(), source: Box::new(source) })
        }
    }
}

/// An instance and its worker, which is started when something is asked and there is none.
pub(crate) struct Remote {
    name: String,
    shim: Shim,
    options: Vec<(String, String)>,
    /// What was made known, and is again whenever a worker is started.
    chips: Mutex<Vec<Chip>>,
    isolation: Launcher,
    held: Arc<Held>,
    worker: Mutex<Option<Arc<Worker>>>,
    started: AtomicU64,
    compilations: AtomicU64,
    /// Whether the worker has compiled before; an estimate may be made by compiling.
    has_compiled: AtomicBool,
    /// Most memory that workers for one compilation had.
    compiled_peak: AtomicU64,
}

impl Remote {
    pub(crate) fn open(
        shim: &Shim,
        name: &str,
        options: &[(String, String)],
        isolation: &Launcher,
    ) -> Result<Arc<Remote>, ShimError> {
        if !isolation.worker.is_file() {
            return Err(ShimError::NoWorker { looked: format!("`{}`", isolation.worker.display()) });
        }
        let remote = Remote {
            name: name.to_owned(),
            shim: shim.clone(),
            options: options.to_vec(),
            chips: Mutex::new(Vec::new()),
            isolation: isolation.clone(),
            held: Arc::new(Held::take(shim, name)?),
            worker: Mutex::new(None),
            started: AtomicU64::new(0),
            compilations: AtomicU64::new(0),
            has_compiled: AtomicBool::new(false),
            compiled_peak: AtomicU64::new(0),
        };
        remote.worker()?;
        Ok(Arc::new(remote))
    }

    /// The worker; a new one when there is none or it ended.
    fn worker(&self) -> Result<Arc<Worker>, ShimError> {
        let mut held = lock(&self.worker);
        if let Some(worker) = &*held {
            match worker.ended() {
                None => return Ok(worker.clone()),
                Some(end) => {
                    tracing::warn!(instance = %self.name, "a new worker is started: the last one {end}");
                }
            }
        }
        // What the old one held is given back before the new one starts.
        *held = None;
        let worker = self.start()?;
        self.has_compiled.store(false, Ordering::Relaxed);
        *held = Some(worker.clone());
        Ok(worker)
    }

    /// A new worker in which the shim is open.
    fn start(&self) -> Result<Arc<Worker>, ShimError> {
        let library = library(self.shim.path(), self.shim.expected(), self.shim.origin());
        let (worker, facts) = Worker::start(&self.name, &self.isolation, library, Some(self.held.clone()))
            .map_err(|error| error.into_error(&self.name))?;
        self.started.fetch_add(1, Ordering::Relaxed);
        let told = &self.shim.facts().description;
        if (&facts.description.name, &facts.description.version) != (&told.name, &told.version) {
            let reason =
                format!("the library is now `{}` {}", facts.description.name, facts.description.version);
            return Err(ShimError::Contract { shim: self.name.clone(), function: "describe", reason });
        }
        let ask = Ask::Open { name: self.name.clone(), options: self.options.clone() };
        worker.ask("open", self.isolation.caps.probe_time, ask, done)?;
        for chip in lock(&self.chips).clone() {
            worker.ask("chip", self.isolation.caps.probe_time, Ask::Chip { chip }, done)?;
        }
        Ok(Arc::new(worker))
    }

    /// A worker that has compiled nothing yet. Equal orders give equal bytes only from equal
    /// beginnings, where a vendor's compiler numbers what it makes through the life of its process;
    /// and what it held back goes with the process.
    fn fresh(&self) -> Result<Arc<Worker>, ShimError> {
        let worker = match self.has_compiled.load(Ordering::Relaxed) {
            true => self.start()?,
            false => self.worker()?,
        };
        self.has_compiled.store(true, Ordering::Relaxed);
        Ok(worker)
    }

    pub(crate) fn report(&self) -> WorkerReport {
        let held = lock(&self.worker);
        let worker = held.as_ref();
        WorkerReport {
            pid: worker.filter(|worker| worker.ended().is_none()).map(|worker| worker.pid()),
            peak_memory_bytes: worker
                .and_then(|worker| worker.peak_memory_bytes())
                .max(Some(self.compiled_peak.load(Ordering::Relaxed)).filter(|peak| *peak > 0)),
            started: self.started.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn allocate(&self, length: u64, alignment: u64) -> Result<Buffer, ShimError> {
        // It belongs to one worker and dies with it.
        let owner = self.worker()?;
        Ok(Buffer::shared(SharedMemory::new(length, alignment, Some(owner))?))
    }

    fn probe<T>(
        &self,
        function: &'static str,
        ask: Ask,
        take: impl FnMut(Answer) -> Option<T>,
    ) -> Result<T, ShimError> {
        self.worker()?.ask(function, self.isolation.caps.probe_time, ask, take)
    }
}

fn done(answer: Answer) -> Option<()> {
    matches!(answer, Answer::Done).then_some(())
}

impl Answers for Remote {
    fn chip(&self, chip: &Chip) -> Result<(), ShimError> {
        self.probe("chip", Ask::Chip { chip: chip.clone() }, done)?;
        let mut chips = lock(&self.chips);
        chips.retain(|held| held.name != chip.name);
        chips.push(chip.clone());
        Ok(())
    }

    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>, ShimError> {
        let ask = Ask::Devices { soc: soc.map(str::to_owned) };
        self.probe("devices", ask, |answer| match answer {
            Answer::Devices(told) => Some(told),
            _ => None,
        })
    }

    fn limits(&self, device: &str) -> Result<Vec<Limit>, ShimError> {
        let ask = Ask::Limits { device: device.to_owned() };
        self.probe("limits", ask, |answer| match answer {
            Answer::Limits(told) => Some(told),
            _ => None,
        })
    }

    fn flags(&self, device: &str) -> Result<Vec<FlagSchema>, ShimError> {
        let ask = Ask::Flags { device: device.to_owned() };
        self.probe("flags", ask, |answer| match answer {
            Answer::Flags(told) => Some(told),
            _ => None,
        })
    }

    fn check(
        &self,
        device: &str,
        entry: &EntryGraph,
        weights: &[Weight],
    ) -> Result<Vec<(u64, Verdict)>, ShimError> {
        let (entry, weights) = shown_entry(entry, weights);
        let ask = Ask::Check { device: device.to_owned(), entry, weights };
        let told = self.probe("check", ask, |answer| match answer {
            Answer::Verdicts(told) => Some(told),
            _ => None,
        })?;
        let verdict = |(node, accepted, reason)| (node, Verdict { accepted, reason });
        Ok(told.into_iter().map(verdict).collect())
    }

    fn estimate(
        &self,
        device: &str,
        entry: &EntryGraph,
        weights: &[Weight],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Estimate>, ShimError> {
        let (entry, weights) = shown_entry(entry, weights);
        let ask = Ask::Estimate { device: device.to_owned(), entry, weights };
        // An estimate may be made by compiling, and there is no way to ask a shim to give one up:
        // its worker ends.
        let call = Call {
            cancelled: Some(&mut || cancelled()),
            ..Call::plain("estimate", self.isolation.caps.compile_time)
        };
        let worker = self.worker()?;
        self.has_compiled.store(true, Ordering::Relaxed);
        worker.ask_with(call, ask, &mut |incoming| match incoming {
            Incoming::Message(Message::Answer(Answer::Estimates(told))) => Step::Done(told),
            _ => Step::Unexpected,
        })
    }

    fn compile(&self, device: &str, order: &WorkOrder, output: &mut dyn Output) -> Result<(), ShimError> {
        let worker = self.fresh()?;
        let number = self.compilations.fetch_add(1, Ordering::Relaxed) + 1;
        let file = reopened(order.file()).map_err(|error| worker.host_failure("compile", &error))?;
        let ask = Ask::Compile { device: device.to_owned(), number };
        let mut has_head = false;
        // The same output is asked whether to stop and given what arrives.
        let output = std::cell::RefCell::new(output);
        let call = Call {
            function: "compile",
            time: self.isolation.caps.compile_time,
            descriptors: vec![file.into()],
            cancelled: Some(&mut || output.borrow_mut().cancelled()),
            cancel: Some(process::Signal::Compile { number }),
            touched: process::UNTOUCHED,
        };
        let result = worker.ask_with(call, ask, &mut |incoming| {
            let mut output = output.borrow_mut();
            match incoming {
                // A host that cannot write cancels; what still comes is read and dropped.
                Incoming::Bytes(bytes) => drop(output.write(&bytes)),
                Incoming::Head(bytes) if !has_head => {
                    has_head = true;
                    output.head(&bytes);
                }
                Incoming::Head(_) => return Step::Unexpected,
                Incoming::Message(Message::Progress { per_mille, stage }) => {
                    output.progress(per_mille, &stage);
                }
                Incoming::Message(Message::Flag { name, verdict, evidence }) => {
                    output.flag(name, verdict, evidence);
                }
                Incoming::Message(Message::Placement(placement)) => output.placement(placement),
                Incoming::Message(Message::MadeFor { fact, value }) => output.made_for(fact, value),
                Incoming::Message(Message::Answer(Answer::Done)) => return Step::Done(()),
                Incoming::Message(_) => return Step::Unexpected,
            }
            Step::More
        });
        self.compiled_peak.fetch_max(worker.peak_memory_bytes().unwrap_or(0), Ordering::Relaxed);
        result
    }

    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Vec<Compatibility>, ShimError> {
        let ask = Ask::Compatibility { device: device.to_owned(), head: head.to_vec() };
        self.probe("compatibility", ask, |answer| match answer {
            Answer::Compatibilities(told) => Some(told),
            _ => None,
        })
    }

    fn inspect(&self, file: &File, offset: u64, length: u64) -> Result<Vec<(String, String)>, ShimError> {
        let worker = self.worker()?;
        let file = reopened(file).map_err(|error| worker.host_failure("inspect", &error))?;
        let time = self.isolation.caps.probe_time;
        let call = Call { descriptors: vec![file.into()], ..Call::plain("inspect", time) };
        worker.ask_with(call, Ask::Inspect { offset, length }, &mut |incoming| match incoming {
            Incoming::Message(Message::Answer(Answer::Inspections(told))) => Step::Done(told),
            _ => Step::Unexpected,
        })
    }

    fn recover(&self, device: &str) -> Result<(), ShimError> {
        let ended = lock(&self.worker).as_ref().is_none_or(|worker| worker.ended().is_some());
        if ended {
            // A new process is as good as any recovery.
            return self.worker().map(drop);
        }
        self.probe("recover", Ask::Recover { device: device.to_owned() }, done)
    }
}

/// The same file for reading only, whether it still has a name or not.
fn reopened(file: &std::fs::File) -> std::io::Result<std::fs::File> {
    use std::os::fd::AsRawFd;
    std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_workers_is_a_number_with_a_unit() {
        let memory = |text: &str| Caps::default().with_memory(text).map(|caps| caps.memory_bytes);
        for (text, bytes) in [("20GiB", 20 << 30), ("512MiB", 512 << 20), ("100000000", 100_000_000)] {
            assert_eq!(memory(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "GiB", "20 GB", "-1", "1.5GiB", "1MiB", "99999999999GiB", "20Gi\u{e4}"] {
            let error = memory(text).unwrap_err();
            assert!(
                matches!(&error, ShimError::Argument(why) if why.contains("SHARDWRIGHT_WORKER_MEMORY")),
                "{text}"
            );
        }
    }

    #[test]
    fn a_worker_never_may_have_what_the_machine_does_not() {
        for (machine, cap) in
            [(8 << 30, 7 << 30), (16 << 30, 14 << 30), (64 << 30, 56 << 30), (1 << 20, LEAST_MEMORY)]
        {
            assert_eq!(Caps::memory_of(machine), cap);
        }
        assert_eq!(Caps::memory_of(0), UNKNOWN_MEMORY);
        assert!(Caps::default().memory_bytes < os::memory_bytes());
    }

    #[test]
    fn the_time_of_runs_is_a_number_of_seconds() {
        let caps = Caps::default().with_memory("512MiB").unwrap().with_run_seconds("3600").unwrap();
        assert_eq!((caps.run_time, caps.memory_bytes), (Duration::from_secs(3600), 512 << 20));
        for text in ["", "0", "-1", "1.5", "10m", "99999999999"] {
            let error = Caps::default().with_run_seconds(text).unwrap_err();
            assert!(
                matches!(&error, ShimError::Argument(why) if why.contains("SHARDWRIGHT_WORKER_RUN_SECONDS")),
                "{text}"
            );
        }
    }
}
