//! llama.cpp's names of architectures and tensors, and its converter's changes to values.
//!
//! Source: its converter (`conversion/` of llama.cpp) and its table of names
//! (`gguf-py/gguf/tensor_mapping.py`).

use crate::family::Family;

/// Supported architectures of text models, each with its family.
pub(super) const ARCHITECTURES: [(&str, Family); 9] = [
    ("gemma3", Family::Gemma3),
    ("gemma4", Family::Gemma4),
    ("gemma-embedding", Family::EmbeddingGemma),
    ("granite", Family::Granite),
    ("llama", Family::Llama),
    ("phi3", Family::Phi3),
    ("qwen2", Family::Qwen2),
    ("qwen3", Family::Qwen3),
    ("smollm3", Family::SmolLM3),
];

/// Architecture of files with a tower and its projector, which text models do not use.
pub(super) const PROJECTOR: &str = "clip";

/// Returns the architecture of files with weights of a family.
pub(super) fn architecture_of(family: Family) -> &'static str {
    // The converter writes Mistral's models as Llama's.
    let family = if family == Family::Mistral { Family::Llama } else { family };
    ARCHITECTURES.iter().find(|(_, known)| *known == family).map_or("", |(name, _)| name)
}

/// Returns the checkpoint's name of a tensor. `None` for tensors that the family's text model does
/// not have.
pub(super) fn checkpoint_name(family: Family, name: &str) -> Option<String> {
    let prefix = if family == Family::EmbeddingGemma { "" } else { "model." };
    if let Some(rest) = name.strip_prefix("blk.") {
        let (layer, part) = rest.split_once('.')?;
        // Only the canonical spelling of the number is accepted: any other is a different name.
        layer.parse::<u32>().ok().filter(|number| number.to_string() == layer)?;
        return Some(format!("{prefix}layers.{layer}.{}", part_name(family, part)?));
    }
    let (gemma4, embedding) = (family == Family::Gemma4, family == Family::EmbeddingGemma);
    Some(match name {
        "token_embd.weight" => format!("{prefix}embed_tokens.weight"),
        "output_norm.weight" => format!("{prefix}norm.weight"),
        "output.weight" if !embedding => "lm_head.weight".to_owned(),
        "dense_2.weight" if embedding => "2_Dense/linear.weight".to_owned(),
        "dense_3.weight" if embedding => "3_Dense/linear.weight".to_owned(),
        "per_layer_token_embd.weight" if gemma4 => format!("{prefix}embed_tokens_per_layer.weight"),
        "per_layer_model_proj.weight" if gemma4 => format!("{prefix}per_layer_model_projection.weight"),
        "per_layer_proj_norm.weight" if gemma4 => format!("{prefix}per_layer_projection_norm.weight"),
        _ => return None,
    })
}

/// Returns the checkpoint's name of a part of a layer.
fn part_name(family: Family, part: &str) -> Option<&'static str> {
    let (gemma4, phi) = (family == Family::Gemma4, family == Family::Phi3);
    // These families have two norms around each block, the others have one before it.
    let sandwich = matches!(family, Family::Gemma3 | Family::Gemma4 | Family::EmbeddingGemma);
    Some(match part {
        "attn_norm.weight" => "input_layernorm.weight",
        "attn_q.weight" => "self_attn.q_proj.weight",
        "attn_q.bias" => "self_attn.q_proj.bias",
        "attn_q_norm.weight" => "self_attn.q_norm.weight",
        "attn_k.weight" => "self_attn.k_proj.weight",
        "attn_k.bias" => "self_attn.k_proj.bias",
        "attn_k_norm.weight" => "self_attn.k_norm.weight",
        "attn_v.weight" => "self_attn.v_proj.weight",
        "attn_v.bias" => "self_attn.v_proj.bias",
        "attn_qkv.weight" if phi => "self_attn.qkv_proj.weight",
        "attn_output.weight" => "self_attn.o_proj.weight",
        "ffn_gate.weight" => "mlp.gate_proj.weight",
        "ffn_up.weight" if phi => "mlp.gate_up_proj.weight",
        "ffn_up.weight" => "mlp.up_proj.weight",
        "ffn_down.weight" => "mlp.down_proj.weight",
        "ffn_norm.weight" if sandwich => "pre_feedforward_layernorm.weight",
        "ffn_norm.weight" => "post_attention_layernorm.weight",
        "post_attention_norm.weight" if sandwich => "post_attention_layernorm.weight",
        "post_ffw_norm.weight" if sandwich => "post_feedforward_layernorm.weight",
        "inp_gate.weight" if gemma4 => "per_layer_input_gate.weight",
        "proj.weight" if gemma4 => "per_layer_projection.weight",
        "post_norm.weight" if gemma4 => "post_per_layer_input_norm.weight",
        "layer_output_scale.weight" if gemma4 => "layer_scalar",
        _ => return None,
    })
}

/// Checks whether the converter adds one to the tensor of that checkpoint name.
pub(super) fn adds_one(family: Family, name: &str) -> bool {
    matches!(family, Family::Gemma3 | Family::EmbeddingGemma) && name.ends_with("norm.weight")
}

/// Checks whether the converter reorders the rows within each head, so that the two rows of a
/// rotated pair are adjacent.
pub(super) fn pairs_heads(family: Family) -> bool {
    matches!(family, Family::Llama | Family::Mistral | Family::SmolLM3 | Family::Granite)
}

/// Checks whether the tensor of that checkpoint name has rotated rows.
pub(super) fn pairs_rows(name: &str) -> bool {
    let turned = ["q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias"];
    turned.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_has_one_spelling_and_a_part_one_family() {
        let gate = "blk.12.ffn_gate.weight";
        let name = |family| checkpoint_name(family, gate);
        assert_eq!(name(Family::Qwen3).as_deref(), Some("model.layers.12.mlp.gate_proj.weight"));
        assert_eq!(name(Family::EmbeddingGemma).as_deref(), Some("layers.12.mlp.gate_proj.weight"));
        for other in
            ["blk.012.ffn_gate.weight", "blk.+1.ffn_gate.weight", "blk.1.x", "blk.9", "rope_freqs.weight"]
        {
            assert_eq!(checkpoint_name(Family::Gemma4, other), None, "{other}");
        }
        assert_eq!(checkpoint_name(Family::Gemma3, "blk.0.inp_gate.weight"), None);
        assert!(adds_one(Family::Gemma3, "model.layers.0.self_attn.q_norm.weight"));
        assert!(!adds_one(Family::Gemma3, "model.layers.0.self_attn.q_proj.weight"));
        assert!(!adds_one(Family::Gemma4, "model.norm.weight"));
        assert!(pairs_heads(Family::Mistral) && pairs_heads(Family::Granite) && pairs_heads(Family::SmolLM3));
        assert!(!pairs_heads(Family::Qwen2) && !pairs_heads(Family::Phi3));
        let up = |family| checkpoint_name(family, "blk.0.ffn_up.weight");
        assert_eq!(up(Family::Phi3).as_deref(), Some("model.layers.0.mlp.gate_up_proj.weight"));
        assert_eq!(up(Family::Granite).as_deref(), Some("model.layers.0.mlp.up_proj.weight"));
        assert_eq!(checkpoint_name(Family::Llama, "blk.0.attn_qkv.weight"), None);
        assert!(pairs_rows("model.layers.0.self_attn.k_proj.weight"));
        assert!(!pairs_rows("model.layers.0.self_attn.v_proj.weight"));
        assert_eq!((architecture_of(Family::Mistral), architecture_of(Family::Gemma3)), ("llama", "gemma3"));
    }
}
