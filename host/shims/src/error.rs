use std::borrow::Cow;
use std::path::Path;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{Error, ErrorClass, ErrorKind};

use crate::container::io_error;

const TO_THE_VENDOR: &str = "report this to the shim's vendor";

/// The stable words for the reasons of [`LoadError`], each with advice for the user.
const REASONS: [(&str, &str); 19] = [
    ("not-found", "build the shim, or correct the path"),
    ("unreadable", "check the path and its permissions"),
    ("no-manifest", "write `<library stem>.shim.json` next to the library; see vendor-shims/README.md"),
    ("untrusted", "sign the manifest with `shardwright trust sign`"),
    ("manifest-invalid", "see vendor-shims/README.md for the members of a manifest"),
    ("too-new", "update Shardwright, or use an older release of the shim"),
    ("too-old", "use a newer release of the shim"),
    ("hash-mismatch", "fetch the shim again, or correct `sha256` in its manifest"),
    ("not-a-library", "check that the library was built for this machine and finds the libraries it needs"),
    ("not-a-shim", "build the shim as a dynamic library; `static` builds do not export the entry symbol"),
    ("layout-differs", "rebuild the shim against the same release of shardwright-shim-abi"),
    ("answer-invalid", TO_THE_VENDOR),
    ("table-too-small", TO_THE_VENDOR),
    ("other-draft", "build host and shim from the same `shim.h`, and set the table's `draft` to SW_DRAFT"),
    ("function-missing", TO_THE_VENDOR),
    ("describe-failed", TO_THE_VENDOR),
    ("worker-ended", TO_THE_VENDOR),
    ("duplicate-name", "rename one of them in its manifest"),
    REFUSED,
];

const REFUSED: (&str, &str) = ("refused", TO_THE_VENDOR);

/// Reason for not loading a shim. The error's place is the path of the library or manifest.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct LoadError {
    reason: &'static str,
    pub(crate) error: Error,
    /// The name of the shim, if another shim with that name was found first.
    duplicate: Option<String>,
}

impl LoadError {
    /// Creates an error from a word of [`LoadError::reason`] and a message.
    pub(crate) fn new(reason: &str, path: &Path, message: impl Into<String>) -> LoadError {
        LoadError::caused_by(reason, Error::invalid(message).at(path.display()))
    }

    pub(crate) fn caused_by(reason: &str, error: Error) -> LoadError {
        let (reason, help) = *REASONS.iter().find(|(word, _)| *word == reason).unwrap_or(&REFUSED);
        LoadError { reason, error: error.or_help(help), duplicate: None }
    }

    /// Creates the error for a path that does not exist.
    pub fn not_found(path: &Path) -> LoadError {
        LoadError::new("not-found", path, "not found")
    }

    pub(crate) fn unreadable(path: &Path, error: impl Into<Error>) -> LoadError {
        LoadError::caused_by("unreadable", io_error(path, error))
    }

    pub(crate) fn duplicate(path: &Path, name: &str) -> LoadError {
        let message = format!("the name `{name}` is already used by another shim");
        LoadError { duplicate: Some(name.to_owned()), ..LoadError::new("duplicate-name", path, message) }
    }

    /// Creates the error for a library whose worker process failed.
    pub fn of_worker(path: &Path, error: ShimError) -> LoadError {
        let error = Error::from(error).at(path.display());
        let error = if is_of_shortage(error.kind()) { error } else { error.with_help(TO_THE_VENDOR) };
        LoadError::caused_by("worker-ended", error)
    }

    /// Creates an error from the reason and text of an error in another process.
    pub fn elsewhere(reason: &str, text: String) -> LoadError {
        LoadError::caused_by(reason, Error::invalid(text))
    }

    /// Returns a stable word for the reason, as used in JSON reports.
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    /// Returns the path of the library or manifest. Returns `None` for an error of another process,
    /// whose text contains the path.
    pub fn place(&self) -> Option<&str> {
        self.error.place()
    }

    /// Returns the name that another shim has too, if that is the reason.
    pub fn duplicate_name(&self) -> Option<&str> {
        self.duplicate.as_deref()
    }

