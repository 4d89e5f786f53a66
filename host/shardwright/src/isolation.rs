use shardwright_runtime::shims::{Isolation as WorkerIsolation, RegistryBuilder, ShimInstance, ShimRegistry};

use crate::{Error, ErrorKind, Result, SearchPath};

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
pub(crate) struct Shims {
    pub(crate) registry: ShimRegistry,
    worker: Option<WorkerIsolation>,
    runs_isolated: bool,
    /// What must be said of it.
    pub(crate) notice: Option<String>,
}

impl Shims {
    /// Looks for shims in the directories of `search`.
    pub(crate) fn open(search: &SearchPath, isolation: Isolation) -> Result<Self> {
        let (worker, notice) = match isolation {
            Isolation::Off => (None, None),
            Isolation::Compile | Isolation::Process => (Some(found()?), None),
            Isolation::Automatic => match found() {
                Ok(worker) => (Some(worker), None),
                Err(error) => {
                    let notice = format!("{error}: shims are asked, and compile, in this process");
                    (None, Some(notice))
                }
            },
        };
        let mut builder = ShimRegistry::builder();
        if let Some(worker) = &worker {
            builder = builder.isolated(worker.clone());
        }
        let registry = with_directories(builder, search).build();
        // A shim that was not asked to the end is not one that is missing.
        if registry.skipped().iter().any(|skipped| skipped.error.is_cancelled()) {
            return Err(Error::new(ErrorKind::Cancelled, "interrupted while the shims were asked"));
        }
        Ok(Shims { registry, worker, runs_isolated: isolation == Isolation::Process, notice })
    }

    /// Whether the instance that compiles can run as well.
    #[cfg(feature = "build")]
    pub(crate) fn compiles_where_it_runs(&self) -> bool {
        self.worker.is_none() || self.runs_isolated
    }

    /// An instance for questions and compiling; `simulated` where a simulator is wanted.
    #[cfg(feature = "build")]
    pub(crate) fn open_to_compile(
        &self,
        shim: &str,
        instance: &str,
        options: &[(String, String)],
        simulated: bool,
    ) -> Result<ShimInstance> {
        let options = &self.with_simulator(shim, options, simulated);
        Ok(match &self.worker {
            Some(worker) if !self.is_linked(shim) => {
                self.registry.open_isolated(shim, instance, options, worker)?
            }
            _ => self.registry.open(shim, instance, options)?,
        })
    }

    /// A shim that is part of this program is not part of the worker.
    fn is_linked(&self, shim: &str) -> bool {
        self.registry.get(shim).is_some_and(|shim| shim.manifest().is_none())
    }

    /// Whether the shim's manifest says how a simulator is opened.
    #[cfg(feature = "build")]
    pub(crate) fn has_simulator(&self, shim: &str) -> bool {
        let manifest = self.registry.get(shim).and_then(|shim| shim.manifest());
        manifest.is_some_and(|manifest| !manifest.simulator.is_empty())
    }

    /// The options of an instance, with what the shim's manifest adds where a simulator is wanted.
    fn with_simulator(
        &self,
        shim: &str,
        given: &[(String, String)],
        simulated: bool,
    ) -> Vec<(String, String)> {
        let manifest = self.registry.get(shim).and_then(|shim| shim.manifest()).filter(|_| simulated);
        let added = manifest.into_iter().flat_map(|manifest| manifest.simulator.clone());
        let said = |key: &String| given.iter().any(|(held, _)| held == key);
        given.iter().cloned().chain(added.filter(|(key, _)| !said(key))).collect()
    }

    /// An instance for running; `simulated` where what it runs was compiled for a simulator.
    pub(crate) fn open_to_run(
        &self,
        shim: &str,
        instance: &str,
        options: &[(String, String)],
        simulated: bool,
    ) -> Result<ShimInstance> {
        let options = &self.with_simulator(shim, options, simulated);
        Ok(match &self.worker {
            Some(worker) if self.runs_isolated && !self.is_linked(shim) => {
                self.registry.open_isolated(shim, instance, options, worker)?
            }
            _ => self.registry.open(shim, instance, options)?,
        })
    }
}

fn found() -> Result<WorkerIsolation> {
    WorkerIsolation::found().map_err(Error::from)
}

/// Adds the directories of `search`; with feature `static-cpu` the linked CPU shim is there too.
pub(crate) fn with_directories(builder: RegistryBuilder, search: &SearchPath) -> RegistryBuilder {
    #[cfg(feature = "static-cpu")]
    let builder = builder.linked("cpu", shardwright_shim_cpu::shim_entry());
    let named = |builder: RegistryBuilder, (library, manifest): &(std::path::PathBuf, String)| {
        builder.described(library, manifest)
    };
    let builder = search.libraries.iter().fold(builder, named);
    search.shims.iter().fold(builder, RegistryBuilder::directory)
}
