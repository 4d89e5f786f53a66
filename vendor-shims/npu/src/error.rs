//! Constructors of errors that several shims return. Each shim defines the errors of calls into its
//! vendor's library.

use shardwright_shim_abi::{Error, NodeView};

/// Returns the error for a fact of a chip's profile with an impossible value.
pub fn wrong_fact(chip: &str, fact: &str, reason: &str) -> Error {
    Error::invalid_argument(format!("chip `{chip}`: {reason}")).detail("chip", chip).detail("fact", fact)
}

/// Returns the error for a chip whose profile may be right, but for which the shim cannot generate
/// code because of this fact.
pub fn unprepared(chip: &str, fact: &str, reason: &str) -> Error {
    wrong_fact(chip, fact, reason).detail("unsupported", true)
}

/// Returns the error for a device that only compiles on this machine. `help` states where its code
/// can run.
pub fn compiles_only(device: &str, help: &str) -> Error {
    Error::invalid_argument(format!("device `{device}` only compiles on this machine"))
        .detail("device", device)
        .help(help)
}

/// Returns the error for a compiler that made code for another target than requested.
pub fn wrong_code(expected: &str, made: &str, help: &str) -> Error {
    Error::internal(format!("requested code for {expected}, the compiler made code for {made}"))
        .detail("asked", expected)
        .detail("made", made)
        .help(help)
}

/// Returns the error for memory that cannot be made visible to the device.
pub fn unsupported_memory(what: &str, reason: &str) -> Error {
    Error::invalid_argument(format!("{what}: {reason}"))
        .detail("memory", what)
        .help("bind memory of the process instead")
}

/// Returns the error for an entry beyond a limit of the compiler's graph.
pub fn too_large(limit: &str, value: u64, max: u64) -> Error {
    Error::resource_limit(limit, value, max).help("cut the model into smaller shards")
}

/// Returns the error for a node that `check` refuses.
pub(crate) fn unsupported(node: NodeView<'_>, reason: &str) -> Error {
    let message = format!("`{}` is not supported: {reason}", node.name());
    of_layer(Error::unsupported_op(message).detail("node", node.name()), node.layer())
        .help("legalise the entry with this shim's `check` first")
}

/// Adds the layer, if it is known.
pub(crate) fn of_layer(mut error: Error, layer: Option<u32>) -> Error {
    let Some(layer) = layer else { return error };
    error.message = format!("layer {layer}: {}", error.message);
    error.detail("layer", layer)
}

#[cfg(test)]
mod tests {
    use shardwright_shim_abi::ErrorClass;

    use super::*;

    #[test]
    fn errors_have_the_details_that_planners_read() {
        let invalid = ErrorClass::InvalidArgument;
        for (error, class, keys) in [
            (wrong_fact("x", "y", "odd"), invalid, &["chip", "fact"][..]),
            (unprepared("x", "y", "odd"), invalid, &["chip", "fact", "unsupported"]),
            (compiles_only("x", "buy one"), invalid, &["device", "help"]),
            (wrong_code("a", "b", "ask"), ErrorClass::Internal, &["asked", "made", "help"]),
            (unsupported_memory("dma-buf", "odd"), invalid, &["memory", "help"]),
            (too_large("ops", 2, 1), ErrorClass::ResourceLimit, &["limit", "value", "max", "help"]),
            (of_layer(Error::invalid_weight("w", "odd"), Some(3)), invalid, &["weight", "layer"]),
        ] {
            let actual: Vec<&str> = error.details.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!((error.class, actual), (class, keys.to_vec()), "{error}");
        }
        let error = of_layer(Error::invalid_weight("w", "odd"), Some(3));
        assert_eq!(error.message, "layer 3: weight `w`: odd");
    }
}
