//! Errors of the rooms, told as this crate's own.

#[cfg(feature = "build")]
mod build;

use shardwright_runtime::bundle::BundleError;
use shardwright_runtime::shims::ShimError;
use shardwright_runtime::text::TextError;
use shardwright_runtime::{ChainError, SessionError};
use shardwright_vocabulary::ErrorClass;

use crate::{Error, ErrorKind};

/// The bytes of a file of at most `limit` bytes that somebody named.
#[cfg(feature = "build")]
pub(crate) fn read_file(path: &std::path::Path, limit: u64) -> crate::Result<Vec<u8>> {
    shardwright_files::read(path, limit).map_err(|error| file_error(path, &error))
}

/// Why a file that somebody named was not read.
#[cfg(feature = "build")]
pub(crate) fn file_error(path: &std::path::Path, error: &shardwright_files::FileError) -> Error {
    use shardwright_files::FileError;
    let kind = match error {
        FileError::Io(_) => ErrorKind::Missing,
        FileError::NotSecret { .. } | FileError::NotOwn { .. } => ErrorKind::Argument,
        _ => ErrorKind::Invalid,
    };
    let said = Error::new(kind, format!("{}: {error}", path.display()));
    match error.help() {
        Some(help) => said.with_help(help),
        None => said,
    }
}

impl From<TextError> for Error {
    fn from(error: TextError) -> Self {
        let kind = match &error {
            TextError::Read { .. } => ErrorKind::Missing,
            TextError::UnsupportedTokenizer { .. } | TextError::UnsupportedTemplate { .. } => {
                ErrorKind::Unsupported
            }
            TextError::InvalidStopString { .. }
            | TextError::InvalidSampling { .. }
            | TextError::NotUtf8 { .. }
            | TextError::TextTooLong { .. }
            | TextError::NoSuchTemplate { .. } => ErrorKind::Argument,
            TextError::LoadingThread { .. } => ErrorKind::Internal,
            _ => ErrorKind::Invalid,
        };
        let help = error.help();
        Error::from_room(kind, error, help)
    }
}

impl From<SessionError> for Error {
    fn from(error: SessionError) -> Self {
        let kind = match &error {
            SessionError::PromptTooLong { .. } | SessionError::InputTooLong { .. } => ErrorKind::Context,
            SessionError::NoTokens | SessionError::TruncateBeyond { .. } => ErrorKind::Argument,
            SessionError::NotGenerative | SessionError::NotAnEncoder => ErrorKind::Unsupported,
            SessionError::Token { .. }
            | SessionError::TableRow { .. }
            | SessionError::EmbeddingNotFinite { .. } => ErrorKind::Invalid,
            SessionError::Cancelled { .. } | SessionError::Deadline { .. } => ErrorKind::Cancelled,
            SessionError::Text(_) => ErrorKind::Invalid,
            _ => ErrorKind::Shim,
        };
        let help = error.help();
        Error::from_room(kind, error, help)
    }
}

impl From<ChainError> for Error {
    fn from(error: ChainError) -> Self {
        let help = error.help().map(str::to_owned);
        Error::from_room(ErrorKind::Incompatible, error, help)
    }
}

impl From<BundleError> for Error {
    fn from(error: BundleError) -> Self {
        let kind = match &error {
            BundleError::Io { .. } | BundleError::NoManifest { .. } => ErrorKind::Missing,
            BundleError::Version { .. } => ErrorKind::Incompatible,
            BundleError::Occupied { .. } | BundleError::Busy { .. } => ErrorKind::Argument,
            BundleError::Reference { .. } => ErrorKind::Internal,
            _ => ErrorKind::Invalid,
        };
        let help = error.help().map(str::to_owned);
        Error::from_room(kind, error, help)
    }
}

impl From<ShimError> for Error {
    fn from(error: ShimError) -> Self {
        let kind = match &error {
            error if error.is_cancelled() => ErrorKind::Cancelled,
            ShimError::NoShim { .. } | ShimError::NoWorker { .. } => ErrorKind::Missing,
            ShimError::Chip(error) if error.is_unsupported() => ErrorKind::Unsupported,
            ShimError::Chip(_) => ErrorKind::Invalid,
            error if error.class() == Some(ErrorClass::IncompatibleArtefact) => ErrorKind::Incompatible,
            _ => ErrorKind::Shim,
        };
        let help = error.help();
        Error::from_room(kind, error, help)
    }
}
