use std::error::Error as StdError;
use std::fmt;

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
    /// The memory budget is too small.
    Memory,
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
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Internal => "internal",
        }
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

    /// Creates an error from its cause, whose message it adopts.
    #[cold]
    pub fn caused_by(
        kind: ErrorKind,
        error: impl StdError + Send + Sync + 'static,
        help: Option<String>,
    ) -> Self {
        let message = error.to_string();
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
}
