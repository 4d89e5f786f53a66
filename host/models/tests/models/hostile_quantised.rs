//! Quantised checkpoints that are broken, or that no weight can represent. Each causes a typed
//! error that names its place. None is quantised a second time.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use shardwright_models::{Checkpoint, Outline, limits};
use shardwright_test_checkpoints::{Random, raw_safetensors};
use shardwright_vocabulary::{Error, ErrorKind};
use tempfile::TempDir;

use crate::gguf_file::File;
use crate::quantised::copied;

fn error(directory: &Path) -> Error {
    Checkpoint::open(directory).map(|_| ()).unwrap_err()
}

fn text(error: &Error) -> String {
    format!("{error} | help: {}", error.help().unwrap_or_default())
}

macro_rules! assert_error {
    ($directory:expr, $kind:ident, $($words:expr),+) => {{
        let error = error($directory.path());
        assert_eq!(error.kind(), ErrorKind::$kind, "{error}");
        $(assert!(text(&error).contains(&$words.to_string()), "{} lacks {}", text(&error), $words);)+
    }};
}

const GGUF: &str = "model.gguf";

trait Written {
    /// Writes a checkpoint whose weights are this file, with `bytes` bytes of data.
    fn written(&self, bytes: usize) -> TempDir;
}

impl Written for File {
    fn written(&self, bytes: usize) -> TempDir {
        let directory = copied("gguf_q4_0");
        fs::write(directory.path().join(GGUF), self.data(&vec![0; bytes])).unwrap();
        directory
    }
}

fn qwen() -> File {
    File::new().architecture("qwen3")
}

#[test]
fn heads_that_are_no_heads() {
    let directory = copied("gguf_q4_0");
    let path = directory.path().join(GGUF);
    let whole = fs::read(&path).unwrap();
    for length in [0, 4, 23] {
        fs::write(&path, &whole[..length]).unwrap();
        assert_error!(directory, Invalid, "model.gguf: the head ends at byte 24");
    }
    fs::write(&path, &whole[..100]).unwrap();
    assert_error!(directory, Invalid, " ends at byte", "but the file has 100", "fetch the file again");
    fs::write(&path, &whole[..whole.len() - 64]).unwrap();
    assert_error!(directory, Invalid, " ends at byte", "tensor `");
    fs::write(&path, [b"GGML", &whole[4..]].concat()).unwrap();
    assert_error!(directory, Invalid, "at byte 0: does not begin with `GGUF`", "damaged");
    fs::remove_file(&path).unwrap();
    assert_error!(directory, Missing, "No such file", "model.safetensors", "*.gguf");
    fs::create_dir(&path).unwrap();
    assert_error!(directory, Invalid, "not a regular file", GGUF);

    for version in [0, 1, 4, 3_u32.swap_bytes()] {
        let file = File { version, ..qwen() };
        assert_error!(
            file.written(0),
            Unsupported,
            "GGUF version",
            format!("version {version} is"),
            "2 and 3"
        );
    }
    let file = File { tensors: u64::MAX, ..qwen() };
    assert_error!(file.written(0), Invalid, "tensors, more than 1048576");
    let file = File { entries: limits::GGUF_METADATA + 1, ..qwen() };
    assert_error!(file.written(0), Invalid, ", more than ", "65537 metadata entries");
    // The largest allowed number of tensors, but without their descriptions.
    let file = File { tensors: limits::TENSORS as u64, ..qwen() };
    assert_error!(file.written(0), Invalid, " ends at byte", "the head ends");
}

