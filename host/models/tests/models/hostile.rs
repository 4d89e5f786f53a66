//! Checkpoints that are broken, contradict themselves or need unsupported features. Each causes a
//! typed error that names its place, without excessive cost.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use shardwright_graph::{ComponentKind, EntryOptions, EntryPoint};
use shardwright_models::{Checkpoint, Outline, limits};
use shardwright_test_checkpoints::{Spec, Spelling, raw_safetensors};
use shardwright_vocabulary::{EntryKind, Error, ErrorKind};
use tempfile::TempDir;

/// A valid checkpoint that a test then damages.
struct Victim(TempDir);

impl Victim {
    fn new(spec: &Spec) -> Self {
        let directory = TempDir::new().unwrap();
        spec.write(directory.path()).unwrap();
        Victim(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn error(&self) -> Error {
        Checkpoint::open(self.0.path()).map(|_| ()).unwrap_err()
    }

    /// Changes a JSON file.
    fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut value = serde_json::from_slice(&fs::read(self.path(name)).unwrap()).unwrap();
        change(&mut value);
        fs::write(self.path(name), serde_json::to_vec(&value).unwrap()).unwrap();
    }

    /// Changes the header of a weight file but not its data.
    fn edit_header(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let bytes = fs::read(self.path(name)).unwrap();
        let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        let mut header = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        change(&mut header);
        let mut text = header.to_string();
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
        fs::write(self.path(name), raw_safetensors(&text, &bytes[8 + length..])).unwrap();
    }
}

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const TENSOR: &str = "model.layers.1.mlp.up_proj.weight";

fn text(error: &Error) -> String {
    format!("{error} | help: {}", error.help().unwrap_or_default())
}

macro_rules! assert_error {
    ($victim:expr, $kind:ident, $($words:expr),+) => {{
        let error = $victim.error();
        assert_eq!(error.kind(), ErrorKind::$kind, "{error}");
        $(assert!(text(&error).contains(&$words.to_string()), "{} lacks {}", text(&error), $words);)+
    }};
}

#[test]
fn files_that_are_missing_or_no_files() {
    let victim = Victim::new(&Spec::gemma3());
    fs::remove_file(victim.path("config.json")).unwrap();
    assert_error!(victim, Missing, "No such file", "config.json", "Hugging Face layout");
    fs::create_dir(victim.path("config.json")).unwrap();
    assert_error!(victim, Invalid, "config.json: a directory, not a regular file");

    let victim = Victim::new(&Spec::gemma3());
    fs::remove_file(victim.path(WEIGHTS)).unwrap();
    assert_error!(victim, Missing, "No such file", WEIGHTS, "must be converted");

    // An additional weight file does not belong to the model.
    fs::write(victim.path("goldens.safetensors"), raw_safetensors("{}", &[])).unwrap();
    assert_error!(victim, Missing, "No such file", WEIGHTS);

    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Checkpoint::open(file.path()).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert!(!error.is_not_found() && error.place().is_some(), "{error:?}");
}

#[test]
fn settings_that_are_no_settings() {
    let victim = Victim::new(&Spec::gemma3());
    let config = victim.path("config.json");
    fs::write(&config, b"{\"model_type\": \"qw\xFFen3\"}").unwrap();
    assert_error!(victim, Invalid, "not UTF-8 at byte 18");
    for (content, words) in [
        ("", "config.json: not JSON: EOF"),
        ("{\"model_type\": ", "line 1 column"),
        ("[1, 2]", "config.json: not a JSON object"),
        ("{\"rms_norm_eps\": NaN}", "config.json: not JSON: expected value"),
        ("{\"rms_norm_eps\": 1e999}", "out of range"),
        ("{\"a\": 1,\n\"a\": 1}", "config.json: a second key `a` at line 2 column 3"),
    ] {
        fs::write(&config, content).unwrap();
        assert_error!(victim, Invalid, words);
    }
    fs::write(&config, format!("{{\"a\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000))).unwrap();
    assert_error!(victim, Invalid, "not JSON: ", "recursion limit");

    fs::File::create(&config).unwrap().set_len(limits::CONFIG_BYTES + 1).unwrap();
    assert_error!(victim, Invalid, "more than the limit of", limits::CONFIG_BYTES);
}

/// A change of one field that must be refused: its place, the new value, and a part of the message.
type Refused<'a> = (&'a str, Value, &'a str);

fn set(value: &mut Value, place: &str, to: Value) {
    let (outer, name) = place.rsplit_once('.').unwrap_or(("", place));
    let mut object = value;
    for part in outer.split('.').filter(|part| !part.is_empty()) {
        object = &mut object[part];
    }
    object[name] = to;
}

#[test]
fn impossible_numbers_are_invalid_and_named() {
    let cases: Vec<(Spec, Vec<Refused>)> = vec![
        (
            Spec::gemma3(),
            vec![
                ("num_attention_heads", json!(0), "`num_attention_heads` is 0, not within 1..="),
                ("num_attention_heads", json!(-4), "not a whole number"),
                ("num_attention_heads", json!(4.0), "not a whole number"),
                ("num_attention_heads", json!("4"), "not a whole number"),
                ("num_attention_heads", json!(3), "does not divide the 3 query heads"),
                ("num_key_value_heads", json!(3), "does not divide"),
                ("num_hidden_layers", json!(1_000_000_000), "not within 1..=512"),
                ("num_hidden_layers", json!(0), "not within"),
                ("num_hidden_layers", json!(5), "`layer_types` has 4 entries for 5 layers"),
                ("head_dim", json!(7), "an odd number"),
                ("head_dim", json!(0), "not within"),
                ("hidden_size", json!(u64::MAX), "not within"),
                ("intermediate_size", json!(1_u64 << 40), "not within"),
                ("vocab_size", json!(0), "not within"),
                ("max_position_embeddings", json!(1_u64 << 32), "not within"),
                ("sliding_window", json!(0), "not within"),
                ("rms_norm_eps", json!(0.0), "not a positive number"),
                ("rms_norm_eps", json!("small"), "not a number"),
                ("query_pre_attn_scalar", json!(-8), "not a positive number"),
                (
                    "rope_parameters.full_attention.rope_theta",
                    json!(0),
                    "`rope_parameters.full_attention.rope_theta`",
                ),
                ("rope_parameters.sliding_attention.rope_theta", json!(1e300), "not a positive number"),
                ("rope_parameters", json!([1]), "not an object"),
                ("rope_parameters", json!({"rope_theta": 1e6}), "stands outside"),
                ("layer_types", json!([1, 2, 3, 4]), "has no word for layer 0"),
                ("layer_types", json!("SSFS"), "not a list"),
                ("tie_word_embeddings", json!("yes"), "not true or false"),
                ("model_type", json!(3), "not a string"),
                ("model_type", json!(null), "is missing"),
                ("architectures", json!([{}]), "has an entry that is not a string"),
            ],
        ),
        (
            Spec { spelling: Spelling::Older, layers: "SSFSSF".to_owned(), ..Spec::gemma3() },
            vec![
                ("sliding_window_pattern", json!(0), "not within"),
                ("rope_theta", json!("NaN"), "not a number"),
                ("rope_local_base_freq", json!(-1e4), "not a positive number"),
            ],
        ),
        (
            Spec::gemma4(),
            vec![
                ("num_kv_shared_layers", json!(6), "not within 0..=5"),
                ("num_kv_shared_layers", json!(5), "without an earlier layer of its type"),
                (
                    "per_layer_config.1.head_dim",
                    json!(9),
                    "`per_layer_config.1.head_dim` is 9, an odd number",
                ),
                ("per_layer_config.5.head_dim", json!(4), "other key sizes than the layer it shares"),
                ("per_layer_config", json!({"6": {"head_dim": 8}}), "is not one of the 6 layers"),
                ("per_layer_config", json!({"x": {}}), "is not one of the 6 layers"),
                (
                    "rope_parameters.full_attention.partial_rotary_factor",
                    json!(1.5),
                    "not a share between 0 and 1",
                ),
                ("hidden_size_per_layer_input", json!(1 << 20), "not within"),
                ("pad_token_id", json!(96), "not within 0..=95"),
                ("global_head_dim", json!(11), "an odd number"),
                ("image_token_id", json!(-1), "not a whole number"),
            ],
        ),
        (
            Spec::qwen3(),
            vec![
                (
                    "layer_types",
                    json!(["full_attention", "full_attention", "full_attention", "sliding_attention"]),
                    "no window is switched on",
                ),
                ("max_window_layers", json!(-1), "not a whole number"),
            ],
        ),
        (
            Spec { multimodal: true, ..Spec::gemma4() },
            vec![
                ("text_config", json!(null), "`text_config` is missing"),
                ("text_config.model_type", json!("gemma3_text"), "inside of a `gemma4`"),
                ("text_config.head_dim", json!(1), "`text_config.head_dim` is 1"),
                (
                    "text_config.rope_parameters.full_attention.rope_theta",
                    json!(-1),
                    "`text_config.rope_parameters.full_attention.rope_theta`",
                ),
            ],
        ),
    ];
    for (spec, changes) in cases {
        for (place, to, words) in changes {
            let victim = Victim::new(&spec);
            victim.edit("config.json", |config| set(config, place, to));
            assert_error!(victim, Invalid, words, "config.json");
        }
    }
}

#[test]
fn what_is_not_built_is_unsupported_and_named() {
    let cases: Vec<(Spec, Vec<Refused>)> = vec![
        (
            Spec::gemma3(),
            vec![
                ("attention_bias", json!(true), "`attention_bias` is true"),
                ("attn_logit_softcapping", json!(50.0), "`attn_logit_softcapping` is 50.0"),
                ("hidden_activation", json!("relu"), "gelu_pytorch_tanh"),
                ("quantization_config", json!({"bits": 4}), "`quantization_config.quant_method` is absent"),
                (
                    "layer_types",
                    json!(["full_attention", "full_attention", "chunked_attention", "full_attention"]),
                    "`layer_types[2]` is `chunked_attention`",
                ),
                ("rope_parameters.full_attention.rope_type", json!("yarn"), "is `yarn`"),
                ("rope_parameters.full_attention.partial_rotary_factor", json!(0.5), "proportional"),
                ("rope_parameters.full_attention.factor", json!(8.0), "rope_type `linear`"),
                ("rope_scaling", json!({"rope_type": "linear", "factor": 8.0}), "`rope_scaling`"),
                ("architectures", json!(["Gemma3TextForSequenceClassification"]), "…ForCausalLM"),
            ],
        ),
        (
            Spec::gemma4(),
            vec![
                ("enable_moe_block", json!(true), "`enable_moe_block` is true"),
                ("attention_k_eq_v", json!(true), "`attention_k_eq_v` is true"),
                ("use_bidirectional_attention", json!("vision"), "`use_bidirectional_attention` is `vision`"),
                ("use_bidirectional_attention", json!("all"), "`all`"),
                ("vocab_size_per_layer_input", json!(95), "every token has a row"),
                (
                    "per_layer_config.0",
                    json!({"num_attention_heads": 8}),
                    "`per_layer_config.0.num_attention_heads`",
                ),
                ("rope_scaling", json!({"factor": 2.0}), "`rope_scaling`"),
                ("hidden_activation", json!("silu"), "gelu_pytorch_tanh"),
            ],
        ),
        (
            Spec::qwen3(),
            vec![
                ("hidden_act", json!("gelu"), "`silu`"),
                ("attention_bias", json!(true), "`attention_bias`"),
                (
                    "rope_parameters",
                    json!({"rope_type": "dynamic", "factor": 4.0}),
                    "`rope_parameters.rope_type` is `dynamic`",
                ),
            ],
        ),
    ];
    for (spec, changes) in cases {
        for (place, to, words) in changes {
            let victim = Victim::new(&spec);
            victim.edit("config.json", |config| set(config, place, to));
            assert_error!(victim, Unsupported, "not supported", words, "supported:");
        }
    }
    let victim = Victim::new(&Spec::gemma3());
    victim.edit("config.json", |config| config["model_type"] = json!("mamba"));
    assert_error!(victim, Unsupported, "model_type `", "`mamba`", "gemma3_text", "gemma4", "qwen3");
}

#[test]
fn supported_scalings_are_not_refused() {
    let victim = Victim::new(&Spec::gemma3());
    victim.edit("config.json", |config| {
        let full = json!({"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6});
        config["rope_parameters"]["full_attention"] = full;
    });
    Checkpoint::open(victim.0.path()).unwrap();
    let victim = Victim::new(&Spec { spelling: Spelling::Older, ..Spec::qwen3() });
    victim.edit("config.json", |config| config["rope_scaling"] = json!({"type": "linear", "factor": 2.0}));
    Checkpoint::open(victim.0.path()).unwrap();
}

#[test]
fn weight_files_cut_short_or_too_long() {
    let victim = Victim::new(&Spec::gemma3());
    let whole = fs::read(victim.path(WEIGHTS)).unwrap();
    let header = 8 + u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
    for (length, words) in [
        (0, "the header's length ends at byte 8, but the file has 0"),
        (7, "the header's length"),
        (8, "the header ends at"),
        (header - 1, "the header ends at"),
        (header + 1, "tensor `"),
        (whole.len() - 1, "tensor `model.norm.weight`"),
    ] {
        fs::write(victim.path(WEIGHTS), &whole[..length]).unwrap();
        assert_error!(victim, Invalid, " ends at byte", words, "fetch the file again");
    }
    let mut longer = whole.clone();
    longer.extend_from_slice(b"tail");
    fs::write(victim.path(WEIGHTS), longer).unwrap();
    assert_error!(victim, Invalid, "belong to no tensor", "4 bytes at byte", whole.len());

    let mut huge = whole;
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(victim.path(WEIGHTS), &huge).unwrap();
    assert_error!(victim, Invalid, "a header of", u64::MAX, "Git LFS");
    huge[..8].copy_from_slice(&limits::HEADER_BYTES.to_le_bytes());
    fs::write(victim.path(WEIGHTS), &huge).unwrap();
    assert_error!(victim, Invalid, " ends at byte", "the header ends at");
}

#[test]
fn headers_that_lie() {
    type Lie = fn(&mut Value);
    let invalid: [(Lie, &str); 7] = [
        (|header| header[TENSOR]["shape"] = json!([40, 25]), "values [40, 25] take"),
        (|header| header[TENSOR]["shape"] = json!([40]), "take 80 bytes, but 1920 are set aside"),
        (|header| header[TENSOR]["shape"] = json!([1_u64 << 40, 1_u64 << 40]), "overflows"),
        (|header| header[TENSOR]["dtype"] = json!("F32"), "F32 values"),
        (|header| header[TENSOR]["dtype"] = json!("Q4_K"), "element type `Q4_K`"),
        (|header| header[TENSOR]["data_offsets"] = json!([4000, 100]), "before it begins"),
        (|header| header[TENSOR]["data_offsets"][1] = json!(u64::MAX), "are set aside"),
    ];
    for (lie, words) in invalid {
        let victim = Victim::new(&Spec::gemma3());
        victim.edit_header(WEIGHTS, lie);
        assert_error!(victim, Invalid, "` at byte ", words, TENSOR);
    }

    let shift = |by: i64| {
        move |header: &mut Value| {
            for end in 0..2 {
                let offset = header[TENSOR]["data_offsets"][end].as_i64().unwrap();
                header[TENSOR]["data_offsets"][end] = json!(offset + by);
            }
        }
    };
    let victim = Victim::new(&Spec::gemma3());
    victim.edit_header(WEIGHTS, shift(-2));
    assert_error!(victim, Invalid, TENSOR, "model.layers.1.mlp.gate_proj.weight", "overlap at byte");
    let victim = Victim::new(&Spec::gemma3());
    victim.edit_header(WEIGHTS, shift(1 << 40));
    assert_error!(victim, Invalid, " ends at byte", TENSOR);
    let victim = Victim::new(&Spec::gemma3());
    victim.edit_header(WEIGHTS, |header| {
        header.as_object_mut().unwrap().remove(TENSOR);
    });
    assert_error!(victim, Invalid, "belong to no tensor", "1920 bytes at byte");

    let victim = Victim::new(&Spec::gemma3());
    for (header, words) in [
        ("[]", "an object of tensors"),
        ("{} {}", "trailing characters"),
        ("{\"a\": 3}", "invalid type"),
        ("{\"a\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [0]}}", "tuple of size 2"),
        ("{\"a\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}", "invalid value"),
        (
            "{\"a\": {\"dtype\": \"F32\", \"shape\": [1,1,1,1,1,1,1,1,1], \"data_offsets\": [0, 4]}}",
            "more than 8 axes",
        ),
        ("{\"a\": {\"dtype\": \"F32\", \"shape\": []}}", "missing field"),
    ] {
        fs::write(victim.path(WEIGHTS), raw_safetensors(header, &[0; 4])).unwrap();
        assert_error!(victim, Invalid, ": header: ", words, WEIGHTS);
    }
    let entry = "{\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}";
    let twice = format!("{{\"a\": {entry}, \"a\": {entry}}}");
    fs::write(victim.path(WEIGHTS), raw_safetensors(&twice, &[0; 4])).unwrap();
    assert_error!(victim, Invalid, "a second tensor `a`");
    let mut bytes = raw_safetensors("{\"ab\": 3}", &[]);
    bytes[10] = 0xFF;
    fs::write(victim.path(WEIGHTS), bytes).unwrap();
    assert_error!(victim, Invalid, "not UTF-8 at byte 10");
}

/// Renames a tensor in a file's header.
fn rename(header: &mut Value, from: &str, to: &str) {
    let map = header.as_object_mut().unwrap();
    let entry = map.remove(from).unwrap();
    map.insert(to.to_owned(), entry);
}

#[test]
fn tensors_that_are_missing_or_of_another_kind() {
    let victim = Victim::new(&Spec::gemma3());
    victim.edit_header(WEIGHTS, |header| rename(header, TENSOR, "elsewhere"));
    assert_error!(victim, Missing, "no tensor `", TENSOR, "different models");
    let victim = Victim::new(&Spec::gemma3());
    victim.edit_header(WEIGHTS, |header| rename(header, "model.embed_tokens.weight", "elsewhere"));
    assert_error!(victim, Missing, "no tensor `", "model.embed_tokens.weight");
    let victim = Victim::new(&Spec::qwen3());
    victim.edit("config.json", |config| config["tie_word_embeddings"] = json!(false));
    assert_error!(victim, Missing, "no tensor `", "lm_head.weight");

    let victim = Victim::new(&Spec::gemma3());
    victim.edit_header(WEIGHTS, |header| header[TENSOR]["shape"] = json!([24, 40]));
    assert_error!(victim, Invalid, "has the shape", TENSOR, "[24, 40]", "[40, 24]");
    let victim = Victim::new(&Spec::gemma3());
    victim.edit("config.json", |config| config["vocab_size"] = json!(97));
    assert_error!(victim, Invalid, "has the shape", "model.embed_tokens.weight", "[97, 24]");

    for (dtype, shape) in [("I16", json!([40, 24])), ("F8_E4M3", json!([80, 24])), ("F64", json!([10, 24]))] {
        let victim = Victim::new(&Spec::gemma3());
        victim.edit_header(WEIGHTS, |header| {
            header[TENSOR]["dtype"] = json!(dtype);
            header[TENSOR]["shape"] = shape.clone();
        });
        // Shape errors come first. The type alone can be wrong only if the size stays the same.
        let error = victim.error();
        if dtype == "I16" {
            assert_error!(
                victim,
                Unsupported,
                "not supported for weights",
                TENSOR,
                "stored as I16",
                "f32, f16 or bf16"
            );
        } else {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains("has the shape"), "{error:?}");
        }
    }
}

#[test]
fn an_index_that_lies() {
    let spec = Spec { files: 2, ..Spec::gemma3() };
    let first = "model-00001-of-00002.safetensors";

    let victim = Victim::new(&spec);
    fs::remove_file(victim.path(first)).unwrap();
    assert_error!(victim, Missing, "No such file", first);

    for name in ["../weights.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "a/../b"] {
        let victim = Victim::new(&spec);
        victim.edit(INDEX, |index| index["weight_map"][TENSOR] = json!(name));
        assert_error!(victim, Invalid, "does not name a file", name, INDEX);
    }
    let victim = Victim::new(&spec);
    victim.edit(INDEX, |index| index["weight_map"]["nowhere"] = json!(first));
    assert_error!(victim, Invalid, "does not contain it", "`nowhere`", first);
    let victim = Victim::new(&spec);
    let name = victim.path(INDEX);
    let text =
        fs::read_to_string(&name).unwrap().replace("00001-of", "00000-of").replace("00002-of", "00001-of");
    fs::write(&name, text.replace("00000-of", "00002-of")).unwrap();
    assert_error!(victim, Invalid, "which does not contain it");

    let victim = Victim::new(&spec);
    victim.edit(INDEX, |index| index["weight_map"] = json!([]));
    assert_error!(victim, Invalid, "`weight_map` is not an object");
    let victim = Victim::new(&spec);
    victim.edit(INDEX, |index| index["weight_map"][TENSOR] = json!(7));
    assert_error!(victim, Invalid, "`weight_map` gives no file name for", TENSOR);
    let victim = Victim::new(&spec);
    victim.edit(INDEX, |index| {
        for file in 0..=limits::WEIGHT_FILES {
            index["weight_map"][format!("t{file}")] = json!(format!("f{file}.safetensors"));
        }
    });
    assert_error!(victim, Invalid, "weight files, more than 1024");
    let victim = Victim::new(&spec);
    fs::File::create(victim.path(INDEX)).unwrap().set_len(limits::INDEX_BYTES + 1).unwrap();
    assert_error!(victim, Invalid, "more than the limit of", INDEX);

    // The second file also contains a tensor of the first.
    let victim = Victim::new(&spec);
    let names = |file: &str| -> Vec<String> {
        let bytes = fs::read(victim.path(file)).unwrap();
        let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        header.as_object().unwrap().keys().filter(|name| *name != "__metadata__").cloned().collect()
    };
    let second = "model-00002-of-00002.safetensors";
    let (existing, other) = (names(first)[0].clone(), names(second)[0].clone());
    victim.edit_header(second, |header| rename(header, &other, &existing));
    assert_error!(victim, Invalid, "a second tensor", existing, second);
}

#[test]
fn data_that_are_not_aligned_are_copied_when_they_are_read() {
    let spec = Spec::gemma3();
    let victim = Victim::new(&spec);
    let in_place = Checkpoint::open(victim.0.path()).unwrap();
    // The values are copied, since the mapped file is about to be written.
    let wanted: Vec<_> = in_place.graph().weights.iter().map(|weight| weight.data.bytes().to_vec()).collect();
    drop(in_place);
    let bytes = fs::read(victim.path(WEIGHTS)).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header = std::str::from_utf8(&bytes[8..8 + length]).unwrap().trim_end();
    // One space more or less makes the header's length odd.
    let header = if header.len().is_multiple_of(2) { format!("{header} ") } else { header.to_owned() };
    fs::write(victim.path(WEIGHTS), raw_safetensors(&header, &bytes[8 + length..])).unwrap();
    let copied = Checkpoint::open(victim.0.path()).unwrap();
    assert_eq!(Outline::open(victim.0.path()).unwrap().graph().weights.len(), wanted.len());
    for (weight, wanted) in copied.graph().weights.iter().zip(&wanted) {
        let mut part = vec![0; wanted.len() / 2];
        assert!(weight.data.copy(wanted.len() - part.len(), &mut part) && wanted.ends_with(&part));
        assert!(!weight.data.copy(wanted.len() - part.len() + 1, &mut part));
        assert_eq!(weight.data.bytes(), wanted, "{}", weight.name);
        assert!(weight.data.bytes().as_ptr().addr().is_multiple_of(weight.dtype.bytes() as usize));
    }

    // A table of more than a gibibyte is not copied until it is read.
    let (vocabulary, width) = (1 << 22, 256);
    let victim = Victim::new(&spec);
    victim.edit("config.json", |config| {
        config["vocab_size"] = json!(vocabulary);
        config["hidden_size"] = json!(width);
    });
    let size = 2 * vocabulary * width;
    let entry = json!({"dtype": "BF16", "shape": [vocabulary, width], "data_offsets": [0, size]});
    let mut header = json!({"model.embed_tokens.weight": entry}).to_string();
    header.extend(header.len().is_multiple_of(2).then_some(' '));
    fs::write(victim.path(WEIGHTS), raw_safetensors(&header, &[])).unwrap();
    let file = fs::File::options().write(true).open(victim.path(WEIGHTS)).unwrap();
    file.set_len(8 + header.len() as u64 + size).unwrap();
    assert_error!(victim, Missing, "no tensor `", "layers.0", "");
    // Before the download, only the header counts.
    let error = Outline::open(victim.0.path()).map(|_| ()).unwrap_err();
    assert!(error.kind() == ErrorKind::Missing && error.to_string().contains("layers.0"), "{error}");
}

#[test]
fn sentence_modules_that_are_broken_or_not_built() {
    type Change = fn(&mut Value);
    let pooling = "1_Pooling/config.json";
    let dense = "2_Dense/config.json";
    let unsupported: [(&str, Change, &str); 11] = [
        ("modules.json", |list| list[1]["type"] = json!("x.WeightedLayerPooling"), "WeightedLayerPooling"),
        ("modules.json", |list| list[0]["path"] = json!("0_Transformer"), "`path` is `0_Transformer`"),
        ("modules.json", |list| list.as_array_mut().unwrap().swap(3, 4), "Normalize, in this order"),
        (pooling, |fields| fields["pooling_mode_cls_token"] = json!(true), "pooling_mode_cls_token"),
        (pooling, |fields| fields["pooling_mode_mean_tokens"] = json!(false), "pooling_mode_mean_tokens"),
        (pooling, |fields| fields["pooling_mode"] = json!("lasttoken"), "`lasttoken`"),
        (pooling, |fields| fields["include_prompt"] = json!(false), "include_prompt"),
        (dense, |fields| fields["activation_function"] = json!("torch.nn.modules.activation.Tanh"), "Tanh"),
        (dense, |fields| fields["activation_function"] = json!("mine.Identity"), "`mine.Identity`"),
        (dense, |fields| fields["module_input_name"] = json!("token_embeddings"), "module_input_name"),
        (dense, |fields| fields["use_residual"] = json!(true), "use_residual"),
    ];
    for (file, change, words) in unsupported {
        let victim = Victim::new(&Spec::embeddinggemma());
        victim.edit(file, change);
        assert_error!(victim, Unsupported, "not supported", words, file);
    }
    let invalid: [(&str, Change, &str); 5] = [
        (pooling, |fields| fields["word_embedding_dimension"] = json!(25), "is not the hidden size, 24"),
        (dense, |fields| fields["in_features"] = json!(23), "is 23, but 24 values arrive"),
        (dense, |fields| fields["out_features"] = json!(null), "is missing"),
        ("modules.json", |list| list.as_array_mut().unwrap().truncate(1), "no pooling"),
        ("modules.json", |list| list[2]["name"] = json!("1"), "`name` is that of an earlier module"),
    ];
    for (file, change, words) in invalid {
        let victim = Victim::new(&Spec::embeddinggemma());
        victim.edit(file, change);
        assert_error!(victim, Invalid, words, file);
    }
    let victim = Victim::new(&Spec::embeddinggemma());
    victim.edit("modules.json", |list| list[2]["path"] = json!("../2_Dense"));
    assert_error!(victim, Invalid, "does not name a file", "../2_Dense", "modules.json");
    let victim = Victim::new(&Spec::embeddinggemma());
    victim.edit("modules.json", |list| *list = json!({}));
    assert_error!(victim, Invalid, "not a JSON list");
    let victim = Victim::new(&Spec::embeddinggemma());
    victim.edit("modules.json", |list| *list = json!(vec![json!({}); limits::MODULES + 1]));
    assert_error!(victim, Invalid, ", more than ", "65 modules");
    let victim = Victim::new(&Spec::embeddinggemma());
    fs::remove_file(victim.path("3_Dense/model.safetensors")).unwrap();
    assert_error!(victim, Missing, "No such file", "3_Dense");
    let victim = Victim::new(&Spec::embeddinggemma());
    fs::remove_file(victim.path("modules.json")).unwrap();
    assert_error!(victim, Missing, "modules.json: No such file", "download modules.json");

    // Settings that published models do not have, or with other values.
    let victim = Victim::new(&Spec::embeddinggemma());
    for (settings, words) in [
        (json!({"do_lower_case": true}), "`do_lower_case` is true"),
        (json!({"transformer_task": "fill-mask"}), "`transformer_task` is `fill-mask`"),
        (json!({"module_output_name": "scores"}), "`module_output_name` is `scores`"),
        (json!({"modality_config": {"text": {"method": "encode"}}}), "`modality_config.text.method`"),
    ] {
        fs::write(victim.path("sentence_bert_config.json"), settings.to_string()).unwrap();
        assert_error!(victim, Unsupported, "not supported", words, "sentence_bert_config.json");
    }
    let victim = Victim::new(&Spec::embeddinggemma());
    fs::create_dir(victim.path("4_Normalize")).unwrap();
    let settings = json!({"module_input_name": "token_embeddings"});
    fs::write(victim.path("4_Normalize/config.json"), settings.to_string()).unwrap();
    assert_error!(victim, Unsupported, "not supported", "module_input_name", "4_Normalize");

    // Modules in the folder of a family whose sentence models have different pooling.
    let victim = Victim::new(&Spec::qwen3());
    fs::write(victim.path("modules.json"), "[]").unwrap();
    assert_error!(victim, Unsupported, "not supported", "modules.json", "gemma3_text");
}

#[test]
fn a_fault_of_the_graph_is_reported_as_one() {
    let victim = Victim::new(&Spec::gemma3());
    let checkpoint = Checkpoint::open(victim.0.path()).unwrap();
    let point = EntryPoint { kind: EntryKind::Decode, rows: 0, context: 0, largest_rows: 0 };
    let error = checkpoint.graph().entry(ComponentKind::Decoder, 0..1, point, EntryOptions::default());
    let error = error.map(|_| ()).unwrap_err();
    assert!(error.help().is_some_and(|help| help.contains("rows")), "{error:?}");
}

/// Values that fields of a hostile file may have.
pub fn strange_values() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(2.5),
        json!(u64::MAX),
        json!(1e300),
        json!("word"),
        json!([]),
        json!([null, 1, "x"]),
        json!({}),
        json!({"head_dim": 1, "rope_type": "linear"}),
    ]
}

/// Replaces every field of every settings file by every strange value. The result is an error or a
/// graph, but never a panic.
#[test]
fn no_field_can_make_it_panic() {
    let specs = [
        Spec::gemma3(),
        Spec { spelling: Spelling::Older, ..Spec::gemma4() },
        Spec { multimodal: true, ..Spec::gemma4() },
        Spec::qwen3(),
        Spec::embeddinggemma(),
    ];
    for spec in specs {
        let victim = Victim::new(&spec);
        let files: &[&str] = match spec.dense.is_empty() {
            true => &["config.json"],
            false => &["config.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json"],
        };
        for file in files {
            let original = fs::read(victim.path(file)).unwrap();
            let value: Value = serde_json::from_slice(&original).unwrap();
            let mut places = Vec::new();
            collect_places(&value, String::new(), &mut places);
            for place in places {
                for strange in strange_values() {
                    let mut changed = value.clone();
                    *changed.pointer_mut(&place).unwrap() = strange;
                    // The file is created again each time: some file systems flush a file that is
                    // overwritten, which costs milliseconds.
                    fs::remove_file(victim.path(file)).unwrap();
                    fs::write(victim.path(file), serde_json::to_vec(&changed).unwrap()).unwrap();
                    let _ = Checkpoint::open(victim.0.path());
                }
            }
            fs::write(victim.path(file), original).unwrap();
        }
        assert!(Checkpoint::open(victim.0.path()).is_ok());
    }
}

/// Collects the JSON pointers of all fields within a value.
pub fn collect_places(value: &Value, place: String, into: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(name, value)| collect_places(value, format!("{place}/{name}"), into));
        }
        Value::Array(list) => {
            let each = list.iter().enumerate();
            each.for_each(|(index, value)| collect_places(value, format!("{place}/{index}"), into));
        }
        _ => {}
    }
    if !place.is_empty() {
        into.push(place);
    }
}

#[test]
fn errors_name_existing_files() {
    let victim = Victim::new(&Spec::gemma3());
    victim.edit("config.json", |config| config["head_dim"] = json!(1));
    let message = victim.error().to_string();
    let named = message.split(": ").next().unwrap();
    assert!(Path::new(named).is_file(), "{message}");
}
