//! The weights of a checkpoint in llama.cpp's file format (GGUF 3), with the names of its models,
//! for comparing measurements.

use std::io;
use std::path::Path;

use crate::pool::{Pool, stored};
use crate::tokenizer::Vocabulary;
use crate::{Family, Part, Spec, TensorSpec, resumable, tensors};

/// The data and each tensor begin at multiples of this.
const ALIGNMENT: u64 = 32;

/// Numbers of the format's value types.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Numbers of ggml's tensor types.
const TENSOR_F32: u32 = 0;
const TENSOR_F16: u32 = 1;

/// Numbers of the kinds of tokens.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// A GGUF file without tensors, for tests of its metadata.
#[derive(Debug)]
pub struct GgufHead(Metadata);

impl GgufHead {
    /// Creates the head of a model of an architecture.
    pub fn new(architecture: &str) -> Self {
        GgufHead(Metadata::default()).text("general.architecture", architecture)
    }

    /// Adds a string.
    pub fn text(mut self, key: &str, value: &str) -> Self {
        self.0.text(key, value);
        self
    }

    /// Adds an unsigned 32-bit integer.
    pub fn number(mut self, key: &str, value: u32) -> Self {
        self.0.u32(key, value.into());
        self
    }

    /// Adds a 32-bit float.
    pub fn float(mut self, key: &str, value: f64) -> Self {
        self.0.f32(key, value);
        self
    }

    /// Adds a boolean.
    pub fn flag(mut self, key: &str, value: bool) -> Self {
        self.0.bool(key, value);
        self
    }

    /// Adds a list of strings.
    pub fn texts(mut self, key: &str, values: &[&str]) -> Self {
        self.0.array(key, STRING, values, |bytes, value| text(bytes, value));
        self
    }

    /// Adds a list of 32-bit integers.
    pub fn integers(mut self, key: &str, values: &[i32]) -> Self {
        self.0.array(key, I32, values, |bytes, value| bytes.extend(value.to_le_bytes()));
        self
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3_u32.to_le_bytes());
        file.extend(0_u64.to_le_bytes());
        file.extend(self.0.count.to_le_bytes());
        file.extend(&self.0.bytes);
        file
    }
}

/// Key-value pairs in the encoding of the file.
#[derive(Debug, Default)]
struct Metadata {
    count: u64,
    bytes: Vec<u8>,
}

impl Metadata {
    fn key(&mut self, key: &str, kind: u32) {
        self.count += 1;
        text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
    }

    fn u32(&mut self, key: &str, value: u64) {
        self.key(key, U32);
        self.bytes.extend((value as u32).to_le_bytes());
    }

    fn f32(&mut self, key: &str, value: f64) {
        self.key(key, F32);
        self.bytes.extend((value as f32).to_le_bytes());
    }

    fn bool(&mut self, key: &str, value: bool) {
        self.key(key, BOOL);
        self.bytes.push(u8::from(value));
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key, STRING);
        text(&mut self.bytes, value);
    }

    fn array<T>(&mut self, key: &str, kind: u32, values: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
        self.key(key, ARRAY);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| write(&mut self.bytes, value));
    }
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// A tensor of the file.
struct Stored {
    name: String,
    shape: Vec<u64>,
    /// Element type: `F32` or `F16`.
    dtype: &'static str,
    source: Source,
}

enum Source {
    /// A tensor copied from the checkpoint.
    Tensor(TensorSpec),
    Values(Vec<f32>),
}

impl Stored {
    fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * if self.dtype == "F32" { 4 } else { 2 }
    }
}

