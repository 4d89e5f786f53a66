//! Opens untrusted files. Links are not followed, only regular files are read, and opening never
//! blocks.

use std::fs::{self, File};
use std::io::Read;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use shardwright_files::{Links, Mapping, Section, kind_name};
use shardwright_graph::WeightBytes;
use shardwright_vocabulary::{ErrorKind, Result};

use crate::error::{FOREIGN, file_at, io_at, other_kind, wrong_hash, wrong_length};
use crate::{Digest, FileReference};

/// Rejects anything but a directory, including a link to one.
pub(crate) fn expect_directory(path: &Path) -> Result<()> {
    let kind = fs::symlink_metadata(path).map_err(io_at(path))?.file_type();
    if kind.is_dir() { Ok(()) } else { Err(other_kind(path, "a directory", kind_name(kind))) }
}

/// Opens a file of a bundle and returns its length.
pub(crate) fn open(path: &Path) -> Result<(File, u64)> {
    shardwright_files::open(path, Links::Refused).map_err(|error| file_at(path, error))
}

/// Opens a file outside of bundles. Links are followed, as download caches use them.
pub(crate) fn open_foreign(path: &Path) -> Result<(File, u64)> {
    shardwright_files::open(path, Links::Followed).map_err(|error| file_at(path, error))
}

/// Reads the first bytes of a file, or all bytes if it is shorter.
pub(crate) fn begin_of(path: &Path, length: u64) -> Result<Vec<u8>> {
    let (file, _) = open(path)?;
    let mut begin = Vec::new();
    file.take(length).read_to_end(&mut begin).map_err(io_at(path))?;
    Ok(begin)
}

/// Like [`begin_of`], but follows links.
pub(crate) fn begin_of_foreign(path: &Path, length: u64) -> Result<Vec<u8>> {
    let (file, _) = open_foreign(path)?;
    let mut begin = Vec::new();
    file.take(length).read_to_end(&mut begin).map_err(io_at(path))?;
    Ok(begin)
}

/// Reads a file of at most `limit` bytes, independently of its reported length.
pub(crate) fn read_capped(path: &Path, file: impl Read, limit: u64) -> Result<Vec<u8>> {
    shardwright_files::read_from(file, limit).map_err(|error| match error.kind() {
        ErrorKind::Invalid => error.at(path.display()).with_help(FOREIGN),
        _ => file_at(path, error),
    })
}

/// Compares a file with its expected length, and with its hash if `content`.
pub(crate) fn expect(section: &Section, expected: FileReference, content: bool) -> Result<()> {
    let (path, found) = (section.path(), section.length());
    if found != expected.bytes {
        return Err(wrong_length(path, expected.bytes, found));
    }
    if content {
        let (sum, _) = Digest::of_reader(section.reader()).map_err(io_at(path))?;
        expect_hash(path, expected.sha256, sum)?;
    }
    Ok(())
}

/// Like [`expect()`], for a file in a directory.
pub(crate) fn check(path: &Path, expected: FileReference, content: bool) -> Result<()> {
    let section = Section::whole(path, open(path)?.0).map_err(io_at(path))?;
    expect(&section, expected, content)
}

/// Computes the SHA-256 of a file, such as a packed bundle for publication.
pub fn digest_of(path: &Path) -> Result<Digest> {
    let (file, _) = open_foreign(path)?;
    Digest::of_reader(file).map(|(sum, _)| sum).map_err(io_at(path))
}

pub(crate) fn expect_hash(path: &Path, expected: Digest, found: Digest) -> Result<()> {
    if expected == found { Ok(()) } else { Err(wrong_hash(expected, found).at(path.display())) }
}

/// A memory-mapped file of a bundle, which clones share. Files of a directory begin at a page
/// boundary, files of a packed bundle at their place in the package.
///
/// If another program truncates the file while it is mapped, reading the lost pages ends this
/// process (SIGBUS). The system offers no mapping without that risk. Do not change the files of a
/// bundle in place while it is open. Writing the bundle again is safe, since files are replaced,
/// never rewritten.
#[derive(Clone, Debug)]
pub struct MappedFile(pub(crate) Arc<Mapping>);

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl WeightBytes for MappedFile {
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;

    use super::*;

    /// Returns the number of a mapping's bytes that are in this process's memory.
    fn resident(map: &MappedFile) -> u64 {
        let start = format!("{:x}-", map.as_ptr() as usize);
        let text = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
        let line = lines.find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    #[test]
    fn released_pages_are_not_in_memory_and_read_the_same() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 5 << 20]).unwrap();
        let section = Section::whole(file.path(), file.reopen().unwrap()).unwrap();
        let map = MappedFile(Arc::new(section.map().unwrap()));
        assert!(map.iter().step_by(4096).all(|byte| *byte == 7) && resident(&map) == 5 << 20);
        map.release(0..map.len());
        assert_eq!(resident(&map), 0);
        let mut copied = [0; 9];
        assert!(map.copy(3, &mut copied) && copied == [7; 9] && !map.copy((5 << 20) - 8, &mut copied));
        assert_eq!(resident(&map), 0);
        assert_eq!(map[1 << 20], 7);
    }
}
