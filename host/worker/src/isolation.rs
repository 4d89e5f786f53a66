//! Which work of shims runs in workers, and opening shims accordingly.

use shardwright_shims::{RegistryBuilder, ShimInstance, ShimRegistry};
use shardwright_vocabulary::{Error, ErrorKind, Notice, Result};

use crate::launcher::Launcher;

/// Which work of shims runs in a process of its own, where a crash, a hang or an endless allocation
/// of a vendor's library does no harm.
///
/// Files are mapped. If another program truncates an artefact while it runs, the process it runs in
/// ends (SIGBUS): the worker with [`Process`](Isolation::Process), this one otherwise. Tables and
/// checkpoints are mapped in this process in every case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// Queries and compiling in a worker if the program `shardwright-worker` is found, else in this
    /// process with a notice. Running in this process.
    #[default]
    Automatic,
    /// Everything in this process.
    Off,
    /// Queries and compiling in a worker, running in this process. Without the worker program it is
    /// an error.
    Compile,
    /// Everything in a worker: a driver crash costs a second, not the application. Without the
    /// worker program it is an error.
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

/// The shims found, and how they are opened.
#[derive(Debug)]
pub struct Shims {
    /// Usable shims, and those skipped.
    pub registry: ShimRegistry,
    worker: Option<Launcher>,
    runs_isolated: bool,
    /// A notice for the user.
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
        // A shim whose query was interrupted is not a missing shim.
        if registry.skipped().iter().any(|skipped| skipped.error.is_cancelled()) {
            return Err(Error::new(ErrorKind::Cancelled, "interrupted while the shims were asked"));
        }
        Ok(Shims { registry, worker, runs_isolated: isolation == Isolation::Process, notice })
    }

    /// A notice for each shim or folder of shims that was skipped, unless one of `told` has its
    /// reason.
    pub fn skipped_notices(&self, told: &[Notice]) -> Vec<Notice> {
        let reasons = self.registry.skipped().iter().map(|skipped| skipped.error.to_string());
        let untold = reasons.filter(|reason| !told.iter().any(|notice| notice.text.contains(reason)));
        untold.map(|reason| Notice::note(format!("{reason}; it is skipped"))).collect()
    }

    /// Whether the instance that compiles can run as well.
    pub fn compiles_where_it_runs(&self) -> bool {
        self.worker.is_none() || self.runs_isolated
    }

    /// Whether the shim compiles in a process of its own: where there are workers, and where it has
    /// a manifest. One without is linked into this program, not into the worker.
    pub fn compiles_in_a_worker(&self, shim: &str) -> bool {
        let manifest = self.registry.get(shim).and_then(|shim| shim.manifest());
        self.worker.is_some() && manifest.is_some()
    }

    /// Whether the shim's manifest has options for a simulator.
    pub fn has_simulator(&self, shim: &str) -> bool {
        let manifest = self.registry.get(shim).and_then(|shim| shim.manifest());
        manifest.is_some_and(|manifest| !manifest.simulator.is_empty())
    }

    /// Opens an instance for queries and compiling; `simulated` if a simulator is wanted.
    pub fn open_to_compile(
        &self,
        shim: &str,
        instance: &str,
        options: &[(String, String)],
        simulated: bool,
    ) -> Result<ShimInstance> {
        self.open_instance(true, shim, instance, options, simulated)
    }

    /// Opens an instance for running; `simulated` if what it runs was compiled for a simulator.
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
        // The manifest supplies a simulator's options that the caller did not set.
        if let Some(manifest) = manifest.filter(|_| simulated) {
            for (key, value) in &manifest.simulator {
                if !options.iter().any(|(said, _)| said == key) {
                    options.push((key.clone(), value.clone()));
                }
            }
        }
        Ok(match self.worker.as_ref().filter(|_| isolated && self.compiles_in_a_worker(shim)) {
            Some(worker) => self.registry.open_isolated(shim, instance, &options, worker)?,
            None => self.registry.open(shim, instance, &options)?,
        })
    }
}
