use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{Family, Part, Spec, Spelling, TensorSpec, Towers};

fn set(map: &mut Map<String, Value>, fields: Value) {
    let Value::Object(fields) = fields else { panic!("fields are an object") };
    map.extend(fields);
}

pub(crate) fn config(spec: &Spec) -> Value {
    let older = spec.spelling == Spelling::Older;
    let dtype = match spec.dtype {
        "F32" => "float32",
        "F16" => "float16",
        _ => "bfloat16",
    };
    let model_type = match spec.family {
        Family::Gemma3 | Family::EmbeddingGemma => "gemma3_text",
        Family::Gemma4 => "gemma4_text",
        Family::Qwen3 => "qwen3",
    };
    let mut map = Map::new();
    set(
        &mut map,
        json!({
            "model_type": model_type,
            "attention_bias": false,
            "attention_dropout": 0.0,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "pad_token_id": 0,
            "head_dim": spec.head_dim,
            "hidden_size": spec.hidden,
            "initializer_range": 0.02,
            "intermediate_size": spec.intermediate,
            "max_position_embeddings": spec.context,
            "num_attention_heads": spec.heads,
            "num_hidden_layers": spec.depth(),
            "num_key_value_heads": spec.kv_heads,
            "rms_norm_eps": 1e-6,
            "vocab_size": spec.vocabulary,
            "tie_word_embeddings": spec.tied,
            (if older { "torch_dtype" } else { "dtype" }): dtype,
        }),
    );
    match spec.family {
        Family::Gemma3 | Family::EmbeddingGemma => gemma3(spec, older, &mut map),
        Family::Gemma4 => gemma4(spec, older, &mut map),
        Family::Qwen3 => qwen3(spec, older, &mut map),
    }
    if !spec.multimodal {
        let architecture = match spec.family {
            Family::Gemma3 => "Gemma3ForCausalLM",
            Family::EmbeddingGemma => "Gemma3TextModel",
            Family::Gemma4 => "Gemma4ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
        };
        map.insert("architectures".to_owned(), json!([architecture]));
        return Value::Object(map);
    }
    let (top, architecture) = match spec.family {
        Family::Gemma3 => ("gemma3", "Gemma3ForConditionalGeneration"),
        Family::Gemma4 => ("gemma4", "Gemma4ForConditionalGeneration"),
        other => panic!("{other:?} has no multimodal form"),
    };
    let mut whole = json!({
        "architectures": [architecture],
        "model_type": top,
        "image_token_id": 19,
        "audio_token_id": 22,
        "video_token_id": 23,
        "tie_word_embeddings": spec.tied,
        "text_config": map,
        "vision_config": {"model_type": format!("{top}_vision")},
    });
    if let Some([vision, audio]) = spec.towers.as_ref().map(Towers::configs) {
        whole["vision_config"] = vision;
        whole["audio_config"] = audio;
    }
    whole
}

/// Adds `layer_types`, or the equivalent pattern number.
fn pattern(spec: &Spec, older: bool, map: &mut Map<String, Value>) {
    let every = spec.layers.find('F').map_or(spec.depth() + 1, |first| first + 1);
    let regular = (0..spec.depth()).all(|layer| spec.is_full(layer) == (layer + 1).is_multiple_of(every));
    if older && regular {
        map.insert("sliding_window_pattern".to_owned(), json!(every));
        return;
    }
    let word = |layer| if spec.is_full(layer) { "full_attention" } else { "sliding_attention" };
    map.insert("layer_types".to_owned(), (0..spec.depth()).map(word).collect());
}

fn gemma3(spec: &Spec, older: bool, map: &mut Map<String, Value>) {
    set(
        map,
        json!({
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": spec.query_scalar,
            "sliding_window": spec.window,
            "attn_logit_softcapping": null,
            "final_logit_softcapping": spec.softcap,
            "use_bidirectional_attention": spec.family == Family::EmbeddingGemma,
        }),
    );
    pattern(spec, older, map);
    if older {
        set(
            map,
            json!({
                "rope_theta": spec.theta_full,
                "rope_local_base_freq": spec.theta_sliding,
                "rope_scaling": null,
            }),
        );
    } else {
        set(
            map,
            json!({"rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": spec.theta_full},
                "sliding_attention": {"rope_type": "default", "rope_theta": spec.theta_sliding},
            }}),
        );
    }
}

