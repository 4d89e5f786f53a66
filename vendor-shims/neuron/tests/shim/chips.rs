//! Chips for tests, as a host passes them: the facts of their profiles that the shim reads.

use shardwright_shim_neuron::soc::read_facts;
use shardwright_shim_testing::{Host, profile};

/// Passes the facts of a chip's shipped profile.
pub fn make_known(host: &Host, name: &str) {
    let profile = profile(name, &read_facts());
    host.chip(name, &profile.aliases, &profile.facts).expect("a chip");
}
