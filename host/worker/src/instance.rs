//! Opens an instance in a worker. Each of its functions is a request over the worker's socket.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use shardwright_graph::NodeVerdict;
use shardwright_shims::{
    Artefact, Buffer, Chip, Claim, Facts, Functions, LoadError, LoadReport, Opener, Output, Running, Shard,
    Shim, ShimError, ShownEntry, WorkOrder,
};
use shardwright_vocabulary::{Compatibility, Device, Estimate, FlagSchema, Limit};

use crate::launcher::{Launcher, no_worker};
use crate::lock;
use crate::process::{Call, Signal, Worker};
use crate::protocol::{Ask, Library, ReportedVerdict};
use crate::remote::{Remote, reopened};
use crate::shard::RemoteShard;

impl Opener for Launcher {
    fn facts(&self, library: &Path, sha256: Option<&str>) -> Result<Facts, LoadError> {
        let name = library.display().to_string();
        match Worker::start(&name, self, Library::file(library, sha256), None) {
            Ok(Ok((_, facts))) => Ok(facts),
            Ok(Err(refusal)) => Err(LoadError::elsewhere(&refusal.reason, refusal.message)),
            Err(error) => Err(LoadError::of_worker(library, error)),
        }
    }

    fn open(
        &self,
        shim: &Shim,
        name: &str,
        options: &[(String, String)],
        claim: Claim,
    ) -> Result<Box<dyn Functions>, ShimError> {
        if !self.worker.is_file() {
            return Err(no_worker(format!("`{}`", self.worker.display())));
        }
        Ok(Box::new(Instance(Remote::open(shim, name, options, self, claim)?)))
    }
}

/// The functions of an instance in a worker.
struct Instance(Arc<Remote>);

impl Functions for Instance {
    fn chip(&self, chip: &Chip) -> Result<(), ShimError> {
        self.0.probe::<()>("chip", Ask::Chip { chip: chip.clone() })?;
        let mut chips = lock(&self.0.chips);
        chips.retain(|existing| existing.name != chip.name);
        chips.push(chip.clone());
        Ok(())
    }

    fn devices(&self, soc: Option<&str>) -> Result<Vec<Device>, ShimError> {
        self.0.probe("devices", Ask::Devices { soc: soc.map(str::to_owned) })
    }

    fn limits(&self, device: &str) -> Result<Vec<Limit>, ShimError> {
        self.0.probe("limits", Ask::Limits { device: device.to_owned() })
    }

    fn flags(&self, device: &str) -> Result<Vec<FlagSchema>, ShimError> {
        self.0.probe("flags", Ask::Flags { device: device.to_owned() })
    }

    fn check(&self, device: &str, entry: ShownEntry) -> Result<Vec<(u64, NodeVerdict)>, ShimError> {
        let reported: Vec<ReportedVerdict> =
            self.0.probe("check", Ask::Check { device: device.to_owned(), entry })?;
        let verdict = |(node, accepted, reason)| (node, NodeVerdict { accepted, reason });
        Ok(reported.into_iter().map(verdict).collect())
    }

    fn estimate(
        &self,
        device: &str,
        entry: ShownEntry,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Estimate>, ShimError> {
        // An estimate may involve compiling, and a shim has no way to cancel it. To cancel, the
        // worker is killed.
        let call =
            Call { cancelled: Some(cancelled), ..Call::plain("estimate", self.0.launcher.caps.compile_time) };
        let worker = self.0.worker()?;
        self.0.has_compiled.store(true, Ordering::Relaxed);
        worker.ask_with(call, Ask::Estimate { device: device.to_owned(), entry })
    }

    fn compile(&self, device: &str, order: &WorkOrder, output: &mut dyn Output) -> Result<(), ShimError> {
        let worker = self.0.fresh()?;
        let number = self.0.compilations.fetch_add(1, Ordering::Relaxed) + 1;
        let file = reopened(order.file()).map_err(|error| worker.host_failure("compile", &error))?;
        let call = Call {
            descriptors: vec![file.into()],
            output: Some(output),
            cancel: Some(Signal::Compile { number }),
            ..Call::plain("compile", self.0.launcher.caps.compile_time)
        };
        let result = worker.ask_with(call, Ask::Compile { device: device.to_owned(), number });
        self.0.compiled_peak.fetch_max(worker.peak_memory_bytes().unwrap_or(0), Ordering::Relaxed);
        result
    }

    fn compatibility(&self, device: &str, head: &[u8]) -> Result<Vec<Compatibility>, ShimError> {
        self.0.probe("compatibility", Ask::Compatibility { device: device.to_owned(), head: head.to_vec() })
    }

    fn inspect(&self, file: &File, offset: u64, length: u64) -> Result<Vec<(String, String)>, ShimError> {
        let worker = self.0.worker()?;
        let file = reopened(file).map_err(|error| worker.host_failure("inspect", &error))?;
        let time = self.0.launcher.caps.probe_time;
        let call = Call { descriptors: vec![file.into()], ..Call::plain("inspect", time) };
        worker.ask_with(call, Ask::Inspect { offset, length })
    }

    fn recover(&self, device: &str) -> Result<(), ShimError> {
        let ended = lock(&self.0.worker).as_ref().is_none_or(|worker| worker.ended().is_some());
        if ended {
            // A new process makes a recovery unnecessary.
            return self.0.worker().map(drop);
        }
        self.0.probe("recover", Ask::Recover { device: device.to_owned() })
    }

    fn load(
        &self,
        device: &str,
        artefact: &Artefact,
        options: &[(String, String)],
    ) -> Result<(Box<dyn Shard>, LoadReport), ShimError> {
        let (shard, report) = RemoteShard::load(&self.0, device, artefact, options)?;
        Ok((Box::new(shard), report))
    }

    fn allocate(&self, _device: &str, length: u64, alignment: u64) -> Result<Buffer, ShimError> {
        self.0.allocate(length, alignment)
    }

    /// Returns an error, as workers do not support this function.
    fn import(&self, _: &str, _: OwnedFd, _: u64, _: u64) -> Result<Buffer, ShimError> {
        Err(ShimError::Missing { shim: self.0.name.clone(), function: "buffer_import".into() })
    }

    fn running(&self) -> Running {
        self.0.running()
    }
}
