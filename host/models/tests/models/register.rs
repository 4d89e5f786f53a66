//! Every field of every fixture's `config.json` and of the files of modules is used, unable to
//! matter, or reported.

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

    /// Returns the graphs and the notes and ignored fields, or the error.
    fn opened(&self, config: &Value) -> Result<(Vec<Graph>, Vec<String>), String> {
        fs::write(self.folder.path().join("config.json"), config.to_string()).unwrap();
        let passes = passes_of(self.folder.path()).unwrap_or_else(|_| vec![Pass::Step]);
        let opened = Checkpoint::open_for(self.folder.path(), &passes).map_err(|error| error.to_string())?;
        let of_towers = passes.iter().flat_map(|&pass| opened.ignored_of(pass));
        let ignored = opened.ignored().iter().chain(of_towers).filter_map(|ignored| ignored.field.clone());
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
const SUPERSEDED: [(&str, &[&str], &str); 10] = [
    ("embeddinggemma", &["tie_word_embeddings"], "no logits"),
    ("embeddinggemma2", &["audio_config", "vision_config"], "texts need no tower"),
    ("gemma4_mm", &["text_config.tie_word_embeddings"], "the field of the whole checkpoint counts"),
    ("gemma4_mm", &["vision_config.max_position_embeddings"], "the table of positions limits pictures"),
    ("gemma4_mm", &["audio_config.attention_chunk_size"], "a size of blocks changes no result"),
    (
        "gemma4_mm",
        &["audio_config.attention_invalid_logits_value", "audio_config.gradient_clipping"],
        "larger values have the same effect",
    ),
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
        let mut of_towers = Vec::new();
        for (object, pass) in [("audio_config", Pass::Clip), ("vision_config", Pass::Picture)] {
            if let Some(tower) = config.get_mut(object).filter(|tower| tower.is_object()) {
                tower["attention_sinks"] = json!(4);
                of_towers.push((pass, format!("{object}.attention_sinks")));
            }
        }
        if let Some(rope) = config.pointer_mut("/vision_config/rope_parameters") {
            rope["factor"] = json!(2.0);
            of_towers.push((Pass::Picture, "vision_config.rope_parameters.factor".to_owned()));
        }
        let (_, usual) = changed.opened(&changed.config).unwrap();
        let (_, reported) = changed.opened(&config).unwrap();
        let mut expected: Vec<&str> = usual.iter().map(String::as_str).collect();
        expected.extend(["attention_sinks", "rope_parameters_of_tomorrow"]);
        expected.extend(inner.then_some("text_config.attention_sinks"));
        // In the order of passes.
        of_towers.sort();
        expected.extend(of_towers.iter().map(|(_, name)| name.as_str()));
        assert_eq!(reported, expected, "{}", fixture.display());

        // Text needs no tower, and a tower only its own fields.
        let opened = Checkpoint::open(changed.folder.path()).unwrap();
        for pass in [Pass::Picture, Pass::Clip] {
            assert_eq!(opened.ignored_of(pass), []);
        }
    }
}

/// Returns the places of all fields of a module's file.
fn places(value: &Value) -> Vec<String> {
    let within = |before: &str, value: &Value| -> Vec<String> {
        value.as_object().unwrap().keys().map(|name| format!("{before}/{name}")).collect()
    };
    match value {
        Value::Array(list) => {
            list.iter().enumerate().flat_map(|(index, module)| within(&format!("/{index}"), module)).collect()
        }
        object => within("", object),
    }
}

#[test]
fn every_field_of_a_module_changes_a_result_or_is_reported_or_cannot_matter() {
    let (mut silent, mut count) = (Vec::new(), 0);
    for fixture in fixtures().iter().filter(|path| path.join("modules.json").is_file()) {
        let changed = Changed::of(fixture);
        let (graphs, usual) = changed.opened(&changed.config).unwrap();
        let before = shown(&graphs);
        for file in ["modules.json", "1_Pooling/config.json", "2_Dense/config.json"] {
            let path = changed.folder.path().join(file);
            let Ok(text) = fs::read(&path) else { continue };
            let original: Value = serde_json::from_slice(&text).unwrap();
            for place in places(&original) {
                let value = original.pointer(&place).unwrap();
                let answered = others(value).into_iter().any(|other| {
                    let mut document = original.clone();
                    *document.pointer_mut(&place).unwrap() = other;
                    fs::write(&path, document.to_string()).unwrap();
                    match changed.opened(&changed.config) {
                        Err(_) => true,
                        Ok((graphs, reported)) => reported != usual || shown(&graphs) != before,
                    }
                });
                fs::write(&path, &text).unwrap();
                count += 1;
                // The order of the list counts, names only have to differ, and the last module has
                // no file.
                let is_last = value.as_str().is_some_and(|path| path.ends_with("_Normalize"));
                let listed = place.ends_with("/idx") || place.ends_with("/name") || is_last;
                if !answered && !listed {
                    silent.push(format!("{}/{file}: {place}", fixture.display()));
                }
            }
        }
    }
    assert!(count > 30, "{count}");
    assert!(silent.is_empty(), "{} of {count} fields do nothing:\n{}", silent.len(), silent.join("\n"));
}

#[test]
fn unknown_fields_of_modules_are_reported() {
    let fixture = fixtures().into_iter().find(|path| path.ends_with("embeddinggemma")).unwrap();
    let changed = Changed::of(&fixture);
    let folder = changed.folder.path();
    let published = json!({"max_seq_length": 2048, "do_lower_case": false, "model_args": {}});
    fs::write(folder.join("sentence_bert_config.json"), published.to_string()).unwrap();
    fs::create_dir(folder.join("4_Normalize")).unwrap();
    let normalize = folder.join("4_Normalize/config.json");
    fs::write(&normalize, json!({"module_input_name": "sentence_embedding"}).to_string()).unwrap();
    assert_eq!(Checkpoint::open(folder).unwrap().ignored(), []);

    let edit = |file: &str, place: &str, value: Value| {
        let path = folder.join(file);
        let mut document: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let (outer, name) = place.rsplit_once('/').unwrap();
        document.pointer_mut(outer).unwrap()[name] = value;
        fs::write(&path, document.to_string()).unwrap();
    };
    edit("sentence_bert_config.json", "/processing_kwargs", json!({"text": {"padding": true}}));
    edit("modules.json", "/1/wobble", json!(1));
    for file in ["1_Pooling/config.json", "2_Dense/config.json", "4_Normalize/config.json"] {
        edit(file, "/wobble", json!(1));
    }
    let opened = Checkpoint::open(folder).unwrap();
    let named = |found: &shardwright_vocabulary::Ignored| {
        let file = found.file.strip_prefix(folder).unwrap().display().to_string();
        (file, found.field.clone().unwrap())
    };
    let found: Vec<(String, String)> = opened.ignored().iter().map(named).collect();
    let expected = [
        ("sentence_bert_config.json", "processing_kwargs.text"),
        ("1_Pooling/config.json", "wobble"),
        ("modules.json", "[1].wobble"),
        ("2_Dense/config.json", "wobble"),
        ("4_Normalize/config.json", "wobble"),
    ];
    assert_eq!(found, expected.map(|(file, field)| (file.to_owned(), field.to_owned())));
}
