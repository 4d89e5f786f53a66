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
    /// The planner: its own name once known, otherwise the file it came from.
    pub planner: String,
    /// Its version, once known.
    pub version: Option<String>,
    /// What happened.
    pub kind: PlannerErrorKind,
}

impl PlannerError {
    /// What would help, for a `help:` line.
    pub fn help(&self) -> Option<String> {
        self.kind.help()
    }
}

impl fmt::Display for PlannerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No planner was called, so none is named.
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

/// The kinds of refusal a planner may answer with, as in `planner.wit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// Something no target takes in any format.
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
    /// A reader would land on another device than its donor.
    StateNotShareable,
    /// Every plan left was refused before.
    Exhausted,
    /// The request or an option makes no sense.
    InvalidRequest,
}

impl RefusalKind {
    /// The stable kebab-case name.
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

/// What happened to a planner.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PlannerErrorKind {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    MissingFile {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: std::sync::Arc<std::io::Error>,
    },
    /// The file is larger than any planner.
    #[error("{bytes} bytes, at most {cap} are read")]
    TooBig {
        /// Its size.
        bytes: u64,
        /// The cap.
        cap: u64,
    },
    /// It is not signed as the host's rules ask.
    #[error(transparent)]
    Trust(Box<TrustError>),
    /// Neither a component nor a pack.
    #[error("not a WebAssembly component: {reason}")]
    Garbage {
        /// What is wrong with it.
        reason: String,
    },
    /// A core module that was not made a component.
    #[error("a WebAssembly core module, not a component")]
    CoreModule,
    /// A component that exports another interface.
    #[error("the component does not export {expected}")]
    WrongWorld {
        /// The interface it should export.
        expected: String,
    },
    /// A planner for a version of the interface this host does not speak.
    #[error("the planner exports {found}, this host speaks {expected}")]
    WrongVersion {
        /// What it exports.
        found: String,
        /// What the host speaks.
        expected: String,
    },
    /// An import other than `log`.
    #[error("the planner imports `{import}`; a planner may import nothing but {allowed}")]
    ForbiddenImport {
        /// The import.
        import: String,
        /// What it may import.
        allowed: String,
    },
    /// Compiling it would need more memory than a planner may use.
    #[error("has more {what} than the {cap} that are compiled")]
    TooComplex {
        /// What there is too much of.
        what: &'static str,
        /// The cap.
        cap: u64,
    },
    /// Compiling took too long.
    #[error("compiling took longer than {} ms", limit.as_millis())]
    SlowToCompile {
        /// The limit.
        limit: Duration,
    },
    /// A host without a compiler runs packs only.
    #[error("a `.wasm` planner needs a compiler, and this program has none: it runs packs only")]
    NoCompiler,
    /// It ran out of fuel: an endless loop, or far too much work.
    #[error("used up its {fuel} units of fuel in `{function}`")]
    OutOfFuel {
        /// Fuel per call.
        fuel: u64,
        /// The function called.
        function: &'static str,
    },
    /// It asked for more memory than it may have.
    #[error("asked for more than {cap} bytes of memory in `{function}`")]
    OutOfMemory {
        /// The cap.
        cap: usize,
        /// The function called.
        function: &'static str,
    },
    /// The system has no memory for it.
    #[error("the system has not enough memory for `{function}`: {reason}")]
    NoMemory {
        /// What the system reported.
        reason: String,
        /// The function called.
        function: &'static str,
    },
    /// It recursed too deeply.
    #[error("overflowed its stack in `{function}`")]
    StackOverflow {
        /// The function called.
        function: &'static str,
    },
    /// It returned more than any plan has.
    #[error("returned more than {cap} bytes from `{function}`")]
    GiantOutput {
        /// The cap.
        cap: usize,
        /// The function called.
        function: &'static str,
    },
    /// It logged more than the log budget.
    #[error("logged more than {lines} lines or {bytes} bytes in `{function}`")]
    LogFlood {
        /// Lines allowed.
        lines: usize,
        /// Bytes allowed.
        bytes: usize,
        /// The function called.
        function: &'static str,
    },
    /// It trapped: a panic, an access out of bounds, a failed assertion.
    #[error("stopped in `{function}`: {reason}")]
    Trapped {
        /// The trap.
        reason: String,
        /// The function called.
        function: &'static str,
    },
    /// It declined, with a reason.
    #[error("refused ({}): {message}", kind.name())]
    Refused {
        /// Kind of refusal.
        kind: RefusalKind,
        /// Its reason.
        message: String,
        /// Details, name and value.
        details: Vec<(String, String)>,
    },
    /// Its plan is wrong.
    #[error("its plan does not hold: {0}")]
    Plan(#[from] Box<PlanFault>),
    /// `revise` returned a plan that was tried before.
    #[error("returned the plan of attempt {attempt} again")]
    RepeatedPlan {
        /// Number of the attempt, from one.
        attempt: usize,
    },
    /// It failed, and the floor behind it has no plan either.
    #[error("{kind}; and without a planner: {floor}")]
    NoFloor {
        /// What happened to the planner.
        kind: Box<PlannerErrorKind>,
        /// Why there is no plan without it.
        floor: Box<FloorRefusal>,
    },
    /// The request itself is wrong; no planner was asked.
    #[error("the request is not sound: {0}")]
    Request(#[from] Box<RequestFault>),
    /// The pack it came in was not accepted.
    #[error("{0}")]
    Pack(#[from] PackError),
    /// A fault of the sandbox itself.
    #[error("the sandbox failed: {reason}")]
    Sandbox {
        /// What it said.
        reason: String,
    },
}

impl PlannerErrorKind {
    /// What would help, for a `help:` line.
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
            PlannerErrorKind::TooComplex { .. } => {
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
    /// Not a pack.
    #[error("not a planner pack")]
    NotAPack,
    /// Its parts do not add up to the file.
    #[error("the pack is damaged at byte {offset}: {reason}")]
    Damaged {
        /// Where it was noticed.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// It has no signature.
    #[error("the pack is not signed")]
    Unsigned,
    /// Its key is not trusted.
    #[error("the pack is signed by {key}, which is not a trusted key")]
    UntrustedKey {
        /// The key.
        key: PublicKey,
    },
    /// The signature does not fit the contents.
    #[error("the pack was altered: the signature of {key} does not fit")]
    Altered {
        /// The key.
        key: PublicKey,
    },
    /// It was compiled by another wasmtime or under other settings.
    #[error("the pack was compiled under {what} {found}, this host has {expected}")]
    Stale {
        /// What differs.
        what: &'static str,
        /// The pack's.
        found: String,
        /// The host's.
        expected: String,
    },
}

impl PackError {
    /// What would help, for a `help:` line.
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

/// What an application can do about it.
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
