//! How far the opening of a bundle is.

use std::ops::ControlFlow;

use shardwright_bundle::Progress;
use shardwright_shims::Watch;

use crate::{Error, ErrorKind, Result};

/// Thousandths of an opening.
const WHOLE: u64 = 1000;

/// The steps of an opening, by the bytes that each goes through. A chain that does not load is
/// followed by another, so that a step never takes all that is left.
pub(super) struct Steps<'w> {
    watch: &'w mut dyn Watch,
    /// Thousandths that were reported.
    reached: u64,
    /// Those where the bytes now counted begin and end.
    range: (u64, u64),
    /// Bytes gone through, and all there are.
    bytes: (u64, u64),
}

impl<'w> Steps<'w> {
    pub(super) fn new(watch: &'w mut dyn Watch) -> Self {
        Steps { watch, reached: 0, range: (0, 0), bytes: (0, 0) }
    }

    /// The next bytes are so many, over this share of what is left, in tenths.
    pub(super) fn begin(&mut self, bytes: u64, tenths: u64) {
        let left = WHOLE - self.reached;
        self.range = (self.reached, self.reached + left * tenths.min(10) / 10);
        self.bytes = (0, bytes.max(1));
    }

    /// Within a file, of which so many bytes are gone through.
    pub(super) fn within(&mut self, bytes: u64, stage: &str) -> ControlFlow<()> {
        self.report(self.bytes.0.saturating_add(bytes), stage);
        if self.watch.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// A file of so many bytes is gone through.
    pub(super) fn past(&mut self, bytes: u64, stage: &str) {
        self.bytes.0 = self.bytes.0.saturating_add(bytes);
        self.report(self.bytes.0, stage);
    }

    /// Progress of a verification of everything, which has its own bytes.
    pub(super) fn verifying(&mut self, progress: Progress) -> ControlFlow<()> {
        self.bytes = (0, progress.total.max(1));
        self.within(progress.done, "verifying every file")
    }

    /// All is done.
    pub(super) fn done(&mut self) {
        self.reached = WHOLE;
        self.watch.progress(WHOLE as u32, "opened");
    }

    /// Between two pieces of work.
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

/// The error of an opening that was asked to stop.
pub(super) fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "opening the bundle was cancelled")
}
