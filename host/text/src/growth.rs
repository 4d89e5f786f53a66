//! Limits the factor by which a tokenizer's steps lengthen a text, and the tokens that they add.
//!
//! The tokenizer library runs all normalizers, pre-tokenizers, post-processors and decoders of a
//! file. If four of them each replace a letter by a thousand, one letter becomes 10¹² and the
//! process ends. A template of 200,000 tokens that each have 2,000 ids has the same effect.

use std::path::Path;

use serde_json::Value;
use shardwright_vocabulary::{Error, Result};

/// Largest factor by which all steps of a kind may multiply the bytes of a text. Published ones
/// reach three: a blank becomes `▁`.
const GROWTH_MAX: u64 = 64;
/// Most steps of a kind. Published tokenizers have up to seven.
const STEPS_MAX: usize = 16;
/// Most bytes that a step inserts at a place. Published ones insert one character.
const CONTENT_BYTES_MAX: usize = 64;
/// Most pieces of a template. Published ones have up to five.
const PIECES_MAX: usize = 32;
/// Most tokens that all post-processors add to a text and to a pair of texts. Published ones add up
/// to six.
const ADDED_MAX: usize = 64;
/// Most bytes of the spellings of these tokens.
const ADDED_BYTES_MAX: usize = 4096;

/// Upper bounds of the factors by which steps multiply the bytes of a text. A constant may be added
/// in addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    /// For ASCII characters.
    ascii: u64,
    /// For other characters.
    others: u64,
}

impl Growth {
    /// Returns the factors of these steps and then of others.
    pub(crate) fn and(self, then: Growth) -> Growth {
        Growth {
            ascii: self.ascii.saturating_mul(then.ascii),
            others: self.others.saturating_mul(then.others),
        }
    }

    /// Returns at most how many bytes the steps make of a text.
    pub(crate) fn grown(self, text: &str) -> u64 {
        let others = text.bytes().filter(|byte| !byte.is_ascii()).count() as u64;
        let ascii = text.len() as u64 - others;
        ascii.saturating_mul(self.ascii).saturating_add(others.saturating_mul(self.others))
    }

    /// Returns the factor for the characters of a text.
    pub(crate) fn of(self, text: &str) -> u64 {
        if text.is_ascii() { self.ascii } else { self.others }
    }
}

/// Returns the factors of steps.
///
/// # Errors
/// If a factor is much larger than that of published steps, or is not known.
pub(crate) fn growth(steps: &Value, path: &Path) -> Result<Growth> {
    let unsupported = |what| unsupported(path, what);
    let mut all = Vec::new();
    flatten(steps, &mut all);
    if all.len() > STEPS_MAX {
        return Err(unsupported("more than 16 steps that change a text"));
    }
    let mut growth = Growth { ascii: 1, others: 1 };
    for step in all {
        growth = growth.and(growth_of(step).map_err(unsupported)?);
    }
    match growth.others <= GROWTH_MAX {
        true => Ok(growth),
        false => Err(unsupported("steps that together make a text more than 64 times longer")),
    }
}

/// Checks that post-processors add only a few tokens to a text, and do not repeat it.
///
/// # Errors
/// If they add more tokens, or repeat the text.
pub(crate) fn added(processors: &Value, path: &Path) -> Result<()> {
    let unsupported = |what| unsupported(path, what);
    let mut all = Vec::new();
    flatten(processors, &mut all);
    if all.len() > STEPS_MAX {
        return Err(unsupported("more than 16 post-processors"));
    }
    let (mut tokens, mut bytes) = (0, 0);
    for processor in all {
        for added in added_by(processor).map_err(unsupported)? {
            tokens += added.tokens;
            bytes += added.bytes;
        }
    }
    if tokens > ADDED_MAX {
        return Err(unsupported("post-processors that add more than 64 tokens to a text"));
    }
    match bytes <= ADDED_BYTES_MAX {
        true => Ok(()),
        false => Err(unsupported("post-processors that add tokens of more than 4096 bytes to a text")),
    }
}

/// Returns the error of a tokenizer with something that has no place in inference.
pub(crate) fn unsupported(path: &Path, what: &str) -> Error {
    Error::unsupported(format!("unsupported: {what}"))
        .at(path.display())
        .with_help("remove the setting from the file")
}

/// The tokens that a post-processor adds, and the bytes of their spellings.
struct Added {
    tokens: usize,
    bytes: usize,
}

/// Returns what a post-processor adds to one text, and to a pair of texts.
fn added_by(processor: &Value) -> std::result::Result<Vec<Added>, &'static str> {
    match processor["type"].as_str().unwrap_or_default() {
        "ByteLevel" => Ok(Vec::new()),
        // Up to two tokens before and two after a text.
        "BertProcessing" | "RobertaProcessing" => {
            let bytes = |name: &str| processor[name][0].as_str().map_or(0, str::len);
            Ok(vec![Added { tokens: 4, bytes: 4 * bytes("cls").max(bytes("sep")) }])
        }
        "TemplateProcessing" => ["single", "pair"]
            .into_iter()
            .map(|name| added_by_template(&processor[name], &processor["special_tokens"]))
            .collect(),
        _ => Err("a post-processor of an unknown type"),
    }
}

