use serde::{Deserialize, Serialize};

use crate::Provenance;

/// Names of the overheads that the host counts. A target may have others, which planners see.
pub mod overhead_names {
    /// Microseconds that each run of a shard takes beside its computation: the way to the device
    /// and back.
    pub const CALL: &str = "call-microseconds";
    /// Microseconds that loading a shard takes, whatever its size.
    pub const LOAD: &str = "load-microseconds";
    /// Microseconds more for each mebibyte of its artefact.
    pub const LOAD_PER_MEBIBYTE: &str = "load-microseconds-per-mebibyte";
    /// All of the above.
    pub const ALL: &[&str] = &[CALL, LOAD, LOAD_PER_MEBIBYTE];
}

/// What the use of a target takes beside what its shards compute.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overhead {
    /// Kebab-case name, see [`overhead_names`].
    pub name: String,
    /// How much; the unit follows from the name.
    pub value: u64,
    /// Where the number comes from.
    pub provenance: Provenance,
    /// What was observed, in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}
