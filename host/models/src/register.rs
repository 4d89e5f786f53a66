//! Classifies every field of `config.json` as used, unable to change a result, or ignored and
//! reported.
//!
//! Fields count as used if a family reads them. Fields that cannot change a result are listed here.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};
use shardwright_vocabulary::Ignored;

/// Fields that cannot change a result, at any depth, with the reason.
const CANNOT_MATTER: [(&str, &[&str]); 8] = [
    (
        "records of the file's making",
        &["transformers_version", "_name_or_path", "_commit_hash", "unsloth_version", "unsloth_fixed"],
    ),
    ("element types are those of the stored tensors", &["dtype", "torch_dtype"]),
    (
        "settings of training",
        &[
            "attention_dropout",
            "embd_pdrop",
            "resid_pdrop",
            "hidden_dropout",
            "attn_pdrop",
            "initializer_range",
            "init_method",
            "rescale_every",
            "output_router_logits",
            "router_aux_loss_coef",
            "pretraining_tp",
        ],
    ),
    (
        "settings of Python's code and return values",
        &[
            "auto_map",
            "use_cache",
            "cache_implementation",
            "gradient_checkpointing",
            "is_decoder",
            "is_encoder_decoder",
            "add_cross_attention",
            "output_attentions",
            "output_hidden_states",
            "return_dict",
            "logits_to_keep",
            "chunk_size_feed_forward",
            "_attn_implementation",
            "_attn_implementation_autoset",
            "id2label",
            "label2id",
        ],
    ),
    (
        "token ids of texts, which are read with the tokenizer",
        &[
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "image_token_id",
            "boi_token_id",
            "eoi_token_id",
            "audio_token_id",
            "boa_token_id",
            "eoa_token_id",
            "eoa_token_index",
            "video_token_id",
            "image_token_index",
            "boi_token_index",
            "eoi_token_index",
        ],
    ),
    (
        "towers, which are read when a picture or a sound needs them",
        &[
            "vision_config",
            "audio_config",
            "mm_tokens_per_image",
            "vision_soft_tokens_per_image",
            "audio_soft_tokens_per_image",
        ],
    ),
    (
        "settings of experts and of recurrent layers, which models with such layers are refused for",
        &[
            "moe_intermediate_size",
            "top_k_experts",
            "num_experts_per_tok",
            "mamba_chunk_size",
            "mamba_conv_bias",
            "mamba_d_conv",
            "mamba_d_head",
            "mamba_d_state",
            "mamba_expand",
            "mamba_n_groups",
            "mamba_n_heads",
            "mamba_proj_bias",
        ],
    ),
    (
        "settings that the defining library does not read either",
        &["full_attn_mod", "interpolate_factor", "_sliding_window_pattern", "normalization_function"],
    ),
];

/// Names of the fields that were read so far.
#[derive(Debug, Default)]
pub(crate) struct Seen(RefCell<State>);

#[derive(Debug, Default)]
struct State {
    read: BTreeSet<String>,
    /// Objects whose fields are read one by one.
    entered: BTreeSet<String>,
}

impl Seen {
    /// Records that the value of this name was read.
    pub fn read(&self, name: String) {
        self.0.borrow_mut().read.insert(name);
    }

    /// Records that the object of this name was entered.
    pub fn entered(&self, name: String) {
        self.0.borrow_mut().entered.insert(name);
    }

    /// Returns the fields of `file` that may matter and were not read.
    pub fn ignored(&self, file: &Path, value: &Value) -> Vec<Ignored> {
        let mut found = Vec::new();
        if let Value::Object(fields) = value {
            collect(&self.0.borrow(), "", fields, &mut found);
        }
        found.into_iter().map(|name| Ignored::field(file, name, "no family of this name reads it")).collect()
    }
}

/// Returns whether a field of this name, at any depth, cannot change a result.
pub(crate) fn cannot_matter(name: &str) -> bool {
    CANNOT_MATTER.iter().any(|(_, names)| names.contains(&name))
}

fn collect(seen: &State, before: &str, fields: &Map<String, Value>, found: &mut Vec<String>) {
    for (name, value) in fields {
        let whole = format!("{before}{name}");
        match value {
            Value::Object(inner) if seen.entered.contains(&whole) => {
                collect(seen, &format!("{whole}."), inner, found);
            }
            Value::Null => {}
            _ if cannot_matter(name) || seen.read.contains(&whole) => {}
            _ => found.push(whole),
        }
    }
}
