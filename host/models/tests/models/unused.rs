//! Tensors that the model does not read: unable to change a result, refused, or reported.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use shardwright_models::{Checkpoint, Opened, Outline, passes_of};
use shardwright_test_checkpoints::{Spec, raw_safetensors, write_gguf};
use shardwright_vocabulary::{Error, ErrorKind, Ignored, Pass};
use tempfile::TempDir;

use crate::gguf_file::File;
use crate::quantised;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// Copies settings and weights of a fixture.
fn copied(fixture: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    for name in [CONFIG, WEIGHTS] {
        fs::copy(fixtures().join(fixture).join(name), folder.path().join(name)).unwrap();
    }
    folder
}

/// Returns the header and the data of a weight file.
fn parts(path: &Path) -> (Map<String, Value>, Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    let end = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..end]).unwrap(), bytes[end..].to_vec())
}

/// Adds tensors of four 32-bit floats to a weight file. All four have the given value.
fn add(path: &Path, tensors: &[(&str, f32)]) {
    let (mut header, mut data) = parts(path);
    for (name, value) in tensors {
        let begin = data.len();
        data.extend([*value; 4].into_iter().flat_map(f32::to_le_bytes));
        let entry = json!({"dtype": "F32", "shape": [4], "data_offsets": [begin, data.len()]});
        header.insert((*name).to_owned(), entry);
    }
    fs::write(path, raw_safetensors(&Value::Object(header).to_string(), &data)).unwrap();
}

/// Copies a fixture and adds tensors.
fn with(fixture: &str, tensors: &[(&str, f32)]) -> TempDir {
    let folder = copied(fixture);
    add(&folder.path().join(WEIGHTS), tensors);
    folder
}

fn edit(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join(CONFIG);
    let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(path, config.to_string()).unwrap();
}

/// Removes the last layers from settings.
fn cut(settings: &mut Value, layers: usize) {
    settings["num_hidden_layers"] = json!(layers);
    if let Some(types) = settings.get_mut("layer_types").and_then(Value::as_array_mut) {
        types.truncate(layers);
    }
}

/// Shortens the weight file to its header.
fn keep_header(folder: &Path) {
    let (header, _) = parts(&folder.join(WEIGHTS));
    fs::write(folder.join(WEIGHTS), raw_safetensors(&Value::Object(header).to_string(), &[])).unwrap();
}

/// Replaces the weight file with an index of another file that does not exist.
fn keep_index(folder: &Path) {
    let (header, _) = parts(&folder.join(WEIGHTS));
    let names = header.keys().filter(|name| *name != "__metadata__");
    let map: Map<String, Value> = names.map(|name| (name.clone(), "a.safetensors".into())).collect();
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    fs::write(folder.join(INDEX), index.to_string()).unwrap();
    fs::remove_file(folder.join(WEIGHTS)).unwrap();
}

/// Returns the report on tensors.
fn tensors(ignored: &[Ignored]) -> Vec<String> {
    ignored.iter().filter(|ignored| ignored.tensor.is_some()).map(ToString::to_string).collect()
}

fn reported(folder: &Path) -> Vec<String> {
    tensors(Checkpoint::open(folder).unwrap_or_else(|error| panic!("{error}")).ignored())
}

fn reported_of_outline(folder: &Path) -> Vec<String> {
    tensors(Outline::open(folder).unwrap_or_else(|error| panic!("{error}")).ignored())
}

fn refused(path: &Path) -> Error {
    Opened::open(path).map(|_| ()).unwrap_err()
}

/// Checks an error about more stored layers than configured.
fn assert_more(error: &Error, field: &str, configured: usize, stored: usize, tensor: &str) {
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    let counts = format!("`{field}` is {configured}, but the weights have {stored} layers");
    assert!(text.contains(&counts), "{text} lacks {counts}");
    assert!(text.contains(&format!(": tensor `{tensor}` of ")), "{text} lacks {tensor}");
    let help = error.help().unwrap();
    assert!(help.starts_with(&format!("set `{field}` to {stored} ")), "{help}");
}

