//! One file of the store. It is written chunk by chunk, resumed where an earlier run stopped, and
//! verified as a whole.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rayon::prelude::*;
use shardwright_files::{hex, private_files};
use shardwright_graph::{Weight, WeightBytes, WeightData, too_large};
use shardwright_vocabulary::{At, Error, ErrorKind, Result};

use super::header::{HASH, Header, PAGE, Parts, hash};
use super::mapped::Mapped;
use super::{damaged, unusable};
use crate::compensation::MomentWarning;
use crate::job::{Chunk, Job, Whole};
use crate::source::READ_AROUND;

/// Interval for checking whether another process is done.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Computes the hash of a chunk. It includes the chunk's number, so that chunks cannot be swapped.
fn chunk_hash(chunk: usize, data: &[u8], scales: &[u8]) -> [u8; HASH] {
    hash(&[&(chunk as u64).to_le_bytes(), data, scales])
}

/// Computes the hash of the properties of the whole tensor. It follows the chunk hashes in the
/// table.
fn whole_hash(scale: &[u8]) -> [u8; HASH] {
    hash(&[b"whole", scale])
}

/// A file in progress, locked so that only one process writes it.
pub(super) struct Unfinished<'j> {
    path: PathBuf,
    file: File,
    header: Header,
    parts: Parts,
    job: &'j Job<'j>,
    /// Whether each chunk is made.
    made: Vec<bool>,
    whole: Option<Whole>,
    table: Vec<u8>,
}

