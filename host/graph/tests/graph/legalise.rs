use std::convert::Infallible;

use shardwright_graph::{
    ComponentKind, Encodings, EntryGraph, EntryOptions, EntryPoint, Keys, LegaliseError, NodeVerdict, Op,
    Ranges, Role, StateId, decompose_where, legalise, legalise_encoded, prepared, unrounded,
};
use shardwright_vocabulary::{AttentionFormat, EntryKind, ErrorKind, FormatTuple};

use crate::support::{LayerRecipe, Recipe, point, toy};

fn entry(kind: EntryKind, layers: std::ops::Range<u32>) -> EntryGraph {
    let graph = toy(&Recipe::sharing());
    graph.entry(ComponentKind::Decoder, layers, point(kind, 4, 32), EntryOptions::default()).unwrap().unwrap()
}

/// Creates a shim that refuses the nodes for which `refuses` returns a reason.
fn shim(
    refuses: impl Fn(&shardwright_graph::EntryNode) -> Option<&'static str>,
) -> impl FnMut(&EntryGraph) -> Result<Vec<NodeVerdict>, Infallible> {
    move |graph| {
        graph.validate().unwrap();
        let verdict = |node| refuses(node).map_or_else(NodeVerdict::accepted, NodeVerdict::refused);
        Ok(graph.nodes.iter().map(verdict).collect())
    }
}

#[test]
fn what_is_taken_whole_stays() {
    let graph = entry(EntryKind::Decode, 0..4);
    let legal = legalise(&graph, shim(|_| None)).unwrap();
    assert_eq!(legal.graph, graph);
    assert!(legal.decomposed.is_empty() && legal.by_runtime.is_empty());
}

#[test]
fn divisors_and_magnitudes_of_pairs_never_reach_a_shim() {
    let mut graph = entry(EntryKind::Decode, 0..2);
    for node in &mut graph.nodes {
        let layer = node.layer;
        match &mut node.op {
            Op::Rope(rope) if layer == Some(0) => {
                rope.divisors = (1..=rope.head_dim / 2).map(|pair| pair as f32).collect();
            }
            Op::Rope(rope) => rope.magnitude = 1.19,
            _ => {}
        }
    }
    graph.validate().unwrap();
    let legal = legalise(&graph, shim(|_| None)).unwrap();
    assert_eq!(legal.graph, decompose_where(&graph, |_, node| matches!(node.op, Op::Rope(_))));
    let rotations = legal.graph.nodes.iter().filter(|node| matches!(node.op, Op::Rotate { .. })).count();
    assert!(rotations >= 3 && legal.decomposed.len() == rotations, "{:?}", legal.decomposed);
    assert!(legal.decomposed["layer.0.q-rope"].contains("contract"));
}

#[test]
fn only_what_is_refused_is_decomposed() {
    let graph = entry(EntryKind::Decode, 0..4);
    let legal =
        legalise(&graph, shim(|node| matches!(node.op, Op::Gelu).then_some("no such table"))).unwrap();
    assert_eq!(legal.decomposed.len(), 4);
    assert_eq!(legal.decomposed["layer.2.activation"], "no such table");
    assert_eq!(legal.graph, decompose_where(&graph, |_, node| node.op == Op::Gelu));
}

#[test]
fn a_shim_is_asked_about_each_level() {
    let graph = entry(EntryKind::Decode, 0..1);
    let mut shown: Vec<Vec<&str>> = Vec::new();
    let legal = legalise(&graph, |graph| {
        shown.push(graph.nodes.iter().map(|node| node.op.name()).collect());
        let refused = |op: &Op| matches!(op, Op::Rope(_) | Op::Attention(_) | Op::Softmax);
        let verdict =
            |op| if refused(op) { NodeVerdict::refused("too much") } else { NodeVerdict::accepted() };
        Ok::<_, Infallible>(graph.nodes.iter().map(|node| verdict(&node.op)).collect())
    })
    .unwrap();
    legal.graph.validate().unwrap();
    let counts = |name: &str| -> Vec<usize> {
        shown.iter().map(|nodes| nodes.iter().filter(|op| **op == name).count()).collect()
    };
    assert_eq!(shown.len(), 3);
    assert_eq!([counts("rope"), counts("rotate")], [[2, 0, 0], [0, 2, 2]]);
    assert_eq!([counts("attention"), counts("softmax"), counts("exp")], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]);
    let decomposed: Vec<&str> = legal.decomposed.keys().map(String::as_str).collect();
    let softmax = "layer.0.attention.softmax-12";
    let attention = ["layer.0.attention", softmax, "layer.0.k-rope", "layer.0.q-rope"];
    assert_eq!(decomposed, attention);
}

