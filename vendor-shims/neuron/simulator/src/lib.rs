//! A library with the C interface of MediaTek's Neuron Adapter, for work without a phone: it
//! builds, checks, compiles, stores, restores and runs networks, in the integer arithmetic that
//! TensorFlow Lite defines, emulating the version and processor in a JSON file, and fails where
//! that file says.
//!
//! **Not its job.** It is not MediaTek's compiler and does not pretend to be: blobs have a name and
//! a magic of their own, and `ShardwrightNeuronSimulator_describe` identifies it. It is no shim. It
//! does not know how fast a phone would be, what its compiler would refuse beyond the rules
//! documented here, or how its hardware rounds.
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
