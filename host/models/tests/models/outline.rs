//! Checkpoints without their weights: the same graph from headers, an index or the configuration
//! alone, and a typed error for callers that need a value.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use shardwright_graph::{Asset, Graph, Weight};
use shardwright_models::{Checkpoint, Opened, Outline, OutlineBasis, limits};
use shardwright_test_checkpoints::{Fill, Spec, raw_safetensors};
use shardwright_vocabulary::{Error, ErrorKind};
use tempfile::TempDir;

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn written(spec: &Spec) -> TempDir {
    let directory = TempDir::new().unwrap();
    spec.write(directory.path()).unwrap();
    directory
}

/// Lists the weight files in a folder and in the folders of its modules.
fn weight_files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(weight_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "safetensors") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Shortens a weight file to its header, as a range request fetches it.
fn cut_to_header(path: &Path) {
    let bytes = fs::read(path).unwrap();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    fs::write(path, &bytes[..8 + header]).unwrap();
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, serde_json::to_vec(&value).unwrap()).unwrap();
}

fn outline(directory: &Path) -> Outline {
    match Opened::open(directory).unwrap() {
        Opened::Outline(outline) => *outline,
        Opened::Whole(_) => panic!("nothing is missing"),
    }
}

fn refused(directory: &Path) -> Error {
    Checkpoint::open(directory).map(|_| ()).unwrap_err()
}

/// Formats everything of a graph except values.
fn structure(graph: &Graph) -> String {
    let weight = |weight: &Weight| {
        (weight.name.clone(), weight.part, weight.shape.clone(), weight.dtype, weight.data.length())
    };
    let asset = |asset: &Asset| (asset.name.clone(), weight(&asset.table), asset.redirect.clone());
    format!(
        "{:?} {:?} {:?} {:?}",
        graph.components,
        graph.states,
        graph.weights.iter().map(weight).collect::<Vec<_>>(),
        graph.assets.iter().map(asset).collect::<Vec<_>>()
    )
}

/// Returns each family with one special property: several files, a prefix, towers, a separate head.
fn specs() -> Vec<Spec> {
    vec![
        Spec::gemma3(),
        Spec { files: 3, ..Spec::gemma4() },
        Spec { multimodal: true, stale_keys: true, ..Spec::gemma4() },
        Spec { tied: false, dtype: "F16", ..Spec::qwen3() },
        Spec { dtype: "F32", ..Spec::embeddinggemma() },
    ]
}

#[test]
fn headers_give_the_graph_of_the_whole_files_and_none_of_their_values() {
    for spec in specs() {
        let directory = written(&spec);
        let whole = Checkpoint::open(directory.path()).unwrap();
        let files: u64 = whole.facts().weight_files.iter().map(|file| file.bytes).sum();
        weight_files(directory.path()).iter().for_each(|path| cut_to_header(path));
        let outline = outline(directory.path());
        assert!(structure(outline.graph()) == structure(whole.graph()), "{spec:?}");
        assert_eq!((outline.basis(), outline.download_bytes()), (OutlineBasis::Headers, Some(files)));
        assert_eq!((outline.family(), outline.name()), (whole.family(), whole.facts().name.as_str()));
        let tables = outline.graph().assets.iter().map(|asset| &asset.table);
        for weight in outline.graph().weights.iter().chain(tables) {
            assert!(!weight.data.is_present() && weight.data.bytes().is_empty(), "{}", weight.name);
            assert!(!weight.decode_row(0, &mut vec![0.0; weight.row_width()]), "{}", weight.name);
        }

        let error = refused(directory.path());
        assert_eq!(error.kind(), ErrorKind::Missing);
        assert!(error.message().contains("but no weights"), "{error:?}");
        assert!(error.help().unwrap().starts_with("download the weights: "), "{error:?}");
        let first =
            weight_files(directory.path()).into_iter().find(|path| path.parent() == Some(directory.path()));
        assert!(error.to_string().starts_with(&first.unwrap().display().to_string()), "{error}");
        assert_eq!(outline.lack().unwrap().to_string(), error.to_string());
    }
}

