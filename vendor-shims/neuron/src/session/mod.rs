//! The adapter's objects with their rules in the type system: code that frees an object too early
//! or uses it too late does not compile.
//!
//! **Lifetimes.** A [`Compilation`] owns its [`Model`], and an [`Execution`] owns its [`Network`].
//! Each frees itself before the objects on which it depends. Constants of more than 128 bytes are
//! read until a compilation is finished, so a model keeps them as long as it lives. An execution
//! keeps the memory that is bound to it.
//!
//! **Order of calls.** The same as in the clients that are known to work. For a model: operands,
//! inputs and outputs, operations, finish, relax. For a compilation: options, priority, preference,
//! L1, hint, finish.
//!
//! **Not its job.** Entries and ports.

mod compilation;
mod execution;
mod memory;
mod model;

pub use compilation::{Compilation, CompileSettings, Network, PaddedSide};
pub use execution::Execution;
pub use memory::SharedHandle;
pub use model::Model;
