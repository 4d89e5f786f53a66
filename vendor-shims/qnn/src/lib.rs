//! The Qualcomm shim: compiles shards for the Hexagon tensor processor and runs them, through the
//! QNN C API.
//!
//! **Job.** Checks, lowers, compiles, loads and runs work orders with the vendor's own library,
//! behind the stable shim contract. It uses a phone's processor or the functional simulation of the
//! x86-64 library. Reports the reason for each refusal of the compiler and the actual effect of
//! each flag. Checks the target of an artefact before the library loads it.
//!
//! **Not its job.** It does not plan, does not know model families or files of the host, and opens
//! only the library selected by its rule.
//!
//! Reading order: [`QnnShim`], then the compile path ([`soc`], `recognise`, [`lower`], [`graph`],
//! [`session`], [`artefact`]), then the run path (`compatibility`, `loaded`). `rules`, `flags`,
//! `probe` and `estimate` support both.

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
pub use shim::{Qnn, QnnShim};

/// Returns the contract's entry function, for programs that link this shim.
pub fn shim_entry() -> shardwright_shim_abi::raw::SwEntryFunction {
    shardwright_shim_abi::export::entry::<QnnShim>
}
