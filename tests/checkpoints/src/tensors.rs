use crate::pool::stored;
use crate::{Family, Random, Spec};

/// Clipping limit of tower values. It exceeds most of the values, but not all.
const CUT_OFF: f64 = 6.0;

/// Use of a tensor, which determines the scale of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Rows gathered by token id.
    Embedding,
    /// Rows gathered by token id, one part for each layer.
    PerLayerEmbedding,
    /// A matrix `[out, in]`.
    Matrix,
    /// The weight of a normalisation.
    Norm,
    /// The weight of a query's or key's normalisation.
    HeadNorm,
    /// The weight of the last normalisation.
    FinalNorm,
    /// The factor of a whole layer.
    Scalar,
    /// A matrix or a kernel that no text model reads.
    Tower,
    /// Lower clipping limit of tower values.
    Least,
    /// Upper clipping limit of tower values.
    Most,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name of the tensor.
    pub name: String,
    /// Extents, outermost first.
    pub shape: Vec<u64>,
    pub part: Part,
}

pub(crate) fn tensors(spec: &Spec) -> Vec<TensorSpec> {
    let prefix = match &spec.prefix {
        Some(prefix) => prefix.as_str(),
        None if spec.family == Family::EmbeddingGemma => "",
        None if spec.multimodal && spec.family == Family::Gemma3 => "language_model.model.",
        None if spec.multimodal => "model.language_model.",
        None => "model.",
    };
    let mut all = Vec::new();
    let mut add = |name: String, shape: &[u64], part| {
        all.push(TensorSpec { name: format!("{prefix}{name}"), shape: shape.to_vec(), part });
    };
    let (hidden, depth) = (spec.hidden, spec.depth() as u64);
    add("embed_tokens.weight".to_owned(), &[spec.vocabulary, hidden], Part::Embedding);
    let gemma4 = spec.family == Family::Gemma4;
    let per_layer = if gemma4 { spec.per_layer } else { 0 };
    if per_layer > 0 {
        let all = depth * per_layer;
        add("embed_tokens_per_layer.weight".to_owned(), &[spec.vocabulary, all], Part::PerLayerEmbedding);
        add("per_layer_model_projection.weight".to_owned(), &[all, hidden], Part::Matrix);
        add("per_layer_projection_norm.weight".to_owned(), &[per_layer], Part::Norm);
    }
    for layer in 0..spec.depth() {
        let mut add = |name: &str, shape: &[u64], part| add(format!("layers.{layer}.{name}"), shape, part);
        let shares = gemma4 && layer >= spec.depth() - spec.kv_shared;
        let head = if gemma4 && spec.is_full(layer) { spec.global_head_dim } else { spec.head_dim };
        let (queries, keys) = (spec.heads * head, spec.kv_heads * head);
        let width = spec.intermediate * if shares && spec.double_wide { 2 } else { 1 };
        add("input_layernorm.weight", &[hidden], Part::Norm);
        add("post_attention_layernorm.weight", &[hidden], Part::Norm);
        if spec.family != Family::Qwen3 {
            add("pre_feedforward_layernorm.weight", &[hidden], Part::Norm);
            add("post_feedforward_layernorm.weight", &[hidden], Part::Norm);
        }
        add("self_attn.q_proj.weight", &[queries, hidden], Part::Matrix);
        add("self_attn.q_norm.weight", &[head], Part::HeadNorm);
        if !shares || spec.stale_keys {
            add("self_attn.k_proj.weight", &[keys, hidden], Part::Matrix);
            add("self_attn.k_norm.weight", &[head], Part::HeadNorm);
            add("self_attn.v_proj.weight", &[keys, hidden], Part::Matrix);
        }
        add("self_attn.o_proj.weight", &[hidden, queries], Part::Matrix);
        add("mlp.gate_proj.weight", &[width, hidden], Part::Matrix);
        add("mlp.up_proj.weight", &[width, hidden], Part::Matrix);
        add("mlp.down_proj.weight", &[hidden, width], Part::Matrix);
        if per_layer > 0 {
            add("per_layer_input_gate.weight", &[per_layer, hidden], Part::Matrix);
            add("per_layer_projection.weight", &[hidden, per_layer], Part::Matrix);
            add("post_per_layer_input_norm.weight", &[hidden], Part::Norm);
        }
        if gemma4 {
            add("layer_scalar", &[1], Part::Scalar);
        }
    }
    add("norm.weight".to_owned(), &[hidden], Part::FinalNorm);
    if !spec.tied && spec.family != Family::EmbeddingGemma {
        let shape = vec![spec.vocabulary, hidden];
        all.push(TensorSpec { name: "lm_head.weight".to_owned(), shape, part: Part::Matrix });
    }
    if let Some(towers) = spec.towers.as_ref().filter(|_| spec.multimodal) {
        all.extend(towers.tensors(hidden));
    } else if spec.multimodal {
        for name in
            ["vision_tower.patch_embedder.input_proj.weight", "embed_vision.embedding_projection.weight"]
        {
            all.push(TensorSpec { name: format!("model.{name}"), shape: vec![8, 8], part: Part::Tower });
        }
    }
    all
}

