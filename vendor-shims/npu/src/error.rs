//! Errors of the shims themselves. Each shim defines the errors of its vendor's library.

use shardwright_shim_abi::{Error, ErrorClass};

/// An error of a shim. It is converted to an [`Error`] of the contract with a class that the
/// planner can act on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShimError {
    /// A fact of a chip's profile is wrong.
    #[error("chip `{chip}`: {reason}")]
    WrongFact {
        /// Name of the profile.
        chip: String,
        /// Name of the fact in the profile.
        fact: &'static str,
        /// Why the value is impossible.
        reason: String,
    },
    /// The chip's profile may be right, but the shim cannot generate code for it.
    #[error("chip `{chip}`: {reason}")]
    Unprepared {
        /// Name of the profile.
        chip: String,
        /// Name of the fact that prevents code generation.
        fact: &'static str,
        /// Why the shim cannot generate code.
        reason: String,
    },
    /// The shim does not have this device.
    #[error("no device `{name}`")]
    UnknownDevice {
        name: String,
        /// How the shim's devices are named.
        help: &'static str,
    },
    /// The device cannot run anything on this machine.
    #[error("device `{device}` only compiles on this machine")]
    CompilesOnly {
        device: String,
        /// Where its code can run.
        help: String,
    },
    /// An option's value is invalid.
    #[error("`{name}` is `{value}`, expected {expected}")]
    InvalidValue { name: String, value: String, expected: String },
    /// An entry is invalid, or entries contradict each other.
    #[error("entry `{entry}`: {reason}")]
    InvalidGraph { entry: String, reason: String },
    /// A limit of this shim was exceeded.
    #[error("{limit} is {value}, at most {max} are taken")]
    Limit { limit: &'static str, value: u64, max: u64 },
    /// The artefact is damaged.
    #[error("artefact at byte {offset}: {reason}")]
    CorruptArtefact {
        /// Offset of the damage in the artefact.
        offset: u64,
        reason: String,
    },
    /// The artefact is intact but cannot be used here.
    #[error("{reason}")]
    IncompatibleArtefact {
        /// The target it was compiled for, and the actual device.
        reason: String,
        /// Next step for the user.
        help: String,
    },
    /// The library compiled for another target than requested.
    #[error("asked for {asked}, the compiler made {made}")]
    WrongCode {
        asked: String,
        /// The target that the binary names.
        made: String,
        /// How to select another library.
        help: &'static str,
    },
    /// A run has invalid arguments.
    #[error("{reason}")]
    InvalidRun { reason: String },
    /// The memory cannot be made visible to the device.
    #[error("{what}: {reason}")]
    UnsupportedMemory {
        /// The unsupported feature.
        what: &'static str,
        reason: String,
    },
}

impl ShimError {
    /// Returns the error class of the contract.
    pub fn class(&self) -> ErrorClass {
        match self {
            ShimError::WrongFact { .. }
            | ShimError::Unprepared { .. }
            | ShimError::UnknownDevice { .. }
            | ShimError::CompilesOnly { .. }
            | ShimError::InvalidValue { .. }
            | ShimError::InvalidGraph { .. }
            | ShimError::InvalidRun { .. }
            | ShimError::UnsupportedMemory { .. } => ErrorClass::InvalidArgument,
            ShimError::Limit { .. } => ErrorClass::ResourceLimit,
            ShimError::CorruptArtefact { .. } => ErrorClass::CorruptArtefact,
            ShimError::IncompatibleArtefact { .. } => ErrorClass::IncompatibleArtefact,
            ShimError::WrongCode { .. } => ErrorClass::Internal,
        }
    }

