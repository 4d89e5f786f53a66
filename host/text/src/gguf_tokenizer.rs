//! Makes a `tokenizer.json` from the vocabulary of a GGUF file.

use std::collections::HashMap;

use serde_json::{Value as Json, json};
use shardwright_gguf::{ARCHITECTURE, Head, Metadata, Value};
use shardwright_vocabulary::Result;

use crate::gguf::{CONTROL, Special, USER_DEFINED, unsupported};
use crate::input::TOKENIZER_BYTES_MAX;

/// SentencePiece's replacement of a space.
const BLANK: &str = "▁";

/// Longest token for which merges are computed. A merge may end at each of its characters.
const TOKEN_BYTES_MAX: usize = 1024;

/// Most merges of a vocabulary. Published ones have half a million.
const MERGES_MAX: u64 = 1 << 22;

const MERGES: &str = "tokenizer.ggml.merges";

pub(crate) fn document(head: &Head<'_>, special: &Special<'_>) -> Result<Json> {
    let metadata = &head.metadata;
    let architecture = metadata.text(ARCHITECTURE)?.unwrap_or_default();
    let key = "tokenizer.ggml.model";
    let model = metadata.text(key)?.ok_or_else(|| metadata.missing(key))?;
    match model {
        // Scores in Gemma's files do not have the order of its merges.
        "llama" if architecture.starts_with("gemma") => sentence_pieces(metadata, special, Order::Ids),
        "llama" => sentence_pieces(metadata, special, Order::Scores),
        "gemma4" => sentence_pieces(metadata, special, Order::Ids),
        "gpt2" => byte_level(metadata, special),
        _ => Err(unsupported(metadata, key, &format!("`{model}`"), "`llama`, `gemma4`, `gpt2`")),
    }
}

/// The order of merges, if the file does not list them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// In the order of the merged token's ids.
    Ids,
    /// In the order of the merged token's scores, highest first.
    Scores,
}

/// Makes the document for a SentencePiece vocabulary: byte pairs over characters, and bytes for
/// unknown characters.
fn sentence_pieces(metadata: &Metadata<'_>, special: &Special<'_>, order: Order) -> Result<Json> {
    // The file stores runs of spaces unchanged, but the tokenizer looks up their replacements.
    let spelled = |token: &&str| match token.trim().is_empty() && token.contains(' ') {
        true => BLANK.repeat(token.chars().count()),
        false => (*token).to_owned(),
    };
    let tokens: Vec<String> = match order {
        Order::Ids => special.tokens.iter().map(spelled).collect(),
        Order::Scores => special.tokens.iter().map(|token| (*token).to_owned()).collect(),
    };
    let merges = match listed_merges(metadata)? {
        Some(merges) => merges,
        None => merges_of(metadata, &tokens, order)?,
    };
    let unknown =
        special.text(special.unknown).or_else(|| tokens.iter().any(|t| t == "<unk>").then_some("<unk>"));
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
        "vocab": vocabulary(&tokens), "merges": merges,
    });
    let blank = json!({ "type": "Replace", "pattern": { "String": " " }, "content": BLANK });
    let prefixed = metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(order == Order::Scores);
    let normalizer = match prefixed {
        true => {
            json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": BLANK }, blank] })
        }
        false => blank,
    };
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": BLANK }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefixed {
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let adds_bos = metadata.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(true);
    // If a token's spelling differs from that in the vocabulary, merges find it instead.
    let is_matched = |token: &str| spelled(&token) == token || order == Order::Scores;
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added(special, &model["vocab"], is_matched),
        "normalizer": normalizer,
        "pre_tokenizer": null,
        "post_processor": post_processor(metadata, special, adds_bos)?,
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": model,
    }))
}

/// A way of splitting text for byte-level vocabularies, with its names in `tokenizer.ggml.pre`.
struct Split {
    names: &'static [&'static str],
    /// `None` for the split of GPT-2, which the library has built in.
    pattern: Option<&'static str>,
    /// Whether digits are separated from each other before the split.
    digits: bool,
    /// Whether a word that equals a token becomes that token, without applying merges.
    whole_words: bool,
    /// Whether a text begins with the first token if the file does not specify it.
    bos: bool,
}

const PLAIN: Split = Split { names: &[], pattern: None, digits: false, whole_words: false, bos: false };