#[test]
fn metadata_that_lie() {
    let cases: [(File, &str); 5] = [
        (File::new(), "metadata has no `general.architecture`"),
        (qwen().key(b"x", 4).number(1).key(b"x", 4).number(1), "metadata has a second `x`"),
        (qwen().architecture("gemma3"), "a second `general.architecture`"),
        (qwen().key(b"x", 13).number(0), "value type 13 is not one of the format"),
        ((0..6).fold(qwen().key(b"x", 9), |file, _| file.number(9).wide(1)), "nested deeper than 4"),
    ];
    for (file, words) in cases {
        assert_error!(file.written(64), Invalid, ": at byte ", words);
    }
    let values = [
        (
            File::new().key(b"general.architecture", 4).number(1),
            "`general.architecture` is 1, expected a string",
        ),
        (qwen().key(b"general.alignment", 4).number(0), "`general.alignment` is 0, expected a power of two"),
        (qwen().key(b"general.alignment", 4).number(48), "`general.alignment` is 48"),
        (qwen().key(b"general.alignment", 4).number(1 << 31), "`general.alignment` is 2147483648"),
    ];
    for (file, words) in values {
        assert_error!(file.written(64), Invalid, "metadata `", words, "current converter");
    }
    assert_error!(qwen().key(b"\xff", 0).written(0), Invalid, "UTF-8 at byte");
    for huge in [qwen().key(b"x", 8).wide(u64::MAX), qwen().key(b"x", 9).number(10).wide(u64::MAX)] {
        assert_error!(huge.written(0), Invalid, "the head ends at byte 18446744073709551615");
    }
    // Texts without characters are not free: each has a length field.
    let texts = qwen().key(b"x", 9).number(8).wide(u64::MAX);
    assert_error!(texts.written(1 << 16), Invalid, " ends at byte", "the head ends");
    assert_error!(
        File::new().architecture("llama").written(0),
        Invalid,
        "the architecture is",
        "`llama`; config.json implies `qwen3`",
        "config.json of the model"
    );
    // A projector next to the model contains no tensor of it.
    assert_error!(File::new().architecture("clip").written(0), Missing, "no tensor `", "embed_tokens");
}

#[test]
fn tensors_that_lie() {
    let long = "a".repeat(65);
    for (file, words) in [
        (qwen().tensor(&long, &[1], 0, 0), "a name of 65 bytes, more than 64"),
        (qwen().tensor("a", &[1; 5], 0, 0), "tensor `a` has 5 axes, more than 4"),
    ] {
        assert_error!(file.written(64), Invalid, ": at byte ", words);
    }
    for (file, words) in [
        (qwen().tensor("a", &[32], 99, 0), "tensor `a` at byte"),
        (qwen().tensor("a", &[32], 99, 0), "element type 99 is not one of the format"),
        (qwen().tensor("a", &[8], 0, 4), "data begin at 4, not a multiple of 32"),
        (qwen().tensor("a", &[33], 2, 0), "rows of 33 values are not whole Q4_0 blocks of 32"),
        (qwen().tensor("a", &[1 << 40, 1 << 40], 0, 0), "overflows"),
        (qwen().tensor("a", &[1 << 62], 0, 0), "overflows"),
    ] {
        assert_error!(file.written(64), Invalid, "` at byte ", words);
    }
    let twice = qwen().tensor("a", &[8], 0, 0).tensor("a", &[8], 0, 32);
    assert_error!(twice.written(64), Invalid, "a second tensor `a`", "damaged");
    let beyond = qwen().tensor("a", &[8], 0, 1 << 40);
    assert_error!(beyond.written(64), Invalid, "tensor `a` ends at byte 1099511627");
    let last = qwen().tensor("a", &[8], 0, u64::MAX - 31);
    assert_error!(last.written(64), Invalid, "` at byte ", "overflows");
    let overlap = qwen().tensor("a", &[16], 0, 0).tensor("b", &[8], 0, 32);
    assert_error!(overlap.written(64), Invalid, "overlap at byte", "`a` and `b` overlap");
    let gap = qwen().tensor("a", &[8], 0, 0).tensor("b", &[8], 0, 64);
    assert_error!(gap.written(96), Invalid, "belong to no tensor", "32 bytes at byte");
    assert_error!(
        qwen().tensor("a", &[8], 0, 0).written(64),
        Invalid,
        "belong to no tensor",
        "32 bytes at byte"
    );
}

/// Returns the offset after a tensor's name in a head.
fn after(bytes: &[u8], name: &str) -> usize {
    let named = [&(name.len() as u64).to_le_bytes(), name.as_bytes()].concat();
    bytes.windows(named.len()).position(|found| found == named).unwrap() + named.len()
}

