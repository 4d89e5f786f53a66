//! What was hashed of a bundle, and what comes of it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What was hashed of a bundle since it was opened: artefacts, tables and the index of the
/// tokenizer, as they were [asked for](crate::Bundle::proved), and what
/// [`Bundle::verify_all`](crate::Bundle::verify_all) read. The manifest and the small files that
/// every opening reads whole are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hashed {
    /// Bytes; a file that was hashed twice counts twice.
    pub bytes: u64,
    /// Time that it took.
    pub time: Duration,
    /// Why the next opening hashes something of it again; the first reason that was met.
    pub forgotten: Option<Forgotten>,
}

impl Hashed {
    /// Bytes per second; 0 where nothing was hashed.
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

/// Why a file that was hashed will be hashed at the next opening too.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forgotten {
    /// No place for proofs was given.
    NoPlace,
    /// It cannot be known who writes to the file: the file system does not show it, the file
    /// belongs to another user, or a program has it open for writing.
    Unknown,
    /// The file was written seconds ago, or while it was read.
    Lately,
    /// The proof could not be written.
    Unwritable {
        /// The place of proofs.
        directory: PathBuf,
        /// Why.
        reason: String,
    },
}

impl fmt::Display for Forgotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Forgotten::NoPlace => f.write_str("there is no place for proofs"),
            Forgotten::Unknown => f.write_str(
                "the system cannot say who writes to its files: they lie in memory, in layers or on another \
                 system's disk, are another user's, or are open for writing",
            ),
            Forgotten::Lately => f.write_str("its files were written just now"),
            Forgotten::Unwritable { directory, reason } => {
                write!(f, "proofs cannot be kept in {}: {reason}", directory.display())
            }
        }
    }
}
