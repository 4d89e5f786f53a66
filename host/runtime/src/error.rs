use shardwright_shims::ShimError;
use shardwright_vocabulary::{Error, ErrorClass, ErrorKind, Place};

/// An error of a session. After any error the session remains valid at its last complete position.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The operation was cancelled with a [`CancelHandle`](crate::CancelHandle).
    #[error("cancelled at position {position}")]
    Cancelled {
        /// Number of complete positions.
        position: usize,
    },
    /// The session's deadline has passed.
    #[error("the deadline passed at position {position}")]
    Deadline {
        /// Number of complete positions.
        position: usize,
    },
    /// A shard failed to run, or to allocate memory for states or boundaries.
    #[error("shard `{shard}` on {place}, {during}: {source}")]
    Run {
        /// The shard, or the first of the shards that share the memory.
        shard: String,
        place: Box<Place>,
        /// The entry point with its first position, or the allocation.
        during: String,
        source: Box<ShimError>,
    },
    /// A result contains a NaN or infinity.
    #[error(transparent)]
    NotFinite(Error),
    #[error(transparent)]
    Other(#[from] Error),
}

impl SessionError {
    /// Returns the error class if a shard failed or the deadline has passed.
    pub fn class(&self) -> Option<ErrorClass> {
        match self {
            SessionError::Deadline { .. } => Some(ErrorClass::Deadline),
            SessionError::Run { source, .. } => source.class(),
            SessionError::Cancelled { .. } | SessionError::NotFinite(_) | SessionError::Other(_) => None,
        }
    }

    /// Returns the failed shard and its place, if a shard failed.
    pub fn at(&self) -> Option<(&str, &Place)> {
        match self {
            SessionError::Run { shard, place, .. } => Some((shard, place)),
            _ => None,
        }
    }

    /// Returns whether opening the model again may help: a device was lost, or the process that
    /// serves it ended, or could not be started for another reason than a shortage.
    fn is_of_lost_device(&self) -> bool {
        let SessionError::Run { source, .. } = self else { return false };
        match &**source {
            ShimError::Process(error) => error.class.is_some() && error.kind == ErrorKind::Shim,
            source => source.class() == Some(ErrorClass::DeviceLost),
        }
    }

    /// Returns the kind, on which an application acts.
    pub fn kind(&self) -> ErrorKind {
        match self {
            SessionError::Cancelled { .. } | SessionError::Deadline { .. } => ErrorKind::Cancelled,
            SessionError::Run { .. } => ErrorKind::Shim,
            SessionError::NotFinite(error) | SessionError::Other(error) => error.kind(),
        }
    }

    /// Returns a suggestion for a `help:` line, if there is one.
    pub fn help(&self) -> Option<String> {
        match self {
            SessionError::Cancelled { .. } | SessionError::Deadline { .. } => None,
            SessionError::Run { source, .. } => source.help(),
            SessionError::NotFinite(error) | SessionError::Other(error) => error.help().map(str::to_owned),
        }
    }
}

/// Converts to an error with the kind on which an application acts.
impl From<SessionError> for Error {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::NotFinite(error) | SessionError::Other(error) => error,
            other => {
                let (kind, help, is_lost) = (other.kind(), other.help(), other.is_of_lost_device());
                let error = Error::caused_by(kind, other, help);
                if is_lost { error.of_lost_device() } else { error }
            }
        }
    }
}

pub(crate) fn no_tokens() -> SessionError {
    Error::argument("no tokens were passed").into()
}

/// The model is an encoder.
pub(crate) fn not_generative() -> SessionError {
    let message = "the model is an encoder and does not generate";
    Error::unsupported(message).with_help("request an embedding instead").into()
}

/// The chain does not return soft rows.
pub(crate) fn not_a_tower() -> SessionError {
    Error::unsupported("the model is not a tower and does not return rows for a prompt").into()
}

/// A row of a gathered table cannot be decoded.
pub(crate) fn undecodable(token: u32, row: u32, asset: &str) -> SessionError {
    let help =
        "the table is truncated or lacks its scales: compile the bundle again, or repair the checkpoint";
    Error::invalid(format!("token {token} reads row {row} of `{asset}`, which cannot be decoded"))
        .with_help(help)
        .into()
}

/// The number of loaded shards differs from the description.
pub(crate) fn wrong_count(described: usize, loaded: usize) -> Error {
    Error::incompatible(format!("{described} shards are described, but {loaded} are loaded"))
}