#[test]
fn what_a_gguf_file_holds_and_no_weight_does() {
    let change = |folder: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let directory = copied(folder);
        let path = directory.path().join(GGUF);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
        directory
    };
    // Integers with the same number of bytes.
    let other = change("gguf_q4_0", &|bytes| {
        let place = after(bytes, "blk.0.attn_norm.weight") + 4 + 8;
        assert_eq!(bytes[place], 0);
        bytes[place] = 26;
    });
    assert_error!(
        other,
        Unsupported,
        "not supported for weights",
        "model.gguf: tensor `blk.0.attn_norm.weight` is stored as I32",
        "Q4_0 and Q8_0"
    );
    // Only matrices may have blocks. This norm has the same number of bytes.
    let norm = change("gguf_q4_0", &|bytes| {
        let place = after(bytes, "blk.0.attn_norm.weight") + 4 + 8;
        assert_eq!(bytes[place], 0);
        bytes[place] = 8;
    });
    assert_error!(norm, Invalid, "belong to no tensor", "bytes at byte");
    // Some rows are missing.
    let fewer = change("gguf_q4_0", &|bytes| {
        let place = after(bytes, "token_embd.weight") + 4 + 8;
        assert_eq!(bytes[place], 40);
        bytes[place] = 39;
    });
    assert_error!(fewer, Invalid, "belong to no tensor", "bytes at byte");
    let directory = copied("gguf_q4_0");
    edit(&directory, |config| config["vocab_size"] = json!(41));
    assert_error!(directory, Invalid, "`token_embd.weight` has the shape [40, 32]", "set `vocab_size`");

    // The sum of a float and one cannot be this small.
    let norm = |value: f32| {
        change("gguf_q4_0_gemma3", &move |bytes| {
            let place = after(bytes, "output_norm.weight") + 4 + 8 + 4;
            let offset = u64::from_le_bytes(bytes[place..place + 8].try_into().unwrap()) as usize;
            // The data begin after the last tensor's description.
            let head = after(bytes, "token_embd.weight") + 4 + 16 + 4 + 8;
            let at = head.next_multiple_of(32) + offset;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        })
    };
    Checkpoint::open(norm(1.5).path()).unwrap();
    for value in [1e-20, f32::NAN] {
        assert_error!(
            norm(value),
            Unsupported,
            "no weight can represent",
            "tensor `output_norm.weight` has the value",
            "supported: norms as llama.cpp's converter stores them"
        );
    }
}

#[test]
fn one_model_in_two_files_and_settings_of_another_format() {
    let directory = copied("gguf_q4_0");
    fs::copy(directory.path().join(GGUF), directory.path().join("other.gguf")).unwrap();
    assert_error!(directory, Invalid, "other.gguf: a second tensor", "one model");
    fs::remove_file(directory.path().join("other.gguf")).unwrap();
    edit(&directory, |config| {
        config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4, "group_size": 32});
    });
    assert_error!(
        directory,
        Unsupported,
        "not supported",
        "`quantization_config` is present next to GGUF files",
        "GGUF files specify their own quantisation"
    );
    for number in 0..=limits::WEIGHT_FILES {
        fs::write(directory.path().join(format!("{number}.gguf")), "").unwrap();
    }
    assert_error!(directory, Invalid, ", more than ", "1025 weight files");
}

fn edit(directory: &TempDir, change: impl FnOnce(&mut Value)) {
    let path = directory.path().join("config.json");
    let mut value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, serde_json::to_vec(&value).unwrap()).unwrap();
}

