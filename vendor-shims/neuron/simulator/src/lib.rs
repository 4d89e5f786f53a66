//! A library with the C interface of MediaTek's Neuron Adapter, for work without a phone.
//!
//! **Job.** It builds, checks, compiles, stores, restores and runs networks in the integer
//! arithmetic that TensorFlow Lite defines. A JSON file specifies the version and processor that it
//! emulates, and the failures that it injects.
//!
//! **Not its job.** Imitating MediaTek's compiler beyond its interface: blobs have a name and a
//! magic of their own, and `ShardwrightNeuronSimulator_describe` identifies the library. It is not
//! a shim. It cannot predict a phone's speed, refusals of the real compiler beyond the rules
//! documented here, or the rounding of the hardware.
//!
//! The variable `SHARDWRIGHT_NEURON_SIMULATOR` names the file, whose members are the fields of
//! [`configuration::Configuration`].

pub mod arithmetic;
pub mod blob;
mod call;
mod checksum;
mod compilation;
pub mod configuration;
mod execution;
mod exports;
mod handles;
mod memory;
mod model;
mod network;
mod step;
pub mod target;

pub use exports::*;
