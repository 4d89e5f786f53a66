//! The MediaTek shim as a shared library.
//!
//! **Job.** Exports the symbols of the contract. The shim's own crate exports none, so that it can
//! be linked into a program and is compiled once for both.
//!
//! **Not its job.** It has no code of its own.

shardwright_shim_abi::export_shim!(::shardwright_shim_neuron::NeuronShim);