/// Writes the model in 16-bit floats, except for tensors that llama.cpp keeps in 32 bits. An
/// interrupted call can be repeated and continues where it stopped.
pub(crate) fn write(spec: &Spec, name: &str, path: &Path) -> io::Result<()> {
    let stored_tensors = all(spec);
    let metadata = metadata(spec, name);
    let mut head = b"GGUF".to_vec();
    head.extend(3_u32.to_le_bytes());
    head.extend((stored_tensors.len() as u64).to_le_bytes());
    head.extend(metadata.count.to_le_bytes());
    head.extend(metadata.bytes);
    let (mut offset, mut lengths) = (0, Vec::new());
    for tensor in &stored_tensors {
        text(&mut head, &tensor.name);
        head.extend((tensor.shape.len() as u32).to_le_bytes());
        // The innermost extent comes first.
        tensor.shape.iter().rev().for_each(|extent| head.extend(extent.to_le_bytes()));
        head.extend(if tensor.dtype == "F32" { TENSOR_F32 } else { TENSOR_F16 }.to_le_bytes());
        head.extend(u64::to_le_bytes(offset));
        let length = tensor.bytes().next_multiple_of(ALIGNMENT);
        lengths.push(length);
        offset += length;
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
    let mut pool = Pool::new();
    resumable::write(path, &head, &lengths, |index, to| {
        let tensor = &stored_tensors[index];
        match &tensor.source {
            Source::Tensor(source) if tensor.dtype == "F32" => {
                // Published files of Gemma 3 store its norms plus one, as the formula adds it.
                let one = f32::from(u8::from(adds_one(spec) && source.part != Part::Scalar));
                let values = tensors::values(spec, source).map(|value| value + one);
                to.write_all(&stored("F32", values))?;
            }
            Source::Tensor(source) => pool.write(spec, source, "F16", to)?,
            Source::Values(values) => to.write_all(&stored("F32", values.iter().copied()))?,
        }
        let padding = lengths[index] - tensor.bytes();
        to.write_all(&vec![0; padding as usize])
    })
}

fn adds_one(spec: &Spec) -> bool {
    spec.family == Family::Gemma3
}

/// Returns the tensors under llama.cpp's names. Tensors that llama.cpp does not have are omitted.
fn all(spec: &Spec) -> Vec<Stored> {
    let shared_from = spec.depth() - if spec.family == Family::Gemma4 { spec.kv_shared } else { 0 };
    let mut found = Vec::new();
    for tensor in tensors::tensors(spec) {
        let Some(name) = named(spec, &tensor.name, shared_from) else { continue };
        let dtype = if tensor.shape.len() == 1 { "F32" } else { "F16" };
        found.push(Stored { name, shape: tensor.shape.clone(), dtype, source: Source::Tensor(tensor) });
    }
    if spec.family == Family::Gemma4 {
        let half = (spec.global_head_dim / 2) as usize;
        let turning = (spec.global_head_dim as f64 * spec.partial / 2.0) as usize;
        // Pairs that do not rotate are divided by a number beyond all angles.
        let values = (0..half).map(|pair| if pair < turning { 1.0 } else { 1e30 }).collect();
        let shape = vec![half as u64];
        found.push(Stored {
            name: "rope_freqs.weight".to_owned(),
            shape,
            dtype: "F32",
            source: Source::Values(values),
        });
    }
    found
}

/// Returns llama.cpp's name of a tensor, or `None` for towers and for keys and values that sharing
/// layers do not use.
fn named(spec: &Spec, name: &str, shared_from: usize) -> Option<String> {
    let short = name.rsplit_once("language_model.").map_or(name, |(_, rest)| rest);
    let short = short.strip_prefix("model.").unwrap_or(short);
    let Some(rest) = short.strip_prefix("layers.") else {
        return Some(match short {
            "embed_tokens.weight" => "token_embd.weight".to_owned(),
            "embed_tokens_per_layer.weight" => "per_layer_token_embd.weight".to_owned(),
            "per_layer_model_projection.weight" => "per_layer_model_proj.weight".to_owned(),
            "per_layer_projection_norm.weight" => "per_layer_proj_norm.weight".to_owned(),
            "norm.weight" => "output_norm.weight".to_owned(),
            "lm_head.weight" => "output.weight".to_owned(),
            _ => return None,
        });
    };
    let (layer, part) = rest.split_once('.')?;
    let shares = layer.parse::<usize>().is_ok_and(|layer| layer >= shared_from);
    let gemma = spec.family != Family::Qwen3;
    let part = match part {
        "input_layernorm.weight" => "attn_norm.weight",
        "post_attention_layernorm.weight" if gemma => "post_attention_norm.weight",
        "post_attention_layernorm.weight" => "ffn_norm.weight",
        "pre_feedforward_layernorm.weight" => "ffn_norm.weight",
        "post_feedforward_layernorm.weight" => "post_ffw_norm.weight",
        "self_attn.q_proj.weight" => "attn_q.weight",
        "self_attn.q_norm.weight" => "attn_q_norm.weight",
        "self_attn.k_proj.weight" if !shares => "attn_k.weight",
        "self_attn.k_norm.weight" if !shares => "attn_k_norm.weight",
        "self_attn.v_proj.weight" if !shares => "attn_v.weight",
        "self_attn.o_proj.weight" => "attn_output.weight",
        "mlp.gate_proj.weight" => "ffn_gate.weight",
        "mlp.up_proj.weight" => "ffn_up.weight",
        "mlp.down_proj.weight" => "ffn_down.weight",
        "per_layer_input_gate.weight" => "inp_gate.weight",
        "per_layer_projection.weight" => "proj.weight",
        "post_per_layer_input_norm.weight" => "post_norm.weight",
        "layer_scalar" => "layer_output_scale.weight",
        _ => return None,
    };
    Some(format!("blk.{layer}.{part}"))
}

fn metadata(spec: &Spec, name: &str) -> Metadata {
    let mut all = Metadata::default();
    let family = match spec.family {
        Family::Gemma3 => "gemma3",
        Family::Gemma4 => "gemma4",
        Family::Qwen3 => "qwen3",
        Family::EmbeddingGemma => panic!("no GGUF of an embedding model"),
    };
    let key = |rest: &str| format!("{family}.{rest}");
    all.text("general.architecture", family);
    all.text("general.name", name);
    // The file type for mostly 16-bit floats.
    all.u32("general.file_type", 1);
    all.u32(&key("context_length"), spec.context);
    all.u32(&key("embedding_length"), spec.hidden);
    all.u32(&key("block_count"), spec.depth() as u64);
    all.u32(&key("attention.head_count"), spec.heads);
    all.u32(&key("attention.head_count_kv"), spec.kv_heads);
    all.f32(&key("attention.layer_norm_rms_epsilon"), 1e-6);
    all.f32(&key("rope.freq_base"), spec.theta_full);
    if spec.family == Family::Gemma4 {
        let shared_from = spec.depth() - spec.kv_shared;
        let wide = |layer: usize| layer >= shared_from && spec.double_wide;
        let widths: Vec<i32> = (0..spec.depth())
            .map(|layer| spec.intermediate as i32 * if wide(layer) { 2 } else { 1 })
            .collect();
        all.array(&key("feed_forward_length"), I32, &widths, |bytes, width| {
            bytes.extend(width.to_le_bytes())
        });
        let sliding: Vec<bool> = (0..spec.depth()).map(|layer| !spec.is_full(layer)).collect();
        all.array(&key("attention.sliding_window_pattern"), BOOL, &sliding, |bytes, sliding| {
            bytes.push(u8::from(*sliding));
        });
        for name in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
            all.u32(&key(name), spec.global_head_dim);
            all.u32(&key(&format!("{name}_swa")), spec.head_dim);
        }
        all.u32(&key("attention.shared_kv_layers"), spec.kv_shared as u64);
        all.u32(&key("embedding_length_per_layer_input"), spec.per_layer);
        all.f32(&key("rope.freq_base_swa"), spec.theta_sliding);
        all.f32(&key("final_logit_softcapping"), spec.softcap.unwrap_or(0.0));
    } else {
        all.u32(&key("feed_forward_length"), spec.intermediate);
        all.u32(&key("attention.key_length"), spec.head_dim);
        all.u32(&key("attention.value_length"), spec.head_dim);
    }
    if spec.layers.contains('S') {
        all.u32(&key("attention.sliding_window"), spec.window);
    }
    let vocabulary = Vocabulary::new(spec.vocabulary as usize);
    all.text("tokenizer.ggml.model", "llama");
    all.text("tokenizer.ggml.pre", "default");
    all.array("tokenizer.ggml.tokens", STRING, &vocabulary.tokens, |bytes, token| text(bytes, token));
    let ranks: Vec<f32> = (0..vocabulary.tokens.len()).map(|id| -(id as f32)).collect();
    all.array("tokenizer.ggml.scores", F32, &ranks, |bytes, rank| bytes.extend(rank.to_le_bytes()));
    let kind = |id: usize| match id {
        3 => UNKNOWN,
        0..3 => CONTROL,
        4..260 => BYTE,
        _ => NORMAL,
    };
    let kinds: Vec<i32> = (0..vocabulary.tokens.len()).map(kind).collect();
    all.array("tokenizer.ggml.token_type", I32, &kinds, |bytes, kind| bytes.extend(kind.to_le_bytes()));
    for (name, id) in [("padding", 0), ("eos", 1), ("bos", 2), ("unknown", 3)] {
        all.u32(&format!("tokenizer.ggml.{name}_token_id"), id);
    }
    all.bool("tokenizer.ggml.add_bos_token", true);
    all.bool("tokenizer.ggml.add_space_prefix", false);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_the_text_model_reads_has_a_name() {
        for spec in
            [Spec::gemma3(), Spec { stale_keys: true, multimodal: true, ..Spec::gemma4() }, Spec::qwen3()]
        {
            let shared_from = spec.depth() - if spec.family == Family::Gemma4 { spec.kv_shared } else { 0 };
            let mut names = std::collections::HashSet::new();
            for tensor in tensors::tensors(&spec) {
                let stale = spec.stale_keys && (tensor.name.contains("k_") || tensor.name.contains("v_proj"));
                match named(&spec, &tensor.name, shared_from) {
                    Some(name) => assert!(names.insert(name), "{} twice", tensor.name),
                    None => assert!(stale || tensor.part == Part::Tower, "{}", tensor.name),
                }
            }
        }
    }

    #[test]
    fn a_file_has_its_head_and_room_for_every_tensor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let spec = Spec { vocabulary: 400, ..Spec::gemma4() };
        write(&spec, "toy", &path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(&bytes[..8], b"GGUF\x03\0\0\0");
        let tensors = all(&spec);
        assert_eq!(bytes[8..16], (tensors.len() as u64).to_le_bytes());
        let data: u64 = tensors.iter().map(|tensor| tensor.bytes().next_multiple_of(ALIGNMENT)).sum();
        assert!(bytes.len() as u64 > data && (bytes.len() as u64 - data).is_multiple_of(ALIGNMENT));
    }
}
