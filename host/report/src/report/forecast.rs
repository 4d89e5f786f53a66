//! The demands of a plan on a device, as data: memory of each phase, download, times, verdict.

use serde::{Deserialize, Serialize};
use shardwright_planning::cost::weakest;
use shardwright_vocabulary::Provenance;

/// Size of a model's download.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Download {
    /// Bytes of its weight files.
    pub bytes: u64,
    /// The source of the number.
    pub rests_on: DownloadBasis,
}

/// The source of the size of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DownloadBasis {
    /// The headers of all files.
    Headers,
    /// The sum in an index, without the headers.
    Index,
    /// The configuration. It gives the bytes that the model reads, and the files contain at least
    /// as many.
    Configuration,
}

/// A number of bytes and how it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rests_on", rename_all = "kebab-case")]
pub enum Figure {
    /// Counted in the model and the plan.
    Counted { bytes: u64 },
    /// From a shim, or from a formula.
    Estimated {
        bytes: u64,
        /// Where the number comes from.
        provenance: Provenance,
    },
    /// Mapped from files. The system keeps between none and all of it in memory. How much cannot be
    /// predicted.
    Mapped {
        /// The size of the whole mapping.
        bytes: u64,
    },
    /// The number is unknown.
    Unknown,
}

/// A part of a phase's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPart {
    /// Name of the part.
    pub name: String,
    /// Size of the part.
    #[serde(flatten)]
    pub figure: Figure,
}

/// A phase of a model's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Constants are made and shards compiled, on the machine that compiles.
    Compile,
    Load,
    /// A prompt is read.
    Prefill,
    Decode,
    /// A text becomes a vector.
    Encode,
}

impl Phase {
    /// Returns the lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Compile => "compile",
            Phase::Load => "load",
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::Encode => "encode",
        }
    }
}

/// The memory of one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseMemory {
    pub phase: Phase,
    /// The parts of the memory.
    pub parts: Vec<MemoryPart>,
    /// Sum of the parts that are counted or estimated.
    pub held_bytes: u64,
    /// The weakest provenance of the parts, or `None` if all are counted.
    pub provenance: Option<Provenance>,
    /// Sum of the mapped parts, which may be in memory in addition to `held_bytes`.
    pub mapped_bytes: u64,
}

impl PhaseMemory {
    pub(crate) fn of(phase: Phase, parts: Vec<MemoryPart>) -> Self {
        let mut memory =
            PhaseMemory { phase, parts: Vec::new(), held_bytes: 0, provenance: None, mapped_bytes: 0 };
        for part in &parts {
            match part.figure {
                Figure::Counted { bytes } => memory.held_bytes = memory.held_bytes.saturating_add(bytes),
                Figure::Estimated { bytes, provenance } => {
                    memory.held_bytes = memory.held_bytes.saturating_add(bytes);
                    memory.provenance =
                        Some(memory.provenance.map_or(provenance, |known| weakest(known, provenance)));
                }
                Figure::Mapped { bytes } => memory.mapped_bytes = memory.mapped_bytes.saturating_add(bytes),
                Figure::Unknown => {}
            }
        }
        PhaseMemory { parts, ..memory }
    }

    /// Returns the names of the parts of unknown size.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter(|part| part.figure == Figure::Unknown).map(|part| part.name.as_str())
    }
}

/// A predicted time, including host time for handing values over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    pub microseconds: u64,
    /// The weakest provenance of the entry points' times.
    pub provenance: Provenance,
    /// Number of operations of these entry points that the time leaves out.
    pub uncosted_ops: u64,
}

/// Predicted times. They are `None` if the time of an entry point is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "kebab-case")]
pub enum Speed {
    /// A generative model.
    Tokens {
        /// Number of tokens of the prompt.
        prompt_tokens: u32,
        /// Time from the prompt to the first token.
        first: Option<Predicted>,
        /// Time of each further token.
        each: Option<Predicted>,
        /// Number of tokens in 1000 seconds, or `None` if the time is unknown or zero.
        per_1000_seconds: Option<u64>,
    },
    /// An embedding model.
    Vector {
        /// Largest number of tokens of a text.
        tokens: u32,
        /// Time of one text.
        each: Option<Predicted>,
    },
}

/// Whether a model fits a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fits {
    /// Every shard runs on the chip, within all known limits and the requested memory.
    Whole,
    /// Some shards run elsewhere.
    InPart,
    /// A phase needs more than the requested memory. The plan itself is within it, but buffers and
    /// logits, which planners do not choose, are not.
    No,
}

/// A summary of the forecast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub fits: Fits,
    /// Shards that run elsewhere than on the chip, by name and target.
    pub elsewhere: Vec<(String, String)>,
    /// The phase on the device that needs most memory.
    pub largest: Option<Phase>,
    /// Bytes of memory that the phase needs.
    pub held_bytes: u64,
    /// Bytes that may be mapped in addition.
    pub mapped_bytes: u64,
    /// The requested maximum of memory.
    pub asked_bytes: Option<u64>,
    /// Whether a limit on the chip's memory is known.
    pub memory_limit_known: bool,
}

/// All predictions about a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// A summary of the forecast.
    pub verdict: Verdict,
    /// Size of the download, or `None` if the model cannot be downloaded.
    pub download: Option<Download>,
    /// Memory of the phases in order.
    pub memory: Vec<PhaseMemory>,
    pub speed: Speed,
    /// Time of loading all shards, or `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loading: Option<Predicted>,
}
