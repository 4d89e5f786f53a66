//! Errors of planners. Every error names the planner and, once known, its version.

use shardwright_trust::{PublicKey, TrustError};
use shardwright_vocabulary::ErrorKind;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::check::PlanFault;
use crate::floor::FloorRefusal;
use crate::request::RequestFault;

/// A planner that could not be loaded, or failed to answer.
#[derive(Debug, Clone)]
pub struct PlannerError {
    /// The planner: its own name once known, otherwise the file it was loaded from.
    pub planner: String,
    /// Version of the planner, once known.
    pub version: Option<String>,
    pub kind: PlannerErrorKind,
}

impl PlannerError {
    /// Returns advice for a `help:` line.
    pub fn help(&self) -> Option<String> {
        self.kind.help()
    }
}

impl fmt::Display for PlannerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No planner was called, so there is no name to report.
        if let PlannerErrorKind::Request(_) = &self.kind {
            return self.kind.fmt(formatter);
        }
        write!(formatter, "planner `{}`", self.planner)?;
        if let Some(version) = &self.version {
            write!(formatter, " {version}")?;
        }
        write!(formatter, ": {}", self.kind)
    }
}

impl std::error::Error for PlannerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.kind)
    }
}

/// The kinds of refusal that a planner may answer with, as in `planner.wit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// No target supports an item in any format.
    Unsupported,
    /// One layer alone exceeds a limit.
    OverLimit,
    /// No plan fits the memory goal.
    OverMemory,
    /// No plan fits the size goal.
    OverSize,
    /// No plan meets the quality goal.
    OverQuality,
    /// No plan meets a goal in time.
    TooSlow,
    /// A layer that reads a state would be on another device than its donor.
    StateNotShareable,
    /// Every remaining plan was refused before.
    Exhausted,
    /// The request or an option is invalid.
    InvalidRequest,
}

impl RefusalKind {
    /// Returns the stable kebab-case name.
    pub const fn name(self) -> &'static str {
        match self {
            RefusalKind::Unsupported => "unsupported",
            RefusalKind::OverLimit => "over-limit",
            RefusalKind::OverMemory => "over-memory",
            RefusalKind::OverSize => "over-size",
            RefusalKind::OverQuality => "over-quality",
            RefusalKind::TooSlow => "too-slow",
            RefusalKind::StateNotShareable => "state-not-shareable",
            RefusalKind::Exhausted => "exhausted",
            RefusalKind::InvalidRequest => "invalid-request",
        }
    }
}

