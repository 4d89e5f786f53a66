//! A library with the C interface of MediaTek's Neuron Adapter, for work without a phone: it
//! builds, judges, compiles, stores, restores and runs networks, in the integer arithmetic that
//! TensorFlow Lite defines, as a version and on a processor that a JSON file chooses, and fails
//! where that file says.
//!
//! **Not its job.** It is no compiler of MediaTek's and does not pretend to be one: blobs have a
//! name and a magic of its own, and `ShardwrightNeuronSimulator_describe` says what it is. It is no
//! shim. How fast a phone would be, what its compiler would refuse beyond the rules told here, and
//! how its hardware rounds, it does not know.
//!
//! The file is named by the variable `SHARDWRIGHT_NEURON_SIMULATOR`; its members are those of
//! [`configuration::Configuration`].

pub mod arithmetic;
pub mod blob;
mod bytes;
mod call;
mod compilation;
pub mod configuration;
mod execution;
mod exports;
mod handles;
mod memory;
mod model;
mod network;
mod options;
mod step;
pub mod target;

pub use exports::*;