    /// Returns whether the query was interrupted. In that case the library may still be valid.
    pub fn is_cancelled(&self) -> bool {
        self.error.kind() == ErrorKind::Cancelled
    }

    /// Returns whether the system had too little of a resource. In that case the library may still
    /// be valid.
    pub fn is_of_shortage(&self) -> bool {
        is_of_shortage(self.error.kind())
    }

    /// Returns advice for the user.
    pub fn help(&self) -> Option<&str> {
        self.error.help()
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        error.error
    }
}

fn is_of_shortage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Memory | ErrorKind::Resource)
}

/// Keeps the kind of an error only if the shim is not at fault: the system had too little of a
/// resource, or a file or folder is missing, such as the folder for temporary files.
fn of_shim(error: Error) -> Error {
    let is_of_system = is_of_shortage(error.kind()) || error.kind() == ErrorKind::Missing;
    if is_of_system { error } else { error.with_kind(ErrorKind::Shim) }
}

/// The failure of a shim's function, as reported by the shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShimFailure {
    /// Name of the instance or shim that failed.
    pub shim: String,
    /// Name of the function in the contract.
    pub function: Cow<'static, str>,
    /// Error class. `None` if the call was cancelled.
    pub class: Option<ErrorClass>,
    pub message: String,
    /// Details that a program can act on.
    pub details: Vec<(String, String)>,
    /// The vendor library's code, or 0 for none.
    pub vendor_code: i64,
    /// Last lines of the vendor's log.
    pub log_tail: Option<String>,
}

