//! Checkpoints that differ from the committed ones in shapes, spellings, element types, files,
//! names, sizes and extra tensors.

use shardwright_graph::{
    ComponentKind, EntryGraph, EntryOptions, EntryPoint, Graph, Op, StateKind, layer_kinds,
};
use shardwright_models::{Checkpoint, Family, LayerType};
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_test_checkpoints::{Family as Made, Random, Spec, Spelling};
use shardwright_vocabulary::{DType, EntryKind};
use tempfile::TempDir;

/// Writes and opens a checkpoint. The directory is deleted on return, but the mapped files stay
/// valid.
fn open(spec: &Spec) -> Checkpoint {
    let directory = TempDir::new().unwrap();
    spec.write(directory.path()).unwrap();
    Checkpoint::open(directory.path()).unwrap()
}

/// Computes the logits of the last of some rows, or a sentence vector.
pub fn result(checkpoint: &Checkpoint) -> Vec<f32> {
    let ids: Vec<u32> = (0..30).map(|index| 24 + index * 7 % 70).collect();
    let model = ReferenceModel::new(checkpoint.graph(), Arrangement::whole(32)).unwrap();
    if !checkpoint.graph().is_generative() {
        return model.embedding(&ids).unwrap();
    }
    let mut sequence = model.start();
    model.prefill(&mut sequence, &ids[..29]).unwrap();
    model.decode(&mut sequence, &ids[29..], false).unwrap().logits.unwrap().into_floats()
}

fn families() -> [Spec; 4] {
    [Spec::gemma3(), Spec::gemma4(), Spec::qwen3(), Spec::embeddinggemma()]
}

#[test]
fn both_spellings_mean_the_same_model() {
    let regular = |spec: Spec| Spec { layers: "SSFSSF".to_owned(), ..spec };
    let sliding_qwen = Spec { layers: "FFSS".to_owned(), ..Spec::qwen3() };
    let specs = [
        regular(Spec::gemma3()),
        regular(Spec::gemma4()),
        Spec::qwen3(),
        sliding_qwen,
        regular(Spec::embeddinggemma()),
    ];
    for spec in specs {
        let [older, newer] =
            [Spelling::Older, Spelling::Newer].map(|spelling| open(&Spec { spelling, ..spec.clone() }));
        assert_eq!(
            format!("{:?}", older.graph().components),
            format!("{:?}", newer.graph().components),
            "{:?}",
            spec.family
        );
        assert!(result(&older) == result(&newer), "{:?}", spec.family);
    }
}

#[test]
fn files_and_names_do_not_change_the_model() {
    for spec in families() {
        let plain = open(&spec);
        let wanted = result(&plain);
        let sharded = open(&Spec { files: 3, ..spec.clone() });
        assert_eq!(sharded.facts().weight_files.len(), plain.facts().weight_files.len() + 2);
        assert!(result(&sharded) == wanted, "{:?} sharded", spec.family);
        for prefix in ["", "model.", "model.language_model.", "language_model.model."] {
            let named = open(&Spec { prefix: Some(prefix.to_owned()), ..spec.clone() });
            // The generated values depend on names, so only the structure can be compared.
            assert_eq!(named.graph().weights.len(), plain.graph().weights.len(), "{prefix}");
            assert!(named.unused_tensors().is_empty(), "{prefix}");
        }
    }
}

