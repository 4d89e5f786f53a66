//! Finds fields of a `tokenizer.json` that have no effect: the library drops unknown fields.
//!
//! A step with an unknown field may split texts in another way than its author intended.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Parts that the library reads, in addition to the model.
const PARTS: [&str; 5] = ["added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"];
/// Fields that cannot change ids: a prompt is never cut or padded.
const CANNOT_MATTER: [&str; 3] = ["version", "truncation", "padding"];
/// Fields of the library's models.
const OF_MODELS: [&str; 12] = [
    "type",
    "vocab",
    "merges",
    "dropout",
    "unk_token",
    "unk_id",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
    "max_input_chars_per_word",
];
/// Fields of an added token.
const OF_TOKENS: [&str; 7] = ["id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"];
/// Older spellings, which the library reads and does not write.
const OLDER: [&str; 2] = ["add_prefix_space", "str_rep"];

/// The parts of a `tokenizer.json` as they are in the file, and the names of its unknown fields.
#[derive(Default)]
pub(crate) struct Written {
    parts: Map<String, Value>,
    others: Vec<String>,
    prefix: Option<String>,
}

impl Written {
    /// Parses parts that were stored as JSON.
    pub(crate) fn of_parts(parts: &[u8]) -> Written {
        Written { parts: serde_json::from_slice(parts).unwrap_or_default(), ..Written::default() }
    }

    /// Returns the model's prefix of tokens inside words, if it is not empty.
    pub(crate) fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref().filter(|prefix| !prefix.is_empty())
    }

    /// Iterates over the added tokens with their ids in the file.
    pub(crate) fn added_tokens(&self) -> impl Iterator<Item = (&str, u64)> {
        let tokens = self.parts.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
        tokens.filter_map(|token| Some((token.get("content")?.as_str()?, token.get("id")?.as_u64()?)))
    }

    /// Returns a field at the top level that is not known, if there is one.
    pub(crate) fn unknown_part(&self) -> Option<&str> {
        self.others.iter().find(|name| !name.contains('.')).map(String::as_str)
    }

    /// Describes a step of an unknown type. The library reads it as another step with the same
    /// fields. `used` has the steps as the library would write them.
    pub(crate) fn unknown_type(&self, used: &[(&str, &Value)]) -> Option<String> {
        used.iter().find_map(|(name, used)| read_otherwise(name, self.parts.get(*name)?, used))
    }

    /// Returns the fields without effect, sorted, with the names of the objects around them. `used`
    /// has the steps as the library would write them.
    pub(crate) fn unused(&self, used: &[(&str, &Value)]) -> Vec<String> {
        let mut unused = self.others.clone();
        for (name, used) in used {
            if let Some(written) = self.parts.get(*name) {
                missing(name, written, used, &mut unused);
            }
        }
        let tokens = self.parts.get("added_tokens").and_then(Value::as_array);
        let fields = tokens.into_iter().flatten().filter_map(Value::as_object).flat_map(Map::keys);
        for field in fields.filter(|field| !OF_TOKENS.contains(&field.as_str())) {
            let name = format!("added_tokens.{field}");
            if !unused.contains(&name) {
                unused.push(name);
            }
        }
        unused.sort_unstable();
        unused
    }
}

/// Finds a step that the library read as another type than the file states.
fn read_otherwise(name: &str, written: &Value, used: &Value) -> Option<String> {
    match (written, used) {
        (Value::Object(written), Value::Object(used)) => {
            if let (Some(stated), Some(read)) = (written.get("type"), used.get("type"))
                && stated != read
            {
                return Some(format!("the type {stated} of `{name}` is not known"));
            }
            let mut fields = written.iter();
            fields.find_map(|(field, value)| {
                read_otherwise(&format!("{name}.{field}"), value, used.get(field)?)
            })
        }
        (Value::Array(written), Value::Array(used)) => {
            let mut steps = written.iter().zip(used).enumerate();
            steps.find_map(|(index, (written, used))| {
                read_otherwise(&format!("{name}.{index}"), written, used)
            })
        }
        _ => None,
    }
}

