//! The text files of a checkpoint, made from the metadata of a GGUF file.
//!
//! A file has the vocabulary, the merges or scores, the ids of special tokens, and the chat
//! template. The rest of a `tokenizer.json` follows from two names: the kind of tokenizer
//! (`tokenizer.ggml.model`) and its way of splitting text (`tokenizer.ggml.pre`). A name that is
//! not in a table here is refused, since a different split gives different ids.
//!
//! Sources: `docs/gguf.md` of ggml for the keys, the published `tokenizer.json` of the models
//! behind the names, and transformers' conversion of GGUF files, whose ids a test compares.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};
use shardwright_files::{Links, Mapping, Section, open};
use shardwright_gguf::{Head, Metadata, Value, expect_model, model_at};
use shardwright_vocabulary::{Error, Result};

use crate::gguf_tokenizer;
use crate::input::unread;
use crate::token_rules::RULE_IDS_MAX;

/// Name of the tokenizer's file in a folder.
pub(crate) const TOKENIZER_FILE: &str = "tokenizer.json";

/// Keys after `tokenizer.` that do not affect ids or replies here.
const IRRELEVANT: [&str; 16] = [
    "ggml.token_type_count",
    "ggml.seperator_token_id",
    "ggml.separator_token_id",
    "ggml.cls_token_id",
    "ggml.mask_token_id",
    "ggml.fim_pre_token_id",
    "ggml.fim_suf_token_id",
    "ggml.fim_mid_token_id",
    "ggml.fim_pad_token_id",
    "ggml.fim_rep_token_id",
    "ggml.fim_sep_token_id",
    "ggml.prefix_token_id",
    "ggml.suffix_token_id",
    "ggml.middle_token_id",
    "huggingface.json",
    // The names of templates. The keys of the templates contain them too.
    "chat_templates",
];

/// Keys after `tokenizer.` that are used.
const USED: [&str; 16] = [
    "ggml.model",
    "ggml.pre",
    "ggml.tokens",
    "ggml.scores",
    "ggml.token_type",
    "ggml.merges",
    "ggml.bos_token_id",
    "ggml.eos_token_id",
    "ggml.eot_token_id",
    "ggml.eom_token_id",
    "ggml.unknown_token_id",
    "ggml.padding_token_id",
    "ggml.add_bos_token",
    "ggml.add_eos_token",
    "ggml.add_space_prefix",
    "chat_template",
];

/// A flag that must be off: sequences of two texts are not supported.
const SEPARATOR: &str = "tokenizer.ggml.add_sep_token";

/// Key of the ids that must not be sampled.
const SUPPRESSED: &str = "tokenizer.ggml.suppress_tokens";

