use shardwright_graph::{
    ComponentBuilder, ComponentKind, Dim, EntryGraph, EntryOptions, EntryPoint, Graph, Op, Role, Segment,
    Segments, StateId, WeightData,
};
use shardwright_vocabulary::{DType, EntryKind, ErrorKind};

use crate::support::{LayerRecipe, Recipe, joined, point, toy};

const PLAIN: EntryOptions = EntryOptions { taps: false };

fn decoder(graph: &Graph, layers: std::ops::Range<u32>, kind: EntryKind) -> Option<EntryGraph> {
    let entry = graph.entry(ComponentKind::Decoder, layers, point(kind, 4, 32), PLAIN).unwrap();
    if let Some(entry) = &entry {
        entry.validate().unwrap();
    }
    entry
}

fn layers_of(entry: &EntryGraph) -> Vec<u32> {
    let mut layers: Vec<u32> = entry.nodes.iter().filter_map(|node| node.layer).collect();
    layers.dedup();
    layers
}

fn output_names(entry: &EntryGraph) -> Vec<String> {
    entry.outputs.iter().map(|(_, role)| role.name().to_owned()).collect()
}

#[test]
fn prefill_stops_at_the_last_state_write() {
    let graph = toy(&Recipe::sharing());
    let whole = decoder(&graph, 0..4, EntryKind::Prefill).unwrap();
    assert_eq!(layers_of(&whole), [0, 1]);
    assert_eq!(output_names(&whole), ["state"; 4]);
    // The last layer that writes states computes only keys and values.
    let last: Vec<&str> =
        whole.nodes.iter().filter(|node| node.layer == Some(1)).map(|node| node.name.as_str()).collect();
    let wanted = ["input-norm", "k", "k-norm", "k-rope", "v", "v-norm", "k-write", "v-write"];
    assert_eq!(last, wanted.map(|name| format!("layer.1.{name}")));

    // The layers alone in a shard compute no more, since no later layer needs the stream.
    assert_eq!(decoder(&graph, 0..2, EntryKind::Prefill).unwrap().nodes, whole.nodes);
    // A later shard has states to fill, so the stream is an output.
    let first = decoder(&graph, 0..1, EntryKind::Prefill).unwrap();
    assert_eq!(output_names(&first), ["state", "state", "hidden"]);
    assert_eq!(layers_of(&first), [0]);
    assert!(first.nodes.iter().any(|node| node.name == "layer.0.layer-scalar"));
    // Layers that only share states have no work.
    assert_eq!(decoder(&graph, 2..4, EntryKind::Prefill), None);
    assert_eq!(
        graph.entry(ComponentKind::Head, 0..0, point(EntryKind::Prefill, 4, 32), PLAIN).unwrap(),
        None
    );
}

