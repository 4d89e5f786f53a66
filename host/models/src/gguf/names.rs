//! llama.cpp's names of tensors, and what its converter does to their values.
//!
//! Source: its converter (`conversion/` of llama.cpp) and its table of names
//! (`gguf-py/gguf/tensor_mapping.py`).

use std::path::Path;

use crate::CheckpointError;
use crate::family::Family;

/// Whose names a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    Gemma3,
    Gemma4,
    Qwen3,
    GemmaEmbedding,
    /// A tower and its projector: nothing that a text model reads.
    Projector,
}

impl Architecture {
    /// The architecture of a file beside a configuration of `family`.
    pub fn of(path: &Path, found: &str, family: Family) -> Result<Self, CheckpointError> {
        let (expected, architecture) = match family {
            Family::Gemma3 => ("gemma3", Architecture::Gemma3),
            Family::Gemma4 => ("gemma4", Architecture::Gemma4),
            Family::Qwen3 => ("qwen3", Architecture::Qwen3),
            Family::EmbeddingGemma => ("gemma-embedding", Architecture::GemmaEmbedding),
        };
        match found {
            "clip" => Ok(Architecture::Projector),
            found if found == expected => Ok(architecture),
            found => Err(CheckpointError::GgufArchitecture {
                path: path.to_owned(),
                found: found.chars().take(80).collect(),
                expected,
            }),
        }
    }

    /// The checkpoint's name of a tensor; `None` for those that the text model does not have.
    pub fn checkpoint_name(self, name: &str) -> Option<String> {
        let prefix = match self {
            Architecture::Projector => return None,
            Architecture::GemmaEmbedding => "",
            _ => "model.",
        };
        if let Some(rest) = name.strip_prefix("blk.") {
            let (layer, part) = rest.split_once('.')?;
            // The number as the file writes it: another spelling of it is another name.
            layer.parse::<u32>().ok().filter(|number| number.to_string() == layer)?;
            return Some(format!("{prefix}layers.{layer}.{}", self.part(part)?));
        }
        let gemma4 = self == Architecture::Gemma4;
        Some(match name {
            "token_embd.weight" => format!("{prefix}embed_tokens.weight"),
            "output_norm.weight" => format!("{prefix}norm.weight"),
            "output.weight" if self != Architecture::GemmaEmbedding => "lm_head.weight".to_owned(),
            "dense_2.weight" if self == Architecture::GemmaEmbedding => "2_Dense/linear.weight".to_owned(),
            "dense_3.weight" if self == Architecture::GemmaEmbedding => "3_Dense/linear.weight".to_owned(),
            "per_layer_token_embd.weight" if gemma4 => format!("{prefix}embed_tokens_per_layer.weight"),
            "per_layer_model_proj.weight" if gemma4 => format!("{prefix}per_layer_model_projection.weight"),
            "per_layer_proj_norm.weight" if gemma4 => format!("{prefix}per_layer_projection_norm.weight"),
            _ => return None,
        })
    }

    /// The checkpoint's name of a part of a layer.
    fn part(self, part: &str) -> Option<&'static str> {
        let gemma4 = self == Architecture::Gemma4;
        Some(match part {
            "attn_norm.weight" => "input_layernorm.weight",
            "attn_q.weight" => "self_attn.q_proj.weight",
            "attn_q_norm.weight" => "self_attn.q_norm.weight",
            "attn_k.weight" => "self_attn.k_proj.weight",
            "attn_k_norm.weight" => "self_attn.k_norm.weight",
            "attn_v.weight" => "self_attn.v_proj.weight",
            "attn_output.weight" => "self_attn.o_proj.weight",
            "ffn_gate.weight" => "mlp.gate_proj.weight",
            "ffn_up.weight" => "mlp.up_proj.weight",
            "ffn_down.weight" => "mlp.down_proj.weight",
            // One norm before each block there, two around each block in the others.
            "ffn_norm.weight" if self == Architecture::Qwen3 => "post_attention_layernorm.weight",
            "ffn_norm.weight" => "pre_feedforward_layernorm.weight",
            "post_attention_norm.weight" if self != Architecture::Qwen3 => "post_attention_layernorm.weight",
            "post_ffw_norm.weight" if self != Architecture::Qwen3 => "post_feedforward_layernorm.weight",
            "inp_gate.weight" if gemma4 => "per_layer_input_gate.weight",
            "proj.weight" if gemma4 => "per_layer_projection.weight",
            "post_norm.weight" if gemma4 => "post_per_layer_input_norm.weight",
            "layer_output_scale.weight" if gemma4 => "layer_scalar",
            _ => return None,
        })
    }

    /// Whether the converter adds one to the tensor of that checkpoint name.
    pub fn adds_one(self, name: &str) -> bool {
        matches!(self, Architecture::Gemma3 | Architecture::GemmaEmbedding) && name.ends_with("norm.weight")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_has_one_spelling_and_a_part_one_family() {
        let name = |architecture: Architecture, name| architecture.checkpoint_name(name);
        let gate = "blk.12.ffn_gate.weight";
        assert_eq!(name(Architecture::Qwen3, gate).as_deref(), Some("model.layers.12.mlp.gate_proj.weight"));
        assert_eq!(
            name(Architecture::GemmaEmbedding, gate).as_deref(),
            Some("layers.12.mlp.gate_proj.weight")
        );
        for other in
            ["blk.012.ffn_gate.weight", "blk.+1.ffn_gate.weight", "blk.1.x", "blk.9", "rope_freqs.weight"]
        {
            assert_eq!(name(Architecture::Gemma4, other), None, "{other}");
        }
        assert_eq!(name(Architecture::Gemma3, "blk.0.inp_gate.weight"), None);
        assert_eq!(name(Architecture::Projector, "token_embd.weight"), None);
        assert!(Architecture::Gemma3.adds_one("model.layers.0.self_attn.q_norm.weight"));
        assert!(!Architecture::Gemma3.adds_one("model.layers.0.self_attn.q_proj.weight"));
        assert!(!Architecture::Gemma4.adds_one("model.norm.weight"));
    }
}