/// An error of a loaded shim.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShimError {
    /// The shim reported a failure.
    #[error("shim `{}`, {}: {}", .0.shim, .0.function, .0.message)]
    Failed(Box<ShimFailure>),
    /// The shim does not have this optional function.
    #[error("shim `{shim}` has no `{function}`")]
    Missing { shim: String, function: Cow<'static, str> },
    /// The shim's result violates the contract.
    #[error("shim `{shim}`, {function}: the answer violates the contract: {reason}")]
    Contract { shim: String, function: Cow<'static, str>, reason: String },
    /// The caller's request is impossible.
    #[error("{0}")]
    Argument(String),
    /// The shim does not support the chip described by the profile, which is the error's place. If
    /// the profile may be correct, the kind is [`ErrorKind::Unsupported`].
    #[error("{0}")]
    Chip(Error),
    /// The shim's process has ended or could not be started. An isolated process ends if the shim
    /// crashes, hangs or exceeds its memory. All its shards and buffers are unusable.
    #[error("{}", .0.cause)]
    Process(Box<ProcessError>),
    /// An error of the host, such as a damaged file, with its class.
    #[error("{1}")]
    Other(ErrorClass, Error),
}

/// A failure of the process in which a shim runs.
#[derive(Debug)]
pub struct ProcessError {
    /// Kind of the error, on which an application acts.
    pub kind: ErrorKind,
    /// Error class, on which a planner or session acts. `None` if the end was requested.
    pub class: Option<ErrorClass>,
    /// Key and value pairs for planner feedback.
    pub details: Vec<(String, String)>,
    /// Advice for the user.
    pub help: Option<&'static str>,
    /// The cause, as a type of the crate that runs such processes.
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

impl ShimError {
    pub(crate) fn missing(shim: &str, function: &'static str) -> ShimError {
        ShimError::Missing { shim: shim.to_owned(), function: function.into() }
    }

    /// Creates an error for a result that violates the contract.
    pub fn contract(shim: &str, function: &'static str, reason: impl Into<String>) -> ShimError {
        ShimError::Contract { shim: shim.to_owned(), function: function.into(), reason: reason.into() }
    }

    /// Creates the error for an artefact that cannot be read or written.
    pub fn artefact(error: Error) -> ShimError {
        ShimError::Other(ErrorClass::CorruptArtefact, of_shim(error))
    }

    /// Creates the error for a work order that cannot be read, or passed to a shim.
    pub fn work_order(error: Error) -> ShimError {
        ShimError::Other(ErrorClass::InvalidArgument, of_shim(error))
    }

    /// Creates the error for a library that was described by another process and cannot be opened
    /// in this one.
    pub(crate) fn load(error: LoadError) -> ShimError {
        ShimError::Other(ErrorClass::Internal, of_shim(error.error))
    }

    /// Returns the error class, on which a planner or session acts. Returns `None` if the call was
    /// cancelled.
    pub fn class(&self) -> Option<ErrorClass> {
        match self {
            ShimError::Failed(failure) => failure.class,
            ShimError::Missing { .. } | ShimError::Argument(_) | ShimError::Chip(_) => {
                Some(ErrorClass::InvalidArgument)
            }
            ShimError::Process(error) => error.class,
            ShimError::Contract { .. } => Some(ErrorClass::Internal),
            ShimError::Other(class, _) => Some(*class),
        }
    }

    /// Returns the kind, on which an application acts.
    pub fn kind(&self) -> ErrorKind {
        match self {
            error if error.is_cancelled() => ErrorKind::Cancelled,
            ShimError::Process(error) => error.kind,
            ShimError::Chip(error) | ShimError::Other(_, error) => error.kind(),
            error if error.class() == Some(ErrorClass::IncompatibleArtefact) => ErrorKind::Incompatible,
            _ => ErrorKind::Shim,
        }
    }

    /// Returns key and value pairs for planner feedback.
    pub fn details(&self) -> &[(String, String)] {
        match self {
            ShimError::Failed(failure) => &failure.details,
            ShimError::Process(error) => &error.details,
            _ => &[],
        }
    }

    /// Returns whether the call was cancelled.
    pub fn is_cancelled(&self) -> bool {
        match self {
            ShimError::Failed(failure) => failure.class.is_none(),
            ShimError::Process(error) => error.class.is_none(),
            _ => false,
        }
    }

    /// Returns whether the system had too little of a resource.
    pub fn is_of_shortage(&self) -> bool {
        is_of_shortage(self.kind())
    }

    /// Creates an error from a failure reported by the shim. Logs its details, which contain more
    /// than its message and on which programs may act.
    pub fn failed(failure: ShimFailure) -> ShimError {
        for (key, value) in failure.details.iter().filter(|(key, _)| key != "help") {
            tracing::info!(shim = failure.shim, function = %failure.function, "{key}: {value}");
        }
        ShimError::Failed(Box::new(failure))
    }

    /// Marks the failure as cancelled by the caller.
    pub(crate) fn cancelled(mut self) -> ShimError {
        if let ShimError::Failed(failure) = &mut self {
            failure.class = None;
        }
        self
    }

    /// Returns advice for the user.
    pub fn help(&self) -> Option<String> {
        let help = match self {
            ShimError::Failed(failure) => match failure.class? {
                ErrorClass::UnsupportedOp | ErrorClass::Unmappable | ErrorClass::ResourceLimit => {
                    "plan again: smaller shards or other formats may fit"
                }
                ErrorClass::IncompatibleArtefact | ErrorClass::CorruptArtefact => "compile the shard again",
                ErrorClass::DeviceLost => "recover the device, then load its shards again",
                ErrorClass::Deadline => "allow more time",
                ErrorClass::StateLost => "run the prefix again",
                ErrorClass::InvalidArgument => return None,
                ErrorClass::Internal => TO_THE_VENDOR,
            },
            ShimError::Missing { .. } => "use another shim for this",
            ShimError::Contract { .. } => TO_THE_VENDOR,
            ShimError::Argument(_) => return None,
            ShimError::Process(error) => error.help?,
            ShimError::Chip(error) | ShimError::Other(_, error) => error.help()?,
        };
        Some(help.to_owned())
    }
}

/// Converts to an error with the kind on which an application acts.
impl From<ShimError> for Error {
    fn from(error: ShimError) -> Self {
        match error {
            ShimError::Chip(error) | ShimError::Other(_, error) => error,
            other => {
                let (kind, help, class) = (other.kind(), other.help(), other.class());
                let error = Error::caused_by(kind, other, help);
                if class == Some(ErrorClass::DeviceLost) { error.of_lost_device() } else { error }
            }
        }
    }
}
