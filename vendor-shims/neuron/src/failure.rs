//! Errors of opening and calling the vendor's library, and their error classes for the planner.

use std::path::PathBuf;

use shardwright_neuron_adapter::{RuntimeVersion, result};
use shardwright_shim_abi::{self as abi, ErrorClass};
pub use shardwright_shim_npu::library::LibraryError;

/// Result of the functions of this crate that call the library.
pub type Result<T> = std::result::Result<T, NeuronError>;

/// Advice if no library was found. Places next to the program are not searched.
const HOW_TO_NAME_IT: &str =
    "set SHARDWRIGHT_NEURON_LIB to a Neuron adapter, or put libneuron_adapter.so next to the shim";

/// An error of the vendor's library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NeuronError {
    /// No library was found in the searched places, or the loader rejects it.
    #[error("{}", .0.of_vendor("MediaTek", HOW_TO_NAME_IT))]
    Library(#[from] LibraryError),
    /// The file is a library, but not a Neuron adapter.
    #[error("{} is not a Neuron adapter: it has no symbol `{symbol}`", path.display())]
    NotAnAdapter {
        path: PathBuf,
        /// A symbol that every Neuron adapter exports.
        symbol: &'static str,
    },
    /// A required function is missing.
    #[error("{} (version {version}) has no function `{function}`", path.display())]
    FunctionMissing {
        path: PathBuf,
        /// Version of the adapter.
        version: RuntimeVersion,
        /// Name of the missing symbol.
        function: &'static str,
    },
    /// A function of the library failed.
    #[error(transparent)]
    Call(Box<CallFailure>),
    /// The compiler reported success but returned an empty network.
    #[error("version {version} finished `{graph}`, but returned a compiled network of {bytes} bytes")]
    EmptyNetwork {
        /// Version of the adapter.
        version: RuntimeVersion,
        /// Name of the compiled graph.
        graph: String,
        /// Reported size, which is zero.
        bytes: u64,
    },
    /// Memory starts at an address or offset from which the hardware cannot read.
    #[error("{what} begins at {at}, which is not a multiple of {alignment}")]
    Misaligned {
        /// The object, and whether its address or offset is misaligned.
        what: String,
        /// The misaligned address or offset.
        at: u64,
        alignment: u64,
    },
    /// A value cannot be passed to the library, such as a text with a zero byte or a size beyond
    /// the interface's range.
    #[error("{what} cannot be passed to the library: {reason}")]
    Impossible {
        /// The object that cannot be passed.
        what: String,
        reason: String,
    },
}

/// A failed call of a library function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function} failed with {code} ({}), adapter version {version}{}{}",
    result::name(*code).unwrap_or("an undocumented code"), about(subject), said(message))]
pub struct CallFailure {
    /// Error class for the planner.
    pub class: ErrorClass,
    /// Name of the function.
    pub function: &'static str,
    /// Code that the function returned.
    pub code: i32,
    /// Version of the adapter.
    pub version: RuntimeVersion,
    /// The operand, operation or graph that the call concerned.
    pub subject: Option<String>,
    /// The library's message. Empty if there is none.
    pub message: String,
    /// The last calls and their return codes.
    pub log: String,
    /// Details for the planner, as keys and values.
    pub details: Vec<(String, String)>,
}

