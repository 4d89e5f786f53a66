//! The Qualcomm shim as a shared library.
//!
//! **Job.** Exports the symbols of the contract. The enclosing crate exports no symbols, so
//! programs can link it, and it is compiled once for both.
//!
//! **Not its job.** It has no code of its own.

shardwright_shim_abi::export_shim!(::shardwright_shim_qnn::QnnShim);