fn added_by_template(pieces: &Value, special: &Value) -> std::result::Result<Added, &'static str> {
    let list = |value: &Value| value.as_array().map_or(0, Vec::len);
    if list(pieces) > PIECES_MAX {
        return Err("a template of more than 32 pieces");
    }
    let (mut added, mut texts) = (Added { tokens: 0, bytes: 0 }, Vec::new());
    for piece in pieces.as_array().into_iter().flatten() {
        if let Some(text) = piece["Sequence"]["id"].as_str() {
            if texts.contains(&text) {
                return Err("a template that repeats a text");
            }
            texts.push(text);
        }
        if let Some(name) = piece["SpecialToken"]["id"].as_str() {
            let token = &special[name];
            added.tokens += list(&token["ids"]).max(list(&token["tokens"]));
            let spellings = token["tokens"].as_array().into_iter().flatten();
            added.bytes += spellings.filter_map(Value::as_str).map(str::len).sum::<usize>();
        }
    }
    Ok(added)
}

/// Collects the steps of nested sequences.
fn flatten<'v>(steps: &'v Value, into: &mut Vec<&'v Value>) {
    let parts = ["normalizers", "pretokenizers", "processors", "decoders"];
    match parts.iter().find_map(|name| steps[*name].as_array()) {
        Some(parts) => parts.iter().for_each(|part| flatten(part, into)),
        None if steps.is_null() => {}
        None => into.push(steps),
    }
}

fn growth_of(step: &Value) -> std::result::Result<Growth, &'static str> {
    let text = |name: &str| step[name].as_str().unwrap_or_default();
    let inserted = ["content", "prepend", "prefix", "suffix", "replacement"];
    if inserted.iter().any(|name| text(name).len() > CONTENT_BYTES_MAX) {
        return Err("a step that inserts more than 64 bytes at a place");
    }
    let name = text("type");
    let others = match name {
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
    };
    let keeps_ascii = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"].contains(&name);
    Ok(Growth { ascii: if keeps_ascii { 1 } else { others }, others })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn of(steps: &Value) -> Result<Growth> {
        growth(steps, Path::new("tokenizer.json"))
    }

    /// Returns the factors for ASCII and for other characters.
    fn factors(steps: &Value) -> [u64; 2] {
        let Growth { ascii, others } = of(steps).unwrap();
        [ascii, others]
    }

    #[test]
    fn published_steps_make_a_text_little_longer() {
        assert_eq!(factors(&Value::Null), [1, 1]);
        assert_eq!(factors(&json!({ "type": "NFC" })), [1, 3]);
        let blank = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
        assert_eq!(factors(&blank), [3, 3]);
        let llama =
            json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "▁" }, blank] });
        assert_eq!(factors(&llama), [12, 12]);
        let back = json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " });
        let decoder = json!({ "type": "Sequence", "decoders": [back, { "type": "ByteFallback" }] });
        assert_eq!(factors(&decoder), [1, 1]);
        let qwen = of(&json!({ "type": "NFC" })).unwrap().and(of(&json!({ "type": "ByteLevel" })).unwrap());
        assert_eq!([qwen.grown("aé"), qwen.of("a"), qwen.of("aé")], [2 + 12, 2, 6]);
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
            assert_eq!((error.kind(), error.place()), (ErrorKind::Unsupported, Some("tokenizer.json")));
            assert!(error.to_string().contains(what) && error.help().is_some(), "{what}: {error}");
        }
    }

    /// Returns a template for one text, with `tokens` of that many ids before it.
    fn template(tokens: usize, ids: usize, spelling: &str) -> Value {
        let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
        let token = json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } });
        let special = json!({ "id": "<s>", "ids": vec![0; ids], "tokens": vec![spelling; ids] });
        let single = [vec![token; tokens], vec![text.clone()]].concat();
        json!({
            "type": "TemplateProcessing",
            "single": single,
            "pair": [text, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<s>": special },
        })
    }

    fn sequence(processors: Vec<Value>) -> Value {
        json!({ "type": "Sequence", "processors": processors })
    }

    #[test]
    fn published_post_processors_add_few_tokens() {
        let bytes = json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false });
        let bert = json!({ "type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101] });
        let roberta = json!({ "type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0] });
        for processors in [
            Value::Null,
            bert,
            roberta,
            template(1, 1, "<s>"),
            template(31, 2, "<s>"),
            sequence(vec![bytes, template(1, 1, "<s>")]),
        ] {
            added(&processors, Path::new("tokenizer.json")).unwrap();
        }
    }

    #[test]
    fn post_processors_that_could_fill_memory_are_refused_by_name() {
        let mut twice = template(1, 1, "<s>");
        twice["pair"][1]["Sequence"]["id"] = json!("A");
        let mut pair = template(0, 3, "<s>");
        pair["pair"] = json!(vec![json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } }); 22]);
        let long = "s".repeat(2000);
        let bert = json!({ "type": "BertProcessing", "sep": [long, 102], "cls": ["[CLS]", 101] });
        for (processors, what) in [
            (template(32, 1, "<s>"), "more than 32 pieces"),
            (template(2, 33, "<s>"), "more than 64 tokens"),
            (pair, "more than 64 tokens"),
            (sequence(vec![template(30, 1, "<s>"); 3]), "more than 64 tokens"),
            (template(3, 1, &long), "more than 4096 bytes"),
            (bert, "more than 4096 bytes"),
            (twice, "repeats a text"),
            (sequence(vec![json!({ "type": "ByteLevel" }); 17]), "16 post-processors"),
            (sequence(vec![sequence(vec![json!({ "type": "Sorcery" })])]), "unknown"),
        ] {
            let error = added(&processors, Path::new("tokenizer.json")).unwrap_err();
            assert_eq!((error.kind(), error.place()), (ErrorKind::Unsupported, Some("tokenizer.json")));
            assert!(error.to_string().contains(what) && error.help().is_some(), "{what}: {error}");
        }
    }
}
