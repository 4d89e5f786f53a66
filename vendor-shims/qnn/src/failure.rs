//! What a call into the vendor's library fails with, and what that means.
//!
//! The code a function returns says little: 1002, named after memory, is what every failed
//! preparation returns. So a failure is classified from what the library logged meanwhile, and
//! carries those lines.

use crate::ffi::Version;
use crate::log::{self, Level, Line};
use shardwright_shim_abi as abi;
use shardwright_shim_npu::library::LibraryError;
use std::path::PathBuf;

use shardwright_shim_npu::library::remedy;

/// What functions of this crate that call the library return.
pub type Result<T> = std::result::Result<T, QnnError>;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QnnError {
    /// No library where the rule looks.
    #[error(
        "no Qualcomm library was found: {}",
        remedy(tried, "set SHARDWRIGHT_QNN_LIB to libQnnHtp.so or its folder")
    )]
    LibraryNotFound {
        /// Every place, with what was said there.
        tried: Vec<String>,
    },
    /// The file is there, and the loader does not take it.
    #[error("{} is there and cannot be loaded: {reason}", path.display())]
    NotLoadable {
        /// Which file.
        path: PathBuf,
        /// What the loader said.
        reason: String,
    },
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
    /// A profile says of a chip what the library does not make code for.
    #[error("chip `{chip}`: {reason}")]
    WrongFact {
        /// Name of the profile.
        chip: String,
        /// The fact, as the profile names it.
        fact: &'static str,
        /// Why it cannot be as it is.
        reason: String,
    },
    /// The library makes no code for a chip, whatever its profile says.
    #[error("chip `{chip}`: {reason}")]
    Unprepared {
        /// Name of the profile.
        chip: String,
        /// The fact that is the reason, as the profile names it.
        fact: &'static str,
        /// What the library answered.
        reason: String,
    },
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
    /// What it means.
    pub kind: FailureKind,
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

/// What a failure means to a planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// An operation, type or encoding that the processor has not, or one that by itself finds no
    /// place.
    UnsupportedOp,
    /// Each operation is known; together they found no place.
    Unmappable,
    /// Memory ran out, or a size is beyond a limit.
    ResourceLimit,
    /// A binary for another processor, version or platform.
    Incompatible,
    /// A damaged binary.
    Corrupt,
    /// The processor went away; handles made before are dead.
    DeviceLost,
    /// The caller's mistake.
    InvalidArgument,
    /// Not known.
    Internal,
}

impl FailureKind {
    /// The class it has at the contract.
    pub const fn class(self) -> abi::ErrorClass {
        match self {
            FailureKind::UnsupportedOp => abi::ErrorClass::UnsupportedOp,
            FailureKind::Unmappable => abi::ErrorClass::Unmappable,
            FailureKind::ResourceLimit => abi::ErrorClass::ResourceLimit,
            FailureKind::Incompatible => abi::ErrorClass::IncompatibleArtefact,
            FailureKind::Corrupt => abi::ErrorClass::CorruptArtefact,
            FailureKind::DeviceLost => abi::ErrorClass::DeviceLost,
            FailureKind::InvalidArgument => abi::ErrorClass::InvalidArgument,
            FailureKind::Internal => abi::ErrorClass::Internal,
        }
    }
}

/// Phrases of the log at error level and what they mean, the most telling first.
const PHRASES: &[(&str, FailureKind)] = &[
    ("Shared weights buffer isn't supported", FailureKind::Incompatible),
    ("lack of HMX thread", FailureKind::Incompatible),
    ("Unsupported input/output datatypes", FailureKind::UnsupportedOp),
    ("None of the combinations match", FailureKind::UnsupportedOp),
    ("has incorrect", FailureKind::UnsupportedOp),
    ("mismatching datatypes", FailureKind::UnsupportedOp),
    // Of an operation that an architecture lacks, sometimes in place of `expected >=`.
    (" for dsp arch v", FailureKind::UnsupportedOp),
    ("tensor datatype", FailureKind::UnsupportedOp),
    ("could not create op: ", FailureKind::UnsupportedOp),
    ("no properties registered for", FailureKind::UnsupportedOp),
    ("generated: could not create op", FailureKind::UnsupportedOp),
    ("out of memory", FailureKind::ResourceLimit),
    ("TCM allocation", FailureKind::ResourceLimit),
    ("prepare failed", FailureKind::Unmappable),
];

/// What a code means when the log says nothing that is known. The names are those the library
/// itself gives them.
const CODES: &[(u64, FailureKind)] = &[
    // SYSTEM_COMMUNICATION, recoverable and not, and HARDWARE_UNAVAILABLE: a restart of the
    // processor's subsystem shows as the first of them, as ONNX Runtime's public provider takes it.
    // Untried: no restart can be had on x86-64.
    (1007, FailureKind::DeviceLost),
    (1011, FailureKind::DeviceLost),
    (14002, FailureKind::DeviceLost),
    // Named MEM_ALLOC, and what every finalize that fails returns.
    (1002, FailureKind::Unmappable),
    (1006, FailureKind::Incompatible),
    (1008, FailureKind::Incompatible),
    (1010, FailureKind::ResourceLimit),
    (3110, FailureKind::UnsupportedOp),
    (4005, FailureKind::UnsupportedOp),
    (5004, FailureKind::Incompatible),
    (5005, FailureKind::Incompatible),
    (5008, FailureKind::Incompatible),
    (5011, FailureKind::Incompatible),
    (6021, FailureKind::Unmappable),
    (6022, FailureKind::Unmappable),
    (7004, FailureKind::UnsupportedOp),
    (7005, FailureKind::UnsupportedOp),
    (30001, FailureKind::Corrupt),
    (30010, FailureKind::Corrupt),
];

