use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

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

/// The error of all crates of the host: a kind to act on, the place of the failure, a message that
/// names the wrong value, help, and the cause.
///
/// Callers distinguish errors by [`kind`](Error::kind), never by text. `Display` writes
/// `place: message`. One word wide, so that results stay small.
///
/// ```
/// use shardwright_vocabulary::{At, Error, ErrorKind, Result};
///
/// fn layers(text: &str) -> Result<u32> {
///     let layers = text.parse().map_err(|_| Error::invalid(format!("expected a number, got `{text}`")))?;
///     Ok(layers)
/// }
///
/// let error = layers("many").at("`num_hidden_layers`").at("model/config.json").unwrap_err();
/// let error = error.with_help("fetch the file again");
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// assert_eq!(error.place(), Some("model/config.json: `num_hidden_layers`"));
/// assert_eq!(
///     error.to_string(),
///     "model/config.json: `num_hidden_layers`: expected a number, got `many`"
/// );
/// assert_eq!(error.help(), Some("fetch the file again"));
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    place: Option<String>,
    message: String,
    help: Option<String>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    is_device_lost: bool,
}

/// A result with [`Error`] as its default error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error without a place, help or cause.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let (message, is_device_lost) = (message.into(), false);
        Error(Box::new(Inner { kind, place: None, message, help: None, source: None, is_device_lost }))
    }

    /// Creates an error of the kind [`ErrorKind::Argument`].
    #[cold]
    pub fn argument(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Argument, message)
    }

    /// Creates an error of the kind [`ErrorKind::Invalid`].
    #[cold]
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Invalid, message)
    }

    /// Creates an error of the kind [`ErrorKind::Unsupported`].
    #[cold]
    pub fn unsupported(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Creates an error of the kind [`ErrorKind::Incompatible`].
    #[cold]
    pub fn incompatible(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Incompatible, message)
    }

    /// Creates an error of the kind [`ErrorKind::Missing`].
    #[cold]
    pub fn missing(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Missing, message)
    }

    /// Creates an error of the kind [`ErrorKind::Internal`].
    #[cold]
    pub fn internal(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Internal, message)
    }

    /// Creates the error of a cancelled operation.
    #[cold]
    pub fn cancelled() -> Self {
        Error::new(ErrorKind::Cancelled, "cancelled")
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
        let source: Option<Arc<dyn StdError + Send + Sync>> = Some(Arc::new(error));
        Error(Box::new(Inner { kind, place: None, message, help, source, is_device_lost: false }))
    }

    /// Sets the place of the failure: a file, an offset, a layer, a shard, a field. The place of an
    /// outer caller precedes the place of an inner one.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.0.place = Some(match self.0.place.take() {
            Some(inner) => format!("{place}: {inner}"),
            None => place.to_string(),
        });
        self
    }

    /// Sets the help, one sentence.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// Sets the help if there is none yet.
    #[must_use]
    pub fn or_help(self, help: &str) -> Self {
        if self.0.help.is_some() { self } else { self.with_help(help) }
    }

    /// Replaces the kind: a caller knows better what the failure means for an application.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Marks the error as the loss of a device, or of the worker process that serves it.
    #[must_use]
    pub fn of_lost_device(mut self) -> Self {
        self.0.is_device_lost = true;
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

    /// Returns the place of the failure, if it is known: `FILE`, or `FILE: tensor NAME`.
    pub fn place(&self) -> Option<&str> {
        self.0.place.as_deref()
    }

    /// Returns the message without the place.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns advice for the user, if there is any: one sentence for a `help:` line.
    pub fn help(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// Returns whether a device, or the worker process that serves it, was lost. Everything that
    /// was loaded there is unusable. Opening the model again may help.
    pub fn is_device_lost(&self) -> bool {
        self.0.is_device_lost
    }

    /// Returns whether the operating system reported that a file does not exist.
    pub fn is_not_found(&self) -> bool {
        io_error(self).is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.place.iter().try_for_each(|place| write!(f, "{place}: "))?;
        f.write_str(&self.0.message)
    }
}

/// Readable output, as `fn main() -> Result<(), Error>` prints it. `{:#?}` shows the parts.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            write!(f, "{self} ({})", self.0.kind.name())?;
            return self.0.help.iter().try_for_each(|help| write!(f, "\nhelp: {help}"));
        }
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("place", &self.0.place)
            .field("message", &self.0.message)
            .field("help", &self.0.help)
            .field("source", &self.0.source)
            .field("is_device_lost", &self.0.is_device_lost)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The message is the source's own, so the next cause is the source's source.
        self.0.source.as_ref().and_then(|source| source.source())
    }
}