#[test]
fn segments_of_one_shard_are_joined_inside() {
    let graph = toy(&Recipe::sharing());
    let [all, begin, end] = &joined(&graph)[..] else { panic!("three") };
    for kind in [EntryKind::Prefill, EntryKind::Decode] {
        let point = point(kind, 4, 32);
        let of = |segments: &Segments| {
            let entry = graph.entry_of(segments, point, PLAIN).unwrap().unwrap();
            entry.validate().unwrap();
            entry
        };
        // The operations are the same as in separate shards, and only the outer boundaries are
        // ports.
        let apart = |segments: &Segments| {
            segments
                .iter()
                .filter_map(|segment| graph.entry_of(&segment.into(), point, PLAIN).unwrap())
                .map(|entry| entry.nodes.len())
                .sum::<usize>()
        };
        for segments in [all, begin, end] {
            assert_eq!(of(segments).nodes.len(), apart(segments), "{segments} {kind}");
        }
        let states = |count: usize| vec!["state".to_owned(); count];
        let last = match kind {
            EntryKind::Prefill => vec![],
            _ => vec!["logits".to_owned()],
        };
        assert_eq!(output_names(&of(all)), [states(4), last.clone()].concat());
        let given = of(all).inputs.into_iter().map(|(_, role)| role);
        assert!(given.clone().all(|role| !matches!(role, Role::Hidden | Role::PerLayer { .. })));
        assert_eq!(given.filter(|role| matches!(role, Role::Gathered { .. })).count(), 2);
        let passed = vec!["per-layer".to_owned()];
        assert_eq!(output_names(&of(begin)), [passed, states(2), vec!["hidden".to_owned()]].concat());
        assert_eq!(output_names(&of(end)), [states(2), last].concat());
        let taken = of(end).inputs.into_iter().map(|(_, role)| role);
        let taken: Vec<Role> = taken.filter(|role| !role.is_step_input()).collect();
        assert!(taken.contains(&Role::Hidden), "{taken:?}");
        let slice = Role::PerLayer { first: 1, layers: graph.layers() - 1 };
        assert_eq!(taken.contains(&slice), kind == EntryKind::Decode, "{taken:?}");
    }
    let whole = graph.entry_of(all, point(EntryKind::Decode, 4, 32), PLAIN).unwrap().unwrap();
    let names: Vec<&str> = whole.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    for name in ["hidden@0", "per-layer", "hidden@4", "decoder/layer.3.q", "head/logits"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }

    // A model without states.
    let encoder = toy(&Recipe::encoder());
    for segments in joined(&encoder) {
        let entry = encoder.entry_of(&segments, point(EntryKind::Encode, 4, 4), PLAIN).unwrap().unwrap();
        entry.validate().unwrap();
    }
    for wrong in [vec![], vec![Segment::decoder(0, 1); 2]] {
        let error = graph.entry_of(&Segments(wrong), point(EntryKind::Decode, 4, 32), PLAIN).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        assert!(error.message().ends_with("do not form one shard"), "{error}");
    }
}

#[test]
fn prefill_does_the_multiply_adds_that_states_need() {
    let graph = toy(&Recipe::sharing());
    let rows = 4;
    let (hidden, keys, queries, inner, per_layer) = (8, 4, 8, 12, 4);
    // A ring has window 5 plus 4 rows.
    let capacity = 9;
    let projections =
        hidden * (2 * keys + queries) + queries * hidden + 2 * hidden * inner + 2 * hidden * per_layer;
    let attention = 2 * capacity * queries;
    let first_layer = rows * (projections + attention);
    let second_layer = rows * 2 * hidden * keys;
    let prefill = decoder(&graph, 0..4, EntryKind::Prefill).unwrap();
    assert_eq!(prefill.multiply_adds(), first_layer + second_layer);
    let cut = [0..1, 1..2].map(|layers| decoder(&graph, layers, EntryKind::Prefill).unwrap().multiply_adds());
    assert_eq!(cut.iter().sum::<u64>(), prefill.multiply_adds(), "a cut adds no work");
    let decode = decoder(&graph, 0..4, EntryKind::Decode).unwrap();
    assert!(decode.multiply_adds() > 2 * prefill.multiply_adds());
    // k and v of layer 0 are in a ring of 9 rows, k and v of layer 1 in 32 rows.
    assert_eq!(prefill.written_state_bytes(), 2 * (9 + 32) * 4 * 4);
    assert_eq!(
        prefill.weight_bytes(),
        4 * (projections + 2 * hidden * keys) + 4 * (4 + 4 + 8 + 8 + 1 + 8 + 4),
        "projections of layer 0 and norms, k and v of layer 1"
    );
}

#[test]
fn decode_takes_every_layer_and_cuts_compose() {
    let graph = toy(&Recipe::sharing());
    let whole = decoder(&graph, 0..4, EntryKind::Decode).unwrap();
    assert_eq!(layers_of(&whole), [0, 1, 2, 3]);
    assert_eq!(output_names(&whole), ["state", "state", "state", "state", "hidden"]);
    let semantic = |entry: &EntryGraph| {
        entry.nodes.iter().map(|node| (node.name.clone(), node.op.number())).collect::<Vec<_>>()
    };
    for cut in 1..4 {
        let first = decoder(&graph, 0..cut, EntryKind::Decode).unwrap();
        let second = decoder(&graph, cut..4, EntryKind::Decode).unwrap();
        assert_eq!([semantic(&first), semantic(&second)].concat(), semantic(&whole), "cut at {cut}");
        let slice = Role::PerLayer { first: cut, layers: 4 - cut };
        let per_layer = second.input(&slice).unwrap();
        assert_eq!(second.tensor(per_layer).shape, [u64::from(4 - cut), 4, 4]);
    }
}

