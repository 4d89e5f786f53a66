//! Layout of a bundle's directory.
//!
//! ```text
//! DIR/bundle.json      the manifest; exists only when the bundle is complete
//! DIR/bundle.json.sig  its signature, if it has one
//! DIR/files/<sha256>   every other file, named by its content
//! DIR/.unfinished      while it is written: the journal
//! DIR/.staging/        while it is written: scratch space
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use crate::Digest;

pub(crate) const MANIFEST: &str = "bundle.json";
/// Also the name of the first part of a signed packed bundle.
pub(crate) const SIGNATURE: &str = "bundle.json.sig";
pub(crate) const FILES: &str = "files";
const JOURNAL: &str = ".unfinished";
const STAGING: &str = ".staging";

/// Prefix of the names of temporary files, including artefacts that shims are writing.
pub(crate) const TEMPORARY: &str = ".writing-";

/// Number of entries to check for a file of a bundle.
const ENTRIES_LOOKED_AT: usize = 64;

/// A bundle's directory, whether or not there is a bundle in it.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) directory: PathBuf,
}

impl Layout {
    pub(crate) fn of(directory: &Path) -> Layout {
        Layout { directory: directory.to_owned() }
    }

    pub(crate) fn manifest(&self) -> PathBuf {
        self.directory.join(MANIFEST)
    }

    /// Returns the path of the manifest's signature. It covers every file, since the manifest has
    /// their hashes.
    pub(crate) fn signature(&self) -> PathBuf {
        self.directory.join(SIGNATURE)
    }

    pub(crate) fn files(&self) -> PathBuf {
        self.directory.join(FILES)
    }

    /// Returns the path of a file. The name consists only of digits, so no reference leads out of
    /// the directory.
    pub(crate) fn file(&self, sha256: Digest) -> PathBuf {
        self.directory.join(FILES).join(sha256.to_string())
    }

    /// Returns the path of the journal. It exists while a bundle is being written, marks the
    /// directory as ours, and records the finished pieces.
    pub(crate) fn journal(&self) -> PathBuf {
        self.directory.join(JOURNAL)
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.directory.join(STAGING)
    }

    /// Returns whether the directory has a signature, or files that are named by their content. If
    /// the manifest is missing then, the directory is an incomplete copy of a bundle.
    pub(crate) fn has_files(&self) -> bool {
        let is_named = |entry: std::io::Result<fs::DirEntry>| {
            let name = entry.map(|entry| entry.file_name()).unwrap_or_default();
            name.to_str().is_some_and(|name| name.parse::<Digest>().is_ok())
        };
        self.signature().is_file()
            || fs::read_dir(self.files()).is_ok_and(|entries| entries.take(ENTRIES_LOOKED_AT).any(is_named))
    }

    /// Returns whether a name directly in the directory is part of a complete bundle.
    pub(crate) fn is_part(name: &str) -> bool {
        [MANIFEST, SIGNATURE, FILES].contains(&name)
    }

    /// Returns the path of a file within the directory, with `/` as separator.
    pub(crate) fn name_of(sha256: Digest) -> String {
        Layout::within_files(&sha256.to_string())
    }

    /// Returns the path of a file within the directory, for messages.
    pub(crate) fn within_files(name: &str) -> String {
        format!("{FILES}/{name}")
    }

    /// Returns whether a name directly in the directory belongs to a bundle, complete or not.
    pub(crate) fn is_ours(name: &str) -> bool {
        [MANIFEST, SIGNATURE, FILES, JOURNAL, STAGING].contains(&name) || name.starts_with(TEMPORARY)
    }
}
