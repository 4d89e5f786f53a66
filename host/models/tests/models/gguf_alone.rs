//! GGUF files without a folder: the model equals that of the folder, every key matters, and missing
//! or unsupported keys are refused by name.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use shardwright_gguf::TensorType;
use shardwright_graph::Weight;
use shardwright_models::{Checkpoint, Family, passes_of};
use shardwright_test_checkpoints::{Spec, write_gguf, write_real};
use shardwright_vocabulary::{DType, Error, ErrorKind, Granularity, Pass};
use tempfile::TempDir;

use crate::generated::result;
use crate::gguf_file::File;

/// Writes a folder and a GGUF file of the same model.
fn both(spec: &Spec) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    write_real(spec, directory.path()).unwrap();
    let file = directory.path().join("alone.gguf");
    write_gguf(spec, "toy", &file).unwrap();
    (directory, file)
}

fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_file_alone_is_the_model_of_its_folder() {
    let regular = |spec: Spec| Spec { dtype: "F16", vocabulary: 400, layers: "SSSSSF".to_owned(), ..spec };
    let gemma4 = Spec { kv_shared: 0, ..regular(Spec::gemma4()) };
    let qwen = Spec { layers: "FFFF".to_owned(), ..regular(Spec::qwen3()) };
    for spec in [regular(Spec::gemma3()), gemma4, qwen] {
        let (folder, file) = both(&spec);
        let (of_folder, alone) = (open(folder.path()), open(&file));
        assert_eq!(of_folder.family(), alone.family());
        let shown = |checkpoint: &Checkpoint| {
            let nodes = checkpoint.graph().components.iter().map(|component| &component.nodes);
            format!("{:?} {:?}", nodes.collect::<Vec<_>>(), checkpoint.graph().states)
        };
        assert!(shown(&of_folder) == shown(&alone), "{:?}", spec.family);
        // Matrices are equal. Norms of the GGUF file have 32 bits.
        let (expected, found) = (result(&of_folder), result(&alone));
        let largest = expected.iter().fold(0.0, |largest: f32, logit| largest.max(logit.abs()));
        let differences = expected.iter().zip(&found).map(|(one, other)| (one - other).abs());
        let farthest = differences.fold(0.0, f32::max);
        assert!(farthest < largest / 50.0, "{:?}: {farthest} of {largest}", spec.family);
        assert_eq!(passes_of(&file).unwrap(), [Pass::Step]);
        let assumed = alone.notes().iter().filter(|note| note.starts_with("assumed: ")).count();
        assert_eq!(assumed > 0, alone.family() == Family::Gemma3, "{:?}", alone.notes());
    }
}

#[test]
fn a_folder_with_one_model_is_that_model() {
    let (source, file) = both(&Spec { vocabulary: 400, ..Spec::qwen3() });
    let folder = TempDir::new().unwrap();
    let place = |name: &str| fs::copy(&file, folder.path().join(name)).unwrap();
    place("model.gguf");
    place("mmproj-model.gguf");
    assert_eq!(open(folder.path()).family(), Family::Qwen3);
    place("other.gguf");
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("has 2 models: model.gguf, other.gguf"), "{error}");
    assert!(error.help().is_some_and(|help| help.contains("instead of the folder")));
    drop(source);
}

/// Returns the metadata of a tiny Llama, without some keys.
fn llama(without: &[&str]) -> File {
    tiny("llama", without)
}

/// Returns the metadata of a tiny model of an architecture, without some keys.
fn tiny(architecture: &str, without: &[&str]) -> File {
    let numbers = [
        ("context_length", 64),
        ("embedding_length", 32),
        ("block_count", 1),
        ("feed_forward_length", 32),
        ("attention.head_count", 2),
        ("attention.layer_norm_rms_epsilon", 1),
    ];
    let file = File::new().architecture(architecture);
    numbers
        .map(|(key, number)| (format!("{architecture}.{key}"), number))
        .iter()
        .filter(|(key, _)| !without.contains(&key.as_str()))
        .fold(file, |file, (key, number)| file.key(key.as_bytes(), 4).number(*number))
}