#[test]
fn every_element_type_is_kept_as_stored() {
    for spec in families() {
        for (dtype, wanted) in [("F32", DType::F32), ("F16", DType::F16), ("BF16", DType::Bf16)] {
            let checkpoint = open(&Spec { dtype, ..spec.clone() });
            let graph = checkpoint.graph();
            assert!(graph.weights.iter().all(|weight| weight.dtype == wanted));
            assert!(graph.assets.iter().all(|asset| asset.table.dtype == wanted));
            assert_eq!(checkpoint.facts().dtypes, [wanted.name()]);
            assert!(result(&checkpoint).iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn stale_keys_of_sharing_layers_change_nothing_and_are_listed() {
    let spec = Spec::gemma4();
    let lean = open(&spec);
    let stale = open(&Spec { stale_keys: true, ..spec });
    assert!(result(&lean) == result(&stale));
    assert!(lean.unused_tensors().is_empty());
    assert_eq!(stale.unused_tensors().len(), 2 * 3);
    assert_eq!(stale.facts().unused_tensors, 6);
    assert_eq!(
        stale.facts().unused_bytes,
        stale.unused_tensors().iter().map(|tensor| tensor.bytes).sum::<u64>()
    );
}

#[test]
fn an_output_matrix_of_its_own_is_used_when_not_tied() {
    for spec in [Spec::gemma3(), Spec::gemma4(), Spec::qwen3()] {
        let tied = open(&spec);
        let untied = open(&Spec { tied: false, ..spec });
        let head = |checkpoint: &Checkpoint| {
            let graph = checkpoint.graph();
            graph.weights.iter().find(|weight| weight.part == "head").unwrap().name.clone()
        };
        assert_eq!(head(&tied), "model.embed_tokens.weight");
        assert_eq!(head(&untied), "lm_head.weight");
        assert!(tied.facts().tied && !untied.facts().tied);
        assert!(result(&tied) != result(&untied));
    }
}

#[test]
fn multimodal_checkpoints_give_their_text_part() {
    let gemma4 = open(&Spec { multimodal: true, ..Spec::gemma4() });
    assert_eq!(gemma4.family(), Family::Gemma4);
    assert_eq!(gemma4.unused_tensors().len(), 2);
    assert_eq!(gemma4.graph().assets[1].redirect, [(19, 0), (22, 0), (23, 0)]);

    let gemma3 = open(&Spec { multimodal: true, ..Spec::gemma3() });
    assert_eq!(gemma3.family(), Family::Gemma3);
    assert_eq!(gemma3.graph().weights[0].name, "language_model.model.layers.0.input_layernorm.weight");
    // Its placeholder has its own row and is embedded as itself.
    assert_eq!(gemma3.graph().assets[0].redirect, []);
}

#[test]
fn sentence_models_end_as_their_modules_say() {
    let spec = Spec::embeddinggemma();
    let directory = TempDir::new().unwrap();
    spec.write(directory.path()).unwrap();
    let whole = Checkpoint::open(directory.path()).unwrap();
    let length = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!((length(&result(&whole)) - 1.0).abs() < 1e-5);

    let modules = directory.path().join("modules.json");
    let mut list: Vec<serde_json::Value> = serde_json::from_slice(&std::fs::read(&modules).unwrap()).unwrap();
    list.pop();
    std::fs::write(&modules, serde_json::to_vec(&list).unwrap()).unwrap();
    let unnormalised = Checkpoint::open(directory.path()).unwrap();
    assert!((length(&result(&unnormalised)) - 1.0).abs() > 1e-2);
    assert_ne!(whole.weights_fingerprint(), unnormalised.weights_fingerprint());

    std::fs::remove_file(&modules).unwrap();
    for folder in ["1_Pooling", "2_Dense", "3_Dense"] {
        let error = Checkpoint::open(directory.path()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("modules.json: No such file"), "{folder}: {error}");
        std::fs::remove_dir_all(directory.path().join(folder)).unwrap();
    }
    let bare = Checkpoint::open(directory.path()).unwrap();
    assert_eq!(bare.family(), Family::EmbeddingGemma);
    assert_eq!(result(&bare).len() as u64, spec.hidden);
    assert_eq!(bare.notes().len(), 1, "the choice is said");
}

#[test]
fn the_window_of_an_encoder_is_half_to_either_side() {
    let window = |spec: &Spec| {
        let checkpoint = open(spec);
        let graph = checkpoint.graph();
        let decoder = graph.component(ComponentKind::Decoder).unwrap();
        let windows = decoder.nodes.iter().filter_map(|node| match &node.op {
            Op::Attention(attention) => Some(attention.window),
            _ => None,
        });
        (windows.collect::<Vec<_>>(), checkpoint.facts().window)
    };
    // SSFS with a window of 6 tokens: three to either side, and the token itself.
    assert_eq!(window(&Spec::embeddinggemma()), (vec![4, 4, 0, 4], Some(4)));
    assert_eq!(window(&Spec::gemma3()), (vec![6, 6, 0, 6], Some(6)));
    assert_eq!(window(&Spec::qwen3()), (vec![0; 4], None));
}

#[test]
fn the_last_layer_of_gemma_4_is_full_whatever_the_file_says() {
    let forced =
        open(&Spec { layers: "SFSFSS".to_owned(), spelling: Spelling::Older, kv_shared: 0, ..sized_alike() });
    assert_eq!(forced.facts().layers[5].attention, LayerType::Full);
    assert_eq!(forced.graph().states.last().unwrap().kind, StateKind::Linear);
}

/// Returns a Gemma 4 with two equal head sizes, so that a layer's type can change without changing
/// tensors.
fn sized_alike() -> Spec {
    Spec { global_head_dim: 8, ..Spec::gemma4() }
}

#[test]
fn many_random_shapes_instantiate_at_every_cut() {
    let mut random = Random::new(3, "shapes");
    for round in 0..40 {
        let mut spec = families()[round % 4].clone();
        let depth = 2 + random.below(7) as usize;
        spec.seed = round as u64;
        spec.kv_heads = 1 + random.below(3);
        spec.heads = spec.kv_heads * (1 + random.below(3));
        spec.head_dim = 2 * (1 + random.below(8));
        spec.global_head_dim = 2 * (1 + random.below(16));
        spec.hidden = 1 + random.below(40);
        spec.intermediate = 1 + random.below(60);
        spec.window = 1 + random.below(12);
        spec.spelling = if random.below(2) == 0 { Spelling::Older } else { Spelling::Newer };
        spec.files = 1 + random.below(3) as usize;
        spec.layers = (0..depth).map(|_| if random.below(3) == 0 { 'F' } else { 'S' }).collect();
        if spec.family == Made::Gemma4 {
            spec.per_layer = random.below(9);
            // A pattern of two types. The number of sharing layers is limited, so that each type
            // keeps an own layer.
            spec.layers = "SF".repeat(2 + random.below(3) as usize);
            spec.kv_shared = random.below(spec.depth() as u64 - 1) as usize;
        }
        if spec.family == Made::Qwen3 {
            spec.layers = "F".repeat(depth);
        }
        let checkpoint = open(&spec);
        assert_every_cut(checkpoint.graph(), &spec);
    }
}

fn assert_every_cut(graph: &Graph, spec: &Spec) {
    let kinds: &[EntryKind] =
        if graph.is_generative() { &[EntryKind::Prefill, EntryKind::Decode] } else { &[EntryKind::Encode] };
    for &kind in kinds {
        let point = EntryPoint {
            kind,
            rows: 5,
            context: if graph.is_generative() { 40 } else { 5 },
            largest_rows: 5,
        };
        for cut in 1..graph.layers() {
            for range in [0..cut, cut..graph.layers()] {
                graph
                    .entry(ComponentKind::Decoder, range, point, EntryOptions { taps: true })
                    .unwrap_or_else(|error| panic!("{spec:?}: {error}"));
            }
        }
        for component in &graph.components {
            if component.layers == 0 {
                graph.entry(component.kind, 0..0, point, EntryOptions { taps: true }).unwrap();
            }
        }
    }
    layer_kinds(graph).unwrap();
}

/// Counts the floating-point operations of the linear layers per row, two for each multiply-add.
fn linear_gflop(entries: &[EntryGraph]) -> f64 {
    let mut work = 0;
    for entry in entries {
        for node in entry.nodes.iter().filter(|node| node.op == Op::Linear) {
            work += 2 * entry.tensor(node.inputs[0]).elements() / entry.point.rows
                * entry.tensor(node.inputs[1]).shape[0];
        }
    }
    work as f64 / 1e9
}

fn entries(graph: &Graph, kind: EntryKind, rows: u64, components: &[ComponentKind]) -> Vec<EntryGraph> {
    let point = EntryPoint { kind, rows, context: 4096, largest_rows: 128 };
    components
        .iter()
        .filter_map(|&component| {
            let layers = if component == ComponentKind::Decoder { graph.layers() } else { 0 };
            graph.entry(component, 0..layers, point, EntryOptions::default()).unwrap()
        })
        .collect()
}

#[test]
fn prefill_of_the_real_sizes_skips_what_no_state_depends_on() {
    use ComponentKind::{Decoder, Embed, Head, PerLayerInput};
    let all = [Embed, PerLayerInput, Decoder, Head];
    // Published figures per token, in GFLOP: prefill, every layer with the per-layer projection,
    // and with the head. Prefill here stays a little below, since the last writing layer computes
    // keys and values only.
    for (spec, prefill, layers, decode) in
        [(Spec::e2b(), 1.155, 3.754, 4.559), (Spec::e4b(), 4.627, 7.946, 9.288)]
    {
        let checkpoint = open(&spec);
        let graph = checkpoint.graph();
        let prefilled = linear_gflop(&entries(graph, EntryKind::Prefill, 128, &all));
        assert!(prefilled <= prefill && prefilled > 0.9 * prefill, "{prefilled}");
        let through = linear_gflop(&entries(graph, EntryKind::Decode, 1, &[PerLayerInput, Decoder]));
        assert!((through - layers).abs() < 0.002, "{through}");
        let generated = linear_gflop(&entries(graph, EntryKind::Decode, 1, &all));
        assert!((generated - decode).abs() < 0.002, "{generated}");
    }
}

#[test]
fn e2b_has_five_kinds_of_layers_and_donors_by_type() {
    let checkpoint = open(&Spec::e2b());
    let graph = checkpoint.graph();
    // Own sliding, own full, the last writing layer, shared sliding, shared full.
    let wanted: Vec<u32> = (0..35)
        .map(|layer| match (layer, layer % 5 == 4) {
            (14, _) => 2,
            (0..14, full) => u32::from(full),
            (_, full) => 3 + u32::from(full),
        })
        .collect();
    let kinds = layer_kinds(graph).unwrap();
    assert_eq!(kinds.of_layer, wanted);
    assert_eq!(kinds.representative, [0, 4, 14, 15, 19]);
    for layer in 0..35 {
        let donor = (layer >= 15).then_some(if layer % 5 == 4 { 14 } else { 13 });
        assert_eq!(graph.donor_of(layer), donor, "layer {layer}");
        assert_eq!(checkpoint.facts().layers[layer as usize].donor, donor);
    }
    assert_eq!(graph.states.len(), 30);
    assert_eq!(graph.assets[1].width(), 8960);
    // A shard that has only sharing layers has no prefill.
    let point = EntryPoint { kind: EntryKind::Prefill, rows: 128, context: 4096, largest_rows: 128 };
    assert!(graph.entry(ComponentKind::Decoder, 15..35, point, EntryOptions::default()).unwrap().is_none());
}

#[test]
fn parameters_of_the_real_sizes_add_up() {
    // Published numbers of parameters of the decoder's layers.
    for (spec, layers, embedding) in [
        (Spec::gemma3_270m(), 100_325_376, 167_772_160),
        (Spec::e2b(), 1_863_341_568, 402_653_184),
        (Spec::e4b(), 3_945_824_512, 671_088_640),
    ] {
        let checkpoint = open(&spec);
        let graph = checkpoint.graph();
        let of_layers = graph.weights.iter().filter(|weight| {
            // One factor per layer is not counted as a parameter.
            weight.name.contains("layers.") && weight.part != "layer-scalar"
        });
        let count: u64 = of_layers.map(|weight| weight.shape.iter().product::<u64>()).sum();
        assert_eq!(count, layers);
        assert_eq!(graph.assets[0].table.shape.iter().product::<u64>(), embedding);
    }
}