/// Adds the fields of `written` that are missing from `used`.
fn missing(name: &str, written: &Value, used: &Value, into: &mut Vec<String>) {
    match (written, used) {
        (Value::Object(written), Value::Object(used)) => {
            for (field, value) in written {
                let inner = format!("{name}.{field}");
                match used.get(field) {
                    Some(used) => missing(&inner, value, used, into),
                    None if value.is_null() || OLDER.contains(&field.as_str()) => {}
                    None => into.push(inner),
                }
            }
        }
        (Value::Array(written), Value::Array(used)) if written.len() == used.len() => {
            for (index, (written, used)) in written.iter().zip(used).enumerate() {
                missing(&format!("{name}.{index}"), written, used, into);
            }
        }
        _ => {}
    }
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct File;
        impl<'de> Visitor<'de> for File {
            type Value = Written;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("the parts of a tokenizer")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Written, A::Error> {
                let mut file = Written::default();
                while let Some(field) = map.next_key::<String>()? {
                    match field.as_str() {
                        part if PARTS.contains(&part) => {
                            let value = map.next_value()?;
                            file.parts.insert(field, value);
                        }
                        "model" => {
                            let Model { fields, prefix } = map.next_value()?;
                            let unknown = fields.iter().filter(|field| !OF_MODELS.contains(&field.as_str()));
                            file.others.extend(unknown.map(|field| format!("model.{field}")));
                            file.prefix = prefix;
                        }
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            if !CANNOT_MATTER.contains(&field.as_str()) {
                                file.others.push(field);
                            }
                        }
                    }
                }
                Ok(file)
            }
        }
        deserializer.deserialize_map(File)
    }
}

/// The names of a model's fields, and one of its values.
#[derive(Default)]
struct Model {
    fields: Vec<String>,
    prefix: Option<String>,
}

impl<'de> Deserialize<'de> for Model {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Model;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Model, A::Error> {
                let mut model = Model::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "continuing_subword_prefix" {
                        model.prefix = map.next_value::<Value>()?.as_str().map(str::to_owned);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                    model.fields.push(name);
                }
                Ok(model)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use serde_json::json;
    use shardwright_vocabulary::ErrorKind;

    use super::*;
    use crate::Tokenizer;

    fn demo() -> Value {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/tokenizer.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn ignored(file: &Value) -> Vec<String> {
        let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes(), "m/tokenizer.json").unwrap();
        tokenizer.ignored().iter().filter_map(|ignored| ignored.field.clone()).collect()
    }

    #[test]
    fn steps_of_unknown_types_are_refused() {
        for place in ["/normalizer", "/post_processor", "/decoder/decoders/0"] {
            let mut file = demo();
            file.pointer_mut(place).expect(place)["type"] = json!("Novel");
            let error = Tokenizer::from_bytes(file.to_string().as_bytes(), "m/tokenizer.json").unwrap_err();
            let what = format!("the type \"Novel\" of `{}` is not known", place[1..].replace('/', "."));
            assert!(error.kind() == ErrorKind::Invalid && error.message().contains(&what), "{error}");
        }
    }

