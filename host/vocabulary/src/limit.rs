use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Flag, Provenance, units};

/// Names of the limits that the host can check. A target may have others. The host passes these on
/// to planners and learns them from refusals, but cannot check them before compiling.
pub mod limit_names {
    /// Operations after legalisation in any single entry point of a shard.
    pub const OPS: &str = "ops";
    /// Weight bytes of a shard.
    pub const WEIGHT_BYTES: &str = "weight-bytes";
    /// Bytes of a shard's compiled artefact: its weights and the additions of each entry point.
    pub const ARTEFACT_BYTES: &str = "artefact-bytes";
    /// Bytes a loaded shard occupies: artefact and states.
    pub const CONTEXT_BYTES: &str = "context-bytes";
    /// Number of shards on this target.
    pub const SHARDS: &str = "shards";
    /// Bytes all shards on this target occupy together: artefacts and states.
    pub const MEMORY_BYTES: &str = "memory-bytes";
    /// Likely microseconds of one run of a shard at its slowest entry point.
    pub const CALL_MICROSECONDS: &str = "call-microseconds";
    /// All of these names.
    pub const ALL: &[&str] =
        &[OPS, WEIGHT_BYTES, ARTEFACT_BYTES, CONTEXT_BYTES, SHARDS, MEMORY_BYTES, CALL_MICROSECONDS];
}

/// An inclusive upper bound set by a target.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Kebab-case name, see [`limit_names`].
    pub name: String,
    /// Largest legal value. The unit follows from the name (operations, bytes, shards,
    /// microseconds).
    pub value: u64,
    /// Source of the number.
    pub provenance: Provenance,
    /// The observation behind the limit, in one sentence. Empty if the provenance is enough.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Flags that were expected to raise the limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relief: Vec<Relief>,
}

/// A limit's value under a compiler flag.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relief {
    /// Flag that changes the limit.
    pub flag: Flag,
    /// The bound with the flag set. `None` if the flag has no effect on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
    /// The observation behind the value, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Limit {
    /// Creates a limit without a note.
    pub fn new(name: impl Into<String>, value: u64, provenance: Provenance) -> Self {
        Self { name: name.into(), value, provenance, note: String::new(), relief: Vec::new() }
    }

    /// Sets the note, one sentence about the observation.
    pub fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// Returns the bound for a shard compiled with these flags: the largest that one of them
    /// allows.
    pub fn under(&self, flags: &[Flag]) -> u64 {
        let raised = self.relief.iter().filter(|relief| flags.contains(&relief.flag));
        raised.filter_map(|relief| relief.value).fold(self.value, u64::max)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = units::quantity(&self.name, self.value);
        write!(formatter, "{} ≤ {value} ({})", self.name, self.provenance)
    }
}
