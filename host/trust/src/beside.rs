//! Signatures of files that cannot contain one.

use std::path::{Path, PathBuf};

use shardwright_files::{FileError, Links};

use crate::TrustError;
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
/// [`TrustError::Io`]. A file that is too long is returned truncated, and is refused when it is
/// parsed.
pub fn signature_beside(path: &Path) -> Result<Option<Vec<u8>>, TrustError> {
    use std::io::Read;

    let path = path_of_signature(path);
    let failed = |reason: String| TrustError::Io { path: path.clone(), reason };
    match shardwright_files::open(&path, Links::Followed) {
        Ok((file, _)) => {
            let mut bytes = Vec::with_capacity(ENVELOPE_BYTES + 1);
            let read = file.take(ENVELOPE_BYTES as u64 + 1).read_to_end(&mut bytes);
            read.map_err(|error| failed(error.to_string()))?;
            Ok(Some(bytes))
        }
        Err(error) if error.is_missing() => Ok(None),
        Err(error @ FileError::Kind { .. }) => Err(failed(format!("it is {error}"))),
        Err(error) => Err(failed(error.to_string())),
    }
}
