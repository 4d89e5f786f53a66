//! A run of bytes of an open file: the whole file, or a part of a larger one.

use std::fs::File;
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Mmap, MmapOptions};

/// A run of bytes of an open file. Reading stays within it and never moves the file's own position,
/// so that clones and threads do not disturb each other.
#[derive(Clone, Debug)]
pub struct Section {
    path: PathBuf,
    file: Arc<File>,
    offset: u64,
    length: u64,
}

impl Section {
    /// Returns the section of a whole file, with its current length. `path` is for messages.
    pub fn whole(path: impl Into<PathBuf>, file: impl Into<Arc<File>>) -> io::Result<Section> {
        let file = file.into();
        let length = file.metadata()?.len();
        Ok(Section { path: path.into(), file, offset: 0, length })
    }

    /// Returns `length` bytes from `offset` on, or `None` if they are not all within the section.
    /// `path` is for messages.
    pub fn part(&self, path: impl Into<PathBuf>, offset: u64, length: u64) -> Option<Section> {
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| Section {
            path: path.into(),
            file: Arc::clone(&self.file),
            offset: self.offset + offset,
            length,
        })
    }

    /// Returns the path for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the offset of the section's first byte in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reads some bytes from `at` on and returns how many. Returns 0 at the end.
    pub fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let left = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
        let count = into.len().min(left);
        if count == 0 {
            return Ok(0);
        }
        // Both ends are within the section, so the sum does not overflow.
        read_file_at(&self.file, &mut into[..count], self.offset + at)
    }

    /// Fills `into` from `at` on.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] if the section or its file ends before.
    pub fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            match self.read_at(&mut into[done..], at.saturating_add(done as u64)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns a reader that begins at the first byte.
    pub fn reader(&self) -> SectionReader<'_> {
        SectionReader { section: self, position: 0 }
    }

    /// Maps the section into memory, from the page boundary of the file at or before its first
    /// byte. The file must not be changed while it is mapped: reading lost pages of a truncated
    /// file ends the process with SIGBUS.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`] if the file was truncated.
    pub fn map(&self) -> io::Result<Mapping> {
        self.map_at_multiples(1)
    }

    /// Like [`Section::map`], but as on a machine whose pages have `page` bytes: the mapping begins
    /// at a multiple of `page`, which is a power of two.
    pub fn map_at_multiples(&self, page: u64) -> io::Result<Mapping> {
        let skipped = self.offset % page;
        let length = usize::try_from(skipped + self.length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        if self.file.metadata()?.len() < self.offset + self.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the mapping is only read, and lives as long as the `Mapping`. Its content changes
        // only if another program writes the file in place, which the documentation forbids.
        let bytes = unsafe { MmapOptions::new().offset(self.offset - skipped).len(length).map(&*self.file) }?;
        Ok(Mapping { bytes, start: skipped as usize, section: self.clone() })
    }
}

#[cfg(unix)]
fn read_file_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, offset)
}

#[cfg(windows)]
fn read_file_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, offset)
}

/// Reads a [`Section`] from its first byte to its last.
#[derive(Debug)]
pub struct SectionReader<'s> {
    section: &'s Section,
    position: u64,
}

