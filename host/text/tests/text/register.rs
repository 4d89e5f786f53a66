//! Every field of every fixture's `generation_config.json`, `tokenizer_config.json`,
//! `config_sentence_transformers.json` and `tokenizer.json` is used, unable to matter, or reported.

use std::path::PathBuf;

use serde_json::{Value, json};
use shardwright_text::{GenerationConfig, SentenceConfig, Tokenizer, TokenizerConfig};

fn fixtures() -> Vec<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let all = std::fs::read_dir(root.join("tests/fixtures")).unwrap().map(|entry| entry.unwrap().path());
    all.chain([root.join("demo-model")]).filter(|path| path.join("config.json").is_file()).collect()
}

/// Returns a different value of the same kind.
fn other(value: &Value) -> Value {
    match value {
        Value::Bool(flag) => json!(!flag),
        Value::Number(number) => json!(number.as_f64().unwrap() * 0.5 + 0.25),
        Value::String(text) => json!(format!("{text}x")),
        Value::Array(_) => json!([3]),
        Value::Null | Value::Object(_) => json!({"x": 1}),
    }
}

/// Returns the parsed settings of a file as text, or the error.
fn read(name: &str, fields: &Value) -> String {
    let file = |asked: &str| (asked == name).then(|| fields.to_string().into_bytes());
    match name {
        "generation_config.json" => format!("{:?}", GenerationConfig::from_files("m", file)),
        "config_sentence_transformers.json" => format!("{:?}", SentenceConfig::from_files("m", file)),
        _ => format!("{:?}", TokenizerConfig::from_files("m", file)),
    }
}

#[test]
fn every_field_is_used_or_reported_or_listed() {
    let mut silent = Vec::new();
    let mut count = 0;
    for fixture in fixtures() {
        for file in ["generation_config.json", "tokenizer_config.json", "config_sentence_transformers.json"] {
            let Ok(text) = std::fs::read(fixture.join(file)) else { continue };
            let fields: Value = serde_json::from_slice(&text).unwrap();
            let before = read(file, &fields);
            assert!(before.contains("ignored: []"), "{}: {before}", fixture.display());
            for (name, value) in fields.as_object().unwrap() {
                let mut changed = fields.clone();
                changed[name] = other(value);
                let listed = match file {
                    "generation_config.json" => GenerationConfig::cannot_matter(name),
                    "config_sentence_transformers.json" => SentenceConfig::cannot_matter(name),
                    // Variables of templates, and templates themselves.
                    _ => {
                        TokenizerConfig::cannot_matter(name)
                            || name.ends_with("_token")
                            || name == "chat_template"
                    }
                };
                count += 1;
                if read(file, &changed) == before && !listed {
                    silent.push(format!("{}/{file}: {name}", fixture.display()));
                }
            }
        }
    }
    assert!(count > 100, "{count}");
    assert!(silent.is_empty(), "{silent:#?}");
}

/// Ids are those of `AutoTokenizer` of `transformers` 5.23, which drops both flags if there is a
/// `tokenizer.json`. Here a flag that has no effect is also reported.
#[test]
fn tokens_around_a_text_are_the_post_processors() {
    let demo = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../demo-model");
    let mut file: Value =
        serde_json::from_slice(&std::fs::read(demo.join("tokenizer.json")).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let read = |file: &Value, begin: Value, end: Value| {
        let config = json!({"tokenizer_class": "GemmaTokenizerFast", "bos_token": "<bos>",
            "eos_token": "<eos>", "add_bos_token": begin, "add_eos_token": end});
        std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let tokenizer = shardwright_text::Tokenizer::from_checkpoint(folder.path()).unwrap();
        let reports = tokenizer.ignored().iter().filter_map(|ignored| ignored.field.clone());
        (tokenizer.encode("a", true).unwrap(), reports.collect::<Vec<String>>())
    };
    let (on, off, unset) = (json!(true), json!(false), Value::Null);
    let (begin, end) = ("add_bos_token", "add_eos_token");
    for (post, first, last, ids, reports) in [
        (true, &on, &off, vec![2_u32, 345], vec![]),
        (true, &unset, &unset, vec![2, 345], vec![]),
        (true, &off, &off, vec![2, 345], vec![begin]),
        (true, &on, &on, vec![2, 345], vec![end]),
        (true, &unset, &on, vec![2, 345], vec![end]),
        (false, &unset, &unset, vec![345], vec![]),
        (false, &off, &off, vec![345], vec![]),
        (false, &on, &off, vec![345], vec![begin]),
        (false, &on, &on, vec![345], vec![begin, end]),
    ] {
        if !post {
            file["post_processor"] = Value::Null;
        }
        let (found, reported) = read(&file, first.clone(), last.clone());
        assert_eq!(found, ids, "{post} {first} {last}");
        assert_eq!(reported, reports, "{post} {first} {last}");
    }
}

/// Collects the places of all fields of a `tokenizer.json`, in two elements of each list. The
/// vocabulary and the merges are data.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                if name != "vocab" && name != "merges" {
                    let name = name.replace('~', "~0").replace('/', "~1");
                    places(value, &format!("{at}/{name}"), found);
                }
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for (index, value) in list.iter().take(2).enumerate() {
                places(value, &format!("{at}/{index}"), found);
            }
        }
        _ => found.push(at.to_owned()),
    }
}

/// Returns the number of reported fields, and the library's tokenizer as it would be written.
fn read_tokenizer(file: &Value) -> Option<(usize, String)> {
    let bytes = file.to_string().into_bytes();
    let ours = Tokenizer::from_bytes(&bytes, "tokenizer.json").ok()?;
    let library = tokenizers::Tokenizer::from_bytes(&bytes).ok()?;
    Some((ours.ignored().len(), library.to_string(false).ok()?))
}

/// A changed field changes the library's tokenizer, with which the index agrees (see `index`), or
/// it is reported or refused.
#[test]
fn every_field_of_a_tokenizer_is_used_or_reported_or_refused() {
    let (mut silent, mut count) = (Vec::new(), 0);
    let mut seen = std::collections::BTreeSet::new();
    for path in fixtures().iter().map(|fixture| fixture.join("tokenizer.json")) {
        let Ok(text) = std::fs::read(&path) else { continue };
        let file: Value = serde_json::from_slice(&text).unwrap();
        let before = read_tokenizer(&file).unwrap();
        let mut found = Vec::new();
        places(&file, "", &mut found);
        for place in found {
            let mut changed = file.clone();
            let value = changed.pointer_mut(&place).unwrap();
            // Fixtures share most of their steps.
            if !seen.insert((place.clone(), value.to_string())) {
                continue;
            }
            *value = other(value);
            count += 1;
            let listed = ["/version", "/truncation", "/padding"].iter().any(|name| place.starts_with(name));
            if !listed && read_tokenizer(&changed).as_ref() == Some(&before) {
                silent.push(format!("{}: {place}", path.display()));
            }
        }
    }
    assert!(count > 80, "{count}");
    assert!(silent.is_empty(), "{silent:#?}");
}
