//! Chips for tests, as a host registers them: the facts of their profiles that the shim reads.
#![allow(dead_code, reason = "each test program uses a part of it")]

use shardwright_shim_abi::Chip;
use shardwright_shim_qnn::soc::{Soc, facts, read_facts};
use shardwright_shim_testing::profile;

/// Creates a chip from facts.
pub fn of(name: &str, facts: &[(&str, &str)]) -> Soc {
    let facts = facts.iter().copied().collect();
    Soc::read(&Chip { name, aliases: Vec::new(), facts }).expect("a chip")
}

/// Creates the chip of a shipped profile.
pub fn soc(name: &str) -> Soc {
    of(name, &profile(name, &read_facts()).facts)
}

/// Creates a chip with only a number and an architecture.
pub fn numbered(id: u32, arch: u32) -> Soc {
    let (id, arch) = (id.to_string(), format!("v{arch}"));
    of(&format!("soc-{id}"), &[(facts::SOC_ID, &id), (facts::ARCHITECTURE, &arch)])
}
