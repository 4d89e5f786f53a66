//! Settings of SmolLM3, Granite, Phi 3 and EmbeddingGemma 2: the effect of each field, and the
//! fields that are refused by name.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use shardwright_graph::{ComponentKind, Graph, Op, Rope};
use shardwright_models::{Checkpoint, LayerType};
use shardwright_vocabulary::{ErrorKind, Result};
use tempfile::TempDir;

use crate::hostile::{collect_places, strange_values};

/// Opens a fixture with changed settings.
fn opened(fixture: &str, changes: Value) -> Result<Checkpoint> {
    let from = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(fixture);
    let folder = TempDir::new().unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            // The word `absent` marks a field to remove, since `null` is a value.
            Value::String(word) if word == "absent" => _ = config.as_object_mut().unwrap().remove(name),
            value => config[name] = value.clone(),
        }
    }
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::copy(from.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    Checkpoint::open(folder.path())
}

fn ropes(graph: &Graph) -> Vec<Rope> {
    let nodes = graph.components.iter().flat_map(|component| &component.nodes);
    nodes
        .filter_map(|node| match &node.op {
            Op::Rope(rope) => Some(rope.clone()),
            _ => None,
        })
        .collect()
}

/// Returns for each layer whether queries have rotary positions.
fn turning(changes: Value) -> Vec<bool> {
    let checkpoint = opened("smollm3", changes).unwrap();
    let graph = checkpoint.graph();
    let decoder = graph.components.iter().find(|component| component.kind == ComponentKind::Decoder).unwrap();
    let turns = |layer: u32| {
        let name = format!("layer.{layer}.q-rope");
        decoder.nodes.iter().any(|node| node.name == name)
    };
    (0..5).map(turns).collect()
}

#[test]
fn a_list_or_an_interval_names_the_layers_that_do_not_turn() {
    let published = [true, true, true, false, true];
    assert_eq!(turning(json!({})), published);
    // The list has priority, may be longer than the number of layers, and may contain booleans.
    assert_eq!(turning(json!({ "no_rope_layer_interval": 2 })), published);
    let longer = json!([0, true, false, 1, 1, 0, 0]);
    assert_eq!(turning(json!({ "no_rope_layers": longer })), [false, true, false, true, true]);
    let interval = |every: Value| json!({ "no_rope_layers": null, "no_rope_layer_interval": every });
    assert_eq!(turning(interval("absent".into())), published);
    assert_eq!(turning(interval(json!(2))), [true, false, true, false, true]);
    // Layers without rotation have the window, if it is switched on.
    let windows = json!({ "use_sliding_window": true, "sliding_window": 16, "layer_types": null });
    let checkpoint = opened("smollm3", windows).unwrap();
    let slides = checkpoint.facts().layers.iter().map(|layer| layer.attention == LayerType::Sliding);
    assert_eq!(slides.collect::<Vec<_>>(), [false, false, false, true, false]);
    // The library's default base.
    let base = ropes(opened("smollm3", json!({ "rope_theta": "absent" })).unwrap().graph())[0].theta;
    assert_eq!(base, 2e6);
}

#[test]
fn factors_of_granite_are_operations() {
    let count = |changes: Value| {
        let checkpoint = opened("granite", changes).unwrap();
        let components = &checkpoint.graph().components;
        let scales = |kind: ComponentKind| {
            let component = components.iter().find(|component| component.kind == kind).unwrap();
            let value = |op: &Op| if let Op::MulScalar { value } = op { Some(*value) } else { None };
            component.nodes.iter().filter_map(|node| value(&node.op)).collect::<Vec<f32>>()
        };
        let attention = components.iter().flat_map(|component| &component.nodes);
        let mut scale = attention.filter_map(|node| match &node.op {
            Op::Attention(attention) => Some(attention.scale),
            _ => None,
        });
        let scale = scale.next_back().unwrap();
        [
            scales(ComponentKind::Embed),
            scales(ComponentKind::Decoder),
            scales(ComponentKind::Head),
            vec![scale],
        ]
    };
    assert_eq!(count(json!({})), [vec![12.0], vec![0.22; 8], vec![0.125], vec![0.1875]]);
    // The library's defaults for missing fields.
    let missing = json!({
        "embedding_multiplier": "absent", "residual_multiplier": "absent", "logits_scaling": "absent",
        "attention_multiplier": "absent",
    });
    assert_eq!(count(missing), [vec![1.0], vec![], vec![], vec![1.0]]);
}

#[test]
fn granite4_turns_only_where_the_file_says_so() {
    assert_eq!(ropes(opened("granite4", json!({})).unwrap().graph()).len(), 6);
    let still = opened("granite4", json!({ "position_embedding_type": null })).unwrap();
    assert!(ropes(still.graph()).is_empty());
    let newer = json!({ "layer_types": vec!["full_attention"; 3] });
    assert_eq!(ropes(opened("granite4", newer).unwrap().graph()).len(), 6);
    let older = json!({ "layer_types": "absent", "layers_block_type": vec!["attention"; 3] });
    assert_eq!(ropes(opened("granite4", older).unwrap().graph()).len(), 6);
}