/// Kind of a planner's failure.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PlannerErrorKind {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    MissingFile {
        /// Its path.
        path: PathBuf,
        source: std::sync::Arc<std::io::Error>,
    },
    #[error("{bytes} bytes, at most {cap} are read")]
    TooBig { bytes: u64, cap: u64 },
    /// The file is not signed as the host's policy requires.
    #[error(transparent)]
    Trust(Box<TrustError>),
    /// The file is neither a component nor a pack.
    #[error("not a WebAssembly component: {reason}")]
    Garbage { reason: String },
    /// The file is a core module that was not turned into a component.
    #[error("a WebAssembly core module, not a component")]
    CoreModule,
    /// The component exports another interface.
    #[error("the component does not export {expected}")]
    WrongWorld {
        /// The interface it should export.
        expected: String,
    },
    /// The planner uses a version of the interface that this host does not support.
    #[error("the planner exports {found}, this host speaks {expected}")]
    WrongVersion { found: String, expected: String },
    /// The planner has an import other than `log`.
    #[error("the planner imports `{import}`; a planner may import nothing but {allowed}")]
    ForbiddenImport { import: String, allowed: String },
    /// Compiling the planner would need more memory than a planner may use.
    #[error("has more {what} than the {cap} that are compiled")]
    TooComplex {
        /// The item that there are too many of.
        what: &'static str,
        cap: u64,
    },
    /// Compiling the planner took too long.
    #[error("compiling took longer than {} ms", limit.as_millis())]
    SlowToCompile { limit: Duration },
    /// A host without a compiler runs only packs.
    #[error("a `.wasm` planner needs a compiler, and this program has none: it runs packs only")]
    NoCompiler,
    /// The planner ran out of fuel: an endless loop, or far too much work.
    #[error("used up its {fuel} units of fuel in `{function}`")]
    OutOfFuel {
        /// Fuel per call.
        fuel: u64,
        function: &'static str,
    },
    /// The planner tried to allocate more memory than allowed.
    #[error("asked for more than {cap} bytes of memory in `{function}`")]
    OutOfMemory {
        /// Allowed bytes of memory.
        cap: usize,
        function: &'static str,
    },
    /// The system has too little memory for the planner.
    #[error("the system has not enough memory for `{function}`: {reason}")]
    NoMemory {
        /// Error of the system.
        reason: String,
        function: &'static str,
    },
    /// The planner recursed too deeply.
    #[error("overflowed its stack in `{function}`")]
    StackOverflow { function: &'static str },
    /// The planner returned more than any plan can contain.
    #[error("returned more than {cap} bytes from `{function}`")]
    GiantOutput {
        /// Allowed bytes of output.
        cap: usize,
        function: &'static str,
    },
    /// The planner exceeded its log budget.
    #[error("logged more than {lines} lines or {bytes} bytes in `{function}`")]
    LogFlood {
        /// Lines allowed.
        lines: usize,
        /// Bytes allowed.
        bytes: usize,
        function: &'static str,
    },
    /// The planner trapped: a panic, an access out of bounds or a failed assertion.
    #[error("stopped in `{function}`: {reason}")]
    Trapped {
        /// Description of the trap.
        reason: String,
        function: &'static str,
    },
    /// The planner declined, with a reason.
    #[error("refused ({}): {message}", kind.name())]
    Refused {
        kind: RefusalKind,
        message: String,
        /// Details as pairs of name and value.
        details: Vec<(String, String)>,
    },
    /// The planner's plan failed the check.
    #[error("its plan does not hold: {0}")]
    Plan(#[from] Box<PlanFault>),
    /// `revise` returned a plan that was tried before.
    #[error("returned the plan of attempt {attempt} again")]
    RepeatedPlan {
        /// Number of the attempt, from one.
        attempt: usize,
    },
    /// The planner failed, and the floor has no plan either.
    #[error("{kind}; and without a planner: {floor}")]
    NoFloor {
        /// The failure of the planner.
        kind: Box<PlannerErrorKind>,
        /// Why the floor has no plan.
        floor: Box<FloorRefusal>,
    },
    /// The request itself is invalid, so that no planner was called.
    #[error("the request is not sound: {0}")]
    Request(#[from] Box<RequestFault>),
    /// The planner's pack was not accepted.
    #[error("{0}")]
    Pack(#[from] PackError),
    /// The sandbox itself failed.
    #[error("the sandbox failed: {reason}")]
    Sandbox { reason: String },
}

impl PlannerErrorKind {
    /// Returns advice for a `help:` line.
    pub fn help(&self) -> Option<String> {
        let text = match self {
            PlannerErrorKind::CoreModule => {
                "wrap it: `shardwright-planner-build MANIFEST OUT.wasm` builds and wraps a planner crate"
            }
            PlannerErrorKind::ForbiddenImport { .. } => {
                "build the planner for wasm32-unknown-unknown; wasip1 and wasip2 add imports of their own"
            }
            PlannerErrorKind::WrongVersion { .. } => "build the planner against the SDK of this release",
            PlannerErrorKind::WrongWorld { .. } => "the crate must call `export_planner!`",
            PlannerErrorKind::TooComplex { .. } | PlannerErrorKind::SlowToCompile { .. } => {
                "build it with optimisation; a planner that large does more than plan"
            }
            PlannerErrorKind::NoCompiler => {
                "make a pack of it with `shardwright planner pack`, or use a program with a compiler: \
                 `cargo xtask build` builds one"
            }
            PlannerErrorKind::Trapped { .. } => {
                "a panic in the planner ends like this; log before returning an error"
            }
            PlannerErrorKind::NoMemory { .. } => {
                "free memory, or raise the limit of the process: a planner reserves 64 MiB of address space"
            }
            PlannerErrorKind::Plan(fault) => return fault.help().map(str::to_owned),
            PlannerErrorKind::Trust(error) => error.help(),
            PlannerErrorKind::Pack(error) => return error.help().map(str::to_owned),
            PlannerErrorKind::NoFloor { floor, .. } => floor.help(),
            PlannerErrorKind::Refused { kind, .. } => match kind {
                RefusalKind::Unsupported => "another target, or the CPU as a second one, may take it",
                RefusalKind::OverLimit => "`--limit NAME=VALUE` replaces a limit that is known to be wrong",
                RefusalKind::OverMemory => "allow more memory, or less context",
                RefusalKind::OverSize => "allow more bytes, or offer narrower weight formats",
                RefusalKind::TooSlow => "allow more time, or offer faster formats",
                RefusalKind::OverQuality => "allow a larger loss, or measure sensitivities",
                RefusalKind::StateNotShareable => "layers that share a state must be on one device",
                RefusalKind::Exhausted => "the reasons of the last plan say what was tried",
                RefusalKind::InvalidRequest => "the planner's description lists its options",
            },
            _ => return None,
        };
        Some(text.to_owned())
    }
}

/// Why a pack was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    #[error("not a planner pack")]
    NotAPack,
    /// The parts of the pack do not fit the file.
    #[error("the pack is damaged at byte {offset}: {reason}")]
    Damaged {
        /// Offset in bytes at which the damage was detected.
        offset: u64,
        reason: String,
    },
    /// The pack has no signature.
    #[error("the pack is not signed")]
    Unsigned,
    /// The key of the signature is not trusted.
    #[error("the pack is signed by {key}, which is not a trusted key")]
    UntrustedKey { key: PublicKey },
    /// The signature does not match the contents.
    #[error("the pack was altered: the signature of {key} does not fit")]
    Altered { key: PublicKey },
    /// The pack was compiled by another version of wasmtime or with other settings.
    #[error("the pack was compiled under {what} {found}, this host has {expected}")]
    Stale {
        /// The property that differs.
        what: &'static str,
        /// The value in the pack.
        found: String,
        /// The value of the host.
        expected: String,
    },
}

impl PackError {
    /// Returns advice for a `help:` line.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            PackError::NotAPack => None,
            PackError::Damaged { .. } | PackError::Altered { .. } => {
                Some("get the pack again from its source")
            }
            PackError::Unsigned | PackError::Stale { .. } => {
                Some("make it again with `shardwright planner pack` of this release")
            }
            PackError::UntrustedKey { .. } => Some("add the key to the trusted keys if you know its owner"),
        }
    }
}

impl From<TrustError> for PlannerErrorKind {
    fn from(error: TrustError) -> Self {
        PlannerErrorKind::Trust(Box::new(error))
    }
}

/// Converts to an error for applications, with a kind that they can act on.
impl From<PlannerError> for shardwright_vocabulary::Error {
    fn from(error: PlannerError) -> Self {
        let kind = match &error.kind {
            PlannerErrorKind::MissingFile { .. } => ErrorKind::Missing,
            PlannerErrorKind::WrongVersion { .. } => ErrorKind::Incompatible,
            PlannerErrorKind::Garbage { .. }
            | PlannerErrorKind::CoreModule
            | PlannerErrorKind::WrongWorld { .. }
            | PlannerErrorKind::ForbiddenImport { .. }
            | PlannerErrorKind::TooBig { .. } => ErrorKind::Invalid,
            PlannerErrorKind::Trust(error) => error.kind(),
            PlannerErrorKind::Sandbox { .. } => ErrorKind::Internal,
            PlannerErrorKind::NoMemory { .. } => ErrorKind::Memory,
            _ => ErrorKind::Planning,
        };
        let help = error.help();
        shardwright_vocabulary::Error::caused_by(kind, error, help)
    }
}
