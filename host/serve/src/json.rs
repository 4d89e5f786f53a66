//! Bodies of requests as JSON: bounded nesting, bounded number of values, unique keys.

use serde_json::Value;
use shardwright_vocabulary::UniqueKeys;

use crate::refusal::Refusal;

/// Most values of a body. A parsed value needs up to hundreds of bytes, and its text only two.
const VALUES_MAX: usize = 1 << 18;

/// Parses a body. Objects with equal keys, values nested deeper than `depth` and more than
/// [`VALUES_MAX`] values are refused.
pub(crate) fn parse(bytes: &[u8], depth: usize) -> Result<Value, Refusal> {
    expect_bounds(bytes, depth)?;
    let invalid = |error: serde_json::Error| {
        Refusal::invalid("invalid_json", format!("the body is not valid JSON: {error}"), UniqueKeys::HELP)
    };
    if let Err(error) = serde_json::from_slice::<UniqueKeys>(bytes) {
        return Err(match error.is_data() {
            true => invalid(error),
            false => broken(&error),
        });
    }
    serde_json::from_slice(bytes).map_err(|error| broken(&error))
}

fn broken(error: &serde_json::Error) -> Refusal {
    let what = format!("the body is not valid JSON: {error}");
    Refusal::invalid("invalid_json", what, "send one JSON object in UTF-8")
}

/// Counts brackets and commas outside of strings before a parser recurses into them.
fn expect_bounds(bytes: &[u8], most: usize) -> Result<(), Refusal> {
    let (mut depth, mut values, mut is_text, mut is_escaped) = (0_usize, 0_usize, false, false);
    for byte in bytes {
        if !is_text && matches!(byte, b'[' | b'{' | b',') {
            values += 1;
        }
        match (is_text, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => is_text = !is_text,
            (false, b'[' | b'{') => depth += 1,
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > most {
            let what = format!("the body nests values deeper than {most} levels");
            return Err(Refusal::invalid("json_too_deep", what, "flatten the request or its schema"));
        }
        if values > VALUES_MAX {
            let what = format!("the body has more than {VALUES_MAX} values");
            return Err(Refusal::invalid("json_too_large", what, "send fewer values"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(bytes: &[u8]) -> String {
        match parse(bytes, 8) {
            Ok(value) => value.to_string(),
            Err(refusal) => refusal.json()["error"]["code"].as_str().unwrap_or_default().to_owned(),
        }
    }

    #[test]
    fn too_many_values_are_refused_before_they_are_parsed() {
        let list = |value: &str, count: usize| format!("[{}]", vec![value; count].join(","));
        for value in ["0", "{}", r#"{"":0}"#] {
            assert_eq!(code(list(value, 300_000).as_bytes()), "json_too_large", "{value}");
        }
        assert_eq!(code(list("0", VALUES_MAX).as_bytes()), list("0", VALUES_MAX));
        // Commas in a string are not counted.
        let text = format!("[\"{}\"]", ",".repeat(300_000));
        assert_eq!(code(text.as_bytes()), text);
    }

    #[test]
    fn nesting_and_equal_keys_are_refused() {
        assert_eq!(code(br#"{"a":[1,"[[[[[[[[[[\"[["]}"#), r#"{"a":[1,"[[[[[[[[[[\"[["]}"#);
        assert_eq!(code("[".repeat(9).as_bytes()), "json_too_deep");
        assert_eq!(code("[".repeat(1 << 20).as_bytes()), "json_too_deep");
        assert_eq!(code(br#"{"a":1,"a":2}"#), "invalid_json");
        for bytes in [&b""[..], b"{", b"\xff", b"{}x", b"nul", br#"{"a":1e999}"#] {
            assert_eq!(code(bytes), "invalid_json", "{bytes:?}");
        }
        let refusal = parse(br#"{"a":1,"a":2}"#, 8).unwrap_err();
        assert!(refusal.json().to_string().contains("a second key `a`"), "{}", refusal.json());
    }
}
