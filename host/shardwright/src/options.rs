use std::path::{Path, PathBuf};

use crate::{Model, Planned, Result, SearchPath};

/// What runs a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Executor {
    /// The chip itself, through its vendor's shim.
    Device,
    /// The vendor's simulator of the chip.
    Simulator,
    /// The CPU shim, with the chip's cut, formats and encodings. Every report is headed *emulated on cpu*.
    Cpu,
}

impl Executor {
    /// Lower-case name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Executor::Device => "device",
            Executor::Simulator => "simulator",
            Executor::Cpu => "cpu",
        }
    }
}

/// How to open a checkpoint. The default plans for the generic profile and runs on this machine's CPU.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub(crate) soc: Option<String>,
    pub(crate) on: Option<Executor>,
    pub(crate) limits: Vec<(String, u64)>,
    pub(crate) planner: Option<String>,
    pub(crate) trusted_keys: Vec<String>,
    pub(crate) planner_options: Vec<(String, String)>,
    pub(crate) context: Option<u32>,
    pub(crate) strict: bool,
    pub(crate) threads: Option<u32>,
    pub(crate) search: Option<SearchPath>,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) taps: bool,
    pub(crate) break_middle_layer: bool,
}

impl OpenOptions {
    /// The defaults.
    pub fn new() -> Self {
        OpenOptions::default()
    }

    /// The chip to plan for: a profile's name or alias. Default: `generic`.
    #[must_use]
    pub fn soc(mut self, soc: impl Into<String>) -> Self {
        self.soc = Some(soc.into());
        self
    }

    /// What runs the plan. Default: the device where its shim finds it, else an error that names the alternatives; without
    /// [`OpenOptions::soc`] the CPU.
    #[must_use]
    pub fn on(mut self, executor: Executor) -> Self {
        self.on = Some(executor);
        self
    }

    /// Overrides or adds a limit of the chip; its provenance becomes *user*.
    #[must_use]
    pub fn limit(mut self, name: impl Into<String>, value: u64) -> Self {
        self.limits.push((name.into(), value));
        self
    }

    /// The planner: a path to a `.wasm` component or pack, or a name from a planner directory. Default: the built-in one.
    #[must_use]
    pub fn planner(mut self, planner: impl Into<String>) -> Self {
        self.planner = Some(planner.into());
        self
    }

    /// A public key (hexadecimal) whose planner packs are accepted. Default: none.
    #[must_use]
    pub fn trust_key(mut self, key: impl Into<String>) -> Self {
        self.trusted_keys.push(key.into());
        self
    }

    /// A setting for the planner, as its description lists them.
    #[must_use]
    pub fn planner_option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.planner_options.push((name.into(), value.into()));
        self
    }

    /// Context capacity in tokens. States grow with it. Default: what the model was made for, at most 4096.
    #[must_use]
    pub fn context(mut self, tokens: u32) -> Self {
        self.context = Some(tokens);
        self
    }

    /// Turns every fallback into an error. Default: off; fallbacks are reported.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Threads of the CPU engine. Default: the cores there are.
    #[must_use]
    pub fn threads(mut self, threads: u32) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Where shims, planners and profiles are looked for. Default: [`SearchPath::standard`].
    #[must_use]
    pub fn search_path(mut self, path: SearchPath) -> Self {
        self.search = Some(path);
        self
    }

    /// A private directory for compiled planners. Whoever can write to it can run code here. Default: `shardwright` in the user's
    /// cache directory; planners are compiled anew where there is none.
    #[must_use]
    pub fn cache_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cache = Some(directory.into());
        self
    }

    /// Whether layer outputs can be read after a step, for verification. Costs a copy per layer. Default: off.
    #[must_use]
    pub fn taps(mut self, taps: bool) -> Self {
        self.taps = taps;
        self
    }

    /// For the self-test of verification: changes one norm scale of the layer in the middle.
    #[must_use]
    pub(crate) fn break_middle_layer(mut self) -> Self {
        self.break_middle_layer = true;
        self
    }

    /// Plans, compiles and loads a checkpoint directory as Hugging Face publishes it.
    pub fn open(&self, checkpoint: impl AsRef<Path>) -> Result<Model> {
        Model::open(checkpoint.as_ref(), self)
    }

    /// Plans without compiling.
    pub fn plan(&self, checkpoint: impl AsRef<Path>) -> Result<Planned> {
        crate::opening::plan(checkpoint.as_ref(), self)
    }

    pub(crate) fn search(&self) -> SearchPath {
        self.search.clone().unwrap_or_else(SearchPath::standard)
    }
}
