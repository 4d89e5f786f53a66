//! What a call into the vendor's library fails with, and what that means.
//!
//! The code a function returns says little: 1002, named after memory, is what every failed
//! preparation returns. So a failure is classified from what the library logged meanwhile, and
//! carries those lines.

use crate::ffi::Version;
use crate::log::{self, Level, Line};
use shardwright_shim_abi::{self as abi, ErrorClass};
use shardwright_shim_npu::ShimError;
pub use shardwright_shim_npu::library::LibraryError;
use std::path::PathBuf;

/// What functions of this crate that call the library return.
pub type Result<T> = std::result::Result<T, QnnError>;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QnnError {
    /// No library where the rule looks, or one that the loader does not take.
    #[error("{}", .0.of_vendor("Qualcomm", "set SHARDWRIGHT_QNN_LIB to libQnnHtp.so or its folder"))]
    Library(#[from] LibraryError),
    /// A library, and not this kind of library.
    #[error("{} is not a QNN library: it has no symbol `{symbol}`", path.display())]
    NotAQnnLibrary {
        /// Which file.
        path: PathBuf,
        /// What every such library exports.
        symbol: &'static str,
    },
    /// A QNN library for another processor.
    #[error("{} has no provider of the Hexagon tensor processor; it has {}", path.display(), found.join(", "))]
    NoHtpProvider {
        /// Which file.
        path: PathBuf,
        /// The providers it has.
        found: Vec<String>,
    },
    /// Older or newer than what this crate knows the layouts of.
    #[error("{} speaks version {found} of the {interface} interface; this shim speaks {major}.{at_least} and later {major}.x",
        path.display())]
    VersionOutOfRange {
        /// Which file.
        path: PathBuf,
        /// `core` or `system`.
        interface: &'static str,
        /// Its version.
        found: Version,
        /// The major version spoken here.
        major: u32,
        /// The least minor version.
        at_least: u32,
    },
    /// A function that is needed is null.
    #[error("{} has no function {function} (slot {slot})", path.display())]
    FunctionMissing {
        /// Which file.
        path: PathBuf,
        /// Its name.
        function: &'static str,
        /// Where it should stand.
        slot: usize,
    },
    /// A function failed.
    #[error(transparent)]
    Call(Box<CallFailure>),
    /// The graph to compose contradicts itself.
    #[error("graph `{graph}`, {place}: {problem}")]
    GraphInvalid {
        /// Its name.
        graph: String,
        /// Tensor or node.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// The binary has no graph of that name.
    #[error("there is no graph `{name}` in the binary; it has {}", available.join(", "))]
    GraphMissing {
        /// Asked for.
        name: String,
        /// There.
        available: Vec<String>,
    },
    /// Memory handed over for a tensor is not as long as the tensor.
    #[error("tensor `{tensor}` of graph `{graph}` is {expected} bytes; {found} were given")]
    MemorySize {
        /// Graph.
        graph: String,
        /// Tensor.
        tensor: String,
        /// Bytes it has.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// Memory was handed over for more or fewer tensors than there are.
    #[error("graph `{graph}` has {expected} {what}; memory was given for {found}")]
    MemoryCount {
        /// Graph.
        graph: String,
        /// `inputs` or `outputs`.
        what: &'static str,
        /// It has.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// Bytes that are no context binary, or a damaged one.
    #[error("not a context binary that can be read: {reason}")]
    BinaryInvalid {
        /// What is wrong with it.
        reason: String,
    },
    /// A binary came out for another chip than asked for.
    #[error("asked for chip {asked}, the library made code for chip {made} (v{})", arch.unwrap_or(0))]
    WrongTarget {
        /// By number.
        asked: u32,
        /// By number.
        made: u32,
        /// Its architecture.
        arch: Option<u32>,
    },
    /// A chip that the library makes no code for as its profile describes it.
    #[error(transparent)]
    Chip(#[from] ShimError),
    /// The library answers that it has no such thing, on this platform.
    #[error("the library does not offer {what} on this platform: {reason}")]
    NotOffered {
        /// Which facility.
        what: &'static str,
        /// What it said.
        reason: String,
    },
}

/// A function of the library failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function} failed with {code} ({name}){}: {reason}", node.as_ref().map(|node| format!(" at node `{node}`")).unwrap_or_default())]
pub struct CallFailure {
    /// What it means to a planner.
    pub class: ErrorClass,
    /// Which function, `graphFinalize`.
    pub function: &'static str,
    /// What it returned.
    pub code: u64,
    /// What the library calls that.
    pub name: String,
    /// The node at fault, where it was named.
    pub node: Option<String>,
    /// The operation at fault, `FullyConnected`, where it was named.
    pub op: Option<String>,
    /// The line that says why, or that nothing was said.
    pub reason: String,
    /// Last lines of the library's log.
    pub log: String,
}

/// Phrases of the log at error level and what they mean, the most telling first.
const PHRASES: &[(&str, ErrorClass)] = &[
    ("Shared weights buffer isn't supported", ErrorClass::IncompatibleArtefact),
    ("lack of HMX thread", ErrorClass::IncompatibleArtefact),
    ("Unsupported input/output datatypes", ErrorClass::UnsupportedOp),
    ("None of the combinations match", ErrorClass::UnsupportedOp),
    ("has incorrect", ErrorClass::UnsupportedOp),
    ("mismatching datatypes", ErrorClass::UnsupportedOp),
    // Of an operation that an architecture lacks, sometimes in place of `expected >=`.
    (" for dsp arch v", ErrorClass::UnsupportedOp),
    ("tensor datatype", ErrorClass::UnsupportedOp),
    ("could not create op: ", ErrorClass::UnsupportedOp),
    ("no properties registered for", ErrorClass::UnsupportedOp),
    ("generated: could not create op", ErrorClass::UnsupportedOp),
    ("out of memory", ErrorClass::ResourceLimit),
    ("TCM allocation", ErrorClass::ResourceLimit),
    ("prepare failed", ErrorClass::Unmappable),
];

/// What a code means when the log says nothing that is known. The names are those the library
/// itself gives them.
const CODES: &[(u64, ErrorClass)] = &[
    // SYSTEM_COMMUNICATION, recoverable and not, and HARDWARE_UNAVAILABLE: a restart of the
    // processor's subsystem shows as the first of them, as ONNX Runtime's public provider takes it.
    // Untried: no restart can be had on x86-64.
    (1007, ErrorClass::DeviceLost),
    (1011, ErrorClass::DeviceLost),
    (14002, ErrorClass::DeviceLost),
    // Named MEM_ALLOC, and what every finalize that fails returns.
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
    /// A failure of `function`, with what was logged meanwhile.
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

/// Arguments and calls out of order are the caller's mistake; the rest is not known.
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
    /// What it means to a planner.
    pub fn class(&self) -> ErrorClass {
        match self {
            QnnError::Call(failure) => failure.class,
            QnnError::BinaryInvalid { .. } => ErrorClass::CorruptArtefact,
            QnnError::GraphMissing { .. } => ErrorClass::IncompatibleArtefact,
            QnnError::Chip(error) => error.class(),
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
            QnnError::Chip(error) => error.into(),
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

    fn told(code: u64, log: &[&str]) -> (ErrorClass, String) {
        let lines: Vec<Line> =
            log.iter().map(|text| Line { level: Level::Error, text: (*text).to_owned() }).collect();
        let failure = CallFailure::new("graphFinalize", code, String::new(), &lines);
        (failure.class, failure.reason)
    }

    #[test]
    fn the_log_says_what_the_code_does_not() {
        let unsupported = "graph_prepare.cc:211::ERROR:could not create op: q::QNN_RmsNorm";
        let (found, reason) =
            told(1002, &["something before", unsupported, "RouterX86 graph prepare failed 12"]);
        assert_eq!((found, reason.as_str()), (ErrorClass::UnsupportedOp, unsupported));
        assert_eq!(told(1002, &["RouterX86 graph prepare failed 13"]).0, ErrorClass::Unmappable);
        assert_eq!(told(1002, &[]), (ErrorClass::Unmappable, "the library logged no reason".to_owned()));
        assert_eq!(told(1002, &["the device is out of memory"]).0, ErrorClass::ResourceLimit);
        let shared = "Shared weights buffer isn't supported on this platform";
        assert_eq!(told(1000, &[shared]).0, ErrorClass::IncompatibleArtefact);
        assert_eq!(told(30010, &[]).0, ErrorClass::CorruptArtefact);
        assert_eq!(told(12345, &[]).0, ErrorClass::Internal);
    }

    #[test]
    fn a_lost_device_is_lost_whatever_is_logged_of_it() {
        for code in [1007, 1011, 14002] {
            assert_eq!(told(code, &["could not create op: q::Add"]).0, ErrorClass::DeviceLost);
        }
    }
}
