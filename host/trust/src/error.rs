use std::path::PathBuf;

use shardwright_vocabulary::ErrorKind;

use crate::{Kind, PublicKey};

/// Reasons why a file is not trusted, or a list of revocations not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// The file has no signature.
    #[error("`{}` is not signed", path.display())]
    Unsigned { path: PathBuf },
    /// The signature is not valid.
    #[error("the signature of `{}` is damaged at offset {offset}: {reason}", path.display())]
    Damaged {
        path: PathBuf,
        /// Offset in the signature.
        offset: u64,
        reason: &'static str,
    },
    /// The key did not make the signature.
    #[error("the signature of `{}` was not made by {key}, whose it is said to be", path.display())]
    Forged {
        path: PathBuf,
        /// The claimed key.
        key: PublicKey,
    },
    /// The signature belongs to other bytes.
    #[error("`{}` is not what {key} signed: it was changed, or the signature is another file's", path.display())]
    Altered {
        path: PathBuf,
        /// The key that signed.
        key: PublicKey,
    },
    /// The signature is for another kind of file.
    #[error("the signature of `{}` is for {found}, not for {expected}", path.display())]
    OtherKind {
        path: PathBuf,
        /// The kind in the signature.
        found: Kind,
        /// The kind of the file.
        expected: Kind,
    },
    /// The signature is for another name.
    #[error("the signature of `{}` is for `{found}`, not for `{expected}`", path.display())]
    OtherName {
        path: PathBuf,
        /// The name in the signature.
        found: String,
        /// The name in the file's content.
        expected: String,
    },
    /// The file is signed under another name than the caller expects.
    #[error("`{}` is signed as `{found}`, expected `{expected}`", path.display())]
    Unexpected {
        path: PathBuf,
        /// The name in the signature.
        found: String,
        /// The name that the caller expects.
        expected: String,
    },
    /// The signing key is not trusted.
    #[error("`{}` is signed by {key}, which is not a trusted key", path.display())]
    UntrustedKey {
        path: PathBuf,
        /// The signing key.
        key: PublicKey,
    },
    /// The signing key was revoked.
    #[error("`{}` is signed by {key}, which was revoked (list {sequence})", path.display())]
    RevokedKey {
        path: PathBuf,
        /// The revoked key.
        key: PublicKey,
        /// Number of the list that revokes it.
        sequence: u64,
    },
    /// The release must not be used any more.
    #[error(
        "`{}` is release {release} of {kind} `{name}`; the least to be used is {least} (list {sequence})",
        path.display()
    )]
    Withdrawn {
        path: PathBuf,
        /// Kind of the file.
        kind: Kind,
        /// Name of the release.
        name: String,
        /// Number of the release.
        release: u64,
        /// Smallest release that may be used.
        least: u64,
        /// Number of the list that states this.
        sequence: u64,
    },
    /// The manifest of a shim is signed, but has no hash of its library.
    #[error("`{}` is signed, but does not have the hash of its library", path.display())]
    Unbound { path: PathBuf },
    /// The name is not valid for a release.
    #[error("`{name}` is no name: 1 to 64 of a-z, 0-9, `-`, `_`, `.`")]
    IllegalName {
        /// Beginning of the name.
        name: String,
    },
    /// The list of revocations is invalid.
    #[error("list of revocations `{}`: {reason}", path.display())]
    List { path: PathBuf, reason: String },
    /// The list of revocations is older than one that was used here.
    #[error("list of revocations `{}` is number {sequence}, and number {seen} was used here", path.display())]
    OldList {
        path: PathBuf,
        /// Number of the list.
        sequence: u64,
        /// The highest number used so far.
        seen: u64,
    },
    /// A list that was used here is not among the given ones.
    #[error(
        "list of revocations `{name}` of {key} was used here and is not given; its number is in `{}`",
        path.display()
    )]
    ListNotGiven {
        /// Name of the list.
        name: String,
        /// The key that signs the list.
        key: PublicKey,
        /// The file with the number of the list.
        path: PathBuf,
    },
    /// The number of the list is too far ahead of the last one that was used here.
    #[error("list of revocations `{}` is number {sequence}, more than {limit} after {seen}", path.display())]
    Jump {
        path: PathBuf,
        /// Number of the list.
        sequence: u64,
        /// The highest number used so far, otherwise 0.
        seen: u64,
        /// The largest allowed step.
        limit: u64,
    },
    /// The remembered number of a list cannot be read or written.
    #[error("`{}`: {reason}", path.display())]
    Memory {
        /// The file with the number.
        path: PathBuf,
        reason: String,
    },
    /// A file could not be read or written.
    #[error("`{}`: {reason}", path.display())]
    Io { path: PathBuf, reason: String },
}

impl TrustError {
    /// Returns a suggestion for a `help:` line.
    pub fn help(&self) -> &'static str {
        match self {
            TrustError::Unsigned { .. } => {
                "sign it with `shardwright trust sign`, or get a signed one from its source"
            }
            TrustError::Damaged { .. } | TrustError::Forged { .. } | TrustError::Altered { .. } => {
                "get the file and its signature again from their source"
            }
            TrustError::OtherKind { .. } | TrustError::OtherName { .. } => {
                "the file was renamed or given another's signature: get both again from their source"
            }
            TrustError::Unexpected { .. } => "check which bundle this is, or expect the name it is signed as",
            TrustError::UntrustedKey { .. } => "trust the key if you know its owner",
            TrustError::RevokedKey { .. } => "get it signed by another key of its maker",
            TrustError::Withdrawn { .. } => "get a later release",
            TrustError::Unbound { .. } => {
                "`shardwright shim hash MANIFEST` writes the hash; sign the manifest again then"
            }
            TrustError::IllegalName { .. } => "use a name such as `gemma-3-1b`",
            TrustError::List { .. } => "get the list again from its source",
            TrustError::OldList { .. } => {
                "get the latest list; an old one would allow what was revoked since"
            }
            TrustError::ListNotGiven { .. } => {
                "give the latest list of this key too; if its owner has given it up, remove the file with its number"
            }
            TrustError::Jump { .. } => {
                "number lists one after the other; a key that signed such a list may be stolen: ask its owner"
            }
            TrustError::Memory { .. } => {
                "check the permissions of its folder; if it is damaged, make sure that you have the latest list, \
                 then remove the file"
            }
            TrustError::Io { .. } => "check the path and its permissions",
        }
    }

    /// Returns the kind of error, for applications.
    pub fn kind(&self) -> ErrorKind {
        match self {
            TrustError::Io { .. } | TrustError::Memory { .. } => ErrorKind::Missing,
            TrustError::IllegalName { .. } => ErrorKind::Argument,
            TrustError::Damaged { .. } | TrustError::List { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Untrusted,
        }
    }
}

impl From<TrustError> for shardwright_vocabulary::Error {
    fn from(error: TrustError) -> Self {
        let (kind, help) = (error.kind(), error.help().to_owned());
        shardwright_vocabulary::Error::caused_by(kind, error, Some(help))
    }
}
