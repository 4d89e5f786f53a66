use std::fmt::Display;

use crate::raw;

/// Class of an [`Error`]. The planner acts on it: for example, it moves the cut after
/// [`Unmappable`](ErrorClass::Unmappable), but not after [`Internal`](ErrorClass::Internal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorClass {
    /// The device does not support the operation.
    UnsupportedOp = raw::SW_ERROR_UNSUPPORTED_OP,
    /// The compiler found no way to place the graph as a whole.
    Unmappable = raw::SW_ERROR_UNMAPPABLE,
    /// A limit was exceeded. Name the limit in the details `limit`, `value`, `max`.
    ResourceLimit = raw::SW_ERROR_RESOURCE_LIMIT,
    /// The artefact is for another version or chip.
    IncompatibleArtefact = raw::SW_ERROR_INCOMPATIBLE_ARTEFACT,
    /// The artefact is damaged.
    CorruptArtefact = raw::SW_ERROR_CORRUPT_ARTEFACT,
    /// The device went away. All its handles are invalid.
    DeviceLost = raw::SW_ERROR_DEVICE_LOST,
    /// The deadline has passed.
    Deadline = raw::SW_ERROR_DEADLINE,
    /// State rows that the run needs are lost.
    StateLost = raw::SW_ERROR_STATE_LOST,
    /// The caller passed an invalid argument.
    InvalidArgument = raw::SW_ERROR_INVALID_ARGUMENT,
    /// The shim itself is at fault.
    Internal = raw::SW_ERROR_INTERNAL,
    /// The host requested a stop.
    Cancelled = raw::SW_ERROR_CANCELLED,
}

/// Error of a shim function. It crosses the contract as a `sw_error` object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Kind of failure, on which the planner acts.
    pub class: ErrorClass,
    /// Description in lower case that quotes the offending value.
    pub message: String,
    /// Key and value pairs that a program can act on: `limit`, `value`, `max`, `op`, `layer`, …
    pub details: Vec<(String, String)>,
    /// The vendor library's code, or 0 for none.
    pub vendor_code: i64,
    /// Last lines of the vendor's log, which often state the real reason.
    pub log_tail: Option<String>,
}

/// Result of a shim function.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates an error without details.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Error { class, message: message.into(), details: Vec::new(), vendor_code: 0, log_tail: None }
    }

    /// Creates an [`InvalidArgument`](ErrorClass::InvalidArgument) error.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Error::new(ErrorClass::InvalidArgument, message)
    }

    /// Creates an [`Internal`](ErrorClass::Internal) error.
    pub fn internal(message: impl Into<String>) -> Self {
        Error::new(ErrorClass::Internal, message)
    }

    /// Creates an [`UnsupportedOp`](ErrorClass::UnsupportedOp) error.
    pub fn unsupported_op(message: impl Into<String>) -> Self {
        Error::new(ErrorClass::UnsupportedOp, message)
    }

    /// Creates a [`CorruptArtefact`](ErrorClass::CorruptArtefact) error.
    pub fn corrupt_artefact(message: impl Into<String>) -> Self {
        Error::new(ErrorClass::CorruptArtefact, message)
    }

    /// Creates a [`ResourceLimit`](ErrorClass::ResourceLimit) error with the details that the
    /// planner reads.
    pub fn resource_limit(limit: &str, value: u64, max: u64) -> Self {
        Error::new(ErrorClass::ResourceLimit, format!("{limit} is {value}, at most {max} fit"))
            .detail("limit", limit)
            .detail("value", value)
            .detail("max", max)
    }

    /// Creates an [`UnsupportedOp`](ErrorClass::UnsupportedOp) error about a `node`, `input` or
    /// `port` of this name.
    pub fn unsupported(what: &'static str, name: &str, reason: impl Display) -> Self {
        Error::unsupported_op(format!("{what} `{name}`: {reason}")).detail(what, name)
    }

    /// Creates an error for an entry that contradicts itself.
    pub fn invalid_graph(entry: &str, reason: impl Display) -> Self {
        Error::invalid_argument(format!("entry `{entry}`: {reason}")).detail("entry", entry)
    }

    /// Creates an error for a weight whose bytes do not match its shape or encoding.
    pub fn invalid_weight(name: &str, reason: impl Display) -> Self {
        Error::invalid_argument(format!("weight `{name}`: {reason}")).detail("weight", name)
    }

    /// Creates an error for a flag or option with an invalid value.
    pub fn invalid_value(name: &str, value: impl Display, expected: impl Display) -> Self {
        Error::invalid_argument(format!("`{name}` is `{value}`, expected {expected}")).detail("option", name)
    }

    /// Creates an error for a device that the shim does not have. `help` states how the shim's
    /// devices are named.
    pub fn unknown_device(name: &str, help: &str) -> Self {
        Error::invalid_argument(format!("unknown device `{name}`")).detail("device", name).help(help)
    }

    /// Creates an error for an artefact that is damaged at this offset in bytes.
    pub fn corrupt_at(offset: u64, reason: impl Display) -> Self {
        Error::corrupt_artefact(format!("artefact at byte {offset}: {reason}"))
            .detail("offset", offset)
            .help("compile the work order again")
    }

    /// Sets the text for a `help:` line: the next step, in the imperative.
    pub fn help(self, help: impl Into<String>) -> Self {
        self.detail("help", help.into())
    }

    /// Adds a detail that a program can act on.
    pub fn detail(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.details.push((key.into(), value.to_string()));
        self
    }

    /// Returns the first detail with this key.
    pub fn detail_of(&self, key: &str) -> Option<&str> {
        self.details.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Sets the vendor library's code.
    pub fn vendor_code(mut self, code: i64) -> Self {
        self.vendor_code = code;
        self
    }

    /// Attaches the last lines of the vendor's log.
    pub fn log_tail(mut self, log: impl Into<String>) -> Self {
        self.log_tail = Some(log.into());
        self
    }
}
