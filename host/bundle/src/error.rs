use shardwright_files::output::OutputError;
use shardwright_trust::TrustError;
use shardwright_vocabulary::{ErrorKind, Shortage};
use std::io;
use std::path::{Path, PathBuf};

use crate::{Digest, FORMAT_VERSION};

/// The first problem found when reading or writing a bundle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The operating system reported an error.
    #[error("`{}`: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// The directory contains no manifest.
    #[error("`{}` is not a bundle: it has no `bundle.json`{}", directory.display(), if *.unfinished { "; it is not finished" } else { "" })]
    NoManifest {
        directory: PathBuf,
        /// Whether the directory contains an unfinished bundle.
        unfinished: bool,
    },
    /// The directory contains files of a bundle, but no manifest.
    #[error("`{}` has files of a bundle, but its `bundle.json` is missing", directory.display())]
    LostManifest { directory: PathBuf },
    /// The `bundle.json` belongs to another program.
    #[error("`{}` is not the manifest of a bundle: wrong first bytes at offset {offset}", path.display())]
    Magic {
        path: PathBuf,
        /// Offset of the first wrong byte.
        offset: u64,
    },
    /// The manifest has a version that this host does not support.
    #[error("`{}` is version {version} of the format, this host reads {FORMAT_VERSION}", path.display())]
    Version {
        /// Path of the manifest.
        path: PathBuf,
        /// Version in the manifest.
        version: u32,
    },
    /// The bytes changed after they were written.
    #[error("`{}` is damaged: SHA-256 {found}, expected {expected}", path.display())]
    Hash {
        path: PathBuf,
        /// Hash in the manifest. For the manifest itself, the hash in its first line.
        expected: Digest,
        /// Hash of the actual bytes.
        found: Digest,
    },
    /// The file's length differs from the manifest.
    #[error("`{}` has {found} bytes, expected {expected}", path.display())]
    Length {
        path: PathBuf,
        /// Length in the manifest.
        expected: u64,
        /// Actual length of the file.
        found: u64,
    },
    /// A file in the manifest does not exist.
    #[error("`{}`, which is {used_as}, is missing", path.display())]
    Missing {
        /// Expected location.
        path: PathBuf,
        /// The manifest field that names the file.
        used_as: String,
    },
    /// The path is not a regular file or directory as expected.
    #[error("`{}` is {found}, expected {expected}", path.display())]
    Kind { path: PathBuf, expected: &'static str, found: &'static str },
    /// The manifest is not JSON of this form.
    #[error("`{}` at offset {offset}: {reason}", path.display())]
    Syntax {
        /// Path of the manifest.
        path: PathBuf,
        /// Byte offset of the error.
        offset: u64,
        reason: String,
    },
    /// The manifest is valid but not in canonical form.
    #[error("`{}` at offset {offset}: not in canonical spelling", path.display())]
    Spelling {
        /// Path of the manifest.
        path: PathBuf,
        /// Offset of the first byte that differs.
        offset: u64,
    },
    /// A field contradicts itself or another.
    #[error("`{}`: {field}: {reason}", path.display())]
    Invalid {
        /// Path of the manifest.
        path: PathBuf,
        /// Name of the field, such as `chains[0].shards[2].name`.
        field: String,
        reason: String,
    },
    /// The file does not have the layout of a packed bundle.
    #[error("`{}` at offset {offset}: {reason}", path.display())]
    Packed {
        path: PathBuf,
        /// Offset of the first byte that differs, or of the wrong record.
        offset: u64,
        reason: String,
    },
    /// A value exceeds the limits of this host.
    #[error("`{}`: {field}: {value}, at most {limit}", path.display())]
    Limit { path: PathBuf, field: String, value: u64, limit: u64 },
    /// The requested variant is missing, or none was requested and there are several.
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
        /// Path of the bundle.
        path: PathBuf,
        /// The requested chip, if any.
        asked: Option<String>,
        /// The chips with variants in the bundle.
        there: Vec<String>,
    },
    /// The file is not part of this bundle.
    #[error("{used_as}: the bundle `{}` has no file {sha256} of {bytes} bytes", directory.display())]
    Reference {
        /// Directory of the bundle.
        directory: PathBuf,
        /// The field that names the file, or the request.
        used_as: String,
        sha256: Digest,
        /// Length of the file.
        bytes: u64,
    },
    /// The signature does not comply with the host's rules.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The target directory contains something else.
    #[error("`{}` is neither empty nor a bundle: it holds `{found}`", directory.display())]
    Occupied {
        directory: PathBuf,
        /// One of the other entries.
        found: String,
    },
    /// The path of a packed bundle or a directory to write names something else.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The caller cancelled.
    #[error("cancelled while the bundle was read")]
    Cancelled,
    /// Another process is writing there.
    #[error("`{}` is being written by another process", directory.display())]
    Busy { directory: PathBuf },
}

impl BundleError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> BundleError {
        let path = path.to_owned();
        |source| BundleError::Io { path, source }
    }

    /// Returns a suggestion for the user, if there is one.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            BundleError::Io { source, .. } => Some(match Shortage::of(source) {
                Some(shortage) => shortage.help(),
                None if source.kind() == io::ErrorKind::NotFound => "check the path",
                None => "check the path, the permissions and the free space",
            }),
            BundleError::NoManifest { unfinished: true, .. } => {
                Some("run the same `shardwright compile` again: it goes on where it stopped")
            }
            BundleError::NoManifest { .. } => {
                Some("`shardwright compile <checkpoint> -o DIR` makes a bundle")
            }
            BundleError::LostManifest { .. } => Some("copy the whole bundle again from its source"),
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
            BundleError::Output(error) => Some(error.help()),
            BundleError::Cancelled => None,
            BundleError::Occupied { .. } => Some("name a directory that is empty or does not exist yet"),
            BundleError::Busy { .. } => Some("wait until the other one is done, or name another directory"),
        }
    }

    /// Returns whether the bytes on disk are damaged, so that copying or compiling again would
    /// help.
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

/// Escapes control characters of text from a file or a directory, since such names could overwrite
/// the terminal.
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

/// Classifies the error by its remedy for an application.
impl From<BundleError> for shardwright_vocabulary::Error {
    fn from(error: BundleError) -> Self {
        let kind = match &error {
            BundleError::Io { source, .. } => ErrorKind::of_io(source),
            BundleError::NoManifest { .. } | BundleError::LostManifest { .. } => ErrorKind::Missing,
            BundleError::Output(error) => error.kind(),
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
