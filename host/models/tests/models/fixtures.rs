//! The committed checkpoints: every one loads, and every cut of it becomes entry graphs.

use std::path::PathBuf;

use shardwright_graph::{ComponentKind, EntryGraph, EntryOptions, EntryPoint, Graph, Op, Role, layer_kinds};
use shardwright_models::{Checkpoint, Family};
use shardwright_vocabulary::EntryKind;

fn project() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn fixture(name: &str) -> Checkpoint {
    Checkpoint::open(project().join("tests/fixtures").join(name)).unwrap()
}

fn demo() -> Checkpoint {
    Checkpoint::open(project().join("demo-model")).unwrap()
}

fn point(kind: EntryKind, rows: u64) -> EntryPoint {
    let context = if kind == EntryKind::Encode { rows } else { 512 };
    EntryPoint { kind, rows, context, largest_rows: 32.max(rows) }
}

fn entry(
    graph: &Graph,
    kind: ComponentKind,
    layers: std::ops::Range<u32>,
    at: EntryPoint,
) -> Option<EntryGraph> {
    let entry = graph.entry(kind, layers, at, EntryOptions { taps: true }).unwrap();
    if let Some(entry) = &entry {
        let mut names: Vec<_> = entry.tensors.iter().map(|tensor| &tensor.name).collect();
        names.sort();
        for pair in names.windows(2) {
            assert_ne!(pair[0], pair[1], "two tensors of one name");
        }
    }
    entry
}

#[test]
fn every_committed_checkpoint_loads_whole() {
    let cases = [
        (fixture("gemma3_text"), Family::Gemma3, 7, 704, 14, 1, 0, 0),
        (fixture("gemma4_text"), Family::Gemma4, 10, 768, 12, 2, 16, 4),
        (fixture("gemma4_mm"), Family::Gemma4, 6, 768, 8, 2, 16, 2),
        (fixture("qwen3"), Family::Qwen3, 6, 640, 12, 1, 0, 0),
        (fixture("llama"), Family::Llama, 4, 384, 8, 1, 0, 0),
        (fixture("llama3"), Family::Llama, 4, 384, 8, 1, 0, 0),
        (fixture("tinyllama"), Family::Llama, 3, 448, 6, 1, 0, 0),
        (fixture("mistral"), Family::Mistral, 4, 384, 8, 1, 0, 0),
        (fixture("ministral"), Family::Mistral, 4, 384, 8, 1, 0, 0),
        (fixture("qwen2"), Family::Qwen2, 4, 384, 8, 1, 0, 0),
        (fixture("smollm3"), Family::SmolLM3, 5, 400, 10, 1, 0, 0),
        (fixture("granite"), Family::Granite, 4, 384, 8, 1, 0, 0),
        (fixture("granite4"), Family::Granite, 3, 384, 6, 1, 0, 0),
        (fixture("phi4mini"), Family::Phi3, 4, 384, 8, 1, 0, 0),
        (fixture("functiongemma"), Family::Gemma3, 7, 704, 14, 1, 0, 0),
        (fixture("embeddinggemma"), Family::EmbeddingGemma, 7, 0, 0, 1, 0, 0),
        (fixture("embeddinggemma2"), Family::EmbeddingGemma2, 6, 0, 0, 1, 16, 0),
        (demo(), Family::Gemma4, 8, 4096, 10, 2, 32, 3),
    ];
    for (checkpoint, family, layers, vocabulary, states, assets, per_layer, shared) in cases {
        let (graph, facts) = (checkpoint.graph(), checkpoint.facts());
        let name = &facts.name;
        assert_eq!(checkpoint.family(), family, "{name}");
        assert_eq!(graph.layers(), layers, "{name}");
        assert_eq!(graph.vocabulary, vocabulary, "{name}");
        assert_eq!(graph.states.len(), states, "{name}");
        assert_eq!(graph.assets.len(), assets, "{name}");
        assert_eq!(graph.per_layer_width, per_layer, "{name}");
        assert_eq!(facts.kv_shared_layers(), shared, "{name}");
        assert_eq!(graph.context, facts.context, "{name}");
        assert_eq!(facts.tied, graph.is_generative() && name != "tinyllama", "{name}");
        let kinds: Vec<_> = graph.components.iter().map(|component| component.kind).collect();
        let mut sorted = kinds.clone();
        sorted.sort();
        assert_eq!(kinds, sorted, "{name}: components in step order");
        let mut names: Vec<_> = graph.weights.iter().map(|weight| &weight.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), graph.weights.len(), "{name}: weight names are unique");
        let notes = usize::from(name == "phi4mini");
        assert_eq!(checkpoint.notes().len(), notes, "{name}: {:?}", checkpoint.notes());
    }
}

