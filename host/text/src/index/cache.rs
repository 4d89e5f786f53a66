//! Stores indexes in a folder of this user, named after the hash of their text files.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use shardwright_files::{Links, hex, open, private_files};
use shardwright_vocabulary::Result;

use super::is_index_of;
use crate::input::TOKENIZER_BYTES_MAX;
use crate::tokenizer::Tokenizer;

/// Largest index that is read. For a vocabulary of 262,144 tokens it has 14 MB, a third of its
/// file.
const INDEX_BYTES_MAX: u64 = TOKENIZER_BYTES_MAX;

/// Reads the tokenizer at `path` using its index in `folder`, which is named after its `hash`. If
/// the index is missing, `make` reads the tokenizer, and its index is stored.
pub(crate) fn read(
    path: &Path,
    folder: &Path,
    hash: impl FnOnce() -> Option<[u8; 32]>,
    make: impl FnOnce(Option<[u8; 32]>) -> Result<Tokenizer>,
) -> Result<Tokenizer> {
    let Some(hash) = hash() else {
        // Reading the file reports the error.
        return make(None);
    };
    let kept = folder.join(format!("{}.index", hex::encode(&hash)));
    match private_files::read(&kept, INDEX_BYTES_MAX) {
        Ok(Some(index)) => {
            if is_index_of(&index, hash)
                && let Ok(tokenizer) = Tokenizer::from_index(Arc::new(index), hash, path)
            {
                return Ok(tokenizer);
            }
            tracing::warn!(
                "{}: damaged, or of another version; the index of the tokenizer is made anew",
                kept.display()
            );
        }
        Ok(None) => {}
        Err(error) => tracing::warn!("{}: not used: {error}", kept.display()),
    }
    let tokenizer = make(Some(hash))?;
    if let Some(index) = tokenizer.index()
        && is_index_of(index, hash)
        && let Err(error) = private_files::write(&kept, index)
    {
        tracing::warn!("{}: not kept, so that the next start takes as long: {error}", kept.display());
    }
    Ok(tokenizer)
}

/// Returns the SHA-256 of a `tokenizer.json`.
pub(crate) fn hash_of(path: &Path) -> Result<[u8; 32]> {
    let (file, _) = open(path, Links::Followed)?;
    let mut file = file.take(TOKENIZER_BYTES_MAX + 1);
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 18];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(hasher.finalize().into()),
            Ok(count) => hasher.update(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}
