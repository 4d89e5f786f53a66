//! The adapter's objects with their rules in the type system: freeing too early or using too late
//! does not compile.
//!
//! **Lifetimes.** A [`Compilation`] owns its [`Model`], an [`Execution`] its [`Network`], and each
//! frees itself before the objects it depends on. Constants of more than 128 bytes are read until a
//! compilation is finished, so a model keeps them as long as it lives. An execution keeps the
//! memory bound to it.
//!
//! **Order of calls.** As in the clients known to work: operands, inputs and outputs, operations,
//! finish, relax; options, priority, preference, L1, hint, finish.
//!
//! **Not its job.** It knows no entries and no ports.

mod compilation;
mod execution;
mod memory;
mod model;

pub use compilation::{Compilation, CompileSettings, Network, PaddedSide};
pub use execution::Execution;
pub use memory::SharedHandle;
pub use model::Model;
