//! `generation_config.json`: a checkpoint's published stop rules, sampling settings and rules for
//! tokens.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use shardwright_vocabulary::{Error, Ignored, Result};

use crate::generation_fields;
use crate::input::{Files, invalid_field};
use crate::sampler::SamplingParameters;
use crate::token_rules::{RULE_IDS_MAX, TokenRules};

/// Most stop ids that are read. Published files have up to five.
const STOP_IDS_MAX: usize = 256;

/// Hugging Face samples from the top 50 tokens if a file enables sampling without `top_k`.
const TOP_K_DEFAULT: u32 = 50;

/// Generation settings of a checkpoint. Absent settings have Hugging Face's defaults.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationConfig {
    /// Ids that end a reply (`eos_token_id`). They are from `generation_config.json`, or else from
    /// `config.json`, where they may be at the top level or in `text_config`. Ascending, without
    /// repetition.
    pub stop_ids: Vec<u32>,
    /// Id of the token that begins a text (`bos_token_id`).
    pub bos_id: Option<u32>,
    /// Id of the padding token (`pad_token_id`).
    pub pad_id: Option<u32>,
    /// Sampling settings: greedy unless the file has `do_sample: true`.
    pub sampling: SamplingParameters,
    /// Rules for tokens that must not be chosen.
    pub rules: TokenRules,
    /// Texts that end a reply (`stop_strings`).
    pub stop_strings: Vec<String>,
    /// Most tokens of a reply (`max_new_tokens`).
    pub max_new_tokens: Option<usize>,
    /// Most tokens of prompt and reply together (`max_length`).
    pub max_length: Option<usize>,
    /// Unused fields that would change replies, and unknown fields.
    pub ignored: Vec<Ignored>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` and, for missing ids, `config.json` in `directory`. Either
    /// may be missing. A field of the wrong type or out of range is an error, and never replaced by
    /// a default.
    pub fn from_directory(directory: impl AsRef<Path>) -> Result<GenerationConfig> {
        GenerationConfig::read(&Files::of(directory.as_ref())?)
    }

    /// Like [`GenerationConfig::from_directory`], but gets the contents of those files by name.
    /// Errors name them as files of `directory`.
    pub fn from_files(
        directory: impl AsRef<Path>,
        file: impl Fn(&str) -> Option<Vec<u8>>,
    ) -> Result<GenerationConfig> {
        GenerationConfig::read(&Files::from_source(directory.as_ref(), &file))
    }

    /// Returns whether a field of `generation_config.json` cannot change a reply.
    pub fn cannot_matter(field: &str) -> bool {
        generation_fields::cannot_matter(field)
    }

    fn read(files: &Files<'_>) -> Result<GenerationConfig> {
        let generation = Section::read(files, "generation_config.json")?;
        let model = Section::read(files, "config.json")?;
        let text_model = model.inner("text_config")?;
        let sections = [&generation, &model, &text_model];

        let mut config = GenerationConfig {
            sampling: generation.sampling()?,
            rules: generation.token_rules()?,
            stop_strings: generation.texts("stop_strings")?,
            max_new_tokens: generation.count("max_new_tokens")?,
            max_length: generation.count("max_length")?,
            ignored: generation_fields::ignored(&generation.path, &generation.fields),
            ..GenerationConfig::default()
        };
        for section in sections {
            if config.stop_ids.is_empty() {
                config.stop_ids = section.ids("eos_token_id")?;
            }
            if config.bos_id.is_none() {
                config.bos_id = section.id("bos_token_id")?;
            }
            if config.pad_id.is_none() {
                config.pad_id = section.id("pad_token_id")?;
            }
        }
        config.rules.stop_ids = config.stop_ids.clone();
        let limits = [
            ("min_new_tokens", config.rules.min_new_tokens, "max_new_tokens", config.max_new_tokens),
            ("min_length", config.rules.min_length, "max_length", config.max_length),
        ];
        for (field, least, limit, most) in limits {
            if let Some(most) = most.filter(|most| least > *most) {
                let reason = format!("a reply ends at `{limit}`, which is {most}");
                config.ignored.push(Ignored::field(&generation.path, field, reason));
            }
        }
        Ok(config)
    }
}

/// An object of a file, and the file's path.
pub(crate) struct Section {
    path: PathBuf,
    prefix: &'static str,
    fields: Map<String, Value>,
}

impl Section {
    pub(crate) fn read(files: &Files<'_>, name: &str) -> Result<Section> {
        let fields = files.object(name)?.unwrap_or_default();
        Ok(Section { path: files.path(name), prefix: "", fields })
    }

    fn inner(&self, name: &'static str) -> Result<Section> {
        let fields = match self.present(name) {
            None => Map::new(),
            Some(Value::Object(fields)) => fields.clone(),
            Some(other) => return Err(invalid_field(&self.path, name, "an object", other)),
        };
        Ok(Section { path: self.path.clone(), prefix: name, fields })
    }

    /// Returns a field that exists and is not null.
    fn present(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    fn invalid(&self, name: &str, expected: &str, found: &Value) -> Error {
        let field = if self.prefix.is_empty() { name.to_owned() } else { format!("{}.{name}", self.prefix) };
        invalid_field(&self.path, &field, expected, found)
    }

    pub(crate) fn id(&self, name: &str) -> Result<Option<u32>> {
        match self.present(name) {
            None => Ok(None),
            // If the field is a list, its first entry is the id.
            Some(Value::Array(_)) => Ok(self.ids(name)?.first().copied()),
            Some(value) => as_id(value)
                .map(Some)
                .ok_or_else(|| self.invalid(name, "a token id (a whole number below 2³²)", value)),
        }
    }

    fn ids(&self, name: &str) -> Result<Vec<u32>> {
        const EXPECTED: &str = "a token id or a list of at most 256";
        let Some(value) = self.present(name) else {
            return Ok(Vec::new());
        };
        let ids = match value {
            Value::Array(_) => as_ids(value, STOP_IDS_MAX),
            value => as_id(value).map(|id| vec![id]),
        };
        let mut ids: Vec<u32> = ids.ok_or_else(|| self.invalid(name, EXPECTED, value))?;
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Returns a list of ids for a rule.
    fn rule_ids(&self, name: &str) -> Result<Vec<u32>> {
        let ids = |value: &Value| as_ids(value, RULE_IDS_MAX);
        self.field(name, "a list of at most 4096 token ids", ids).map(Option::unwrap_or_default)
    }

    fn token_rules(&self) -> Result<TokenRules> {
        let words = |value: &Value| {
            let words = value.as_array().filter(|words| words.len() <= RULE_IDS_MAX)?;
            words.iter().map(|word| as_ids(word, STOP_IDS_MAX).filter(|word| !word.is_empty())).collect()
        };
        let expected = "a list of at most 4096 lists of 1 to 256 token ids";
        Ok(TokenRules {
            suppress_tokens: self.rule_ids("suppress_tokens")?,
            begin_suppress_tokens: self.rule_ids("begin_suppress_tokens")?,
            bad_words_ids: self.field("bad_words_ids", expected, words)?.unwrap_or_default(),
            no_repeat_ngram_size: self.count("no_repeat_ngram_size")?.unwrap_or(0),
            min_new_tokens: self.count("min_new_tokens")?.unwrap_or(0),
            min_length: self.count("min_length")?.unwrap_or(0),
            forced_bos_token_id: self.field("forced_bos_token_id", "a token id", as_id)?,
            stop_ids: Vec::new(),
        })
    }

    /// Returns a text or a list of texts as a list.
    fn texts(&self, name: &str) -> Result<Vec<String>> {
        let texts = |value: &Value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            value => value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        };
        self.field(name, "a text or a list of texts", texts).map(Option::unwrap_or_default)
    }

    fn count(&self, name: &str) -> Result<Option<usize>> {
        let count = |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok());
        self.field(name, "a whole number", count)
    }

    fn field<T>(&self, name: &str, expected: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>> {
        let found = self.present(name);
        found.map(|value| read(value).ok_or_else(|| self.invalid(name, expected, value))).transpose()
    }

    fn number(&self, name: &str, default: f32) -> Result<f32> {
        let finite = |value: &Value| value.as_f64().map(|number| number as f32).filter(|it| it.is_finite());
        Ok(self.field(name, "a number", finite)?.unwrap_or(default))
    }

    fn sampling(&self) -> Result<SamplingParameters> {
        let do_sample = self.field("do_sample", "true or false", Value::as_bool)?.unwrap_or(false);
        let top_k = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        let top_k = self.field("top_k", "a whole number", top_k)?.unwrap_or(TOP_K_DEFAULT);
        let parameters = SamplingParameters {
            do_sample,
            temperature: self.number("temperature", 1.0)?,
            top_k,
            top_p: self.number("top_p", 1.0)?,
            min_p: self.number("min_p", 0.0)?,
            repetition_penalty: self.number("repetition_penalty", 1.0)?,
            seed: 0,
        };
        if let Some((name, expected, _)) = parameters.first_fault() {
            let value = self.fields.get(name).unwrap_or(&Value::Null);
            return Err(self.invalid(name, expected, value));
        }
        Ok(parameters)
    }
}

fn as_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// Returns a list of at most `most` ids.
fn as_ids(value: &Value, most: usize) -> Option<Vec<u32>> {
    value.as_array().filter(|ids| ids.len() <= most)?.iter().map(as_id).collect()
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    fn read(generation: Option<&str>, config: Option<&str>) -> Result<GenerationConfig> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("generation_config.json", generation), ("config.json", config)] {
            if let Some(text) = text {
                std::fs::write(folder.path().join(name), text).unwrap();
            }
        }
        let read = GenerationConfig::from_directory(folder.path());
        let file = |name: &str| std::fs::read(folder.path().join(name)).ok();
        let supplied = GenerationConfig::from_files(folder.path(), file);
        match (&read, &supplied) {
            (Ok(read), Ok(supplied)) => assert_eq!(read, supplied),
            (read, supplied) => assert_eq!(
                read.as_ref().map_err(ToString::to_string).err(),
                supplied.as_ref().map_err(ToString::to_string).err()
            ),
        }
        read
    }

    #[test]
    fn stop_ids_come_from_the_first_place_that_has_them() {
        struct Case {
            generation: Option<&'static str>,
            config: Option<&'static str>,
            ids: &'static [u32],
        }
        let cases = [
            Case {
                generation: Some(r#"{"eos_token_id": [106, 1, 1]}"#),
                config: Some(r#"{"eos_token_id": 7}"#),
                ids: &[1, 106],
            },
            Case { generation: Some(r#"{"eos_token_id": 5}"#), config: None, ids: &[5] },
            Case { generation: Some("{}"), config: Some(r#"{"eos_token_id": 7}"#), ids: &[7] },
            Case {
                generation: Some(r#"{"eos_token_id": null}"#),
                config: Some(r#"{"text_config": {"eos_token_id": [8, 9]}}"#),
                ids: &[8, 9],
            },
            Case { generation: None, config: None, ids: &[] },
            Case {
                generation: Some(r#"{"eos_token_id": []}"#),
                config: Some(r#"{"eos_token_id": 4}"#),
                ids: &[4],
            },
        ];
        for case in cases {
            assert_eq!(
                read(case.generation, case.config).unwrap().stop_ids,
                case.ids,
                "{:?}",
                case.generation
            );
        }
    }

    #[test]
    fn sampling_defaults_are_those_of_hugging_face() {
        let config = read(Some(r#"{"do_sample": true, "top_k": 64, "top_p": 0.95}"#), None).unwrap();
        assert_eq!(
            config.sampling,
            SamplingParameters { do_sample: true, top_k: 64, top_p: 0.95, ..SamplingParameters::greedy() }
        );
        assert!(!read(Some("{}"), None).unwrap().sampling.do_sample);
        assert_eq!(read(Some(r#"{"do_sample": true}"#), None).unwrap().sampling.top_k, 50);
    }

    #[test]
    fn rules_and_limits_are_read() {
        let config = read(
            Some(
                r#"{"eos_token_id": 4, "suppress_tokens": [7, 8], "begin_suppress_tokens": [5],
                "bad_words_ids": [[1, 2], [3]], "no_repeat_ngram_size": 3, "min_new_tokens": 2,
                "min_length": 9, "forced_bos_token_id": 6, "stop_strings": "END", "max_new_tokens": 50,
                "max_length": 80, "num_beams": 2}"#,
            ),
            None,
        )
        .unwrap();
        let rules = TokenRules {
            suppress_tokens: vec![7, 8],
            begin_suppress_tokens: vec![5],
            bad_words_ids: vec![vec![1, 2], vec![3]],
            no_repeat_ngram_size: 3,
            min_new_tokens: 2,
            min_length: 9,
            forced_bos_token_id: Some(6),
            stop_ids: vec![4],
        };
        assert_eq!(config.rules, rules);
        assert_eq!((config.max_new_tokens, config.max_length), (Some(50), Some(80)));
        assert_eq!(config.stop_strings, ["END"]);
        assert_eq!(config.ignored.len(), 1);
    }

    /// As in Hugging Face, which warns, a reply ends at the limit.
    #[test]
    fn a_minimum_above_the_limit_is_reported() {
        let reports = |text: &str| {
            let config = read(Some(text), None).unwrap();
            let of = |found: &Ignored| (found.field.clone().unwrap_or_default(), found.reason.clone());
            config.ignored.iter().map(of).collect::<Vec<_>>()
        };
        let expected = |field: &str, reason: &str| [(field.to_owned(), reason.to_owned())];
        assert_eq!(
            reports(r#"{"min_new_tokens": 9, "max_new_tokens": 8}"#),
            expected("min_new_tokens", "a reply ends at `max_new_tokens`, which is 8")
        );
        assert_eq!(
            reports(r#"{"min_length": 9, "max_length": 8}"#),
            expected("min_length", "a reply ends at `max_length`, which is 8")
        );
        for text in [
            r#"{"min_new_tokens": 8, "max_new_tokens": 8, "min_length": 8, "max_length": 8}"#,
            r#"{"min_new_tokens": 9, "min_length": 9}"#,
            r#"{"max_new_tokens": 0, "max_length": 0}"#,
        ] {
            assert!(reports(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn nonsense_is_named() {
        for (text, field) in [
            (r#"{"eos_token_id": -1}"#, "eos_token_id"),
            (r#"{"eos_token_id": 4294967296}"#, "eos_token_id"),
            (r#"{"eos_token_id": 1.5}"#, "eos_token_id"),
            (r#"{"eos_token_id": [1, "2"]}"#, "eos_token_id"),
            (r#"{"eos_token_id": {"a": 1}}"#, "eos_token_id"),
            (r#"{"bos_token_id": "x"}"#, "bos_token_id"),
            (r#"{"pad_token_id": true}"#, "pad_token_id"),
            (r#"{"do_sample": 1}"#, "do_sample"),
            (r#"{"top_k": -3}"#, "top_k"),
            (r#"{"top_k": 1e300}"#, "top_k"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"temperature": 1e300}"#, "temperature"),
            (r#"{"temperature": -1}"#, "temperature"),
            (r#"{"top_p": 1.5}"#, "top_p"),
            (r#"{"min_p": -0.5}"#, "min_p"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
            (r#"{"suppress_tokens": 3}"#, "suppress_tokens"),
            (r#"{"begin_suppress_tokens": [-1]}"#, "begin_suppress_tokens"),
            (r#"{"bad_words_ids": [3]}"#, "bad_words_ids"),
            (r#"{"bad_words_ids": [[]]}"#, "bad_words_ids"),
            (r#"{"no_repeat_ngram_size": -1}"#, "no_repeat_ngram_size"),
            (r#"{"min_new_tokens": 0.5}"#, "min_new_tokens"),
            (r#"{"min_length": "x"}"#, "min_length"),
            (r#"{"forced_bos_token_id": [2]}"#, "forced_bos_token_id"),
            (r#"{"stop_strings": [1]}"#, "stop_strings"),
            (r#"{"max_new_tokens": {}}"#, "max_new_tokens"),
            (r#"{"max_length": -2}"#, "max_length"),
        ] {
            let error = read(Some(text), None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.message().starts_with(&format!("`{field}` should be ")), "{text}: {error}");
            assert!(error.to_string().contains("generation_config.json"), "{error}");
        }
        let many = format!(r#"{{"eos_token_id": [{}1]}}"#, "1,".repeat(300));
        let error = read(None, Some(r#"{"text_config": {"eos_token_id": "x"}}"#)).unwrap_err();
        assert!(error.to_string().contains("text_config.eos_token_id"), "{error}");
        for (generation, config, words) in [
            (Some(many.as_str()), None, "`eos_token_id` should be "),
            (None, Some(r#"{"text_config": 3}"#), "`text_config` should be an object"),
            (Some("[]"), None, "expected a JSON object, got []"),
            (Some(r#"{"top_k": 1, "top_k": 2}"#), None, "a second key `top_k` at line 1 "),
            (Some("{"), None, "not valid JSON: "),
        ] {
            let error = read(generation, config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().starts_with(words), "{error}");
        }
    }
}
