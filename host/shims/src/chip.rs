//! What a profile says of a chip, and which of it a shim reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::FlagSchema;

/// Most facts a shim may declare.
pub(crate) const FACTS_LIMIT: usize = 256;

/// A chip as its profile describes it, or as much of that as a shim reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chip {
    /// Name of the profile; devices of the chip bear it as their `soc`.
    pub name: String,
    /// Other names it goes by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// What is known of it, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, String>,
}

/// A fact that a shim reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FactSchema {
    /// Name, legal values and meaning. There is no value in place of one that is not given.
    pub fact: FlagSchema,
    /// Whether no code is made for a chip whose profile does not say it.
    pub required: bool,
}