#[test]
fn a_shim_of_primitives_gets_primitives() {
    for kind in [EntryKind::Decode, EntryKind::Prefill] {
        let graph = entry(kind, 0..2);
        let refuses = |node: &shardwright_graph::EntryNode| {
            (node.op.is_semantic() && node.op != Op::StateUpdate).then_some("semantic")
        };
        let legal = legalise(&graph, shim(refuses)).unwrap();
        assert_eq!(legal.graph, shardwright_graph::decompose_all(&graph));
        assert!(legal.by_runtime.is_empty());
    }
}

#[test]
fn a_refused_update_leaves_its_rows_to_the_runtime() {
    let graph = entry(EntryKind::Decode, 0..4);
    let legal = legalise(&graph, shim(|node| (node.op == Op::StateUpdate).then_some("no scatter"))).unwrap();
    legal.graph.validate().unwrap();
    assert_eq!(legal.by_runtime.len(), 4);
    assert!(!legal.graph.nodes.iter().any(|node| node.op == Op::StateUpdate));
    for state in (0..4).map(StateId) {
        let rows = legal.graph.output(&Role::StateRows { state }).unwrap();
        assert_eq!(legal.graph.tensor(rows).shape, [4, 4]);
        assert!(legal.graph.input(&Role::State { state }).is_some(), "the state before is read");
        assert!(legal.graph.output(&Role::State { state }).is_none());
    }
    let mut masks: Vec<_> = legal
        .graph
        .inputs
        .iter()
        .filter_map(|(tensor, role)| match role {
            Role::Mask(mask) => Some((mask.keys, legal.graph.tensor(*tensor).shape[1])),
            _ => None,
        })
        .collect();
    masks.sort_by_key(|(_, width)| *width);
    let wanted = [(9, 13), (32, 36)].map(|(capacity, width)| (Keys::StateAndRows { capacity }, width));
    assert_eq!(masks, wanted);
    assert!(!legal.graph.inputs.iter().any(|(_, role)| matches!(role, Role::Slots { .. })));
    // Layers that share a donor in the same shard read the same joined keys.
    let joins = legal.graph.nodes.iter().filter(|node| matches!(node.op, Op::Concat { axis: 0 })).count();
    assert_eq!(joins, 4);
    assert!(legal.decomposed.contains_key("layer.2.attention"));
    assert_eq!(legal.graph.written_state_bytes(), graph.written_state_bytes());
}

#[test]
fn a_prefill_that_only_fills_needs_no_mask_of_the_last_layer() {
    let graph = entry(EntryKind::Prefill, 1..2);
    let legal = legalise(&graph, shim(|node| (node.op == Op::StateUpdate).then_some("no scatter"))).unwrap();
    legal.graph.validate().unwrap();
    let roles: Vec<&str> = legal.graph.inputs.iter().map(|(_, role)| role.name()).collect();
    assert_eq!(roles, ["hidden", "positions"]);
    assert!(legal.graph.states.iter().all(|port| port.written));
}

#[test]
fn keys_and_values_move_together() {
    let graph = entry(EntryKind::Decode, 0..4);
    let legal =
        legalise(&graph, shim(|node| (node.name == "layer.1.v-write").then_some("too wide"))).unwrap();
    legal.graph.validate().unwrap();
    let moved: Vec<(u32, &str)> =
        legal.by_runtime.iter().map(|(state, reason)| (state.0, reason.as_str())).collect();
    assert_eq!(moved, [(2, "`layer.1.v-write` is written by the runtime"), (3, "too wide")]);
    let updates = legal.graph.nodes.iter().filter(|node| node.op == Op::StateUpdate).count();
    assert_eq!(updates, 2, "layer 0 still writes in graph");
}

