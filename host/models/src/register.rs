//! Classifies every field of `config.json` as used, unable to change a result, or ignored and
//! reported.
//!
//! Fields count as used if a family reads them. Fields that cannot change a result are listed here.
//! The objects of towers count only if a tower is read: text does not need them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};
use shardwright_vocabulary::{Ignored, Pass};

/// The passes of towers, each with the field of `config.json` that describes it.
pub(crate) const TOWERS: [(Pass, &str); 2] = [(Pass::Picture, "vision_config"), (Pass::Clip, "audio_config")];

/// Fields that cannot change a result, with the reason: at any depth, or in one object if their
/// name has a dot.
const CANNOT_MATTER: [(&str, &[&str]); 10] = [
    (
        "records of the file's making",
        &[
            "transformers_version",
            "_name_or_path",
            "_commit_hash",
            "unsloth_version",
            "unsloth_fixed",
            "is_llama_config",
        ],
    ),
    ("settings of a library for browsers: its element types and its files", &["transformers.js_config"]),
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
        "numbers of soft tokens, which the processor's settings decide",
        &["mm_tokens_per_image", "vision_soft_tokens_per_image", "audio_soft_tokens_per_image"],
    ),
    (
        "settings of towers that the defining library does not read",
        &[
            "vision_config.architectures",
            "vision_config.default_output_length",
            "vision_config.global_head_dim",
            "audio_config.architectures",
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

/// Fields that cannot change a result if they are `false`, since no supported model has this
/// feature.
const CANNOT_MATTER_OFF: [&str; 1] = ["rope_interleaved"];

/// Names of the fields that were read so far.
#[derive(Debug, Default)]
pub(crate) struct Seen(RefCell<State>);

#[derive(Debug, Default)]
struct State {
    read: BTreeSet<String>,
    /// Objects whose fields are read one by one.
    entered: BTreeSet<String>,
    /// Fields that contradict others, which count instead, with the reason.
    overruled: BTreeMap<String, &'static str>,
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

    /// Records that the value of this name has no effect, since it contradicts others.
    pub fn overruled(&self, name: String, reason: &'static str) {
        self.0.borrow_mut().overruled.insert(name, reason);
    }

    /// Returns the fields of `file` that may matter and were not read, sorted by name.
    pub fn ignored(&self, file: &Path, value: &Value) -> Vec<Ignored> {
        let mut found = Vec::new();
        let state = self.0.borrow();
        if let Value::Object(fields) = value {
            collect(&state, "", fields, &mut found);
        }
        found.sort_unstable();
        let why = |name: &str| match state.overruled.get(name) {
            Some(&reason) => reason,
            None if is_of_tower(name) => "the tower does not use this field",
            None => "the model family does not use this field",
        };
        found.into_iter().map(|name| Ignored::field(file, name.as_str(), why(&name))).collect()
    }
}

/// Returns whether a field of this name, at any depth, cannot change a result.
pub(crate) fn cannot_matter(name: &str) -> bool {
    CANNOT_MATTER.iter().any(|(_, names)| names.contains(&name))
}

/// Checks whether a field belongs to a tower or to an object in it.
fn is_of_tower(name: &str) -> bool {
    TOWERS.iter().any(|(_, object)| name.split('.').next() == Some(*object))
}

fn collect(seen: &State, before: &str, fields: &Map<String, Value>, found: &mut Vec<String>) {
    for (name, value) in fields {
        let whole = format!("{before}{name}");
        match value {
            Value::Object(inner) if seen.entered.contains(&whole) => {
                collect(seen, &format!("{whole}."), inner, found);
            }
            Value::Null => {}
            _ if seen.overruled.contains_key(&whole) => found.push(whole),
            Value::Bool(false) if CANNOT_MATTER_OFF.contains(&name.as_str()) => {}
            _ if cannot_matter(name) || cannot_matter(&whole) || seen.read.contains(&whole) => {}
            _ if before.is_empty() && is_of_tower(name) => {}
            _ => found.push(whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unused_field_is_reported_with_the_reason() {
        let seen = Seen::default();
        seen.read("hidden_size".to_owned());
        let ignored = seen.ignored(Path::new("config.json"), &json!({ "hidden_size": 8, "wobble": 3 }));
        let shown: Vec<String> = ignored.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["config.json: `wobble` is ignored: the model family does not use this field"]);
    }

    /// Returns the names of the ignored fields.
    fn ignored(seen: &Seen, value: &Value) -> Vec<String> {
        let found = seen.ignored(Path::new("config.json"), value);
        found.into_iter().filter_map(|found| found.field).collect()
    }

    #[test]
    fn fields_of_published_files_without_effect_are_listed() {
        let smollm = json!({
            "is_llama_config": true, "rope_interleaved": false, "transformers.js_config": {"dtype": "q4"},
        });
        assert_eq!(ignored(&Seen::default(), &smollm), [""; 0]);
        assert_eq!(ignored(&Seen::default(), &json!({"rope_interleaved": true})), ["rope_interleaved"]);
    }

    #[test]
    fn fields_of_a_tower_count_once_it_is_read() {
        let tower = json!({"global_head_dim": 64, "default_output_length": 280, "wobble": 1});
        let value = json!({"vision_config": tower, "audio_config": 3, "global_head_dim": 512});
        let seen = Seen::default();
        assert_eq!(ignored(&seen, &value), ["global_head_dim"]);
        seen.entered("vision_config".to_owned());
        assert_eq!(ignored(&seen, &value), ["global_head_dim", "vision_config.wobble"]);
        let found = seen.ignored(Path::new("config.json"), &value);
        assert_eq!(found[1].reason, "the tower does not use this field");
    }

    #[test]
    fn a_field_that_contradicts_others_is_reported_with_the_reason() {
        let seen = Seen::default();
        seen.read("a".to_owned());
        seen.overruled("a".to_owned(), "`b` counts");
        let found = seen.ignored(Path::new("config.json"), &json!({"a": 1}));
        assert_eq!(found[0].to_string(), "config.json: `a` is ignored: `b` counts");
    }
}
