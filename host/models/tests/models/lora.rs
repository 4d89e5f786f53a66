//! Adapters merged into checkpoints: equal to a checkpoint whose weights the test merges, and
//! hostile or unsupported ones are refused by name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use shardwright_graph::Weight;
use shardwright_models::{Checkpoint, Opened};
use shardwright_test_checkpoints::{Random, Spec, StoredTensor, write_safetensors};
use shardwright_vocabulary::{Error, ErrorKind, Lora, LoraScale, Pass};
use tempfile::TempDir;

const PREFIX: &str = "base_model.model.";

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// A tensor: type, shape, bytes.
type Tensor = (String, Vec<u64>, Vec<u8>);
type Tensors = BTreeMap<String, Tensor>;

fn read(path: &Path) -> Tensors {
    let bytes = fs::read(path).unwrap();
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..end]).unwrap();
    let tensor = |(name, entry): (String, Value)| {
        let numbers = |field: &str| -> Vec<u64> { serde_json::from_value(entry[field].clone()).unwrap() };
        let offsets = numbers("data_offsets");
        let data = bytes[end + offsets[0] as usize..end + offsets[1] as usize].to_vec();
        (name, (entry["dtype"].as_str().unwrap().to_owned(), numbers("shape"), data))
    };
    header.into_iter().filter(|(name, _)| name != "__metadata__").map(tensor).collect()
}

fn write(path: &Path, tensors: &Tensors) {
    let heads: Vec<StoredTensor> = tensors
        .iter()
        .map(|(name, (dtype, shape, _))| StoredTensor {
            name: name.clone(),
            dtype: dtype.clone(),
            shape: shape.clone(),
        })
        .collect();
    let contents: Vec<&Vec<u8>> = tensors.values().map(|(_, _, content)| content).collect();
    write_safetensors(path, &heads, |index| Some(contents[index].clone())).unwrap();
}

fn decode((dtype, _, bytes): &Tensor) -> Vec<f32> {
    let pairs = bytes.as_chunks::<2>().0.iter();
    match dtype.as_str() {
        "F16" => pairs.map(|pair| f16::from_le_bytes(*pair).to_f32()).collect(),
        "BF16" => pairs.map(|pair| bf16::from_le_bytes(*pair).to_f32()).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|quad| f32::from_le_bytes(*quad)).collect(),
    }
}

