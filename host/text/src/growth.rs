//! Limits the factor by which a tokenizer's steps lengthen a text.
//!
//! The tokenizer library runs all normalizers, pre-tokenizers and decoders of a file. If four of
//! them each replace a letter by a thousand, one letter becomes 10¹² and the process ends.

use std::path::Path;

use serde_json::Value;

use crate::error::{Result, TextError};

/// Largest factor by which all steps of a kind may multiply the bytes of a text. Published ones
/// reach three: a blank becomes `▁`.
const GROWTH_MAX: u64 = 64;
/// Most steps of a kind. Published tokenizers have up to seven.
const STEPS_MAX: usize = 16;
/// Most bytes that a step inserts at a place. Published ones insert one character.
const CONTENT_BYTES_MAX: usize = 64;

/// Returns an upper bound of the factor by which steps multiply the bytes of a text. A constant may
/// be added in addition.
///
/// # Errors
/// [`TextError::UnsupportedTokenizer`] for steps with a much larger factor than published ones
/// have.
pub(crate) fn growth(steps: &Value, path: &Path) -> Result<u64> {
    let unsupported = |what| TextError::UnsupportedTokenizer { path: path.to_owned(), what };
    let mut all = Vec::new();
    flatten(steps, &mut all);
    if all.len() > STEPS_MAX {
        return Err(unsupported("more than 16 steps that change a text"));
    }
    let mut growth = 1_u64;
    for step in all {
        growth = growth.saturating_mul(growth_of(step).map_err(unsupported)?);
    }
    match growth <= GROWTH_MAX {
        true => Ok(growth),
        false => Err(unsupported("steps that together make a text more than 64 times longer")),
    }
}

/// Collects the steps of nested sequences.
fn flatten<'v>(steps: &'v Value, into: &mut Vec<&'v Value>) {
    let parts = ["normalizers", "pretokenizers", "decoders"];
    match parts.iter().find_map(|name| steps[*name].as_array()) {
        Some(parts) => parts.iter().for_each(|part| flatten(part, into)),
        None if steps.is_null() => {}
        None => into.push(steps),
    }
}

fn growth_of(step: &Value) -> std::result::Result<u64, &'static str> {
    let text = |name: &str| step[name].as_str().unwrap_or_default();
    let inserted = ["content", "prepend", "prefix", "suffix", "replacement"];
    if inserted.iter().any(|name| text(name).len() > CONTENT_BYTES_MAX) {
        return Err("a step that inserts more than 64 bytes at a place");
    }
    Ok(match text("type") {
        "Replace" => {
            let content = text("content").len() as u64;
            match step["pattern"]["String"].as_str().map(str::len) {
                Some(pattern) if pattern > 0 => content.div_ceil(pattern as u64).max(1),
                // A regular expression may match one byte, or between any two.
                _ => content + 1,
            }
        }
        // A blank becomes one character.
        "Metaspace" => text("replacement").len().max(1) as u64,
        // Added to every piece of text between two tokens. Each has at least one byte.
        "Prepend" => 1 + text("prepend").len() as u64,
        // Some bytes become characters of two bytes. Characters of three bytes get a blank on both
        // sides.
        "ByteLevel" | "BertNormalizer" => 2,
        // Each suffix or delimiter, which may be empty, becomes a blank.
        "BPEDecoder" | "WordPiece" | "CTC" => 2,
        // The longest decompositions of Unicode: U+0390, and U+FDFA with compatibility.
        "NFC" | "NFD" => 3,
        "NFKC" | "NFKD" => 11,
        "Precompiled" => return Err("a precompiled map of characters, whose texts may have any length"),
        "Lowercase" => 2,
        // Steps that split or remove text, or turn bytes into characters.
        "Strip" | "StripAccents" | "Nmt" | "BertPreTokenizer" | "CharDelimiterSplit" | "Whitespace"
        | "WhitespaceSplit" | "Split" | "Punctuation" | "Digits" | "UnicodeScripts" | "FixedLength"
        | "Fuse" | "ByteFallback" => 1,
        _ => return Err("a step of an unknown type"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(steps: &Value) -> Result<u64> {
        growth(steps, Path::new("tokenizer.json"))
    }

    #[test]
    fn published_steps_make_a_text_little_longer() {
        assert_eq!(of(&Value::Null).unwrap(), 1);
        assert_eq!(of(&json!({ "type": "NFC" })).unwrap(), 3);
        let blank = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
        assert_eq!(of(&blank).unwrap(), 3);
        let llama =
            json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "▁" }, blank] });
        assert_eq!(of(&llama).unwrap(), 12);
        let back = json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " });
        let decoder = json!({ "type": "Sequence", "decoders": [back, { "type": "ByteFallback" }] });
        assert_eq!(of(&decoder).unwrap(), 1);
    }

    #[test]
    fn steps_that_could_fill_memory_are_refused_by_name() {
        let grown =
            |by: usize| json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "a".repeat(by) });
        let sequence = |parts: Vec<Value>| json!({ "type": "Sequence", "normalizers": parts });
        for (steps, what) in [
            (grown(1000), "more than 64 bytes"),
            (json!({ "type": "Prepend", "prepend": "x".repeat(65) }), "more than 64 bytes"),
            (sequence(vec![grown(60), grown(2)]), "64 times longer"),
            (sequence(vec![json!({ "type": "ByteLevel" }); 7]), "64 times longer"),
            (json!({ "type": "Replace", "pattern": { "Regex": "" }, "content": "a".repeat(64) }), "64 times"),
            (sequence(vec![json!({ "type": "Strip" }); 17]), "16 steps"),
            (sequence(vec![sequence(vec![grown(60)]), sequence(vec![grown(2)])]), "64 times longer"),
            (json!({ "type": "Precompiled", "precompiled_charsmap": "" }), "precompiled"),
            (json!({ "type": "Sorcery" }), "unknown"),
        ] {
            let error = of(&steps).unwrap_err();
            assert!(matches!(error, TextError::UnsupportedTokenizer { .. }), "{error}");
            assert!(error.to_string().contains(what) && error.help().is_some(), "{what}: {error}");
        }
    }
}