    /// Returns the advice for a `help:` line.
    pub fn help(&self) -> Option<String> {
        Some(match self {
            ShimError::UnknownDevice { help, .. } | ShimError::WrongCode { help, .. } => (*help).to_owned(),
            ShimError::CompilesOnly { help, .. } | ShimError::IncompatibleArtefact { help, .. } => {
                help.clone()
            }
            ShimError::Limit { .. } => {
                "cut the model into smaller shards or use fewer entry points".to_owned()
            }
            ShimError::CorruptArtefact { .. } => "compile the work order again".to_owned(),
            ShimError::UnsupportedMemory { .. } => "bind memory of the process instead".to_owned(),
            ShimError::WrongFact { .. }
            | ShimError::Unprepared { .. }
            | ShimError::InvalidValue { .. }
            | ShimError::InvalidGraph { .. }
            | ShimError::InvalidRun { .. } => {
                return None;
            }
        })
    }
}

impl From<ShimError> for Error {
    fn from(error: ShimError) -> Error {
        let mut out = Error::new(error.class(), error.to_string());
        match &error {
            ShimError::WrongFact { chip, fact, .. } => {
                out = out.detail("chip", chip).detail("fact", fact);
            }
            ShimError::Unprepared { chip, fact, .. } => {
                out = out.detail("chip", chip).detail("fact", fact).detail("unsupported", true);
            }
            ShimError::UnknownDevice { name, .. } => out = out.detail("device", name),
            ShimError::CompilesOnly { device, .. } => out = out.detail("device", device),
            ShimError::InvalidValue { name, .. } => out = out.detail("option", name),
            ShimError::InvalidGraph { entry, .. } => out = out.detail("entry", entry),
            ShimError::Limit { limit, value, max } => {
                out = out.detail("limit", limit).detail("value", value).detail("max", max);
            }
            ShimError::CorruptArtefact { offset, .. } => out = out.detail("offset", offset),
            ShimError::WrongCode { asked, made, .. } => out = out.detail("asked", asked).detail("made", made),
            ShimError::UnsupportedMemory { what, .. } => out = out.detail("memory", what),
            ShimError::IncompatibleArtefact { .. } | ShimError::InvalidRun { .. } => {}
        }
        if let Some(help) = error.help() {
            out = out.detail("help", help);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_class_and_says_what_helps() {
        let text = || "x".to_owned();
        let invalid = ErrorClass::InvalidArgument;
        let cases = [
            (
                ShimError::WrongFact { chip: text(), fact: "x", reason: text() },
                invalid,
                &["chip", "fact"][..],
            ),
            (
                ShimError::Unprepared { chip: text(), fact: "x", reason: text() },
                invalid,
                &["chip", "fact", "unsupported"],
            ),
            (ShimError::UnknownDevice { name: text(), help: "x" }, invalid, &["device", "help"]),
            (ShimError::CompilesOnly { device: text(), help: text() }, invalid, &["device", "help"]),
            (ShimError::InvalidValue { name: text(), value: text(), expected: text() }, invalid, &["option"]),
            (ShimError::InvalidGraph { entry: text(), reason: text() }, invalid, &["entry"]),
            (
                ShimError::Limit { limit: "entries", value: 2, max: 1 },
                ErrorClass::ResourceLimit,
                &["limit", "value", "max", "help"],
            ),
            (
                ShimError::CorruptArtefact { offset: 7, reason: text() },
                ErrorClass::CorruptArtefact,
                &["offset", "help"],
            ),
            (
                ShimError::IncompatibleArtefact { reason: text(), help: text() },
                ErrorClass::IncompatibleArtefact,
                &["help"],
            ),
            (
                ShimError::WrongCode { asked: text(), made: text(), help: "x" },
                ErrorClass::Internal,
                &["asked", "made", "help"],
            ),
            (ShimError::InvalidRun { reason: text() }, invalid, &[]),
            (ShimError::UnsupportedMemory { what: "dma-buf", reason: text() }, invalid, &["memory", "help"]),
        ];
        for (error, class, keys) in cases {
            let converted = Error::from(error.clone());
            assert_eq!(converted.class, class, "{error}");
            let keys_of: Vec<&str> = converted.details.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!(keys_of, keys, "{error}");
        }
    }
}
