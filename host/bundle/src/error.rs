use shardwright_trust::TrustError;
use shardwright_vocabulary::ErrorKind;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Digest, FORMAT_VERSION};

/// The first problem found with a bundle, or with writing one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The system reported an error.
    #[error("`{}`: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A directory without a manifest.
    #[error("`{}` is not a bundle: it has no `bundle.json`{}", directory.display(), if *.unfinished { "; it is not finished" } else { "" })]
    NoManifest {
        /// The directory.
        directory: PathBuf,
        /// Whether it contains an unfinished bundle.
        unfinished: bool,
    },
    /// A `bundle.json` of another program.
    #[error("`{}` is not the manifest of a bundle: wrong first bytes at offset {offset}", path.display())]
    Magic {
        /// The file.
        path: PathBuf,
        /// Offset of the first wrong byte.
        offset: u64,
    },
    /// A manifest of a version this host does not read.
    #[error("`{}` is version {version} of the format, this host reads {FORMAT_VERSION}", path.display())]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The bytes are not those that were written.
    #[error("`{}` is damaged: SHA-256 {found}, expected {expected}", path.display())]
    Hash {
        /// The file.
        path: PathBuf,
        /// As the manifest says; for the manifest, as its own first line says.
        expected: Digest,
        /// Of the bytes.
        found: Digest,
    },
    /// A file is shorter or longer than the manifest says.
    #[error("`{}` has {found} bytes, expected {expected}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// According to the manifest.
        expected: u64,
        /// Of the file.
        found: u64,
    },
    /// A file that the manifest names does not exist.
    #[error("`{}`, which is {used_as}, is missing", path.display())]
    Missing {
        /// Where it should be.
        path: PathBuf,
        /// The field of the manifest that names it.
        used_as: String,
    },
    /// The path is not a regular file or directory as expected.
    #[error("`{}` is {found}, expected {expected}", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// The expected kind.
        expected: &'static str,
        /// The kind found.
        found: &'static str,
    },
    /// The manifest is not JSON of this form.
    #[error("`{}` at offset {offset}: {reason}", path.display())]
    Syntax {
        /// The manifest.
        path: PathBuf,
        /// Offset of the error.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The manifest is valid but not in canonical form.
    #[error("`{}` at offset {offset}: not in canonical spelling", path.display())]
    Spelling {
        /// The manifest.
        path: PathBuf,
        /// First byte that differs.
        offset: u64,
    },
    /// A field contradicts itself or another.
    #[error("`{}`: {field}: {reason}", path.display())]
    Invalid {
        /// The manifest.
        path: PathBuf,
        /// `chains[0].shards[2].name`
        field: String,
        /// What is wrong.
        reason: String,
    },
    /// A packed bundle is not laid out as one.
    #[error("`{}` at offset {offset}: {reason}", path.display())]
    Packed {
        /// The file.
        path: PathBuf,
        /// First byte that differs, or the record that is wrong.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A value exceeds what this host reads or writes.
    #[error("`{}`: {field}: {value}, at most {limit}", path.display())]
    Limit {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// The value.
        value: u64,
        /// The cap.
        limit: u64,
    },
    /// It is not known which variant is meant.
    #[error(
        "`{}` {}; its variants are for {}",
        path.display(),
        match asked {
            Some(asked) => format!("has no variant for `{asked}`"),
            None => "has several variants, and none is named".to_owned(),
        },
        there.join(", ")
    )]
    Variant {
        /// The bundle.
        path: PathBuf,
        /// The chip asked for.
        asked: Option<String>,
        /// The chips there are variants for.
        there: Vec<String>,
    },
    /// A file that is not one of this bundle.
    #[error("{used_as}: the bundle `{}` has no file {sha256} of {bytes} bytes", directory.display())]
    Reference {
        /// The bundle.
        directory: PathBuf,
        /// The field that names it, or the request.
        used_as: String,
        /// Its hash.
        sha256: Digest,
        /// Its length.
        bytes: u64,
    },
    /// It is not signed as the host's rules ask.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The directory to write to contains something else.
    #[error("`{}` is neither empty nor a bundle: it holds `{found}`", directory.display())]
    Occupied {
        /// The directory.
        directory: PathBuf,
        /// One thing in it.
        found: String,
    },
    /// The caller asked to stop.
    #[error("cancelled while the bundle was read")]
    Cancelled,
    /// Another process is writing there.
    #[error("`{}` is being written by another process", directory.display())]
    Busy {
        /// The directory.
        directory: PathBuf,
    },
}

impl BundleError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> BundleError {
        let path = path.to_owned();
        |source| BundleError::Io { path, source }
    }

    /// What would help.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            BundleError::Io { .. } => Some("check the path, the permissions and the free space"),
            BundleError::NoManifest { unfinished: true, .. } => {
                Some("run the same `shardwright compile` again: it goes on where it stopped")
            }
            BundleError::NoManifest { .. } => {
                Some("`shardwright compile <checkpoint> -o DIR` makes a bundle")
            }
            BundleError::Magic { .. } => Some("check which directory this is"),
            BundleError::Version { .. } => {
                Some("compile it again with this release, or run it with the release that made it")
            }
            BundleError::Hash { .. } | BundleError::Length { .. } | BundleError::Missing { .. } => {
                Some("copy the bundle again from its source, or compile it again into the same directory")
            }
            BundleError::Kind { .. } => Some("a bundle holds plain files only; copy it again without links"),
            BundleError::Packed { .. } => Some(
                "copy the file again from its source, or pack the bundle again; in an app's package store it uncompressed",
            ),
            BundleError::Syntax { .. }
            | BundleError::Spelling { .. }
            | BundleError::Invalid { .. }
            | BundleError::Limit { .. } => {
                Some("the bundle was not written by this program; compile it again")
            }
            BundleError::Variant { .. } => Some("name the chip with `--soc`"),
            BundleError::Reference { .. } => Some("report this: a file was asked for that was never added"),
            BundleError::Trust(error) => Some(error.help()),
            BundleError::Cancelled => None,
            BundleError::Occupied { .. } => Some("name a directory that is empty or does not exist yet"),
            BundleError::Busy { .. } => Some("wait until the other one is done, or name another directory"),
        }
    }

    /// Whether the bytes on disk are damaged, so that copying or compiling again would repair it.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            BundleError::Hash { .. }
                | BundleError::Length { .. }
                | BundleError::Missing { .. }
                | BundleError::Kind { .. }
                | BundleError::Syntax { .. }
                | BundleError::Spelling { .. }
                | BundleError::Invalid { .. }
                | BundleError::Packed { .. }
        )
    }
}

/// Makes text from a file or a directory safe to print: a name could otherwise overwrite the
/// terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => shown.extend(character.escape_debug()),
            false => shown.push(character),
        }
    }
    shown
}

/// What an application can do about it.
impl From<BundleError> for shardwright_vocabulary::Error {
    fn from(error: BundleError) -> Self {
        let kind = match &error {
            BundleError::Io { .. } | BundleError::NoManifest { .. } => ErrorKind::Missing,
            BundleError::Version { .. } => ErrorKind::Incompatible,
            BundleError::Occupied { .. } | BundleError::Busy { .. } | BundleError::Variant { .. } => {
                ErrorKind::Argument
            }
            BundleError::Reference { .. } => ErrorKind::Internal,
            BundleError::Trust(error) => error.kind(),
            BundleError::Cancelled => ErrorKind::Cancelled,
            _ => ErrorKind::Invalid,
        };
        let help = error.help().map(str::to_owned);
        shardwright_vocabulary::Error::caused_by(kind, error, help)
    }
}
