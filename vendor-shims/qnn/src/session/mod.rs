//! The library's handles as owned values. Graphs are passed in, context binaries or results are
//! returned.
//!
//! Each value keeps its parents alive, so handles are freed in the order the library requires:
//! graphs with their context, then device, backend, log. The library itself is never unloaded.
//!
//! **Threads.** Preparing calls (everything but execution) of one process run one at a time,
//! because only the log contains the reason of a failure, and all calls share it. A graph may be
//! run from any thread, and several at once. The simulation has one fast memory for all graphs, so
//! there runs wait for each other and for preparing calls.
//!
//! **Chips.** One process may have devices of several chips, and contexts of all of them at the
//! same time. Architectures 68 to 85 do not disturb each other. The library reports that
//! architecture 89 would, and does not compile for it.
//!
//! **Bytes.** A binary contains the numbers of its tensors and graphs. The library increments them
//! for the life of the process, whatever is freed. So the same graph produces the same bytes only
//! after the same calls, that is, in a new process. Even then a graph of hundreds of operations
//! sometimes produces other bytes: twelve compilations of eight layers, each in a new process on
//! one processor at fixed addresses, produced eight different binaries.

mod backend;
mod binary;
mod check;
pub(crate) mod child;
mod compose;
mod configs;
mod context;
mod data;
mod describe;
mod execute;
pub(crate) mod guarded;
mod memory;
mod node;
mod options;
mod platform;
mod power;
mod profile;
mod tensor;

pub use crate::failure::{CallFailure, LibraryError, QnnError, Result};
pub use crate::library::{Library, LibraryChoice, System};
pub use crate::soc::{CodeFor, SocId};
pub use backend::{Backend, Device, RegisteredMemory};
pub use binary::{ContextBinary, LoadedContext};
pub use compose::ComposedGraph;
pub use context::{Context, ContextHandle};
pub use describe::{
    BinaryDescription, EncodingDescription, GraphDescription, GraphSizes, TensorDescription, VersionText,
    describe_binary,
};
pub use execute::RunnableGraph;
pub use memory::Memory;
pub use options::{ContextOptions, FinalizeValue, GraphOptions};
pub use power::PowerVote;
pub use profile::Profile;

use crate::ffi::Code;
use crate::log::{self, Mark};
use crate::simulation::Confined;
use std::sync::{Mutex, MutexGuard, PoisonError};

static PREPARING: Mutex<()> = Mutex::new(());

/// One preparing call, and the position of the log when it began.
pub(crate) struct Preparation {
    _alone: MutexGuard<'static, ()>,
    _confined: Option<Confined>,
    mark: Mark,
}

impl Preparation {
    pub(crate) fn begin() -> Preparation {
        Preparation { _confined: Some(Confined::new()), ..Preparation::on_all_processors() }
    }

    /// Begins a call that has work for several processors.
    pub(crate) fn on_all_processors() -> Preparation {
        let alone = PREPARING.lock().unwrap_or_else(PoisonError::into_inner);
        Preparation { _alone: alone, _confined: None, mark: log::mark() }
    }

    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }
}

/// Returns an error of `function`, unless `code` is 0.
pub(crate) fn checked(library: &Library, function: &'static str, code: Code, mark: Mark) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(QnnError::Call(Box::new(CallFailure::new(
        function,
        code,
        library.code_name(code),
        &log::since(mark),
    ))))
}
