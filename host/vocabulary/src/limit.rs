use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Flag, Provenance};

/// Names of the limits that the host can check. A target may have others: they are passed on to
/// planners and learned from refusals, but only these can be checked before compiling.
pub mod limit_names {
    /// Operations after legalisation in any single entry point of a shard.
    pub const OPS: &str = "ops";
    /// Weight bytes of a shard.
    pub const WEIGHT_BYTES: &str = "weight-bytes";
    /// Bytes of a shard's compiled artefact: its weights and what each entry point adds.
    pub const ARTEFACT_BYTES: &str = "artefact-bytes";
    /// Bytes a loaded shard occupies: artefact and states.
    pub const CONTEXT_BYTES: &str = "context-bytes";
    /// Shards on this target.
    pub const SHARDS: &str = "shards";
    /// Bytes all shards on this target occupy together: artefacts and states.
    pub const MEMORY_BYTES: &str = "memory-bytes";
    /// Microseconds of one run of a shard at its slowest entry point, as far as they are known.
    pub const CALL_MICROSECONDS: &str = "call-microseconds";
    /// All of the above.
    pub const ALL: &[&str] =
        &[OPS, WEIGHT_BYTES, ARTEFACT_BYTES, CONTEXT_BYTES, SHARDS, MEMORY_BYTES, CALL_MICROSECONDS];
}

/// An upper bound a target sets, inclusive.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Kebab-case name, see [`limit_names`].
    pub name: String,
    /// Largest legal value; the unit follows from the name (operations, bytes, shards,
    /// microseconds).
    pub value: u64,
    /// Where the number comes from.
    pub provenance: Provenance,
    /// What was observed, in one sentence; empty if the provenance says it all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Flags that were thought to raise it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relief: Vec<Relief>,
}

/// A limit's value under a compiler flag.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relief {
    /// The flag.
    pub flag: Flag,
    /// The bound with the flag set; `None` if the flag has no effect on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
    /// What was observed, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Limit {
    /// A limit without a note.
    pub fn new(name: impl Into<String>, value: u64, provenance: Provenance) -> Self {
        Self { name: name.into(), value, provenance, note: String::new(), relief: Vec::new() }
    }

    /// With what was observed, in one sentence.
    pub fn with_note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    /// The bound for a shard compiled with these flags: the largest that one of them allows.
    pub fn under(&self, flags: &[Flag]) -> u64 {
        let raised = self.relief.iter().filter(|relief| flags.contains(&relief.flag));
        raised.filter_map(|relief| relief.value).fold(self.value, u64::max)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ≤ {} ({})", self.name, self.value, self.provenance)
    }
}
