//! Progress of opening a bundle.

use std::ops::ControlFlow;

use shardwright_bundle::FileProgress;
use shardwright_vocabulary::Watch;

use crate::{Error, ErrorKind, Result};

/// The whole of an opening, in thousandths.
const WHOLE: u64 = 1000;

/// The steps of an opening, measured in bytes. A chain that fails to load is followed by another,
/// so a step never uses all of the remaining progress.
pub(super) struct OpeningProgress<'w> {
    watch: &'w mut dyn Watch,
    /// Thousandths reported so far.
    reached: u64,
    /// Thousandths at the begin and the end of the current step.
    range: (u64, u64),
    /// Bytes of the current step that are done, and their total.
    bytes: (u64, u64),
}

impl<'w> OpeningProgress<'w> {
    pub(super) fn new(watch: &'w mut dyn Watch) -> Self {
        OpeningProgress { watch, reached: 0, range: (0, 0), bytes: (0, 0) }
    }

    /// Begins a step of `bytes` bytes, which covers `tenths` tenths of the remaining progress.
    pub(super) fn begin(&mut self, bytes: u64, tenths: u64) {
        let left = WHOLE - self.reached;
        self.range = (self.reached, self.reached + left * tenths.min(10) / 10);
        self.bytes = (0, bytes.max(1));
    }

    /// Reports progress within a file, of which `bytes` bytes are done.
    pub(super) fn within(&mut self, bytes: u64, stage: &str) -> ControlFlow<()> {
        self.report(self.bytes.0.saturating_add(bytes), stage);
        if self.watch.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Reports that a file of `bytes` bytes is done.
    pub(super) fn past(&mut self, bytes: u64, stage: &str) {
        self.bytes.0 = self.bytes.0.saturating_add(bytes);
        self.report(self.bytes.0, stage);
    }

    /// Reports progress of verifying the whole bundle, which counts its own bytes.
    pub(super) fn verifying(&mut self, progress: FileProgress) -> ControlFlow<()> {
        self.bytes = (0, progress.total.max(1));
        self.within(progress.done, "verifying every file")
    }

    /// Reports that the opening is complete.
    pub(super) fn done(&mut self) {
        self.reached = WHOLE;
        self.watch.progress(WHOLE as u32, "opened");
    }

    /// Checks for cancellation between two pieces of work.
    pub(super) fn go_on(&self) -> Result<()> {
        match self.watch.cancelled() {
            true => Err(cancelled()),
            false => Ok(()),
        }
    }

    fn report(&mut self, bytes: u64, stage: &str) {
        let ((begin, end), all) = (self.range, u128::from(self.bytes.1));
        let share = u128::from(end - begin) * u128::from(bytes).min(all) / all;
        self.reached = self.reached.max(begin + share as u64);
        self.watch.progress(self.reached as u32, stage);
    }
}

/// Returns the error of a cancelled opening.
pub(super) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "opening the bundle was cancelled")
}
