//! What may be asked of planning and building.

use std::path::PathBuf;
use std::str::FromStr;

use shardwright_files::read_named;
use shardwright_graph::Graph;
use shardwright_shims::RegistryBuilder;
use shardwright_vocabulary::{Error, ErrorKind, FormatTuple, Result, UnknownName, WeightFormat};
use shardwright_worker::Isolation;

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

/// What is asked of a plan. The default is one for the generic profile, run on this machine's CPU.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Where shims are.
    pub shims: RegistryBuilder,
    /// Directories of planners.
    pub planners: Vec<PathBuf>,
    /// Directories of profiles, beside those that are built in.
    pub profiles: Vec<PathBuf>,
    /// Which work of shims happens in a process of its own.
    pub isolation: Isolation,
    /// Whether a fallback is an error.
    pub strict: bool,
    /// Threads of the CPU engine; none for the cores there are.
    pub threads: Option<u32>,
    /// Where what can be made again is kept; none to keep nothing.
    pub cache: Option<PathBuf>,
    /// Whose planner packs are run, as hexadecimal public keys.
    pub trusted_keys: Vec<String>,
    /// A profile's name or alias; none for the generic one.
    pub soc: Option<String>,
    /// What runs the plan; none for the device where its shim finds it.
    pub on: Option<Executor>,
    /// Limits of the user, by name.
    pub limits: Vec<(String, u64)>,
    /// Flags of the user, by name.
    pub flags: Vec<(String, String)>,
    /// Names of the profile's flags that are left out.
    pub flags_left_out: Vec<String>,
    /// A file or a name; none for the built-in one.
    pub planner: Option<String>,
    /// Whether `planner` is a name and never a path: it is a bundle's word.
    pub planner_by_name: bool,
    /// Settings of the planner, by name.
    pub planner_options: Vec<(String, String)>,
    /// Context capacity in tokens.
    pub context: Option<u32>,
    /// What is offered to the planner, best first; empty for what the profile says.
    pub formats: Vec<FormatChoice>,
    /// Formats of the gathered tables.
    pub tables: TableFormats,
    /// What is calibrated on; none for a text that the program brings.
    pub calibration_text: Option<PathBuf>,
    /// The most quality a plan may lose, in millionths of the model's negative log-likelihood.
    pub quality_per_million: Option<u64>,
    /// Whether entry graphs show the outputs of their layers.
    pub taps: bool,
    /// Changes the graph before anything else sees it: for tests of what judges it.
    pub alter: Option<fn(&mut Graph)>,
}

/// Bytes of a calibration text at most.
const CALIBRATION_TEXT_BYTES: u64 = 4 << 20;

impl PlanOptions {
    /// The text of the user to calibrate on, if one was named.
    pub(crate) fn read_calibration_text(&self) -> Result<Option<String>> {
        let Some(path) = &self.calibration_text else { return Ok(None) };
        let fault = |error: std::string::FromUtf8Error| {
            Error::new(ErrorKind::Invalid, format!("{}: {}", path.display(), error.utf8_error()))
        };
        String::from_utf8(read_named(path, CALIBRATION_TEXT_BYTES)?).map_err(fault).map(Some)
    }
}
