//! Signatures of files that have no room for one.

use std::path::{Path, PathBuf};

use shardwright_files::{FileError, Links};

use crate::TrustError;
use crate::envelope::{ENVELOPE_BYTES, SUFFIX};

/// Where the signature of a file lies: beside it, under its name and [`SUFFIX`].
pub fn path_of_signature(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(SUFFIX);
    PathBuf::from(name)
}

/// The signature beside a file, if there is one.
///
/// # Errors
///
/// [`TrustError::Io`]; a file that is too long for one is returned as far as it is read, and is
/// refused when it is taken for one.
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
