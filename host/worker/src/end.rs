//! The ways in which workers end, as reported by errors.

use shardwright_shims::{ProcessError, ShimError};
use shardwright_vocabulary::{ErrorClass, ErrorKind, Shortage};

use crate::os;

/// The way in which a worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerEnd {
    /// The worker could not be started or set up.
    Start {
        reason: String,
        /// The limit of the system that prevented it.
        shortage: Option<Shortage>,
    },
    /// A signal ended the worker.
    Signal {
        /// Number of the signal.
        signal: i32,
        /// The address of a memory fault.
        address: Option<u64>,
        /// The bound buffer at or next to that address.
        touched: Option<Touched>,
    },
    /// The worker exited without a request to do so.
    Exited {
        /// Exit code, which is not 0.
        code: i32,
    },
    /// The worker exited with code 0 before it answered.
    NoAnswer,
    /// The worker was killed because it exceeded its time limit.
    OverTime {
        /// The time limit in milliseconds.
        limit_ms: u64,
    },
    /// The worker ran out of memory because it reached its limit.
    OverMemory {
        /// The memory limit in bytes.
        limit_bytes: u64,
    },
    /// The worker was killed because it wrote outside a bound buffer.
    Overrun(Touched),
    /// The worker was killed because it violated the protocol.
    Protocol { reason: String },
    /// The worker was killed because it did not stop when cancelled.
    Cancelled,
    /// A terminal's interrupt, which the host should handle, reached the worker before it had its
    /// own process group.
    Interrupted,
}

impl WorkerEnd {
    /// Returns whether the worker ended because of a cancellation or an interrupt.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, WorkerEnd::Cancelled | WorkerEnd::Interrupted)
    }
}

/// A forbidden access next to or in a bound buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Name of the binding.
    pub binding: String,
    /// Offset of the first accessed byte, relative to the start of the buffer.
    pub offset: i64,
    /// Length of the buffer in bytes.
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
            WorkerEnd::Start { reason, .. } => write!(f, "could not be started: {reason}"),
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
            WorkerEnd::Protocol { reason } => write!(f, "was killed: it violated the protocol: {reason}"),
            WorkerEnd::Cancelled => write!(f, "was killed: it did not stop when cancelled"),
            WorkerEnd::Interrupted => write!(f, "was interrupted"),
        }
    }
}

/// A call that failed because its worker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerFailure {
    /// Name of the instance.
    pub shim: String,
    /// The called function of the contract.
    pub function: &'static str,
    pub end: WorkerEnd,
    /// Whether the worker ended before this call, which needed state of that worker.
    pub earlier: bool,
    /// Process id, or 0 if the process did not start.
    pub pid: u32,
    /// Peak resident memory in bytes.
    pub peak_memory_bytes: u64,
    /// Details for programs: `worker` is the kind of end. If a limit was reached, `limit`, `value`
    /// and `max` describe it.
    pub details: Vec<(String, String)>,
    /// The last part of the worker's output.
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

    /// Returns the worker failure behind an error, if there is one.
    pub fn of(error: &ShimError) -> Option<&WorkerFailure> {
        match error {
            ShimError::Process(error) => error.cause.downcast_ref(),
            _ => None,
        }
    }

    /// Returns the error class for planners and sessions.
    ///
    /// For a shard or buffer, it is device-lost. For a query about a graph, another cut may
    /// succeed, so it is resource-limit if a limit was reached and unmappable if the compiler
    /// crashed. A compiler's own answer may have the same classes, but is not a [`WorkerFailure`].
    /// In all other cases it is internal. Returns `None` if the caller cancelled. A later call on a
    /// shard or buffer of a worker that was killed for a cancellation was not cancelled itself.
    pub fn class(&self) -> Option<ErrorClass> {
        let of_graph = matches!(self.function, "check" | "estimate" | "compile");
        let of_device = matches!(self.function, "load" | "unload" | "run" | "buffer");
        Some(match &self.end {
            end if end.is_cancelled() && !(self.earlier && of_device) => return None,
            _ if of_device => ErrorClass::DeviceLost,
            WorkerEnd::OverTime { .. } | WorkerEnd::OverMemory { .. } if of_graph => {
                ErrorClass::ResourceLimit
            }
            WorkerEnd::Signal { .. } | WorkerEnd::Exited { .. } | WorkerEnd::NoAnswer if of_graph => {
                ErrorClass::Unmappable
            }
            _ => ErrorClass::Internal,
        })
    }

    /// Returns a suggestion for the user, unless the caller cancelled.
    pub fn help(&self) -> Option<&'static str> {
        Some(match &self.end {
            _ if self.class().is_none() => return None,
            WorkerEnd::Start { shortage: Some(shortage), .. } => shortage.help(),
            WorkerEnd::Start { .. } => "check the worker program, the free memory and the limit of processes",
            WorkerEnd::OverTime { .. } if matches!(self.function, "load" | "run") => {
                "set SHARDWRIGHT_WORKER_RUN_SECONDS to allow longer runs (a simulator may need minutes), or \
                 plan smaller shards"
            }
            WorkerEnd::OverTime { .. } => "plan smaller shards, or allow more time in `Caps`",
            WorkerEnd::OverMemory { .. } => {
                "set SHARDWRIGHT_WORKER_MEMORY to allow more memory, or plan smaller shards"
            }
            _ if self.class() == Some(ErrorClass::DeviceLost) => {
                "load the shard again, which starts a new worker, and report this to the shim's vendor"
            }
            WorkerEnd::Protocol { .. } => "use the worker program of the same release",
            _ => "plan again (smaller shards or other formats may fit), and report this to the shim's vendor",
        })
    }
}

impl From<WorkerFailure> for ShimError {
    fn from(failure: WorkerFailure) -> ShimError {
        let class = failure.class();
        let kind = match &failure.end {
            _ if class.is_none() => ErrorKind::Cancelled,
            WorkerEnd::Start { shortage: Some(shortage), .. } => shortage.kind(),
            _ => ErrorKind::Shim,
        };
        ShimError::Process(Box::new(ProcessError {
            kind,
            class,
            details: failure.details.clone(),
            help: failure.help(),
            cause: Box::new(failure),
        }))
    }
}

/// Record of the end of a worker.
#[derive(Clone, Debug)]
pub(crate) struct ExitReport {
    pub(crate) end: WorkerEnd,
    pub(crate) pid: u32,
    pub(crate) peak_memory_bytes: u64,
    pub(crate) log_tail: Option<String>,
}