fn about(subject: &Option<String>) -> String {
    subject.as_ref().map(|subject| format!(", {subject}")).unwrap_or_default()
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

/// Returns the error class for a function's return code.
pub fn class_of(function: &str, code: i32) -> ErrorClass {
    let is_restore = function.starts_with("NeuronModel_restore");
    let is_model = function.starts_with("NeuronModel_");
    match code {
        result::UNMAPPABLE => ErrorClass::Unmappable,
        result::OUT_OF_MEMORY
        | result::RESOURCE_EXHAUSTED_TRANSIENT
        | result::RESOURCE_EXHAUSTED_PERSISTENT => ErrorClass::ResourceLimit,
        result::UNAVAILABLE_DEVICE | result::DEAD_OBJECT => ErrorClass::DeviceLost,
        result::MISSED_DEADLINE_TRANSIENT | result::MISSED_DEADLINE_PERSISTENT => ErrorClass::Deadline,
        result::BAD_VERSION => ErrorClass::IncompatibleArtefact,
        result::BAD_DATA if is_restore => ErrorClass::IncompatibleArtefact,
        result::BAD_DATA if is_model => ErrorClass::UnsupportedOp,
        result::OP_FAILED if !function.starts_with("NeuronExecution_") => ErrorClass::UnsupportedOp,
        result::OUTPUT_INSUFFICIENT_SIZE => ErrorClass::InvalidArgument,
        _ => ErrorClass::Internal,
    }
}

impl NeuronError {
    /// Returns the error class for the planner.
    pub fn class(&self) -> ErrorClass {
        match self {
            NeuronError::Call(failure) => failure.class,
            // The whole graph is unusable, although the library reported success.
            NeuronError::EmptyNetwork { .. } => ErrorClass::Unmappable,
            NeuronError::Library(_)
            | NeuronError::NotAnAdapter { .. }
            | NeuronError::FunctionMissing { .. }
            | NeuronError::Misaligned { .. }
            | NeuronError::Impossible { .. } => ErrorClass::InvalidArgument,
        }
    }

    /// Returns the advice for a `help:` line.
    pub fn help(&self) -> Option<&'static str> {
        Some(match self {
            NeuronError::Library(_) | NeuronError::NotAnAdapter { .. } => {
                "`cargo xtask build` builds a simulator of the library; a phone has the vendor's own"
            }
            NeuronError::FunctionMissing { .. } => {
                "set the option `library` to another version of the adapter"
            }
            NeuronError::EmptyNetwork { .. } => "use smaller shards, or try another version of the adapter",
            NeuronError::Misaligned { .. } => "let the shim allocate the memory, or align it to 64 bytes",
            NeuronError::Call(failure) => match failure.class {
                ErrorClass::Unmappable => "use smaller shards: operations are limited, not bytes of weights",
                ErrorClass::IncompatibleArtefact => "compile the work order again with this adapter",
                _ => return None,
            },
            NeuronError::Impossible { .. } => return None,
        })
    }
}

