//! Chips for tests, as a host passes them: the facts of their profiles that the shim reads.

use std::path::Path;

use serde_json::Value;
use shardwright_shim_neuron::shim_entry;
use shardwright_shim_testing::Host;

/// Passes the facts of a chip's shipped profile.
pub fn make_known(host: &Host, name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/profiles");
    let text = std::fs::read(folder.join(format!("{name}.json"))).expect("a profile");
    let profile: Value = serde_json::from_slice(&text).expect("JSON");
    let read = Host::facts(shim_entry()).expect("declared");
    let facts: Vec<(&str, &str)> = profile["facts"]
        .as_array()
        .expect("facts")
        .iter()
        .map(|fact| (fact["name"].as_str().expect("a name"), fact["value"].as_str().expect("a value")))
        .filter(|(name, _)| read.iter().any(|(declared, _)| declared == name))
        .collect();
    let aliases = profile["aliases"].as_array().expect("aliases").iter();
    let aliases: Vec<&str> = aliases.map(|alias| alias.as_str().expect("an alias")).collect();
    host.chip(name, &aliases, &facts).expect("a chip");
}
