//! The MediaTek shim: compiles shards for the MDLA of Dimensity chips and runs them, through the
//! Neuron Adapter C API.
//!
//! **Job.** Checks, lowers, compiles, loads and runs work orders with the vendor's library, or with
//! a simulator that has its ABI and identifies itself. Chooses that library by one rule, reports
//! what it refuses and why, and reports an artefact's target before the library is asked to restore
//! it.
//!
//! **Not its job.** It plans nothing, knows no model family and no file of the host, opens no
//! second library where the first one fails, and compiles nothing on a phone where an artefact
//! should be restored.
//!
//! Reading order: [`NeuronShim`], [`library`]; for compiling [`soc`], [`lower`], [`graph`],
//! [`session`], [`artefact`]; for estimates [`roofline`]; for running `compatibility`, `loaded`,
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

pub use driver::{Driver, Settings};
pub use memory::SharedBuffer;
pub use shim::NeuronShim;

/// Returns the contract's entry function, for programs that link this shim.
pub fn shim_entry() -> shardwright_shim_abi::raw::SwEntryFunction {
    shardwright_shim_abi::export::entry::<NeuronShim>
}
