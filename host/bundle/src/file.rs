//! Opening files that may be anything: no link is followed, nothing but a regular file is read, nothing hangs.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use shardwright_graph::WeightBytes;

use crate::{BundleError, Digest};

/// What lies there, in words.
fn kind_name(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_block_device() || kind.is_char_device() {
            return "a device";
        }
    }
    if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_file() {
        "a regular file"
    } else {
        "something else"
    }
}

/// Refuses what is not a regular file.
fn expect_file(path: &Path, metadata: &Metadata) -> Result<(), BundleError> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(());
    }
    Err(BundleError::Kind { path: path.to_owned(), expected: "a regular file", found: kind_name(kind) })
}

/// Refuses what is not a directory; a link to one is none.
pub(crate) fn expect_directory(path: &Path) -> Result<(), BundleError> {
    let kind = fs::symlink_metadata(path).map_err(BundleError::io(path))?.file_type();
    if kind.is_dir() {
        return Ok(());
    }
    Err(BundleError::Kind { path: path.to_owned(), expected: "a directory", found: kind_name(kind) })
}

/// Opens for reading without ever waiting for another end of a pipe. `links`: whether one may stand in its place.
fn open_ready(path: &Path, links: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NONBLOCK | if links { 0 } else { libc::O_NOFOLLOW });
    }
    let _ = links;
    options.open(path)
}

/// Opens a file of a bundle and tells its length.
pub(crate) fn open(path: &Path) -> Result<(File, u64), BundleError> {
    // Asked before it is opened, since opening alone does something to some devices, and after, since it may have changed.
    expect_file(path, &fs::symlink_metadata(path).map_err(BundleError::io(path))?)?;
    opened(path, open_ready(path, false))
}

/// Opens a file somewhere else, where links are usual (download caches are made of them).
pub(crate) fn open_foreign(path: &Path) -> Result<(File, u64), BundleError> {
    expect_file(path, &fs::metadata(path).map_err(BundleError::io(path))?)?;
    opened(path, open_ready(path, true))
}

fn opened(path: &Path, file: io::Result<File>) -> Result<(File, u64), BundleError> {
    let file = file.map_err(BundleError::io(path))?;
    let metadata = file.metadata().map_err(BundleError::io(path))?;
    expect_file(path, &metadata)?;
    Ok((file, metadata.len()))
}

/// The first bytes of a file, fewer where it is shorter.
pub(crate) fn begin_of(path: &Path, length: u64) -> Result<Vec<u8>, BundleError> {
    let (file, _) = open(path)?;
    let mut begin = Vec::new();
    file.take(length).read_to_end(&mut begin).map_err(BundleError::io(path))?;
    Ok(begin)
}

/// The bytes of a file of at most `limit`, whatever length it claims.
pub(crate) fn read_capped(path: &Path, file: File, limit: u64) -> Result<Vec<u8>, BundleError> {
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(BundleError::io(path))?;
    let value = bytes.len() as u64;
    if value > limit {
        return Err(BundleError::Limit { path: path.to_owned(), field: "bytes".to_owned(), value, limit });
    }
    Ok(bytes)
}

/// Compares a file with what it should be, byte by byte if `content`.
pub(crate) fn check(path: &Path, expected: (Digest, u64), content: bool) -> Result<File, BundleError> {
    let (file, found) = open(path)?;
    if found != expected.1 {
        return Err(BundleError::Length { path: path.to_owned(), expected: expected.1, found });
    }
    if content {
        let (sum, _) = Digest::of_reader(&file).map_err(BundleError::io(path))?;
        expect_hash(path, expected.0, sum)?;
    }
    Ok(file)
}

pub(crate) fn expect_hash(path: &Path, expected: Digest, found: Digest) -> Result<(), BundleError> {
    if expected == found {
        return Ok(());
    }
    Err(BundleError::Hash { path: path.to_owned(), expected, found })
}

/// A file of a bundle in memory, page-aligned; cloning shares it.
///
/// Were it truncated by another program while mapped, reading the lost pages would end this process (SIGBUS); the system
/// offers no mapping without that. The files of a bundle must not be changed in place while it is open. Writing the
/// bundle anew is fine: files are replaced, never rewritten.
#[derive(Clone, Debug)]
pub struct MappedFile(pub(crate) Arc<Mmap>);

impl MappedFile {
    pub(crate) fn new(path: &Path, file: &File, length: u64) -> Result<MappedFile, BundleError> {
        // SAFETY: the mapping is only read, and lives as long as any clone of the `Arc`. Its content can change only if
        // another program writes the file in place, which the documentation of `MappedFile` forbids.
        let map = unsafe { Mmap::map(file) }.map_err(BundleError::io(path))?;
        let found = map.len() as u64;
        if found != length {
            return Err(BundleError::Length { path: path.to_owned(), expected: length, found });
        }
        Ok(MappedFile(Arc::new(map)))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl WeightBytes for MappedFile {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[cfg(unix)]
    fn release(&self, range: Range<usize>) {
        // SAFETY: the mapping is shared with its file and read-only, so pages given back are read from the file again and no byte
        // of a slice changes. Advice that the system refuses changes nothing either.
        let advised = unsafe {
            self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
        };
        drop(advised);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;

    use super::*;

    /// Bytes of a mapping that are in this process's memory.
    fn resident(map: &MappedFile) -> u64 {
        let start = format!("{:x}-", map.as_ptr() as usize);
        let text = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
        let line = lines.find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    #[test]
    fn what_is_given_back_is_not_in_memory_and_reads_the_same() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 5 << 20]).unwrap();
        let map = MappedFile::new(file.path(), file.as_file(), 5 << 20).unwrap();
        assert!(map.iter().step_by(4096).all(|byte| *byte == 7) && resident(&map) == 5 << 20);
        map.release(0..map.len());
        assert_eq!(resident(&map), 0);
        assert_eq!(map[1 << 20], 7);
    }
}