/// Adds tensors of 32-bit floats with distinct values. Returns the bytes of the file.
fn with_tensors(mut file: File, tensors: &[(&str, &[u64])]) -> Vec<u8> {
    let mut data: Vec<u8> = Vec::new();
    for (name, shape) in tensors {
        file = file.tensor(name, shape, 0, data.len() as u64);
        let values = 0..shape.iter().product::<u64>();
        // Values from −1 to 1, with a different pattern in each row.
        let value = |index: u64| ((index * index + name.len() as u64) % 251) as f32 / 125.0 - 1.0;
        data.extend(values.flat_map(|index| value(index).to_le_bytes()));
    }
    file.data(&data)
}

#[test]
fn the_parts_of_a_split_model_are_the_model() {
    let (row, square): (&[u64], &[u64]) = (&[32], &[32, 32]);
    let tensors: [(&str, &[u64]); 12] = [
        ("token_embd.weight", &[32, 400]),
        ("output_norm.weight", row),
        ("blk.0.attn_norm.weight", row),
        // The order of these rows depends on metadata of the first part.
        ("blk.0.attn_q.weight", square),
        ("blk.0.attn_k.weight", square),
        ("blk.0.attn_v.weight", square),
        ("blk.0.attn_output.weight", square),
        ("blk.0.ffn_norm.weight", row),
        ("blk.0.ffn_gate.weight", square),
        ("blk.0.ffn_up.weight", square),
        ("blk.0.ffn_down.weight", square),
        // A later part decides that the output matrix is not the embedding.
        ("output.weight", &[32, 400]),
    ];
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("whole.gguf"), with_tensors(llama(&[]), &tensors)).unwrap();
    let part =
        |file: File, number: u32| file.key(b"split.no", 4).number(number).key(b"split.count", 4).number(2);
    let (first, second) = (path("m-00001-of-00002.gguf"), path("m-00002-of-00002.gguf"));
    let (begin, end) = (part(llama(&[]), 0), part(File::new(), 1));
    let (begin, end) = (with_tensors(begin, &tensors[..3]), with_tensors(end, &tensors[3..]));
    fs::write(&first, &begin).unwrap();
    fs::write(&second, &end).unwrap();
    let expected = result(&open(&path("whole.gguf")));
    assert!(expected.iter().any(|logit| *logit != expected[0]));
    for named in [&first, &second] {
        assert!(result(&open(named)) == expected, "{}", named.display());
    }
    for (bytes, words) in [
        (begin, "expected part 2 of 2, got part 1 of 2"),
        (
            with_tensors(llama(&[]), &tensors[3..]),
            "expected part 2 of 2, got a file that is not a part of a split model",
        ),
    ] {
        fs::write(&second, bytes).unwrap();
        let error = Checkpoint::open(&first).unwrap_err();
        assert!(error.to_string().ends_with(words), "{error}");
        assert!(error.to_string().contains("m-00002-of-00002.gguf") && error.help().is_some(), "{error}");
    }
    // One part with a different name.
    fs::write(path("renamed.gguf"), &end).unwrap();
    let error = Checkpoint::open(path("renamed.gguf")).unwrap_err();
    assert!(error.to_string().ends_with("expected part 1 of 1, got part 2 of 2"), "{error}");
}

/// Reads blocks of a type as its reference implementation wrote them.
fn blocks_of(kind: TensorType) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gguf/tests/blocks/blocks.json");
    let cases: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let case = cases.as_array().unwrap().iter().find(|case| case["type"] == kind.name()).expect("a case");
    let digits = case["blocks"].as_str().unwrap();
    (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect()
}

