//! The demands of a plan on a device, as data: memory of each phase, download, times, verdict.

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{Provenance, TimeCost};

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
                        Some(memory.provenance.map_or(provenance, |known| known.weaker(provenance)));
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
    /// No run is expected to be faster.
    pub low: u64,
    /// The likely time.
    pub microseconds: u64,
    /// No run is expected to be slower.
    pub high: u64,
    /// The weakest provenance of the entry points' times.
    pub provenance: Provenance,
    /// Number of operations of these entry points whose time is estimated by their share.
    pub uncosted_ops: u64,
}

impl Predicted {
    /// Creates a prediction from a time.
    pub const fn of(time: TimeCost, uncosted_ops: u64) -> Self {
        let TimeCost { low, microseconds, high, provenance } = time;
        Predicted { low, microseconds, high, provenance, uncosted_ops }
    }

    /// Returns the time.
    pub const fn time(&self) -> TimeCost {
        TimeCost::within(self.low, self.microseconds, self.high, self.provenance)
    }
}

/// Predicted times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "kebab-case")]
pub enum Speed {
    /// A generative model.
    Tokens {
        /// Number of tokens of the prompt.
        prompt_tokens: u32,
        /// Time from the prompt to the first token, or `None` if the plan reads no prompts.
        first: Option<Predicted>,
        /// Time of each further token.
        each: Predicted,
        /// Likely number of tokens in 1000 seconds, or `None` if the time is zero.
        per_1000_seconds: Option<u64>,
    },
    /// An embedding model.
    Vector {
        /// Largest number of tokens of a text.
        tokens: u32,
        /// Time of one text.
        each: Predicted,
    },
}

/// Whether a model fits a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fits {
    /// Every shard runs on the chip, within all limits and the memory of the device.
    Whole,
    /// Some shards run elsewhere.
    InPart,
    /// A phase needs more than the memory that an app can use on the device.
    No,
    /// The memory of the device is unknown.
    Unknown,
}

/// A summary of the forecast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForecastVerdict {
    pub fits: Fits,
    /// Shards that run elsewhere than on the chip, by name and target.
    pub elsewhere: Vec<(String, String)>,
    /// Whether a goal for a time is unlikely to be met, or missed.
    pub too_slow: bool,
    /// The phase on the device that needs most memory.
    pub largest: Option<Phase>,
    /// Bytes of memory that the phase needs.
    pub held_bytes: u64,
    /// Bytes that may be mapped in addition.
    pub mapped_bytes: u64,
    /// The requested maximum of artefacts and KV cache. `held_bytes` also has buffers and logits,
    /// which planners do not choose, so that it may be more although the plan meets the goal.
    pub asked_bytes: Option<u64>,
    /// Bytes of memory that an app can use on the device, or `None` if unknown.
    pub device_bytes: Option<u64>,
}

/// All predictions about a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// A summary of the forecast.
    pub verdict: ForecastVerdict,
    /// Size of the download, or `None` if the model cannot be downloaded.
    pub download: Option<Download>,
    /// Memory of the phases in order.
    pub memory: Vec<PhaseMemory>,
    pub speed: Speed,
    /// Time of loading all shards, or `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loading: Option<Predicted>,
}

impl Forecast {
    /// Returns the memory of the phase on the device that needs most.
    pub fn largest(&self) -> Option<&PhaseMemory> {
        self.memory.iter().find(|memory| Some(memory.phase) == self.verdict.largest)
    }
}
