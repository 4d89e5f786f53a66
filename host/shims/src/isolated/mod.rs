//! An instance whose shim runs in a worker process: the same questions, asked over a socket, under caps of time and memory.
//!
//! What this gives: a shim that crashes, hangs, exits, grows without end or writes past a buffer costs its worker and a typed
//! error; the host, its descriptors and its files are as before. What it does not give: protection from malice. A worker has
//! the user's rights, and while a run writes a buffer the host must not read it, as in process.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardwright_graph::target::{FlagSchema, Limit};
use shardwright_graph::{EntryGraph, Verdict, Weight};

use crate::buffer::Buffer;
use crate::compile::Output;
use crate::error::{LoadError, ShimError};
use crate::instance::Answers;
use crate::shim::{Compatibility, Device, Estimate, Facts, Held, Shim, lock};
use crate::work_order::WorkOrder;

mod end;
mod process;
pub(crate) mod protocol;
mod shard;
mod shared;

pub use end::{Touched, WorkerEnd, WorkerFailure};
use process::{Call, Incoming, Step, Worker};
pub(crate) use process::{LINE_LIMIT, SIGNAL_SIZE, Signal};
use protocol::{Answer, Ask, Library, Message, shown_entry};
pub(crate) use shard::{RemoteCanceller, RemoteShard};
pub(crate) use shared::SharedMemory;

/// File name of the worker program.
const WORKER: &str = "shardwright-worker";

/// Names the worker program for every program that looks for one.
const WORKER_VARIABLE: &str = "SHARDWRIGHT_WORKER";

/// How an instance is to be isolated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// The program `shardwright-worker`, of this release.
    pub worker: PathBuf,
    /// What a worker cannot exceed.
    pub caps: Caps,
}

impl Isolation {
    /// With the worker that [`find_worker`] finds and the usual caps.
    pub fn found() -> Result<Isolation, ShimError> {
        Ok(Isolation { worker: find_worker()?, caps: Caps::default() })
    }
}

/// What a worker cannot exceed. One that does is killed, and the call fails with [`ShimError::Worker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// For each question but compiling, loading and running, and for starting.
    pub probe_time: Duration,
    /// For one compilation.
    pub compile_time: Duration,
    /// For loading a shard, and for one run, whatever its own deadline.
    pub run_time: Duration,
    /// How long a worker that was asked to stop may take: a cancelled call, a run past its deadline, closing.
    pub grace: Duration,
    /// Private memory in bytes. Mapped files and shared memory do not count.
    pub memory_bytes: u64,
}

impl Default for Caps {
    /// Half a minute to answer, an hour to compile, two minutes to load or run, a second to obey, 16 GiB.
    fn default() -> Self {
        Caps {
            probe_time: Duration::from_secs(30),
            compile_time: Duration::from_secs(3600),
            run_time: Duration::from_secs(120),
            grace: Duration::from_secs(1),
            memory_bytes: 16 << 30,
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

fn library(path: &Path, origin: &Origin) -> Library {
    match origin {
        Origin::Linked(name) => Library::Linked((*name).to_owned()),
        Origin::Library => Library::File(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_owned()),
    }
}

/// Opens a library in a worker, asks who it is, and ends the worker.
pub(crate) fn ask_facts(path: &Path, isolation: &Isolation) -> Result<Facts, LoadError> {
    let name = path.display().to_string();
    let started = Worker::start(&name, isolation, library(path, &Origin::Library), None);
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
    isolation: Isolation,
    held: Arc<Held>,
    worker: Mutex<Option<Arc<Worker>>>,
    started: AtomicU64,
    compilations: AtomicU64,
}

impl Remote {
    pub(crate) fn open(
        shim: &Shim,
        name: &str,
        options: &[(String, String)],
        isolation: &Isolation,
    ) -> Result<Arc<Remote>, ShimError> {
        if !isolation.worker.is_file() {
            return Err(ShimError::NoWorker { looked: format!("`{}`", isolation.worker.display()) });
        }
        let remote = Remote {
            name: name.to_owned(),
            shim: shim.clone(),
            options: options.to_vec(),
            isolation: isolation.clone(),
            held: Arc::new(Held::take(shim, name)?),
            worker: Mutex::new(None),
            started: AtomicU64::new(0),
            compilations: AtomicU64::new(0),
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
        let library = library(self.shim.path(), self.shim.origin());
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
        let worker = Arc::new(worker);
        *held = Some(worker.clone());
        Ok(worker)
    }

    pub(crate) fn report(&self) -> WorkerReport {
        let held = lock(&self.worker);
        let worker = held.as_ref();
        WorkerReport {
            pid: worker.filter(|worker| worker.ended().is_none()).map(|worker| worker.pid()),
            peak_memory_bytes: worker.and_then(|worker| worker.peak_memory_bytes()),
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
    ) -> Result<Vec<Estimate>, ShimError> {
        let (entry, weights) = shown_entry(entry, weights);
        let ask = Ask::Estimate { device: device.to_owned(), entry, weights };
        self.probe("estimate", ask, |answer| match answer {
            Answer::Estimates(told) => Some(told),
            _ => None,
        })
    }

    fn compile(&self, device: &str, order: &WorkOrder, output: &mut dyn Output) -> Result<(), ShimError> {
        let worker = self.worker()?;
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
        worker.ask_with(call, ask, &mut |incoming| {
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
                Incoming::Message(Message::Answer(Answer::Done)) => return Step::Done(()),
                Incoming::Message(_) => return Step::Unexpected,
            }
            Step::More
        })
    }

    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Vec<Compatibility>, ShimError> {
        let ask = Ask::Compatibility { device: device.to_owned(), head: head.to_vec() };
        self.probe("compatibility", ask, |answer| match answer {
            Answer::Compatibilities(told) => Some(told),
            _ => None,
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