#[test]
fn checkpoints_as_published_have_no_tensor_that_may_matter() {
    let listed = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let folders = listed(fixtures()).chain(listed(fixtures().join("quantised")));
    let folders = folders.chain([fixtures().join("../../demo-model")]);
    let mut models: Vec<PathBuf> = folders.filter(|path| path.join(CONFIG).is_file()).collect();
    let files = listed(fixtures().join("gguf"));
    models.extend(files.filter(|path| path.extension().is_some_and(|extension| extension == "gguf")));
    assert!(models.len() >= 45, "{models:?}");
    for path in models {
        for passes in [vec![Pass::Step], passes_of(&path).unwrap()] {
            let opened = Checkpoint::open_for(&path, &passes).unwrap();
            let of_towers = passes.iter().map(|&pass| opened.ignored_of(pass));
            for ignored in of_towers.chain([opened.ignored()]) {
                assert!(tensors(ignored).is_empty(), "{}: {passes:?}: {ignored:?}", path.display());
            }
        }
    }
    for spec in [
        Spec { multimodal: true, stale_keys: true, ..Spec::gemma4() },
        Spec { multimodal: true, ..Spec::gemma3() },
    ] {
        let folder = TempDir::new().unwrap();
        spec.write(folder.path()).unwrap();
        assert!(!Checkpoint::open(folder.path()).unwrap().unused_tensors().is_empty());
        assert!(reported(folder.path()).is_empty(), "{spec:?}");
        keep_index(folder.path());
        assert!(reported_of_outline(folder.path()).is_empty(), "{spec:?}");
    }
}

#[test]
fn layers_beyond_the_configured_number_are_refused() {
    for (fixture, prefix, stored) in [
        ("llama", "model.", 4),
        ("mistral", "model.", 4),
        ("qwen3", "model.", 6),
        ("granite", "model.", 4),
        ("phi4mini", "model.", 4),
        ("gemma3_text", "model.", 7),
        ("embeddinggemma", "", 7),
    ] {
        let folder = copied(fixture);
        let configured = stored - 2;
        edit(folder.path(), |config| cut(config, configured));
        let first = format!("{prefix}layers.{configured}.input_layernorm.weight");
        let check = || {
            let error = refused(folder.path());
            assert_more(&error, "num_hidden_layers", configured, stored, &first);
            assert!(error.to_string().contains(CONFIG), "{fixture}: {error}");
        };
        check();
        keep_header(folder.path());
        check();
        keep_index(folder.path());
        check();
    }
    let folder = TempDir::new().unwrap();
    Spec { multimodal: true, ..Spec::gemma3() }.write(folder.path()).unwrap();
    edit(folder.path(), |config| cut(&mut config["text_config"], 2));
    let first = "language_model.model.layers.2.input_layernorm.weight";
    assert_more(&refused(folder.path()), "text_config.num_hidden_layers", 2, 4, first);
}

#[test]
fn fewer_layers_than_configured_are_a_missing_tensor() {
    let folder = copied("llama");
    edit(folder.path(), |config| config["num_hidden_layers"] = json!(6));
    let states: [fn(&Path); 3] = [|_| (), keep_header, keep_index];
    for keep in states {
        keep(folder.path());
        let error = refused(folder.path());
        assert_eq!(error.kind(), ErrorKind::Missing, "{error:?}");
        assert!(error.to_string().contains("no tensor `model.layers.4.input_layernorm.weight`"), "{error}");
    }
}

/// Writes a fixture's GGUF file with a changed number of layers.
fn with_blocks(name: &str, architecture: &str, blocks: usize) -> TempDir {
    let mut bytes = fs::read(fixtures().join(format!("gguf/{name}.gguf"))).unwrap();
    let key = format!("{architecture}.block_count");
    let end = bytes.windows(key.len()).position(|found| found == key.as_bytes()).unwrap() + key.len();
    assert_eq!(bytes[end..end + 4], 4_u32.to_le_bytes(), "an unsigned number of 32 bits");
    bytes[end + 4..end + 8].copy_from_slice(&(blocks as u32).to_le_bytes());
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("model.gguf"), bytes).unwrap();
    folder
}