/// Source of the patterns: `pre_tokenizer` of the published `tokenizer.json` of GPT-2, SmolLM2,
/// Llama 3, Qwen 2, Mistral Nemo and GPT-4o.
const SPLITS: [Split; 6] = [
    Split { names: &["", "default", "gpt-2", "gpt2", "phi-2", "olmo", "mpt", "jais"], ..PLAIN },
    Split { names: &["smollm", "starcoder", "refact", "command-r", "codeshell"], digits: true, ..PLAIN },
    Split {
        names: &["llama3", "llama-v3", "llama-bpe", "falcon3", "dbrx", "smaug-bpe", "pixtral", "lfm2"],
        pattern: Some(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        whole_words: true,
        bos: true,
        ..PLAIN
    },
    Split {
        names: &["qwen2", "deepseek-r1-qwen", "megrez"],
        pattern: Some(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        ..PLAIN
    },
    Split {
        names: &["tekken"],
        pattern: Some(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        whole_words: true,
        bos: true,
        ..PLAIN
    },
    Split {
        names: &["gpt-4o", "llama4"],
        pattern: Some(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        ..PLAIN
    },
];

/// Makes the document for a byte-level vocabulary.
fn byte_level(metadata: &Metadata<'_>, special: &Special<'_>) -> Result<Json> {
    let key = "tokenizer.ggml.pre";
    let pre = metadata.text(key)?.unwrap_or_default();
    let Some(split) = SPLITS.iter().find(|split| split.names.contains(&pre)) else {
        let names: Vec<&str> =
            SPLITS.iter().flat_map(|split| split.names).copied().filter(|n| !n.is_empty()).collect();
        return Err(unsupported(metadata, key, &format!("`{pre}`"), &names.join(", ")));
    };
    if metadata.flag("tokenizer.ggml.add_space_prefix")? == Some(true) {
        let key = "tokenizer.ggml.add_space_prefix";
        return Err(unsupported(metadata, key, "true", "false for byte-level vocabularies"));
    }
    let merges = listed_merges(metadata)?.ok_or_else(|| metadata.missing(MERGES))?;
    let alphabet = alphabet();
    let known: HashMap<char, u8> = alphabet.iter().enumerate().map(|(byte, c)| (*c, byte as u8)).collect();
    // The file stores added tokens unchanged, but the tokenizer looks them up by their bytes.
    let spelled = |token: &str| match token.chars().all(|c| known.contains_key(&c)) {
        true => token.to_owned(),
        false => token.bytes().map(|byte| alphabet[usize::from(byte)]).collect(),
    };
    let tokens: Vec<String> = special.tokens.iter().map(|token| spelled(token)).collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": split.pattern.is_none(),
    });
    let mut steps = Vec::new();
    if split.digits {
        steps.push(json!({ "type": "Digits", "individual_digits": true }));
    }
    if let Some(pattern) = split.pattern {
        let regex = json!({ "Regex": pattern });
        steps.push(json!({ "type": "Split", "pattern": regex, "behavior": "Isolated", "invert": false }));
    }
    steps.push(byte_level);
    let adds_bos = metadata.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(split.bos);
    let is_spelled = |token: &str| token.chars().all(|c| known.contains_key(&c));
    let ids = vocabulary(&tokens);
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        // The converter wrongly marks some tokens as control tokens. They have characters outside
        // the alphabet.
        "added_tokens": added(special, &ids, is_spelled),
        "normalizer": null,
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps },
        "post_processor": post_processor(metadata, special, adds_bos)?,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": split.whole_words, "vocab": ids, "merges": merges,
        },
    }))
}