#[test]
fn matrices_of_every_type_of_blocks_keep_levels_and_values() {
    const WIDTH: u64 = 256;
    let config = llama(&["llama.embedding_length", "llama.feed_forward_length"]);
    let config = config.key(b"llama.embedding_length", 4).number(WIDTH as u32);
    let config = config.key(b"llama.feed_forward_length", 4).number(WIDTH as u32);
    let square: &[u64] = &[WIDTH, WIDTH];
    let matrices: Vec<(&str, &[u64])> = vec![
        ("token_embd.weight", &[WIDTH, 400]),
        ("blk.0.attn_q.weight", square),
        ("blk.0.attn_k.weight", square),
        ("blk.0.attn_v.weight", square),
        ("blk.0.attn_output.weight", square),
        ("blk.0.ffn_gate.weight", square),
        ("blk.0.ffn_up.weight", square),
        ("blk.0.ffn_down.weight", square),
    ];
    let norms = ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"];
    let folder = TempDir::new().unwrap();
    let mut seen = 0;
    for kind in TensorType::ALL.iter().copied().filter(|kind| kind.grouping().is_some()) {
        let blocks = blocks_of(kind);
        let written = |name: &str, number: u32, content: &dyn Fn(u64) -> Vec<u8>| {
            let (mut file, mut data) = (config.clone(), Vec::new());
            for (name, shape) in &matrices {
                file = file.tensor(name, shape, number, data.len() as u64);
                data.extend(content(shape.iter().product()));
                data.resize(data.len().next_multiple_of(32), 0);
            }
            for name in norms {
                file = file.tensor(name, &[WIDTH], 0, data.len() as u64);
                data.extend((0..WIDTH).flat_map(|_| 1.0_f32.to_le_bytes()));
            }
            let path = folder.path().join(name);
            fs::write(&path, file.data(&data)).unwrap();
            open(&path)
        };
        let (values, bytes) = kind.block();
        let stored = |count: u64| -> Vec<u8> {
            blocks.iter().cycle().take((count / values * bytes) as usize).copied().collect()
        };
        let kept = written("blocks.gguf", kind as u32, &stored);
        let wide = written("values.gguf", 0, &|count| {
            kind.values(&stored(count)).unwrap().iter().flat_map(|value| value.to_le_bytes()).collect()
        });
        let of = |checkpoint: &Checkpoint| {
            let graph = checkpoint.graph();
            let tables = graph.assets.iter().map(|asset| asset.table.clone());
            tables.chain(graph.weights.iter().cloned()).collect::<Vec<Weight>>()
        };
        let rows = |weight: &Weight| {
            let mut values = vec![f32::NAN; weight.row_width()];
            let row = |row| {
                assert!(weight.decode_row(row, &mut values));
                values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
            };
            (0..weight.rows()).map(row).collect::<Vec<_>>()
        };
        let grouping = kind.grouping().unwrap();
        for (kept, wide) in of(&kept).iter().zip(&of(&wide)) {
            assert!(rows(kept) == rows(wide), "{}: {}", kind.name(), kept.name);
            let Some(scales) = kept.quantisation.as_ref().filter(|_| kept.shape.len() == 2) else { continue };
            let granularity =
                Granularity::PerBlock { size: grouping.group as u32, minimum: grouping.minimum };
            assert_eq!(scales.granularity, granularity, "{}", kind.name());
            let four = matches!(kind.name(), "Q4_0" | "Q4_1" | "Q4_K" | "Q3_K" | "Q2_K");
            assert_eq!(kept.dtype, if four { DType::I4 } else { DType::I8 }, "{}", kind.name());
            seen += 1;
        }
    }
    assert_eq!(seen, 13 * 9, "eight matrices and the head");
}

fn error_of(file: &File) -> Error {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, file.data(&[])).unwrap();
    Checkpoint::open(&path).unwrap_err()
}

