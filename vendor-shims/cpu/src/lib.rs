//! The CPU shim: the fast engine and last fallback.
//!
//! **Job.** Checks, compiles, loads and runs work orders on the processor, behind the stable shim
//! contract. A compiled artefact is memory-mapped and contains packed weights, a program and a
//! static memory plan. Every output element is reduced in an order that depends only on the
//! reduction length and the kernel. Rows, blocks, threads, cuts and instruction sets therefore
//! change no bit of a result.
//!
//! **Not its job.** It reads no files except its own artefacts, does not plan, keeps no positions,
//! owns no session and knows no model family.
//!
//! Reading order: [`CpuShim`], `lower` (an entry graph becomes a program), [`program`], `ops` (all
//! parts of each operation), `artefact`, `execute`, [`kernels`], [`simd`].

pub mod artefact;
mod choice;
mod error;
mod estimate;
mod execute;
pub mod kernels;
mod lower;
mod ops;
pub mod pool;
mod processor;
pub mod program;
mod shim;
pub mod simd;
mod tuning;

pub use shim::CpuShim;

/// Returns the contract's entry function, for programs that link this shim.
pub fn shim_entry() -> shardwright_shim_abi::raw::SwEntryFunction {
    shardwright_shim_abi::export::entry::<CpuShim>
}
