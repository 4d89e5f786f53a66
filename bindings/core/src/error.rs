use std::fmt;

/// The kind of a failure, classified by how a caller can react.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller passed invalid arguments.
    Argument,
    /// External data is damaged or inconsistent.
    Invalid,
    /// Valid, but not supported by this version or build.
    Unsupported,
    /// Valid and supported, but made for something else: another version, chip or shim.
    Incompatible,
    /// A file or a named item does not exist, or cannot be read or written.
    Missing,
    /// No plan was found, or every plan was refused.
    Planning,
    /// A shim failed while compiling or running.
    Shim,
    /// Not signed as the policy requires, or revoked.
    Untrusted,
    /// Under `strict`, a result would have deviated from the request.
    Strict,
    /// The prompt and the reply do not fit the context.
    Context,
    /// The memory budget is too small, or the operating system had too little memory.
    Memory,
    /// The operating system had too little of another resource: disk space, open files, processes
    /// or threads.
    Resource,
    /// Cancelled by the caller.
    Cancelled,
    /// A bug in this library.
    Internal,
    /// The model, session or reply is closed.
    Closed,
    /// Another call of the same session is in progress.
    Busy,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [ErrorKind; 16] = [
        ErrorKind::Argument,
        ErrorKind::Invalid,
        ErrorKind::Unsupported,
        ErrorKind::Incompatible,
        ErrorKind::Missing,
        ErrorKind::Planning,
        ErrorKind::Shim,
        ErrorKind::Untrusted,
        ErrorKind::Strict,
        ErrorKind::Context,
        ErrorKind::Memory,
        ErrorKind::Resource,
        ErrorKind::Cancelled,
        ErrorKind::Internal,
        ErrorKind::Closed,
        ErrorKind::Busy,
    ];

    /// Returns the kebab-case name.
    pub const fn name(self) -> &'static str {
        match self {
            ErrorKind::Argument => "argument",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Incompatible => "incompatible",
            ErrorKind::Missing => "missing",
            ErrorKind::Planning => "planning",
            ErrorKind::Shim => "shim",
            ErrorKind::Untrusted => "untrusted",
            ErrorKind::Strict => "strict",
            ErrorKind::Context => "context",
            ErrorKind::Memory => "memory",
            ErrorKind::Resource => "resource",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Internal => "internal",
            ErrorKind::Closed => "closed",
            ErrorKind::Busy => "busy",
        }
    }
}

impl From<shardwright::ErrorKind> for ErrorKind {
    fn from(kind: shardwright::ErrorKind) -> Self {
        use shardwright::ErrorKind as Host;
        match kind {
            Host::Argument => ErrorKind::Argument,
            Host::Invalid => ErrorKind::Invalid,
            Host::Unsupported => ErrorKind::Unsupported,
            Host::Incompatible => ErrorKind::Incompatible,
            Host::Missing => ErrorKind::Missing,
            Host::Planning => ErrorKind::Planning,
            Host::Shim => ErrorKind::Shim,
            Host::Untrusted => ErrorKind::Untrusted,
            Host::Strict => ErrorKind::Strict,
            Host::Context => ErrorKind::Context,
            Host::Memory => ErrorKind::Memory,
            Host::Resource => ErrorKind::Resource,
            Host::Cancelled => ErrorKind::Cancelled,
            _ => ErrorKind::Internal,
        }
    }
}

/// A failure: a kind to act on, the place of the failure, a message that names the wrong value, and
/// help. `Display` writes `place: message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind.
    pub kind: ErrorKind,
    /// The message without the place.
    pub message: String,
    /// The place of the failure, such as a file, if it is known.
    pub place: Option<String>,
    /// Advice for the user, one sentence, if there is any.
    pub help: Option<String>,
    /// Whether a device, or the worker process that serves it, was lost. Opening the model again
    /// may help.
    pub is_device_lost: bool,
}

/// A result with [`Error`] as its default error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error with help.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>, help: impl Into<String>) -> Self {
        let (message, help) = (message.into(), Some(help.into()));
        Error { kind, message, place: None, help, is_device_lost: false }
    }

    /// Creates an error of the kind [`ErrorKind::Argument`].
    #[cold]
    pub fn argument(message: impl Into<String>, help: impl Into<String>) -> Self {
        Error::new(ErrorKind::Argument, message, help)
    }

    /// Creates the error of a closed `what`, such as "session".
    #[cold]
    pub fn closed(what: &str) -> Self {
        Error::new(ErrorKind::Closed, format!("the {what} is closed"), format!("open another {what}"))
    }

    #[cold]
    pub(crate) fn busy() -> Self {
        let what = "another call of this session is in progress";
        Error::new(ErrorKind::Busy, what, "wait for that call, cancel it, or use another session")
    }

    #[cold]
    pub(crate) fn broken() -> Self {
        let what = "an earlier call of this session failed through a bug in this library";
        Error::new(ErrorKind::Internal, what, "close the session, open another one and report the bug")
    }
}

impl From<shardwright::Error> for Error {
    fn from(error: shardwright::Error) -> Self {
        Error {
            kind: error.kind().into(),
            message: error.message().to_owned(),
            place: error.place().map(str::to_owned),
            help: error.help().map(str::to_owned),
            is_device_lost: error.is_device_lost(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.iter().try_for_each(|place| write!(f, "{place}: "))?;
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_host_keep_their_parts() {
        let host = shardwright::Error::new(shardwright::ErrorKind::Missing, "no such file");
        let host = host.at("model.swb").with_help("check the path").of_lost_device();
        let error = Error::from(host);
        assert_eq!(error.kind, ErrorKind::Missing);
        assert_eq!(error.to_string(), "model.swb: no such file");
        assert_eq!((error.message.as_str(), error.place.as_deref()), ("no such file", Some("model.swb")));
        assert_eq!((error.help.as_deref(), error.is_device_lost), (Some("check the path"), true));
    }

    #[test]
    fn kinds_have_the_names_of_the_host() {
        use shardwright::ErrorKind as Host;
        let host = [
            Host::Argument,
            Host::Invalid,
            Host::Unsupported,
            Host::Incompatible,
            Host::Missing,
            Host::Planning,
            Host::Shim,
            Host::Untrusted,
            Host::Strict,
            Host::Context,
            Host::Memory,
            Host::Resource,
            Host::Cancelled,
            Host::Internal,
        ];
        for (kind, own) in host.into_iter().zip(ErrorKind::ALL) {
            assert_eq!((ErrorKind::from(kind), kind.name()), (own, own.name()));
        }
        let names: std::collections::BTreeSet<_> = ErrorKind::ALL.map(ErrorKind::name).into();
        assert_eq!(names.len(), ErrorKind::ALL.len());
    }
}
