//! Statements of other files that contradict `tokenizer.json`, whose own contents are used.

use std::collections::HashMap;

use serde_json::Value;
use shardwright_vocabulary::{Error, Ignored, Result};
use tokenizers::AddedToken;

use crate::token_files::{END_FLAGS, StatedToken, Statement};
use crate::tokenizer::Tokenizer;
use crate::tokenizer_config::TokenizerConfig;

/// Returns the fields of `config` and of the older files that contradict the tokenizer.
///
/// # Errors
///
/// If a text should begin or end with a token that does not exist.
pub(crate) fn contradictions(config: &TokenizerConfig, tokenizer: &Tokenizer) -> Result<Vec<Ignored>> {
    let mut found = ends(config, tokenizer)?;
    if let Some(prefixed) = config.add_prefix_space
        && prefixed != tokenizer.prefixes_space()
    {
        let reason = match prefixed {
            true => "`tokenizer.json` puts no space before a text",
            false => "`tokenizer.json` puts a space before a text",
        };
        found.push(Ignored::field(&config.path, "add_prefix_space", reason));
    }
    if !config.statements.is_empty() {
        let added = tokenizer.added_tokens();
        found.extend(config.statements.iter().filter_map(|statement| fault(statement, &added, tokenizer)));
    }
    Ok(found)
}

/// Compares the flags of the tokens around a text with the post-processor.
fn ends(config: &TokenizerConfig, tokenizer: &Tokenizer) -> Result<Vec<Ignored>> {
    if config.ends.iter().all(|end| end.flag.is_none()) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    let around = tokenizer.around()?;
    for (((end, ids), flag), place) in config.ends.iter().zip(&around).zip(END_FLAGS).zip(["before", "after"])
    {
        let agrees = match (end.flag, &end.token) {
            (None, _) => true,
            (Some(false), _) => ids.is_empty(),
            (Some(true), None) => !ids.is_empty(),
            (Some(true), Some(role)) => {
                let id = tokenizer.token_to_id(&role.content).ok_or_else(|| {
                    let (field, token, path) = (&role.field, &role.content, tokenizer.path().display());
                    Error::invalid(format!("`{field}` is `{token}`, which {path} does not have"))
                        .at(role.file.display())
                        .with_help(format!(
                            "name a token of the vocabulary in `{field}`, or set `{flag}` to false"
                        ))
                })?;
                ids[..] == [id]
            }
        };
        if !agrees {
            let tokens: Vec<String> = ids.iter().map(|id| spelled(tokenizer, *id)).collect();
            let added = if tokens.is_empty() { "no token".to_owned() } else { tokens.join(", ") };
            let reason = format!("the post-processor of `tokenizer.json` adds {added} {place} a text");
            found.push(Ignored::field(&config.path, flag, reason));
        }
    }
    Ok(found)
}

fn spelled(tokenizer: &Tokenizer, id: u32) -> String {
    tokenizer.id_to_token(id).map_or_else(|| format!("the id {id}"), |token| format!("`{token}`"))
}

/// Returns the first contradiction of a statement, with the number of others.
fn fault(
    statement: &Statement,
    added: &HashMap<String, (u32, AddedToken)>,
    tokenizer: &Tokenizer,
) -> Option<Ignored> {
    let tokens = statement.tokens.iter();
    let mut faults = tokens.filter_map(|token| Some((token, difference(token, added, tokenizer)?)));
    let (token, difference) = faults.next()?;
    let field = statement.field.as_ref().unwrap_or(&token.content);
    let reason = match faults.count() {
        0 => difference,
        others => format!("{difference} (and {others} more)"),
    };
    Some(Ignored::field(&statement.file, field, reason))
}