#[test]
fn keys_that_are_missing_unknown_or_not_supported_are_named() {
    let error = error_of(&llama(&["llama.block_count"]));
    assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    assert!(error.to_string().ends_with("metadata has no `llama.block_count`"), "{error}");
    let error = error_of(&File::new().architecture("mamba"));
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert_eq!(error.message(), "architecture `mamba` is not supported");
    assert!(error.help().is_some_and(|help| help.contains("gemma3, gemma4")), "{error}");
    for (file, kind, words) in [
        (
            llama(&[]).key(b"llama.expert_count", 4).number(8),
            ErrorKind::Unsupported,
            "`llama.expert_count` is 8",
        ),
        (llama(&[]).key(b"llama.new_idea", 4).number(1), ErrorKind::Unsupported, "`llama.new_idea` is 1"),
        (
            llama(&[]).key(b"llama.rope.dimension_count", 4).number(8),
            ErrorKind::Unsupported,
            "`llama.rope.dimension_count` is 8",
        ),
        (
            llama(&[]).key(b"llama.rope.scaling.type", 8).text(b"yarn"),
            ErrorKind::Unsupported,
            "`llama.rope.scaling.type` is `yarn`",
        ),
        (
            llama(&["llama.block_count"]).key(b"llama.block_count", 8).text(b"many"),
            ErrorKind::Invalid,
            "`llama.block_count` is `many`",
        ),
        // Errors that the family finds name the GGUF key.
        (
            llama(&["llama.block_count"]).key(b"llama.block_count", 4).number(100_000),
            ErrorKind::Invalid,
            "`llama.block_count` is 100000, not within 1..=512",
        ),
        // Each flag has one byte here, but would have forty in JSON.
        (
            (0..513).fold(
                tiny("gemma3", &[]).key(b"gemma3.attention.sliding_window_pattern", 9).number(7).wide(513),
                |file, _| file.flag(true),
            ),
            ErrorKind::Invalid,
            "is a list of 513, expected a value for each of at most 512 layers",
        ),
        (llama(&[]), ErrorKind::Missing, "no tensor `model.embed_tokens.weight`"),
        (File::new().architecture("mamba"), ErrorKind::Unsupported, "architecture `mamba` is not supported"),
        (
            llama(&[]).key(b"llama.rope.scaling.attn_factor", 6).number(1.5_f32.to_bits()),
            ErrorKind::Unsupported,
            "`llama.rope.scaling.attn_factor` is 1.5",
        ),
        (
            llama(&[]).key(b"llama.attention.causal", 7).flag(false),
            ErrorKind::Unsupported,
            "`llama.attention.causal` is false",
        ),
    ] {
        let error = error_of(&file);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error} lacks {words}");
        assert!(error.to_string().contains("model.gguf"), "{error}");
    }
}

#[test]
fn keys_outside_the_architecture_are_records_or_refused() {
    let text = |file: File, key: &str, value: &str| file.key(key.as_bytes(), 8).text(value.as_bytes());
    let records = [
        "general.name",
        "general.url",
        "general.license.link",
        "general.base_model.0.repo_url",
        "general.source.huggingface.repository",
        "quantize.imatrix.dataset",
        "mradermacher.quantized_by",
    ];
    let known = records.iter().fold(llama(&[]), |file, key| text(file, key, "x"));
    let known = text(known, "general.type", "model").key(b"general.file_type", 4).number(1);
    let known = known.key(b"split.tensors.count", 4).number(1).key(b"split.no", 4).number(0);
    let known = known.key(b"split.count", 4).number(0);
    let error = error_of(&known);
    assert!(error.to_string().contains("no tensor `model.embed_tokens.weight`"), "{error}");

    for key in ["zz.unknown", "general.zz", "qwen2.block_count", "split.zz", "imatrix.chunk_size", "zz"] {
        let error = error_of(&text(llama(&[]), key, "x"));
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(&format!("model.gguf: `{key}` is `x`")), "{error}");
        assert!(error.help().is_some(), "{error}");
    }
    // An adapter lacks the keys of a model, and a file of another type may have all of them.
    for (file, words) in [
        (text(llama(&[]), "general.type", "adapter"), "is an adapter, as `general.type` shows"),
        (text(File::new().architecture("llama"), "adapter.type", "lora"), "as `adapter.type` shows"),
        (llama(&[]).key(b"adapter.lora.alpha", 6).number(0), "as `adapter.lora.alpha` shows"),
        (text(llama(&[]), "general.type", "imatrix"), "`general.type` is `imatrix`, expected `model`"),
    ] {
        let error = error_of(&file);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(words) && error.help().is_some(), "{error} lacks {words}");
        // Next to a `config.json`, which has the settings, an adapter is not a model either.
        let (folder, alone) = both(&Spec { vocabulary: 400, ..Spec::qwen3() });
        fs::remove_file(alone).unwrap();
        fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        fs::write(folder.path().join("model.gguf"), file.data(&[])).unwrap();
        let error = Checkpoint::open(folder.path()).unwrap_err();
        assert!(error.to_string().contains(words), "{error} lacks {words}");
    }
}

