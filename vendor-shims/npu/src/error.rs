//! Errors of the shims themselves. Errors reported by a vendor's library are defined in its shim.

use shardwright_shim_abi::{Error, ErrorClass};

/// Why the shim refuses or fails. Becomes an [`Error`] of the contract with a class a planner can
/// act on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShimError {
    /// A fact of a chip's profile that is not so.
    #[error("chip `{chip}`: {reason}")]
    WrongFact {
        /// Name of the profile.
        chip: String,
        /// The fact, as the profile names it.
        fact: &'static str,
        /// Why it cannot be as it is.
        reason: String,
    },
    /// A chip whose profile may be right, but for which no code is generated.
    #[error("chip `{chip}`: {reason}")]
    Unprepared {
        /// Name of the profile.
        chip: String,
        /// The fact that is the reason, as the profile names it.
        fact: &'static str,
        /// Why no code is made for it.
        reason: String,
    },
    /// A device this shim does not have.
    #[error("no device `{name}`")]
    UnknownDevice {
        /// The name.
        name: String,
        /// How the shim's devices are named.
        help: &'static str,
    },
    /// A device that cannot run anything on this machine.
    #[error("device `{device}` only compiles on this machine")]
    CompilesOnly {
        /// The device.
        device: String,
        /// Where its code can run.
        help: String,
    },
    /// An option outside its range.
    #[error("`{name}` is `{value}`, expected {expected}")]
    InvalidValue {
        /// The option.
        name: String,
        /// The rejected value.
        value: String,
        /// Legal values.
        expected: String,
    },
    /// Entries that contradict each other.
    #[error("entry `{entry}`: {reason}")]
    InvalidGraph {
        /// The entry.
        entry: String,
        /// The contradiction.
        reason: String,
    },
    /// A limit of this shim was exceeded.
    #[error("{limit} is {value}, at most {max} are taken")]
    Limit {
        /// The limit.
        limit: &'static str,
        /// The requested value.
        value: u64,
        /// The most.
        max: u64,
    },
    /// Damaged bytes.
    #[error("artefact at byte {offset}: {reason}")]
    CorruptArtefact {
        /// Where.
        offset: u64,
        /// The reason.
        reason: String,
    },
    /// An undamaged artefact that cannot be used here.
    #[error("{reason}")]
    IncompatibleArtefact {
        /// What it was compiled for, and what this device is.
        reason: String,
        /// Advice.
        help: String,
    },
    /// The library compiled for another target than requested.
    #[error("asked for {asked}, the compiler made {made}")]
    WrongCode {
        /// The requested target.
        asked: String,
        /// The target that the binary names.
        made: String,
        /// How another library is named.
        help: &'static str,
    },
    /// A run with impossible arguments.
    #[error("{reason}")]
    InvalidRun {
        /// The reason.
        reason: String,
    },
    /// Memory that cannot be made visible to the device.
    #[error("{what}: {reason}")]
    UnsupportedMemory {
        /// The missing feature.
        what: &'static str,
        /// Why not.
        reason: String,
    },
}

impl ShimError {
    /// Class of the contract.
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

    /// Advice, for a `help:` line.
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