/// Each case has settings for an unsupported feature, and a part of the message about the field.
#[test]
fn settings_of_other_formats_are_refused() {
    let cases: &[(&str, &str, Value, &str)] = &[
        ("gptq4_group32", "quant_method", json!("bitsandbytes"), "`gptq`, `awq`, `gemma`"),
        ("gemma_int8", "num_bits", json!(3), "`quantization_config.num_bits` is 3"),
        ("gemma_int8", "module_quant_configs", json!({"o_proj": {"num_bits": 5}}), "o_proj.num_bits` is 5"),
        ("gemma_int8", "module_quant_configs", json!({"o_proj": {"group": 2}}), "o_proj.group` is 2"),
        ("gptq4_group32", "quant_method", json!(null), "quant_method` is absent"),
        ("gptq4_group32", "bits", json!(3), "`quantization_config.bits` is 3"),
        ("gptq4_group32", "bits", json!(null), "bits` is absent"),
        ("gptq4_group32", "checkpoint_format", json!("marlin"), "`gptq`, `gptq_v2`"),
        ("gptq4_group32", "dynamic", json!({"-:lm": {}}), "dynamic` is an object of 1"),
        ("gptq4_group32", "pack_dtype", json!("int16"), "`int32`"),
        ("gptq4_group32", "is_marlin_format", json!(true), "is_marlin_format"),
        ("awq_group32", "version", json!("gemv"), "version` is `gemv`"),
        ("awq_group32", "bits", json!(8), "supported: 4"),
        (
            "compressed_pack4_group32",
            "format",
            json!("nvfp4-pack-quantized"),
            "`pack-quantized`, `int-quantized`",
        ),
        ("compressed_pack4_group32", "format", json!(null), "format` is absent"),
        ("compressed_pack4_group32", "transform_config", json!({"a": 1}), "transform_config"),
        ("compressed_pack4_group32", "sparsity_config", json!({"format": "sparse-24-bitmask"}), "`dense`"),
        ("compressed_pack4_group32", "quantization_status", json!("frozen"), "`compressed`"),
        ("compressed_pack4_group32", "config_groups.group_1", json!({"weights": {}}), "one group"),
        ("compressed_pack4_group32", "config_groups", json!({}), "one group"),
        ("compressed_pack4_group32", "config_groups.group_0.weights.num_bits", json!(3), "num_bits` is 3"),
        ("compressed_int8_channel", "config_groups.group_0.weights.num_bits", json!(4), "8, and 4 in"),
        ("compressed_pack4_group32", "config_groups.group_0.weights.type", json!("float"), "`int`"),
        (
            "compressed_pack4_group32",
            "config_groups.group_0.weights.dynamic",
            json!(true),
            "dynamic` is true",
        ),
        (
            "compressed_pack4_group32",
            "config_groups.group_0.weights.strategy",
            json!("block"),
            "`quantization_config.config_groups.group_0.weights.strategy` is `block`",
        ),
    ];
    for (folder, field, value, words) in cases {
        let directory = copied(folder);
        edit(&directory, |config| {
            let mut place = &mut config["quantization_config"];
            for part in field.split('.') {
                place = &mut place[part];
            }
            *place = value.clone();
        });
        assert_error!(directory, Unsupported, "not supported", words);
    }
    let invalid: &[(&str, &str, Value, &str)] = &[
        ("gptq4_group32", "group_size", json!(0), "group_size` is 0, not within 1..="),
        ("gptq4_group32", "group_size", json!(-2), "not a whole number"),
        ("awq_group32", "group_size", json!(null), "group_size` is missing"),
        ("compressed_pack4_group32", "config_groups", json!(null), "config_groups` is missing"),
    ];
    for (folder, field, value, words) in invalid {
        let directory = copied(folder);
        edit(&directory, |config| config["quantization_config"][field] = value.clone());
        assert_error!(directory, Invalid, words);
    }
    let directory = copied("compressed_pack4_group32");
    edit(&directory, |config| {
        config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = json!(null);
    });
    assert_error!(directory, Invalid, "group_size` is missing");
    let directory = copied("compressed_pack4_group32");
    edit(&directory, |config| config["compression_config"] = json!({"format": "x"}));
    assert_error!(directory, Unsupported, "not supported", "compression_config");
    // A switched-off field is accepted.
    let directory = copied("gguf_q4_0");
    edit(&directory, |config| config["quantization_config"] = json!({}));
    Checkpoint::open(directory.path()).unwrap();
}

/// Type, shape and bytes of a tensor.
type Stored = (String, Vec<u64>, Vec<u8>);

/// Writes a fixture with changed weights.
fn with_tensors(folder: &str, change: impl FnOnce(&mut BTreeMap<String, Stored>)) -> TempDir {
    let directory = copied(folder);
    let path = directory.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let head = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..8 + head]).unwrap();
    let mut tensors = BTreeMap::new();
    for (name, entry) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
        let [begin, end] = [0, 1].map(|side| entry["data_offsets"][side].as_u64().unwrap() as usize);
        let shape = serde_json::from_value(entry["shape"].clone()).unwrap();
        let dtype = entry["dtype"].as_str().unwrap().to_owned();
        tensors.insert(name, (dtype, shape, bytes[8 + head..][begin..end].to_vec()));
    }
    change(&mut tensors);
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (dtype, shape, bytes)) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend(bytes);
    }
    fs::write(path, raw_safetensors(&Value::Object(header).to_string(), &data)).unwrap();
    directory
}