#[test]
fn a_later_part_of_a_split_model_has_no_metadata_of_its_own() {
    let folder = TempDir::new().unwrap();
    let path = |number: u32| folder.path().join(format!("m-0000{number}-of-00002.gguf"));
    let part =
        |file: File, number: u32| file.key(b"split.no", 4).number(number).key(b"split.count", 4).number(2);
    fs::write(path(1), part(llama(&[]), 0).data(&[])).unwrap();
    for (second, words) in [
        (File::new().key(b"general.alignment", 4).number(32), "no tensor `model.embed_tokens.weight`"),
        (File::new().key(b"llama.rope.freq_base", 4).number(7), "`llama.rope.freq_base` is 7"),
        (File::new().key(b"split.zz", 4).number(7), "`split.zz` is 7"),
        (File::new().architecture("qwen2"), "`general.architecture` is `qwen2`"),
    ] {
        fs::write(path(2), part(second, 1).data(&[])).unwrap();
        let error = Checkpoint::open(path(1)).unwrap_err();
        assert!(error.to_string().contains(words), "{error} lacks {words}");
        let of_part = error.place().is_some_and(|place| place.ends_with("m-00002-of-00002.gguf"));
        assert_eq!(of_part, error.kind() == ErrorKind::Unsupported, "{error}");
    }
}

/// Opens a file with a tensor of 32-bit floats and returns the error.
fn with_tensor(file: File, name: &str, shape: &[u64], values: &[f32]) -> Error {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    fs::write(&path, file.tensor(name, shape, 0, 0).data(&values)).unwrap();
    Checkpoint::open(&path).unwrap_err()
}

#[test]
fn divisors_of_frequencies_that_no_model_has_are_refused() {
    let linear = |file: File| {
        let file = file.key(b"llama.rope.scaling.type", 8).text(b"linear");
        file.key(b"llama.rope.scaling.factor", 6).number(2_f32.to_bits())
    };
    for (file, values, kind, words) in [
        (llama(&[]), vec![1.0; 7], ErrorKind::Invalid, "is a list of 7, expected 8 positive numbers"),
        (llama(&[]), vec![-1.0; 8], ErrorKind::Invalid, "expected 8 positive numbers"),
        (llama(&[]), vec![f32::NAN; 8], ErrorKind::Invalid, "expected 8 positive numbers"),
        (llama(&[]), vec![1.0; 2049], ErrorKind::Unsupported, "is [2049] of F32"),
        (linear(llama(&[])), vec![1.0; 8], ErrorKind::Unsupported, "is 8 divisors"),
        (tiny("qwen2", &[]), vec![1.0; 8], ErrorKind::Unsupported, "is 8 divisors"),
    ] {
        let error = with_tensor(file, "rope_freqs.weight", &[values.len() as u64], &values);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("`rope_freqs.weight`"), "{error}");
        assert!(error.to_string().contains(words), "{error} lacks {words}");
    }
}

