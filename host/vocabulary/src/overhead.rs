use serde::{Deserialize, Serialize};

use crate::{Provenance, TimeCost};

/// Names of the overheads that the host counts. A target may have others, which planners also
/// receive.
pub mod overhead_names {
    /// Microseconds of each run of a shard in addition to its computation: the way to the device
    /// and back.
    pub const CALL: &str = "call-microseconds";
    /// Microseconds to load a shard, independent of its size.
    pub const LOAD: &str = "load-microseconds";
    /// Additional microseconds to load a shard, per mebibyte of its artefact.
    pub const LOAD_PER_MEBIBYTE: &str = "load-microseconds-per-mebibyte";
    /// All of these names.
    pub const ALL: &[&str] = &[CALL, LOAD, LOAD_PER_MEBIBYTE];
}

/// A cost of using a target in addition to the computation of its shards.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overhead {
    /// Kebab-case name, see [`overhead_names`].
    pub name: String,
    /// Least amount that is expected. `None` means `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<u64>,
    /// Likely amount. The unit follows from the name.
    pub value: u64,
    /// Largest amount that is expected. `None` means `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<u64>,
    /// Source of the number.
    pub provenance: Provenance,
    /// The observation behind the number, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Overhead {
    /// Returns the overhead as a time, for names that count microseconds.
    pub fn time(&self) -> TimeCost {
        TimeCost {
            low: self.low.unwrap_or(self.value),
            microseconds: self.value,
            high: self.high.unwrap_or(self.value),
            provenance: self.provenance,
        }
    }
}
