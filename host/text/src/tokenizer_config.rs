//! `tokenizer_config.json` and older files: fields that have no effect, and tokens that should
//! match `tokenizer.json`.

use std::path::{Path, PathBuf};

use serde_json::Value;
use shardwright_vocabulary::{Ignored, Result};

use crate::input::{Files, invalid_field};
use crate::token_files::{END_FLAGS, Role, Statement, TOKEN_FIELDS, TokenFiles};

/// Fields that cannot change ids or texts here, with the reason. Fields that end in `_token` are
/// variables of chat templates.
const CANNOT_MATTER: [(&str, &[&str]); 4] = [
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
        "settings of programs that use a reply",
        &["response_schema", "response_template", "use_default_system_prompt"],
    ),
];

/// Fields whose kind of value is checked here, and the expected kind.
const KINDS: [(&str, &str, IsExpected); 2] = [
    ("model_max_length", "a number", Value::is_number),
    ("chat_template", "a string, or a list of objects with `name` and `template`", |value| {
        value.is_string() || value.is_array()
    }),
];

/// Checks the kind of a field's value.
type IsExpected = fn(&Value) -> bool;

/// The token at an end of a text, as `tokenizer_config.json` specifies it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct End {
    /// Whether a text has the token, if the file specifies it.
    pub flag: Option<bool>,
    pub token: Option<Role>,
}

/// Settings of `tokenizer_config.json` and of older files with tokens, checked.
///
/// [`Tokenizer::with_config`](crate::Tokenizer::with_config) compares them with `tokenizer.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// The beginning and the end of a text.
    pub(crate) ends: [End; 2],
    pub(crate) add_prefix_space: Option<bool>,
    pub(crate) statements: Vec<Statement>,
    pub(crate) path: PathBuf,
    /// Unused fields that would change ids, and unknown fields.
    pub ignored: Vec<Ignored>,
}

impl TokenizerConfig {
    /// Reads the files in `directory`, which may be missing: `tokenizer_config.json`, and if it has
    /// no `added_tokens_decoder`, `special_tokens_map.json` and `added_tokens.json`.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or a field has a value of the wrong type.
    pub fn from_directory(directory: impl AsRef<Path>) -> Result<TokenizerConfig> {
        TokenizerConfig::read(&Files::of(directory.as_ref())?)
    }

    /// Like [`TokenizerConfig::from_directory`], but gets the contents of those files by name.
    /// Errors name them as files of `directory`.
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
        let tokens = TokenFiles::read(files)?;
        let (path, fields) = tokens.config();
        for (name, expected, is_expected) in KINDS {
            if let Some(value) = fields.get(name).filter(|value| !value.is_null() && !is_expected(value)) {
                return Err(invalid_field(path, name, expected, value));
            }
        }
        let flag = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(invalid_field(path, name, "true or false", other)),
        };
        let roles = tokens.roles()?;
        let role = |name: &str| roles.iter().rfind(|role| role.name == name).cloned();
        let [begin, end] = END_FLAGS;
        let ends = [
            End { flag: flag(begin)?, token: role("bos_token") },
            End { flag: flag(end)?, token: role("eos_token") },
        ];
        let add_prefix_space = flag("add_prefix_space")?;
        let is_used = |name: &str, value: &Value| {
            // Other roles are added tokens and variables of templates.
            let is_role = name.ends_with("_token") && !value.is_boolean();
            is_role
                || ["chat_template", "add_prefix_space"].contains(&name)
                || END_FLAGS.contains(&name)
                || TOKEN_FIELDS.contains(&name)
        };
        let reason = |name: &str, value: &Value| match name {
            _ if value.is_null() || is_used(name, value) => None,
            "split_special_tokens" if value == &Value::Bool(false) => None,
            "split_special_tokens" => Some("special tokens that a text spells out are tokens"),
            name if TokenizerConfig::cannot_matter(name) => None,
            _ => Some("the field is not known"),
        };
        let found = fields.iter().filter_map(|(name, value)| Some((name, reason(name, value)?)));
        let mut ignored: Vec<Ignored> =
            found.map(|(name, reason)| Ignored::field(path, name, reason)).collect();
        ignored.extend(tokens.ignored(&roles)?);
        let statements = tokens.statements(&roles)?;
        Ok(TokenizerConfig { ends, add_prefix_space, statements, path: path.to_owned(), ignored })
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn read(text: &str) -> Result<TokenizerConfig> {
        let file = |name: &str| (name == "tokenizer_config.json").then(|| text.as_bytes().to_vec());
        TokenizerConfig::from_files("m", file)
    }

    #[test]
    fn ends_are_those_the_file_names() {
        let none = (None, None);
        for (text, expected) in [
            ("{}", [none, none]),
            (r#"{"bos_token": "<b>"}"#, [(None, Some("<b>")), none]),
            (r#"{"add_bos_token": true, "bos_token": "<b>"}"#, [(Some(true), Some("<b>")), none]),
            (r#"{"add_bos_token": false, "bos_token": null}"#, [(Some(false), None), none]),
            (
                r#"{"add_eos_token": true, "eos_token": {"content": "<e>"}}"#,
                [none, (Some(true), Some("<e>"))],
            ),
            (r#"{"add_bos_token": true}"#, [(Some(true), None), none]),
        ] {
            let config = read(text).unwrap();
            let ends = config.ends.each_ref();
            let found = ends.map(|end| (end.flag, end.token.as_ref().map(|role| role.content.as_str())));
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn values_of_the_wrong_kind_are_named() {
        for (text, expected) in [
            (r#"{"add_bos_token": 1}"#, "add_bos_token"),
            (r#"{"add_eos_token": "yes"}"#, "add_eos_token"),
            (r#"{"add_prefix_space": "yes"}"#, "add_prefix_space"),
            (r#"{"model_max_length": "x"}"#, "model_max_length"),
            (r#"{"chat_template": 5}"#, "chat_template"),
            (r#"{"chat_template": {"name": "x"}}"#, "chat_template"),
            (r#"{"eos_token": 5}"#, "eos_token"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, Some("m/tokenizer_config.json")));
            assert!(error.message().starts_with(&format!("`{expected}` should be ")), "{text}: {error}");
            assert!(error.help().is_some(), "{error}");
        }
        let text = r#"{"model_max_length": 1000000000000000019884624838656, "chat_template": null}"#;
        assert!(read(text).is_ok());
    }

    #[test]
    fn fields_without_effect_are_reported() {
        let text = r#"{"split_special_tokens": true, "novel": 1, "model_max_length": 5, "image_token": "x",
            "add_sep_token": true}"#;
        let names: Vec<String> =
            read(text).unwrap().ignored.into_iter().filter_map(|found| found.field).collect();
        assert_eq!(names, ["add_sep_token", "novel", "split_special_tokens"]);
    }
}
