//! Errors that several parts of the CPU shim return.

use std::fmt::Display;

use shardwright_shim_abi::{Error, ErrorClass};

/// Returns the error for a valid graph that this shim cannot run. `what` is `node`, `input`, ….
pub(crate) fn unsupported(what: &'static str, name: &str, reason: impl Display) -> Error {
    Error::unsupported(what, name, reason).help("decompose the node into primitives")
}

/// Returns the error for a size above a limit of this shim.
pub(crate) fn limit(limit: &str, value: u64, max: u64) -> Error {
    Error::resource_limit(limit, value, max).help("cut the model into smaller shards or use fewer rows")
}

/// Returns the error for memory that the system could not provide.
pub(crate) fn out_of_memory(what: &str, bytes: u64) -> Error {
    Error::new(ErrorClass::ResourceLimit, format!("not enough memory for {bytes} bytes of {what}"))
        .detail("limit", "memory-bytes")
        .detail("value", bytes)
        .help("use a smaller context, fewer rows or fewer threads")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_details_that_planners_read() {
        for (error, class, keys) in [
            (unsupported("node", "x", "odd"), ErrorClass::UnsupportedOp, &["node", "help"][..]),
            (limit("ops", 2, 1), ErrorClass::ResourceLimit, &["limit", "value", "max", "help"]),
            (out_of_memory("activations", 9), ErrorClass::ResourceLimit, &["limit", "value", "help"]),
        ] {
            let actual: Vec<&str> = error.details.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!((error.class, actual), (class, keys.to_vec()), "{error}");
        }
    }
}