impl CallFailure {
    /// A failure of `function`, with what was logged meanwhile.
    pub(crate) fn new(function: &'static str, code: u64, name: String, lines: &[Line]) -> CallFailure {
        let errors = || lines.iter().filter(|line| line.level == Level::Error);
        let lost = CODES.iter().any(|(lost, kind)| *lost == code && *kind == FailureKind::DeviceLost);
        let phrase = PHRASES.iter().filter(|_| !lost).find_map(|(phrase, kind)| {
            errors().find(|line| line.text.contains(phrase)).map(|line| (*kind, &line.text))
        });
        let kind = match phrase {
            Some((kind, _)) => kind,
            None => CODES
                .iter()
                .find(|(known, _)| *known == code)
                .map_or_else(|| by_range(code), |(_, kind)| *kind),
        };
        let reason = phrase.map(|(_, text)| text.clone()).or_else(|| Some(errors().next()?.text.clone()));
        CallFailure {
            kind,
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
fn by_range(code: u64) -> FailureKind {
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
        | 14001 => FailureKind::InvalidArgument,
        _ => FailureKind::Internal,
    }
}

impl From<LibraryError> for QnnError {
    fn from(error: LibraryError) -> QnnError {
        match error {
            LibraryError::NotFound { tried } => QnnError::LibraryNotFound { tried },
            LibraryError::NotLoadable { path, reason } => QnnError::NotLoadable { path, reason },
        }
    }
}

impl QnnError {
    /// What it means to a planner.
    pub fn kind(&self) -> FailureKind {
        match self {
            QnnError::Call(failure) => failure.kind,
            QnnError::BinaryInvalid { .. } => FailureKind::Corrupt,
            QnnError::GraphMissing { .. } => FailureKind::Incompatible,
            QnnError::MemorySize { .. } | QnnError::MemoryCount { .. } | QnnError::LibraryNotFound { .. } => {
                FailureKind::InvalidArgument
            }
            QnnError::NotLoadable { .. }
            | QnnError::NotAQnnLibrary { .. }
            | QnnError::NoHtpProvider { .. }
            | QnnError::WrongFact { .. }
            | QnnError::Unprepared { .. }
            | QnnError::VersionOutOfRange { .. } => FailureKind::InvalidArgument,
            QnnError::FunctionMissing { .. }
            | QnnError::GraphInvalid { .. }
            | QnnError::NotOffered { .. }
            | QnnError::WrongTarget { .. } => FailureKind::Internal,
        }
    }
}

impl From<QnnError> for abi::Error {
    fn from(error: QnnError) -> abi::Error {
        let mut answer = abi::Error::new(error.kind().class(), error.to_string());
        if let QnnError::WrongFact { chip, fact, .. } = &error {
            answer = answer.detail("chip", chip).detail("fact", fact);
        }
        if let QnnError::Unprepared { chip, fact, .. } = &error {
            answer = answer.detail("chip", chip).detail("fact", fact).detail("unsupported", true);
        }
        if let QnnError::LibraryNotFound { tried } = &error {
            answer = answer.detail("looked at", tried.join(", "));
        }
        if let QnnError::Call(failure) = error {
            answer = answer.vendor_code(failure.code as i64).detail("function", failure.function);
            if let Some(node) = failure.node {
                answer = answer.detail("node", node);
            }
            if let Some(op) = failure.op {
                answer = answer.detail("op", op);
            }
            if !failure.log.is_empty() {
                answer = answer.log_tail(failure.log);
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(code: u64, log: &[&str]) -> (FailureKind, String) {
        let lines: Vec<Line> =
            log.iter().map(|text| Line { level: Level::Error, text: (*text).to_owned() }).collect();
        let failure = CallFailure::new("graphFinalize", code, String::new(), &lines);
        (failure.kind, failure.reason)
    }

    #[test]
    fn the_log_says_what_the_code_does_not() {
        let unsupported = "graph_prepare.cc:211::ERROR:could not create op: q::QNN_RmsNorm";
        let (found, reason) =
            told(1002, &["something before", unsupported, "RouterX86 graph prepare failed 12"]);
        assert_eq!((found, reason.as_str()), (FailureKind::UnsupportedOp, unsupported));
        assert_eq!(told(1002, &["RouterX86 graph prepare failed 13"]).0, FailureKind::Unmappable);
        assert_eq!(told(1002, &[]), (FailureKind::Unmappable, "the library logged no reason".to_owned()));
        assert_eq!(told(1002, &["the device is out of memory"]).0, FailureKind::ResourceLimit);
        let shared = "Shared weights buffer isn't supported on this platform";
        assert_eq!(told(1000, &[shared]).0, FailureKind::Incompatible);
        assert_eq!(told(30010, &[]).0, FailureKind::Corrupt);
        assert_eq!(told(12345, &[]).0, FailureKind::Internal);
    }

    #[test]
    fn a_lost_device_is_lost_whatever_is_logged_of_it() {
        for code in [1007, 1011, 14002] {
            assert_eq!(told(code, &["could not create op: q::Add"]).0, FailureKind::DeviceLost);
        }
    }
}
