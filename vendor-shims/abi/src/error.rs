use crate::raw;

/// Class of an [`Error`]. A planner acts on it: it moves the cut after
/// [`Unmappable`](ErrorClass::Unmappable), not after [`Internal`](ErrorClass::Internal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorClass {
    /// The device does not support the operation.
    UnsupportedOp = raw::SW_ERROR_UNSUPPORTED_OP,
    /// The compiler found no way to place the graph as a whole.
    Unmappable = raw::SW_ERROR_UNMAPPABLE,
    /// A limit was exceeded; say which in the details `limit`, `value`, `max`.
    ResourceLimit = raw::SW_ERROR_RESOURCE_LIMIT,
    /// An artefact of another version or chip.
    IncompatibleArtefact = raw::SW_ERROR_INCOMPATIBLE_ARTEFACT,
    /// A damaged artefact.
    CorruptArtefact = raw::SW_ERROR_CORRUPT_ARTEFACT,
    /// The device went away; all its handles are dead.
    DeviceLost = raw::SW_ERROR_DEVICE_LOST,
    /// Time ran out.
    Deadline = raw::SW_ERROR_DEADLINE,
    /// State rows that were needed are gone.
    StateLost = raw::SW_ERROR_STATE_LOST,
    /// The caller's mistake.
    InvalidArgument = raw::SW_ERROR_INVALID_ARGUMENT,
    /// The shim's own mistake.
    Internal = raw::SW_ERROR_INTERNAL,
    /// The host asked to stop.
    Cancelled = raw::SW_ERROR_CANCELLED,
}

/// Error of a shim function; crosses the contract as a `sw_error` object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Kind of failure.
    pub class: ErrorClass,
    /// Lower case, quotes the offending value.
    pub message: String,
    /// Key and value pairs a program can act on: `limit`, `value`, `max`, `op`, `layer`, …
    pub details: Vec<(String, String)>,
    /// The vendor library's code, 0 for none.
    pub vendor_code: i64,
    /// Last lines of the vendor's log, which often state the real reason.
    pub log_tail: Option<String>,
}

/// Result of shim functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error without details.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Error { class, message: message.into(), details: Vec::new(), vendor_code: 0, log_tail: None }
    }

    /// The caller's mistake.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Error::new(ErrorClass::InvalidArgument, message)
    }

    /// The shim's own mistake.
    pub fn internal(message: impl Into<String>) -> Self {
        Error::new(ErrorClass::Internal, message)
    }

    /// The device does not support the operation.
    pub fn unsupported_op(message: impl Into<String>) -> Self {
        Error::new(ErrorClass::UnsupportedOp, message)
    }

    /// A damaged artefact.
    pub fn corrupt_artefact(message: impl Into<String>) -> Self {
        Error::new(ErrorClass::CorruptArtefact, message)
    }

    /// An exceeded limit, with the details a planner reads.
    pub fn resource_limit(limit: &str, value: u64, max: u64) -> Self {
        Error::new(ErrorClass::ResourceLimit, format!("{limit} is {value}, at most {max} fit"))
            .detail("limit", limit)
            .detail("value", value)
            .detail("max", max)
    }

    /// Adds a detail.
    pub fn detail(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.details.push((key.into(), value.to_string()));
        self
    }

    /// Sets the vendor's code.
    pub fn vendor_code(mut self, code: i64) -> Self {
        self.vendor_code = code;
        self
    }

    /// Attaches the vendor's log.
    pub fn log_tail(mut self, log: impl Into<String>) -> Self {
        self.log_tail = Some(log.into());
        self
    }
}