#[test]
fn unused_tensors_are_listed_and_nothing_else() {
    for name in ["gemma3_text", "gemma4_text", "qwen3", "embeddinggemma", "embeddinggemma2"] {
        assert_eq!(fixture(name).unused_tensors(), [], "{name}");
    }
    let checkpoint = fixture("gemma4_mm");
    let unused = checkpoint.unused_tensors();
    let stale: Vec<_> = unused
        .iter()
        .filter(|tensor| tensor.name.contains("language_model"))
        .map(|t| t.name.as_str())
        .collect();
    // Unused keys and values of the two layers that share a donor's.
    let expected: Vec<String> = [4, 5]
        .iter()
        .flat_map(|layer| {
            ["k_norm", "k_proj", "v_proj"]
                .map(|what| format!("model.language_model.layers.{layer}.self_attn.{what}.weight"))
        })
        .collect();
    assert_eq!(stale, expected);
    for tower in ["model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio."] {
        assert!(unused.iter().any(|tensor| tensor.name.starts_with(tower)), "{tower}");
    }
    assert!(
        unused
            .iter()
            .all(|tensor| stale.contains(&tensor.name.as_str()) || !tensor.name.contains("language"))
    );
}

#[test]
fn placeholders_read_the_padding_row_of_both_tables() {
    let checkpoint = fixture("gemma4_mm");
    for asset in &checkpoint.graph().assets {
        for id in [19, 22, 23] {
            assert_eq!(asset.row_of(id), 0, "{}", asset.name);
        }
        assert_eq!(asset.row_of(18), 18);
    }
    assert!(fixture("gemma4_text").graph().assets.iter().all(|asset| asset.redirect.is_empty()));
}

#[test]
fn every_cut_into_two_instantiates_at_every_entry_point() {
    let names = [
        "gemma3_text",
        "gemma4_text",
        "gemma4_mm",
        "llama3",
        "tinyllama",
        "ministral",
        "qwen2",
        "qwen3",
        "smollm3",
        "granite",
        "granite4",
        "phi4mini",
    ];
    for checkpoint in names.map(fixture).into_iter().chain([demo()]) {
        let graph = checkpoint.graph();
        let layers = graph.layers();
        for cut in 1..layers {
            for (kind, rows) in [(EntryKind::Prefill, 32), (EntryKind::Decode, 1), (EntryKind::Decode, 5)] {
                let first = entry(graph, ComponentKind::Decoder, 0..cut, point(kind, rows));
                let second = entry(graph, ComponentKind::Decoder, cut..layers, point(kind, rows));
                if kind == EntryKind::Decode {
                    assert!(first.unwrap().output(&Role::Hidden).is_some());
                    assert!(second.unwrap().input(&Role::Hidden).is_some());
                } else {
                    // A shard that has only sharing layers has no prefill, and the shard before it
                    // returns no rows.
                    let later = graph.writes_states(cut..layers);
                    assert_eq!(second.is_some(), later);
                    assert_eq!(first.unwrap().output(&Role::Hidden).is_some(), later);
                }
            }
        }
        for kind in [ComponentKind::Embed, ComponentKind::PerLayerInput, ComponentKind::Head] {
            if graph.has(kind) {
                assert!(entry(graph, kind, 0..0, point(EntryKind::Decode, 1)).is_some());
                let prefill = entry(graph, kind, 0..0, point(EntryKind::Prefill, 32));
                assert_eq!(prefill.is_some(), kind != ComponentKind::Head);
            }
        }
    }
    for (name, width, taps) in [
        ("embeddinggemma", 64, &["final-norm", "pooled", "dense.1", "dense.2"][..]),
        ("embeddinggemma2", 40, &["final-norm", "pooled", "projected"]),
    ] {
        let checkpoint = fixture(name);
        let graph = checkpoint.graph();
        let encode = |kind, layers| entry(graph, kind, layers, point(EntryKind::Encode, 40));
        for cut in 1..graph.layers() {
            assert!(encode(ComponentKind::Decoder, 0..cut).is_some());
            assert!(encode(ComponentKind::Decoder, cut..graph.layers()).is_some());
        }
        let pooling = encode(ComponentKind::Pooling, 0..0).unwrap();
        let vector = pooling.output(&Role::Embedding).unwrap();
        assert_eq!(pooling.tensor(vector).shape, [width]);
        for tap in taps {
            assert!(pooling.output(&Role::Tap { name: (*tap).to_owned() }).is_some(), "{tap}");
        }
    }
}

