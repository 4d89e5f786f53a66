//! Statistics of the hashing of a bundle's files.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Hashing statistics of a bundle since it was opened. They include artefacts, tables and the index
/// of the tokenizer when [requested](crate::Bundle::proved), and all files that
/// [`Bundle::verify_all`](crate::Bundle::verify_all) read. The manifest and the small files that
/// are read on every opening are not included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hashed {
    /// Number of bytes. A file that was hashed twice counts twice.
    pub bytes: u64,
    /// Time spent on hashing.
    pub time: Duration,
    /// The first reason why the next opening must hash a file again.
    pub forgotten: Option<Forgotten>,
}

impl Hashed {
    /// Returns the bytes per second, or 0 if no file was hashed.
    pub fn bytes_per_second(&self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if self.bytes == 0 || seconds <= 0.0 { 0.0 } else { self.bytes as f64 / seconds }
    }

    pub(crate) fn add(&mut self, bytes: u64, time: Duration, forgotten: Option<Forgotten>) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.time = self.time.saturating_add(time);
        self.forgotten = self.forgotten.take().or(forgotten);
    }
}

/// Reasons why the next opening must hash a file again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forgotten {
    /// The bundle was opened without a directory for proofs.
    NoPlace,
    /// Writers of the file are unknown: the file system does not report them, the file belongs to
    /// another user, or a program has it open for writing.
    Unknown,
    /// The file was written seconds ago, or while it was read.
    Lately,
    /// The proof could not be written.
    Unwritable {
        /// Directory of the proofs.
        directory: PathBuf,
        reason: String,
    },
}

impl fmt::Display for Forgotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Forgotten::NoPlace => f.write_str("no directory for proofs is set"),
            Forgotten::Unknown => f.write_str(
                "the system does not report who writes to the files: they are on an in-memory, layered or \
                 network file system, belong to another user, or are open for writing",
            ),
            Forgotten::Lately => f.write_str("the files were written just now"),
            Forgotten::Unwritable { directory, reason } => {
                write!(f, "cannot store proofs in {}: {reason}", directory.display())
            }
        }
    }
}
