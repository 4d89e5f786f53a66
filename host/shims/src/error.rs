use std::borrow::Cow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use shardwright_trust::TrustError;
use shardwright_vocabulary::{ErrorClass, ErrorKind, Shortage};

use crate::artefact::ArtefactError;
use crate::work_order::WorkOrderError;

/// Reason for not loading a shim.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The given file does not exist.
    #[error("`{}` is not there", path.display())]
    NotFound {
        /// The path that was searched.
        path: PathBuf,
    },
    /// A directory or file could not be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A library has no manifest.
    #[error("`{}` has no manifest (`{}`)", library.display(), manifest.display())]
    NoManifest {
        library: PathBuf,
        /// Expected path of its manifest.
        manifest: PathBuf,
    },
    /// The manifest's signature does not satisfy the host's rules.
    #[error("manifest {0}")]
    Trust(TrustError),
    /// The manifest cannot be parsed.
    #[error("manifest `{}`: {reason}", path.display())]
    Manifest { path: PathBuf, reason: String },
    /// The shim supports only newer versions of the contract than the host.
    #[error("`{}` speaks contract {shim}, newer than the host's {host}", path.display())]
    TooNew {
        path: PathBuf,
        /// Versions supported by the shim.
        shim: String,
        /// Versions supported by the host.
        host: String,
    },
    /// The shim supports only older versions of the contract than the host.
    #[error("`{}` speaks contract {shim}, older than the host's {host}", path.display())]
    TooOld {
        path: PathBuf,
        /// Versions supported by the shim.
        shim: String,
        /// Versions supported by the host.
        host: String,
    },
    /// The library is not the one described by the manifest.
    #[error("`{}` has SHA-256 {found}, its manifest says {expected}", path.display())]
    HashMismatch {
        path: PathBuf,
        /// Hash in the manifest.
        expected: String,
        /// Hash of the file.
        found: String,
    },
    /// The system's loader refused the file.
    #[error("`{}` cannot be opened as a library: {reason}", path.display())]
    Open { path: PathBuf, reason: String },
    /// The library does not export the entry symbol.
    #[error("`{}` is not a shim: it does not export `shardwright_shim_entry`", path.display())]
    NotAShim { path: PathBuf },
    /// A Rust shim was built with other structs under the same version.
    #[error("`{}` was built against another layout of `{type_name}`: {reason}", path.display())]
    Layout {
        path: PathBuf,
        /// The first type that differs.
        type_name: String,
        /// The first difference.
        reason: String,
    },
    /// The shim refused the host.
    #[error("`{}` refused: {reason}", path.display())]
    Refused { path: PathBuf, reason: String },
    /// The entry function's result is invalid.
    #[error("`{}` answered against the contract: {reason}", path.display())]
    Answer { path: PathBuf, reason: String },
    /// The table is too small for the functions of every version.
    #[error("`{}` says version {version} with a table of {size} bytes; every version has {expected}", path.display())]
    TableTooSmall {
        path: PathBuf,
        /// The version it reports.
        version: String,
        /// The size that the table reports.
        size: u64,
        /// The smallest size of any version.
        expected: u64,
    },
    /// The library was compiled from another draft of the contract, so members may have other
    /// offsets.
    #[error("`{}` was compiled from draft {found:08x} of version {version}, the host from draft {expected:08x}", path.display())]
    OtherDraft {
        path: PathBuf,
        /// The version that both support.
        version: String,
        /// The shim's draft. 0 if it reports none.
        found: u32,
        expected: u32,
    },
    /// A required function is missing.
    #[error("`{}` lacks the required function `{function}`", path.display())]
    MissingFunction { path: PathBuf, function: &'static str },
    /// The shim's `describe` function failed.
    #[error("`{}` cannot describe itself: {source}", path.display())]
    Describe { path: PathBuf, source: Box<ShimError> },
    /// The process that should open the library ended.
    #[error("`{}`: {source}", path.display())]
    Process {
        path: PathBuf,
        /// The error about the process.
        source: Box<ShimError>,
    },
    /// The library was rejected in another process.
    #[error("{message}")]
    Elsewhere {
        path: PathBuf,
        /// The stable word for the reason, as determined there.
        reason: &'static str,
        message: String,
    },
    /// Another shim with that name was found first.
    #[error("`{}` is named `{name}` like the shim found before it", path.display())]
    DuplicateName {
        /// Path of the library or manifest.
        path: PathBuf,
        name: String,
    },
}

