//! Fetches one file. Continues where an earlier attempt stopped, and uses the file only if its hash
//! matches the list of the hub.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;

use sha2::Digest;
use shardwright_files::hex;
use shardwright_vocabulary::{Error, Result};

use super::http::{Answer, Ask, Cause, Client, Failed};
use super::{INTERVAL, PullWatch};
use crate::cache::failed_at;

/// Number of bytes per read.
const PIECE: usize = 256 << 10;

/// Minimum number of new bytes that counts as progress. Without it, a server that closes each
/// connection after a byte would be queried forever.
const PROGRESS: u64 = 1 << 20;

/// The hash by which a hub identifies a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    /// SHA-256 of a large file.
    Sha256([u8; 32]),
    /// SHA-1 of a file with the header that git puts before it.
    Git([u8; 20]),
}

impl Hash {
    /// Returns the digits, which name the file in the cache.
    pub fn digits(self) -> String {
        match self {
            Hash::Sha256(bytes) => hex::encode(&bytes),
            Hash::Git(bytes) => hex::encode(&bytes),
        }
    }

    /// Returns the digits after the name of the hash.
    pub fn described(self) -> String {
        match self {
            Hash::Sha256(_) => format!("sha256:{}", self.digits()),
            Hash::Git(_) => format!("git:{}", self.digits()),
        }
    }
}

enum Hasher {
    Sha256(sha2::Sha256),
    Git(sha1::Sha1),
}

impl Hasher {
    /// Creates a hasher for a file of `bytes` bytes.
    fn new(hash: Hash, bytes: u64) -> Hasher {
        match hash {
            Hash::Sha256(_) => Hasher::Sha256(sha2::Sha256::new()),
            Hash::Git(_) => Hasher::Git(sha1::Sha1::new_with_prefix(format!("blob {bytes}\0"))),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Git(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> Hash {
        match self {
            Hasher::Sha256(hasher) => Hash::Sha256(hasher.finalize().into()),
            Hasher::Git(hasher) => Hash::Git(hasher.finalize().into()),
        }
    }
}

/// A file to fetch.
pub(super) struct Wanted<'w> {
    pub url: String,
    /// Name for messages.
    pub name: &'w str,
    pub hash: Hash,
    pub bytes: u64,
}

/// Folders of a repository in the cache.
pub(super) struct Places<'p> {
    pub blobs: &'p Path,
    pub locks: &'p Path,
}

/// Fetches a file, unless the cache has it. Returns whether it fetched bytes.
///
/// # Errors
/// The errors of [`super::Repository::pull`].
pub(super) fn fetch(
    client: &Client,
    wanted: &Wanted<'_>,
    places: &Places<'_>,
    watch: &dyn PullWatch,
    progress: &dyn Fn(u64),
) -> Result<bool> {
    let blob = places.blobs.join(wanted.hash.digits());
    let is_there = || fs::metadata(&blob).is_ok_and(|found| found.is_file() && found.len() == wanted.bytes);
    if is_there() {
        return Ok(false);
    }
    for folder in [places.blobs, places.locks] {
        fs::create_dir_all(folder).map_err(failed_at(folder))?;
    }
    // Hugging Face's programs use the same lock.
    let _lock = locked(&places.locks.join(format!("{}.lock", wanted.hash.digits())), wanted.name, watch)?;
    if is_there() {
        return Ok(false);
    }
    let path = places.blobs.join(format!("{}.incomplete", wanted.hash.digits()));
    let partial = Partial::open(path, wanted, watch)?;
    progress(partial.length.get());
    let steps = || partial.reached.get() / PROGRESS;
    client.persist(watch, steps, || attempt(client, wanted, &partial, watch, progress))?;
    partial.check(wanted, watch)?;
    partial.file.sync_data().map_err(failed_at(&partial.path))?;
    fs::rename(&partial.path, &blob).map_err(failed_at(&blob))?;
    Ok(true)
}

/// Waits until no other program fetches the file.
fn locked(path: &Path, name: &str, watch: &dyn PullWatch) -> Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let file = file.map_err(failed_at(path))?;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if watch.cancelled() => return Err(Error::cancelled()),
            Err(TryLockError::WouldBlock) => {
                if !std::mem::replace(&mut told, true) {
                    watch.note(&format!("another program fetches {name}; waiting for it"));
                }
                thread::sleep(INTERVAL);
            }
            Err(TryLockError::Error(error)) => return Err(failed_at(path)(error)),
        }
    }
}

/// An incomplete file, with the name that Hugging Face's programs use.
struct Partial {
    path: PathBuf,
    file: File,
    /// Current length in bytes.
    length: Cell<u64>,
    /// Largest length so far. A server that starts over makes no progress.
    reached: Cell<u64>,
}

impl Partial {
    fn open(path: PathBuf, wanted: &Wanted<'_>, watch: &dyn PullWatch) -> Result<Partial> {
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = options.map_err(failed_at(&path))?;
        let length = file.metadata().map_err(failed_at(&path))?.len();
        let partial = Partial { path, file, length: Cell::new(length), reached: Cell::new(0) };
        if length > wanted.bytes {
            partial.restart()?;
        } else if length > 0 {
            watch.note(&format!("{}: resuming after {length} of {} bytes", wanted.name, wanted.bytes));
        }
        partial.reached.set(partial.length.get());
        Ok(partial)
    }

