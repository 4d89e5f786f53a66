//! `config_sentence_transformers.json`: prompts of an embedding model, and fields that have no
//! effect.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};
use shardwright_vocabulary::{Ignored, Result};

use crate::input::{Files, invalid_field};

const FILE: &str = "config_sentence_transformers.json";

/// Fields that are read.
const USED: [&str; 2] = ["prompts", "default_prompt_name"];

/// Fields that cannot change a vector, with the reason.
const CANNOT_MATTER: [(&str, &[&str]); 2] = [
    ("records of the file's making, and of Python's packages", &["__version__", "requirements"]),
    ("an application compares vectors itself", &["similarity_fn_name"]),
];

/// The only supported `model_type`. It is also the default.
const MODEL_TYPE: &str = "SentenceTransformer";

/// Prompts that a file need not have. They are empty unless it has them.
const USUAL_PROMPTS: [&str; 2] = ["query", "document"];

/// Settings of `config_sentence_transformers.json`, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SentenceConfig {
    /// Texts that precede the text to embed, by name.
    pub prompts: BTreeMap<String, String>,
    /// Name of the prompt for texts without a named one.
    pub default_prompt_name: Option<String>,
    /// Unused fields that would change vectors, and unknown fields.
    pub ignored: Vec<Ignored>,
}

impl SentenceConfig {
    /// Reads the file in `directory`. Returns `None` if it is missing.
    ///
    /// ```
    /// use shardwright_text::SentenceConfig;
    ///
    /// let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/embeddinggemma");
    /// let config = SentenceConfig::from_directory(fixture)?.expect("the fixture has prompts");
    /// assert_eq!(config.prompts["document"], "title: none | text: ");
    /// # Ok::<(), shardwright_vocabulary::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or a field has a value of the wrong type.
    pub fn from_directory(directory: impl AsRef<Path>) -> Result<Option<SentenceConfig>> {
        SentenceConfig::read(&Files::of(directory.as_ref())?)
    }

    /// Like [`SentenceConfig::from_directory`], but calls `file` for the contents of a file. Errors
    /// name it as a file of `directory`.
    pub fn from_files(
        directory: impl AsRef<Path>,
        file: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<Option<SentenceConfig>> {
        SentenceConfig::read(&Files::from_source(directory.as_ref(), &file))
    }

    /// Returns whether a field of the file cannot change a vector.
    pub fn cannot_matter(field: &str) -> bool {
        CANNOT_MATTER.iter().any(|(_, names)| names.contains(&field))
    }

    /// Returns the prompt for texts without a named one. It is empty if the file names none.
    pub fn default_prompt(&self) -> &str {
        let name = self.default_prompt_name.as_ref();
        name.and_then(|name| self.prompts.get(name)).map_or("", String::as_str)
    }

    fn read(files: &Files<'_>) -> Result<Option<SentenceConfig>> {
        let Some(fields) = files.object(FILE)? else { return Ok(None) };
        let path = files.path(FILE);
        let prompts = read_prompts(&path, &fields)?;
        let name = "default_prompt_name";
        let default_prompt_name = match fields.get(name) {
            None | Some(Value::Null) => None,
            Some(Value::String(prompt))
                if prompts.contains_key(prompt) || USUAL_PROMPTS.contains(&prompt.as_str()) =>
            {
                Some(prompt.clone())
            }
            Some(other) => return Err(invalid_field(&path, name, "the name of one of `prompts`", other)),
        };
        let reason = |name: &str, value: &Value| match name {
            _ if value.is_null() || USED.contains(&name) || SentenceConfig::cannot_matter(name) => None,
            "model_type" if value == MODEL_TYPE => None,
            "model_type" => Some("vectors are those of a `SentenceTransformer`"),
            "truncate_dim" => Some("vectors keep all values unless fewer are requested"),
            _ => Some("the field is not known"),
        };
        let found = fields.iter().filter_map(|(name, value)| Some((name, reason(name, value)?)));
        let ignored = found.map(|(name, reason)| Ignored::field(&path, name, reason)).collect();
        Ok(Some(SentenceConfig { prompts, default_prompt_name, ignored }))
    }
}

/// Reads the prompts. A prompt that is `null` is empty.
fn read_prompts(path: &Path, fields: &Map<String, Value>) -> Result<BTreeMap<String, String>> {
    let prompts = match fields.get("prompts") {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Object(prompts)) => prompts,
        Some(other) => return Err(invalid_field(path, "prompts", "an object", other)),
    };
    let text = |(name, value): (&String, &Value)| match value {
        Value::Null => Ok((name.clone(), String::new())),
        Value::String(text) => Ok((name.clone(), text.clone())),
        other => Err(invalid_field(path, &format!("prompts.{name}"), "a text", other)),
    };
    prompts.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn read(text: &str) -> Result<Option<SentenceConfig>> {
        SentenceConfig::from_files("m", |name| (name == FILE).then(|| text.as_bytes().to_vec()))
    }

    #[test]
    fn a_text_gets_the_default_prompt() {
        for (text, prompt) in [
            ("{}", ""),
            (r#"{"prompts": {"query": "q: "}, "default_prompt_name": null}"#, ""),
            (r#"{"prompts": {"query": "q: ", "poem": null}, "default_prompt_name": "query"}"#, "q: "),
            (r#"{"prompts": {"query": "q: ", "poem": null}, "default_prompt_name": "poem"}"#, ""),
            (r#"{"default_prompt_name": "document"}"#, ""),
        ] {
            assert_eq!(read(text).unwrap().unwrap().default_prompt(), prompt, "{text}");
        }
        assert_eq!(SentenceConfig::from_files("m", |_| None).unwrap(), None);
    }

    #[test]
    fn values_of_another_kind_are_refused_by_name() {
        for (text, named) in [
            (r#"{"default_prompt_name": "poem"}"#, "default_prompt_name"),
            (r#"{"default_prompt_name": 1}"#, "default_prompt_name"),
            (r#"{"prompts": []}"#, "prompts"),
            (r#"{"prompts": {"query": 1}}"#, "prompts.query"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().starts_with(&format!("`{named}` should be ")), "{error}");
            assert!(error.to_string().contains(FILE) && error.help().is_some(), "{error}");
        }
        let error = read("[]").unwrap_err();
        assert_eq!(error.message(), "expected a JSON object, got []");
        assert!(error.to_string().contains(FILE), "{error}");
    }

    #[test]
    fn fields_without_effect_are_reported() {
        let text = r#"{
            "__version__": {"pytorch": "2"}, "model_type": "SentenceTransformer", "similarity_fn_name": "dot",
            "truncate_dim": null
        }"#;
        assert_eq!(read(text).unwrap().unwrap().ignored, []);
        let text = r#"{"model_type": "SparseEncoder", "truncate_dim": 128, "novel": 1}"#;
        let ignored = read(text).unwrap().unwrap().ignored;
        let names: Vec<String> = ignored.iter().filter_map(|found| found.field.clone()).collect();
        assert_eq!(names, ["model_type", "novel", "truncate_dim"]);
        assert!(ignored[2].to_string().ends_with("keep all values unless fewer are requested"));
    }
}