#[test]
fn a_head_of_phi_turns_in_part() {
    let first = |changes: Value| ropes(opened("phi4mini", changes).unwrap().graph())[0].clone();
    let published = first(json!({}));
    assert_eq!((published.head_dim, published.rotated_pairs), (16, 6));
    assert_eq!(published.divisors[6..], [1.0; 2]);
    // √(1 + ln 8 / ln 256), and a base for exponents over eight pairs instead of six.
    assert_eq!(published.magnitude, 1.375_f64.sqrt() as f32);
    assert_eq!(published.theta, 1e4_f64.powf(8.0 / 6.0) as f32);
    let plain = first(json!({ "rope_scaling": null }));
    assert_eq!(plain, Rope { divisors: Vec::new(), magnitude: 1.0, ..published.clone() });
    let newer = json!({ "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75 });
    let newer = json!({
        "rope_scaling": "absent", "rope_theta": "absent", "partial_rotary_factor": "absent",
        "rope_parameters": newer,
    });
    assert_eq!(first(newer), plain);
    let whole = first(json!({ "rope_scaling": null, "partial_rotary_factor": "absent" }));
    assert_eq!((whole.rotated_pairs, whole.theta), (8, 1e4));
    // Earlier files of the family use both of these names for `longrope`.
    let lists = |word: &str| {
        json!({ "rope_scaling": {
            "type": word, "short_factor": published.divisors[..6], "long_factor": vec![9.0; 6],
        } })
    };
    for word in ["longrope", "su", "yarn"] {
        assert_eq!(first(lists(word)), published, "{word}");
    }
}

#[test]
fn a_window_of_phi_counts_only_within_the_context() {
    let facts = |changes: Value| opened("phi4mini", changes).unwrap().facts().clone();
    let narrow = facts(json!({}));
    assert_eq!((narrow.context, narrow.window), (256, Some(24)));
    assert_eq!(facts(json!({ "sliding_window": 255 })).window, Some(255));
    for wide in [json!(256), json!(262_144), Value::Null] {
        assert_eq!(facts(json!({ "sliding_window": wide })).window, None);
    }
    let short = json!({ "original_max_position_embeddings": "absent", "max_position_embeddings": 8192 });
    // The library's default number of positions of training.
    assert_eq!(facts(short).context, 4096);
}

#[test]
fn embeddinggemma2_has_sizes_of_full_layers_and_no_table() {
    let layers = |changes: Value| {
        let changes = json!({ "text_config": changes });
        let facts = opened_text("embeddinggemma2", changes).unwrap().facts().clone();
        (facts.window, facts.layers.iter().map(|layer| (layer.head_dim, layer.kv_heads)).collect::<Vec<_>>())
    };
    let (sliding, full) = ((16, 2), (32, 1));
    let published = vec![sliding, sliding, full, sliding, sliding, full];
    // A radius of 6 positions, and the query itself.
    assert_eq!(layers(json!({})), (Some(7), published.clone()));
    let older = json!({
        "per_layer_config": null, "global_head_dim": 32, "num_global_key_value_heads": 1,
        "layer_types": null, "sliding_window_pattern": 3,
    });
    assert_eq!(layers(older), (Some(7), published));
    // Without modules, a vector is the mean of the projected rows.
    let bare = opened("embeddinggemma2", json!({})).unwrap();
    assert!(bare.notes()[0].contains("no modules.json"), "{:?}", bare.notes());
    // Placeholders of other media read the padding row.
    let redirect = &bare.graph().assets[0].redirect;
    assert!([19, 22, 23].iter().all(|id| redirect.contains(&(*id, 0))), "{redirect:?}");
}

/// Opens a fixture like [`opened`], but with changes within the settings of the text model.
fn opened_text(fixture: &str, changes: Value) -> Result<Checkpoint> {
    let from = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(fixture);
    let config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    let mut text = config["text_config"].clone();
    for (name, value) in changes["text_config"].as_object().unwrap() {
        text[name] = value.clone();
    }
    opened(fixture, json!({ "text_config": text }))
}

#[test]
fn what_embeddinggemma2_cannot_be_is_refused_by_name() {
    for (changes, words) in [
        (json!({ "num_kv_shared_layers": 2 }), "`text_config.num_kv_shared_layers` is 2"),
        (json!({ "use_double_wide_mlp": true }), "`text_config.use_double_wide_mlp` is true"),
        (json!({ "attention_bias": true }), "`text_config.attention_bias` is true"),
        (json!({ "rope_scaling": { "type": "linear" } }), "`text_config.rope_scaling` is an object"),
        (json!({ "hidden_activation": "silu" }), "`text_config.hidden_activation` is `silu`"),
        (json!({ "hidden_size_per_layer_input": 0 }), "`text_config.hidden_size_per_layer_input` is 0"),
        (json!({ "embedding_dim": 0 }), "`text_config.embedding_dim` is 0"),
        (json!({ "num_global_key_value_heads": 0 }), "`text_config.num_global_key_value_heads` is 0"),
        (json!({ "model_type": "gemma3_text" }), "inside of a `embedding_gemma2`"),
    ] {
        let error = opened_text("embeddinggemma2", json!({ "text_config": changes })).unwrap_err();
        assert!(error.to_string().contains(words), "{error} lacks {words}");
    }
}

#[test]
fn what_the_families_cannot_be_is_refused_by_name() {
    use ErrorKind::{Invalid, Unsupported};
    let longrope = |name: &str, value: Value| {
        let mut lists =
            json!({ "type": "longrope", "short_factor": vec![1.0; 6], "long_factor": vec![1.0; 6] });
        lists[name] = value;
        json!({ "rope_scaling": lists })
    };
    for (fixture, changes, kind, words) in [
        ("smollm3", json!({ "no_rope_layers": [1, 1] }), Invalid, "`no_rope_layers` has 2 entries for 5"),
        ("smollm3", json!({ "no_rope_layers": [1, 1, 1, 2, 1] }), Invalid, "`no_rope_layers` has 2, neither"),
        ("smollm3", json!({ "no_rope_layers": [1, 1, 1, "x", 1] }), Invalid, "has `x`, neither 0 nor 1"),
        (
            "smollm3",
            json!({ "no_rope_layers": null, "no_rope_layer_interval": 0 }),
            Invalid,
            "`no_rope_layer_interval` is 0",
        ),
        ("smollm3", json!({ "attention_bias": true }), Unsupported, "`attention_bias` is true"),
        ("granite", json!({ "residual_multiplier": -0.2 }), Invalid, "`residual_multiplier` is -0.2"),
        ("granite", json!({ "logits_scaling": 0 }), Invalid, "`logits_scaling` is 0"),
        ("granite", json!({ "embedding_multiplier": "x" }), Invalid, "`embedding_multiplier` is `x`"),
        ("granite", json!({ "attention_multiplier": [] }), Invalid, "`attention_multiplier` is a list of 0"),
        ("granite", json!({ "mlp_bias": true }), Unsupported, "`mlp_bias` is true"),
        ("granite4", json!({ "num_local_experts": 8 }), Unsupported, "`num_local_experts` is 8"),
        ("granite4", json!({ "num_local_experts": "absent" }), Unsupported, "`num_local_experts` is absent"),
        ("granite4", json!({ "layer_types": "absent" }), Unsupported, "`layer_types` is absent"),
        ("granite4", json!({ "layer_types": ["attention"] }), Invalid, "has 1 entries for 3 layers"),
        (
            "granite4",
            json!({ "layer_types": ["attention", "mamba", "attention"] }),
            Unsupported,
            "`layer_types[1]` is `mamba`",
        ),
        (
            "granite4",
            json!({ "position_embedding_type": "alibi" }),
            Unsupported,
            "`position_embedding_type` is `alibi`",
        ),
        ("phi4mini", json!({ "partial_rotary_factor": 0.7 }), Invalid, "makes 11 of 16 values"),
        ("phi4mini", json!({ "partial_rotary_factor": 0.0 }), Invalid, "makes 0 of 16 values"),
        ("phi4mini", json!({ "lm_head_bias": true }), Unsupported, "`lm_head_bias` is true"),
        ("phi4mini", longrope("type", json!("linear")), Unsupported, "`rope_scaling.type` is `linear`"),
        ("phi4mini", longrope("beta_fast", json!(1)), Unsupported, "`rope_scaling.beta_fast` is 1"),
        ("phi4mini", longrope("long_factor", json!([1.0])), Invalid, "is a list of 1, expected 6 positive"),
    ] {
        let error = opened(fixture, changes).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error} lacks {words}");
    }
}

/// Replaces every field of the settings by every strange value. The result is an error, or a graph
/// whose weights can be read, but never a panic.
#[test]
fn no_field_of_these_families_can_make_it_panic() {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    for name in
        ["smollm3", "granite", "granite4", "phi4mini", "embeddinggemma2", "quantised/gemma_int4_table"]
    {
        let (from, folder) = (fixtures.join(name), TempDir::new().unwrap());
        let weights = "model.safetensors";
        fs::copy(from.join(weights), folder.path().join(weights)).unwrap();
        let config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
        let mut places = Vec::new();
        collect_places(&config, String::new(), &mut places);
        let mut opened = 0;
        for (place, strange) in
            places.iter().flat_map(|place| strange_values().into_iter().map(move |value| (place, value)))
        {
            let mut changed = config.clone();
            *changed.pointer_mut(place).unwrap() = strange;
            let path = folder.path().join("config.json");
            // The file is created again each time, as in the sweep over the other families.
            let _ = fs::remove_file(&path);
            fs::write(&path, changed.to_string()).unwrap();
            let Ok(checkpoint) = Checkpoint::open(folder.path()) else { continue };
            opened += 1;
            for weight in &checkpoint.graph().weights {
                let mut row = vec![0.0; weight.row_width()];
                assert!(weight.decode_row(weight.rows() - 1, &mut row), "{name}: {place}: {}", weight.name);
            }
        }
        assert!(opened > places.len(), "{name}: {opened} of {} fields", places.len());
    }
}
