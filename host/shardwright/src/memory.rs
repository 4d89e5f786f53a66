//! What a model takes of memory, and making it ready for its first token.

use std::time::{Duration, Instant};

use shardwright_runtime::{CancelHandle, SessionMemory};

use crate::{Model, Result};

/// What a model and its sessions take of memory, as far as this program knows it: what drivers take
/// for themselves is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelMemory {
    /// Bytes of the artefacts of the text's chain.
    pub weights: u64,
    /// Bytes of its gathered tables. They are mapped: in memory as far as the system keeps them,
    /// and not counted.
    pub tables: u64,
    /// What each session takes.
    pub session: SessionMemory,
    /// Bytes in use of the budget: of all chains that are loaded, towers included, and of all
    /// sessions that are not released. 0 for a checkpoint, of which nothing is counted.
    pub used: u64,
    /// The budget, if there is one.
    pub budget: Option<u64>,
}

impl Model {
    /// What it takes of memory.
    pub fn memory(&self) -> ModelMemory {
        let chain = self.chain();
        let tables = chain.assets().iter().map(|asset| asset.table.bytes());
        ModelMemory {
            weights: chain.weight_bytes(),
            tables: tables.fold(0, u64::saturating_add),
            session: chain.session_memory(),
            used: chain.budget().map_or(0, |budget| budget.used()),
            budget: chain.budget().and_then(|budget| budget.limit()),
        }
    }

    /// Makes it ready, so that its first token takes no longer than the others: weights come into
    /// memory, and drivers make what they make when they are first asked. Runs two tokens on a
    /// session of its own, which is dropped; a session that runs meanwhile waits for it as for
    /// another session. Gives the time that it took.
    ///
    /// A clone of the model can do so on another thread. `cancel` ends it from anywhere.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Memory`](crate::ErrorKind::Memory) if the budget leaves too little for a
    /// session; [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled); those of running it.
    pub fn prewarm(&self, cancel: &CancelHandle) -> Result<Duration> {
        let started = Instant::now();
        self.chain().warm_up(cancel)?;
        Ok(started.elapsed())
    }
}