fn encode(dtype: &str, values: &[f32]) -> Vec<u8> {
    match dtype {
        "F16" => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        "BF16" => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// Merges an adapter into `tensors` in the plainest way. `scaling` returns the factor of a module.
/// Returns the names of the changed tensors.
fn merge(tensors: &mut Tensors, adapter: &Tensors, scaling: impl Fn(&str) -> f64) -> Vec<String> {
    let mut changed = Vec::new();
    for (name, own) in adapter {
        let name = name.strip_prefix(PREFIX).unwrap();
        let table = name.strip_suffix(".lora_embedding_A");
        let module = name.strip_suffix(".lora_A.weight").or(table);
        let Some(module) = module else {
            if !name.contains("lora_") {
                let name = name.replace(".base_layer", "");
                let (dtype, ..) = &tensors[&name];
                let content = encode(dtype, &decode(own));
                tensors.get_mut(&name).unwrap().2 = content;
                changed.push(name);
            }
            continue;
        };
        let other = if table.is_some() { ".lora_embedding_B" } else { ".lora_B.weight" };
        let (b, a) = (&adapter[&format!("{PREFIX}{module}{other}")], own);
        let (rank, inputs, outputs) = (a.1[0] as usize, a.1[1] as usize, b.1[0] as usize);
        let (a, b, scale) = (decode(a), decode(b), scaling(module) as f32);
        let name = format!("{module}.weight");
        let (dtype, ..) = tensors[&name].clone();
        let mut values = decode(&tensors[&name]);
        for output in 0..outputs {
            for input in 0..inputs {
                let sum =
                    (0..rank).map(|k| b[output * rank + k] * a[k * inputs + input]).fold(0.0, |x, y| x + y);
                let change = sum * scale;
                let place = if table.is_some() { input * outputs + output } else { output * inputs + input };
                let change = match table {
                    Some(_) => decode(&(dtype.clone(), Vec::new(), encode(&dtype, &[change])))[0],
                    None => change,
                };
                values[place] += change;
            }
        }
        tensors.get_mut(&name).unwrap().2 = encode(&dtype, &values);
        changed.push(name);
    }
    changed
}

fn lora(folder: &Path, scale: f64) -> Lora {
    Lora { folder: folder.to_owned(), scale: LoraScale::new(scale).unwrap() }
}

fn adapted(base: &Path, adapters: &[Lora]) -> Checkpoint {
    Checkpoint::open_adapted(base, &[Pass::Step], adapters).unwrap()
}

fn refusal(base: &Path, adapter: &Path) -> Error {
    Checkpoint::open_adapted(base, &[Pass::Step], &[lora(adapter, 1.0)]).map(drop).unwrap_err()
}

fn weights(checkpoint: &Checkpoint) -> Vec<&Weight> {
    let graph = checkpoint.graph();
    graph.weights.iter().chain(graph.assets.iter().map(|asset| &asset.table)).collect()
}

/// Checks that both have the same weights, read as a whole and in parts.
fn expect_equal(found: &Checkpoint, expected: &Checkpoint, what: &str) {
    assert_eq!(weights(found).len(), weights(expected).len());
    for (found, expected) in weights(found).into_iter().zip(weights(expected)) {
        let wanted = expected.data.bytes();
        assert_eq!((&found.name, found.dtype), (&expected.name, expected.dtype), "{what}");
        // Some parts are read before the whole weight is computed.
        let parts = [(0, 1), (3, 7), (wanted.len() / 2 + 1, wanted.len() / 3)];
        // A weight may be a single value.
        for (first, length) in parts.into_iter().filter(|(first, _)| *first < wanted.len()) {
            let length = length.min(wanted.len() - first);
            let mut part = vec![0; length];
            assert!(found.data.copy(first, &mut part), "{what}: {}", found.name);
            assert!(part == wanted[first..first + length], "{what}: {} at {first}", found.name);
        }
        assert!(found.data.bytes() == wanted, "{what}: {}", found.name);
        let mut part = vec![0; wanted.len() - 1];
        assert!(found.data.copy(1, &mut part) && part == wanted[1..], "{what}: {}", found.name);
        assert!(!found.data.copy(2, &mut part), "{what}: beyond its end");
    }
}

#[test]
fn committed_adapters_are_merged_as_their_goldens_state() {
    for name in ["tinyllama", "phi4mini", "qwen2", "gemma3_text"] {
        let (base, adapter) = (fixtures().join(name), fixtures().join("lora").join(name));
        let config: Value =
            serde_json::from_slice(&fs::read(adapter.join("adapter_config.json")).unwrap()).unwrap();
        let scaling = |module: &str| match name {
            "tinyllama" if module.ends_with("layers.1.self_attn.q_proj") => 1.0,
            "tinyllama" if module.ends_with("down_proj") => 0.5,
            "tinyllama" if module.ends_with("embed_tokens") => 0.25,
            "phi4mini" => 0.5,
            "gemma3_text" if module.ends_with("layers.3.mlp.up_proj") => 5.0 / 2_f64.sqrt(),
            "gemma3_text" if module.ends_with("o_proj") => 3.0 / 3_f64.sqrt(),
            "gemma3_text" => 3.0 / 2_f64.sqrt(),
            _ => 2.0,
        };
        let mut tensors = read(&base.join("model.safetensors"));
        let mut changed = merge(&mut tensors, &read(&adapter.join("adapter_model.safetensors")), scaling);
        changed.sort();
        // The weight of an embedding may be replaced, and then changed.
        changed.dedup();
        let goldens: BTreeMap<String, String> =
            serde_json::from_slice(&fs::read(adapter.join("merged.json")).unwrap()).unwrap();
        assert_eq!(changed, Vec::from_iter(goldens.keys().cloned()), "{name}");
        for (tensor, expected) in &goldens {
            let hash: String =
                Sha256::digest(&tensors[tensor].2).iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(&hash, expected, "{name}: {tensor}");
        }
        let merged = TempDir::new().unwrap();
        let merged = merged.path().join(name);
        fs::create_dir(&merged).unwrap();
        fs::copy(base.join("config.json"), merged.join("config.json")).unwrap();
        write(&merged.join("model.safetensors"), &tensors);
        let found = adapted(&base, &[lora(&adapter, 1.0)]);
        expect_equal(&found, &Checkpoint::open(&merged).unwrap(), name);
        assert_eq!(found.ignored(), Checkpoint::open(&base).unwrap().ignored(), "{name} {config}");
        let described = &found.adapters()[0];
        assert_eq!((described.name.as_str(), described.tensors), (name, goldens.len()));
        let weights = Sha256::digest(fs::read(adapter.join("adapter_model.safetensors")).unwrap());
        assert_eq!(described.weights, <[u8; 32]>::from(weights));
    }
}

/// A generated checkpoint with an output matrix of its own.
fn base(spec: Spec) -> TempDir {
    let folder = TempDir::new().unwrap();
    Spec { tied: false, ..spec }.write(folder.path()).unwrap();
    folder
}

/// An adapter of rank 3 for some linear layers of a checkpoint, with random values.
fn adapter_for(base: &Path, modules: &[&str], config: Value, seed: u64) -> TempDir {
    let mut tensors = Tensors::new();
    let mut random = Random::new(seed, "adapter");
    let mut values = |count: u64| -> Vec<f32> { (0..count).map(|_| random.normal() as f32).collect() };
    for (name, (_, shape, _)) in read(&base.join("model.safetensors")) {
        let Some(module) = name.strip_suffix(".weight") else { continue };
        if modules.iter().any(|end| module.ends_with(end)) {
            for (part, shape) in [("lora_A", vec![3, shape[1]]), ("lora_B", vec![shape[0], 3])] {
                let bytes = encode("F32", &values(shape.iter().product()));
                tensors.insert(format!("{PREFIX}{module}.{part}.weight"), ("F32".to_owned(), shape, bytes));
            }
        }
    }
    written(&tensors, modules, config)
}

fn written(tensors: &Tensors, modules: &[&str], changes: Value) -> TempDir {
    let folder = TempDir::new().unwrap();
    let mut config =
        json!({"peft_type": "LORA", "r": 3, "lora_alpha": 2, "target_modules": modules, "bias": "none"});
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
    write(&folder.path().join("adapter_model.safetensors"), tensors);
    folder
}

#[test]
fn adapters_of_every_family_and_type_add_up_in_order() {
    for spec in [Spec::gemma3(), Spec::gemma4(), Spec::qwen3()] {
        for dtype in ["F32", "F16", "BF16"] {
            let base = base(Spec { dtype, ..spec.clone() });
            let first = adapter_for(base.path(), &["q_proj", "down_proj"], json!({}), 1);
            let second = adapter_for(base.path(), &["q_proj", "o_proj"], json!({"use_rslora": true}), 2);
            let mut tensors = read(&base.path().join("model.safetensors"));
            let own = |folder: &TempDir| read(&folder.path().join("adapter_model.safetensors"));
            merge(&mut tensors, &own(&first), |_| 2.0 / 3.0);
            merge(&mut tensors, &own(&second), |_| 0.5 * (2.0 / 3_f64.sqrt()));
            let merged = TempDir::new().unwrap();
            fs::copy(base.path().join("config.json"), merged.path().join("config.json")).unwrap();
            write(&merged.path().join("model.safetensors"), &tensors);
            let adapters = [lora(first.path(), 1.0), lora(second.path(), 0.5)];
            let found = adapted(base.path(), &adapters);
            let what = format!("{:?} {dtype}", spec.family);
            expect_equal(&found, &Checkpoint::open(merged.path()).unwrap(), &what);

            // Hashes tell the adapters, their order and their scale apart.
            let plain = Checkpoint::open(base.path()).unwrap();
            let [one, other] = adapters;
            let mut hashes: Vec<_> = [
                vec![],
                vec![one.clone()],
                vec![lora(first.path(), 0.5)],
                vec![one.clone(), other.clone()],
                vec![other, one],
            ]
            .iter()
            .map(|adapters| adapted(base.path(), adapters).content_hash())
            .collect();
            assert_eq!(hashes[0], plain.content_hash());
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len(), 5, "{what}");
        }
    }
}

#[test]
fn names_of_text_models_within_larger_ones_match() {
    let spec = Spec { prefix: Some("model.language_model.".to_owned()), ..Spec::gemma3() };
    let base = base(spec);
    let own = adapter_for(base.path(), &["q_proj"], json!({}), 1);
    let tensors = read(&own.path().join("adapter_model.safetensors"));
    let expected = adapted(base.path(), &[lora(own.path(), 1.0)]);
    for prefix in ["model.", "language_model.model.", ""] {
        let renamed = tensors.iter().map(|(name, tensor)| {
            let name = name.replace("base_model.model.model.language_model.", &format!("{PREFIX}{prefix}"));
            (name, tensor.clone())
        });
        let renamed = written(&renamed.collect(), &["q_proj"], json!({}));
        expect_equal(&adapted(base.path(), &[lora(renamed.path(), 1.0)]), &expected, prefix);
    }
}

#[test]
fn settings_and_tensors_without_effect_are_reported() {
    let base = base(Spec { stale_keys: true, ..Spec::gemma4() });
    let settings = json!({
        "target_modules": ["q_proj", "unembedding"], "modules_to_save": ["classifier"], "wobble": 1,
        "base_model_name_or_path": "owner/another-model",
    });
    let adapter = adapter_for(base.path(), &["q_proj"], settings, 1);
    fs::write(adapter.path().join("chat_template.jinja"), "other").unwrap();
    let found = adapted(base.path(), &[lora(adapter.path(), 1.0)]);
    let plain = Checkpoint::open(base.path()).unwrap();
    let shown: Vec<String> = found
        .ignored()
        .iter()
        .filter(|own| !plain.ignored().contains(own))
        .map(ToString::to_string)
        .collect();
    let words = ["`wobble`", "`owner/another-model`", "`unembedding`", "`classifier`", "chat_template.jinja"];
    assert_eq!(shown.len(), words.len(), "{shown:?}");
    for word in words {
        assert!(shown.iter().any(|line| line.contains(word)), "{word}: {shown:?}");
    }
    // Keys of a layer that uses those of an earlier one are not read, with or without changes.
    let keys = adapter_for(base.path(), &["k_proj"], json!({}), 1);
    let own = adapted(base.path(), &[lora(keys.path(), 1.0)]);
    assert_eq!(own.ignored(), plain.ignored());
}

#[test]
fn an_outline_checks_adapters_too() {
    let base = base(Spec::qwen3());
    let adapter = adapter_for(base.path(), &["q_proj"], json!({}), 1);
    let path = base.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
    fs::write(&path, bytes).unwrap();
    let opened = Opened::open_adapted(base.path(), &[Pass::Step], &[lora(adapter.path(), 1.0)]).unwrap();
    assert!(matches!(opened, Opened::Outline(_)));
    fs::remove_file(&path).unwrap();
    let opened = Opened::open_adapted(base.path(), &[Pass::Step], &[lora(adapter.path(), 1.0)]).unwrap();
    assert!(matches!(opened, Opened::Outline(_)));
    let missing = Opened::open_adapted(base.path(), &[Pass::Step], &[lora(Path::new("nowhere"), 1.0)]);
    assert_eq!(missing.map(drop).unwrap_err().kind(), ErrorKind::Missing);
}

#[test]
fn adapters_that_do_not_fit_are_refused_by_name() {
    let base = base(Spec::qwen3());
    let good = adapter_for(base.path(), &["q_proj"], json!({}), 1);
    let tensors = read(&good.path().join("adapter_model.safetensors"));
    let (first, tensor) = tensors.iter().next().unwrap();
    let whole = |name: &str, shape: Vec<u64>| {
        let bytes = vec![0; 4 * shape.iter().product::<u64>() as usize];
        Tensors::from([(name.to_owned(), ("F32".to_owned(), shape, bytes))])
    };
    let renamed = |from: &str, to: &str| -> Tensors {
        tensors.iter().map(|(name, tensor)| (name.replace(from, to), tensor.clone())).collect()
    };
    let changed = |change: &dyn Fn(&mut Tensor)| {
        let mut own = tensors.clone();
        change(own.get_mut(first).unwrap());
        own
    };
    let with = |name: &str| {
        let mut own = tensors.clone();
        own.insert(name.to_owned(), tensor.clone());
        own
    };
    let without_b: Tensors =
        tensors.clone().into_iter().filter(|(name, _)| !name.contains("lora_B")).collect();
    let mut nan = tensor.clone();
    nan.2[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let magnitude = format!("{PREFIX}model.layers.0.self_attn.q_proj.lora_magnitude_vector");
    let none = json!({});
    let (unsupported, invalid, incompatible) =
        (ErrorKind::Unsupported, ErrorKind::Invalid, ErrorKind::Incompatible);
    for (tensors, settings, kind, words) in [
        (Tensors::new(), none.clone(), invalid, "contains no tensors"),
        (without_b, none.clone(), invalid, "has no counterpart"),
        (with(&magnitude), none.clone(), unsupported, "DoRA"),
        (with("model.layers.0.extra"), none.clone(), unsupported, "`model.layers.0.extra`"),
        (with(&format!("{PREFIX}model.norm.weight")), none.clone(), unsupported, "model.norm.weight"),
        (with(&format!("{PREFIX}model.lora_X.weight")), none.clone(), unsupported, "model.lora_X.weight"),
        (with(&format!("{PREFIX}model.a.bias")), json!({"bias": "all"}), incompatible, "module `model.a`"),
        (renamed("q_proj", "w_proj"), json!({"target_modules": ["w_proj"]}), incompatible, "w_proj"),
        (renamed("q_proj", "o_proj"), none.clone(), invalid, "settings do not target"),
        (tensors.clone(), json!({"r": 4}), invalid, "rank 4"),
        (
            tensors.clone(),
            json!({"exclude_modules": ["layers.0.self_attn.q_proj"]}),
            invalid,
            "do not target",
        ),
        (changed(&|own| *own = nan.clone()), none.clone(), invalid, "NaN"),
        (changed(&|own| own.0 = "I32".to_owned()), none.clone(), unsupported, "I32"),
        (changed(&|own| own.1.push(1)), none.clone(), invalid, "matrices of rank 3"),
        (
            changed(&|own| {
                own.1[1] -= 1;
                own.2.truncate(4 * (own.1[0] * own.1[1]) as usize);
            }),
            none.clone(),
            incompatible,
            "has the shape",
        ),
        (
            whole(&format!("{PREFIX}lm_head.weight"), vec![5, 24]),
            json!({"modules_to_save": ["lm_head"]}),
            incompatible,
            "`lm_head.weight` has the shape",
        ),
    ] {
        let adapter = written(&tensors, &["q_proj"], settings);
        let error = refusal(base.path(), adapter.path());
        assert_eq!(error.kind(), kind, "{words}: {error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert!(error.place().is_some_and(|place| place.contains("adapter_model.safetensors")), "{error:?}");
    }
    let path = good.path().join("adapter_model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
    fs::write(&path, bytes).unwrap();
    let error = refusal(base.path(), good.path());
    assert!(error.to_string().contains("contains a header, but no values"), "{error}");
    fs::remove_file(path).unwrap();
    let error = refusal(base.path(), good.path());
    assert!(error.help().is_some_and(|help| help.contains("adapter_model.bin")), "{error:?}");
    assert_eq!(refusal(base.path(), &base.path().join("config.json")).kind(), ErrorKind::Argument);
    let many = vec![lora(good.path(), 1.0); 65];
    let error = Checkpoint::open_adapted(base.path(), &[Pass::Step], &many).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
}

#[test]
fn tensors_that_contradict_each_other_are_refused() {
    let base = base(Spec::qwen3());
    let tensor = |shape: [u64; 2]| {
        ("F32".to_owned(), shape.to_vec(), vec![0; 4 * shape.iter().product::<u64>() as usize])
    };
    let named = |names: [(&str, [u64; 2]); 4]| -> Tensors {
        names.into_iter().map(|(name, shape)| (format!("{PREFIX}{name}"), tensor(shape))).collect()
    };
    let both = named([
        ("model.embed_tokens.lora_A.weight", [3, 24]),
        ("model.embed_tokens.lora_B.weight", [96, 3]),
        ("model.embed_tokens.lora_embedding_A", [3, 96]),
        ("model.embed_tokens.lora_embedding_B", [24, 3]),
    ]);
    let twice = named([
        ("lm_head.weight", [96, 24]),
        ("lm_head.base_layer.weight", [96, 24]),
        ("lm_head.lora_A.weight", [3, 24]),
        ("lm_head.lora_B.weight", [96, 3]),
    ]);
    for (tensors, words) in
        [(both, "matrices of a linear layer and of a table"), (twice, "two tensors replace `lm_head.weight`")]
    {
        let error = refusal(base.path(), written(&tensors, &["embed_tokens", "lm_head"], json!({})).path());
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn two_adapters_cannot_replace_a_tensor_and_a_replacement_has_no_scale() {
    let tinyllama = (fixtures().join("tinyllama"), fixtures().join("lora/tinyllama"));
    let open = |adapters: &[Lora]| {
        Checkpoint::open_adapted(&tinyllama.0, &[Pass::Step], adapters).map(drop).unwrap_err()
    };
    let error = open(&[lora(&tinyllama.1, 0.5)]);
    assert!(error.to_string().contains("replaces `lm_head.weight`, which has no scale"), "{error}");
    let copy = TempDir::new().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(tinyllama.1.join(file), copy.path().join(file)).unwrap();
    }
    let error = open(&[lora(&tinyllama.1, 1.0), lora(copy.path(), 1.0)]);
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.help().is_some_and(|help| help.contains("drop one")), "{error:?}");
    let error = open(&[lora(&tinyllama.1, 1.0), lora(&tinyllama.1, 1.0)]);
    assert!(error.to_string().contains("replaces `lm_head.weight` twice"), "{error}");
}

#[test]
fn tied_weights_and_integers_are_refused_by_name() {
    let tied = TempDir::new().unwrap();
    Spec::qwen3().write(tied.path()).unwrap();
    let untied = base(Spec::qwen3());
    let shape = read(&untied.path().join("model.safetensors"))["model.embed_tokens.weight"].1.clone();
    let values = |shape: &[u64]| vec![0; 4 * shape.iter().product::<u64>() as usize];
    let part = |end: &str, shape: Vec<u64>| {
        let bytes = values(&shape);
        (format!("{PREFIX}model.embed_tokens.{end}"), ("F32".to_owned(), shape, bytes))
    };
    let tables = Tensors::from([
        part("lora_embedding_A", vec![3, shape[0]]),
        part("lora_embedding_B", vec![shape[1], 3]),
    ]);
    let table = written(&tables, &["embed_tokens"], json!({}));
    adapted(untied.path(), &[lora(table.path(), 1.0)]);
    let error = refusal(tied.path(), table.path());
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("`model.embed_tokens.weight`"), "{error}");
    let head = format!("{PREFIX}lm_head.weight");
    let head = Tensors::from([(head, ("F32".to_owned(), shape.clone(), values(&shape)))]);
    let head = written(&head, &["q_proj"], json!({"modules_to_save": ["lm_head"]}));
    let error = refusal(tied.path(), head.path());
    assert!(error.to_string().contains("module `lm_head`"), "{error}");
    assert!(error.help().is_some_and(|help| help.contains("tie_word_embeddings")), "{error:?}");
}

#[test]
fn gguf_files_of_floats_are_merged_like_their_folders() {
    for name in ["phi4mini", "llama3"] {
        let folder = fixtures().join(name);
        let own = adapter_for(&folder, &["q_proj", "k_proj", "qkv_proj", "down_proj"], json!({}), 1);
        let config = json!({"target_modules": "all-linear"}).to_string();
        let config = config.replace('{', r#"{"peft_type": "LORA", "r": 3, "#);
        fs::write(own.path().join("adapter_config.json"), config).unwrap();
        let adapter = lora(own.path(), 1.0);
        let (found, expected) = (
            adapted(&fixtures().join("gguf").join(format!("{name}.gguf")), std::slice::from_ref(&adapter)),
            adapted(&folder, std::slice::from_ref(&adapter)),
        );
        let plain = Checkpoint::open(&folder).unwrap();
        let mut changed = 0;
        for (expected, plain) in weights(&expected).into_iter().zip(weights(&plain)) {
            if expected.data.bytes() == plain.data.bytes() {
                continue;
            }
            let found = weights(&found).into_iter().find(|own| own.name == expected.name).unwrap();
            assert!(found.data.bytes() == expected.data.bytes(), "{name}: {}", found.name);
            changed += 1;
        }
        assert!(changed >= 6, "{name}: {changed} weights");
    }
}

#[test]
fn quantised_weights_are_refused_by_name() {
    let module = format!("{PREFIX}model.layers.0.self_attn.q_proj");
    let tensor = |shape: Vec<u64>| ("F32".to_owned(), shape, vec![0; 4 * 3 * 64]);
    let tensors = Tensors::from([
        (format!("{module}.lora_A.weight"), tensor(vec![3, 64])),
        (format!("{module}.lora_B.weight"), tensor(vec![64, 3])),
    ]);
    let adapter = written(&tensors, &["q_proj"], json!({}));
    for name in ["compressed_int8_channel", "gptq4_group32", "awq_group32", "gemma_int8", "gguf_q8_0"] {
        let error = refusal(&fixtures().join("quantised").join(name), adapter.path());
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
        assert!(error.to_string().contains("only floats can be merged"), "{name}: {error}");
        assert!(error.help().is_some_and(|help| help.contains("bf16")), "{name}: {error:?}");
    }
}