/// The weights count as missing even if only one file lacks them.
#[test]
fn the_file_without_weights_is_named() {
    let spec = Spec { files: 2, ..Spec::gemma3() };
    let directory = written(&spec);
    let second = directory.path().join("model-00002-of-00002.safetensors");
    cut_to_header(&second);
    let error = refused(directory.path()).to_string();
    assert!(error.starts_with(&second.display().to_string()), "{error}");
    assert_eq!(outline(directory.path()).basis(), OutlineBasis::Headers);

    let directory = written(&Spec::embeddinggemma());
    let dense = directory.path().join("3_Dense").join(WEIGHTS);
    cut_to_header(&dense);
    let error = refused(directory.path()).to_string();
    assert!(error.starts_with(&dense.display().to_string()), "{error}");
    // A module's file may be missing if the configuration specifies its type.
    fs::remove_file(&dense).unwrap();
    assert_eq!(outline(directory.path()).basis(), OutlineBasis::Configuration);
}

#[test]
fn the_configuration_alone_gives_the_same_shapes() {
    for spec in specs() {
        let directory = written(&spec);
        let whole = Checkpoint::open(directory.path()).unwrap();
        weight_files(directory.path()).iter().for_each(|path| fs::remove_file(path).unwrap());
        let _ = fs::remove_file(directory.path().join(INDEX));
        let outline = outline(directory.path());
        assert_eq!((outline.basis(), outline.download_bytes()), (OutlineBasis::Configuration, None));
        // Without headers and index, the prefix of names is unknown.
        let plain = |graph: &Graph| {
            let prefixes = ["model.language_model.", "model."];
            prefixes.into_iter().fold(structure(graph), |text, prefix| text.replace(prefix, ""))
        };
        assert!(plain(outline.graph()) == plain(whole.graph()), "{spec:?}");
        let error = refused(directory.path());
        assert!(error.is_not_found(), "{error:?}");
        assert!(error.help().unwrap().starts_with("download the weights: "), "{error:?}");
        assert_eq!(outline.lack().unwrap().to_string(), error.to_string());
    }
}

#[test]
fn an_index_says_names_and_the_sum_of_bytes() {
    let directory = written(&Spec { files: 2, ..Spec::qwen3() });
    let whole = Checkpoint::open(directory.path()).unwrap();
    let index = directory.path().join(INDEX);
    edit(&index, |index| index["metadata"]["total_size"] = json!(12_345));
    let files = weight_files(directory.path());
    fs::remove_file(&files[0]).unwrap();
    // Only some of the files exist: the download is incomplete.
    let error = Opened::open(directory.path()).map(|_| ()).unwrap_err();
    assert!(error.is_not_found() && error.place() == files[0].to_str(), "{error:?}");
    fs::remove_file(&files[1]).unwrap();
    let listed = outline(directory.path());
    assert_eq!((listed.basis(), listed.download_bytes()), (OutlineBasis::Index, Some(12_345)));
    assert!(structure(listed.graph()) == structure(whole.graph()));
    let lack = listed.lack().unwrap();
    assert!(lack.is_not_found() && lack.place() == files[0].to_str(), "{lack:?}");

    // The model does not have tensors that the index does not list.
    edit(&index, |index| {
        index["weight_map"].as_object_mut().unwrap().remove("model.norm.weight").unwrap();
    });
    let error = Opened::open(directory.path()).map(|_| ()).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Missing, "no tensor `model.norm.weight`"));
    // Without the sum, the index specifies names only.
    edit(&index, |index| {
        index["weight_map"]["model.norm.weight"] = json!("model-00001-of-00002.safetensors");
        index["metadata"]["total_size"] = json!("much");
    });
    assert_eq!(outline(directory.path()).download_bytes(), None);
}

