//! Memory use of a model, and its preparation for the first token.

use std::time::{Duration, Instant};

use shardwright_runtime::{CancelHandle, SessionMemory};

use crate::{Model, Result};

/// Memory use of a model and its sessions, as far as this program knows it. Memory that drivers
/// allocate for themselves is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelMemory {
    /// Bytes of the artefacts of the text's chain.
    pub weights: u64,
    /// Bytes of its gathered tables. They are mapped, stay resident only as memory allows, and are
    /// not counted.
    pub tables: u64,
    /// Memory of each session.
    pub session: SessionMemory,
    /// Bytes of the budget in use: by all loaded chains, towers included, and by all sessions that
    /// are not released. 0 for a checkpoint, for which use is not counted.
    pub used: u64,
    /// Memory budget in bytes, if there is one.
    pub budget: Option<u64>,
}

impl Model {
    /// Returns the memory use of the model and its sessions.
    pub fn memory(&self) -> ModelMemory {
        let chain = &self.inner.chain;
        let tables = chain.assets().iter().map(|asset| asset.table.bytes());
        ModelMemory {
            weights: chain.weight_bytes(),
            tables: tables.fold(0, u64::saturating_add),
            session: chain.session_memory(),
            used: chain.budget().map_or(0, |budget| budget.used()),
            budget: chain.budget().and_then(|budget| budget.limit()),
        }
    }

    /// Warms the model up, so that its first token takes no longer than the others: loads weights
    /// into memory and lets drivers do the work of their first call. Runs two tokens on a separate
    /// session, which is dropped. A session that runs meanwhile waits as it does for any other
    /// session. Returns the time spent.
    ///
    /// A clone of the model can do this on another thread. `cancel` can stop it from any thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Memory`](crate::ErrorKind::Memory) if the budget leaves too little for a
    /// session, [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), and errors of running the
    /// session.
    pub fn prewarm(&self, cancel: &CancelHandle) -> Result<Duration> {
        let started = Instant::now();
        self.inner.chain.warm_up(cancel)?;
        Ok(started.elapsed())
    }
}