    #[test]
    fn each_field_without_effect_is_named_wherever_it_is() {
        for pointer in ["/model", "/normalizer", "/decoder", "/decoder/decoders/0", "/pre_tokenizer"] {
            let mut file = demo();
            let object = file.pointer_mut(pointer).and_then(Value::as_object_mut).expect(pointer);
            object.insert("wobble".to_owned(), json!(3));
            let expected = format!("{pointer}/wobble")[1..].replace('/', ".");
            assert_eq!(ignored(&file), [expected]);
        }
        // The library accepts no further part.
        let mut file = demo();
        file["wobble"] = json!(3);
        let error = Tokenizer::from_bytes(file.to_string().as_bytes(), "m/tokenizer.json").unwrap_err();
        assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, Some("m/tokenizer.json")));
        assert_eq!(error.message(), "not a valid tokenizer: the field `wobble` is not known");
        let mut file = demo();
        for token in file["added_tokens"].as_array_mut().unwrap() {
            token["colour"] = json!("red");
        }
        assert_eq!(ignored(&file), ["added_tokens.colour"]);
        // A field of another kind of step.
        let mut file = demo();
        file["normalizer"]["prepend_scheme"] = json!("first");
        assert_eq!(ignored(&file), ["normalizer.prepend_scheme"]);
        // In the order of their names.
        file["normalizer"]["colour"] = json!(1);
        file["decoder"]["wobble"] = json!(1);
        file["added_tokens"][0]["wobble"] = json!(1);
        let expected =
            ["added_tokens.wobble", "decoder.wobble", "normalizer.colour", "normalizer.prepend_scheme"];
        assert_eq!(ignored(&file), expected);
    }

    #[test]
    fn fields_of_older_files_and_of_batches_are_known() {
        let mut file = demo();
        file["padding"] = json!({ "strategy": "BatchLongest", "direction": "Right", "pad_id": 0,
            "pad_type_id": 0, "pad_token": "<pad>", "pad_to_multiple_of": null });
        file["pre_tokenizer"] = json!({ "type": "Metaspace", "replacement": "▁", "str_rep": "▁",
            "add_prefix_space": true, "prepend_scheme": "always" });
        assert_eq!(ignored(&file), [""; 0]);
    }

    /// The library would give such a token the other id and only log a warning.
    #[test]
    fn added_tokens_with_other_ids_are_refused() {
        let refused = |file: &Value| {
            let error = Tokenizer::from_bytes(file.to_string().as_bytes(), "m/tokenizer.json").unwrap_err();
            assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, Some("m/tokenizer.json")));
            assert!(error.message().starts_with("not a valid tokenizer: "), "{error}");
            assert!(error.help().is_some(), "{error}");
            error.to_string()
        };
        let mut file = demo();
        let tokens = file["added_tokens"].as_array_mut().unwrap();
        let eos = tokens.iter_mut().find(|token| token["content"] == "<eos>").unwrap();
        eos["id"] = json!(77);
        let words = "the added token `<eos>` has id 77, but id 1 in the vocabulary";
        assert!(refused(&file).contains(words));
        // A gap after the vocabulary.
        let mut file = demo();
        let mut token = file["added_tokens"][0].clone();
        token["content"] = json!("<new>");
        token["id"] = json!(5000);
        file["added_tokens"].as_array_mut().unwrap().push(token.clone());
        let words = "the added token `<new>` has id 5000, but id 4096 in the vocabulary";
        assert!(refused(&file).contains(words));
        token["id"] = json!(4096);
        *file["added_tokens"].as_array_mut().unwrap().last_mut().unwrap() = token;
        assert_eq!(ignored(&file), [""; 0]);
        // A file that only the library can read.
        file["model"]["end_of_word_suffix"] = json!("#");
        assert_eq!(ignored(&file), [""; 0]);
        file["added_tokens"][0]["id"] = json!(4097);
        assert!(refused(&file).contains("has id 4097, but id 0"));
    }

    /// All of the fixtures, read by the library and by an index.
    #[test]
    fn published_files_have_no_such_field() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let folders = std::fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path());
        let files: Vec<PathBuf> = folders.map(|folder| folder.join("tokenizer.json")).collect();
        let files: Vec<_> = files.iter().filter(|file| file.is_file()).collect();
        assert!(files.len() >= 15);
        for file in files {
            let tokenizer = Tokenizer::from_file(file).unwrap();
            assert_eq!(tokenizer.ignored(), [], "{}", file.display());
        }
    }
}