impl<'j> Unfinished<'j> {
    /// Opens or creates the file. Returns `None` if another process finished and renamed it
    /// meanwhile. While another process writes the file, `wait` is called repeatedly and may
    /// cancel.
    pub fn open(
        path: PathBuf,
        header: Header,
        job: &'j Job<'j>,
        wait: &mut dyn FnMut(&Path) -> Result<()>,
    ) -> Result<Option<Self>> {
        let io = |error: std::io::Error| Error::from(error).at(path.display());
        let (Some(parts), Some(page)) = (header.parts(), header.page()) else {
            let weight = job.planned();
            return Err(too_large(&weight.name, &weight.shape));
        };
        let file = open_private(&path)?;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    wait(&path)?;
                    std::thread::sleep(LOOK_AGAIN);
                }
                Err(TryLockError::Error(error)) => return Err(io(error)),
            }
        }
        // The previous owner of the lock may have renamed the file to its final name. It must not
        // be written then.
        if !shardwright_files::is_at(&file, &path) {
            return Ok(None);
        }
        let chunks = job.chunks();
        let mut unfinished = Unfinished {
            path: path.clone(),
            file,
            header,
            parts,
            job,
            made: vec![false; chunks],
            whole: None,
            table: vec![0; (chunks + 1) * HASH],
        };
        let length = unfinished.file.metadata().map_err(io)?.len();
        if length == parts.end {
            let mapped = Mapped::of(&unfinished.file).at(path.display())?;
            let begun = mapped.bytes().get(..PAGE as usize) == Some(&page);
            if begun && unfinished.fault_outside_chunks(mapped.bytes()).is_none() {
                unfinished.take_over(&mapped);
                return Ok(Some(unfinished));
            }
        }
        // Set the length first and write the header last, so a file with a header has its full
        // length.
        let file = &unfinished.file;
        file.set_len(0).and_then(|()| file.set_len(parts.end)).map_err(io)?;
        unfinished.write(0, &page)?;
        Ok(Some(unfinished))
    }

    /// Returns the start of a gap or unused hash that is not all zeros, if any. Such bytes are
    /// never rewritten.
    fn fault_outside_chunks(&self, bytes: &[u8]) -> Option<u64> {
        let last = self.parts.end - HASH as u64..self.parts.end;
        let unused = (!self.job.needs_whole()).then_some(last);
        not_zero(bytes, self.header.gaps(self.parts).into_iter().chain(unused))
    }

    /// Finds the chunks whose hashes match.
    fn take_over(&mut self, mapped: &Mapped) {
        let bytes = mapped.bytes();
        self.table.copy_from_slice(&bytes[self.parts.table as usize..self.parts.end as usize]);
        let (table, parts, job) = (&self.table, self.parts, self.job);
        self.made = (0..self.made.len())
            .into_par_iter()
            .map(|chunk| {
                let wanted = &table[chunk * HASH..(chunk + 1) * HASH];
                wanted.iter().any(|&byte| byte != 0) && checked(bytes, parts, job, chunk, wanted, mapped)
            })
            .collect();
        for (chunk, made) in self.made.iter().enumerate() {
            if !made {
                self.table[chunk * HASH..(chunk + 1) * HASH].fill(0);
            }
        }
        let (scale, chunks) = (parts.scales as usize, self.made.len());
        if job.needs_whole() && whole_hash(&bytes[scale..scale + 4]) == self.table[chunks * HASH..] {
            let scale =
                f32::from_le_bytes([bytes[scale], bytes[scale + 1], bytes[scale + 2], bytes[scale + 3]]);
            self.whole = Some(Whole { scale, zero_point: 0 });
        } else {
            self.table[chunks * HASH..].fill(0);
            if job.needs_whole() {
                self.made.fill(false);
            }
        }
    }

    /// Returns the number of chunks made so far.
    pub fn made(&self) -> usize {
        self.made.iter().filter(|made| **made).count()
    }

    /// Returns the number of bytes in the chunks made so far.
    pub fn made_bytes(&self) -> u64 {
        let bytes = |chunk: usize| {
            let (data, scales) = self.job.places(chunk);
            (data.len() + scales.len()) as u64
        };
        self.made.iter().enumerate().filter(|(_, made)| **made).map(|(chunk, _)| bytes(chunk)).sum()
    }

    /// Makes the missing chunks. `report` receives the number of bytes made and may cancel.
    pub fn complete(&mut self, report: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        if self.job.needs_whole() && self.whole.is_none() {
            let whole = self.job.whole(&mut || report(0).is_ok())?;
            if let Some(whole) = whole {
                let scale = whole.scale.to_le_bytes();
                self.write(self.parts.scales, &scale)?;
                self.note_hash(self.made.len(), whole_hash(&scale))?;
            }
            self.whole = whole;
        }
        let missing: Vec<usize> = (0..self.made.len()).filter(|&chunk| !self.made[chunk]).collect();
        let (job, whole) = (self.job, self.whole);
        job.make(missing.into_iter(), whole, |chunk, made| {
            self.put(chunk, &made)?;
            report((made.data.len() + made.scales.len()) as u64)
        })
    }

    fn put(&mut self, chunk: usize, made: &Chunk) -> Result<()> {
        let (data, scales) = self.job.places(chunk);
        self.write(self.parts.data + data.start as u64, &made.data)?;
        self.write(self.parts.scales + scales.start as u64, &made.scales)?;
        self.note_hash(chunk, chunk_hash(chunk, &made.data, &made.scales))?;
        self.made[chunk] = true;
        Ok(())
    }

    fn note_hash(&mut self, entry: usize, hash: [u8; HASH]) -> Result<()> {
        self.table[entry * HASH..(entry + 1) * HASH].copy_from_slice(&hash);
        self.write(self.parts.table + (entry * HASH) as u64, &hash)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = self.file.seek(SeekFrom::Start(offset)).and_then(|_| self.file.write_all(bytes));
        written.at(self.path.display())
    }

    /// Marks the file as complete in its header, adds the remarks, and renames it to its final
    /// name.
    pub fn finish(mut self, name: &Path, remarks: &[MomentWarning]) -> Result<()> {
        self.header.remarks = remarks.to_vec();
        self.header.table = hex::encode(&hash(&[&self.table]));
        if let Some(page) = self.header.page() {
            self.write(0, &page)?;
        }
        // No fsync: after a power loss, hashes reveal missing bytes and they are made again.
        std::fs::rename(&self.path, name).at(self.path.display())
    }
}

/// Returns the start of the first range that contains a non-zero byte.
fn not_zero(bytes: &[u8], ranges: impl IntoIterator<Item = std::ops::Range<u64>>) -> Option<u64> {
    let zero = |range: &std::ops::Range<u64>| {
        bytes[range.start as usize..range.end as usize].iter().all(|&byte| byte == 0)
    };
    ranges.into_iter().find(|range| !zero(range)).map(|range| range.start)
}

