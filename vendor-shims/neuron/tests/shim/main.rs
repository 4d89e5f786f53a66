//! The shim from its door through the simulator of the adapter: numbers, refusals, failures at
//! every call.
//!
//! What MediaTek's own library makes of the same calls only a phone tells.

mod chips;
mod failures;
mod flags;
mod library;
mod memory;
mod operations;
mod support;
