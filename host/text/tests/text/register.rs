//! Every field of every fixture's `generation_config.json` and `tokenizer_config.json` is used,
//! unable to matter, or reported.

use std::path::PathBuf;

use serde_json::{Value, json};
use shardwright_text::{GenerationConfig, TokenizerConfig};

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
        _ => format!("{:?}", TokenizerConfig::from_files("m", file)),
    }
}

#[test]
fn every_field_is_used_or_reported_or_listed() {
    let mut silent = Vec::new();
    let mut count = 0;
    for fixture in fixtures() {
        for file in ["generation_config.json", "tokenizer_config.json"] {
            let Ok(text) = std::fs::read(fixture.join(file)) else { continue };
            let fields: Value = serde_json::from_slice(&text).unwrap();
            let before = read(file, &fields);
            assert!(before.contains("ignored: []"), "{}: {before}", fixture.display());
            for (name, value) in fields.as_object().unwrap() {
                let mut changed = fields.clone();
                changed[name] = other(value);
                let listed = match file {
                    "generation_config.json" => GenerationConfig::cannot_matter(name),
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

#[test]
fn tokens_around_a_text_follow_the_configuration() {
    let demo = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../demo-model");
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(demo.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
    let ids = |config: Value| {
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let tokenizer = shardwright_text::Tokenizer::from_checkpoint(folder.path()).unwrap();
        assert_eq!(tokenizer.encode("a", false).unwrap().len(), 1);
        tokenizer.encode("a", true).unwrap()
    };
    let tokens = |begin: Value, end: Value| {
        ids(json!({"bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": begin, "add_eos_token": end}))
    };
    let usual = ids(json!({}));
    assert_eq!((usual.len(), usual[0]), (2, 2));
    let letter = usual[1];
    // As in the post-processor that `transformers` 5.23 builds, a missing flag counts as off.
    assert_eq!(tokens(json!(true), json!(false)), usual);
    assert_eq!(tokens(json!(false), json!(false)), [letter]);
    assert_eq!(tokens(json!(true), json!(true)), [2, letter, 1]);
    assert_eq!(tokens(Value::Null, json!(true)), [letter, 1]);
    assert_eq!(tokens(Value::Null, Value::Null), usual);
}
