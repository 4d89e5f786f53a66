//! Errors of planners. Every error names the planner and, once known, its version.

use std::fmt;

use shardwright_vocabulary::{Error, ErrorKind, Lesson};

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
        Error::from(self.kind.clone()).help().map(str::to_owned)
    }

    /// Returns whether the caller stopped the planner's compilation.
    pub fn is_cancelled(&self) -> bool {
        matches!(&self.kind, PlannerErrorKind::Other(error) if error.kind() == ErrorKind::Cancelled)
    }

    /// Returns the planner with its version, or `None` if no planner was called.
    fn place(&self) -> Option<String> {
        let version = self.version.iter().map(|version| format!(" {version}")).collect::<String>();
        let was_called = !matches!(self.kind, PlannerErrorKind::Request(_));
        was_called.then(|| format!("planner `{}`{version}", self.planner))
    }
}

impl fmt::Display for PlannerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place().iter().try_for_each(|place| write!(formatter, "{place}: "))?;
        self.kind.fmt(formatter)
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
    /// No plan meets a goal for times.
    TooSlow,
    /// A layer that reads a state would be on another device than its donor.
    StateNotShareable,
    /// Every remaining plan has already been refused.
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

    /// Returns advice for a `help:` line.
    const fn help(self) -> &'static str {
        match self {
            RefusalKind::Unsupported => "add a target that may support it, such as the CPU",
            RefusalKind::OverLimit => "if the limit is wrong, replace it with `--limit NAME=VALUE`",
            RefusalKind::OverMemory => "allow more memory, or less context",
            RefusalKind::OverSize => "allow more bytes, or offer narrower weight formats",
            RefusalKind::TooSlow => "allow more time, or offer faster formats",
            RefusalKind::OverQuality => {
                "allow a larger loss, or measure losses with `shardwright sensitivity`"
            }
            RefusalKind::StateNotShareable => "layers that share a state must be on one device",
            RefusalKind::Exhausted => {
                "offer more formats or targets, or replace a limit with `--limit NAME=VALUE`"
            }
            RefusalKind::InvalidRequest => "`shardwright planner check` lists the options of a planner",
        }
    }
}

/// Kind of a planner's failure.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PlannerErrorKind {
    /// The file could not be read.
    #[error(transparent)]
    MissingFile(Error),
    /// The file is not signed as the host's policy requires.
    #[error(transparent)]
    Trust(Error),
    /// A host without a compiler runs only packs.
    #[error("a `.wasm` planner needs a compiler, but this program can only run packs")]
    NoCompiler,
    /// A call exceeded a bound: fuel, memory, output or log.
    #[error(transparent)]
    OverBound(Error),
    /// A call trapped: a panic, an access out of bounds, a failed assertion or a full stack.
    #[error(transparent)]
    Trapped(Error),
    /// The planner declined, with a reason.
    #[error("refused ({}): {message}", kind.name())]
    Refused {
        kind: RefusalKind,
        message: String,
        /// Details as pairs of name and value.
        details: Vec<(String, String)>,
        /// Limits that refusals of earlier plans showed.
        lessons: Box<[Lesson]>,
    },
    /// `revise` returned a plan that was tried before.
    #[error("returned the plan of attempt {attempt} again")]
    RepeatedPlan {
        /// Number of the attempt, from one.
        attempt: usize,
    },
    /// The request itself is invalid, so that no planner was called.
    #[error(transparent)]
    Request(Error),
    /// Another failure: an invalid plan, an invalid file, or a failure of the sandbox.
    #[error(transparent)]
    Other(#[from] Error),
}

/// Converts to an error for applications, with a kind that they can act on.
impl From<PlannerErrorKind> for Error {
    fn from(kind: PlannerErrorKind) -> Self {
        let message = kind.to_string();
        match kind {
            PlannerErrorKind::MissingFile(error)
            | PlannerErrorKind::Trust(error)
            | PlannerErrorKind::OverBound(error)
            | PlannerErrorKind::Trapped(error)
            | PlannerErrorKind::Request(error)
            | PlannerErrorKind::Other(error) => error,
            PlannerErrorKind::NoCompiler => Error::new(ErrorKind::Planning, message).with_help(
                "convert it with `shardwright planner pack`, or use a program with a compiler, as \
                 `cargo xtask build` makes it",
            ),
            PlannerErrorKind::Refused { kind, .. } => {
                Error::new(ErrorKind::Planning, message).with_help(kind.help())
            }
            PlannerErrorKind::RepeatedPlan { .. } => Error::new(ErrorKind::Planning, message),
        }
    }
}

/// Converts to an error for applications. The planner becomes its place.
impl From<PlannerError> for Error {
    fn from(error: PlannerError) -> Self {
        let place = error.place();
        place.into_iter().fold(error.kind.into(), Error::at)
    }
}
