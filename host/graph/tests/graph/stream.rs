//! Tests of the residual stream in 16-bit floats: its unit, its summands and its products.

use shardwright_graph::{
    ComponentKind, ConstantFormat, Encodings, EntryGraph, EntryOptions, Graph, Op, Range, Ranges, Role,
    TensorId, decompose_all, encode, hidden_key, prepared, range_key,
};
use shardwright_vocabulary::{
    ActivationFormat, DType, Encoding, EntryKind, FormatTuple, ScaleBits, StateFormat, WeightFormat,
};

use crate::support::{Recipe, point, toy};

const STREAM: FormatTuple =
    FormatTuple::uniform(WeightFormat::W8PerChannel, ActivationFormat::A16F16Stream, StateFormat::A8);

fn range(most: f32) -> Range {
    Range { low: -most, high: most, masked: false }
}

fn decoder(graph: &Graph, layers: std::ops::Range<u32>) -> EntryGraph {
    let point = point(EntryKind::Decode, 4, 32);
    graph.entry(ComponentKind::Decoder, layers, point, EntryOptions { taps: true }).unwrap().unwrap()
}

/// Returns ranges for all tensors in all forms of an entry, with `most` for the residual stream.
fn ranges(entry: &EntryGraph, most: f32) -> Ranges {
    let mut ranges = Ranges::new();
    for form in [entry.clone(), decompose_all(entry)] {
        for tensor in (0..form.tensors.len() as u32).map(TensorId) {
            let key = range_key(&form, tensor);
            let most = if key.starts_with("hidden@") { most } else { 2.0 };
            ranges.insert(key, range(most));
        }
    }
    for state in &entry.states {
        ranges.insert(shardwright_graph::state_key(&state.state.name), range(2.0));
    }
    ranges
}

fn unit_of(entry: &EntryGraph, role: &Role) -> Option<f32> {
    entry.tensor(entry.output(role)?).unit.map(ScaleBits::get)
}

#[test]
fn the_unit_follows_the_largest_value_and_is_said_at_ports() {
    let entry = decoder(&toy(&Recipe::sharing()), 0..2);
    for (most, unit) in [(1.0, 16.0), (131_000.0, 16.0), (132_000.0, 32.0), (5e6, 1024.0)] {
        let ranges = ranges(&entry, most);
        for activations in [ActivationFormat::F16, STREAM.activations] {
            let formats = FormatTuple { activations, ..STREAM };
            let shown = prepared(&entry, &Encodings::of(&formats, &ranges));
            shown.validate().unwrap();
            let input = shown.tensor(shown.input(&Role::Hidden).unwrap()).unit.map(ScaleBits::get);
            assert_eq!([input, unit_of(&shown, &Role::Hidden)], [Some(unit); 2], "{most} {activations:?}");
            let tap = Role::Tap { name: "layer.0".to_owned() };
            assert_eq!(unit_of(&shown, &tap), Some(unit), "{most} {activations:?}");
            for (tensor, role) in shown.inputs.iter().chain(&shown.outputs) {
                let is_state = matches!(role, Role::State { .. } | Role::StateRows { .. });
                assert!(!is_state || shown.tensor(*tensor).unit.is_none(), "{role:?}");
            }
        }
        // Other formats do not change the stream.
        let plain = FormatTuple { activations: ActivationFormat::A16, ..STREAM };
        assert_eq!(prepared(&entry, &Encodings::of(&plain, &ranges)), entry);
    }
}

#[test]
fn norms_of_the_stream_have_another_epsilon_and_summands_are_divided() {
    let entry = decoder(&toy(&Recipe::sharing()), 0..2);
    let shown = prepared(&entry, &Encodings::of(&STREAM, &ranges(&entry, 1.0)));
    let eps = |graph: &EntryGraph, name: &str| {
        let node = graph.nodes.iter().find(|node| node.name == name).unwrap();
        let Op::RmsNorm { eps, .. } = node.op else { panic!("{name} is no norm") };
        eps
    };
    assert_eq!(eps(&shown, "layer.0.input-norm"), eps(&entry, "layer.0.input-norm") / 256.0);
    assert_eq!(eps(&shown, "layer.0.q-norm"), eps(&entry, "layer.0.q-norm"));
    let scaled = |graph: &EntryGraph| {
        let units = graph.nodes.iter().filter(|node| node.name.ends_with(".units"));
        units.filter(|node| node.op == Op::MulScalar { value: 1.0 / 16.0 }).count()
    };
    let sums = entry.nodes.iter().filter(|node| node.op == Op::Add && node.name.ends_with("-sum")).count();
    assert!(sums >= 4, "{sums} sums with the stream");
    assert_eq!(scaled(&shown), sums);
}