impl LoadError {
    /// Returns whether the query was interrupted. In that case the library may still be valid.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, LoadError::Process { source, .. } if source.is_cancelled())
    }

    /// Returns a stable word for the reason, as used in JSON reports.
    pub const fn reason(&self) -> &'static str {
        match self {
            LoadError::NotFound { .. } => "not-found",
            LoadError::Read { .. } => "unreadable",
            LoadError::NoManifest { .. } => "no-manifest",
            LoadError::Trust(_) => "untrusted",
            LoadError::Manifest { .. } => "manifest-invalid",
            LoadError::TooNew { .. } => "too-new",
            LoadError::TooOld { .. } => "too-old",
            LoadError::HashMismatch { .. } => "hash-mismatch",
            LoadError::Open { .. } => "not-a-library",
            LoadError::NotAShim { .. } => "not-a-shim",
            LoadError::Layout { .. } => "layout-differs",
            LoadError::Refused { .. } => "refused",
            LoadError::Answer { .. } => "answer-invalid",
            LoadError::TableTooSmall { .. } => "table-too-small",
            LoadError::OtherDraft { .. } => "other-draft",
            LoadError::MissingFunction { .. } => "function-missing",
            LoadError::Describe { .. } => "describe-failed",
            LoadError::Process { .. } => "worker-ended",
            LoadError::Elsewhere { reason, .. } => reason,
            LoadError::DuplicateName { .. } => "duplicate-name",
        }
    }

    /// Creates an error for a library that was rejected elsewhere. `reason` is a word of
    /// [`LoadError::reason`].
    pub fn elsewhere(path: PathBuf, reason: &str, message: String) -> LoadError {
        const WORDS: [&str; 13] = [
            "not-found",
            "hash-mismatch",
            "not-a-library",
            "not-a-shim",
            "layout-differs",
            "refused",
            "answer-invalid",
            "table-too-small",
            "other-draft",
            "function-missing",
            "describe-failed",
            "too-new",
            "too-old",
        ];
        let reason = WORDS.into_iter().find(|known| *known == reason).unwrap_or("refused");
        LoadError::Elsewhere { path, reason, message }
    }

    /// Returns kind and advice if the system had too little of a resource. In that case the library
    /// may still be valid.
    pub(crate) fn on_shortage(&self) -> Option<(ErrorKind, &'static str)> {
        match self {
            LoadError::Read { source, .. } => {
                Shortage::of(source).map(|shortage| (shortage.kind(), shortage.help()))
            }
            LoadError::Process { source, .. } => match &**source {
                ShimError::Process(error) if error.is_of_shortage() => Some((error.kind, error.help?)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns advice for the user.
    pub fn help(&self) -> Option<&'static str> {
        if let Some((_, help)) = self.on_shortage() {
            return Some(help);
        }
        match self {
            LoadError::NotFound { .. } => Some("build the shim, or correct the path"),
            LoadError::Read { .. } => Some("check that the path is readable"),
            LoadError::NoManifest { .. } => {
                Some("put a `<library stem>.shim.json` beside it; vendor-shims/README.md shows one")
            }
            LoadError::Trust(error) => Some(error.help()),
            LoadError::Manifest { .. } => Some("vendor-shims/README.md lists the members of a manifest"),
            LoadError::TooNew { .. } => Some("update Shardwright, or use an older release of the shim"),
            LoadError::TooOld { .. } => Some("use a newer release of the shim"),
            LoadError::HashMismatch { .. } | LoadError::Elsewhere { reason: "hash-mismatch", .. } => {
                Some("fetch the shim again, or correct `sha256` in its manifest")
            }
            LoadError::Open { .. } | LoadError::Elsewhere { reason: "not-a-library", .. } => {
                Some("check that it was built for this machine and finds its own libraries")
            }
            LoadError::NotAShim { .. } | LoadError::Elsewhere { reason: "not-a-shim", .. } => {
                Some("a shim exports the entry symbol; `static` builds do not")
            }
            LoadError::OtherDraft { .. } => {
                Some("build host and shim from the same `shim.h`; the table's `draft` is SW_DRAFT")
            }
            LoadError::Layout { .. } | LoadError::Elsewhere { reason: "layout-differs", .. } => {
                Some("rebuild the shim against the same release of shardwright-shim-abi")
            }
            LoadError::DuplicateName { .. } => Some("rename one of them in its manifest"),
            LoadError::Refused { .. }
            | LoadError::Answer { .. }
            | LoadError::TableTooSmall { .. }
            | LoadError::MissingFunction { .. }
            | LoadError::Describe { .. }
            | LoadError::Process { .. }
            | LoadError::Elsewhere { .. } => Some("report this to the shim's vendor"),
        }
    }
}

/// The failure of a shim's function, as reported by the shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
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
    Failed(Box<Failure>),
    /// The shim does not have this optional function.
    #[error("shim `{shim}` has no `{function}`")]
    Missing { shim: String, function: Cow<'static, str> },
    /// The shim's result violates the contract.
    #[error("shim `{shim}`, {function}: the answer is against the contract: {reason}")]
    Contract { shim: String, function: Cow<'static, str>, reason: String },
    /// The caller's request is impossible.
    #[error("{0}")]
    Argument(String),
    /// A buffer is in use by another user.
    #[error("buffer of {bytes} bytes is in use: {wanted} while it is {in_use}")]
    BufferBusy {
        bytes: u64,
        /// The requested kind of access.
        wanted: &'static str,
        /// The current kind of access.
        in_use: &'static str,
    },
    /// No shim with that name was found.
    #[error("no shim is named `{name}`; found: {known}{skipped}")]
    NoShim {
        /// The requested name.
        name: String,
        /// The names that were found.
        known: String,
        /// Shims that were found and skipped, each with its reason. The requested one may be among
        /// them.
        skipped: String,
    },
    /// An exclusive resource, or the last allowed instance, is in use by another instance.
    #[error("{what} is in use by {holder}")]
    Taken {
        what: String,
        /// The instance that uses it.
        holder: String,
    },
    /// The shim does not support the chip described by the profile.
    #[error(transparent)]
    Chip(Box<ChipError>),
    /// The shim's process has ended or could not be started. An isolated process ends if the shim
    /// crashes, hangs or exceeds its memory. All its shards and buffers are unusable.
    #[error("{}", .0.cause)]
    Process(Box<ProcessError>),
    /// The library was opened elsewhere, but is refused in this process.
    #[error(transparent)]
    Load(Box<LoadError>),
    /// The artefact is damaged or is not an artefact.
    #[error(transparent)]
    Artefact(#[from] ArtefactError),
    /// The work order is damaged or inconsistent.
    #[error(transparent)]
    WorkOrder(#[from] WorkOrderError),
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

impl ProcessError {
    /// Returns whether the system had too little of a resource for the process.
    pub fn is_of_shortage(&self) -> bool {
        matches!(self.kind, ErrorKind::Memory | ErrorKind::Resource)
    }
}

impl ShimError {
    pub(crate) fn missing(shim: &str, function: &'static str) -> ShimError {
        ShimError::Missing { shim: shim.to_owned(), function: function.into() }
    }

    /// Creates an error for a result that violates the contract.
    pub fn contract(shim: &str, function: &'static str, reason: impl Into<String>) -> ShimError {
        ShimError::Contract { shim: shim.to_owned(), function: function.into(), reason: reason.into() }
    }

    /// Returns the error class, on which a planner or session acts. Returns `None` if the call was
    /// cancelled.
    pub fn class(&self) -> Option<ErrorClass> {
        match self {
            ShimError::Failed(failure) => failure.class,
            ShimError::Missing { .. }
            | ShimError::Argument(_)
            | ShimError::NoShim { .. }
            | ShimError::Chip(_)
            | ShimError::BufferBusy { .. } => Some(ErrorClass::InvalidArgument),
            ShimError::Taken { .. } => Some(ErrorClass::ResourceLimit),
            ShimError::Process(error) => error.class,
            ShimError::Load(_) => Some(ErrorClass::Internal),
            ShimError::Contract { .. } => Some(ErrorClass::Internal),
            ShimError::Artefact(_) => Some(ErrorClass::CorruptArtefact),
            ShimError::WorkOrder(_) => Some(ErrorClass::InvalidArgument),
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

    /// Creates an error from a failure reported by the shim. Logs its details, which contain more
    /// than its message and on which programs may act.
    pub fn failed(failure: Failure) -> ShimError {
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
        match self {
            ShimError::Failed(failure) => match failure.class? {
                ErrorClass::UnsupportedOp | ErrorClass::Unmappable | ErrorClass::ResourceLimit => {
                    Some("plan again: smaller shards or other formats may fit".to_owned())
                }
                ErrorClass::IncompatibleArtefact | ErrorClass::CorruptArtefact => {
                    Some("compile the shard again".to_owned())
                }
                ErrorClass::DeviceLost => Some("recover the device and load its shards again".to_owned()),
                ErrorClass::Deadline => Some("allow more time".to_owned()),
                ErrorClass::StateLost => Some("run the prefix again".to_owned()),
                ErrorClass::InvalidArgument => None,
                ErrorClass::Internal => Some("report this to the shim's vendor".to_owned()),
            },
            ShimError::Missing { .. } => Some("use another shim for this".to_owned()),
            ShimError::Contract { .. } => Some("report this to the shim's vendor".to_owned()),
            ShimError::BufferBusy { .. } => {
                Some("bind another buffer, or wait for the other user".to_owned())
            }
            ShimError::Argument(_) => None,
            ShimError::Chip(error) => Some(error.help()),
            ShimError::NoShim { .. } => Some(
                "name its directory (`--shims DIR`, SHARDWRIGHT_SHIM_PATH) or lay it beside the program, in `shims/`; \
                 `shardwright shim list` shows what is found"
                    .to_owned(),
            ),
            ShimError::Taken { .. } => Some("close the other instance first".to_owned()),
            ShimError::Process(error) => error.help.map(str::to_owned),
            ShimError::Load(error) => error.help().map(str::to_owned),
            ShimError::Artefact(error) => error.help().map(str::to_owned),
            ShimError::WorkOrder(error) => error.help().map(str::to_owned),
        }
    }
}

/// Detail of a shim's error. It marks a fact that may be correct although the shim does not compile
/// for such a chip.
const UNSUPPORTED: &str = "unsupported";

/// Reason why a shim does not support a chip as described by its profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChipError {
    /// A fact that the shim requires is missing.
    #[error("profile `{chip}` has no fact `{fact}`, which shim `{shim}` needs: {description}")]
    Missing {
        chip: String,
        shim: String,
        fact: String,
        /// Description of the fact.
        description: String,
    },
    /// The value of a fact is invalid.
    #[error("profile `{chip}`, fact `{fact}`: `{value}` is not {expected}, as shim `{shim}` reads it")]
    Value {
        chip: String,
        shim: String,
        fact: String,
        /// The value in the profile.
        value: String,
        /// Description of the legal values.
        expected: String,
    },
    /// The shim or its vendor's library rejects a fact.
    #[error("profile `{chip}`, fact `{fact}`: {source}")]
    Refused {
        chip: String,
        fact: String,
        /// The shim's error.
        source: Box<ShimError>,
    },
}

impl ChipError {
    /// Returns the name of the profile.
    pub fn chip(&self) -> &str {
        match self {
            ChipError::Missing { chip, .. }
            | ChipError::Value { chip, .. }
            | ChipError::Refused { chip, .. } => chip,
        }
    }

    /// Returns whether the profile may be correct although the shim does not compile for such a
    /// chip.
    pub fn is_unsupported(&self) -> bool {
        match self {
            ChipError::Refused { source, .. } => source.details().iter().any(|(key, _)| key == UNSUPPORTED),
            ChipError::Missing { .. } | ChipError::Value { .. } => false,
        }
    }

    /// Returns advice for the user.
    pub fn help(&self) -> String {
        let (chip, fact) = match self {
            ChipError::Missing { chip, fact, .. }
            | ChipError::Value { chip, fact, .. }
            | ChipError::Refused { chip, fact, .. } => (chip, fact),
        };
        format!(
            "correct the fact `{fact}` in the profile `{chip}`; `shardwright shim list` tells which facts a \
             shim reads"
        )
    }
}

/// Converts to an error with the kind on which an application acts.
impl From<ShimError> for shardwright_vocabulary::Error {
    fn from(error: ShimError) -> Self {
        let kind = match &error {
            error if error.is_cancelled() => ErrorKind::Cancelled,
            ShimError::NoShim { .. } => ErrorKind::Missing,
            ShimError::Process(error) => error.kind,
            ShimError::Chip(error) if error.is_unsupported() => ErrorKind::Unsupported,
            ShimError::Chip(_) => ErrorKind::Invalid,
            error if error.class() == Some(ErrorClass::IncompatibleArtefact) => ErrorKind::Incompatible,
            _ => ErrorKind::Shim,
        };
        let help = error.help();
        shardwright_vocabulary::Error::caused_by(kind, error, help)
    }
}