/// Returns the random bytes of a tensor.
pub(crate) fn content(spec: &Spec, tensor: &TensorSpec) -> Vec<u8> {
    stored(spec.dtype, values(spec, tensor))
}

/// Returns the deviation of values that are normally distributed around 0, or `None` for other
/// tensors. The scales keep the residual stream near 1 and the logits large enough to distinguish
/// tokens.
pub(crate) fn deviation(spec: &Spec, tensor: &TensorSpec) -> Option<f64> {
    Some(match tensor.part {
        Part::Embedding if spec.family == Family::Qwen3 => 1.0,
        Part::Embedding => 1.0 / (spec.hidden as f64).sqrt(),
        Part::PerLayerEmbedding => 1.0 / (spec.per_layer as f64).sqrt(),
        Part::Matrix => 1.5 / (tensor.shape[1] as f64).sqrt(),
        // Number of values in a kernel for each output.
        Part::Tower => {
            let inputs = tensor.shape[1..].iter().product::<u64>() as f64;
            spec.towers.as_ref().map_or(1.5, |towers| towers.deviation) / inputs.sqrt()
        }
        Part::Norm | Part::HeadNorm | Part::FinalNorm | Part::Scalar | Part::Least | Part::Most => {
            return None;
        }
    })
}

/// Returns the random values of a tensor.
pub(crate) fn values(spec: &Spec, tensor: &TensorSpec) -> impl Iterator<Item = f32> {
    let mut random = Random::new(spec.seed, &tensor.name);
    let one_plus = matches!(spec.family, Family::Gemma3 | Family::EmbeddingGemma);
    let offset = if one_plus { 1.0 } else { 0.0 };
    let qwen = spec.family == Family::Qwen3;
    let count = tensor.shape.iter().product::<u64>();
    let (part, gemma4) = (tensor.part, spec.family == Family::Gemma4);
    let deviation = deviation(spec, tensor).unwrap_or(0.0);
    (0..count).map(move |_| {
        let value = match part {
            Part::Embedding | Part::PerLayerEmbedding | Part::Matrix | Part::Tower => {
                deviation * random.normal()
            }
            Part::Norm => 1.0 + 0.25 * random.normal() - offset,
            // Large enough that attention is far from even. Without a further scale, less is
            // enough.
            Part::HeadNorm if gemma4 => 0.8 * (1.0 + 0.25 * random.normal()),
            Part::HeadNorm => 1.7 * (1.0 + 0.25 * random.normal()) - offset,
            // Random signs, because a tied head would otherwise repeat the last token for ever.
            Part::FinalNorm => {
                let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
                sign * (if qwen { 1.2 } else { 12.0 }) * (1.0 + 0.25 * random.normal()) - offset
            }
            Part::Scalar => 0.6 + 0.5 * random.uniform(),
            Part::Least => -CUT_OFF,
            Part::Most => CUT_OFF,
        };
        value as f32
    })
}