fn gemma4(spec: &Spec, older: bool, map: &mut Map<String, Value>) {
    set(
        map,
        json!({
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": spec.window,
            "final_logit_softcapping": spec.softcap,
            "hidden_size_per_layer_input": spec.per_layer,
            "vocab_size_per_layer_input": spec.vocabulary,
            "num_kv_shared_layers": spec.kv_shared,
            "use_double_wide_mlp": spec.double_wide,
            "attention_k_eq_v": false,
            "enable_moe_block": false,
            "use_bidirectional_attention": null,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": spec.theta_full,
                    "partial_rotary_factor": spec.partial,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": spec.theta_sliding},
            },
        }),
    );
    pattern(spec, false, map);
    if older {
        set(map, json!({"global_head_dim": spec.global_head_dim, "num_global_key_value_heads": null}));
    } else {
        let full = (0..spec.depth()).filter(|&layer| spec.is_full(layer));
        let sizes: Map<_, _> =
            full.map(|layer| (layer.to_string(), json!({"head_dim": spec.global_head_dim}))).collect();
        map.insert("per_layer_config".to_owned(), Value::Object(sizes));
    }
}

fn qwen3(spec: &Spec, older: bool, map: &mut Map<String, Value>) {
    let slides = spec.layers.contains('S');
    set(
        map,
        json!({
            "hidden_act": "silu",
            "use_sliding_window": slides,
            "sliding_window": if slides { json!(spec.window) } else { Value::Null },
        }),
    );
    if slides || !older {
        pattern(spec, false, map);
    }
    if older {
        set(map, json!({"rope_theta": spec.theta_full, "rope_scaling": null}));
    } else {
        set(map, json!({"rope_parameters": {"rope_type": "default", "rope_theta": spec.theta_full}}));
    }
}

/// Writes `modules.json` and the folders it names.
pub(crate) fn write_modules(spec: &Spec, directory: &Path) -> io::Result<()> {
    let json =
        |name: &str, value: &Value| std::fs::write(directory.join(name), serde_json::to_vec_pretty(value)?);
    let mut modules = vec![("Transformer", String::new()), ("Pooling", "1_Pooling".to_owned())];
    std::fs::create_dir_all(directory.join("1_Pooling"))?;
    json(
        "1_Pooling/config.json",
        &json!({
            "word_embedding_dimension": spec.hidden,
            "pooling_mode_cls_token": false,
            "pooling_mode_mean_tokens": true,
            "pooling_mode_max_tokens": false,
            "include_prompt": true,
        }),
    )?;
    let mut width = spec.hidden;
    for (index, &outputs) in spec.dense.iter().enumerate() {
        let folder = format!("{}_Dense", index + 2);
        std::fs::create_dir_all(directory.join(&folder))?;
        json(
            &format!("{folder}/config.json"),
            &json!({
                "in_features": width,
                "out_features": outputs,
                "bias": false,
                "activation_function": "torch.nn.modules.linear.Identity",
            }),
        )?;
        let shape = vec![outputs, width];
        let matrix = TensorSpec { name: "linear.weight".to_owned(), shape, part: Part::Matrix };
        spec.write_file(&directory.join(&folder).join("model.safetensors"), &[matrix])?;
        modules.push(("Dense", folder));
        width = outputs;
    }
    modules.push(("Normalize", format!("{}_Normalize", spec.dense.len() + 2)));
    let list: Vec<_> = modules
        .iter()
        .enumerate()
        .map(|(index, (kind, path))| {
            let kind = format!("sentence_transformers.models.{kind}");
            json!({"idx": index, "name": index.to_string(), "path": path, "type": kind})
        })
        .collect();
    json("modules.json", &Value::Array(list))
}
