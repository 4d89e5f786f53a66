//! Errors of calls into the vendor's library, and their classification.
//!
//! The returned code is not specific: 1002, named after memory, is returned by every failed
//! preparation. So a failure is classified by the lines the library logged during the call, and
//! includes those lines.

use crate::ffi::Version;
use crate::log::{self, Level, Line};
use shardwright_shim_abi::{self as abi, ErrorClass};
pub use shardwright_shim_npu::library::LibraryError;
use std::path::PathBuf;

/// Result of functions of this crate that call the library.
pub type Result<T> = std::result::Result<T, QnnError>;

/// Advice if no library was found. Places next to the program are not searched.
const HOW_TO_NAME_IT: &str = "set SHARDWRIGHT_QNN_LIB to libQnnHtp.so, or put it next to the shim";

/// Error of a call into the vendor's library, or of its preparation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QnnError {
    /// No library in the places searched, or a library that cannot be loaded.
    #[error("{}", .0.of_vendor("Qualcomm", HOW_TO_NAME_IT))]
    Library(#[from] LibraryError),
    /// A library, but not a QNN library.
    #[error("{} is not a QNN library: it has no symbol `{symbol}`", path.display())]
    NotAQnnLibrary {
        path: PathBuf,
        /// Symbol that every such library exports.
        symbol: &'static str,
    },
    /// A QNN library for another processor.
    #[error("{} has no provider of the Hexagon tensor processor; it has {}", path.display(), found.join(", "))]
    NoHtpProvider {
        path: PathBuf,
        /// The providers it has.
        found: Vec<String>,
    },
    /// A version whose layouts this crate does not know.
    #[error("{} has version {found} of the {interface} interface; this shim supports {major}.{at_least} and later {major}.x",
        path.display())]
    VersionOutOfRange {
        path: PathBuf,
        /// `core` or `system`.
        interface: &'static str,
        /// The version found.
        found: Version,
        /// The supported major version.
        major: u32,
        /// The lowest supported minor version.
        at_least: u32,
    },
    /// A required function is null.
    #[error("{} has no function {function} (slot {slot})", path.display())]
    FunctionMissing { path: PathBuf, function: &'static str, slot: usize },
    #[error(transparent)]
    Call(Box<CallFailure>),
    /// The graph to compose is inconsistent.
    #[error("graph `{graph}`, {place}: {problem}")]
    GraphInvalid {
        graph: String,
        /// The tensor or node at fault.
        place: String,
        /// The inconsistency.
        problem: String,
    },
    /// The binary has no graph of that name.
    #[error("there is no graph `{name}` in the binary; it has {}", available.join(", "))]
    GraphMissing { name: String, available: Vec<String> },
    /// Memory passed for a tensor does not have the tensor's length.
    #[error("tensor `{tensor}` of graph `{graph}` needs {expected} bytes, got {found}")]
    MemorySize { graph: String, tensor: String, expected: u64, found: u64 },
    /// Memory was passed for more or fewer tensors than there are.
    #[error("graph `{graph}` has {expected} {what}, got memory for {found}")]
    MemoryCount {
        graph: String,
        /// `inputs` or `outputs`.
        what: &'static str,
        expected: usize,
        found: usize,
    },
    /// The bytes are not a context binary, or are damaged.
    #[error("not a readable context binary: {reason}")]
    BinaryInvalid { reason: String },
    /// The binary is for another chip than requested.
    #[error("requested code for chip {asked}, got code for chip {made} (v{})", arch.unwrap_or(0))]
    WrongTarget { asked: u32, made: u32, arch: Option<u32> },
    /// The library cannot generate code for the chip described by the profile.
    #[error(transparent)]
    Chip(#[from] abi::Error),
    /// The library does not offer a facility on this platform.
    #[error("the library does not offer {what} on this platform: {reason}")]
    NotOffered { what: &'static str, reason: String },
}

/// A function of the library failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function} failed with {code} ({name}){}: {reason}", node.as_ref().map(|node| format!(" at node `{node}`")).unwrap_or_default())]
pub struct CallFailure {
    /// Error class that the planner acts on.
    pub class: ErrorClass,
    /// Name of the function, for example `graphFinalize`.
    pub function: &'static str,
    /// Return code.
    pub code: u64,
    /// The library's name for that code.
    pub name: String,
    /// The node at fault, if it was named.
    pub node: Option<String>,
    /// The operation at fault, for example `FullyConnected`, if it was named.
    pub op: Option<String>,
    /// The log line with the reason, or a note that no reason was logged.
    pub reason: String,
    /// Last lines of the library's log.
    pub log: String,
}

/// Phrases of the log at error level and their classes, the most specific first.
const PHRASES: &[(&str, ErrorClass)] = &[
    ("Shared weights buffer isn't supported", ErrorClass::IncompatibleArtefact),
    ("lack of HMX thread", ErrorClass::IncompatibleArtefact),
    ("Unsupported input/output datatypes", ErrorClass::UnsupportedOp),
    ("None of the combinations match", ErrorClass::UnsupportedOp),
    ("has incorrect", ErrorClass::UnsupportedOp),
    ("mismatching datatypes", ErrorClass::UnsupportedOp),
    // For an operation that an architecture lacks, sometimes in place of `expected >=`.
    (" for dsp arch v", ErrorClass::UnsupportedOp),
    ("tensor datatype", ErrorClass::UnsupportedOp),
    ("could not create op: ", ErrorClass::UnsupportedOp),
    ("no properties registered for", ErrorClass::UnsupportedOp),
    ("generated: could not create op", ErrorClass::UnsupportedOp),
    ("out of memory", ErrorClass::ResourceLimit),
    ("TCM allocation", ErrorClass::ResourceLimit),
    ("prepare failed", ErrorClass::Unmappable),
];

/// Error classes of codes, used when no known phrase was logged. The names are the library's own.
const CODES: &[(u64, ErrorClass)] = &[
    // SYSTEM_COMMUNICATION, recoverable and not, and HARDWARE_UNAVAILABLE: ONNX Runtime's public
    // provider assumes that a restart of the processor's subsystem returns the first one. Untested,
    // because x86-64 has no such restart.
    (1007, ErrorClass::DeviceLost),
    (1011, ErrorClass::DeviceLost),
    (14002, ErrorClass::DeviceLost),
    // Named MEM_ALLOC, but returned by every finalize that fails.
    (1002, ErrorClass::Unmappable),
    (1006, ErrorClass::IncompatibleArtefact),
    (1008, ErrorClass::IncompatibleArtefact),
    (1010, ErrorClass::ResourceLimit),
    (3110, ErrorClass::UnsupportedOp),
    (4005, ErrorClass::UnsupportedOp),
    (5004, ErrorClass::IncompatibleArtefact),
    (5005, ErrorClass::IncompatibleArtefact),
    (5008, ErrorClass::IncompatibleArtefact),
    (5011, ErrorClass::IncompatibleArtefact),
    (6021, ErrorClass::Unmappable),
    (6022, ErrorClass::Unmappable),
    (7004, ErrorClass::UnsupportedOp),
    (7005, ErrorClass::UnsupportedOp),
    (30001, ErrorClass::CorruptArtefact),
    (30010, ErrorClass::CorruptArtefact),
];

impl CallFailure {
    /// Creates a failure of `function`, classified by the lines logged during the call.
    pub(crate) fn new(function: &'static str, code: u64, name: String, lines: &[Line]) -> CallFailure {
        let errors = || lines.iter().filter(|line| line.level == Level::Error);
        let lost = CODES.iter().any(|(lost, class)| *lost == code && *class == ErrorClass::DeviceLost);
        let phrase = PHRASES.iter().filter(|_| !lost).find_map(|(phrase, class)| {
            errors().find(|line| line.text.contains(phrase)).map(|line| (*class, &line.text))
        });
        let class = match phrase {
            Some((class, _)) => class,
            None => CODES
                .iter()
                .find(|(known, _)| *known == code)
                .map_or_else(|| by_range(code), |(_, class)| *class),
        };
        let reason = phrase.map(|(_, text)| text.clone()).or_else(|| Some(errors().next()?.text.clone()));
        CallFailure {
            class,
            function,
            code,
            name,
            node: None,
            op: None,
            reason: reason.unwrap_or_else(|| "the library logged no reason".to_owned()),
            log: log::tail(lines),
        }
    }
}

/// Classifies a code by its range. Invalid arguments and calls out of order are the caller's
/// mistakes. Other codes are unknown.
fn by_range(code: u64) -> ErrorClass {
    match code {
        1004
        | 1005
        | 4000..=4999
        | 5000..=5003
        | 6000..=6005
        | 6023
        | 6024
        | 7000..=7999
        | 8000..=8999
        | 14000
        | 14001 => ErrorClass::InvalidArgument,
        _ => ErrorClass::Internal,
    }
}

impl QnnError {
    /// Returns the error class that the planner acts on.
    pub fn class(&self) -> ErrorClass {
        match self {
            QnnError::Call(failure) => failure.class,
            QnnError::BinaryInvalid { .. } => ErrorClass::CorruptArtefact,
            QnnError::GraphMissing { .. } => ErrorClass::IncompatibleArtefact,
            QnnError::Chip(error) => error.class,
            QnnError::MemorySize { .. }
            | QnnError::MemoryCount { .. }
            | QnnError::Library(_)
            | QnnError::NotAQnnLibrary { .. }
            | QnnError::NoHtpProvider { .. }
            | QnnError::VersionOutOfRange { .. } => ErrorClass::InvalidArgument,
            QnnError::FunctionMissing { .. }
            | QnnError::GraphInvalid { .. }
            | QnnError::NotOffered { .. }
            | QnnError::WrongTarget { .. } => ErrorClass::Internal,
        }
    }
}

impl From<QnnError> for abi::Error {
    fn from(error: QnnError) -> abi::Error {
        let mut answer = abi::Error::new(error.class(), error.to_string());
        match error {
            QnnError::Chip(error) => error,
            QnnError::Library(LibraryError::NotFound { tried }) => {
                answer.detail("looked at", tried.join(", "))
            }
            QnnError::Call(failure) => {
                answer = answer.vendor_code(failure.code as i64).detail("function", failure.function);
                if let Some(node) = failure.node {
                    answer = answer.detail("node", node);
                }
                if let Some(op) = failure.op {
                    answer = answer.detail("op", op);
                }
                if failure.log.is_empty() { answer } else { answer.log_tail(failure.log) }
            }
            _ => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(code: u64, log: &[&str]) -> (ErrorClass, String) {
        let lines: Vec<Line> =
            log.iter().map(|text| Line { level: Level::Error, text: (*text).to_owned() }).collect();
        let failure = CallFailure::new("graphFinalize", code, String::new(), &lines);
        (failure.class, failure.reason)
    }

    #[test]
    fn the_log_says_what_the_code_does_not() {
        let unsupported = "graph_prepare.cc:211::ERROR:could not create op: q::QNN_RmsNorm";
        let (found, reason) =
            classified(1002, &["something before", unsupported, "RouterX86 graph prepare failed 12"]);
        assert_eq!((found, reason.as_str()), (ErrorClass::UnsupportedOp, unsupported));
        assert_eq!(classified(1002, &["RouterX86 graph prepare failed 13"]).0, ErrorClass::Unmappable);
        assert_eq!(
            classified(1002, &[]),
            (ErrorClass::Unmappable, "the library logged no reason".to_owned())
        );
        assert_eq!(classified(1002, &["the device is out of memory"]).0, ErrorClass::ResourceLimit);
        let shared = "Shared weights buffer isn't supported on this platform";
        assert_eq!(classified(1000, &[shared]).0, ErrorClass::IncompatibleArtefact);
        assert_eq!(classified(30010, &[]).0, ErrorClass::CorruptArtefact);
        assert_eq!(classified(12345, &[]).0, ErrorClass::Internal);
    }

    #[test]
    fn a_lost_device_is_reported_whatever_is_logged() {
        for code in [1007, 1011, 14002] {
            assert_eq!(classified(code, &["could not create op: q::Add"]).0, ErrorClass::DeviceLost);
        }
    }
}