impl Read for SectionReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.section.read_at(into, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

/// A [`Section`] in memory.
#[derive(Debug)]
pub struct Mapping {
    bytes: Mmap,
    /// Index of the section's first byte in the mapping.
    start: usize,
    section: Section,
}

impl Mapping {
    /// Returns the mapped section.
    pub fn section(&self) -> &Section {
        &self.section
    }

    /// Copies bytes from the file without making the pages resident. Returns `false` if that fails.
    pub fn copy(&self, offset: usize, into: &mut [u8]) -> bool {
        self.section.read_exact_at(into, offset as u64).is_ok()
    }

    /// Gives pages back to the system. Their bytes are read from the file again when they are
    /// needed. Has no effect where the system refuses.
    #[cfg(unix)]
    pub fn release(&self, range: Range<usize>) {
        let from = self.start + range.start;
        // SAFETY: the mapping is shared with its file and read-only, so released pages are read
        // from the file again and no byte of a slice changes.
        let advised = unsafe {
            self.bytes.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from, range.len())
        };
        drop(advised);
    }

    /// This system has no such request.
    #[cfg(not(unix))]
    pub fn release(&self, _: Range<usize>) {}

    /// Requests huge pages, which make repeated reading from front to back some per cent faster.
    /// This is a hint, without effect on systems without huge pages.
    pub fn prefer_huge_pages(&self) {
        // `memmap2` provides this advice on Linux only.
        #[cfg(target_os = "linux")]
        let _ = self.bytes.advise(memmap2::Advice::HugePage);
    }

    /// Moves pages into huge pages, also if they are in memory already, and reads missing ones. A
    /// huge page belongs to the range that contains its last byte. Blocks until it is done, and
    /// other threads may read the bytes meanwhile. Returns `false` if pages stay small: the system
    /// does not support huge pages for this file, or it has not written a new file to disk yet.
    ///
    /// Source: `madvise(2)`, since Linux 6.1.
    #[cfg(target_os = "linux")]
    pub fn collapse(&self, range: Range<usize>) -> bool {
        /// `MADV_COLLAPSE`, which the crate `libc` names for glibc only.
        const COLLAPSE: libc::c_int = 25;
        let Some(huge) = crate::pages::huge_page_bytes() else { return false };
        let base = self.bytes.as_ptr() as usize;
        let from = self[range.clone()].as_ptr() as usize;
        let first = (from / huge * huge).max(base.next_multiple_of(huge));
        let end = (from + range.len()) / huge * huge;
        if first >= end {
            return true;
        }
        let address = self.bytes.as_ptr().wrapping_add(first - base).cast_mut().cast();
        // SAFETY: the addresses are within the mapping, and the advice changes no byte.
        unsafe { libc::madvise(address, end - first, COLLAPSE) == 0 }
    }

    /// Returns `false`, because this system has no such request.
    #[cfg(not(target_os = "linux"))]
    pub fn collapse(&self, _: Range<usize>) -> bool {
        false
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::Pages;

    fn numbers(length: usize) -> (Vec<u8>, Section) {
        let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        (bytes, Section::whole("numbers", file).unwrap())
    }

    #[test]
    fn a_part_reads_and_maps_as_its_bytes_wherever_it_lies() {
        let (bytes, whole) = numbers(3 << 16);
        for offset in [0_usize, 1, 4, 64, 4096, 16_384, 65_536, 65_540] {
            let part = whole.part("part", offset as u64, 50_000).unwrap();
            let expected = &bytes[offset..offset + 50_000];
            let mut read = Vec::new();
            part.reader().read_to_end(&mut read).unwrap();
            assert!(read == expected, "at {offset}");
            for page in [1, 4096, 16_384] {
                let map = part.map_at_multiples(page).unwrap();
                assert!(map[..] == *expected, "at {offset} on pages of {page}");
                let mut copied = [0; 9];
                assert!(map.copy(77, &mut copied) && copied == expected[77..86]);
                assert!(!map.copy(49_995, &mut copied), "beyond the part, though not beyond the file");
                map.release(0..map.len());
                assert!(map[..] == *expected);
            }
            let inner = part.part("inner", 10, 5).unwrap();
            let mut five = [0; 5];
            inner.read_exact_at(&mut five, 0).unwrap();
            assert_eq!((five, inner.offset()), (expected[10..15].try_into().unwrap(), offset as u64 + 10));
        }
    }

    #[test]
    fn nothing_beyond_a_section_is_read() {
        let (bytes, whole) = numbers(100);
        assert!(whole.part("", 0, 101).is_none() && whole.part("", 101, 0).is_none());
        assert!(whole.part("", u64::MAX, 2).is_none());
        let part = whole.part("", 10, 20).unwrap();
        assert!(part.part("", 15, 6).is_none());
        let mut into = [0; 30];
        assert_eq!(part.read_at(&mut into, 5).unwrap(), 15);
        assert_eq!(into[..15], bytes[15..30]);
        assert_eq!(part.read_at(&mut into, 20).unwrap() + part.read_at(&mut into, u64::MAX).unwrap(), 0);
        let error = part.read_exact_at(&mut into[..6], 15).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// Whether the system moves pages depends on the file system.
    #[test]
    fn moved_pages_have_the_same_bytes() {
        let (bytes, whole) = numbers(9 << 20);
        for offset in [0_usize, 4096, 3 << 20, 65_540] {
            let part = whole.part("part", offset as u64, 6 << 20).unwrap();
            let (map, expected) = (part.map().unwrap(), &bytes[offset..offset + (6 << 20)]);
            assert!(map[..] == *expected);
            if cfg!(target_os = "linux") {
                let pages = Pages::of(&map).expect("the system reports them");
                assert!(pages.resident > 3 << 20 && pages.resident <= 6 << 20, "{pages:?}");
                assert!(pages.huge <= pages.resident, "{pages:?}");
            }
            let all = map.collapse(0..map.len());
            assert!(map[..] == *expected, "at {offset}");
            assert!(map.collapse(0..0) || !all, "a range without huge pages needs no work");
            map.collapse(1 << 20..5 << 20);
            map.collapse(5 << 20..map.len());
            assert!(map[..] == *expected, "at {offset}");
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_not_mapped() {
        let (_, whole) = numbers(10_000);
        whole.file().set_len(5000).unwrap();
        assert_eq!(whole.map().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(whole.part("", 0, 5000).unwrap().map().is_ok());
    }
}
