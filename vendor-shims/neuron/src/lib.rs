//! The MediaTek shim: compiles shards for the MDLA of Dimensity chips and runs them, through the
//! Neuron Adapter C API.
//!
//! **Job.** Checks, lowers, compiles, loads and runs work orders with the vendor's library, or with
//! a simulator that has the same ABI and identifies itself. Chooses the library by one rule,
//! reports the nodes that it refuses and why, and checks an artefact's target before the library
//! restores it.
//!
//! **Not its job.** Planning, knowledge of model families and the host's files, a second library if
//! the first one fails, and compiling on a phone when an artefact should be restored.
//!
//! Reading order: [`NeuronShim`] and [`library`]. For compiling: [`soc`], [`lower`], [`graph`],
//! [`session`], [`artefact`]. For estimates: [`roofline`]. For running: `compatibility`, `loaded`,
//! `memory`.

pub mod artefact;
mod compatibility;
mod compile;
mod driver;
pub mod failure;
mod flags;
pub mod graph;
mod inspect;
pub mod library;
mod loaded;
pub mod lower;
mod memory;
mod power;
mod priority;
pub mod roofline;
mod sample;
pub mod session;
mod shim;
pub mod soc;
mod trail;

pub use driver::Driver;
pub use memory::SharedBuffer;
pub use shim::{Neuron, NeuronShim};

/// Returns the contract's entry function, for programs that link this shim.
pub fn shim_entry() -> shardwright_shim_abi::raw::SwEntryFunction {
    shardwright_shim_abi::export::entry::<NeuronShim>
}