    fn restart(&self) -> Result<()> {
        self.length.set(0);
        self.file.set_len(0).map_err(failed_at(&self.path))
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        let mut file = &self.file;
        let at = SeekFrom::Start(self.length.get());
        file.seek(at).and_then(|_| file.write_all(bytes)).map_err(failed_at(&self.path))?;
        self.length.set(self.length.get() + bytes.len() as u64);
        self.reached.set(self.reached.get().max(self.length.get()));
        Ok(())
    }

    /// Removes the file, and returns the error that explains it.
    fn discard(&self, error: Error) -> Error {
        match fs::remove_file(&self.path) {
            Ok(()) => error,
            Err(error) => failed_at(&self.path)(error),
        }
    }

    /// Hashes the bytes on disk, some of which may come from earlier attempts.
    fn check(&self, wanted: &Wanted<'_>, watch: &dyn PullWatch) -> Result<()> {
        let mut file = &self.file;
        file.rewind().map_err(failed_at(&self.path))?;
        let mut hasher = Hasher::new(wanted.hash, wanted.bytes);
        let mut piece = vec![0; PIECE];
        loop {
            let read = file.read(&mut piece).map_err(failed_at(&self.path))?;
            if read == 0 || watch.cancelled() {
                break;
            }
            hasher.update(&piece[..read]);
        }
        let got = hasher.finish();
        if got == wanted.hash {
            return Ok(());
        }
        // A file that was not read completely is not necessarily wrong.
        if watch.cancelled() {
            return Err(Error::cancelled());
        }
        let (expected, got) = (wanted.hash.described(), got.described());
        let what = format!("expected the hash {expected}, got {got}; the bytes were discarded");
        Err(self.discard(other_bytes(wanted, what)))
    }
}

/// Returns the error for bytes that the hub did not list.
fn other_bytes(wanted: &Wanted<'_>, what: String) -> Error {
    Error::invalid(what)
        .at(&wanted.url)
        .with_help("pull again; if it fails again, the server or a proxy changes the data that it sends")
}

fn other_size(wanted: &Wanted<'_>, got: &str) -> Error {
    other_bytes(wanted, format!("expected {} bytes, got {got}", wanted.bytes))
}

/// Fetches the missing bytes over one connection.
fn attempt(
    client: &Client,
    wanted: &Wanted<'_>,
    partial: &Partial,
    watch: &dyn PullWatch,
    progress: &dyn Fn(u64),
) -> Result<(), Failed> {
    let from = partial.length.get();
    if from == wanted.bytes {
        return Ok(());
    }
    let answer = match client.request(&wanted.url, Ask::Body { from }) {
        Err(failed) if from > 0 && failed.cause == Cause::Status(416) => {
            partial.restart()?;
            return Err(Failed { again: true, ..failed });
        }
        answer => answer?,
    };
    let begin = first_byte(&answer, wanted, from);
    let begin = begin.map_err(|got| partial.discard(other_size(wanted, &got)))?;
    if begin != from {
        partial.restart()?;
    }
    let mut body = answer.response.into_body().into_reader();
    let mut piece = vec![0; PIECE];
    loop {
        let have = partial.length.get();
        let read = body.read(&mut piece);
        let left = wanted.bytes - have;
        match read {
            Ok(read) if read as u64 > left => {
                return Err(partial.discard(other_size(wanted, "more")).into());
            }
            Ok(0) | Err(_) if left == 0 => return Ok(()),
            Ok(0) => return Err(Failed::cut(&wanted.url, cut(have, wanted.bytes))),
            Ok(read) => partial.append(&piece[..read])?,
            Err(error) => {
                let reason = format!("{} ({error})", cut(have, wanted.bytes));
                return Err(Failed::cut(&wanted.url, reason));
            }
        }
        progress(partial.length.get());
        if watch.cancelled() {
            return Err(Failed::cut(&wanted.url, "interrupted"));
        }
    }
}

fn cut(have: u64, bytes: u64) -> String {
    format!("the connection ended after {have} of {bytes} bytes")
}

/// Returns the position of an answer's first byte in the file: `from`, or 0 if the server only
/// sends whole files. The error describes the announced size or range that differs from the listed
/// one.
fn first_byte(answer: &Answer, wanted: &Wanted<'_>, from: u64) -> Result<u64, String> {
    if answer.response.status() == 206 {
        let range = answer.header("content-range").unwrap_or_default();
        let (first, total) = content_range(range).ok_or_else(|| format!("the range {range:.60?}"))?;
        let fits = first == from && total.is_none_or(|total| total == wanted.bytes);
        return if fits { Ok(from) } else { Err(format!("the range {range:.60?}")) };
    }
    match answer.header("content-length").map(str::parse::<u64>) {
        None => Ok(0),
        Some(Ok(length)) if length == wanted.bytes => Ok(0),
        Some(length) => Err(length.map_or_else(|error| error.to_string(), |length| length.to_string())),
    }
}

/// Parses the first byte and the size in `bytes 5-9/10`. The size may be unknown.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let first = range.split_once('-')?.0.parse().ok()?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((first, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_have_the_hash_that_git_gives_them() {
        let mut hasher = Hasher::new(Hash::Git([0; 20]), 6);
        hasher.update(b"hello\n");
        assert_eq!(hasher.finish().described(), "git:ce013625030ba8dba906f756967f9e9ca394464a");
    }

    #[test]
    fn ranges_are_read() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for wrong in ["", "bytes */10", "bytes 5-9", "items 5-9/10", "bytes x-9/10", "bytes 5-9/x"] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
    }
}