#[test]
fn a_donor_in_an_earlier_shard_is_read_whole() {
    let graph = toy(&Recipe::sharing());
    let sharing = decoder(&graph, 2..4, EntryKind::Decode).unwrap();
    assert!(sharing.states.iter().all(|port| !port.written));
    let read: Vec<u32> = sharing.states.iter().map(|port| port.id.0).collect();
    assert_eq!(read, [0, 1, 2, 3]);
    let port = &sharing.states[0];
    assert_eq!((port.state.name.as_str(), port.capacity), ("layer.0.k", 9));
    assert!(sharing.input(&Role::State { state: StateId(0) }).is_some());
    assert!(!sharing.inputs.iter().any(|(_, role)| matches!(role, Role::Slots { .. })), "it writes nothing");
    assert_eq!((0..4).map(|layer| graph.donor_of(layer)).collect::<Vec<_>>(), [None, None, Some(0), Some(1)]);
}

#[test]
fn capacities_follow_window_and_largest_rows() {
    let state =
        |kind| toy(&Recipe::sharing()).states.iter().find(|state| state.kind == kind).unwrap().clone();
    let ring = state(shardwright_graph::StateKind::Ring { window: 5 });
    let linear = state(shardwright_graph::StateKind::Linear);
    for (context, largest, wanted) in [(32, 4, 9), (32, 1, 6), (8, 4, 8), (u64::MAX, u64::MAX, u64::MAX)] {
        assert_eq!(ring.capacity(context, largest), wanted);
        assert_eq!(linear.capacity(context, largest), context);
    }
}

