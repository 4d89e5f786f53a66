//! The highest number of each list of revocations that was used on this machine.
//!
//! A number belongs to a key and a name. A key therefore cannot raise the number of another key's
//! list, which would block that list. Numbers are kept when a key is revoked: a stolen key that
//! revokes another one must not be able to erase them.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use shardwright_files::own;

use crate::{PublicKey, Revocations, TrustError};

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
    /// [`TrustError::Memory`] if the folder exists and cannot be read.
    pub(crate) fn all(folder: &Path) -> Result<Vec<(PublicKey, String, PathBuf)>, TrustError> {
        let fault = |error: io::Error| TrustError::Memory {
            path: folder.to_owned(),
            reason: format!("the numbers of lists cannot be read: {error}"),
        };
        let entries = match std::fs::read_dir(folder) {
            // Storing the first number creates the folder, or reports why it cannot.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
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
    /// [`TrustError::OldList`], [`TrustError::Jump`], and [`TrustError::Memory`] if the stored
    /// number is unreadable or the new one cannot be written.
    pub(crate) fn advance(&self, path: &Path, list: &Revocations) -> Result<(), TrustError> {
        // A folder that is not writable has no number to protect from another process.
        let _lock = own::lock(&self.folder.join("lock")).ok();
        let (path, sequence) = (|| path.to_owned(), list.sequence);
        let seen = self.seen()?;
        match seen {
            Some(seen) if sequence < seen => Err(TrustError::OldList { path: path(), sequence, seen }),
            Some(seen) if sequence == seen => Ok(()),
            Some(seen) if sequence - seen > JUMP_MAX => {
                Err(TrustError::Jump { path: path(), sequence, seen, limit: JUMP_MAX })
            }
            None if sequence > FIRST_MAX => {
                Err(TrustError::Jump { path: path(), sequence, seen: 0, limit: FIRST_MAX })
            }
            _ => own::write_durably(&self.number, sequence.to_string().as_bytes())
                .map_err(|error| self.fault(format!("the number of the list is not remembered: {error}"))),
        }
    }

    fn seen(&self) -> Result<Option<u64>, TrustError> {
        let digits = own::read(&self.number, NUMBER_BYTES).map_err(|error| self.fault(error.to_string()))?;
        let Some(digits) = digits else { return Ok(None) };
        let number = std::str::from_utf8(&digits).ok().and_then(|text| text.trim().parse().ok());
        // Starting at zero instead would allow an old list.
        number.map(Some).ok_or_else(|| self.fault("the file is damaged: expected a number".to_owned()))
    }

    fn fault(&self, reason: String) -> TrustError {
        TrustError::Memory { path: self.number.clone(), reason }
    }
}

/// Returns key and name of the list whose number is in a file of this name.
fn parts_of(file: &str) -> Option<(PublicKey, &str)> {
    let (key, name) = file.strip_prefix(PREFIX)?.split_once('-')?;
    Some((key.parse().ok()?, name))
}