#[test]
fn a_gguf_file_has_as_many_layers_as_its_metadata_specify() {
    for (name, architecture, stored) in [
        ("llama3", "llama", 4),
        ("smollm3", "smollm3", 5),
        ("granite", "granite", 4),
        ("granite4", "granite", 3),
        ("phi4mini", "phi3", 4),
        ("embeddinggemma", "gemma-embedding", 7),
    ] {
        let last = stored - 1;
        let folder = with_blocks(name, architecture, last);
        let error = refused(&folder.path().join("model.gguf"));
        let field = format!("{architecture}.block_count");
        assert_more(&error, &field, last, stored, &format!("blk.{last}.attn_norm.weight"));

        let folder = with_blocks(name, architecture, stored + 1);
        let error = refused(&folder.path().join("model.gguf"));
        assert_eq!(error.kind(), ErrorKind::Missing, "{error:?}");
        assert!(error.to_string().contains(&format!("layers.{stored}.input_layernorm.weight`")), "{error}");
    }
    // The `config.json` next to a file replaces its metadata.
    let folder = TempDir::new().unwrap();
    let spec = Spec { vocabulary: 400, dtype: "F16", ..Spec::qwen3() };
    write_gguf(&spec, "toy", &folder.path().join("toy.gguf")).unwrap();
    fs::write(folder.path().join(CONFIG), spec.config().to_string()).unwrap();
    assert!(reported(folder.path()).is_empty());
    edit(folder.path(), |config| cut(config, 3));
    assert_more(&refused(folder.path()), "num_hidden_layers", 3, 4, "blk.3.attn_norm.weight");
}

#[test]
fn other_tensors_are_reported_in_groups() {
    let sinks: Vec<String> = (0..4).map(|layer| format!("model.layers.{layer}.self_attn.sinks")).collect();
    let mut added: Vec<(&str, f32)> = sinks.iter().map(|name| (name.as_str(), 1.0)).collect();
    added.push(("extra.weight", 1.0));
    let folder = with("llama", &added);
    let ends = |path: &Path, sizes: [&str; 2]| {
        let file = path.display();
        [
            format!("{file}: tensor `extra.weight` is ignored: the model does not read it{}", sizes[0]),
            format!(
                "{file}: tensor `{}` is ignored: the model does not read it, nor 3 more tensors like it{}",
                sinks[0], sizes[1]
            ),
        ]
    };
    let expected = ends(&folder.path().join(WEIGHTS), [" (16 B)", " (64 B in all)"]);
    assert_eq!(reported(folder.path()), expected);
    keep_header(folder.path());
    assert_eq!(reported_of_outline(folder.path()), expected);
    // An index has names, but no sizes.
    keep_index(folder.path());
    assert_eq!(reported_of_outline(folder.path()), ends(&folder.path().join(INDEX), ["", ""]));

    // The last line counts all further groups.
    let many: Vec<String> = (0..20).map(|part| format!("extra{part:02}.weight")).collect();
    let many: Vec<(&str, f32)> = many.iter().map(|name| (name.as_str(), 1.0)).collect();
    let lines = reported(with("llama", &many).path());
    assert_eq!(lines.len(), 8, "{lines:?}");
    assert!(
        lines[6].ends_with("`extra06.weight` is ignored: the model does not read it (16 B)"),
        "{lines:?}"
    );
    let last = "`extra07.weight` is ignored: the model does not read it, nor 12 more tensors (208 B in all)";
    assert!(lines[7].ends_with(last), "{lines:?}");

    // Modules of a sentence model have files of their own.
    let folder = TempDir::new().unwrap();
    Spec::embeddinggemma().write(folder.path()).unwrap();
    assert!(reported(folder.path()).is_empty());
    let module = folder.path().join("2_Dense").join(WEIGHTS);
    add(&module, &[("linear.extra", 1.0)]);
    let lines = reported(folder.path());
    let begins = format!("{}: tensor `linear.extra` is ignored", module.display());
    assert!(lines.len() == 1 && lines[0].starts_with(&begins), "{lines:?}");
}