#[test]
fn a_refused_primitive_is_an_error_that_names_it() {
    let graph = entry(EntryKind::Decode, 0..4);
    let refuses = |node: &shardwright_graph::EntryNode| match node.op {
        Op::Softcap { .. } | Op::Softmax | Op::Attention(_) => Some("not mapped"),
        Op::Exp => Some("no exponential"),
        _ => None,
    };
    let error = legalise(&graph, shim(refuses)).unwrap_err();
    match &error {
        LegaliseError::Refused { node, op: "exp", layer: Some(0), reason, within } => {
            assert_eq!(node, "layer.0.attention.softmax-12.exp-3");
            assert_eq!(reason, "no exponential");
            let within: Vec<(&str, &str)> =
                within.iter().map(|whole| (whole.op, whole.reason.as_str())).collect();
            assert_eq!(within, [("attention", "not mapped"), ("softmax", "not mapped")]);
        }
        _ => panic!("{error}"),
    }
    assert!(error.help().is_some());
    assert!(error.to_string().starts_with("layer 0: exp `layer.0.attention"), "{error}");
    let ends = "no exponential; it is a step of softmax `layer.0.attention.softmax-12`, which was refused: not mapped; \
                it is a step of attention `layer.0.attention`, which was refused: not mapped";
    assert!(error.to_string().ends_with(ends), "{error}");
}

#[test]
fn a_shim_that_answers_wrongly_is_an_error() {
    let graph = entry(EntryKind::Decode, 0..1);
    let asked = graph.nodes.len();
    let error =
        legalise(&graph, |graph| Ok::<_, Infallible>(vec![NodeVerdict::accepted(); graph.nodes.len() - 1]))
            .unwrap_err();
    assert_eq!(error.to_string(), format!("expected {asked} verdicts of the shim, got {}", asked - 1));
    assert!(matches!(&error, LegaliseError::Other(error) if error.kind() == ErrorKind::Shim), "{error}");
    assert!(error.help().is_some());
    let error = legalise(&graph, |_| Err::<Vec<NodeVerdict>, _>("the library is gone")).unwrap_err();
    assert!(matches!(error, LegaliseError::Check("the library is gone")), "{error}");
    assert!(error.help().is_none());
}

#[test]
fn a_state_update_refused_too_late_is_an_error() {
    // It first refuses the attention. Once that is in primitives, it refuses the update it had
    // accepted.
    let graph = entry(EntryKind::Decode, 0..1);
    let mut round = 0;
    let error = legalise(&graph, |graph| {
        round += 1;
        let refused = |op: &Op| match op {
            Op::Attention(_) => round == 1,
            Op::StateUpdate => round == 2,
            _ => false,
        };
        let verdict =
            |op| if refused(op) { NodeVerdict::refused("changed its mind") } else { NodeVerdict::accepted() };
        Ok::<_, Infallible>(graph.nodes.iter().map(|node| verdict(&node.op)).collect())
    })
    .unwrap_err();
    let LegaliseError::Other(error) = &error else { panic!("{error}") };
    assert_eq!(error.kind(), ErrorKind::Shim);
    assert!(error.message().starts_with("the state update is refused (changed its mind), and"), "{error}");
    assert!(error.message().contains("reads its result"), "{error}");
    assert!(error.help().is_some());
}

#[test]
fn a_state_update_that_leads_nowhere_does_not_hang() {
    let mut graph = entry(EntryKind::Prefill, 1..2);
    graph.outputs.clear();
    let error = legalise(&graph, |graph| {
        Ok::<_, Infallible>(graph.nodes.iter().map(|_| NodeVerdict::refused("no")).collect())
    })
    .unwrap_err();
    assert!(matches!(error, LegaliseError::Other(_)));
    assert!(error.to_string().contains("the state update is refused (no), and its result is not"), "{error}");
}

