//! Tests the shim through its entry point, with the simulator of the adapter: numbers, refusals,
//! and failures of every call.
//!
//! How MediaTek's own library handles the same calls can only be observed on a phone.

mod chips;
mod estimates;
mod failures;
mod flags;
mod library;
mod memory;
mod operations;
mod support;