#[test]
fn tensors_that_cannot_matter_are_not_reported() {
    let harmless = [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", 1.0),
        ("model.vision_tower.vision_model.embeddings.patch_embedding.weight", 1.0),
        ("multi_modal_projector.mm_soft_emb_norm.weight", 1.0),
        ("model.embed_audio.embedding_projection.weight", 1.0),
        ("model.layers.0.mlp.down_proj.bias", 0.0),
    ];
    let folder = with("llama", &harmless);
    assert_eq!(Checkpoint::open(folder.path()).unwrap().unused_tensors().len(), harmless.len());
    assert!(reported(folder.path()).is_empty());
    let lines = reported(with("llama", &[("model.layers.0.mlp.down_proj.bias", 1.0)]).path());
    assert!(lines.len() == 1 && lines[0].contains("`model.layers.0.mlp.down_proj.bias`"), "{lines:?}");

    // AutoGPTQ writes biases of zeros. A header does not show whether they are zeros.
    for (value, expected) in [(0.0, 0), (1.0, 1)] {
        let folder = with("quantised/gptq4_group64", &[("model.layers.0.mlp.down_proj.bias", value)]);
        assert_eq!(reported(folder.path()).len(), expected);
        keep_header(folder.path());
        assert!(reported_of_outline(folder.path()).is_empty());
    }

    // An encoder has no logits.
    assert!(reported(with("embeddinggemma", &[("lm_head.weight", 1.0)]).path()).is_empty());

    // The last two layers use the keys and values of earlier layers.
    let [own, shared] =
        [0, 5].map(|layer| format!("model.language_model.layers.{layer}.self_attn.v_norm.weight"));
    assert!(reported(with("gemma4_mm", &[(shared.as_str(), 1.0)]).path()).is_empty());
    let lines = reported(with("gemma4_mm", &[(own.as_str(), 1.0)]).path());
    assert!(lines.len() == 1 && lines[0].contains(&own), "{lines:?}");

    // A projector next to the model's GGUF file.
    let folder = quantised::copied("gguf_q4_0");
    let file = File::new().architecture("clip").tensor("v.patch_embd.weight", &[8], 0, 0);
    fs::write(folder.path().join("mmproj.gguf"), file.data(&[0; 32])).unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().unused_tensors().len(), 1);
    assert!(reported(folder.path()).is_empty());
}

#[test]
fn scales_of_activations_do_not_matter_if_the_settings_have_them() {
    let scale = "model.layers.0.mlp.down_proj.input_scale";
    let folder = with("quantised/compressed_int8_channel", &[(scale, 1.0)]);
    let lines = reported(folder.path());
    assert!(lines.len() == 1 && lines[0].contains(scale), "{lines:?}");
    edit(folder.path(), |config| {
        config["quantization_config"]["config_groups"]["group_0"]["input_activations"] =
            json!({"num_bits": 8, "type": "int", "strategy": "tensor"});
    });
    assert!(reported(folder.path()).is_empty());

    // An index lists all tensors of a module.
    for fixture in ["compressed_pack4_group32", "gptq4_group64", "awq_symmetric", "gemma_int8"] {
        let folder = copied(&format!("quantised/{fixture}"));
        edit(folder.path(), |config| config["dtype"] = json!("bfloat16"));
        keep_index(folder.path());
        assert!(reported_of_outline(folder.path()).is_empty(), "{fixture}");
    }
}

#[test]
fn tensors_of_a_tower_matter_if_it_is_read() {
    let name = "model.vision_tower.extra.weight";
    let folder = with("gemma4_mm", &[(name, 1.0)]);
    assert!(reported(folder.path()).is_empty());
    for (pass, expected) in [(Pass::Clip, 0), (Pass::Picture, 1)] {
        let opened = Checkpoint::open_for(folder.path(), &[Pass::Step, pass]).unwrap();
        assert!(tensors(opened.ignored()).is_empty(), "text does not need the towers");
        let lines = tensors(opened.ignored_of(pass));
        assert!(lines.len() == expected && lines.iter().all(|line| line.contains(name)), "{lines:?}");
    }

    for (pass, tower, first) in [
        (Pass::Picture, "vision_config", "model.vision_tower.encoder.layers.2.input_layernorm.weight"),
        (Pass::Clip, "audio_config", "model.audio_tower.layers.2.feed_forward1.ffw_layer_1.input_max"),
    ] {
        let folder = copied("gemma4_mm");
        edit(folder.path(), |config| config[tower]["num_hidden_layers"] = json!(2));
        assert!(reported(folder.path()).is_empty());
        let error = Checkpoint::open_for(folder.path(), &[Pass::Step, pass]).map(|_| ()).unwrap_err();
        assert_more(&error, &format!("{tower}.num_hidden_layers"), 2, 3, first);
    }
}