impl From<NeuronError> for abi::Error {
    fn from(error: NeuronError) -> abi::Error {
        let mut answer = abi::Error::new(error.class(), error.to_string());
        if let Some(help) = error.help() {
            answer = answer.detail("help", help);
        }
        match error {
            NeuronError::Call(failure) => {
                answer = answer
                    .vendor_code(failure.code.into())
                    .detail("function", failure.function)
                    .detail("code", result::name(failure.code).unwrap_or("unknown"))
                    .detail("adapter-version", failure.version);
                for (key, value) in failure.details {
                    answer = answer.detail(key, value);
                }
                let log = match failure.message.is_empty() {
                    true => failure.log,
                    false => format!("{}\n{}", failure.log, failure.message),
                };
                if log.is_empty() { answer } else { answer.log_tail(log) }
            }
            NeuronError::FunctionMissing { function, version, .. } => {
                answer.detail("function", function).detail("adapter-version", version)
            }
            NeuronError::EmptyNetwork { version, .. } => answer.detail("adapter-version", version),
            NeuronError::Library(LibraryError::NotFound { tried }) => {
                answer.detail("looked at", tried.join(", "))
            }
            _ => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_mean_what_was_reported_of_them() {
        for (function, code, expected) in [
            ("NeuronCompilation_finish", 6, ErrorClass::Unmappable),
            ("NeuronCompilation_finish", 1, ErrorClass::ResourceLimit),
            ("NeuronCompilation_finish", 5, ErrorClass::UnsupportedOp),
            ("NeuronExecution_compute", 5, ErrorClass::Internal),
            ("NeuronExecution_compute", 10, ErrorClass::DeviceLost),
            ("NeuronExecution_compute", 15, ErrorClass::DeviceLost),
            ("NeuronExecution_compute", 11, ErrorClass::Deadline),
            ("NeuronExecution_setOutput", 9, ErrorClass::InvalidArgument),
            ("NeuronModel_restoreFromCompiledNetwork", 4, ErrorClass::IncompatibleArtefact),
            ("NeuronModel_restoreFromCompiledNetwork", 8, ErrorClass::IncompatibleArtefact),
            ("NeuronModel_setOperandSymmPerChannelQuantParams", 4, ErrorClass::UnsupportedOp),
            ("NeuronCompilation_setPriority", 4, ErrorClass::Internal),
            ("NeuronModel_create", 77, ErrorClass::Internal),
        ] {
            assert_eq!(class_of(function, code), expected, "{function} {code}");
        }
    }

    #[test]
    fn every_failure_says_what_failed_in_which_version() {
        let version = RuntimeVersion::new(8, 2, 28);
        let path = || PathBuf::from("/x/libneuron_adapter.so");
        let failure = |class, code| {
            NeuronError::Call(Box::new(CallFailure {
                class,
                function: "NeuronCompilation_finish",
                code,
                version,
                subject: Some("graph `g`".to_owned()),
                message: "no plan".to_owned(),
                log: "NeuronModel_finish: 0".to_owned(),
                details: vec![("limit".to_owned(), "ops".to_owned())],
            }))
        };
        let invalid = ErrorClass::InvalidArgument;
        let cases = [
            (
                NeuronError::Library(LibraryError::NotFound { tried: vec!["x: not set".to_owned(); 3] }),
                invalid,
                &["set SHARDWRIGHT_NEURON_LIB", "or put libneuron_adapter.so next to the shim"][..],
            ),
            (
                NeuronError::Library(LibraryError::NotLoadable { path: path(), reason: "bad".to_owned() }),
                invalid,
                &["libneuron", "bad"],
            ),
            (
                NeuronError::NotAnAdapter { path: path(), symbol: "Neuron_getVersion" },
                invalid,
                &["getVersion"],
            ),
            (
                NeuronError::FunctionMissing { path: path(), version, function: "NeuronModel_finish" },
                invalid,
                &["NeuronModel_finish", "8.2.28"],
            ),
            (
                failure(ErrorClass::Unmappable, 6),
                ErrorClass::Unmappable,
                &["NEURON_UNMAPPABLE", "8.2.28", "`g`", "no plan"],
            ),
            (failure(ErrorClass::Internal, 99), ErrorClass::Internal, &["99", "undocumented"]),
            (
                NeuronError::EmptyNetwork { version, graph: "g".to_owned(), bytes: 0 },
                ErrorClass::Unmappable,
                &["0 bytes", "8.2.28"],
            ),
            (
                NeuronError::Misaligned { what: "offset of x".to_owned(), at: 3, alignment: 64 },
                invalid,
                &["3", "64"],
            ),
            (NeuronError::Impossible { what: "x".to_owned(), reason: "long".to_owned() }, invalid, &["long"]),
        ];
        for (error, class, parts) in cases {
            let reported = abi::Error::from(error);
            assert_eq!(reported.class, class, "{reported}");
            for part in parts {
                assert!(reported.message.contains(part), "`{part}` not in `{reported}`");
            }
        }
        let reported = abi::Error::from(failure(ErrorClass::Unmappable, 6));
        assert_eq!(reported.vendor_code, 6);
        let log = reported.log_tail.expect("a log");
        assert!(log.contains("NeuronModel_finish: 0") && log.contains("no plan"), "{log}");
        for key in ["function", "code", "adapter-version", "limit", "help"] {
            assert!(reported.details.iter().any(|(existing, _)| existing == key), "{key}");
        }
    }
}
