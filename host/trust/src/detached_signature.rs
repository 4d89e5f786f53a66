//! Signatures of files that cannot contain one.

use std::path::{Path, PathBuf};

use shardwright_files::Links;
use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::envelope::{ENVELOPE_BYTES, SUFFIX};

/// Returns the path of a file's signature, which is the file's own path with [`SUFFIX`] appended.
pub fn path_of_signature(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(SUFFIX);
    PathBuf::from(name)
}

/// Reads the signature next to a file, if there is one.
///
/// # Errors
///
/// If the signature exists and cannot be read. A file that is too long is returned truncated, and
/// is refused when it is parsed.
pub fn signature_beside(path: &Path) -> Result<Option<Vec<u8>>> {
    use std::io::Read;

    let path = path_of_signature(path);
    match shardwright_files::open(&path, Links::Followed) {
        Ok((file, _)) => {
            let mut bytes = Vec::with_capacity(ENVELOPE_BYTES + 1);
            let read = file.take(ENVELOPE_BYTES as u64 + 1).read_to_end(&mut bytes);
            read.map_err(|error| unreadable(&path, error))?;
            Ok(Some(bytes))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(unreadable(&path, error)),
    }
}

/// Returns the error for a signature or a list that cannot be read.
pub(crate) fn unreadable(path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    let help = "check the path and its permissions".to_owned();
    Error::caused_by(ErrorKind::Missing, error, Some(help)).at(path.display())
}
