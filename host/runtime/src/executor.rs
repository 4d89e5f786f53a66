//! What the chain asks of whatever runs a shard, and the shim's answer to it.

use std::sync::Arc;

use shardwright_shims::{Bound, Buffer, LoadedEntry, LoadedShard, RunOptions, Running, ShimError};
use shardwright_vocabulary::{Place, ProcessPlacement};

/// Ends the run in progress from another thread; does nothing when none is.
pub type Interrupt = Arc<dyn Fn() + Send + Sync>;

/// Runs the entries of one shard. [`ShimShard`] is the one that ships; others stand in for it in
/// tests.
pub trait ShardExecutor: Send {
    /// Where it runs.
    fn place(&self) -> &Place;

    /// What it can run, with everything a run binds.
    fn entries(&self) -> &[LoadedEntry];

    /// Zeroed memory that every executor of an equal place can bind and the host can see.
    fn allocate(&self, bytes: u64, alignment: u64) -> Result<Buffer, ShimError>;

    /// Runs `entry` (an index) over `rows` valid rows; blocks until done. `bound` has one item per
    /// binding, in their order. After a failure states hold their old rows below the first position
    /// of the run, unless its class says that they are lost.
    fn run(
        &mut self,
        entry: usize,
        rows: u64,
        bound: &mut [Bound<'_>],
        options: RunOptions,
    ) -> Result<(), ShimError>;

    /// Something to end runs with; `None` where they cannot be ended.
    fn interrupt(&self) -> Option<Interrupt>;

    /// In which process it runs; asked once.
    fn process(&self) -> ProcessPlacement {
        ProcessPlacement::InProcess
    }
}

/// A shard loaded by a shim.
#[derive(Debug)]
pub struct ShimShard {
    place: Place,
    shard: LoadedShard,
}

impl ShimShard {
    /// Of a loaded shard.
    pub fn new(shard: LoadedShard) -> Self {
        ShimShard { place: shard.instance().place(shard.device()), shard }
    }

    /// The loaded shard.
    pub fn loaded(&self) -> &LoadedShard {
        &self.shard
    }
}

impl ShardExecutor for ShimShard {
    fn place(&self) -> &Place {
        &self.place
    }

    fn process(&self) -> ProcessPlacement {
        match self.shard.instance().running() {
            Running::InProcess => ProcessPlacement::InProcess,
            Running::Worker(worker) => ProcessPlacement::Worker { pid: worker.pid },
        }
    }

    fn entries(&self) -> &[LoadedEntry] {
        self.shard.entries()
    }

    fn allocate(&self, bytes: u64, alignment: u64) -> Result<Buffer, ShimError> {
        self.shard.instance().allocate(self.shard.device(), bytes, alignment)
    }

    fn run(
        &mut self,
        entry: usize,
        rows: u64,
        bound: &mut [Bound<'_>],
        options: RunOptions,
    ) -> Result<(), ShimError> {
        self.shard.run(entry, rows, bound, options)
    }

    fn interrupt(&self) -> Option<Interrupt> {
        let canceller = self.shard.canceller();
        Some(Arc::new(move || {
            canceller.cancel();
        }))
    }
}
