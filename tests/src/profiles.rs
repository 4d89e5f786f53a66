//! Chips as a host registers them with a shim, for tests that use an instance directly.

use serde_json::Value;
use shardwright_shims::Chip;

use crate::tree;

/// Returns the facts of a shipped profile that the shim reads.
///
/// # Panics
/// If there is no such profile.
pub fn chip(name: &str) -> Chip {
    let path = tree::root().join("plugins/profiles").join(format!("{name}.json"));
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let profile: Value = serde_json::from_slice(&text).expect("JSON");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let facts = profile["facts"].as_array().expect("facts").iter();
    Chip {
        name: name.to_owned(),
        aliases: profile["aliases"].as_array().expect("aliases").iter().map(text).collect(),
        facts: facts.map(|fact| (text(&fact["name"]), text(&fact["value"]))).collect(),
        shim: Some(text(&profile["shim"])),
    }
}
