//! Which work of shims happens in workers, and the shims opened so.

use shardwright_shims::{RegistryBuilder, ShimInstance, ShimRegistry};
use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::launcher::Launcher;

/// Which work of shims happens in a process of its own, where a crash, a hang or an endless
/// allocation of a vendor's library does no harm.
///
/// Files are mapped. An artefact that another program cuts short while it runs ends the process it
/// runs in (SIGBUS): the worker with [`Process`](Isolation::Process), this one otherwise. Tables
/// and checkpoints are mapped in this process in every case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// Questions and compiling in a worker, where the program `shardwright-worker` is found, and in
    /// this process where not, which is said. Running in this process.
    #[default]
    Automatic,
    /// Everything in this process.
    Off,
    /// Questions and compiling in a worker, running in this process. Without a worker it is an
    /// error.
    Compile,
    /// Everything in a worker: a driver that dies costs a second, not the application. Without a
    /// worker it is an error.
    Process,
}

impl Isolation {
    /// Lower-case name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Isolation::Automatic => "automatic",
            Isolation::Off => "off",
            Isolation::Compile => "compile",
            Isolation::Process => "process",
        }
    }
}

/// The shims there are, and how they are opened.
#[derive(Debug)]
pub struct Shims {
    /// Those that can be used, and what was skipped.
    pub registry: ShimRegistry,
    worker: Option<Launcher>,
    runs_isolated: bool,
    /// What must be said of it.
    pub notice: Option<String>,
}

impl Shims {
    /// Opens the shims that `builder` finds.
    pub fn open(builder: RegistryBuilder, isolation: Isolation) -> Result<Self> {
        let (worker, notice) = match isolation {
            Isolation::Off => (None, None),
            Isolation::Compile | Isolation::Process => (Some(Launcher::found()?), None),
            Isolation::Automatic => match Launcher::found() {
                Ok(worker) => (Some(worker), None),
                Err(error) => {
                    let notice = format!("{error}: shims are asked, and compile, in this process");
                    (None, Some(notice))
                }
            },
        };
        let registry = match &worker {
            Some(worker) => builder.isolated(worker.clone()),
            None => builder,
        }
        .build();
        // A shim that was not asked to the end is not one that is missing.
        if registry.skipped().iter().any(|skipped| skipped.error.is_cancelled()) {
            return Err(Error::new(ErrorKind::Cancelled, "interrupted while the shims were asked"));
        }
        Ok(Shims { registry, worker, runs_isolated: isolation == Isolation::Process, notice })
    }

    /// Whether the instance that compiles can run as well.
    pub fn compiles_where_it_runs(&self) -> bool {
        self.worker.is_none() || self.runs_isolated
    }

    /// Whether the shim's manifest says how a simulator is opened.
    pub fn has_simulator(&self, shim: &str) -> bool {
        let manifest = self.registry.get(shim).and_then(|shim| shim.manifest());
        manifest.is_some_and(|manifest| !manifest.simulator.is_empty())
    }

    /// An instance for questions and compiling; `simulated` where a simulator is wanted.
    pub fn open_to_compile(
        &self,
        shim: &str,
        instance: &str,
        options: &[(String, String)],
        simulated: bool,
    ) -> Result<ShimInstance> {
        self.open_instance(true, shim, instance, options, simulated)
    }

    /// An instance for running; `simulated` where what it runs was compiled for a simulator.
    pub fn open_to_run(
        &self,
        shim: &str,
        instance: &str,
        options: &[(String, String)],
        simulated: bool,
    ) -> Result<ShimInstance> {
        self.open_instance(self.runs_isolated, shim, instance, options, simulated)
    }

    fn open_instance(
        &self,
        isolated: bool,
        shim: &str,
        instance: &str,
        options: &[(String, String)],
        simulated: bool,
    ) -> Result<ShimInstance> {
        let manifest = self.registry.get(shim).and_then(|shim| shim.manifest());
        let mut options = options.to_vec();
        // The manifest adds what a simulator needs and the caller did not say.
        if let Some(manifest) = manifest.filter(|_| simulated) {
            for (key, value) in &manifest.simulator {
                if !options.iter().any(|(said, _)| said == key) {
                    options.push((key.clone(), value.clone()));
                }
            }
        }
        // A shim without a manifest is part of this program, and not of the worker.
        Ok(match self.worker.as_ref().filter(|_| isolated && manifest.is_some()) {
            Some(worker) => self.registry.open_isolated(shim, instance, &options, worker)?,
            None => self.registry.open(shim, instance, &options)?,
        })
    }
}
