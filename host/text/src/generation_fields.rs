//! Classifies every field of `generation_config.json` as used, unable to change a reply, or
//! reported.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};
use shardwright_vocabulary::Ignored;

/// Fields that this module reads.
const USED: [&str; 19] = [
    "eos_token_id",
    "bos_token_id",
    "pad_token_id",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "no_repeat_ngram_size",
    "min_new_tokens",
    "min_length",
    "forced_bos_token_id",
    "stop_strings",
    "max_new_tokens",
    "max_length",
];

/// Fields that cannot change a reply to one conversation, with the reason.
const CANNOT_MATTER: [(&str, &[&str]); 6] = [
    ("records of the file's making", &["_from_model_config", "transformers_version", "_commit_hash"]),
    (
        "the KV cache and compiled kernels change the time of a reply, not its tokens",
        &[
            "use_cache",
            "cache_implementation",
            "cache_config",
            "max_cache_len",
            "low_memory",
            "prefill_chunk_size",
            "compile_config",
            "disable_compile",
            "continuous_batching_config",
            "return_legacy_cache",
        ],
    ),
    (
        "drafts change the time of a reply, not its tokens",
        &[
            "use_mtp",
            "is_assistant",
            "num_assistant_tokens",
            "num_assistant_tokens_schedule",
            "assistant_confidence_threshold",
            "assistant_early_exit",
            "assistant_lookbehind",
            "assistant_ensemble_weight",
            "target_lookbehind",
            "prompt_lookup_num_tokens",
            "max_matching_ngram_size",
            "speculation_type",
        ],
    ),
    (
        "settings of Python's return values",
        &[
            "output_attentions",
            "output_hidden_states",
            "output_scores",
            "output_logits",
            "return_dict_in_generate",
        ],
    ),
    ("settings of encoders, which no supported model has", &["decoder_start_token_id"]),
    (
        "settings of beam search and of normalisation, which change no choice of one sequence",
        &["early_stopping", "length_penalty", "renormalize_logits", "remove_invalid_values"],
    ),
];

/// Returns the value at which an unsupported field has no effect, and the reason why it is
/// unsupported.
fn unsupported(name: &str) -> Option<(Value, &'static str)> {
    Some(match name {
        "num_beams" | "num_beam_groups" => (json!(1), "beam search is not supported"),
        "diversity_penalty" => (json!(0), "beam search is not supported"),
        "constraints" | "force_words_ids" => (json!([]), "beam search is not supported"),
        "num_return_sequences" => (json!(1), "one reply is made at a time"),
        "typical_p" | "top_h" => (json!(1), "this kind of sampling is not supported"),
        "epsilon_cutoff" | "eta_cutoff" => (json!(0), "this kind of sampling is not supported"),
        "encoder_repetition_penalty" => (json!(1), "favouring tokens of the prompt is not supported"),
        "encoder_no_repeat_ngram_size" => (json!(0), "avoiding sequences of the prompt is not supported"),
        "penalty_alpha" => (json!(0), "contrastive search is not supported"),
        "dola_layers" => (json!([]), "contrasting layers is not supported"),
        "guidance_scale" => (json!(1), "guidance by a second prompt is not supported"),
        "sequence_bias" => (json!([]), "biases of sequences are not supported"),
        "exponential_decay_length_penalty" => (json!([]), "penalties for length are not supported"),
        "forced_eos_token_id" => (json!([]), "a reply that reaches its limit ends without a stop token"),
        "watermarking_config" => (json!({}), "watermarks are not supported"),
        "token_healing" => (json!(false), "token healing is not supported"),
        "max_time" => (json!({}), "set a deadline or a limit of tokens instead"),
        "custom_generate" | "trust_remote_code" => (json!(false), "code of checkpoints is not run"),
        _ => return None,
    })
}

/// Checks whether a field of this name cannot change a reply.
pub(crate) fn cannot_matter(name: &str) -> bool {
    CANNOT_MATTER.iter().any(|(_, names)| names.contains(&name))
}

/// Returns unsupported fields that would change replies, and unknown fields, sorted by name.
pub(crate) fn ignored(path: &Path, fields: &Map<String, Value>) -> Vec<Ignored> {
    let known = |name: &str| USED.contains(&name) || cannot_matter(name);
    let reason = |name: &str, value: &Value| match unsupported(name) {
        _ if value.is_null() || known(name) => None,
        Some((off, _)) if is_off(value, &off) => None,
        Some((_, reason)) => Some(reason),
        None => Some("the field is not known"),
    };
    let found = fields.iter().filter_map(|(name, value)| Some((name, reason(name, value)?)));
    let found: BTreeMap<&String, &str> = found.collect();
    found.into_iter().map(|(name, reason)| Ignored::field(path, name, reason)).collect()
}

/// Checks whether a value equals `off`, in any spelling of a number, or is empty like `off`.
fn is_off(value: &Value, off: &Value) -> bool {
    let empty = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    value == off || (value.is_number() && value.as_f64() == off.as_f64()) || (empty(value) && empty(off))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(fields: &Value) -> Vec<String> {
        ignored(Path::new("m/generation_config.json"), fields.as_object().unwrap())
            .into_iter()
            .filter_map(|ignored| ignored.field)
            .collect()
    }

    #[test]
    fn fields_without_effect_are_reported_unless_they_are_off() {
        let off = json!({
            "num_beams": 1, "typical_p": 1.0, "guidance_scale": null, "sequence_bias": {}, "token_healing": false,
            "epsilon_cutoff": 0.0, "use_cache": true, "top_k": 3, "constraints": [],
            "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0,
        });
        assert_eq!(names(&off), [""; 0]);
        let on = json!({
            "num_beams": 4, "typical_p": 0.9, "guidance_scale": 1.5, "sequence_bias": [[[1], 2.0]],
            "token_healing": true, "max_time": 3.0, "forced_eos_token_id": 2, "mirostat": 2,
            "encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 2,
        });
        let mut expected: Vec<&str> = on.as_object().unwrap().keys().map(String::as_str).collect();
        expected.sort_unstable();
        assert_eq!(names(&on), expected);
        let found = ignored(Path::new("m/generation_config.json"), on.as_object().unwrap());
        let text = found[5].to_string();
        assert_eq!(text, "m/generation_config.json: `mirostat` is ignored: the field is not known");
    }
}