#[test]
fn products_are_in_integers_and_what_is_between_in_floats() {
    let graph = toy(&Recipe::sharing());
    let entry = decoder(&graph, 0..2);
    let ranges = ranges(&entry, 1e5);
    for form in [entry.clone(), decompose_all(&entry)] {
        let encodings = Encodings::of(&STREAM, &ranges);
        let encoded = encode(&prepared(&form, &encodings), &encodings).unwrap();
        encoded.validate().unwrap();
        for node in &encoded.nodes {
            let values = node.inputs.iter().chain([&node.output]).map(|&id| encoded.tensor(id));
            let mut values = values.filter(|tensor| tensor.weight.is_none() && !tensor.is_index());
            match node.op {
                Op::Linear => assert!(values.all(|tensor| tensor.dtype == DType::U16), "{}", node.name),
                Op::Convert => {}
                // All other operations have either floats or integers, not both.
                _ => {
                    let floats: Vec<bool> = values.map(|tensor| tensor.dtype.is_float()).collect();
                    assert!(floats.windows(2).all(|two| two[0] == two[1]), "{}", node.name);
                }
            }
        }
        let norm = encoded.nodes.iter().find(|node| node.name.starts_with("layer.0.input-norm")).unwrap();
        assert_eq!(encoded.tensor(norm.output).dtype, DType::F16);
    }
    // Constants have the format of the activations that they are combined with.
    let formats = graph.constant_formats(&STREAM);
    let of = |name: &str| {
        let index = graph.weights.iter().position(|weight| weight.name.contains(name)).unwrap();
        formats[index]
    };
    assert_eq!(of("layers.0.norm0.weight"), ConstantFormat::Matrix(WeightFormat::F16));
    assert_eq!(of("layers.0.q_norm.weight"), ConstantFormat::Activation);
    assert_eq!(of("layers.0.q.weight"), ConstantFormat::Matrix(WeightFormat::W8PerChannel));
}

#[test]
fn a_boundary_in_integers_has_its_range_in_units() {
    let entry = decoder(&toy(&Recipe::sharing()), 0..2);
    let ranges = ranges(&entry, 1e5);
    let wanted = Encoding::affine_over(-1e5, 1e5, 16);
    let side = shardwright_graph::PortSide::Output;
    let encodings =
        Encodings { ports: vec![(side, Role::Hidden, wanted)], ..Encodings::of(&STREAM, &ranges) };
    let encoded = encode(&prepared(&entry, &encodings), &encodings).unwrap();
    let port = encoded.tensor(encoded.output(&Role::Hidden).unwrap());
    let unit = port.unit.unwrap();
    assert_eq!(unit.get(), 16.0);
    // Read in the port's unit, raw values have the encoding of the plan.
    assert_eq!(port.encoding().unwrap().in_units(unit), wanted);
    assert!(ranges.contains_key(&hidden_key(2)));
}

#[test]
fn a_stream_that_a_norm_ends_is_divided_too() {
    let mut entry = decoder(&toy(&Recipe::sharing()), 0..2);
    let norm = entry.nodes.iter().find(|node| node.name == "layer.1.mlp-norm").unwrap().output;
    entry.outputs.iter_mut().filter(|(_, role)| *role == Role::Hidden).for_each(|port| port.0 = norm);
    let shown = prepared(&entry, &Encodings::of(&STREAM, &ranges(&entry, 1.0)));
    shown.validate().unwrap();
    assert_eq!(unit_of(&shown, &Role::Hidden), Some(16.0));
    let maker = shown.nodes.iter().find(|node| node.output == norm).unwrap();
    assert_eq!(maker.op, Op::MulScalar { value: 1.0 / 16.0 });
    let up = shown.nodes.iter().find(|node| node.name == "layer.1.up").unwrap();
    assert_eq!(up.inputs[0], maker.inputs[0], "others read it as it is");
}
