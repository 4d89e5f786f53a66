use shardwright_shim_abi::{Error, ErrorClass};

/// An error of the CPU shim. It converts into an [`Error`] of the contract, with a class that
/// planners can act on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// A valid graph that this shim cannot run.
    #[error("{what} `{name}`: {reason}")]
    Unsupported {
        /// Kind of the object: `node`, `input`, …
        what: &'static str,
        name: String,
        reason: String,
        /// Decoder layer, if known.
        layer: Option<u32>,
    },
    /// A graph that contradicts itself.
    #[error("entry `{entry}`: {reason}")]
    InvalidGraph { entry: String, reason: String },
    /// A weight whose bytes do not fit its shape.
    #[error("weight `{name}`: {reason}")]
    InvalidWeight { name: String, reason: String },
    /// A size above this shim's limit.
    #[error("{limit} is {value}, at most {max} are taken")]
    Limit { limit: &'static str, value: u64, max: u64 },
    /// An artefact with damaged bytes.
    #[error("artefact at byte {offset}: {reason}")]
    CorruptArtefact { offset: u64, reason: String },
    /// An artefact of another format.
    #[error("artefact format {found}, this shim reads {expected}")]
    IncompatibleArtefact {
        found: u32,
        /// Format that this shim reads.
        expected: u32,
    },
    /// A run with impossible arguments.
    #[error("{reason}")]
    InvalidRun { reason: String },
    /// A device this shim does not have.
    #[error("no device `{name}`")]
    UnknownDevice { name: String },
    /// A flag or option value outside its range.
    #[error("`{name}` is `{value}`, expected {expected}")]
    InvalidValue {
        /// Flag or option.
        name: String,
        value: String,
        /// Valid values.
        expected: String,
    },
    /// The system could not provide memory.
    #[error("no memory for {bytes} bytes of {what}")]
    OutOfMemory {
        /// Purpose of the memory.
        what: &'static str,
        bytes: u64,
    },
}

impl CpuError {
    /// Returns the error class of the contract.
    pub fn class(&self) -> ErrorClass {
        match self {
            CpuError::Unsupported { .. } => ErrorClass::UnsupportedOp,
            CpuError::InvalidGraph { .. }
            | CpuError::InvalidWeight { .. }
            | CpuError::InvalidRun { .. }
            | CpuError::UnknownDevice { .. }
            | CpuError::InvalidValue { .. } => ErrorClass::InvalidArgument,
            CpuError::Limit { .. } | CpuError::OutOfMemory { .. } => ErrorClass::ResourceLimit,
            CpuError::CorruptArtefact { .. } => ErrorClass::CorruptArtefact,
            CpuError::IncompatibleArtefact { .. } => ErrorClass::IncompatibleArtefact,
        }
    }

    /// Returns a suggestion for a `help:` line.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            CpuError::Unsupported { .. } => Some("decompose the node into primitives"),
            CpuError::CorruptArtefact { .. } => Some("compile the work order again"),
            CpuError::IncompatibleArtefact { .. } => Some("compile the work order again with this shim"),
            CpuError::Limit { .. } => Some("cut the model into smaller shards or use fewer rows"),
            CpuError::OutOfMemory { .. } => Some("use a smaller context, fewer rows or fewer threads"),
            CpuError::UnknownDevice { .. } => Some("the only device of this shim is `cpu`"),
            CpuError::InvalidGraph { .. }
            | CpuError::InvalidWeight { .. }
            | CpuError::InvalidRun { .. }
            | CpuError::InvalidValue { .. } => None,
        }
    }
}

impl From<CpuError> for Error {
    fn from(error: CpuError) -> Error {
        let mut out = Error::new(error.class(), error.to_string());
        match &error {
            CpuError::Unsupported { what, name, layer, .. } => {
                out = out.detail(*what, name);
                if let Some(layer) = layer {
                    out = out.detail("layer", layer);
                }
            }
            CpuError::Limit { limit, value, max } => {
                out = out.detail("limit", limit).detail("value", value).detail("max", max);
            }
            CpuError::OutOfMemory { bytes, .. } => {
                out = out.detail("limit", "memory-bytes").detail("value", bytes)
            }
            CpuError::InvalidGraph { entry, .. } => out = out.detail("entry", entry),
            CpuError::InvalidWeight { name, .. } => out = out.detail("weight", name),
            CpuError::CorruptArtefact { offset, .. } => out = out.detail("offset", offset),
            _ => {}
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
        let cases = [
            (
                CpuError::Unsupported { what: "node", name: text(), reason: text(), layer: Some(3) },
                ErrorClass::UnsupportedOp,
                &["node", "layer", "help"][..],
            ),
            (
                CpuError::InvalidGraph { entry: text(), reason: text() },
                ErrorClass::InvalidArgument,
                &["entry"],
            ),
            (
                CpuError::InvalidWeight { name: text(), reason: text() },
                ErrorClass::InvalidArgument,
                &["weight"],
            ),
            (
                CpuError::Limit { limit: "ops", value: 2, max: 1 },
                ErrorClass::ResourceLimit,
                &["limit", "value", "max", "help"],
            ),
            (
                CpuError::CorruptArtefact { offset: 7, reason: text() },
                ErrorClass::CorruptArtefact,
                &["offset", "help"],
            ),
            (
                CpuError::IncompatibleArtefact { found: 2, expected: 1 },
                ErrorClass::IncompatibleArtefact,
                &["help"],
            ),
            (CpuError::InvalidRun { reason: text() }, ErrorClass::InvalidArgument, &[]),
            (CpuError::UnknownDevice { name: text() }, ErrorClass::InvalidArgument, &["help"]),
            (
                CpuError::InvalidValue { name: text(), value: text(), expected: text() },
                ErrorClass::InvalidArgument,
                &[],
            ),
            (
                CpuError::OutOfMemory { what: "activations", bytes: 9 },
                ErrorClass::ResourceLimit,
                &["limit", "value", "help"],
            ),
        ];
        for (error, class, keys) in cases {
            let converted = Error::from(error.clone());
            assert_eq!(converted.class, class, "{error}");
            let actual: Vec<&str> = converted.details.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!(actual, keys, "{error}");
            assert_eq!(error.help().is_some(), keys.contains(&"help"));
        }
    }
}
