use std::error::Error as StdError;
use std::fmt;

/// The kind of a failure, classified by what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's arguments make no sense.
    Argument,
    /// External data is damaged or inconsistent.
    Invalid,
    /// Valid, but not supported by this version.
    Unsupported,
    /// Valid and supported, but made for something else: another version, chip or shim.
    Incompatible,
    /// A file or a named thing is not there, or cannot be read or written.
    Missing,
    /// No plan was found, or every plan was refused.
    Planning,
    /// A shim failed while compiling or running.
    Shim,
    /// Not signed as the host's rules ask, or revoked.
    Untrusted,
    /// Under `strict`, something would have deviated from the request.
    Strict,
    /// The prompt and the reply do not fit into the context.
    Context,
    /// The budget of memory does not hold it.
    Memory,
    /// Cancelled by the caller.
    Cancelled,
    /// A fault of this program.
    Internal,
}

impl ErrorKind {
    /// Kebab-case name, as in JSON.
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

/// An error for applications: a kind to act on, a message that names what failed, and help.
///
/// One word wide, so that results stay small.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    help: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// A result with that error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error without a cause.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner { kind, message: message.into(), help: None, source: None }))
    }

    /// An error that has a cause; its message becomes ours.
    #[cold]
    pub fn caused_by(
        kind: ErrorKind,
        error: impl StdError + Send + Sync + 'static,
        help: Option<String>,
    ) -> Self {
        let message = error.to_string();
        Error(Box::new(Inner { kind, message, help, source: Some(Box::new(error)) }))
    }

    /// The same with help.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// The same with more to its message.
    #[must_use]
    pub fn with_more(mut self, more: impl fmt::Display) -> Self {
        self.0.message = format!("{}; {more}", self.0.message);
        self
    }

    /// What a caller can act on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What would help the user, if known: one sentence for a `help:` line.
    pub fn help(&self) -> Option<&str> {
        self.0.help.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

/// For people, as `fn main() -> Result<(), Error>` prints it; `{:#?}` shows the parts.
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
        // The message is the source's own; what lies below it is the next cause.
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