/// Recommended sampling settings after `general.sampling.`, and their names in
/// `generation_config.json`.
const SAMPLING: [(&str, &str); 5] = [
    ("temp", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("penalty_repeat", "repetition_penalty"),
];

/// Most tokens of a vocabulary, the same as for rows of an embedding. Published ones have 262,144.
const TOKENS_MAX: u64 = 1 << 22;

/// Prefix of the keys of named templates.
const NAMED_TEMPLATE: &str = "chat_template.";

/// Control tokens that end a turn, for files that do not specify the id. llama.cpp has such a list
/// in its code.
const ENDS_OF_TURNS: [&str; 6] =
    ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|end_of_turn|>"];

/// The text files that a GGUF file replaces. They are made on request.
pub(crate) struct GgufTexts {
    path: PathBuf,
    bytes: Mapping,
}

impl GgufTexts {
    /// Maps the first file of the model at `path`. `None` if there is no GGUF model.
    pub fn at(path: &Path) -> Result<Option<Self>> {
        let Some(path) = model_at(path)?.and_then(|files| files.into_iter().next()) else { return Ok(None) };
        let (file, _) = open(&path, Links::Followed).map_err(|error| unread(error, &path))?;
        let bytes = Section::whole(&path, file)
            .and_then(|section| section.map())
            .map_err(|error| unread(error, &path))?;
        Ok(Some(GgufTexts { path, bytes }))
    }

    /// Makes a file, given its name in a Hugging Face folder. `None` if no file of that name is
    /// made from metadata.
    pub fn document(&self, name: &str) -> Result<Option<Vec<u8>>> {
        type Make = fn(&Head<'_>, &Special<'_>) -> Result<Json>;
        let make: Make = match name {
            TOKENIZER_FILE => gguf_tokenizer::document,
            "tokenizer_config.json" => tokenizer_config,
            "generation_config.json" => generation_config,
            _ => return Ok(None),
        };
        let head = Head::read(&self.path, &self.bytes)?;
        expect_model(&head.metadata)?;
        check_keys(&head.metadata)?;
        let special = Special::read(&head.metadata)?;
        Ok(Some(make(&head, &special)?.to_string().into_bytes()))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the SHA-256 of the head, which identifies the text files.
    pub fn identity(&self) -> Result<[u8; 32]> {
        let head = Head::read(&self.path, &self.bytes)?;
        let mut hash = Sha256::new();
        // This number must change with the tables, which affect the files.
        hash.update(concat!(env!("CARGO_PKG_VERSION"), " 1\n"));
        hash.update(self.bytes.get(..head.data as usize).unwrap_or(&self.bytes));
        Ok(hash.finalize().into())
    }
}

/// Refuses unknown keys of the tokenizer.
fn check_keys(metadata: &Metadata<'_>) -> Result<()> {
    for (key, value) in metadata.entries() {
        let Some(name) = key.strip_prefix("tokenizer.") else { continue };
        let known = USED.contains(&name) || IRRELEVANT.contains(&name) || name.starts_with(NAMED_TEMPLATE);
        if !known && ![SEPARATOR, SUPPRESSED].contains(&key) {
            return Err(unsupported(metadata, key, &value.shown(), "keys whose effect on texts is known"));
        }
    }
    if metadata.flag(SEPARATOR)? == Some(true) {
        return Err(unsupported(metadata, SEPARATOR, "true", "false"));
    }
    Ok(())
}

pub(crate) fn unsupported(metadata: &Metadata<'_>, key: &str, found: &str, supported: &str) -> Error {
    Error::unsupported(format!("metadata `{key}` is {found}, which is not supported"))
        .at(metadata.path().display())
        .with_help(format!("supported: {supported}"))
}

/// The vocabulary and its special tokens.
pub(crate) struct Special<'f> {
    /// All tokens in the order of ids, as the file spells them.
    pub tokens: Vec<&'f str>,
    /// The kind of each token, with ggml's numbers. Empty if the file does not specify them.
    pub kinds: Vec<u32>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// Additional ids that end a reply.
    ends: Vec<u32>,
    pub unknown: Option<u32>,
    padding: Option<u32>,
}

/// Numbers of token kinds.
pub(crate) const CONTROL: u32 = 3;
pub(crate) const USER_DEFINED: u32 = 4;

impl<'f> Special<'f> {
    fn read(metadata: &Metadata<'f>) -> Result<Self> {
        let (tokens_key, kinds_key) = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type");
        let listed = metadata.list(tokens_key)?.ok_or_else(|| metadata.missing(tokens_key))?;
        if listed.len() > TOKENS_MAX {
            let (found, supported) = (Value::List(listed).shown(), "at most 4,194,304 tokens");
            return Err(unsupported(metadata, tokens_key, &found, supported));
        }
        let listed = listed.texts().ok_or_else(|| metadata.wrong(tokens_key, "a list of strings"))?;
        let tokens: Option<Vec<&str>> = listed.map(|text| std::str::from_utf8(text).ok()).collect();
        let tokens = tokens.ok_or_else(|| metadata.wrong(tokens_key, "a list of UTF-8 strings"))?;
        let kinds: Vec<u32> = match metadata.list(kinds_key)? {
            None => Vec::new(),
            Some(list) if !list.is_empty() && list.len() != tokens.len() as u64 => {
                return Err(metadata.wrong(kinds_key, "as many as there are tokens"));
            }
            Some(list) => {
                let whole = |value| match value {
                    Value::Integer(number) => u32::try_from(number).ok(),
                    _ => None,
                };
                let kinds: Option<Vec<u32>> = list.iter().map(whole).collect();
                kinds.ok_or_else(|| metadata.wrong(kinds_key, "a list of whole numbers from 0 on"))?
            }
        };
        let id = |name: &str| {
            let key = format!("tokenizer.ggml.{name}_token_id");
            match metadata.whole(&key)? {
                Some(id) if id >= tokens.len() as u64 => {
                    Err(metadata.wrong(&key, "the id of a token of the vocabulary"))
                }
                id => Ok(id.map(|id| id as u32)),
            }
        };
        let mut ends: Vec<u32> = [id("eot")?, id("eom")?].into_iter().flatten().collect();
        if ends.is_empty() {
            let is_end = |index: usize| {
                kinds.get(index).is_none_or(|kind| *kind == CONTROL) && ENDS_OF_TURNS.contains(&tokens[index])
            };
            ends.extend((0..tokens.len()).filter(|&index| is_end(index)).map(|index| index as u32));
        }
        let (bos, eos) = (id("bos")?, id("eos")?);
        let (unknown, padding) = (id("unknown")?, id("padding")?);
        Ok(Special { tokens, kinds, bos, eos, ends, unknown, padding })
    }

    /// Returns the spelling of a token.
    pub fn text(&self, id: Option<u32>) -> Option<&'f str> {
        self.tokens.get(id? as usize).copied()
    }
}

