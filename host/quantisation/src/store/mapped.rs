use std::fs::File;
use std::ops::Range;
use std::path::Path;

use shardwright_files::{Mapping, Section, private_files};
use shardwright_graph::WeightBytes;
use shardwright_vocabulary::{At, ErrorKind, Result};

use super::MAKE_AGAIN;

/// A mapped file of the store. If another program truncated it while mapped, reading the lost pages
/// would end this process (SIGBUS), and the system offers no mapping without that risk. Files of a
/// store are only ever replaced as a whole, by renaming.
pub(crate) struct Mapped(Mapping);

impl Mapped {
    /// Maps a file after checking that only this user can have written it.
    pub fn open(path: &Path) -> Result<Mapped> {
        let (file, _) = private_files::open_file(path).map_err(|error| match error.kind() {
            // Its place is the file or the folder.
            ErrorKind::Invalid => error.with_help(MAKE_AGAIN),
            _ => error.at(path.display()),
        })?;
        Mapped::of(&file).at(path.display())
    }

    /// Maps an open file. A complete file of the store is never written. A file in progress is
    /// written only by the owner of its lock, who maps it only while reading.
    pub fn of(file: &File) -> Result<Mapped> {
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
