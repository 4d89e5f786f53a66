//! Records the finished pieces of an interrupted writer.
//!
//! A text file with one line per finished piece, written after the piece is on disk:
//!
//! ```text
//! shardwright-unfinished 1
//! <check> <sha256> <bytes> <key>
//! ```
//!
//! `check` is the first 16 digits of the SHA-256 of the rest of the line. The last line may be
//! incomplete. Everything from the first invalid line on is discarded. The journal only saves work,
//! as its pieces are hashed before they are used.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use shardwright_vocabulary::Result;

use crate::error::io_at;
use crate::manifest::{FileReference, NAME_BYTES_MAX};
use crate::{Digest, file};

const HEADING: &str = "shardwright-unfinished 1\n";

/// Largest number of bytes read from a journal: some 50,000 pieces.
const JOURNAL_BYTES: u64 = 16 << 20;

/// Number of digits in the check of a line.
const CHECK: usize = 16;

pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    pieces: BTreeMap<String, FileReference>,
}

impl Journal {
    /// Opens the journal at `path`, or starts a new one.
    pub(crate) fn open(path: &Path) -> Result<Journal> {
        let io = io_at(path);
        let mut created = false;
        let (bytes, file) = match file::open(path) {
            Ok((opened, _)) => {
                let bytes = file::read_capped(path, opened, JOURNAL_BYTES)?;
                (bytes, OpenOptions::new().write(true).open(path).map_err(io)?)
            }
            Err(error) if error.is_not_found() => {
                created = true;
                (Vec::new(), OpenOptions::new().write(true).create_new(true).open(path).map_err(io)?)
            }
            Err(error) => return Err(error),
        };
        let (pieces, end) = read(&bytes);
        let mut journal = Journal { path: path.to_owned(), file, pieces };
        // An incomplete line would corrupt the next one.
        journal.file.set_len(end as u64).map_err(io)?;
        journal.file.seek(SeekFrom::End(0)).map_err(io)?;
        if end == 0 {
            journal.file.write_all(HEADING.as_bytes()).map_err(io)?;
        }
        if created || end == 0 {
            journal.file.sync_all().map_err(io)?;
        }
        Ok(journal)
    }

    /// Returns the finished file of a key, if there is one.
    pub(crate) fn get(&self, key: &str) -> Option<FileReference> {
        self.pieces.get(key).copied()
    }

    /// Records a finished piece. Keys that do not fit on a line are not recorded, which only costs
    /// work later.
    pub(crate) fn put(&mut self, key: &str, reference: FileReference) -> Result<()> {
        if !is_key(key) || self.pieces.get(key) == Some(&reference) {
            return Ok(());
        }
        let rest = format!("{} {} {key}", reference.sha256, reference.bytes);
        let line = format!("{} {rest}\n", check(&rest));
        self.file
            .write_all(line.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(io_at(&self.path))?;
        self.pieces.insert(key.to_owned(), reference);
        Ok(())
    }
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.len() as u64 <= NAME_BYTES_MAX && !key.contains(char::is_control)
}

fn check(rest: &str) -> String {
    let mut digits = Digest::of(rest.as_bytes()).to_string();
    digits.truncate(CHECK);
    digits
}

/// Returns the pieces and the end of the last valid line, which is 0 if even the heading is
/// invalid.
fn read(bytes: &[u8]) -> (BTreeMap<String, FileReference>, usize) {
    let mut pieces = BTreeMap::new();
    let Some(mut rest) = bytes.strip_prefix(HEADING.as_bytes()) else { return (pieces, 0) };
    let mut end = HEADING.len();
    while let Some(length) = rest.iter().position(|&byte| byte == b'\n') {
        let Some((key, reference)) = std::str::from_utf8(&rest[..length]).ok().and_then(line) else { break };
        pieces.insert(key.to_owned(), reference);
        rest = &rest[length + 1..];
        end += length + 1;
    }
    (pieces, end)
}

fn line(line: &str) -> Option<(&str, FileReference)> {
    let (found, rest) = line.split_once(' ')?;
    if found != check(rest) {
        return None;
    }
    let (sha256, rest) = rest.split_once(' ')?;
    let (bytes, key) = rest.split_once(' ')?;
    let reference = FileReference { sha256: sha256.parse().ok()?, bytes: bytes.parse().ok()? };
    is_key(key).then_some((key, reference))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn reference(text: &str) -> FileReference {
        FileReference { sha256: Digest::of(text.as_bytes()), bytes: text.len() as u64 }
    }

    #[test]
    fn a_journal_cut_anywhere_keeps_the_lines_before_the_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let pieces = [("artefact 1", "one"), ("artefact 2", "zwei"), ("table embedding", "")];
        let mut journal = Journal::open(&path).unwrap();
        for (key, text) in pieces {
            journal.put(key, reference(text)).unwrap();
        }
        drop(journal);
        let whole = fs::read(&path).unwrap();
        let ends: Vec<_> = (1..=whole.len()).filter(|&end| whole[end - 1] == b'\n').skip(1).collect();
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let mut journal = Journal::open(&path).unwrap();
            for ((key, text), end) in pieces.iter().zip(&ends) {
                assert_eq!(journal.get(key), (*end <= cut).then(|| reference(text)), "cut at {cut}");
            }
            // Entries recorded after the cut can be read again.
            journal.put("later", reference("later")).unwrap();
            drop(journal);
            assert_eq!(Journal::open(&path).unwrap().get("later"), Some(reference("later")));
        }
    }

    #[test]
    fn a_changed_line_and_all_after_it_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let mut journal = Journal::open(&path).unwrap();
        journal.put("a", reference("a")).unwrap();
        journal.put("b", reference("b")).unwrap();
        drop(journal);
        let whole = fs::read(&path).unwrap();
        for offset in 0..whole.len() {
            let mut changed = whole.clone();
            changed[offset] ^= 1;
            let (pieces, end) = read(&changed);
            assert!(end <= offset, "a change at {offset} is kept up to {end}");
            assert!(pieces.iter().all(|(key, piece)| *piece == reference(key)));
        }
    }

    #[test]
    fn keys_that_are_no_line_are_not_noted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let mut journal = Journal::open(&path).unwrap();
        for key in ["", "a\nb", &"x".repeat(2000)] {
            journal.put(key, reference("x")).unwrap();
            assert_eq!(journal.get(key), None);
        }
        assert_eq!(fs::read(&path).unwrap(), HEADING.as_bytes());
    }

    #[test]
    fn a_journal_is_no_link_and_not_endless() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        fs::write(directory.path().join("other"), "mine").unwrap();
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(directory.path().join("other"), &path).unwrap();
            let Err(error) = Journal::open(&path) else { panic!("followed a link") };
            assert!(error.to_string().contains("a symbolic link"), "{error}");
            fs::remove_file(&path).unwrap();
        }
        File::create(&path).unwrap().set_len(JOURNAL_BYTES + 1).unwrap();
        let Err(error) = Journal::open(&path) else { panic!("read too much") };
        assert!(error.to_string().contains(&JOURNAL_BYTES.to_string()), "{error}");
        assert_eq!(fs::read(directory.path().join("other")).unwrap(), b"mine");
    }
}
