//! The worker crate: shims in processes of their own.
//!
//! **Job.** A vendor's compiler or driver may abort, hang, exit, allocate without bound, or write
//! out of bounds. A [`Launcher`] opens the same instances as a shim in process, in the program
//! `shardwright-worker`: queries, compilations and runs go over a socket under [`Caps`] of time and
//! memory, an artefact streams back into a file of the host, and buffers are memory that both map,
//! in the worker between guard pages. When the worker ends, or is killed for a cap, the call fails,
//! and [`WorkerFailure::of`] its error says how; its shards and buffers are dead, and the next
//! query starts another worker. [`Shims`] are opened here or in a worker, as [`Isolation`] says.
//!
//! ```no_run
//! use shardwright_shims::ShimRegistry;
//! use shardwright_worker::Launcher;
//! let launcher = Launcher::found()?;
//! let registry = ShimRegistry::builder().isolated(launcher.clone()).directory("shims").build();
//! let compiler = registry.open_isolated("cpu", "compiler", &[], &launcher)?;
//! # Ok::<(), shardwright_shims::ShimError>(())
//! ```
//!
//! It contains faults, not attacks: a worker has the user's rights, and while a run writes a buffer
//! the host must not read it, as in process. A run costs some ten microseconds more; plain memory
//! that is bound is copied, and so is everything for a device that accepts only its shim's own
//! memory. Memory that a shim maps shared or from files does not count against the memory cap. The
//! death of an idle worker is noticed by the next query or when the instance is dropped; until then
//! the system keeps its entry in the process table. Linux only, from 5.3 on.
//!
//! **Not its job.** It knows no vendor and checks no answer (`shims` does, in the same way wherever
//! a shim runs), and does not decide what is compiled or run.
//!
//! Reading order: [`Isolation`], [`Launcher`], `instance.rs`, `protocol.rs`, `program.rs`.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod board;
mod end;
mod instance;
mod isolation;
mod launcher;
mod os;
mod process;
mod program;
mod protocol;
mod remote;
mod shard;
mod shared;

pub use end::{Touched, WorkerEnd, WorkerFailure};
pub use isolation::{Isolation, Shims};
pub use launcher::{Caps, Launcher, find_worker};
pub use program::worker_main;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
