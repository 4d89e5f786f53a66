//! The worker of an instance. Starts and restarts it, and repeats earlier announcements to a new
//! one.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde::de::DeserializeOwned;
use shardwright_shims::{Buffer, Chip, Claim, Running, Shim, ShimError, WorkerReport};

use crate::launcher::Launcher;
use crate::lock;
use crate::process::{self, Worker};
use crate::protocol::{Ask, Library};
use crate::shared::SharedMemory;

/// An instance and its worker, which is started by the first request that needs it.
pub(crate) struct Remote {
    pub(crate) name: String,
    shim: Shim,
    options: Vec<(String, String)>,
    /// Announced chips. They are announced again to every new worker.
    pub(crate) chips: Mutex<Vec<Chip>>,
    pub(crate) launcher: Launcher,
    claim: Arc<Claim>,
    pub(crate) worker: Mutex<Option<Arc<Worker>>>,
    started: AtomicU64,
    pub(crate) compilations: AtomicU64,
    /// Whether the worker has compiled before, possibly for an estimate.
    pub(crate) has_compiled: AtomicBool,
    /// Peak memory of workers for one compilation.
    pub(crate) compiled_peak: AtomicU64,
}

impl Remote {
    pub(crate) fn open(
        shim: &Shim,
        name: &str,
        options: &[(String, String)],
        launcher: &Launcher,
        claim: Claim,
    ) -> Result<Arc<Remote>, ShimError> {
        let remote = Remote {
            name: name.to_owned(),
            shim: shim.clone(),
            options: options.to_vec(),
            chips: Mutex::new(Vec::new()),
            launcher: launcher.clone(),
            claim: Arc::new(claim),
            worker: Mutex::new(None),
            started: AtomicU64::new(0),
            compilations: AtomicU64::new(0),
            has_compiled: AtomicBool::new(false),
            compiled_peak: AtomicU64::new(0),
        };
        remote.worker()?;
        Ok(Arc::new(remote))
    }

    /// Returns the running worker, or starts a new one.
    pub(crate) fn worker(&self) -> Result<Arc<Worker>, ShimError> {
        let mut current = lock(&self.worker);
        if let Some(worker) = &*current {
            match worker.ended() {
                None => return Ok(worker.clone()),
                Some(end) => {
                    tracing::info!(instance = %self.name, "a new worker is started: the last one {end}");
                }
            }
        }
        // The resources of the old worker are released before the new one starts.
        *current = None;
        let worker = self.start()?;
        self.has_compiled.store(false, Ordering::Relaxed);
        *current = Some(worker.clone());
        Ok(worker)
    }

    /// Starts a new worker and opens the shim in it.
    fn start(&self) -> Result<Arc<Worker>, ShimError> {
        let library = match self.shim.linked_name() {
            Some(name) => Library::Linked(name.to_owned()),
            None => Library::file(self.shim.path(), self.shim.sha256()),
        };
        let started = Worker::start(&self.name, &self.launcher, library, Some(self.claim.clone()))?;
        let (worker, facts) =
            started.map_err(|refusal| process::start_failure(&self.name, "open", refusal.message, None))?;
        self.started.fetch_add(1, Ordering::Relaxed);
        let (now, reported) = (&facts.description, self.shim.description());
        if (&now.name, &now.version) != (&reported.name, &reported.version) {
            let reason = format!("the library has changed to `{}` {}", now.name, now.version);
            return Err(ShimError::contract(&self.name, "describe", reason));
        }
        let time = self.launcher.caps.probe_time;
        worker.ask::<()>(
            "open",
            time,
            Ask::Open { name: self.name.clone(), options: self.options.clone() },
        )?;
        for chip in lock(&self.chips).clone() {
            worker.ask::<()>("chip", time, Ask::Chip { chip })?;
        }
        Ok(Arc::new(worker))
    }

    /// Returns a worker that has not compiled yet. Equal work orders give equal bytes only in fresh
    /// processes, since a vendor's compiler may number objects across the life of its process.
    /// Memory that it retained is freed with the process.
    pub(crate) fn fresh(&self) -> Result<Arc<Worker>, ShimError> {
        let worker = match self.has_compiled.load(Ordering::Relaxed) {
            true => self.start()?,
            false => self.worker()?,
        };
        self.has_compiled.store(true, Ordering::Relaxed);
        Ok(worker)
    }

    /// Allocates memory that belongs to one worker and is lost with it.
    pub(crate) fn allocate(&self, length: u64, alignment: u64) -> Result<Buffer, ShimError> {
        let owner = self.worker()?;
        Ok(Buffer::new(SharedMemory::new(length, alignment, Some(owner))?))
    }

    pub(crate) fn running(&self) -> Running {
        let current = lock(&self.worker);
        let worker = current.as_ref();
        Running::Worker(WorkerReport {
            pid: worker.filter(|worker| worker.ended().is_none()).map(|worker| worker.pid()),
            peak_memory_bytes: worker
                .and_then(|worker| worker.peak_memory_bytes())
                .max(Some(self.compiled_peak.load(Ordering::Relaxed)).filter(|peak| *peak > 0)),
            started: self.started.load(Ordering::Relaxed),
        })
    }

    pub(crate) fn probe<T: DeserializeOwned>(
        &self,
        function: &'static str,
        ask: Ask,
    ) -> Result<T, ShimError> {
        self.worker()?.ask(function, self.launcher.caps.probe_time, ask)
    }
}

/// Reopens the same file for reading only, even if it has no name any more.
pub(crate) fn reopened(file: &File) -> std::io::Result<File> {
    use std::os::fd::AsRawFd;
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
