//! The shim through its entry point, with the simulator of the adapter: numbers, refusals, failures
//! at every call.
//!
//! How MediaTek's own library handles the same calls can only be seen on a phone.

mod chips;
mod estimates;
mod failures;
mod flags;
mod library;
mod memory;
mod operations;
mod support;
