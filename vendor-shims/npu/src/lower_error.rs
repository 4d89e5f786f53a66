//! Why an entry cannot become a graph of a compiler.

use shardwright_shim_abi::{Error, ErrorClass};

/// Why an entry cannot become a graph of the compiler.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LowerError {
    /// An operation that `check` refuses.
    #[error("{}`{node}` is not supported: {reason}", of_layer(*layer))]
    Unsupported {
        /// The node.
        node: String,
        /// Its layer.
        layer: Option<u32>,
        /// The reason.
        reason: String,
    },
    /// A port that this shim cannot bind.
    #[error("port `{port}`: {reason}")]
    UnsupportedPort {
        /// The port.
        port: String,
        /// The reason.
        reason: String,
    },
    /// Stored numbers that encode nothing, or something outside the promised format.
    #[error("{}weight `{weight}`: {reason}", of_layer(*layer))]
    InvalidEncoding {
        /// The weight.
        weight: String,
        /// The layer of the node that reads it.
        layer: Option<u32>,
        /// The reason.
        reason: String,
    },
    /// An entry that contradicts itself.
    #[error("entry `{entry}`: {reason}")]
    InvalidGraph {
        /// The entry.
        entry: String,
        /// The contradiction.
        reason: String,
    },
    /// More than one graph may hold.
    #[error("{limit} is {value}, at most {max} are taken")]
    TooLarge {
        /// The limit.
        limit: &'static str,
        /// The requested value.
        value: u64,
        /// The most.
        max: u64,
    },
}

fn of_layer(layer: Option<u32>) -> String {
    layer.map(|layer| format!("layer {layer}: ")).unwrap_or_default()
}

impl LowerError {
    /// Class of the contract.
    pub fn class(&self) -> ErrorClass {
        match self {
            LowerError::Unsupported { .. } | LowerError::UnsupportedPort { .. } => ErrorClass::UnsupportedOp,
            LowerError::InvalidEncoding { .. } | LowerError::InvalidGraph { .. } => {
                ErrorClass::InvalidArgument
            }
            LowerError::TooLarge { .. } => ErrorClass::ResourceLimit,
        }
    }

    /// Advice.
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
