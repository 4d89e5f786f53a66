//! What a plan asks of a device, as data: memory of each phase, download, times, verdict.

use serde::{Deserialize, Serialize};
use shardwright_planning::cost::weakest;
use shardwright_vocabulary::Provenance;

/// What fetching a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Download {
    /// Bytes of its weight files.
    pub bytes: u64,
    /// What the number rests on.
    pub rests_on: DownloadBasis,
}

/// What the size of a download rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DownloadBasis {
    /// The headers of all files.
    Headers,
    /// The sum that an index states, headers not counted.
    Index,
    /// The configuration: what the model reads. Files hold at least that.
    Configuration,
}

/// A number of bytes and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rests_on", rename_all = "kebab-case")]
pub enum Figure {
    /// Counted in the model and the plan.
    Counted {
        /// The number.
        bytes: u64,
    },
    /// From a shim, or from a formula.
    Estimated {
        /// The number.
        bytes: u64,
        /// Where it comes from.
        provenance: Provenance,
    },
    /// Mapped from files: the system keeps between none and all of it in memory, and which cannot
    /// be predicted.
    Mapped {
        /// All of it.
        bytes: u64,
    },
    /// Nothing says.
    Unknown,
}

/// A part of a phase's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPart {
    /// What takes it.
    pub name: String,
    /// How much.
    #[serde(flatten)]
    pub figure: Figure,
}

/// A phase of a model's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Constants are made and shards compiled, on the machine that compiles.
    Compile,
    /// Artefacts are loaded.
    Load,
    /// A prompt is read.
    Prefill,
    /// Tokens are generated.
    Decode,
    /// A text becomes a vector.
    Encode,
}

impl Phase {
    /// Lower-case name.
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
    /// The phase.
    pub phase: Phase,
    /// What it is made of.
    pub parts: Vec<MemoryPart>,
    /// Sum of the parts that are counted or estimated.
    pub held_bytes: u64,
    /// The weakest provenance of its parts; `None` if all are counted.
    pub provenance: Option<Provenance>,
    /// Sum of the mapped parts: what may be in memory on top.
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

    /// Names of the parts of unknown size.
    pub fn unknown(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter(|part| part.figure == Figure::Unknown).map(|part| part.name.as_str())
    }
}

/// A predicted time, the host's for handing over included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// The time.
    pub microseconds: u64,
    /// The weakest provenance of the entry points' times.
    pub provenance: Provenance,
    /// Operations of these entry points that it leaves out.
    pub uncosted_ops: u64,
}

/// Predicted times; `None` if the time of an entry point is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "kebab-case")]
pub enum Speed {
    /// A model that generates.
    Tokens {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// From the prompt to the first token.
        first: Option<Predicted>,
        /// Each further token.
        each: Option<Predicted>,
        /// Tokens in a thousand seconds; `None` if the time is unknown or zero.
        per_1000_seconds: Option<u64>,
    },
    /// A model that embeds.
    Vector {
        /// Most tokens of a text.
        tokens: u32,
        /// One text.
        each: Option<Predicted>,
    },
}

/// Whether a model fits a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fits {
    /// Every shard runs on the chip, within all known limits and the memory asked for.
    Whole,
    /// Some shards run elsewhere.
    InPart,
    /// A phase holds more than the memory asked for: the plan is within it, but buffers and logits,
    /// which no planner chooses, are not.
    No,
}

/// The answer in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether it fits.
    pub fits: Fits,
    /// Shards that run elsewhere than on the chip, by name and target.
    pub elsewhere: Vec<(String, String)>,
    /// The phase on the device that holds most.
    pub largest: Option<Phase>,
    /// What it holds.
    pub held_bytes: u64,
    /// What may be mapped on top.
    pub mapped_bytes: u64,
    /// The memory asked for.
    pub asked_bytes: Option<u64>,
    /// Whether a limit on the chip's memory is known.
    pub memory_limit_known: bool,
}

/// Everything predicted of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// The answer in short.
    pub verdict: Verdict,
    /// Size of the download; `None` if the model comes from nowhere.
    pub download: Option<Download>,
    /// Memory of the phases in order.
    pub memory: Vec<PhaseMemory>,
    /// Times.
    pub speed: Speed,
    /// Time of loading all shards; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loading: Option<Predicted>,
}
