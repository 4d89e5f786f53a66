//! How workers end, as errors report it.

use shardwright_shims::{ProcessError, ShimError};
use shardwright_vocabulary::{ErrorClass, ErrorKind};

use crate::os;

/// How a worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerEnd {
    /// It could not be started or set up.
    Start {
        /// The reason.
        reason: String,
    },
    /// A signal ended it.
    Signal {
        /// Its number.
        signal: i32,
        /// For faults of memory, the address.
        address: Option<u64>,
        /// The bound buffer at or beside that address.
        touched: Option<Touched>,
    },
    /// It exited without being asked to.
    Exited {
        /// Its exit code, not 0.
        code: i32,
    },
    /// It exited with code 0 before it answered.
    NoAnswer,
    /// It was killed: it exceeded its time limit.
    OverTime {
        /// The time limit in milliseconds.
        limit_ms: u64,
    },
    /// It ran out of memory: its cap was reached.
    OverMemory {
        /// The cap.
        limit_bytes: u64,
    },
    /// It was killed: it wrote outside a bound buffer.
    Overrun(Touched),
    /// It was killed: it violated the protocol.
    Protocol {
        /// What is wrong.
        reason: String,
    },
    /// It was killed: it was asked to stop and did not.
    Cancelled,
    /// A terminal's interrupt, which the host should handle, reached it before it had a process
    /// group of its own.
    Interrupted,
}

impl WorkerEnd {
    /// Whether it ended because of a cancellation or an interrupt.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, WorkerEnd::Cancelled | WorkerEnd::Interrupted)
    }
}

/// A forbidden access beside or in a bound buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Name of the binding.
    pub binding: String,
    /// Offset of the first byte accessed, from the buffer's first.
    pub offset: i64,
    /// Bytes of the buffer.
    pub length: u64,
}

impl std::fmt::Display for Touched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "byte {} of the {} bytes bound as `{}`", self.offset, self.length, self.binding)
    }
}

impl std::fmt::Display for WorkerEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WorkerEnd::Start { reason } => write!(f, "could not be started: {reason}"),
            WorkerEnd::Signal { signal, address, touched } => {
                write!(f, "was killed by signal {signal}")?;
                if let Some(name) = os::signal_name(*signal) {
                    write!(f, " ({name})")?;
                }
                match (touched, address) {
                    (Some(touched), _) => write!(f, " at {touched}"),
                    (None, Some(address)) => write!(f, " at address {address:#x}"),
                    (None, None) => Ok(()),
                }
            }
            WorkerEnd::Exited { code } => write!(f, "exited with code {code}"),
            WorkerEnd::NoAnswer => write!(f, "exited with code 0 without an answer"),
            WorkerEnd::OverTime { limit_ms } => {
                write!(f, "was killed after {limit_ms} ms, its time limit")
            }
            WorkerEnd::OverMemory { limit_bytes } => {
                write!(f, "ran out of memory: its limit is {limit_bytes} bytes")
            }
            WorkerEnd::Overrun(touched) => write!(f, "was killed: it wrote {touched}"),
            WorkerEnd::Protocol { reason } => write!(f, "was killed: it broke the protocol: {reason}"),
            WorkerEnd::Cancelled => write!(f, "was killed: it did not stop when asked"),
            WorkerEnd::Interrupted => write!(f, "was interrupted"),
        }
    }
}

/// A call that failed because its worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerFailure {
    /// The instance.
    pub shim: String,
    /// The function of the contract that was called.
    pub function: &'static str,
    /// How the worker ended.
    pub end: WorkerEnd,
    /// Whether it ended before this call, which needed state of that worker.
    pub earlier: bool,
    /// The process; 0 if there was none yet.
    pub pid: u32,
    /// Peak resident memory.
    pub peak_memory_bytes: u64,
    /// Details that a program can act on: `worker` says how it ended; a cap that was reached is
    /// given as `limit`, `value` and `max`.
    pub details: Vec<(String, String)>,
    /// The tail of its output.
    pub log_tail: Option<String>,
}

impl std::fmt::Display for WorkerFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let when = if self.earlier { "ended earlier: it " } else { "" };
        write!(f, "shim `{}`, {}: its worker {when}{}", self.shim, self.function, self.end)
    }
}

