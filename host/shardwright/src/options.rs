use std::path::{Path, PathBuf};

use std::str::FromStr;

use shardwright_build::shims::Watch;
use shardwright_vocabulary::{FormatTuple, UnknownName, WeightFormat};

use crate::{CompileReport, Isolation, Model, Planned, Result, SearchPath};

/// Formats that a plan may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatChoice {
    /// Every weight as the checkpoint stores it, everything else in 32-bit float.
    Stored,
    /// These, of weights, activations and states together.
    Tuple(FormatTuple),
}

impl FromStr for FormatChoice {
    type Err = UnknownName;

    /// `stored`, or a tuple as reports spell it: `w4-block32[head=w8-per-channel]/f32/f32`. A
    /// weight format alone means f32 for the rest.
    fn from_str(text: &str) -> std::result::Result<Self, UnknownName> {
        match text {
            "stored" => Ok(FormatChoice::Stored),
            tuple => tuple.parse().map(FormatChoice::Tuple),
        }
    }
}

/// Formats of the gathered tables, which belong to no shard; `None` keeps one as it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableFormats {
    /// The embedding.
    pub embedding: Option<WeightFormat>,
    /// The per-layer embeddings.
    pub per_layer: Option<WeightFormat>,
}

/// What runs a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Executor {
    /// The chip itself, through its vendor's shim.
    Device,
    /// The vendor's simulator of the chip.
    Simulator,
    /// The CPU shim, with the chip's cut, formats and encodings. Every report is headed *emulated
    /// on cpu*.
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

/// How to open a checkpoint. The default plans for the generic profile and runs on this machine's
/// CPU.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub(crate) soc: Option<String>,
    pub(crate) on: Option<Executor>,
    pub(crate) limits: Vec<(String, u64)>,
    pub(crate) flags: Vec<(String, String)>,
    pub(crate) flags_left_out: Vec<String>,
    pub(crate) planner: Option<String>,
    /// Whether that is a name and never a path: it is a bundle's word.
    pub(crate) planner_by_name: bool,
    pub(crate) trusted_keys: Vec<String>,
    pub(crate) planner_options: Vec<(String, String)>,
    pub(crate) context: Option<u32>,
    pub(crate) strict: bool,
    pub(crate) threads: Option<u32>,
    pub(crate) search: Option<SearchPath>,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) formats: Vec<FormatChoice>,
    pub(crate) tables: TableFormats,
    pub(crate) calibration_text: Option<PathBuf>,
    pub(crate) quality_per_million: Option<u64>,
    pub(crate) isolation: Isolation,
    pub(crate) tokenizer_when_asked: bool,
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

    /// What runs the plan. Default: the device where its shim finds it, else an error that names
    /// the alternatives; without [`OpenOptions::soc`] the CPU.
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

    /// A flag for the chip's compiler, beside those of its profile; in place of the profile's value
    /// where that has the same flag, which is said. What the shim does not know, or a value it does
    /// not take, is an error. A flag that takes effect when shards are loaded, such as `power`, is
    /// one of the session: [`OpenOptions::open`] takes it, and what becomes of it is a notice;
    /// planning and compiling refuse it.
    #[must_use]
    pub fn flag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.flags.push((name.into(), value.into()));
        self
    }

    /// Leaves a flag of the profile out, which is said.
    #[must_use]
    pub fn without_flag(mut self, name: impl Into<String>) -> Self {
        self.flags_left_out.push(name.into());
        self
    }

    /// The planner: a path to a `.wasm` component or pack, or a name from a planner directory.
    /// Default: the built-in one.
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

    /// Context capacity in tokens. States grow with it. Default: what the model was made for, at
    /// most 4096.
    #[must_use]
    pub fn context(mut self, tokens: u32) -> Self {
        self.context = Some(tokens);
        self
    }

    /// Which work of shims happens in a process of its own.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Offers these formats to the planner, best first, instead of those of the chip's profile and
    /// the stored ones. May be called several times. What a shim does not take is refused all the
    /// same.
    #[must_use]
    pub fn formats(mut self, choice: FormatChoice) -> Self {
        self.formats.push(choice);
        self
    }

    /// Formats of the gathered tables. Default: as stored.
    #[must_use]
    pub fn tables(mut self, formats: TableFormats) -> Self {
        self.tables = formats;
        self
    }

    /// The most quality a plan may lose, in thousandths of the model's negative log-likelihood.
    /// What each layer and role loses in each format is measured once for a checkpoint, which takes
    /// minutes. Default: no bound, nothing is measured.
    #[must_use]
    pub fn quality(mut self, per_mille: u32) -> Self {
        self.quality_per_million = Some(u64::from(per_mille) * 1000);
        self
    }

    /// A text file to calibrate on, one conversation turn a line, where formats need ranges.
    /// Default: a text that comes with the program. It goes through the checkpoint's chat template.
    #[must_use]
    pub fn calibration_text(mut self, path: impl Into<PathBuf>) -> Self {
        self.calibration_text = Some(path.into());
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

    /// A private directory for compiled planners. Whoever can write to it can run code here.
    /// Default: `shardwright` in the user's cache directory; planners are compiled anew where there
    /// is none.
    #[must_use]
    pub fn cache_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cache = Some(directory.into());
        self
    }

    /// Loads the tokenizer when something asks for it first, not beside planning and compiling: for
    /// programs that bring token ids. Default: off.
    #[must_use]
    pub fn tokenizer_when_asked(mut self, when_asked: bool) -> Self {
        self.tokenizer_when_asked = when_asked;
        self
    }

    /// Whether layer outputs can be read after a step, for verification. Costs a copy per layer.
    /// Default: off.
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
        crate::opening::open(checkpoint.as_ref(), self, &mut ())
    }

    /// [`OpenOptions::open`] that tells how far it is and asks whether to go on.
    pub fn open_watched(&self, checkpoint: impl AsRef<Path>, watch: &mut dyn Watch) -> Result<Model> {
        crate::opening::open(checkpoint.as_ref(), self, watch)
    }

    /// Plans, compiles and writes a bundle into `directory`, which
    /// [`BundleOptions`](crate::BundleOptions) opens. An interrupted call that is made again goes
    /// on where it stopped.
    pub fn compile(
        &self,
        checkpoint: impl AsRef<Path>,
        directory: impl AsRef<Path>,
        watch: &mut dyn Watch,
    ) -> Result<CompileReport> {
        crate::compiling::compile(checkpoint.as_ref(), directory.as_ref(), self, watch)
    }

    /// Plans without compiling.
    pub fn plan(&self, checkpoint: impl AsRef<Path>) -> Result<Planned> {
        crate::opening::plan(checkpoint.as_ref(), self, &mut ())
    }

    /// [`OpenOptions::plan`] that tells how far it is and asks whether to go on: a vendor's
    /// compiler may be asked for times.
    pub fn plan_watched(&self, checkpoint: impl AsRef<Path>, watch: &mut dyn Watch) -> Result<Planned> {
        crate::opening::plan(checkpoint.as_ref(), self, watch)
    }

    /// Where made weights are kept.
    pub(crate) fn cache_directory_path(&self) -> Option<PathBuf> {
        self.cache.clone().or_else(crate::user_cache_directory)
    }

    pub(crate) fn search(&self) -> SearchPath {
        self.search.clone().unwrap_or_else(SearchPath::standard)
    }
}
