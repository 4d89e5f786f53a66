//! The highest number of each list of revocations that was used on this machine.
//!
//! A number belongs to a key and a name. A key therefore cannot raise the number of another key's
//! list, which would block that list. Numbers are kept when a key is revoked: a stolen key that
//! revokes another one must not be able to erase them.

use std::io;
use std::path::{Path, PathBuf};

use shardwright_files::private_files;
use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::{PublicKey, Revocations};

/// Beginning of the name of each file with a number, before key and name of the list.
const PREFIX: &str = "revocations-";

/// Largest size of a file with a number, in bytes.
const NUMBER_BYTES: u64 = 32;

/// Largest step from the last number of a list used here. Otherwise, whoever has a key for a moment
/// could use up all numbers, and its owner could not revoke anything any more. With numbers made of
/// a date and a time (20261129023000), the step allows a century between two lists.
const JUMP_MAX: u64 = 1 << 40;

/// Largest number of the first list that is used here, because the owner may have signed many
/// before.
const FIRST_MAX: u64 = 1 << 53;

/// Help for a list that is too far ahead.
const AHEAD: &str =
    "number lists one after the other; a key that signed such a list may be stolen: ask its owner";

/// The stored number of a list.
pub(crate) struct Memory {
    folder: PathBuf,
    number: PathBuf,
}

impl Memory {
    pub(crate) fn of(folder: &Path, list: &Revocations) -> Memory {
        let number = folder.join(format!("{PREFIX}{}-{}", list.key, list.name));
        Memory { folder: folder.to_owned(), number }
    }

    /// Returns key, name and file of every list whose number is stored, in a fixed order.
    ///
    /// # Errors
    ///
    /// If the folder exists and cannot be read.
    pub(crate) fn all(folder: &Path) -> Result<Vec<(PublicKey, String, PathBuf)>> {
        let fault = |error: io::Error| fault(folder, format!("the numbers of lists cannot be read: {error}"));
        let entries = match std::fs::read_dir(folder) {
            // Storing the first number creates the folder, or reports why it cannot.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            entries => entries.map_err(fault)?,
        };
        let mut lists = Vec::new();
        for entry in entries {
            let file = entry.map_err(fault)?.file_name();
            let Some((key, name)) = file.to_str().and_then(parts_of) else { continue };
            lists.push((key, name.to_owned(), folder.join(&file)));
        }
        lists.sort_by(|(.., one), (.., other)| one.cmp(other));
        Ok(lists)
    }

    /// Refuses a list that is older than the last one used here, or too far ahead of it, and stores
    /// the number of a newer one. Processes do this one after the other.
    ///
    /// # Errors
    ///
    /// If the list is refused. If the stored number is unreadable or the new one cannot be written,
    /// the result of `unremembered` for that error.
    pub(crate) fn advance(
        &self,
        path: &Path,
        list: &Revocations,
        unremembered: impl Fn(Error) -> Result<()>,
    ) -> Result<()> {
        // A folder that is not writable has no number to protect from another process.
        let _lock = private_files::lock(&self.folder.join("lock")).ok();
        let sequence = list.sequence;
        let refused = |what: String, help: &str| {
            let what = format!("list of revocations number {sequence} is {what}");
            Err(Error::new(ErrorKind::Untrusted, what).at(path.display()).with_help(help))
        };
        let seen = match self.seen() {
            Ok(seen) => seen,
            Err(error) => return unremembered(error),
        };
        match seen {
            Some(seen) if sequence < seen => {
                let help = "get the latest list: an older one would allow keys and releases revoked since";
                refused(format!("older than number {seen}, which was used here"), help)
            }
            Some(seen) if sequence == seen => Ok(()),
            Some(seen) if sequence - seen > JUMP_MAX => {
                refused(format!("more than {JUMP_MAX} after {seen}"), AHEAD)
            }
            None if sequence > FIRST_MAX => refused(format!("more than {FIRST_MAX} after 0"), AHEAD),
            _ => {
                private_files::write_durably(&self.number, sequence.to_string().as_bytes()).or_else(|error| {
                    let what = format!("the number of the list is not remembered: {error}");
                    unremembered(fault(&self.number, what))
                })
            }
        }
    }

    fn seen(&self) -> Result<Option<u64>> {
        let digits = private_files::read(&self.number, NUMBER_BYTES);
        let digits = digits.map_err(|error| fault(&self.number, error.to_string()))?;
        let Some(digits) = digits else { return Ok(None) };
        let number = std::str::from_utf8(&digits).ok().and_then(|text| text.trim().parse().ok());
        // Starting at zero instead would allow an old list.
        let damaged = || fault(&self.number, "the file is damaged: expected a number".to_owned());
        number.map(Some).ok_or_else(damaged)
    }
}

/// Returns the error for numbers that cannot be read or written.
fn fault(path: &Path, message: String) -> Error {
    Error::missing(message).at(path.display()).with_help(
        "check the permissions of its folder; if it is damaged, make sure that you have the latest list, \
         then remove the file",
    )
}

/// Returns key and name of the list whose number is in a file of this name.
fn parts_of(file: &str) -> Option<(PublicKey, &str)> {
    let (key, name) = file.strip_prefix(PREFIX)?.split_once('-')?;
    Some((key.parse().ok()?, name))
}
