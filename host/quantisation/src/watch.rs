use std::ops::ControlFlow;
use std::path::PathBuf;

/// Progress of quantising weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The current weight.
    pub weight: &'a str,
    /// Bytes made or found complete, of the total.
    pub done: u64,
    /// Bytes to be made.
    pub total: u64,
}

/// Other events a watcher receives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A weight was found whole in the store.
    Found {
        /// The weight.
        weight: String,
    },
    /// A weight was begun by an earlier run and is continued.
    Continued {
        /// The weight.
        weight: String,
        /// Chunks found complete.
        chunks: u64,
        /// Total number of chunks.
        of: u64,
    },
    /// The moments of what the weight is multiplied with are not positive definite with the usual
    /// damping.
    Damped {
        /// The weight.
        weight: String,
        /// The damping they have now, in hundredths of the mean square of a column.
        percent: u64,
    },
    /// Nothing that the weight is multiplied with was seen, or no finite numbers were: each value
    /// is rounded to the nearest.
    NotSeen {
        /// The weight.
        weight: String,
    },
    /// No finite derivatives by the weight's results were seen: errors of its rows make up for
    /// themselves alone.
    RowsAlone {
        /// The weight.
        weight: String,
    },
    /// Another process is making the weight; work continues when it is done.
    Waiting {
        /// The weight.
        weight: String,
        /// The file that program writes.
        path: PathBuf,
    },
    /// Others may write the directory of the store: its content is not trusted, and everything is
    /// made again for this run only.
    Disbelieved {
        /// The directory, and the user or file mode.
        reason: String,
    },
    /// A file of the store was damaged or may be another user's, and is made again.
    Remade {
        /// The weight.
        weight: String,
        /// The file.
        path: PathBuf,
        /// What was wrong with it.
        reason: String,
    },
}

/// Follows long work and may cancel it.
pub trait Watch {
    /// Called after every batch of chunks; [`ControlFlow::Break`] ends the work with
    /// [`QuantiseError::Cancelled`](crate::QuantiseError::Cancelled).
    fn progress(&mut self, progress: &Progress<'_>) -> ControlFlow<()>;

    /// Called for other events.
    fn note(&mut self, _note: Note) {}
}

/// Watches nothing and never cancels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn progress(&mut self, _progress: &Progress<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
