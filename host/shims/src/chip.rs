//! A chip's profile, and the part of it that a shim reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::FlagSchema;

/// Maximum number of facts that a shim may declare.
pub(crate) const FACTS_LIMIT: usize = 256;

/// A chip as described by its profile, with all facts or only those a shim reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chip {
    /// Name of the profile. Devices of the chip have it as their `soc`.
    pub name: String,
    /// Other names of the chip.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, String>,
    /// Name of the shim that supports the chip, or `None` if it is unknown. It is not passed to
    /// shims and not stored in artefacts.
    #[serde(skip)]
    pub shim: Option<String>,
}

/// A fact that a shim reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FactSchema {
    /// Name, legal values and meaning. A missing fact has no default.
    pub fact: FlagSchema,
    /// Whether the shim refuses a chip whose profile lacks the fact.
    pub required: bool,
}
