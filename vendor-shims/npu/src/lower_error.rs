//! Errors of lowering an entry to a compiler's graph.

use shardwright_shim_abi::{Error, ErrorClass};

/// The reason why an entry cannot be lowered to the compiler's graph.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LowerError {
    /// `check` refuses an operation.
    #[error("{}`{node}` is not supported: {reason}", of_layer(*layer))]
    Unsupported { node: String, layer: Option<u32>, reason: String },
    /// The shim cannot bind a port.
    #[error("port `{port}`: {reason}")]
    UnsupportedPort { port: String, reason: String },
    /// The stored numbers of a weight are invalid or outside the promised format.
    #[error("{}weight `{weight}`: {reason}", of_layer(*layer))]
    InvalidEncoding {
        weight: String,
        /// Layer of the node that reads the weight.
        layer: Option<u32>,
        reason: String,
    },
    /// The entry contradicts itself.
    #[error("entry `{entry}`: {reason}")]
    InvalidGraph { entry: String, reason: String },
    /// The entry exceeds a limit of a graph.
    #[error("{limit} is {value}, at most {max} are taken")]
    TooLarge { limit: &'static str, value: u64, max: u64 },
}

fn of_layer(layer: Option<u32>) -> String {
    layer.map(|layer| format!("layer {layer}: ")).unwrap_or_default()
}

impl LowerError {
    /// Returns the error class of the contract.
    pub fn class(&self) -> ErrorClass {
        match self {
            LowerError::Unsupported { .. } | LowerError::UnsupportedPort { .. } => ErrorClass::UnsupportedOp,
            LowerError::InvalidEncoding { .. } | LowerError::InvalidGraph { .. } => {
                ErrorClass::InvalidArgument
            }
            LowerError::TooLarge { .. } => ErrorClass::ResourceLimit,
        }
    }

    /// Returns the advice for a `help:` line.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            LowerError::Unsupported { .. } => Some("legalise the entry with this shim's `check` first"),
            LowerError::UnsupportedPort { .. } => {
                Some("attention and rotary embedding in their lower forms read tables in place of positions")
            }
            LowerError::InvalidEncoding { .. } => Some("quantise the weight again"),
            LowerError::InvalidGraph { .. } => None,
            LowerError::TooLarge { .. } => Some("cut the model into smaller shards"),
        }
    }
}

impl From<LowerError> for Error {
    fn from(error: LowerError) -> Error {
        let mut out = Error::new(error.class(), error.to_string());
        let layer = match &error {
            LowerError::Unsupported { node, layer, .. } => {
                out = out.detail("node", node);
                *layer
            }
            LowerError::InvalidEncoding { weight, layer, .. } => {
                out = out.detail("weight", weight);
                *layer
            }
            LowerError::UnsupportedPort { port, .. } => {
                out = out.detail("port", port);
                None
            }
            LowerError::InvalidGraph { entry, .. } => {
                out = out.detail("entry", entry);
                None
            }
            LowerError::TooLarge { limit, value, max } => {
                out = out.detail("limit", limit).detail("value", value).detail("max", max);
                None
            }
        };
        if let Some(layer) = layer {
            out = out.detail("layer", layer);
        }
        match error.help() {
            Some(help) => out.detail("help", help),
            None => out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_what_is_at_fault() {
        let text = || "x".to_owned();
        let cases = [
            (
                LowerError::Unsupported { node: text(), layer: Some(3), reason: text() },
                "layer 3: `x` is not supported: x",
                ErrorClass::UnsupportedOp,
                &["node", "layer", "help"][..],
            ),
            (
                LowerError::UnsupportedPort { port: text(), reason: text() },
                "port `x`: x",
                ErrorClass::UnsupportedOp,
                &["port", "help"],
            ),
            (
                LowerError::InvalidEncoding { weight: text(), layer: None, reason: text() },
                "weight `x`: x",
                ErrorClass::InvalidArgument,
                &["weight", "help"],
            ),
            (
                LowerError::InvalidGraph { entry: text(), reason: text() },
                "entry `x`: x",
                ErrorClass::InvalidArgument,
                &["entry"],
            ),
            (
                LowerError::TooLarge { limit: "ops", value: 2, max: 1 },
                "ops is 2, at most 1 are taken",
                ErrorClass::ResourceLimit,
                &["limit", "value", "max", "help"],
            ),
        ];
        for (error, message, class, keys) in cases {
            let converted = Error::from(error);
            assert_eq!((converted.message.as_str(), converted.class), (message, class));
            let keys_of: Vec<&str> = converted.details.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!(keys_of, keys);
        }
    }
}