const MODULE: &str = "model.layers.0.mlp.down_proj";

/// Changes one tensor of the module with several groups.
fn with_part(folder: &str, part: &str, change: impl FnOnce(&mut Stored)) -> TempDir {
    with_tensors(folder, |tensors| change(tensors.get_mut(&format!("{MODULE}.{part}")).unwrap()))
}

fn words(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

#[test]
fn zero_points_that_no_weight_holds() {
    for (folder, part, byte, words) in [
        ("gptq8_group32", "qzeros", 0x7e, "qzeros` has the zero point 127 for output 0"),
        (
            "gptq8_group32",
            "qzeros",
            0xff,
            "stores the zero point 255 for output 0, which libraries read as 0 or as 256",
        ),
        ("gptq4_group32", "qzeros", 0x7f, "stores the zero point 15 for output 0"),
        ("compressed_int8_channel", "weight_zero_point", 3, "has the zero point 3"),
        ("compressed_int8_tensor", "weight_zero_point", 0xff, "has the zero point -1"),
        ("compressed_pack8_group32", "weight_zero_point", 0x7d, "has the zero point -3"),
    ] {
        let directory = with_tensors(folder, |tensors| {
            let name = format!("{MODULE}.{part}");
            let scales = tensors
                [&format!("{MODULE}.{}", if part == "qzeros" { "scales" } else { "weight_scale" })]
                .1
                .clone();
            // If the library omits zero points, valid ones are added first.
            let zeros = tensors.entry(name).or_insert_with(|| match folder {
                "compressed_pack8_group32" => (
                    "I32".to_owned(),
                    vec![scales[0] / 4, scales[1]],
                    vec![0x80; (scales[0] * scales[1]) as usize],
                ),
                _ => ("I8".to_owned(), scales.clone(), vec![0; scales.iter().product::<u64>() as usize]),
            });
            zeros.2[0] = byte;
        });
        assert_error!(
            directory,
            Unsupported,
            "no weight can represent",
            format!("model.safetensors: tensor `{MODULE}.{part}`"),
            words,
            if byte == 0xff && part == "qzeros" || byte == 0x7f {
                "supported: zero points below it"
            } else {
                "supported: 8 bits with the zero point"
            }
        );
    }
}

#[test]
fn zero_points_that_say_nothing_are_taken() {
    let directory = with_tensors("compressed_int8_channel", |tensors| {
        let (_, shape, _) = &tensors[&format!("{MODULE}.weight_scale")];
        let zeros = ("I8".to_owned(), shape.clone(), vec![0; shape.iter().product::<u64>() as usize]);
        tensors.insert(format!("{MODULE}.weight_zero_point"), zeros);
    });
    assert!(Checkpoint::open(directory.path()).unwrap().unused_tensors().is_empty());
    let directory = with_tensors("gptq4_group32", |tensors| {
        tensors.remove(&format!("{MODULE}.g_idx")).unwrap();
    });
    Checkpoint::open(directory.path()).unwrap();
    // The second version of the format stores zero points unchanged.
    let directory = with_tensors("gptq4_group32", |tensors| {
        for (name, (_, _, bytes)) in tensors {
            if name.ends_with(".qzeros") {
                bytes.fill(0x88);
            }
        }
    });
    edit(&directory, |config| config["quantization_config"]["checkpoint_format"] = json!("gptq_v2"));
    let second = Checkpoint::open(directory.path()).unwrap();
    let first = Checkpoint::open(copied("gptq4_group32").path()).unwrap();
    for (first, second) in first.graph().weights.iter().zip(&second.graph().weights) {
        assert!(first.data.bytes() == second.data.bytes() && first.dtype == second.dtype, "{}", first.name);
    }
}

#[test]
fn orders_and_scales_that_no_weight_holds() {
    let reversed = words((0..128).rev().map(|input| input / 32));
    for (folder, part, bytes) in [
        ("gptq4_group32", "g_idx", reversed.clone()),
        ("gptq8_group32", "g_idx", words([-1; 128])),
        ("gptq4_channel", "g_idx", words([1; 128])),
    ] {
        let directory = with_part(folder, part, |stored| stored.2 = bytes);
        assert_error!(
            directory,
            Unsupported,
            "no weight can represent",
            format!("`{MODULE}.g_idx` has input 0 in group"),
            "in the order of the matrix",
            "desc_act"
        );
    }
    let directory = with_tensors("compressed_pack4_group32", |tensors| {
        tensors.insert(format!("{MODULE}.weight_g_idx"), ("I32".to_owned(), vec![128], reversed));
    });
    assert_error!(directory, Unsupported, "no weight can represent", "weight_g_idx` has input 0 in group 3");

    for (folder, part) in
        [("gptq4_group32", "scales"), ("awq_group32", "scales"), ("compressed_pack4_group32", "weight_scale")]
    {
        let scale = |value: f32| {
            with_part(folder, part, move |(dtype, shape, bytes)| {
                *dtype = "F32".to_owned();
                let count = shape.iter().product::<u64>() as usize;
                *bytes = [value].repeat(count).into_iter().flat_map(f32::to_le_bytes).collect();
            })
        };
        Checkpoint::open(scale(0.125).path()).unwrap();
        let name = format!("tensor `{MODULE}.{part}` has the scale");
        assert_error!(
            scale(0.1),
            Unsupported,
            "no weight can represent",
            name,
            "1e-1 of a group, which is no binary16",
            "supported: scales per group"
        );
        assert_error!(scale(1e9), Unsupported, "no weight can represent", name, "1e9");
        assert_error!(scale(f32::NAN), Invalid, "` at byte ", "has the scale NaN");
    }
    let directory = with_part("compressed_int8_channel", "weight_scale", |stored| stored.2.fill(0xff));
    assert_error!(directory, Invalid, "` at byte ", "has the scale NaN");
    for folder in ["gguf_q4_0", "gguf_q8_0"] {
        let directory = copied(folder);
        let path = directory.path().join(GGUF);
        let mut file = fs::read(&path).unwrap();
        let half = file.len() / 2;
        file[half..].fill(0xff);
        fs::write(&path, file).unwrap();
        assert_error!(directory, Invalid, "` at byte ", "has the scale NaN there");
        let error = error(directory.path());
        let offset: u64 = error.place().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        // The block begins at the offset, or the change begins within the block.
        assert!(offset + 34 > half as u64, "{offset} {half}");
    }
}

#[test]
fn parts_of_modules_that_are_missing_or_lie() {
    for (folder, part) in [
        ("gptq4_group32", "qzeros"),
        ("gptq4_group32", "scales"),
        ("awq_group32", "qzeros"),
        ("compressed_pack4_group32", "weight_scale"),
        ("compressed_int8_channel", "weight"),
        ("gemma_int4_table", "weight"),
    ] {
        let directory = with_tensors(folder, |tensors| {
            tensors.remove(&format!("{MODULE}.{part}")).unwrap();
        });
        assert_error!(directory, Missing, format!("no tensor `{MODULE}.{part}`"));
    }
    // Without the tensor that marks it, the module is not quantised.
    for (folder, part) in [("gptq4_group32", "qweight"), ("compressed_pack4_group32", "weight_packed")] {
        let directory = with_tensors(folder, |tensors| {
            tensors.remove(&format!("{MODULE}.{part}")).unwrap();
        });
        assert_error!(directory, Missing, format!("no tensor `{MODULE}.weight`"));
    }
    for (folder, part) in [
        ("gptq4_group32", "qweight"),
        ("gptq4_group32", "qzeros"),
        ("gptq4_group32", "scales"),
        ("gptq4_group32", "g_idx"),
        ("awq_group32", "qweight"),
        ("compressed_pack4_group32", "weight_packed"),
        ("compressed_pack4_group32", "weight_scale"),
        ("compressed_int8_channel", "weight"),
        ("compressed_int8_tensor", "weight_scale"),
        ("gemma_int2", "weight"),
        ("gemma_int8", "weight_scale"),
    ] {
        let directory = with_part(folder, part, |stored| stored.1.insert(0, 1));
        let allowed = folder == "compressed_int8_tensor";
        match allowed {
            true => drop(Checkpoint::open(directory.path()).unwrap()),
            false => {
                assert_error!(directory, Invalid, format!("`{MODULE}.{part}` has the shape [1, "));
            }
        }
        let directory = with_part(folder, part, |stored| {
            let eight = stored.0.ends_with('8');
            stored.0 = if folder == "gemma_int2" {
                "BOOL"
            } else if eight {
                "U8"
            } else if stored.0 == "F32" || stored.0 == "I32" {
                "U32"
            } else {
                "U16"
            }
            .to_owned();
        });
        assert_error!(directory, Invalid, "` at byte ", format!("`{MODULE}.{part}`"), "is stored as ");
    }
    // The number of bytes fits four or eight bits, but the type does not.
    for (folder, dtype, columns) in [("gemma_int8", "U8", 131), ("gemma_int4_table", "I8", 66)] {
        let directory = with_part(folder, "weight", |stored| stored.0 = dtype.to_owned());
        let words = format!("is {dtype} of the shape [32, {columns}], which no 2, 4 or 8 bits have");
        assert_error!(directory, Invalid, "` at byte ", words);
    }
    // Without a header, the names of modules determine the bits, which requires the patterns.
    let directory = copied("gemma_int8");
    edit(&directory, |config| {
        config["dtype"] = json!("bfloat16");
        config["quantization_config"]["module_quant_configs"] = json!({"down_proj": {"num_bits": 2}});
    });
    Checkpoint::open(directory.path()).unwrap();
    fs::remove_file(directory.path().join("model.safetensors")).unwrap();
    let error = Outline::open(directory.path()).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(text(&error).contains("with patterns of names of modules"), "{}", text(&error));
    let directory = with_part("compressed_pack4_group32", "weight_shape", |stored| stored.2[0] = 33);
    assert_error!(directory, Invalid, "` at byte ", "weight_shape", "is not the shape [32, 128]");
    let directory = copied("gptq4_group32");
    edit(&directory, |config| config["quantization_config"]["group_size"] = json!(64));
    assert_error!(directory, Invalid, "has the shape", "qzeros");
}

/// Changes some bytes of files. The result is an error, or a graph whose values can all be read,
/// but never a panic.
#[test]
fn damage_is_an_error_or_a_model() {
    let mut random = Random::new(5, "damage");
    let mut opened = 0;
    for (folder, file) in [
        ("gguf_q4_0_gemma3", GGUF),
        ("gguf_q8_0", GGUF),
        ("gptq4_asymmetric", "model.safetensors"),
        ("awq_group32", "model.safetensors"),
        ("compressed_pack4_asymmetric", "model.safetensors"),
        ("compressed_pack8_group32", "config.json"),
        ("gemma_int4_table", "model.safetensors"),
        ("gemma_int2", "model.safetensors"),
    ] {
        let directory = copied(folder);
        let path = directory.path().join(file);
        let whole = fs::read(&path).unwrap();
        for round in 0..shardwright_test_checkpoints::cases(150, 3000) {
            let mut bytes = whole.clone();
            // Most of the changes are in the head.
            let reach = if round % 4 == 0 { bytes.len() } else { bytes.len().min(1600) };
            for _ in 0..=random.below(3) {
                let at = random.below(reach as u64) as usize;
                bytes[at] = [0, 1, 2, 8, 0x30, 0x7f, 0x80, 0xff, bytes[at] ^ 4, bytes[at] ^ 0x80]
                    [random.below(10) as usize];
            }
            if random.below(10) == 0 {
                bytes.truncate(random.below(whole.len() as u64) as usize);
            }
            fs::write(&path, bytes).unwrap();
            let Ok(checkpoint) = Checkpoint::open(directory.path()) else { continue };
            opened += 1;
            let tables = checkpoint.graph().assets.iter().map(|asset| &asset.table);
            for weight in checkpoint.graph().weights.iter().chain(tables) {
                let mut row = vec![0.0; weight.row_width()];
                (0..weight.rows())
                    .for_each(|index| assert!(weight.decode_row(index, &mut row), "{}", weight.name));
            }
        }
    }
    assert!(opened > 50, "{opened}");
}