/// Maps tokens to their ids. If two tokens have the same spelling, the later one counts.
fn vocabulary(tokens: &[String]) -> Json {
    tokens
        .iter()
        .enumerate()
        .map(|(id, token)| (token.clone(), Json::from(id)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Returns the tokens that are matched as a whole: control tokens and user-defined tokens. They
/// have the ids of the vocabulary `ids`.
fn added(special: &Special<'_>, ids: &Json, is_matched: impl Fn(&str) -> bool) -> Vec<Json> {
    let of_kind = |(id, kind): (usize, &u32)| {
        let content = match *kind {
            CONTROL | USER_DEFINED => special.tokens[id],
            _ => return None,
        };
        is_matched(content).then(|| {
            json!({
                "id": ids[content], "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind == CONTROL,
            })
        })
    };
    special.kinds.iter().enumerate().filter_map(of_kind).collect()
}

/// Makes the step that adds special tokens before and after a text.
fn post_processor(metadata: &Metadata<'_>, special: &Special<'_>, adds_bos: bool) -> Result<Json> {
    let adds_eos = metadata.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let mut tokens = serde_json::Map::new();
    let mut piece = |wanted: bool, id: Option<u32>, key: &str| match (wanted, id.zip(special.text(id))) {
        (false, _) => Ok(None),
        (true, None) => Err(metadata.missing(key)),
        (true, Some((id, text))) => {
            tokens.insert(text.to_owned(), json!({ "id": text, "ids": [id], "tokens": [text] }));
            Ok(Some(json!({ "SpecialToken": { "id": text, "type_id": 0 } })))
        }
    };
    let bos = piece(adds_bos, special.bos, "tokenizer.ggml.bos_token_id")?;
    let eos = piece(adds_eos, special.eos, "tokenizer.ggml.eos_token_id")?;
    let text = |name: &str, kind: u32| json!({ "Sequence": { "id": name, "type_id": kind } });
    let around = |name: &str, kind: u32| bos.clone().into_iter().chain([text(name, kind)]).chain(eos.clone());
    let single: Vec<Json> = around("A", 0).collect();
    let pair: Vec<Json> = around("A", 0).chain(around("B", 1)).collect();
    Ok(json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens }))
}

/// Returns the merges that a file lists. Each is two tokens with a space between them.
fn listed_merges(metadata: &Metadata<'_>) -> Result<Option<Vec<Json>>> {
    let key = MERGES;
    let Some(list) = metadata.list(key)? else { return Ok(None) };
    if list.len() > MERGES_MAX {
        return Err(unsupported(metadata, key, &Value::List(list).shown(), "at most 4,194,304 merges"));
    }
    let texts = list.texts().ok_or_else(|| metadata.wrong(key, "a list of strings"))?;
    let pair = |text: &[u8]| {
        let (left, right) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        Some(json!([left, right]))
    };
    let merges: Option<Vec<Json>> = texts.map(pair).collect();
    Ok(Some(
        merges.ok_or_else(|| metadata.wrong(key, "a list of two tokens each, with a space between them"))?,
    ))
}

/// Computes the merges of a vocabulary: every way in which two tokens form a third, in the order of
/// the third.
fn merges_of(metadata: &Metadata<'_>, tokens: &[String], order: Order) -> Result<Vec<Json>> {
    struct Merge<'t> {
        rank: f64,
        left: (&'t str, usize),
        right: (&'t str, usize),
    }
    let key = "tokenizer.ggml.scores";
    let scores: Option<Vec<f64>> = match order {
        Order::Ids => None,
        Order::Scores => {
            let list = metadata.list(key)?.ok_or_else(|| metadata.missing(key))?;
            let numbers = list.numbers().ok_or_else(|| metadata.wrong(key, "a list of numbers"))?;
            // One number more than allowed is enough to detect that there are too many.
            Some(numbers.take(tokens.len() + 1).collect())
        }
    };
    if scores.as_ref().is_some_and(|scores| scores.len() != tokens.len() || scores.iter().any(|s| s.is_nan()))
    {
        return Err(metadata.wrong(key, "a number for each token"));
    }
    let ids: HashMap<&str, usize> =
        tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
    let (mut merges, mut bytes) = (Vec::new(), 0);
    for (id, token) in tokens.iter().enumerate() {
        if token.len() > TOKEN_BYTES_MAX {
            let reason = format!("token {id} has {} bytes", token.len());
            return Err(unsupported(
                metadata,
                "tokenizer.ggml.tokens",
                &reason,
                "tokens of at most 1024 bytes",
            ));
        }
        // If two tokens have the same spelling, the later one counts.
        if ids.get(token.as_str()) != Some(&id) {
            continue;
        }
        let rank = scores.as_ref().map_or(-(id as f64), |scores| scores[id]);
        let from = merges.len();
        let length = token.chars().count();
        for (index, (at, _)) in token.char_indices().enumerate().skip(1) {
            let (left, right) = token.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) {
                bytes += token.len() as u64;
                merges.push(Merge { rank, left: (left, index), right: (right, length - index) });
            }
        }
        // If tokens consist of repetitions, there are as many merges as they have characters in
        // total. The text of these merges grows with the square of the tokens' length.
        if merges.len() as u64 > MERGES_MAX || bytes > TOKENIZER_BYTES_MAX {
            let found = format!("{} merges of {bytes} bytes", merges.len());
            let supported = "at most 4,194,304 merges of 256 MiB";
            return Err(unsupported(metadata, "tokenizer.ggml.tokens", &found, supported));
        }
        merges[from..].sort_by_key(|merge: &Merge<'_>| (ids[merge.left.0], ids[merge.right.0]));
    }
    // The sort is stable: merges with the same rank and lengths keep the order of ids.
    merges.sort_by(|one, other| {
        other.rank.total_cmp(&one.rank).then((other.left.1, other.right.1).cmp(&(one.left.1, one.right.1)))
    });
    Ok(merges.into_iter().map(|merge| json!([merge.left.0, merge.right.0])).collect())
}

/// Returns the character that represents each byte: the byte's own if it is printable, else the
/// next character from U+0100 on.
fn alphabet() -> [char; 256] {
    let mut alphabet = ['\0'; 256];
    let mut next = 0x100;
    for byte in 0..=255_u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        alphabet[usize::from(byte)] = match printable {
            true => char::from(byte),
            false => {
                next += 1;
                char::from_u32(next - 1).unwrap_or('\0')
            }
        };
    }
    alphabet
}