fn difference(
    stated: &StatedToken,
    added: &HashMap<String, (u32, AddedToken)>,
    tokenizer: &Tokenizer,
) -> Option<String> {
    let text = &stated.content;
    let Some((id, found)) = added.get(text) else {
        // The library skips empty tokens.
        let agrees = text.is_empty() || (!stated.added && tokenizer.token_to_id(text).is_some());
        return (!agrees).then(|| format!("`tokenizer.json` does not add the token `{text}`"));
    };
    if let Some(other) = stated.id.filter(|other| other != id) {
        return Some(format!("the token `{text}` has id {id} in `tokenizer.json`, expected {other}"));
    }
    let flag = |name: &str| match name {
        "single_word" => found.single_word,
        "lstrip" => found.lstrip,
        "rstrip" => found.rstrip,
        "normalized" => found.normalized,
        _ => found.special,
    };
    let &(name, expected) = stated.flags.iter().find(|&&(name, expected)| flag(name) != expected)?;
    let actual = !expected;
    Some(format!("`{name}` of the token `{text}` is {actual} in `tokenizer.json`, expected {expected}"))
}

/// Checks whether one of the steps puts a space before a text.
pub(crate) fn prefixes_space(steps: &Value) -> bool {
    match steps {
        Value::Array(steps) => steps.iter().any(prefixes_space),
        Value::Object(step) => match step.get("type").and_then(Value::as_str) {
            Some("Prepend") => true,
            Some("ByteLevel") => step.get("add_prefix_space") == Some(&Value::Bool(true)),
            Some("Metaspace") => step.get("prepend_scheme").and_then(Value::as_str) != Some("never"),
            _ => step.values().any(prefixes_space),
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    const CONFIG: &str = "tokenizer_config.json";

    fn demo() -> Value {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/tokenizer.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    /// Reads a folder with `tokenizer` and other files.
    fn folder(tokenizer: &Value, files: &[(&str, Value)]) -> Result<Tokenizer> {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, value: &Value| {
            std::fs::write(folder.path().join(name), value.to_string()).unwrap();
        };
        write("tokenizer.json", tokenizer);
        files.iter().for_each(|(name, value)| write(name, value));
        let cache = folder.path().join("cache");
        let indexed = Tokenizer::from_checkpoint_indexed(folder.path(), cache);
        let read = Tokenizer::from_checkpoint(folder.path());
        if let (Ok(read), Ok(indexed)) = (&read, &indexed) {
            assert_eq!(read.ignored(), indexed.ignored());
        }
        read
    }

    /// Returns the reports, each as file, field and reason.
    fn reports(tokenizer: &Value, files: &[(&str, Value)]) -> Vec<String> {
        let found = folder(tokenizer, files).unwrap();
        let of = |found: &Ignored| {
            let file = found.file.file_name().unwrap().display().to_string();
            format!("{file}: {}: {}", found.field.as_deref().unwrap_or_default(), found.reason)
        };
        found.ignored().iter().map(of).collect()
    }

    #[test]
    fn flags_that_contradict_the_post_processor_are_reported() {
        let post = |begin: Value, end: Value| {
            let token = |name: Value| json!({"SpecialToken": {"id": name, "type_id": 0}});
            let mut single = vec![json!({"Sequence": {"id": "A", "type_id": 0}})];
            if !begin.is_null() {
                single.insert(0, token(begin));
            }
            if !end.is_null() {
                single.push(token(end));
            }
            let mut file = demo();
            let one = |name: &str, id: u32| json!({"id": name, "ids": [id], "tokens": [name]});
            file["post_processor"] = json!({"type": "TemplateProcessing", "single": single, "pair": single,
                "special_tokens": {"<bos>": one("<bos>", 2), "<eos>": one("<eos>", 1)}});
            file
        };
        let (none, bos) = (post(json!(null), json!(null)), post(json!("<bos>"), json!(null)));
        let both = post(json!("<bos>"), json!("<eos>"));
        let config = |begin: Value, end: Value| {
            json!({"bos_token": "<bos>", "eos_token": "<eos>",
                "add_bos_token": begin, "add_eos_token": end})
        };
        let adds = |flag: &str, added: &str, place: &str| {
            format!("{CONFIG}: {flag}: the post-processor of `tokenizer.json` adds {added} {place} a text")
        };
        let begins = |added: &str| adds("add_bos_token", added, "before");
        let ends = |added: &str| adds("add_eos_token", added, "after");
        let (on, off, unset) = (json!(true), json!(false), json!(null));
        let mut bare = demo();
        bare["post_processor"] = json!(null);
        for (file, begin, end, expected) in [
            (&bos, &on, &off, vec![]),
            (&bos, &unset, &unset, vec![]),
            (&both, &on, &on, vec![]),
            (&none, &off, &off, vec![]),
            (&bare, &off, &unset, vec![]),
            (&bare, &on, &unset, vec![begins("no token")]),
            (&none, &on, &on, vec![begins("no token"), ends("no token")]),
            (&both, &off, &off, vec![begins("`<bos>`"), ends("`<eos>`")]),
            (&bos, &unset, &on, vec![ends("no token")]),
        ] {
            let config = config(begin.clone(), end.clone());
            assert_eq!(reports(file, &[(CONFIG, config.clone())]), expected, "{config}");
        }
        // Another token, and no token.
        let other = json!({"add_bos_token": true, "bos_token": "<eos>"});
        assert_eq!(reports(&bos, &[(CONFIG, other)]), [begins("`<bos>`")]);
        let unnamed = json!({"add_bos_token": true});
        assert_eq!(reports(&none, &[(CONFIG, unnamed.clone())]), [begins("no token")]);
        assert_eq!(reports(&bos, &[(CONFIG, unnamed)]), [""; 0]);
    }

    #[test]
    fn a_text_cannot_begin_or_end_with_a_token_that_does_not_exist() {
        for (flag, role) in [("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")] {
            let config = json!({flag: true, role: "<nope>"});
            let error = folder(&demo(), &[(CONFIG, config)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().starts_with(&format!("`{role}` is `<nope>`, which ")), "{error}");
            let text = error.to_string();
            for word in [CONFIG, role, "`<nope>`", "tokenizer.json"] {
                assert!(text.contains(word), "{text} lacks {word}");
            }
            assert!(error.help().is_some_and(|help| help.contains(flag)), "{:?}", error.help());
            // Without the flag, the token is only reported.
            let config = json!({flag: false, role: "<nope>"});
            let expected = format!("{CONFIG}: {role}: `tokenizer.json` does not add the token `<nope>`");
            assert!(reports(&demo(), &[(CONFIG, config)]).contains(&expected));
        }
        // A role of the older file.
        let (config, map) = (json!({"add_bos_token": true}), json!({"bos_token": "<nope>"}));
        let error = folder(&demo(), &[(CONFIG, config), ("special_tokens_map.json", map)]).unwrap_err();
        assert!(error.to_string().contains("special_tokens_map.json"), "{error}");
    }

    #[test]
    fn tokens_that_the_tokenizer_lacks_are_reported() {
        let missing = |place: &str| format!("{place}: `tokenizer.json` does not add the token `<nope>`");
        let id = |place: &str| format!("{place}: the token `<eos>` has id 1 in `tokenizer.json`, expected 7");
        let eos = json!({"content": "<eos>", "lstrip": false, "rstrip": false, "normalized": false,
            "single_word": false, "special": true});
        let mut stripping = eos.clone();
        stripping["rstrip"] = json!(true);
        let strips = "`rstrip` of the token `<eos>` is false in `tokenizer.json`, expected true";
        for (name, file, expected) in [
            (CONFIG, json!({"pad_token": "<nope>"}), Some(missing("tokenizer_config.json: pad_token"))),
            (CONFIG, json!({"pad_token": {"content": "<pad>"}, "mask_token": null, "cls_token": ""}), None),
            (
                CONFIG,
                json!({"additional_special_tokens": ["<eos>", "<nope>"]}),
                Some(missing("tokenizer_config.json: additional_special_tokens")),
            ),
            (
                CONFIG,
                json!({"extra_special_tokens": [{"content": "<nope>"}]}),
                Some(missing("tokenizer_config.json: extra_special_tokens")),
            ),
            (
                CONFIG,
                json!({"extra_special_tokens": {"image_token": "<nope>"}}),
                Some(missing("tokenizer_config.json: extra_special_tokens.image_token")),
            ),
            // In the vocabulary, but not an added token.
            (
                CONFIG,
                json!({"extra_special_tokens": ["a"]}),
                Some(missing("tokenizer_config.json: extra_special_tokens").replace("<nope>", "a")),
            ),
            (CONFIG, json!({"unk_token": "a"}), None),
            (CONFIG, json!({"added_tokens_decoder": {"1": eos}}), None),
            (
                CONFIG,
                json!({"added_tokens_decoder": {"7": eos}}),
                Some(id("tokenizer_config.json: added_tokens_decoder")),
            ),
            (
                CONFIG,
                json!({"added_tokens_decoder": {"1": stripping}}),
                Some(format!("tokenizer_config.json: added_tokens_decoder: {strips}")),
            ),
            (
                CONFIG,
                json!({"added_tokens_decoder": {"1": stripping, "5000": {"content": "<nope>"}}}),
                Some(format!("tokenizer_config.json: added_tokens_decoder: {strips} (and 1 more)")),
            ),
            ("added_tokens.json", json!({"<eos>": 1}), None),
            ("added_tokens.json", json!({"<eos>": 7}), Some(id("added_tokens.json: <eos>"))),
            ("added_tokens.json", json!({"<nope>": 4096}), Some(missing("added_tokens.json: <nope>"))),
            (
                "special_tokens_map.json",
                json!({"eos_token": "<eos>", "pad_token": {"content": "<pad>"}}),
                None,
            ),
            (
                "special_tokens_map.json",
                json!({"eos_token": "<nope>"}),
                Some(missing("special_tokens_map.json: eos_token")),
            ),
            (
                "special_tokens_map.json",
                json!({"additional_special_tokens": ["<nope>"]}),
                Some(missing("special_tokens_map.json: additional_special_tokens")),
            ),
        ] {
            let found = reports(&demo(), &[(name, file.clone())]);
            assert_eq!(found, Vec::from_iter(expected), "{name}: {file}");
        }
    }

    #[test]
    fn a_space_before_a_text_is_the_tokenizers() {
        let config = |prefixed: bool| [(CONFIG, json!({"add_prefix_space": prefixed}))];
        assert_eq!(reports(&demo(), &config(false)), [""; 0]);
        let expected =
            ["tokenizer_config.json: add_prefix_space: `tokenizer.json` puts no space before a text"];
        assert_eq!(reports(&demo(), &config(true)), expected);
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true});
        let sequence = json!({"type": "Sequence", "pretokenizers": [byte_level]});
        let blank =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let steps = [
            ("pre_tokenizer", byte_level),
            ("pre_tokenizer", sequence),
            ("pre_tokenizer", blank),
            ("normalizer", prepend),
        ];
        for (part, step) in steps {
            let mut file = demo();
            file[part] = step;
            assert_eq!(reports(&file, &config(true)), [""; 0], "{part}");
            let expected =
                ["tokenizer_config.json: add_prefix_space: `tokenizer.json` puts a space before a text"];
            assert_eq!(reports(&file, &config(false)), expected, "{part}");
        }
        let mut file = demo();
        file["pre_tokenizer"] =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true});
        assert_eq!(reports(&file, &config(false)), [""; 0]);
    }

    /// All of the fixtures with their own configurations.
    #[test]
    fn published_files_do_not_contradict_each_other() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let fixtures = std::fs::read_dir(root.join("tests/fixtures")).unwrap();
        let folders = fixtures.map(|entry| entry.unwrap().path()).chain([root.join("demo-model")]);
        let folders: Vec<_> = folders.filter(|folder| folder.join(CONFIG).is_file()).collect();
        assert!(folders.len() >= 15);
        for folder in folders {
            let tokenizer = Tokenizer::from_checkpoint(&folder).unwrap();
            assert_eq!(tokenizer.ignored(), [], "{}", folder.display());
        }
    }
}