/// Counts the multiply-adds of the linear layers, per row.
fn linear_work(entry: &EntryGraph) -> u64 {
    let nodes = entry.nodes.iter().filter(|node| node.op == Op::Linear);
    let work: u64 = nodes
        .map(|node| {
            let x = entry.tensor(node.inputs[0]).elements();
            x * entry.tensor(node.inputs[1]).shape[0]
        })
        .sum();
    work / entry.point.rows
}

#[test]
fn prefill_computes_what_states_depend_on_and_nothing_else() {
    let checkpoint = fixture("gemma4_text");
    let graph = checkpoint.graph();
    // Layers S S F S S F | S S S F with hidden 64, per-layer width 16, one key/value head,
    // feed-forward 96 (192 in the sharing layers), 4 heads of 16 (sliding) or 32 (full).
    let feed_forward = 3 * 64 * 96;
    let injection = 2 * 64 * 16;
    let keys = |d: u64| 2 * 64 * d;
    let queries = |d: u64| 2 * 64 * 4 * d;
    let own = |d: u64| queries(d) + keys(d) + feed_forward + injection;
    // Layer 5 is the last one that writes. Only its keys and values are needed.
    let by_hand = 4 * own(16) + own(32) + keys(32);
    let prefill = entry(graph, ComponentKind::Decoder, 0..10, point(EntryKind::Prefill, 32)).unwrap();
    assert_eq!(linear_work(&prefill), by_hand);
    assert_eq!(prefill.outputs.len(), 12, "twelve states and no rows");

    let shared = |d: u64| queries(d) + 2 * feed_forward + injection;
    let all = by_hand + (own(32) - keys(32)) + 3 * shared(16) + shared(32);
    let decode = entry(graph, ComponentKind::Decoder, 0..10, point(EntryKind::Decode, 4)).unwrap();
    assert_eq!(linear_work(&decode), all);
}

#[test]
fn layers_of_equal_structure_are_one_kind() {
    let cases = [
        // Own sliding, own full, last writing, shared sliding, shared full.
        (fixture("gemma4_text"), vec![0, 0, 1, 0, 0, 2, 3, 3, 3, 4]),
        // No state of a later layer depends on the last layer's output.
        (fixture("gemma3_text"), vec![0, 0, 0, 0, 0, 1, 2]),
        (fixture("qwen3"), vec![0, 0, 0, 0, 0, 1]),
        (fixture("llama3"), vec![0, 0, 0, 1]),
        (fixture("ministral"), vec![0, 1, 0, 2]),
        (fixture("qwen2"), vec![0, 0, 1, 2]),
        (fixture("smollm3"), vec![0, 0, 0, 1, 2]),
        (fixture("granite"), vec![0, 0, 0, 1]),
        (fixture("phi4mini"), vec![0, 0, 0, 1]),
        (fixture("embeddinggemma"), vec![0, 0, 0, 0, 0, 1, 0]),
        (fixture("embeddinggemma2"), vec![0, 0, 1, 0, 0, 1]),
    ];
    for (checkpoint, expected) in cases {
        let kinds = layer_kinds(checkpoint.graph()).unwrap();
        assert_eq!(kinds.of_layer, expected, "{}", checkpoint.facts().name);
    }
}

#[test]
fn a_fingerprint_tells_checkpoints_apart() {
    let prints: Vec<_> = ["gemma3_text", "gemma4_text", "gemma4_mm", "qwen3", "embeddinggemma"]
        .into_iter()
        .map(|name| fixture(name).weights_fingerprint())
        .collect();
    assert_eq!(prints[0], fixture("gemma3_text").weights_fingerprint());
    for (index, print) in prints.iter().enumerate() {
        assert!(!prints[..index].contains(print));
    }
}
