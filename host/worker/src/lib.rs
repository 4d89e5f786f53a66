//! Runs shims in separate worker processes.
//!
//! **Job.** A vendor's compiler or driver may abort, hang, exit, allocate without bound, or write
//! out of bounds. A [`Launcher`] opens the same instances as a shim in process, but in the program
//! `shardwright-worker`. Queries, compilations and runs use a socket, with time and memory limits
//! ([`Caps`]). An artefact streams back into a file of the host. Buffers are memory that both
//! processes map, between guard pages in the worker.
//!
//! If the worker ends, or is killed because of a limit, the call fails, and [`WorkerFailure::of`]
//! its error reports the reason. The worker's shards and buffers are lost, and the next query
//! starts another worker. [`Isolation`] selects whether [`Shims`] are opened in this process or in
//! a worker.
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
//! Workers contain faults, not attacks: a worker has the user's rights. While a run writes a
//! buffer, the host must not read it, as in process. A run costs some ten microseconds more. Plain
//! memory that is bound is copied, and so is all memory for a device that accepts only its shim's
//! own memory. Shared and file mappings of a shim do not count against the memory limit. The end of
//! an idle worker is noticed by the next query or when the instance is dropped. Until then the
//! system keeps its entry in the process table. Linux only, from 5.3 on.
//!
//! **Not its job.** It does not depend on a vendor. `shims` checks the answers, in the same way
//! wherever a shim runs. It does not decide what is compiled or run.
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
