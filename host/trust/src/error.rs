use std::path::PathBuf;

use shardwright_vocabulary::ErrorKind;

use crate::{Kind, PublicKey};

/// Why a file is not trusted, or a list of revocations not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// It has no signature.
    #[error("`{}` is not signed", path.display())]
    Unsigned {
        /// The file.
        path: PathBuf,
    },
    /// What should be its signature is none.
    #[error("the signature of `{}` is damaged at offset {offset}: {reason}", path.display())]
    Damaged {
        /// The signed file.
        path: PathBuf,
        /// Offset in the signature.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// The key did not make the signature.
    #[error("the signature of `{}` was not made by {key}, whose it is said to be", path.display())]
    Forged {
        /// The signed file.
        path: PathBuf,
        /// The key.
        key: PublicKey,
    },
    /// The signature is of other bytes.
    #[error("`{}` is not what {key} signed: it was changed, or the signature is another file's", path.display())]
    Altered {
        /// The file.
        path: PathBuf,
        /// The key.
        key: PublicKey,
    },
    /// The signature is of something else.
    #[error("the signature of `{}` is for {found}, not for {expected}", path.display())]
    OtherKind {
        /// The file.
        path: PathBuf,
        /// What it is for.
        found: Kind,
        /// What the file is.
        expected: Kind,
    },
    /// The signature names something else.
    #[error("the signature of `{}` is for `{found}`, not for `{expected}`", path.display())]
    OtherName {
        /// The file.
        path: PathBuf,
        /// The name in the signature.
        found: String,
        /// The name of the file's content.
        expected: String,
    },
    /// It is signed as another file than the caller expects.
    #[error("`{}` is signed as `{found}`, expected `{expected}`", path.display())]
    Unexpected {
        /// The file.
        path: PathBuf,
        /// The name in the signature.
        found: String,
        /// The name that the caller expects.
        expected: String,
    },
    /// Its key is not among the trusted ones.
    #[error("`{}` is signed by {key}, which is not a trusted key", path.display())]
    UntrustedKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: PublicKey,
    },
    /// Its key was revoked.
    #[error("`{}` is signed by {key}, which was revoked (list {sequence})", path.display())]
    RevokedKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: PublicKey,
        /// The list that says so.
        sequence: u64,
    },
    /// A release that must not be used any more.
    #[error(
        "`{}` is release {release} of {kind} `{name}`; the least to be used is {least} (list {sequence})",
        path.display()
    )]
    Withdrawn {
        /// The file.
        path: PathBuf,
        /// What it is.
        kind: Kind,
        /// Its name.
        name: String,
        /// Its release.
        release: u64,
        /// The least release.
        least: u64,
        /// The list that says so.
        sequence: u64,
    },
    /// The manifest of a shim is signed, but does not say which library it is for.
    #[error("`{}` is signed, but does not have the hash of its library", path.display())]
    Unbound {
        /// The manifest.
        path: PathBuf,
    },
    /// A name that no release can have.
    #[error("`{name}` is no name: 1 to 64 of a-z, 0-9, `-`, `_`, `.`")]
    IllegalName {
        /// Its beginning.
        name: String,
    },
    /// A list of revocations that makes no sense.
    #[error("list of revocations `{}`: {reason}", path.display())]
    List {
        /// The list.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A list of revocations that is older than one that was used here.
    #[error("list of revocations `{}` is number {sequence}, and number {seen} was used here", path.display())]
    OldList {
        /// The list.
        path: PathBuf,
        /// Its number.
        sequence: u64,
        /// The highest used so far.
        seen: u64,
    },
    /// A list whose number is too far ahead of the last one that was used here.
    #[error("list of revocations `{}` is number {sequence}, more than {limit} after {seen}", path.display())]
    Jump {
        /// The list.
        path: PathBuf,
        /// Its number.
        sequence: u64,
        /// The highest used so far, else 0.
        seen: u64,
        /// The largest step.
        limit: u64,
    },
    /// The remembered number of a list cannot be read or written.
    #[error("`{}`: {reason}", path.display())]
    Memory {
        /// The file with the number.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("`{}`: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl TrustError {
    /// What would help, for a `help:` line.
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

    /// What an application can do about it.
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