impl std::error::Error for WorkerFailure {}

impl WorkerFailure {
    pub(crate) fn new(
        shim: &str,
        function: &'static str,
        exit_report: &ExitReport,
        earlier: bool,
    ) -> WorkerFailure {
        let ExitReport { end, pid, peak_memory_bytes, log_tail } = exit_report.clone();
        let mut details = vec![("worker".to_owned(), end.to_string())];
        let mut reached = |limit: &str, value: Option<u64>, max: u64| {
            details.push(("limit".to_owned(), limit.to_owned()));
            details.extend(value.map(|value| ("value".to_owned(), value.to_string())));
            details.push(("max".to_owned(), max.to_string()));
        };
        match &end {
            WorkerEnd::OverTime { limit_ms } => reached("worker-milliseconds", None, *limit_ms),
            WorkerEnd::OverMemory { limit_bytes } => {
                reached("worker-memory-bytes", Some(peak_memory_bytes), *limit_bytes);
            }
            _ => {}
        }
        WorkerFailure {
            shim: shim.to_owned(),
            function,
            end,
            earlier,
            pid,
            peak_memory_bytes,
            details,
            log_tail,
        }
    }

    /// The worker failure behind an error, if there is one.
    pub fn of(error: &ShimError) -> Option<&WorkerFailure> {
        match error {
            ShimError::Process(error) => error.cause.downcast_ref(),
            _ => None,
        }
    }

    /// Class on which a planner or session acts.
    ///
    /// For a shard or buffer: device-lost. For a question about a graph: resource-limit when a cap
    /// was reached and unmappable when the compiler crashed, because another cut may succeed; the
    /// error being a [`WorkerFailure`] distinguishes both from an answer of the compiler. Otherwise
    /// internal. `None` when the caller cancelled.
    pub fn class(&self) -> Option<ErrorClass> {
        let of_graph = matches!(self.function, "check" | "estimate" | "compile");
        Some(match &self.end {
            end if end.is_cancelled() => return None,
            _ if matches!(self.function, "load" | "unload" | "run" | "buffer") => ErrorClass::DeviceLost,
            WorkerEnd::OverTime { .. } | WorkerEnd::OverMemory { .. } if of_graph => {
                ErrorClass::ResourceLimit
            }
            WorkerEnd::Signal { .. } | WorkerEnd::Exited { .. } | WorkerEnd::NoAnswer if of_graph => {
                ErrorClass::Unmappable
            }
            _ => ErrorClass::Internal,
        })
    }

    /// What would help.
    pub fn help(&self) -> Option<&'static str> {
        Some(match &self.end {
            end if end.is_cancelled() => return None,
            WorkerEnd::Start { .. } => "check the worker program and the free memory and processes",
            WorkerEnd::OverTime { .. } if matches!(self.function, "load" | "run") => {
                "set SHARDWRIGHT_WORKER_RUN_SECONDS to allow longer runs (a simulator may need minutes), or plan smaller shards"
            }
            WorkerEnd::OverTime { .. } => "raise the cap, or plan smaller shards",
            WorkerEnd::OverMemory { .. } => {
                "set SHARDWRIGHT_WORKER_MEMORY to allow more memory, or plan smaller shards"
            }
            _ if self.class() == Some(ErrorClass::DeviceLost) => {
                "load the shard again, which starts a new worker, and report this to the shim's vendor"
            }
            WorkerEnd::Protocol { .. } => "the worker program must be of the same release",
            _ => "plan again: smaller shards or other formats may fit; and report this to the shim's vendor",
        })
    }
}

impl From<WorkerFailure> for ShimError {
    fn from(failure: WorkerFailure) -> ShimError {
        let class = failure.class();
        ShimError::Process(Box::new(ProcessError {
            kind: if class.is_some() { ErrorKind::Shim } else { ErrorKind::Cancelled },
            class,
            details: failure.details.clone(),
            help: failure.help(),
            cause: Box::new(failure),
        }))
    }
}

/// Record of a worker that ended.
#[derive(Clone, Debug)]
pub(crate) struct ExitReport {
    pub(crate) end: WorkerEnd,
    pub(crate) pid: u32,
    pub(crate) peak_memory_bytes: u64,
    pub(crate) log_tail: Option<String>,
}
