//! The container format of this crate's measurement files: a kind, a version, the length, a hash,
//! then the content. Files are written atomically. Reads are limited in size and verify the hash
//! before using the content.

use std::io::{Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use shardwright_files::{Links, open};
use shardwright_vocabulary::{At, Error, Result};

/// Bytes before the content: kind, version, length, hash.
pub(crate) const HEAD: usize = 8 + 4 + 8 + 32;

const MEASURE_AGAIN: &str = "remove the file and measure again";

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
    pub fn write(&self, path: &Path, content: &[u8]) -> Result<()> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut file = tempfile::NamedTempFile::new_in(folder).at(path.display())?;
        let mut head = Vec::with_capacity(HEAD);
        head.extend(self.magic);
        head.extend(self.version.to_le_bytes());
        head.extend((content.len() as u64).to_le_bytes());
        head.extend(Sha256::digest(content));
        let written =
            file.write_all(&head).and_then(|()| file.write_all(content)).and_then(|()| file.flush());
        written.at(path.display())?;
        file.persist(path).map_err(|fault| fault.error).at(path.display())?;
        Ok(())
    }

    pub fn read(&self, path: &Path) -> Result<Vec<u8>> {
        self.content(path).at(path.display())
    }

    fn content(&self, path: &Path) -> Result<Vec<u8>> {
        let absent = |error: Error| match error.is_not_found() {
            true => error.with_help("check the path: the next run makes missing files of the cache again"),
            false => error,
        };
        let (mut file, _) = open(path, Links::Followed).map_err(absent)?;
        let mut head = [0; HEAD];
        let foreign = || {
            Error::invalid(format!("expected {}, got another kind of file", self.name))
                .with_help("name a file that this program wrote for that purpose")
        };
        match file.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(foreign()),
            Err(error) => return Err(error.into()),
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
            let supported = self.version;
            return Err(Error::invalid(format!(
                "version {found} of the format, this program reads version {supported}"
            ))
            .with_help("measure again with this version of the program"));
        }
        let length = number(length);
        if length > self.limit {
            let what = format!("expected at most {} bytes, got {length} in the header", self.limit);
            return Err(Error::invalid(what).with_help(MEASURE_AGAIN));
        }
        let mut content = Vec::new();
        // Reads one byte more than expected, to detect a file that is too long.
        file.take(length + 1).read_to_end(&mut content)?;
        if content.len() as u64 != length {
            return Err(damage(HEAD + content.len(), "the length"));
        }
        if Sha256::digest(&content)[..] != *hash {
            return Err(damage(HEAD, "the hash of the content"));
        }
        Ok(content)
    }
}

/// Creates the error for damage at a byte offset of a file.
pub(crate) fn damaged(path: &Path, offset: usize, what: &str) -> Error {
    damage(offset, what).at(path.display())
}

fn damage(offset: usize, what: &str) -> Error {
    Error::invalid(format!("damaged: {what}")).at(format!("byte {offset}")).with_help(MEASURE_AGAIN)
}