#[test]
fn keys_beside_values_from_elsewhere_are_an_error() {
    // The values are of another layer, which an earlier shard wrote. The keys are of this layer.
    let graph =
        toy(&Recipe { layers: vec![LayerRecipe::plain(); 2], per_layer_width: 0, ..Recipe::sharing() });
    let point = EntryPoint { kind: EntryKind::Decode, rows: 1, context: 8, largest_rows: 1 };
    let mut graph =
        graph.entry(ComponentKind::Decoder, 1..2, point, EntryOptions::default()).unwrap().unwrap();
    let mut tensor = graph.tensor(graph.input(&Role::State { state: StateId(3) }).unwrap()).clone();
    tensor.name = "state.layer.0.v".to_owned();
    graph.tensors.push(tensor);
    let elsewhere = shardwright_graph::TensorId(graph.tensors.len() as u32 - 1);
    let mut port = graph.states[1].clone();
    (port.id, port.written) = (StateId(1), false);
    port.state.name = "layer.0.v".to_owned();
    graph.states.push(port);
    graph.inputs.push((elsewhere, Role::State { state: StateId(1) }));
    let attention = graph.nodes.iter_mut().find(|node| matches!(node.op, Op::Attention(_))).unwrap();
    attention.inputs[2] = elsewhere;
    let error = legalise(&graph, shim(|node| (node.op == Op::StateUpdate).then_some("no"))).unwrap_err();
    let LegaliseError::Other(error) = &error else { panic!("{error}") };
    assert!(error.message().starts_with("the state update is refused"), "{error}");
    assert!(error.message().contains("`state.layer.0.v`"), "{error}");
}

#[test]
fn attention_in_16_bits_is_never_decomposed() {
    let graph = entry(EntryKind::Decode, 0..2);
    let none = Ranges::new();
    let formats = |attention| FormatTuple { attention, ..FormatTuple::F32 };
    for attention in [AttentionFormat::Bf16, AttentionFormat::F16] {
        let formats = formats(attention);
        let encodings = Encodings::of(&formats, &none);
        let rounded = prepared(&graph, &encodings);
        let products = |graph: &EntryGraph| -> Vec<AttentionFormat> {
            let of = |op: &Op| match op {
                Op::Attention(attention) => Some(attention.products),
                _ => None,
            };
            graph.nodes.iter().filter_map(|node| of(&node.op)).collect()
        };
        assert_eq!(products(&rounded), [attention; 2]);
        assert_eq!(unrounded(&rounded), graph);
        let legal = legalise_encoded(&graph, &encodings, shim(|_| None)).unwrap();
        assert_eq!(products(&legal.graph), [attention; 2]);

        let refuses = |node: &shardwright_graph::EntryNode| {
            (node.op.version() == 2).then_some("version 2 of the operation is unknown")
        };
        let error = legalise_encoded(&graph, &encodings, shim(refuses)).unwrap_err();
        let LegaliseError::Refused { node, op, layer, reason, within } = &error else { panic!("{error}") };
        assert_eq!((node.as_str(), *op, *layer), ("layer.0.attention", "attention", Some(0)));
        let wanted =
            format!("version 2 of the operation is unknown; attention in {attention} has no decomposition");
        assert_eq!((reason, within.len()), (&wanted, 0));
        let shown = format!("layer 0: attention `layer.0.attention` is refused: {wanted}");
        assert_eq!(error.to_string(), shown);

        let refuses =
            |node: &shardwright_graph::EntryNode| (node.op == Op::StateUpdate).then_some("no scatter");
        let error = legalise_encoded(&graph, &encodings, shim(refuses)).unwrap_err();
        let LegaliseError::Other(error) = &error else { panic!("{error}") };
        assert_eq!(error.kind(), ErrorKind::Shim);
        let wanted = format!(
            "the state update is refused (no scatter), and `layer.0.attention` reads its result, but \
             attention in {attention} has no decomposition"
        );
        assert_eq!(error.message(), wanted);
    }
    let plain = formats(AttentionFormat::F32);
    assert_eq!(prepared(&graph, &Encodings::of(&plain, &none)), graph);
}
