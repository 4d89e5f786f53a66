//! Tests of the simulator through its C interface: results of operations, refusals, storing and
//! restoring, configured failures.

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
