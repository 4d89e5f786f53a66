use std::ops::ControlFlow;
use std::path::PathBuf;

/// How far the making of weights has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The weight in work.
    pub weight: &'a str,
    /// Bytes made, or found made, of all that are to be made.
    pub done: u64,
    /// Bytes to be made.
    pub total: u64,
}

/// What a watcher is told besides.
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
        /// Chunks found made.
        chunks: u64,
        /// Chunks there are.
        of: u64,
    },
    /// Another program is making the weight; the work goes on when it is done.
    Waiting {
        /// The weight.
        weight: String,
        /// The file that program writes.
        path: PathBuf,
    },
    /// Others may write the directory of the store: nothing there is believed, and everything is
    /// made again for this run alone.
    Disbelieved {
        /// The directory, and who or which mode.
        reason: String,
    },
    /// A file of the store was damaged or can be somebody else's, and is made again.
    Remade {
        /// The weight.
        weight: String,
        /// The file.
        path: PathBuf,
        /// What was wrong with it.
        reason: String,
    },
}

/// Follows long work and may end it.
pub trait Watch {
    /// Called after every batch of chunks; [`ControlFlow::Break`] ends the work with
    /// [`QuantiseError::Cancelled`](crate::QuantiseError::Cancelled).
    fn progress(&mut self, progress: &Progress<'_>) -> ControlFlow<()>;

    /// Called when there is something to say.
    fn note(&mut self, _note: Note) {}
}

/// Watches nothing and never ends the work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn progress(&mut self, _progress: &Progress<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
