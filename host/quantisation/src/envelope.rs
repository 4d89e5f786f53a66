//! The container format of this crate's measurement files: a kind, a version, the length, a hash,
//! then the content. Files are written atomically. Reads are limited in size and verify the hash
//! before using the content.

use std::io::{Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use shardwright_files::{Links, open};

use crate::MeasuredError;

/// Bytes before the content: kind, version, length, hash.
pub(crate) const HEAD: usize = 8 + 4 + 8 + 32;

/// A file type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub magic: &'static [u8; 8],
    pub version: u32,
    /// Display name for messages.
    pub name: &'static str,
    /// Largest accepted content in bytes, far above the size for a model of some thousand tensors.
    pub limit: u64,
}

impl Kind {
    pub fn write(&self, path: &Path, content: &[u8]) -> Result<(), MeasuredError> {
        let io = |action, source| MeasuredError::Io { action, path: path.to_owned(), source };
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|source| io("write", source))?;
        let mut head = Vec::with_capacity(HEAD);
        head.extend(self.magic);
        head.extend(self.version.to_le_bytes());
        head.extend((content.len() as u64).to_le_bytes());
        head.extend(Sha256::digest(content));
        let written =
            file.write_all(&head).and_then(|()| file.write_all(content)).and_then(|()| file.flush());
        written.map_err(|source| io("write", source))?;
        file.persist(path).map_err(|fault| io("rename", fault.error))?;
        Ok(())
    }

    pub fn read(&self, path: &Path) -> Result<Vec<u8>, MeasuredError> {
        let io = |source| MeasuredError::Io { action: "read", path: path.to_owned(), source };
        let (mut file, _) = open(path, Links::Followed).map_err(|error| io(error.into()))?;
        let mut head = [0; HEAD];
        let foreign = || MeasuredError::OtherKind { path: path.to_owned(), wanted: self.name };
        match file.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(foreign()),
            Err(error) => return Err(io(error)),
        }
        let (magic, rest) = head.split_at(8);
        let (version, rest) = rest.split_at(4);
        let (length, hash) = rest.split_at(8);
        if magic != self.magic {
            return Err(foreign());
        }
        let number =
            |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
        let found = number(version) as u32;
        if found != self.version {
            return Err(MeasuredError::Version { path: path.to_owned(), found, supported: self.version });
        }
        let length = number(length);
        if length > self.limit {
            return Err(MeasuredError::TooLarge { path: path.to_owned(), bytes: length, limit: self.limit });
        }
        let mut content = Vec::new();
        // Reads one byte more than expected, to detect a file that is too long.
        file.take(length + 1).read_to_end(&mut content).map_err(io)?;
        if content.len() as u64 != length {
            return Err(self.damaged(path, HEAD + content.len(), "the length"));
        }
        if Sha256::digest(&content)[..] != *hash {
            return Err(self.damaged(path, HEAD, "the hash of the content"));
        }
        Ok(content)
    }

    /// Creates the error for damage at a byte offset of the file.
    pub fn damaged(&self, path: &Path, offset: usize, what: &'static str) -> MeasuredError {
        MeasuredError::Damaged { path: path.to_owned(), offset: offset as u64, what }
    }
}