#[test]
fn taps_are_those_of_the_shard() {
    let graph = toy(&Recipe::sharing());
    let taps = EntryOptions { taps: true };
    let names = |kind, layers, entry| {
        let entry = graph.entry(kind, layers, point(entry, 4, 32), taps).unwrap().unwrap();
        entry.validate().unwrap();
        entry
            .outputs
            .iter()
            .filter_map(|(_, role)| match role {
                Role::Tap { name } => Some(name.clone()),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(names(ComponentKind::Decoder, 0..4, EntryKind::Decode), ["layer.0", "layer.1", "layer.2"]);
    assert_eq!(names(ComponentKind::Decoder, 1..3, EntryKind::Decode), ["layer.1"]);
    assert_eq!(names(ComponentKind::Decoder, 0..4, EntryKind::Prefill), [""; 0]);
    assert_eq!(names(ComponentKind::Head, 0..0, EntryKind::Decode), ["final-norm"]);
}

/// Each value has one tap, although several linear operations read it.
#[test]
fn every_linear_operation_can_be_tapped_at_both_ends() {
    let plain = toy(&Recipe::sharing());
    let graph = plain.with_operation_taps();
    let entry = |graph: &Graph, kind| {
        let options = EntryOptions { taps: true };
        graph.entry(ComponentKind::Decoder, 0..4, point(kind, 1, 32), options).unwrap().unwrap()
    };
    let decode = entry(&graph, EntryKind::Decode);
    decode.validate().unwrap();
    let left: Vec<_> = decode.outputs.iter().map(|(tensor, _)| *tensor).collect();
    let linear = decode.nodes.iter().filter(|node| matches!(node.op, Op::Linear));
    let ends: Vec<_> = linear.flat_map(|node| [node.inputs[0], node.output]).collect();
    assert!(!ends.is_empty());
    for end in ends {
        let read = decode.inputs.iter().any(|(input, _)| *input == end);
        assert!(read || left.contains(&end), "{}", decode.tensor(end).name);
    }
    // Entry points that only fill states have no additional outputs, and the rest of the graph does
    // not change.
    let outputs = |graph: &Graph| output_names(&entry(graph, EntryKind::Prefill));
    assert_eq!(outputs(&graph), outputs(&plain));
    assert_eq!(decode.nodes, entry(&plain, EntryKind::Decode).nodes);
}

#[test]
fn named_taps_of_a_decoder_stay_within_their_layers() {
    let mut graph = toy(&Recipe::sharing());
    let decoder =
        graph.components.iter_mut().find(|component| component.kind == ComponentKind::Decoder).unwrap();
    for layer in [0, 2] {
        let name = format!("layer.{layer}.q");
        let value = decoder.values.iter().position(|value| value.name == name).unwrap();
        decoder.taps.push((name, shardwright_graph::ValueId(value as u32)));
    }
    for (layers, wanted) in [(0..1, Some("layer.0.q")), (1..2, None), (2..3, Some("layer.2.q"))] {
        let options = EntryOptions { taps: true };
        let entry = graph.entry(ComponentKind::Decoder, layers, point(EntryKind::Decode, 1, 8), options);
        let entry = entry.unwrap().unwrap();
        entry.validate().unwrap();
        let tap = wanted.map(|name| Role::Tap { name: name.to_owned() });
        let found: Vec<&Role> = entry
            .outputs
            .iter()
            .map(|(_, role)| role)
            .filter(|role| matches!(role, Role::Tap { .. }))
            .collect();
        assert_eq!(found, tap.iter().collect::<Vec<_>>());
    }
}

#[test]
fn an_encoder_has_one_entry_without_states() {
    let graph = toy(&Recipe::encoder());
    let entry = decoder(&graph, 0..3, EntryKind::Encode).unwrap();
    assert!(entry.states.is_empty());
    assert_eq!(output_names(&entry), ["hidden"]);
    let pooling =
        graph.entry(ComponentKind::Pooling, 0..0, point(EntryKind::Encode, 4, 4), PLAIN).unwrap().unwrap();
    pooling.validate().unwrap();
    assert_eq!(pooling.tensor(pooling.outputs[0].0).shape, [6]);
    assert!(pooling.input(&Role::Pooling).is_some());
    assert!(!graph.is_generative() && graph.donor_of(0).is_none());
    assert_eq!(point(EntryKind::Encode, 4, 4).name().to_string(), "encode_4");
    assert_eq!(point(EntryKind::Prefill, 4, 32).name().to_string(), "prefill_4@32");
}

#[test]
fn impossible_entries_are_refused() {
    let generative = toy(&Recipe::sharing());
    let encoder = toy(&Recipe::encoder());
    let entry = |graph: &Graph, kind, layers, point| graph.entry(kind, layers, point, PLAIN).unwrap_err();
    let decode = point(EntryKind::Decode, 4, 32);

    for (start, end) in [(0, 0), (2, 2), (3, 2), (3, 5), (9, 12)] {
        let error = entry(&generative, ComponentKind::Decoder, start..end, decode);
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        assert_eq!(
            error.message(),
            format!("expected a range of the 4 layers of `decoder`, got {start}..{end}")
        );
        assert!(error.help().is_some());
    }
    let error = entry(&generative, ComponentKind::Pooling, 0..0, decode);
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(error.to_string(), "the graph has no component `pooling`");
    let error = entry(&generative, ComponentKind::Decoder, 0..4, point(EntryKind::Encode, 4, 4));
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.message().starts_with("`decoder` has no encode entry point"), "{error}");
    for kind in [EntryKind::Prefill, EntryKind::Decode] {
        let error = entry(&encoder, ComponentKind::Decoder, 0..3, point(kind, 4, 32));
        assert!(error.message().starts_with(&format!("`decoder` has no {kind} entry point")), "{error}");
    }
    for (rows, context, largest_rows) in [(0, 8, 8), (9, 8, 9), (4, 8, 3), (1, 0, 1)] {
        let point = EntryPoint { kind: EntryKind::Decode, rows, context, largest_rows };
        let error = entry(&generative, ComponentKind::Decoder, 0..4, point);
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.message().starts_with(&format!("an entry point of {rows} rows")), "{error}");
        assert!(error.help().is_some());
    }
}

/// Creates two layers. The second adds a value of the first that is not the residual stream.
fn leaking() -> Graph {
    let mut graph = toy(&Recipe { layers: vec![LayerRecipe::plain()], ..Recipe::sharing() });
    graph.components.clear();
    let mut builder = ComponentBuilder::new(&graph, ComponentKind::Decoder);
    let stream = builder.input(Role::Hidden, vec![Dim::Rows, Dim::Fixed(8)], DType::F32);
    builder.begin_layer(stream);
    let inner = builder.op("inner", Op::Neg, &[stream]);
    let after = builder.op("after", Op::Exp, &[inner]);
    builder.begin_layer(after);
    let end = builder.op("sum", Op::Add, &[after, inner]);
    builder.end_layers(end);
    let decoder = builder.finish().unwrap();
    graph.components.push(decoder);
    graph
}

#[test]
fn only_the_stream_and_states_cross_a_cut() {
    let graph = leaking();
    let decode = point(EntryKind::Decode, 1, 8);
    assert!(graph.entry(ComponentKind::Decoder, 0..2, decode, PLAIN).unwrap().is_some());
    assert!(graph.entry(ComponentKind::Decoder, 0..1, decode, PLAIN).unwrap().is_some());
    let error = graph.entry(ComponentKind::Decoder, 1..2, decode, PLAIN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(error.place(), Some("value `layer.0.inner` of layer 0"));
    assert!(error.message().starts_with("needed beyond the cut"), "{error}");
}

#[test]
fn a_builder_refuses_what_cannot_run() {
    let graph = leaking();
    let hidden = vec![Dim::Rows, Dim::Fixed(8)];
    let mut twice = ComponentBuilder::new(&graph, ComponentKind::Head);
    let stream = twice.input(Role::Hidden, hidden.clone(), DType::F32);
    twice.op("same", Op::Neg, &[stream]);
    twice.op("same", Op::Exp, &[stream]);
    let error = twice.finish().unwrap_err();
    assert!(error.to_string().contains("a second node with this name"), "{error}");

    // A declared shape that differs from the operation's result is detected when the entry is
    // instantiated.
    let mut wrong = ComponentBuilder::new(&graph, ComponentKind::Head);
    let stream = wrong.input(Role::Hidden, hidden, DType::F32);
    let sum = wrong.op_shaped("sum", Op::ReduceSum, &[stream], vec![Dim::Rows, Dim::Fixed(8)]);
    wrong.output(sum, Role::Logits);
    let head = wrong.finish().unwrap();
    let mut graph = graph;
    graph.components.push(head);
    let error = graph.entry(ComponentKind::Head, 0..0, point(EntryKind::Decode, 1, 8), PLAIN).unwrap_err();
    assert_eq!((error.kind(), error.place()), (ErrorKind::Internal, Some("node `sum` (reduce-sum)")));
}

#[test]
fn a_weight_range_beyond_its_source_is_refused() {
    let source = std::sync::Arc::new(vec![0_u8; 8]);
    assert_eq!(WeightData::new(source.clone(), 2, 6).unwrap().bytes().len(), 6);
    for (offset, length) in [(2, 7), (9, 0), (usize::MAX, 2)] {
        let error = WeightData::new(source.clone(), offset, length).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().ends_with("exceeds the 8 bytes of its source"), "{error}");
        assert!(error.help().is_some());
    }
}

#[test]
fn a_head_without_its_soft_cap_ends_before_it() {
    let graph = toy(&Recipe::sharing());
    assert_eq!(graph.logits_softcap(), Some(30.0));
    let uncapped = graph.without_logits_softcap();
    assert_eq!(uncapped.logits_softcap(), None);
    let head = |graph: &Graph| {
        graph.entry(ComponentKind::Head, 0..0, point(EntryKind::Decode, 2, 32), PLAIN).unwrap().unwrap()
    };
    let (with, without) = (head(&graph), head(&uncapped));
    let ops = |entry: &EntryGraph| entry.nodes.iter().map(|node| node.op.name()).collect::<Vec<_>>();
    assert_eq!(ops(&with).last(), Some(&"softcap"));
    assert_eq!(ops(&without), ops(&with)[..with.nodes.len() - 1]);
    let [(logits, Role::Logits)] = without.outputs[..] else { panic!("{:?}", without.outputs) };
    assert_eq!(without.tensor(logits).name, with.tensor(with.nodes[with.nodes.len() - 1].inputs[0]).name);
    // Without a soft-cap the graph does not change.
    assert_eq!(head(&uncapped.without_logits_softcap()), without);
    let encoder = toy(&Recipe::encoder());
    assert_eq!(encoder.logits_softcap(), None);
    assert_eq!(encoder.without_logits_softcap().components.len(), encoder.components.len());
}
