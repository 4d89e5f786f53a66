//! Code shared by the tests of shims, and the worker program.

use shardwright_worker::{Caps, Launcher};

#[path = "../../../shims/tests/common/mod.rs"]
mod shims;

pub use shims::*;

/// Returns the worker program, with limits that no test approaches.
pub fn isolation() -> Launcher {
    Launcher { worker: env!("CARGO_BIN_EXE_shardwright-worker").into(), caps: Caps::default() }
}