/// Makes `tokenizer_config.json`: special tokens, and chat templates.
fn tokenizer_config(head: &Head<'_>, special: &Special<'_>) -> Result<Json> {
    let metadata = &head.metadata;
    let mut config = Map::new();
    for (name, id) in [
        ("bos_token", special.bos),
        ("eos_token", special.eos),
        ("unk_token", special.unknown),
        ("pad_token", special.padding),
    ] {
        if let Some(text) = special.text(id) {
            config.insert(name.to_owned(), text.into());
        }
    }
    let usual = metadata.text("tokenizer.chat_template")?;
    let mut named = Vec::new();
    for (key, _) in metadata.entries() {
        if let Some(name) = key.strip_prefix("tokenizer.").and_then(|name| name.strip_prefix(NAMED_TEMPLATE))
            && let Some(template) = metadata.text(key)?
        {
            named.push(json!({ "name": name, "template": template }));
        }
    }
    match (usual, named.is_empty()) {
        (Some(template), true) => {
            config.insert("chat_template".to_owned(), template.into());
        }
        (usual, false) => {
            named.extend(usual.map(|template| json!({ "name": "default", "template": template })));
            config.insert("chat_template".to_owned(), named.into());
        }
        (None, true) => {}
    }
    Ok(Json::Object(config))
}

/// Makes `generation_config.json`: ids that begin and end a text, and sampling settings if the file
/// specifies them.
fn generation_config(head: &Head<'_>, special: &Special<'_>) -> Result<Json> {
    let metadata = &head.metadata;
    let mut ends: Vec<u32> = special.eos.into_iter().chain(special.ends.iter().copied()).collect();
    ends.sort_unstable();
    ends.dedup();
    let mut config = Map::new();
    if !ends.is_empty() {
        config.insert("eos_token_id".to_owned(), ends.into());
    }
    for (name, id) in [("bos_token_id", special.bos), ("pad_token_id", special.padding)] {
        if let Some(id) = id {
            config.insert(name.to_owned(), id.into());
        }
    }
    if let Some(list) = metadata.list(SUPPRESSED)? {
        let id = |value| match value {
            Value::Integer(number) => u32::try_from(number).ok(),
            _ => None,
        };
        let ids = list.iter().take(RULE_IDS_MAX + 1).map(id).collect::<Option<Vec<u32>>>();
        let ids = ids.ok_or_else(|| metadata.wrong(SUPPRESSED, "a list of token ids"))?;
        config.insert("suppress_tokens".to_owned(), ids.into());
    }
    if metadata.get("general.sampling.temp").is_some() {
        config.insert("do_sample".to_owned(), true.into());
    }
    for (key, value) in metadata.entries() {
        let Some(name) = key.strip_prefix("general.sampling.") else { continue };
        let Some(&(_, field)) = SAMPLING.iter().find(|(known, _)| *known == name) else {
            let known = SAMPLING.map(|(known, _)| known).join(", ");
            return Err(unsupported(metadata, key, &value.shown(), &known));
        };
        let value = match value {
            Value::Integer(number) => u64::try_from(number).map(Json::from).ok(),
            Value::Float(number) => serde_json::Number::from_f64(number).map(Json::Number),
            _ => None,
        };
        let value = value.ok_or_else(|| metadata.wrong(key, "a number from 0 on"))?;
        config.insert(field.to_owned(), value);
    }
    Ok(Json::Object(config))
}
