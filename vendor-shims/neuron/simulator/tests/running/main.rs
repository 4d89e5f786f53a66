//! The simulator through its C interface: what operations compute, what it refuses, what it stores
//! and restores, how it fails where it is told to.

mod blobs;
mod child;
mod client;
#[path = "../client/flat.rs"]
mod flat;
mod interpreter;
mod memories;
mod operations;
mod rules;
mod runtime;
