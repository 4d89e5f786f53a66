//! Every field of every fixture's `config.json` is used, unable to matter, or reported.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use shardwright_graph::{Graph, Pass};
use shardwright_models::{Checkpoint, passes_of};
use tempfile::TempDir;

fn fixtures() -> Vec<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let all = fs::read_dir(root.join("tests/fixtures")).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        all.chain([root.join("demo-model")]).filter(|path| path.join("config.json").is_file()).collect();
    found.sort();
    assert!(found.len() > 15, "{found:?}");
    found
}

/// Collects the names of all fields, each with the names of the objects around it.
fn names(fields: &Map<String, Value>, before: &str, found: &mut Vec<Vec<String>>) {
    for (name, value) in fields {
        let mut path: Vec<String> =
            before.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        path.push(name.clone());
        match value {
            Value::Object(inner) if !inner.is_empty() => names(inner, &path.join("."), found),
            _ => found.push(path),
        }
    }
}

/// Returns different values for a field. Some are out of range, which is a valid test too.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(flag) => vec![json!(!flag)],
        Value::Number(number) if number.is_u64() => {
            let number = number.as_u64().unwrap();
            vec![json!(number + 1), json!(number * 2 + 2)]
        }
        Value::Number(number) => vec![json!(number.as_f64().unwrap() * 1.5 + 0.25)],
        Value::String(text) => vec![json!(format!("{text}x"))],
        Value::Array(_) => vec![json!([3]), json!("x")],
        Value::Null | Value::Object(_) => vec![json!(3), json!({"x": 1}), json!(true)],
    }
}

/// A folder with the weights of a fixture and a changing configuration.
struct Changed {
    folder: TempDir,
    config: Value,
}

impl Changed {
    fn of(fixture: &Path) -> Changed {
        let folder = TempDir::new().unwrap();
        copy(fixture, folder.path());
        let config = serde_json::from_slice(&fs::read(fixture.join("config.json")).unwrap()).unwrap();
        Changed { folder, config }
    }

    /// Returns the graphs and the ignored fields, or the error.
    fn opened(&self, config: &Value) -> Result<(Vec<Graph>, Vec<String>), String> {
        fs::write(self.folder.path().join("config.json"), config.to_string()).unwrap();
        let passes = passes_of(self.folder.path()).unwrap_or_else(|_| vec![Pass::Step]);
        let opened = Checkpoint::open_for(self.folder.path(), &passes).map_err(|error| error.to_string())?;
        let ignored = opened.ignored().iter().filter_map(|ignored| ignored.field.clone());
        let reported = opened.notes().iter().cloned().chain(ignored).collect();
        let graphs = passes.iter().filter_map(|&pass| opened.graph_of(pass));
        Ok((graphs.cloned().collect(), reported))
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (path, target) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        match path.is_dir() {
            true => {
                fs::create_dir(&target).unwrap();
                copy(&path, &target);
            }
            false => drop(fs::copy(&path, &target).unwrap()),
        }
    }
}

/// Fields of fixtures that other fields make irrelevant.
const SUPERSEDED: [(&str, &[&str], &str); 6] = [
    ("embeddinggemma", &["tie_word_embeddings"], "no logits"),
    ("gemma4_mm", &["text_config.tie_word_embeddings"], "the field of the whole checkpoint counts"),
    ("granite4", &["intermediate_size"], "`shared_intermediate_size` counts"),
    ("llama", &["rope_theta"], "`rope_scaling` has its own"),
    (
        "qwen3",
        &["max_window_layers", "sliding_window", "use_sliding_window"],
        "switch and width are both needed",
    ),
    (
        "smollm3",
        &["max_window_layers", "no_rope_layer_interval", "sliding_window", "use_sliding_window"],
        "switch and width are both needed, and layers without rotation are listed",
    ),
];

/// Formats structure and operations, including constants that are made from settings.
fn shown(graphs: &[Graph]) -> String {
    format!("{graphs:?}")
}

#[test]
fn every_field_changes_a_result_or_is_reported_or_is_listed() {
    let mut silent = Vec::new();
    let mut count = 0;
    for fixture in fixtures() {
        let changed = Changed::of(&fixture);
        let (graphs, reported) = changed.opened(&changed.config).unwrap();
        let before = shown(&graphs);
        let mut paths = Vec::new();
        names(changed.config.as_object().unwrap(), "", &mut paths);
        for path in paths {
            let value = path.iter().fold(&changed.config, |value, name| &value[name]);
            let answered = others(value).into_iter().any(|other| {
                let mut config = changed.config.clone();
                *path.iter().fold(&mut config, |value, name| &mut value[name]) = other;
                match changed.opened(&config) {
                    Err(_) => true,
                    Ok((graphs, other)) => other != reported || shown(&graphs) != before,
                }
            });
            count += 1;
            let (name, fixture) = (path.join("."), fixture.file_name().unwrap().to_str().unwrap());
            let superseded =
                SUPERSEDED.iter().any(|(of, names, _)| *of == fixture && names.contains(&name.as_str()));
            if !answered && !superseded && !Checkpoint::cannot_matter(&name) {
                silent.push(format!("{fixture}: {name}"));
            }
        }
    }
    assert!(silent.is_empty(), "{} of {count} fields do nothing:\n{}", silent.len(), silent.join("\n"));
}

#[test]
fn fields_of_no_family_are_reported() {
    for fixture in fixtures() {
        let changed = Changed::of(&fixture);
        let mut config = changed.config.clone();
        config["attention_sinks"] = json!(4);
        config["rope_parameters_of_tomorrow"] = json!({"a": 1});
        let text = config.get_mut("text_config").filter(|text| text.is_object());
        let inner = text.is_some();
        if let Some(text) = text {
            text["attention_sinks"] = json!(4);
        }
        let (_, usual) = changed.opened(&changed.config).unwrap();
        let (_, reported) = changed.opened(&config).unwrap();
        let mut expected: Vec<&str> = usual.iter().map(String::as_str).collect();
        expected.extend(["attention_sinks", "rope_parameters_of_tomorrow"]);
        expected.extend(inner.then_some("text_config.attention_sinks"));
        assert_eq!(reported, expected, "{}", fixture.display());
    }
}
