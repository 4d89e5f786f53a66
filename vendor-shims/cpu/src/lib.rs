//! The CPU shim: the fast engine and last fallback.
//!
//! **Job.** Checks, compiles, loads and runs work orders on the processor, behind the stable shim
//! contract. A compiled artefact is memory-mapped: packed weights, a program and a static memory
//! plan. Every output element is reduced in an order that follows from the reduction length and the
//! kernel alone, so rows, blocks, threads, cuts and instruction sets change no bit of a result.
//!
//! **Not its job.** It parses no file of the host but its own artefacts, plans nothing, keeps no
//! positions and owns no session; it knows no model family.
//!
//! Reading order: [`CpuShim`], `lower` (an entry graph becomes a program), [`program`], `artefact`,
//! `execute`, [`kernels`], [`simd`].

pub mod artefact;
mod choice;
mod error;
mod estimate;
mod execute;
pub mod kernels;
mod lower;
pub mod pool;
mod processor;
pub mod program;
mod shim;
pub mod simd;
mod tuning;

pub use error::CpuError;
pub use shim::CpuShim;

/// Returns the contract's entry function, for programs that link this shim.
pub fn shim_entry() -> shardwright_shim_abi::raw::SwEntryFunction {
    shardwright_shim_abi::export::entry::<CpuShim>
}
