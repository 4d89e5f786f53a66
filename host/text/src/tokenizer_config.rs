//! `tokenizer_config.json`: tokens around a text, and fields that have no effect.

use std::path::Path;

use serde_json::Value;
use shardwright_vocabulary::Ignored;

use crate::error::Result;
use crate::input::{Files, invalid_field};

const FILE: &str = "tokenizer_config.json";

/// Fields that cannot change ids or texts here, with the reason. Fields that end in `_token` are
/// variables of chat templates.
const CANNOT_MATTER: [(&str, &[&str]); 5] = [
    (
        "names of Python's classes and files, of which `tokenizer.json` is independent",
        &[
            "tokenizer_class",
            "processor_class",
            "auto_map",
            "name_or_path",
            "tokenizer_file",
            "vocab_file",
            "merges_file",
            "backend",
            "is_local",
            "local_files_only",
            "transformers_version",
            "use_fast",
            "fast",
            "tokenizer_type",
            "vocab_size",
            "from_slow",
            "legacy",
            "sp_model_kwargs",
            "special_tokens_map_file",
        ],
    ),
    (
        "limits and padding of batches; a prompt is never cut or padded",
        &[
            "model_max_length",
            "max_length",
            "max_len",
            "stride",
            "truncation",
            "truncation_side",
            "truncation_strategy",
            "padding",
            "padding_side",
            "pad_to_multiple_of",
            "pad_token_type_id",
            "model_input_names",
            "return_token_type_ids",
        ],
    ),
    (
        "texts of word tokenizers; the library leaves those of byte-pair tokenizers as they are",
        &["clean_up_tokenization_spaces", "spaces_between_special_tokens", "errors"],
    ),
    (
        "tokens that `tokenizer.json` has too",
        &["added_tokens_decoder", "additional_special_tokens", "extra_special_tokens", "add_prefix_space"],
    ),
    (
        "settings of programs that use a reply",
        &[
            "response_schema",
            "response_template",
            "use_default_system_prompt",
            "model_specific_special_tokens",
        ],
    ),
];

/// Settings of `tokenizer_config.json`, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// Tokens before and after a text, if the file specifies whether there are any. They replace
    /// the tokens that `tokenizer.json` specifies.
    pub(crate) ends: Option<[Option<String>; 2]>,
    /// Unused fields that would change ids, and unknown fields.
    pub ignored: Vec<Ignored>,
}

impl TokenizerConfig {
    /// Reads the file in `directory`, which may be missing.
    ///
    /// # Errors
    ///
    /// The errors of reading it, and [`TextError::InvalidField`](crate::TextError::InvalidField).
    pub fn from_directory(directory: impl AsRef<Path>) -> Result<TokenizerConfig> {
        TokenizerConfig::read(&Files::of(directory.as_ref())?)
    }

    /// Like [`TokenizerConfig::from_directory`], but calls `file` for the contents of a file.
    /// Errors name it as a file of `directory`.
    pub fn from_files(
        directory: impl AsRef<Path>,
        file: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<TokenizerConfig> {
        TokenizerConfig::read(&Files::from_source(directory.as_ref(), &file))
    }

    /// Returns whether a field of the file cannot change ids or texts.
    pub fn cannot_matter(field: &str) -> bool {
        CANNOT_MATTER.iter().any(|(_, names)| names.contains(&field))
    }

    fn read(files: &Files<'_>) -> Result<TokenizerConfig> {
        let fields = files.object(FILE)?.unwrap_or_default();
        let path = files.path(FILE);
        let flag = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(invalid_field(&path, name, "true or false", other)),
        };
        let token = |name: &str| match fields.get(name) {
            Some(Value::String(token)) => Some(token.clone()),
            Some(Value::Object(token)) => token.get("content")?.as_str().map(str::to_owned),
            _ => None,
        };
        let ends = match (flag("add_bos_token")?, flag("add_eos_token")?) {
            (None, None) => None,
            (begin, end) => Some([
                token("bos_token").filter(|_| begin == Some(true)),
                token("eos_token").filter(|_| end == Some(true)),
            ]),
        };
        let reason = |name: &str, value: &Value| match name {
            _ if value.is_null() || name.ends_with("_token") || name == "chat_template" => None,
            "split_special_tokens" if value == &Value::Bool(false) => None,
            "split_special_tokens" => Some("special tokens that a text spells out are tokens"),
            name if TokenizerConfig::cannot_matter(name) => None,
            _ => Some("the field is not known"),
        };
        let found = fields.iter().filter_map(|(name, value)| Some((name, reason(name, value)?)));
        let ignored = found.map(|(name, reason)| Ignored::field(&path, name, reason)).collect();
        Ok(TokenizerConfig { ends, ignored })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TextError;

    fn read(text: &str) -> Result<TokenizerConfig> {
        TokenizerConfig::from_files("m", |name| (name == FILE).then(|| text.as_bytes().to_vec()))
    }

    #[test]
    fn ends_are_those_the_file_names() {
        let token = |text: &str| Some(text.to_owned());
        for (text, ends) in [
            ("{}", None),
            (r#"{"bos_token": "<b>"}"#, None),
            (r#"{"add_bos_token": true, "bos_token": "<b>"}"#, Some([token("<b>"), None])),
            (r#"{"add_bos_token": false, "bos_token": "<b>"}"#, Some([None, None])),
            (r#"{"add_eos_token": true, "eos_token": {"content": "</s>"}}"#, Some([None, token("</s>")])),
            (r#"{"add_bos_token": true}"#, Some([None, None])),
        ] {
            assert_eq!(read(text).unwrap().ends, ends, "{text}");
        }
        let error = read(r#"{"add_bos_token": 1}"#).unwrap_err();
        assert!(
            matches!(&error, TextError::InvalidField { field, .. } if field == "add_bos_token"),
            "{error}"
        );
    }

    #[test]
    fn fields_without_effect_are_reported() {
        let text = r#"{"split_special_tokens": true, "novel": 1, "model_max_length": 5, "image_token": "x"}"#;
        let names: Vec<String> =
            read(text).unwrap().ignored.into_iter().filter_map(|found| found.field).collect();
        assert_eq!(names, ["novel", "split_special_tokens"]);
    }
}
