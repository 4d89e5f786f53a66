use std::path::PathBuf;

/// A finding about a weight, for the report of the work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A weight was found complete in the store.
    Found { weight: String },
    /// An earlier run started the weight, and this run continues it.
    Continued {
        weight: String,
        /// Chunks found complete.
        chunks: u64,
        /// Total number of chunks.
        of: u64,
    },
    /// The moments of the weight's inputs are not positive definite with the usual damping.
    Damped {
        weight: String,
        /// The damping used instead, in hundredths of the mean square of a column.
        percent: u64,
    },
    /// There are no observed inputs of the weight, or not all are finite. Each value is rounded to
    /// the nearest.
    NotSeen { weight: String },
    /// There are no finite gradients of the weight's outputs. Errors are compensated only within
    /// each row.
    RowsAlone { weight: String },
    /// Other users may write to the store's directory. Its content is not trusted, and everything
    /// is made again for this run only.
    Disbelieved {
        /// The directory, and the user or file mode.
        reason: String,
    },
    /// A file of the store was damaged or may belong to another user. It is made again.
    Remade {
        weight: String,
        path: PathBuf,
        /// The problem with the file.
        reason: String,
    },
}
