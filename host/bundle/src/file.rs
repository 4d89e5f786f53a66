//! Opening untrusted files: links are not followed, only regular files are read, and nothing
//! blocks.

use std::fs::{self, File};
use std::io::Read;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use shardwright_files::{FileError, Links, kind_name};
use shardwright_graph::WeightBytes;

use crate::{BundleError, Digest};

/// Converts the error of opening a file to one of a bundle.
fn open_error(path: &Path, error: FileError) -> BundleError {
    match error {
        FileError::Kind { found } => {
            BundleError::Kind { path: path.to_owned(), expected: "a regular file", found }
        }
        error => BundleError::io(path)(error.into()),
    }
}

/// Refuses anything but a directory; a link to one is refused too.
pub(crate) fn expect_directory(path: &Path) -> Result<(), BundleError> {
    let kind = fs::symlink_metadata(path).map_err(BundleError::io(path))?.file_type();
    if kind.is_dir() {
        return Ok(());
    }
    Err(BundleError::Kind { path: path.to_owned(), expected: "a directory", found: kind_name(kind) })
}

/// Opens a file of a bundle and returns its length.
pub(crate) fn open(path: &Path) -> Result<(File, u64), BundleError> {
    shardwright_files::open(path, Links::Refused).map_err(|error| open_error(path, error))
}

/// Opens a file elsewhere, where links are usual (download caches use them).
pub(crate) fn open_foreign(path: &Path) -> Result<(File, u64), BundleError> {
    shardwright_files::open(path, Links::Followed).map_err(|error| open_error(path, error))
}

/// The first bytes of a file; fewer if it is shorter.
pub(crate) fn begin_of(path: &Path, length: u64) -> Result<Vec<u8>, BundleError> {
    let (file, _) = open(path)?;
    let mut begin = Vec::new();
    file.take(length).read_to_end(&mut begin).map_err(BundleError::io(path))?;
    Ok(begin)
}

/// The bytes of a file of at most `limit`, whatever length it reports.
pub(crate) fn read_capped(path: &Path, file: File, limit: u64) -> Result<Vec<u8>, BundleError> {
    shardwright_files::read_from(file, limit).map_err(|error| match error {
        FileError::TooLong { limit } => {
            let (field, value) = ("bytes".to_owned(), limit.saturating_add(1));
            BundleError::Limit { path: path.to_owned(), field, value, limit }
        }
        error => open_error(path, error),
    })
}

/// Compares a file with its expected hash and length, byte by byte if `content`.
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
/// If another program truncates it while it is mapped, reading the lost pages ends this process
/// (SIGBUS); the system offers no mapping without that risk. The files of a bundle must not be
/// changed in place while it is open. Writing the bundle anew is fine: files are replaced, never
/// rewritten.
#[derive(Clone, Debug)]
pub struct MappedFile(pub(crate) Arc<Mapping>);

#[derive(Debug)]
pub(crate) struct Mapping {
    bytes: Mmap,
    /// For reading without mapping.
    file: File,
}

impl MappedFile {
    pub(crate) fn new(path: &Path, file: &File, length: u64) -> Result<MappedFile, BundleError> {
        // SAFETY: the mapping is only read, and lives as long as any clone of the `Arc`. Its
        // content can change only if another program writes the file in place, which the
        // documentation of `MappedFile` forbids.
        let map = unsafe { Mmap::map(file) }.map_err(BundleError::io(path))?;
        let found = map.len() as u64;
        if found != length {
            return Err(BundleError::Length { path: path.to_owned(), expected: length, found });
        }
        let file = file.try_clone().map_err(BundleError::io(path))?;
        Ok(MappedFile(Arc::new(Mapping { bytes: map, file })))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl WeightBytes for MappedFile {
    fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    #[cfg(unix)]
    fn copy(&self, offset: usize, into: &mut [u8]) -> bool {
        use std::os::unix::fs::FileExt;
        self.0.file.read_exact_at(into, offset as u64).is_ok()
    }

    #[cfg(unix)]
    fn release(&self, range: Range<usize>) {
        // SAFETY: the mapping is shared with its file and read-only, so released pages are read
        // from the file again and no byte of a slice changes. If the system refuses the advice,
        // nothing changes either.
        let advised = unsafe {
            self.0.bytes.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
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
    fn released_pages_are_not_in_memory_and_read_the_same() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 5 << 20]).unwrap();
        let map = MappedFile::new(file.path(), file.as_file(), 5 << 20).unwrap();
        assert!(map.iter().step_by(4096).all(|byte| *byte == 7) && resident(&map) == 5 << 20);
        map.release(0..map.len());
        assert_eq!(resident(&map), 0);
        let mut copied = [0; 9];
        assert!(map.copy(3, &mut copied) && copied == [7; 9] && !map.copy((5 << 20) - 8, &mut copied));
        assert_eq!(resident(&map), 0);
        assert_eq!(map[1 << 20], 7);
    }
}
