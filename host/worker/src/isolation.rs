//! Selects the work of shims that runs in workers, and opens shims accordingly.

use shardwright_shims::{LoadError, RegistryBuilder, ShimInstance, ShimRegistry};
use shardwright_vocabulary::{Error, ErrorKind, Notice, Result};

use crate::launcher::Launcher;

/// The work of shims that runs in a separate process, where a crash, a hang or an endless
/// allocation of a vendor's library does no harm.
///
/// Files are memory-mapped. If another program truncates an artefact during a run, the process of
/// the run ends (SIGBUS). That is the worker with [`Process`](Isolation::Process), and otherwise
/// this process. Tables and checkpoints are always mapped in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// Queries and compiling use a worker if the program `shardwright-worker` is found. Otherwise
    /// they use this process, with a notice. Shards run in this process.
    #[default]
    Automatic,
    /// All work runs in this process.
    Off,
    /// Queries and compiling use a worker. Shards run in this process. A missing worker program is
    /// an error.
    Compile,
    /// All work runs in a worker, so a driver crash costs a second instead of the application. A
    /// missing worker program is an error.
    Process,
}

impl Isolation {
    /// Returns the lower-case name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Isolation::Automatic => "automatic",
            Isolation::Off => "off",
            Isolation::Compile => "compile",
            Isolation::Process => "process",
        }
    }
}

/// The shims found, and the way to open them.
#[derive(Debug)]
pub struct Shims {
    /// Usable shims, and skipped ones.
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
                    let notice = format!("{error}: shims are queried and compile in this process");
                    (None, Some(notice))
                }
            },
        };
        let registry = match &worker {
            Some(worker) => builder.isolated(worker.clone()),
            None => builder,
        }
        .build();
        // Do not treat a shim whose query was interrupted as missing.
        if registry.skipped().iter().any(|skipped| skipped.error.is_cancelled()) {
            return Err(Error::new(ErrorKind::Cancelled, "interrupted while querying the shims"));
        }
        Ok(Shims { registry, worker, runs_isolated: isolation == Isolation::Process, notice })
    }

    /// Returns a notice for each skipped shim or folder of shims, unless one of `told` already has
    /// the reason. A library of a shim that is linked into this program is not reported.
    pub fn skipped_notices(&self, told: &[Notice]) -> Vec<Notice> {
        let is_linked = |name: &str| self.registry.get(name).is_some_and(|shim| shim.manifest().is_none());
        let expected = |error: &LoadError| error.duplicate_name().is_some_and(is_linked);
        let unexpected = self.registry.skipped().iter().filter(|skipped| !expected(&skipped.error));
        let reasons = unexpected.map(|skipped| skipped.error.to_string());
        let untold = reasons.filter(|reason| !told.iter().any(|notice| notice.text.contains(reason)));
        untold.map(|reason| Notice::note(format!("{reason}; skipped"))).collect()
    }

    /// Returns whether the instance that compiles can also run shards.
    pub fn compiles_where_it_runs(&self) -> bool {
        self.worker.is_none() || self.runs_isolated
    }

    /// Returns whether the shim compiles in a separate process. This requires workers and a
    /// manifest. A shim without a manifest is linked into this program, not into the worker.
    pub fn compiles_in_a_worker(&self, shim: &str) -> bool {
        let manifest = self.registry.get(shim).and_then(|shim| shim.manifest());
        self.worker.is_some() && manifest.is_some()
    }

    /// Returns whether the shim's manifest has options for a simulator.
    pub fn has_simulator(&self, shim: &str) -> bool {
        let manifest = self.registry.get(shim).and_then(|shim| shim.manifest());
        manifest.is_some_and(|manifest| !manifest.simulator.is_empty())
    }

    /// Opens an instance for queries and compiling. `simulated` selects a simulator.
    pub fn open_to_compile(
        &self,
        shim: &str,
        instance: &str,
        options: &[(String, String)],
        simulated: bool,
    ) -> Result<ShimInstance> {
        self.open_instance(true, shim, instance, options, simulated)
    }

    /// Opens an instance for running. Set `simulated` for artefacts that were compiled for a
    /// simulator.
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
        // Options of a simulator come from the manifest unless the caller set them.
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
