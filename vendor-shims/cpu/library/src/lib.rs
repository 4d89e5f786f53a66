//! The CPU shim as a shared library.
//!
//! **Job.** Exports the symbols of the contract. The shim's own crate does not export them, so that
//! it can be linked into a program and is compiled once for both uses.
//!
//! **Not its job.** It contains no other code.

shardwright_shim_abi::export_shim!(::shardwright_shim_cpu::CpuShim);
