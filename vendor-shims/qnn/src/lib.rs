//! The Qualcomm shim: compiles shards for the Hexagon tensor processor and runs them, through the
//! QNN C API.
//!
//! **Job.** Checks, lowers, compiles, loads and runs work orders with the vendor's own library,
//! behind the stable shim contract: on a phone's processor, or in the functional simulation of the
//! x86-64 library. Reports what the compiler refuses and why, the actual effect of a flag, and the
//! target of an artefact before the library is asked to load it.
//!
//! **Not its job.** It plans nothing, knows no model family and no file of the host, and opens no
//! library but the one its rule names.
//!
//! Reading order: [`QnnShim`]; on the way to an artefact [`soc`], `recognise`, [`lower`],
//! [`graph`], [`session`], [`artefact`]; on the way back `compatibility`, `loaded`;
//! beside it `rules`, `flags` and `probe`, `estimate`.

pub mod artefact;
mod compatibility;
mod compile;
mod driver;
pub mod estimate;
pub mod failure;
pub mod ffi;
mod flags;
pub mod graph;
mod inspect;
pub mod library;
mod loaded;
pub mod log;
pub mod lower;
mod memory;
mod probe;
mod recognise;
pub mod rules;
pub mod session;
mod shim;
mod simulation;
pub mod soc;

pub use driver::{Driver, Settings};
pub use shim::QnnShim;

/// Returns the contract's entry function, for programs that link this shim.
pub fn shim_entry() -> shardwright_shim_abi::raw::SwEntryFunction {
    shardwright_shim_abi::export::entry::<QnnShim>
}
