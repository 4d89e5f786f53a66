//! Chips for tests, as a host registers them: the facts of their profiles that the shim reads.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;

use serde_json::Value;
use shardwright_shim_abi::Chip;
use shardwright_shim_qnn::soc::{Soc, facts};

/// Names and values of facts.
pub type Facts = Vec<(String, String)>;

/// Reads the facts of a shipped profile.
pub fn facts_of(name: &str) -> Facts {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/profiles");
    let text = std::fs::read(folder.join(format!("{name}.json"))).expect("a profile");
    let profile: Value = serde_json::from_slice(&text).expect("JSON");
    let text = |fact: &Value, member: &str| fact[member].as_str().expect("text").to_owned();
    let read = shardwright_shim_qnn::soc::read_facts();
    let is_read = |name: &String| read.iter().any(|fact| fact.name == *name);
    let all = profile["facts"].as_array().expect("facts").iter();
    all.map(|fact| (text(fact, "name"), text(fact, "value"))).filter(|(name, _)| is_read(name)).collect()
}

/// Creates a chip from facts.
pub fn of(name: &str, facts: &[(&str, &str)]) -> Soc {
    let facts = facts.iter().copied().collect();
    Soc::read(&Chip { name, aliases: Vec::new(), facts }).expect("a chip")
}

/// Creates the chip of a shipped profile.
pub fn soc(name: &str) -> Soc {
    let facts = facts_of(name);
    let facts: Vec<(&str, &str)> =
        facts.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    of(name, &facts)
}

/// Creates a chip with only a number and an architecture.
pub fn numbered(id: u32, arch: u32) -> Soc {
    let (id, arch) = (id.to_string(), format!("v{arch}"));
    of(&format!("soc-{id}"), &[(facts::SOC_ID, &id), (facts::ARCHITECTURE, &arch)])
}