#[test]
fn factors_and_divisors_of_granite_and_phi_are_checked() {
    let float = |file: File, key: &str, value: f32| file.key(key.as_bytes(), 6).number(value.to_bits());
    let granite = || float(tiny("granite", &[]), "granite.logit_scale", 8.0);
    let phi = || tiny("phi3", &[]).key(b"phi3.rope.dimension_count", 4).number(12);
    let (short, long) = ("rope_factors_short.weight", "rope_factors_long.weight");
    let list =
        |file: File, name: &str, count: usize| with_tensor(file, name, &[count as u64], &vec![1.0; count]);
    let both = |file: File| {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("model.gguf");
        fs::write(&path, with_tensors(file, &[(short, &[8]), (long, &[8])])).unwrap();
        Checkpoint::open(&path).unwrap_err()
    };
    let linear =
        float(phi(), "phi3.rope.scaling.factor", 2.0).key(b"phi3.rope.scaling.type", 8).text(b"linear");
    for (error, kind, words) in [
        (error_of(&tiny("granite", &[])), ErrorKind::Missing, "metadata has no `granite.logit_scale`"),
        (
            error_of(&float(granite(), "granite.residual_scale", -1.0)),
            ErrorKind::Invalid,
            "`granite.residual_scale` is -1.0",
        ),
        (
            error_of(&granite().key(b"granite.rope.scaling.finetuned", 7).flag(false)),
            ErrorKind::Unsupported,
            "`granite.rope.scaling.finetuned` is false",
        ),
        (
            error_of(&granite().key(b"granite.expert_shared_feed_forward_length", 4).number(8)),
            ErrorKind::Unsupported,
            "`granite.expert_shared_feed_forward_length` is 8",
        ),
        (
            error_of(&float(granite(), "granite.rope.scaling.attn_factor", 1.5)),
            ErrorKind::Unsupported,
            "`granite.rope.scaling.attn_factor` is 1.5",
        ),
        (
            error_of(
                &granite().key(b"granite.attention.head_count_kv", 9).number(4).wide(2).number(2).number(0),
            ),
            ErrorKind::Unsupported,
            "`granite.attention.head_count_kv` is a list of 2",
        ),
        (
            error_of(&float(phi(), "phi3.rope.scaling.attn_factor", 1.5)),
            ErrorKind::Unsupported,
            "`phi3.rope.scaling.attn_factor` is 1.5",
        ),
        (list(phi(), short, 6), ErrorKind::Missing, "no tensor `rope_factors_long.weight`"),
        (list(phi(), long, 6), ErrorKind::Missing, "no tensor `rope_factors_short.weight`"),
        (both(phi()), ErrorKind::Invalid, "is a list of 8, expected 6 positive numbers"),
        (both(linear), ErrorKind::Unsupported, "`phi3.rope.scaling.factor` is 2"),
        (
            error_of(&tiny("phi3", &[]).key(b"phi3.rope.dimension_count", 4).number(11)),
            ErrorKind::Invalid,
            "`phi3.rope.dimension_count` makes 11 of 16 values",
        ),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error} lacks {words}");
    }
}

#[test]
fn a_pooling_that_is_not_a_mean_and_half_of_the_modules_are_refused() {
    let embedding = || tiny("gemma-embedding", &[]);
    let mean = || embedding().key(b"gemma-embedding.pooling_type", 4).number(1);
    let input = || mean().key(b"gemma-embedding.dense_2_feat_in", 4);
    let module = |file: File, shape: &[u64]| with_tensor(file, "dense_2.weight", shape, &[0.0; 64]);
    for (error, kind, words) in [
        (
            error_of(&embedding().key(b"gemma-embedding.pooling_type", 4).number(2)),
            ErrorKind::Unsupported,
            "`gemma-embedding.pooling_type` is 2",
        ),
        (
            error_of(&mean().key(b"gemma-embedding.attention.causal", 7).flag(true)),
            ErrorKind::Unsupported,
            "`gemma-embedding.attention.causal` is true",
        ),
        (error_of(&input().number(32)), ErrorKind::Missing, "no tensor `dense_2.weight`"),
        (module(mean(), &[32, 2]), ErrorKind::Missing, "no tensor `dense_3.weight`"),
        (
            module(input().number(16), &[32, 2]),
            ErrorKind::Unsupported,
            "`gemma-embedding.dense_2_feat_in` is 16",
        ),
        // Without modules, the embedding is the next missing tensor.
        (error_of(&mean()), ErrorKind::Missing, "embed_tokens.weight`"),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error} lacks {words}");
    }
}
