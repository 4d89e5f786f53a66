use std::fs::File;
use std::ops::Range;
use std::path::Path;

use shardwright_files::{FileError, own};
use shardwright_graph::WeightBytes;

use crate::StoreError;

/// A mapped file of the store. Were it truncated by another program while mapped, reading the lost
/// pages would end this process (SIGBUS); the system offers no mapping without that. Files of a
/// store are only ever replaced whole, by renaming.
pub(crate) struct Mapped(memmap2::Mmap);

impl Mapped {
    /// Maps a file that only this user can have written.
    pub fn open(path: &Path) -> Result<Mapped, StoreError> {
        let io = |action, source| StoreError::Io { action, path: path.to_owned(), source };
        let file = match own::open_file(path) {
            Ok((file, _)) => file,
            Err(FileError::NotOwn { path, reason }) => return Err(StoreError::NotOwn { path, reason }),
            Err(error) => return Err(io("open", error.into())),
        };
        Mapped::of(&file).map_err(|source| io("map", source))
    }

    pub fn of(file: &File) -> std::io::Result<Mapped> {
        // SAFETY: the mapping is only read and lives as long as any slice of it. A complete file of
        // the store is never written; a file in progress is written only by the owner of its lock,
        // who maps it only while reading.
        unsafe { memmap2::Mmap::map(file) }.map(Mapped)
    }
}

impl WeightBytes for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[cfg(unix)]
    fn release(&self, range: Range<usize>) {
        // SAFETY: the mapping is shared with its file and read-only, so released pages are read
        // from the file again and no byte of a slice changes. Refused advice changes nothing
        // either.
        let advised = unsafe {
            self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
        };
        drop(advised);
    }
}