/// The kind is [`ErrorKind::Missing`], unless the system had too little of a resource.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error::caused_by(ErrorKind::Missing, error, None)
    }
}

/// Returns the error of the operating system behind an error, found in the error itself or in its
/// causes.
pub(crate) fn io_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        next = match error.downcast_ref::<Error>() {
            Some(Error(inner)) => inner.source.as_ref().map(|source| &**source as &(dyn StdError + 'static)),
            None => error.source(),
        };
    }
    None
}

/// Adds the place of a failure to a result.
pub trait At<T> {
    /// Like [`Error::at`], for the error of a result.
    ///
    /// # Errors
    ///
    /// The error of the result, with the place.
    fn at(self, place: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Error>> At<T> for Result<T, E> {
    fn at(self, place: impl fmt::Display) -> Result<T> {
        self.map_err(|error| error.into().at(place))
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
    fn outer_places_precede_inner_ones() {
        let inner: Result<()> = Err(Error::unsupported("stored as i64"));
        let error = inner.at("tensor `a`").at("x.safetensors").unwrap_err();
        assert_eq!(error.place(), Some("x.safetensors: tensor `a`"));
        assert_eq!(error.message(), "stored as i64");
        assert_eq!(error.to_string(), "x.safetensors: tensor `a`: stored as i64");
        let error = error.or_help("convert it").or_help("ignored").with_kind(ErrorKind::Invalid);
        assert_eq!((error.help(), error.kind()), (Some("convert it"), ErrorKind::Invalid));
        for (constructor, kind) in [
            (Error::argument as fn(&'static str) -> Error, ErrorKind::Argument),
            (Error::invalid, ErrorKind::Invalid),
            (Error::unsupported, ErrorKind::Unsupported),
            (Error::incompatible, ErrorKind::Incompatible),
            (Error::missing, ErrorKind::Missing),
            (Error::internal, ErrorKind::Internal),
        ] {
            assert_eq!(constructor("odd").kind(), kind);
        }
        assert_eq!(Error::cancelled().kind(), ErrorKind::Cancelled);
    }

    #[test]
    fn the_loss_of_a_device_is_kept_with_places_and_help() {
        let error = Error::new(ErrorKind::Shim, "gone");
        assert!(!error.is_device_lost());
        let lost: Result<()> = Err(error.of_lost_device());
        let lost = lost.at("shard `a`").unwrap_err().with_help("open it again").with_more("no other");
        assert!(lost.is_device_lost() && lost.clone().is_device_lost(), "{lost:?}");
        assert!(format!("{lost:#?}").contains("is_device_lost: true"), "{lost:#?}");
    }

    #[test]
    fn files_that_do_not_exist_are_recognised_through_causes() {
        let absent = Error::from(io::Error::from(io::ErrorKind::NotFound)).at("x");
        assert!(absent.is_not_found() && absent.kind() == ErrorKind::Missing);
        let outer = Error::caused_by(ErrorKind::Invalid, absent, None);
        assert!(outer.is_not_found() && outer.kind() == ErrorKind::Invalid);
        let denied = Error::from(io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(!denied.is_not_found() && denied.kind() == ErrorKind::Missing);
        assert!(!Error::missing("no tensor").is_not_found());
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
