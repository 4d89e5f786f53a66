//! The shipped profiles of chips, as a host passes them to a shim.

use std::path::Path;

use serde_json::Value;
use shardwright_shim_abi::Fact;

/// The part of a profile that a shim receives.
pub struct Profile {
    /// Other names of the chip.
    pub aliases: Vec<&'static str>,
    /// The declared facts, as names and values.
    pub facts: Vec<(&'static str, &'static str)>,
}

/// Reads the shipped profile of a chip. Only facts that the shim declares are kept.
pub fn profile(name: &str, declared: &[Fact]) -> Profile {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../plugins/profiles");
    let text = std::fs::read(folder.join(format!("{name}.json"))).expect("a profile");
    let profile: &'static Value = Box::leak(Box::new(serde_json::from_slice::<Value>(&text).expect("JSON")));
    let list = |member: &str| profile[member].as_array().expect("a list").iter();
    let text = |value: &'static Value| value.as_str().expect("text");
    let facts = list("facts").map(|fact| (text(&fact["name"]), text(&fact["value"])));
    Profile {
        aliases: list("aliases").map(text).collect(),
        facts: facts.filter(|(name, _)| declared.iter().any(|fact| fact.name == *name)).collect(),
    }
}
