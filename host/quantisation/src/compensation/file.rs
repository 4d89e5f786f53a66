//! The file of second moments: numbers of columns and rows as u64, then the lower triangle row by
//! row as f32. All are little-endian, within the envelope of measurement files.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use shardwright_files::hex;
use shardwright_vocabulary::Result;

use super::moments::SecondMoments;
use crate::envelope::{HEAD, Kind, damaged};

/// The limit fits the largest supported number of columns.
const KIND: Kind = Kind { magic: b"sw-momen", version: 1, name: "second moments", limit: 1 << 31 };
/// Number of bytes before the triangle.
const COUNTS: usize = 16;

impl SecondMoments {
    /// Returns the path of a tensor's moments in a folder.
    pub fn path(folder: &Path, tensor: &str) -> PathBuf {
        folder.join(format!("{}.moments", &hex::encode(&Sha256::digest(tensor))[..32]))
    }

    /// Writes the moments to a file atomically.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut content = Vec::with_capacity(COUNTS + 4 * self.triangle.len());
        content.extend((self.width as u64).to_le_bytes());
        content.extend(self.rows.to_le_bytes());
        self.triangle.iter().for_each(|value| content.extend(value.to_le_bytes()));
        KIND.write(path.as_ref(), &content)
    }

    /// Reads the moments of a tensor with `width` columns.
    pub fn read(path: impl AsRef<Path>, width: usize) -> Result<Self> {
        let path = path.as_ref();
        let content = KIND.read(path)?;
        let damaged = |offset: usize, what| damaged(path, HEAD + offset, what);
        let (counts, values) = content.split_at_checked(COUNTS).ok_or_else(|| damaged(0, "the counts"))?;
        let [found, rows] = [0, 8].map(|at| {
            counts[at..at + 8].iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte))
        });
        if found != width as u64 {
            return Err(damaged(0, "the number of columns, which is not that of the matrix"));
        }
        let (values, rest) = values.as_chunks::<4>();
        if !rest.is_empty() || values.len() as u64 != found * (found + 1) / 2 {
            return Err(damaged(COUNTS, "the number of values"));
        }
        let triangle = values.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        Ok(SecondMoments { width, rows, triangle })
    }
}
