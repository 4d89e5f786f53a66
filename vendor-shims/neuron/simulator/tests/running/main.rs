//! Tests of the simulator through its C interface: results of operations, refusals, storing and
//! restoring, configured failures.

mod blobs;
mod child;
mod client;
#[path = "../../../files/tests/support/flatbuffer.rs"]
#[allow(dead_code, reason = "the tests of the files use the rest")]
mod flatbuffer;
mod interpreter;
mod memories;
#[path = "../client/models.rs"]
#[allow(dead_code, reason = "the tests of the client use the rest")]
mod models;
mod operations;
mod rules;
mod runtime;
#[path = "../client/wheel.rs"]
mod wheel;