#[test]
fn without_headers_the_configuration_must_say_an_element_type_that_weights_have() {
    let directory = written(&Spec::gemma3());
    let config = directory.path().join("config.json");
    cut_to_header(&directory.path().join(WEIGHTS));
    for dtype in [Value::Null, json!("float8_e4m3fn"), json!(7)] {
        edit(&config, |config| config["dtype"] = dtype);
        // Headers specify the type themselves.
        assert_eq!(outline(directory.path()).basis(), OutlineBasis::Headers);
    }
    fs::remove_file(directory.path().join(WEIGHTS)).unwrap();
    let error = |dtype: Value| {
        edit(&config, |config| config["dtype"] = dtype);
        Opened::open(directory.path()).map(|_| ()).unwrap_err()
    };
    let unknown = error(Value::Null);
    assert_eq!(unknown.kind(), ErrorKind::Missing);
    assert!(unknown.to_string().contains("config.json has no `dtype`"), "{unknown}");
    assert!(unknown.help().unwrap().contains("headers"), "{unknown:?}");
    let unsupported = error(json!("float8_e4m3fn"));
    assert_eq!(unsupported.kind(), ErrorKind::Unsupported);
    assert!(unsupported.message().starts_with("`dtype` is `float8_e4m3fn`"), "{unsupported}");
    let invalid = error(json!(7));
    assert_eq!((invalid.kind(), invalid.message()), (ErrorKind::Invalid, "`dtype` is 7, not a string"));
    edit(&config, |config| config["torch_dtype"] = json!("float16"));
    edit(&config, |config| config["dtype"] = Value::Null);
    assert_eq!(outline(directory.path()).graph().weights[0].dtype.name(), "f16");
}

/// Headers are checked as strictly as whole files.
#[test]
fn hostile_headers_are_refused_without_their_weights_too() {
    let of = |header: &str| {
        let directory = written(&Spec::gemma3());
        fs::write(directory.path().join(WEIGHTS), raw_safetensors(header, &[])).unwrap();
        let (opened, whole) = (Opened::open(directory.path()), refused(directory.path()));
        let error = opened.map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), whole.to_string());
        error
    };
    let tensor = |name: &str, shape: Value, offsets: Value| {
        format!("\"{name}\": {}", json!({"dtype": "F32", "shape": shape, "data_offsets": offsets}))
    };
    let one = |shape: Value, offsets: Value| of(&format!("{{{}}}", tensor("a", shape, offsets)));
    let end = (u64::MAX / 4) * 4;
    assert!(one(json!([end / 4]), json!([0, end])).message().contains("more than the limit of"));
    let cap = limits::WEIGHT_FILE_BYTES;
    let error = one(json!([cap / 4]), json!([0, cap]));
    assert!(error.to_string().contains(&cap.to_string()), "{error}");
    for (shape, offsets, words) in [
        (json!([-1]), json!([0, 4]), ": header: "),
        (json!([1]), json!([-4, 0]), ": header: "),
        (json!([2]), json!([0, 4]), ": tensor `a` at byte "),
        (json!([1]), json!([8, 4]), ": tensor `a` at byte "),
        (json!([1_u64 << 40, 1_u64 << 40]), json!([0, 4]), ": tensor `a` at byte "),
        (json!([1]), json!([4, 8]), "belong to no tensor"),
    ] {
        let error = one(shape, offsets);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(words), "no `{words}` in {error}");
    }
    let both = |second: Value| {
        let (a, b) = (tensor("a", json!([2]), json!([0, 8])), tensor("b", json!([2]), second));
        of(&format!("{{{a}, {b}}}"))
    };
    assert!(both(json!([4, 12])).message().contains("tensors `a` and `b` overlap"));
    assert!(both(json!([12, 20])).message().contains("belong to no tensor"));

    // A file cut at any other byte is an incomplete download.
    let directory = written(&Spec::gemma3());
    let path = directory.path().join(WEIGHTS);
    let bytes = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    for length in [0, 7, 8, header - 1, header + 1, bytes.len() - 1] {
        fs::write(&path, &bytes[..length]).unwrap();
        let error = Opened::open(directory.path()).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains(" ends at byte "), "{length}: {error:?}");
    }
}

/// Ten gigabytes are outlined as fast as ten kilobytes, and no memory is allocated for them.
#[test]
fn an_outline_takes_no_memory_for_weights() {
    let spec = Spec { fill: Fill::Sparse, ..Spec::e2b() };
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("config.json"), spec.config().to_string()).unwrap();
    let outline = outline(directory.path());
    let bytes: u64 = outline.graph().weights.iter().map(Weight::bytes).sum();
    assert!(bytes > 2 << 30, "{bytes}");
    assert!(outline.graph().weights.iter().all(|weight| weight.data.bytes().is_empty()));
}
