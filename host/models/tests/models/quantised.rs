//! Quantised checkpoints: their integers, scales and values equal the results of the libraries that
//! wrote them. The model computes the same as a float model with these values.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};
use shardwright_graph::{Graph, Weight, WeightData};
use shardwright_models::{Checkpoint, Opened, Outline, OutlineBasis};
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_test_checkpoints::{Spec, write_gguf, write_real};
use shardwright_vocabulary::{DType, Granularity, WeightFormat};
use tempfile::TempDir;

use crate::gguf_file::File;

/// Folders of `tests/fixtures/quantised`, and the representation of their matrices: the type, the
/// inputs per scale if an output has several scales, and the format if it has a name.
const FOLDERS: [(&str, DType, Shared, Option<WeightFormat>); 21] = {
    use Shared::{Block, Channel, Tensor};
    [
        ("gguf_q4_0", DType::I4, Block(32), Some(WeightFormat::W4Block32)),
        ("gguf_q4_0_gemma3", DType::I4, Block(32), Some(WeightFormat::W4Block32)),
        ("gguf_q8_0", DType::I8, Block(32), Some(WeightFormat::W8Block32)),
        ("compressed_pack4_group32", DType::I4, Block(32), Some(WeightFormat::W4Block32)),
        ("compressed_pack4_channel", DType::I4, Channel, Some(WeightFormat::W4PerChannel)),
        ("compressed_pack4_asymmetric", DType::I8, Block(32), Some(WeightFormat::W8Block32)),
        ("compressed_pack8_group32", DType::I8, Block(32), Some(WeightFormat::W8Block32)),
        ("compressed_pack8_channel", DType::I8, Channel, Some(WeightFormat::W8PerChannel)),
        ("compressed_int8_channel", DType::I8, Channel, Some(WeightFormat::W8PerChannel)),
        ("compressed_int8_tensor", DType::I8, Tensor, Some(WeightFormat::W8PerTensor)),
        ("gptq4_group32", DType::I4, Block(32), Some(WeightFormat::W4Block32)),
        ("gptq4_group64", DType::I4, Block(64), None),
        ("gptq4_group128", DType::I4, Block(128), None),
        ("gptq4_channel", DType::I4, Channel, Some(WeightFormat::W4PerChannel)),
        ("gptq4_asymmetric", DType::I8, Block(32), Some(WeightFormat::W8Block32)),
        ("gptq8_group32", DType::I8, Block(32), Some(WeightFormat::W8Block32)),
        ("awq_group32", DType::I8, Block(32), Some(WeightFormat::W8Block32)),
        ("awq_symmetric", DType::I4, Block(64), None),
        ("gemma_int2", DType::I2, Channel, Some(WeightFormat::W2PerChannel)),
        ("gemma_int4_table", DType::I4, Channel, Some(WeightFormat::W4PerChannel)),
        ("gemma_int8", DType::I8, Channel, Some(WeightFormat::W8PerChannel)),
    ]
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shared {
    Tensor,
    Channel,
    Block(u32),
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/quantised")
}

fn expected(folder: &str) -> serde_json::Map<String, Value> {
    let text = fs::read(fixtures().join(folder).join("expected.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn hash(bytes: impl IntoIterator<Item = u8>) -> String {
    let bytes: Vec<u8> = bytes.into_iter().collect();
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn values(weight: &Weight) -> Vec<Vec<f32>> {
    let mut rows = vec![vec![f32::NAN; weight.row_width()]; weight.rows()];
    rows.iter_mut().enumerate().for_each(|(row, into)| assert!(weight.decode_row(row, into)));
    rows
}

/// Returns the scales by output and group.
fn scales(weight: &Weight, shared: Shared) -> Vec<Vec<f32>> {
    let (width, rows) = (weight.row_width(), weight.rows());
    let (rows, size) = match shared {
        Shared::Tensor => (1, width),
        Shared::Channel => (rows, width),
        Shared::Block(size) => (rows, size as usize),
    };
    let of = |row| (0..width).step_by(size).map(|index| weight.scale(row, index).unwrap()).collect();
    (0..rows).map(of).collect()
}

#[test]
fn integers_scales_and_values_are_those_of_the_libraries() {
    let mut folders: Vec<_> = fs::read_dir(fixtures()).unwrap().flatten().map(|entry| entry.path()).collect();
    folders.retain(|path| path.is_dir());
    assert_eq!(folders.len(), FOLDERS.len(), "{folders:?}");
    for (folder, dtype, shared, format) in FOLDERS {
        let checkpoint =
            Checkpoint::open(fixtures().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        let mut unused = checkpoint.unused_tensors().iter();
        assert!(unused.all(|tensor| tensor.name.ends_with("_activation_scale")), "{folder}: {unused:?}");
        let expected = expected(folder);
        // The seven matrices of a layer, and a table.
        assert_eq!(expected.len(), if folder.ends_with("table") { 8 } else { 7 }, "{folder}");
        let mut largest = 0;
        for (name, expected) in &expected {
            let what = format!("{folder}: {name}");
            let weight = checkpoint.graph().weights.iter().find(|weight| weight.name == *name).expect(&what);
            let quantisation = weight.quantisation.as_ref().expect(&what);
            // A group that contains all inputs is a channel, except in the blocks of GGUF.
            let shared = match shared {
                Shared::Block(size) if size as usize >= weight.row_width() && !folder.starts_with("gguf") => {
                    Shared::Channel
                }
                shared => shared,
            };
            let granularity = match shared {
                Shared::Tensor => Granularity::PerTensor,
                Shared::Channel => Granularity::PerChannel,
                Shared::Block(size) => Granularity::blocks(size),
            };
            assert_eq!((weight.dtype, quantisation.granularity), (dtype, granularity), "{what}");
            if weight.row_width() > 32 || folder.starts_with("gguf") {
                assert_eq!(weight.format(), format, "{what}");
            }
            let integers = |row| weight.raw_row(row).unwrap();
            let scales = scales(weight, shared);
            assert_eq!(
                scales.first().map(Vec::len),
                expected["groups"].as_u64().map(|groups| groups as usize),
                "{what}"
            );
            let first: Vec<i64> = integers(0).map(i64::from).collect();
            assert_eq!(serde_json::json!(first), expected["first_integers"], "{what}");
            let first: Vec<f64> = scales[0].iter().map(|scale| f64::from(*scale)).collect();
            assert_eq!(serde_json::json!(first), expected["first_scales"], "{what}");
            let all = (0..weight.rows()).flat_map(integers).map(|integer| integer as i8 as u8);
            assert_eq!(hash(all), expected["integers"].as_str().unwrap(), "{what}: integers");
            let floats = |rows: Vec<Vec<f32>>| hash(rows.into_iter().flatten().flat_map(f32::to_le_bytes));
            assert_eq!(floats(scales), expected["scales"].as_str().unwrap(), "{what}: scales");
            assert_eq!(floats(values(weight)), expected["values"].as_str().unwrap(), "{what}: values");
            largest = largest.max((0..weight.rows()).flat_map(integers).map(i32::abs).max().unwrap());
        }
        // The lowest integer of four bits has no positive counterpart.
        assert!(
            dtype != DType::I4 || largest == 8 || folder.starts_with("compressed"),
            "{folder}: {largest}"
        );
    }
}

fn logits(graph: &Graph) -> Vec<f32> {
    let ids: Vec<u32> = (0..20).map(|index| 3 + index * 7 % 36).collect();
    let model = ReferenceModel::new(graph, Arrangement::whole(32)).unwrap();
    if !graph.is_generative() {
        return model.embedding(&ids).unwrap();
    }
    let mut sequence = model.start();
    model.prefill(&mut sequence, &ids[..19]).unwrap();
    model.decode(&mut sequence, &ids[19..], false).unwrap().logits.unwrap().into_floats()
}

/// Returns the graph with the values of its weights and tables as floats.
fn widened(graph: &Graph) -> Graph {
    let widen = |weight: &mut Weight| {
        let bytes = values(weight).into_iter().flatten().flat_map(f32::to_le_bytes).collect();
        (weight.dtype, weight.data, weight.quantisation) = (DType::F32, WeightData::from_vec(bytes), None);
    };
    let mut graph = graph.clone();
    graph.weights.iter_mut().for_each(widen);
    graph.assets.iter_mut().for_each(|asset| widen(&mut asset.table));
    graph
}

#[test]
fn a_quantised_model_computes_as_one_of_floats_with_its_values() {
    for (folder, ..) in FOLDERS {
        let checkpoint = Checkpoint::open(fixtures().join(folder)).unwrap();
        let found = logits(checkpoint.graph());
        assert!(found.iter().all(|value| value.is_finite()) && found.iter().any(|value| *value != 0.0));
        assert!(found == logits(&widened(checkpoint.graph())), "{folder}");
    }
}

#[test]
fn formats_without_a_name_are_said() {
    for (folder, words) in [
        ("gptq4_group64", "weights stored as i4 in blocks of 64: 1; formats have no name"),
        ("awq_symmetric", "weights stored as i4 in blocks of 64: 1;"),
    ] {
        let notes = Checkpoint::open(fixtures().join(folder)).unwrap().notes().join("; ");
        assert!(notes.contains(words), "{folder}: {notes}");
    }
    assert!(Checkpoint::open(fixtures().join("gguf_q4_0")).unwrap().notes().is_empty());
}

#[test]
fn what_settings_ask_of_activations_is_said() {
    let directory = copied("compressed_int8_channel");
    let path = directory.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(Checkpoint::open(directory.path()).unwrap().notes().is_empty());
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] =
        serde_json::json!({"num_bits": 8, "type": "int", "strategy": "token", "dynamic": true});
    fs::write(&path, config.to_string()).unwrap();
    let noted = Checkpoint::open(directory.path()).unwrap();
    assert!(noted.notes()[0].contains("quantises activations"), "{:?}", noted.notes());
}

/// Scales of activations are unused. They are listed and counted.
#[test]
fn scales_of_activations_are_said() {
    for folder in ["gemma_int2", "gemma_int4_table", "gemma_int8"] {
        let checkpoint = Checkpoint::open(fixtures().join(folder)).unwrap();
        assert_eq!(checkpoint.unused_tensors().len(), 14, "{folder}");
        let notes = checkpoint.notes();
        assert!(notes.len() == 1 && notes[0].contains("not used: 14;"), "{folder}: {notes:?}");
    }
}

#[test]
fn a_table_of_integers_is_the_head_too() {
    let checkpoint = Checkpoint::open(fixtures().join("gemma_int4_table")).unwrap();
    let graph = checkpoint.graph();
    let head = graph.weights.iter().find(|weight| weight.part == "head").unwrap();
    assert_eq!((head.name.as_str(), head.dtype), ("model.embed_tokens.weight", DType::I4));
    assert_eq!(graph.assets[0].table.dtype, DType::I4);
    assert!(values(head) == values(&graph.assets[0].table));
}

/// Copies a fixture, so that a test can change it.
pub fn copied(folder: &str) -> TempDir {
    let directory = TempDir::new().unwrap();
    for entry in fs::read_dir(fixtures().join(folder)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, directory.path().join(path.file_name().unwrap())).unwrap();
    }
    directory
}

/// Formats everything of a graph that matters to a plan.
fn structure(graph: &Graph) -> String {
    let weight = |weight: &Weight| {
        let scales = weight.quantisation.as_ref();
        let scales = scales.map(|scales| (scales.granularity, scales.scale_dtype, scales.scales.length()));
        (weight.name.clone(), weight.part, weight.shape.clone(), weight.dtype, weight.data.length(), scales)
    };
    let weights: Vec<_> = graph.weights.iter().map(weight).collect();
    let tables: Vec<_> = graph.assets.iter().map(|asset| weight(&asset.table)).collect();
    format!("{:?} {weights:?} {tables:?}", graph.components)
}

#[test]
fn an_outline_counts_what_the_whole_checkpoint_has() {
    for folder in [
        "compressed_pack4_group32",
        "compressed_int8_channel",
        "gptq4_group64",
        "awq_symmetric",
        "gemma_int2",
        "gemma_int4_table",
        "gemma_int8",
    ] {
        let directory = copied(folder);
        let whole = structure(Checkpoint::open(directory.path()).unwrap().graph());
        let path = directory.path().join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        fs::write(&path, &bytes[..8 + header]).unwrap();
        let Opened::Outline(outline) = Opened::open(directory.path()).unwrap() else { panic!("{folder}") };
        assert_eq!(outline.basis(), OutlineBasis::Headers);
        assert!(structure(outline.graph()) == whole, "{folder} by its header");

        let names: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        let map = names.as_object().unwrap().keys().filter(|name| *name != "__metadata__");
        let map: serde_json::Map<_, _> = map.map(|name| (name.clone(), "a.safetensors".into())).collect();
        fs::remove_file(&path).unwrap();
        let config = directory.path().join("config.json");
        let mut settings: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
        settings["dtype"] = "bfloat16".into();
        fs::write(&config, settings.to_string()).unwrap();
        let outline = Outline::open(directory.path()).unwrap();
        assert_eq!(outline.basis(), OutlineBasis::Configuration);
        assert!(structure(outline.graph()) == whole, "{folder} by its configuration");

        let index = directory.path().join("model.safetensors.index.json");
        fs::write(index, serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string())
            .unwrap();
        let outline = Outline::open(directory.path()).unwrap();
        assert_eq!(outline.basis(), OutlineBasis::Index);
        assert!(structure(outline.graph()) == whole, "{folder} by its index");
    }
}

/// A file with llama.cpp's names gives the same graph as the checkpoint. Its norms are one less
/// than stored.
#[test]
fn a_gguf_file_of_floats_is_the_checkpoint_it_was_made_from() {
    for spec in [
        Spec::gemma3(),
        Spec { stale_keys: true, ..Spec::gemma4() },
        Spec::qwen3(),
        Spec { tied: false, ..Spec::qwen3() },
    ] {
        let spec = Spec { vocabulary: 400, dtype: "F16", ..spec };
        let (plain, renamed) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        write_real(&spec, plain.path()).unwrap();
        write_gguf(&spec, "toy", &renamed.path().join("toy.gguf")).unwrap();
        fs::copy(plain.path().join("config.json"), renamed.path().join("config.json")).unwrap();
        let (plain, renamed) =
            (Checkpoint::open(plain.path()).unwrap(), Checkpoint::open(renamed.path()).unwrap());
        // Tensors of one dimension have the same type in the file as in this checkpoint.
        let directory = TempDir::new().unwrap();
        Spec { dtype: "F32", ..spec.clone() }.write(directory.path()).unwrap();
        let exact = Checkpoint::open(directory.path()).unwrap();
        let nodes = |checkpoint: &Checkpoint| {
            let all = checkpoint.graph().components.iter().map(|component| format!("{:?}", component.nodes));
            all.collect::<Vec<_>>()
        };
        assert!(nodes(&renamed) == nodes(&plain), "{spec:?}");
        for (weight, plain) in renamed.graph().weights.iter().zip(&plain.graph().weights) {
            assert_eq!((&weight.name, &weight.shape), (&plain.name, &plain.shape));
            if weight.shape.len() == 1 {
                let exact = exact.graph().weights.iter().find(|exact| exact.name == weight.name).unwrap();
                // The sum was rounded when the file was made. The model computes with that sum.
                let sums = |weight| values(weight)[0].iter().map(|value| value + 1.0).collect::<Vec<_>>();
                assert!(sums(weight) == sums(exact), "{}", weight.name);
            } else {
                assert!(values(weight) == values(plain), "{}", weight.name);
            }
        }
        let unused: Vec<_> = renamed.unused_tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        let tables: &[&str] = if spec.family == Spec::gemma4().family { &["rope_freqs.weight"] } else { &[] };
        assert_eq!(unused, tables);
        assert_ne!(plain.weights_fingerprint(), renamed.weights_fingerprint());
    }
}

#[test]
fn a_table_and_a_head_of_blocks_are_made_once() {
    let checkpoint = Checkpoint::open(fixtures().join("gguf_q8_0")).unwrap();
    let graph = checkpoint.graph();
    let head = graph.weights.iter().find(|weight| weight.part == "head").unwrap();
    let table = &graph.assets[0].table;
    assert_eq!((head.dtype, table.dtype), (DType::I8, DType::I8));
    assert!(std::ptr::eq(head.data.bytes(), table.data.bytes()));
    assert_eq!(
        checkpoint.content_hash(),
        Checkpoint::open(fixtures().join("gguf_q8_0")).unwrap().content_hash()
    );
}

/// Reads the tensors of a safetensors file: name, type, shape and bytes.
fn stored(path: &Path) -> Vec<(String, String, Vec<u64>, Vec<u8>)> {
    let bytes = fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<_> = file
        .iter()
        .map(|(name, view)| {
            let shape = view.shape().iter().map(|&extent| extent as u64).collect();
            (name.to_owned(), format!("{:?}", view.dtype()), shape, view.data().to_vec())
        })
        .collect();
    all.sort();
    all
}

/// Returns llama.cpp's name of a tensor of EmbeddingGemma.
fn renamed(name: &str) -> String {
    let parts = [
        ("model.", ""),
        ("embed_tokens", "token_embd"),
        ("layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let short = parts.into_iter().fold(name.to_owned(), |name, (from, to)| name.replacen(from, to, 1));
    if short == "norm.weight" { "output_norm.weight".to_owned() } else { short }
}

/// A sentence model in one file, including its dense layers, but without settings and modules.
#[test]
fn a_sentence_model_in_a_gguf_file_gives_the_same_vectors() {
    let spec = Spec::embeddinggemma();
    let directory = TempDir::new().unwrap();
    spec.write(directory.path()).unwrap();
    let plain = Checkpoint::open(directory.path()).unwrap();
    let mut tensors = stored(&directory.path().join("model.safetensors"));
    fs::remove_file(directory.path().join("model.safetensors")).unwrap();
    for module in [2, 3] {
        let path = directory.path().join(format!("{module}_Dense/model.safetensors"));
        let (_, dtype, shape, bytes) = stored(&path).remove(0);
        tensors.push((format!("dense_{module}.weight"), dtype, shape, bytes));
        fs::remove_file(path).unwrap();
    }
    let (mut file, mut data) = (File::new().architecture("gemma-embedding"), Vec::new());
    for (name, dtype, mut shape, mut bytes) in tensors {
        assert_eq!(dtype, "BF16");
        let mut kind = 30;
        if name.ends_with("norm.weight") {
            let values = bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|pair| f32::from_bits(u32::from(u16::from_le_bytes(*pair)) << 16));
            bytes = values.flat_map(|value| (value + 1.0).to_le_bytes()).collect();
            kind = 0;
        }
        shape.reverse();
        file = file.tensor(&renamed(&name), &shape, kind, data.len() as u64);
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    fs::write(directory.path().join("embedding.gguf"), file.data(&data)).unwrap();
    let found = Checkpoint::open(directory.path()).unwrap();
    assert!(found.unused_tensors().is_empty(), "{:?}", found.unused_tensors());
    assert!(found.graph().weights.iter().any(|weight| weight.name == "3_Dense/linear.weight"));
    assert!(logits(found.graph()) == logits(plain.graph()));

    // Such a file never contains a bias.
    let path = directory.path().join("3_Dense/config.json");
    let mut settings: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    settings["bias"] = true.into();
    fs::write(&path, settings.to_string()).unwrap();
    let error = Checkpoint::open(directory.path()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("no tensor `3_Dense/linear.bias`"), "{error}");
}
