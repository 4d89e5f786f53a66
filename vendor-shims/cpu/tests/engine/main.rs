//! The engine through the contract: numbers, models, formats, and hostile artefacts.

#[path = "../support/mod.rs"]
mod support;
#[path = "../../fuzz/src/lib.rs"]
mod targets;

mod contract;
mod corpus;
mod decoder;
mod hostile;
mod joined;
mod largest;
mod model;
mod quantised;
mod towers;
