use std::error::Error as StdError;
use std::fmt;
use std::io;

use crate::Shortage;

/// The kind of a failure, classified by how a caller can react.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller passed invalid arguments.
    Argument,
    /// External data is damaged or inconsistent.
    Invalid,
    /// Valid, but not supported by this version.
    Unsupported,
    /// Valid and supported, but made for something else: another version, chip or shim.
    Incompatible,
    /// A file or a named item does not exist, or cannot be read or written.
    Missing,
    /// No plan was found, or every plan was refused.
    Planning,
    /// A shim failed while compiling or running.
    Shim,
    /// Not signed as the host's policy requires, or revoked.
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
    /// A bug in this program.
    Internal,
}

impl ErrorKind {
    /// Returns the kebab-case name, as in JSON.
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
        }
    }

    /// Returns the kind for a file that cannot be opened, read or written.
    pub fn of_io(error: &io::Error) -> ErrorKind {
        Shortage::of(error).map_or(ErrorKind::Missing, Shortage::kind)
    }
}

/// An error for applications: a kind to act on, a message that names the failed operation, and
/// help.
///
/// One word wide, so that results stay small.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    help: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// A result with [`Error`] as its default error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error without a cause.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner { kind, message: message.into(), help: None, source: None }))
    }

    /// Creates an error from its cause, whose message it adopts. If the operating system had too
    /// little of a resource, the kind is [`Shortage::kind`], and the help names the limit.
    #[cold]
    pub fn caused_by(
        kind: ErrorKind,
        error: impl StdError + Send + Sync + 'static,
        help: Option<String>,
    ) -> Self {
        let message = error.to_string();
        let (kind, help) = match Shortage::behind(&error) {
            Some(shortage) => (shortage.kind(), Some(shortage.help().to_owned())),
            None => (kind, help),
        };
        Error(Box::new(Inner { kind, message, help, source: Some(Box::new(error)) }))
    }

    /// Sets the help, one sentence.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// Appends `more` to the message.
    #[must_use]
    pub fn with_more(mut self, more: impl fmt::Display) -> Self {
        self.0.message = format!("{}; {more}", self.0.message);
        self
    }

    /// Returns the kind of failure, on which a caller can act.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns advice for the user, if there is any: one sentence for a `help:` line.
    pub fn help(&self) -> Option<&str> {
        self.0.help.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

/// Readable output, as `fn main() -> Result<(), Error>` prints it. `{:#?}` shows the parts.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            write!(f, "{} ({})", self.0.message, self.0.kind.name())?;
            return self.0.help.iter().try_for_each(|help| write!(f, "\nhelp: {help}"));
        }
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .field("help", &self.0.help)
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The message is the source's own, so the next cause is the source's source.
        self.0.source.as_ref().and_then(|source| source.source())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_main_returns_is_readable() {
        let error = Error::new(ErrorKind::Missing, "no such bundle").with_help("name a directory");
        assert_eq!(format!("{error:?}"), "no such bundle (missing)\nhelp: name a directory");
        let parts = format!("{error:#?}");
        assert!(parts.contains("kind: Missing") && parts.contains("message: \"no such bundle\""), "{parts}");
        let bare = Error::new(ErrorKind::Internal, "odd");
        assert_eq!(format!("{bare:?}"), "odd (internal)");
    }

    #[test]
    fn a_shortage_behind_an_error_decides_its_kind_and_help() {
        let of = |kind: io::ErrorKind| {
            let inner = Error::caused_by(ErrorKind::Missing, io::Error::from(kind), None);
            Error::caused_by(ErrorKind::Shim, inner, Some("check the shim".to_owned()))
        };
        let full = Error::caused_by(ErrorKind::Missing, io::Error::from(io::ErrorKind::StorageFull), None);
        assert_eq!((full.kind(), full.kind().name()), (ErrorKind::Resource, "resource"));
        assert_eq!(full.help(), Some(Shortage::Disk.help()));
        let absent = of(io::ErrorKind::NotFound);
        assert_eq!((absent.kind(), absent.help()), (ErrorKind::Shim, Some("check the shim")));
        assert_eq!(ErrorKind::of_io(&io::ErrorKind::StorageFull.into()), ErrorKind::Resource);
        assert_eq!(ErrorKind::of_io(&io::ErrorKind::NotFound.into()), ErrorKind::Missing);
    }
}