/// Opens a file in progress for writing. Replaces a file that another user may have written with an
/// empty one.
fn open_private(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // A link or a pipe with that name is not our file either.
    if private_files::open_file(path).is_err_and(|error| error.kind() == ErrorKind::Invalid) {
        std::fs::remove_file(path).at(path.display())?;
    }
    let file = options.open(path).at(path.display())?;
    private_files::expect_file(path, &file)?;
    Ok(file)
}

/// Checks whether the bytes of a chunk match the hash, and releases their pages.
fn checked(bytes: &[u8], parts: Parts, job: &Job<'_>, chunk: usize, wanted: &[u8], mapped: &Mapped) -> bool {
    let (data, scales) = job.places(chunk);
    let place =
        |start: u64, range: &std::ops::Range<usize>| start as usize + range.start..start as usize + range.end;
    let (data, scales) = (place(parts.data, &data), place(parts.scales, &scales));
    let fits = chunk_hash(chunk, &bytes[data.clone()], &bytes[scales.clone()]) == *wanted;
    for read in [data, scales] {
        mapped.release(read.start.saturating_sub(READ_AROUND)..read.end);
    }
    fits
}

/// Opens a complete file and verifies every byte of it. `wanted` has neither table nor remarks.
pub(super) fn open_whole(
    path: &Path,
    wanted: &Header,
    job: &Job<'_>,
) -> Result<(Weight, Vec<MomentWarning>)> {
    let mapped = Mapped::open(path)?;
    read_whole(mapped, wanted, job).at(path.display())
}

fn read_whole(mapped: Mapped, wanted: &Header, job: &Job<'_>) -> Result<(Weight, Vec<MomentWarning>)> {
    let bytes = mapped.bytes();
    let header = Header::read(bytes)?;
    if (Header { table: String::new(), remarks: Vec::new(), ..header.clone() }) != *wanted {
        return Err(unusable(format!("expected {}, got {}", wanted.describe(), header.describe())));
    }
    let length = bytes.len() as u64;
    let parts = match header.parts() {
        Some(parts) if parts.end == length => parts,
        parts => {
            let wanted = parts.map_or(u64::MAX, |parts| parts.end);
            return Err(unusable(format!("expected {wanted} bytes by its header, got {length}")));
        }
    };
    let table = &bytes[parts.table as usize..];
    if hex::encode(&hash(&[table])) != header.table {
        return Err(damaged(parts.table, "the table of hashes"));
    }
    let wrong = (0..job.chunks()).into_par_iter().find_first(|&chunk| {
        !checked(bytes, parts, job, chunk, &table[chunk * HASH..(chunk + 1) * HASH], &mapped)
    });
    if let Some(chunk) = wrong {
        return Err(damaged(
            parts.data + job.places(chunk).0.start as u64,
            "the hash of the chunk that begins here",
        ));
    }
    let (scales, last) = (parts.scales as usize, &table[job.chunks() * HASH..]);
    let whole = bytes[scales..].first_chunk::<4>().filter(|_| job.needs_whole());
    let fits = match whole {
        Some(scale) => whole_hash(scale) == last,
        None => last.iter().all(|&byte| byte == 0),
    };
    if !fits {
        return Err(damaged(parts.scales, "the hash of the scale"));
    }
    if let Some(gap) = not_zero(bytes, header.gaps(parts)) {
        return Err(damaged(gap, "the gap after the part before"));
    }
    mapped.release(0..bytes.len());
    let whole = whole.map(|scale| Whole { scale: f32::from_le_bytes(*scale), zero_point: 0 });
    let source: Arc<dyn WeightBytes> = Arc::new(mapped);
    let data = |offset: u64, length: u64| {
        // This is within the file, as the parts were checked against its length.
        WeightData::new(Arc::clone(&source), offset as usize, length as usize)
            .map_err(|_| damaged(offset, "a part beyond the end"))
    };
    let scales =
        job.planned().quantisation.as_ref().map(|_| data(parts.scales, header.scales)).transpose()?;
    Ok((job.weight(data(parts.data, header.data)?, scales, whole), header.remarks))
}
