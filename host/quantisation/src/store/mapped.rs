use std::fs::File;
use std::ops::Range;
use std::path::Path;

use shardwright_files::{FileError, Mapping, Section, own};
use shardwright_graph::WeightBytes;

use crate::StoreError;

/// A mapped file of the store. If another program truncated it while mapped, reading the lost pages
/// would end this process (SIGBUS), and the system offers no mapping without that risk. Files of a
/// store are only ever replaced as a whole, by renaming.
pub(crate) struct Mapped(Mapping);

impl Mapped {
    /// Maps a file after checking that only this user can have written it.
    pub fn open(path: &Path) -> Result<Mapped, StoreError> {
        let io = |action, source| StoreError::Io { action, path: path.to_owned(), source };
        let file = match own::open_file(path) {
            Ok((file, _)) => file,
            Err(FileError::NotOwn { path, reason }) => return Err(StoreError::NotOwn { path, reason }),
            Err(error) => return Err(io("open", error.into())),
        };
        Mapped::of(&file).map_err(|source| io("map", source))
    }

    /// Maps an open file. A complete file of the store is never written. A file in progress is
    /// written only by the owner of its lock, who maps it only while reading.
    pub fn of(file: &File) -> std::io::Result<Mapped> {
        Ok(Mapped(Section::whole("<store>", file.try_clone()?)?.map()?))
    }
}

impl WeightBytes for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn copy(&self, offset: usize, into: &mut [u8]) -> bool {
        self.0.copy(offset, into)
    }

    fn release(&self, range: Range<usize>) {
        self.0.release(range);
    }
}
