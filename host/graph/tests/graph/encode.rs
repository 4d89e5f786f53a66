//! Tests the encoding of each tensor, and the key of its range.

use std::collections::BTreeMap;
use std::convert::Infallible;

use shardwright_graph::{
    ComponentKind, ConstantFormat, Encodings, EntryGraph, EntryOptions, Graph, INVISIBLE, LAST_HIDDEN,
    LegaliseError, NodeVerdict, Op, PER_LAYER, PortSide, Range, Ranges, Role, StateId, TensorId,
    decompose_all, decompose_where, encode, hidden_key, legalise, legalise_encoded, nearest_bound_value,
    nearest_value, prepared, range_key, state_key, unrounded,
};
use shardwright_vocabulary::{
    ActivationFormat, DType, Encoding, EntryKind, Error, ErrorKind, FormatTuple, RoleFormat, ScaleBits,
    StateFormat, WeightFormat, WeightRole,
};

use crate::support::quantise::quantised;
use crate::support::{LayerRecipe, Recipe, point, toy};

fn entry(graph: &Graph, kind: EntryKind, layers: std::ops::Range<u32>) -> EntryGraph {
    let options = EntryOptions::default();
    graph.entry(ComponentKind::Decoder, layers, point(kind, 4, 32), options).unwrap().unwrap()
}

/// Returns every entry graph of a model, whole and cut.
fn entries(graph: &Graph, encoder: bool) -> Vec<EntryGraph> {
    let kinds = if encoder { vec![EntryKind::Encode] } else { vec![EntryKind::Prefill, EntryKind::Decode] };
    let mut entries = Vec::new();
    for kind in kinds {
        let point = if encoder { point(kind, 4, 4) } else { point(kind, 4, 32) };
        for component in ComponentKind::ALL.iter().copied().filter(|component| graph.has(*component)) {
            let layers = graph.layers();
            for range in [0..layers, 0..1, 1..layers] {
                for taps in [false, true] {
                    let options = EntryOptions { taps };
                    entries.extend(graph.entry(component, range.clone(), point, options).unwrap());
                }
            }
        }
        for segments in crate::support::joined(graph) {
            entries.extend(graph.entry_of(&segments, point, EntryOptions::default()).unwrap());
        }
    }
    entries
}

fn is_no_range(error: &Error, key: &str) -> bool {
    let is_named = error.message().starts_with(&format!("no range of `{key}` is known"));
    is_named && error.kind() == ErrorKind::Invalid && error.help().is_some()
}

fn by_runtime(entry: &EntryGraph) -> EntryGraph {
    let verdict = |op: &Op| if op.is_semantic() { NodeVerdict::refused("") } else { NodeVerdict::accepted() };
    let check =
        |graph: &EntryGraph| Ok::<_, Infallible>(graph.nodes.iter().map(|node| verdict(&node.op)).collect());
    legalise(entry, check).unwrap().graph
}

fn tuples() -> Vec<FormatTuple> {
    let of = |&activations: &ActivationFormat| {
        StateFormat::ALL
            .iter()
            .map(move |&states| FormatTuple::uniform(WeightFormat::W8PerChannel, activations, states))
    };
    ActivationFormat::ALL.iter().flat_map(of).collect()
}

fn tensor<'e>(entry: &'e EntryGraph, name: &str) -> (TensorId, &'e shardwright_graph::Tensor) {
    let index = entry.tensors.iter().position(|tensor| tensor.name == name);
    let index = index.unwrap_or_else(|| panic!("no tensor `{name}`"));
    (TensorId(index as u32), &entry.tensors[index])
}

fn range(low: f32, high: f32) -> Range {
    Range { low, high, masked: false }
}

/// Returns the range −1..1 for every tensor except the named ones.
fn ranges(entry: &EntryGraph, named: &[(&str, Range)]) -> Ranges {
    let mut ranges: Ranges = (0..entry.tensors.len())
        .map(|index| (range_key(entry, TensorId(index as u32)), range(-1.0, 1.0)))
        .collect();
    ranges.extend(named.iter().map(|(key, range)| ((*key).to_owned(), *range)));
    ranges
}

/// Lists names and operations, without conversions.
fn operations(graph: &EntryGraph) -> Vec<(&str, &Op)> {
    let others = graph.nodes.iter().filter(|node| node.op != Op::Convert);
    others.map(|node| (node.name.as_str(), &node.op)).collect()
}

/// Returns `form` with the added scalars raised that f16 tensors of `encoded` would round to zero.
fn in_f16(encoded: &EntryGraph, form: &EntryGraph) -> EntryGraph {
    let mut graph = form.clone();
    for node in graph.nodes.iter_mut().filter(|node| encoded.tensor(node.output).dtype == DType::F16) {
        match &mut node.op {
            Op::AddScalar { value } if *value > 0.0 => *value = value.max(2.0_f32.powi(-24)),
            _ => {}
        }
    }
    graph
}

#[test]
fn every_entry_in_every_form_and_format_is_valid() {
    for recipe in [Recipe::sharing(), Recipe::encoder()] {
        for formats in tuples() {
            let graph = quantised(&toy(&recipe), &formats);
            let encodings = Encodings::counting(&formats);
            for entry in entries(&graph, recipe.encoder) {
                let entry = prepared(&entry, &encodings);
                for form in [entry.clone(), decompose_all(&entry), by_runtime(&entry)] {
                    let encoded = encode(&form, &encodings).unwrap();
                    encoded.validate().unwrap_or_else(|error| panic!("{formats}: {error}"));
                    let raised = in_f16(&encoded, &form);
                    if formats.activations.has_float_stream() {
                        assert_eq!(operations(&encoded), operations(&raised), "conversions alone are added");
                    } else {
                        assert_eq!(encoded.nodes, raised.nodes, "operations stay");
                    }
                    let again = encode(&encoded, &encodings);
                    let integers = encoded.tensors.iter().any(|tensor| tensor.affine.is_some());
                    let refused = again.is_err_and(|error| error.message().starts_with("already encoded"));
                    assert_eq!(integers, refused, "{formats}");
                    // Decomposing an already encoded graph is valid too.
                    let steps = decompose_all(&encoded);
                    steps.validate().unwrap_or_else(|error| panic!("{formats}: {error}"));
                    let constant =
                        |tensor: &&shardwright_graph::Tensor| tensor.weight.is_some() || tensor.is_index();
                    let kept = |graph: &EntryGraph| {
                        graph.tensors.iter().filter(constant).cloned().collect::<Vec<_>>()
                    };
                    assert_eq!(kept(&encoded), kept(&form), "constants and indices stay");
                }
            }
        }
    }
}

#[test]
fn keys_are_the_same_wherever_a_tensor_appears() {
    let graph = toy(&Recipe::sharing());
    let whole = entry(&graph, EntryKind::Decode, 0..4);
    let mut shapes: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for entry in
        [whole.clone(), entry(&graph, EntryKind::Decode, 0..2), entry(&graph, EntryKind::Decode, 2..4)]
    {
        for form in [entry.clone(), decompose_all(&entry), by_runtime(&entry)] {
            for (index, tensor) in form.tensors.iter().enumerate() {
                let key = range_key(&form, TensorId(index as u32));
                // If the runtime writes the new rows, attention has more keys. Per-layer inputs are
                // a slice.
                let comparable = tensor.weight.is_none() && key != PER_LAYER && !key.contains("attention");
                if comparable {
                    let known = shapes.entry(key.clone()).or_insert_with(|| tensor.shape.clone());
                    assert_eq!(*known, tensor.shape, "{key}");
                }
            }
        }
    }
    let key = |entry: &EntryGraph, side: &[(TensorId, Role)]| {
        let (tensor, _) = side.iter().find(|(_, role)| *role == Role::Hidden).unwrap();
        range_key(entry, *tensor)
    };
    for (layers, before, after) in [(0..2, 0, 2), (2..4, 2, 4), (0..4, 0, 4)] {
        let entry = entry(&graph, EntryKind::Decode, layers);
        assert_eq!(key(&entry, &entry.inputs), hidden_key(before));
        assert_eq!(key(&entry, &entry.outputs), hidden_key(after));
    }
    let other = |component| {
        let options = EntryOptions::default();
        graph.entry(component, 0..0, point(EntryKind::Decode, 4, 32), options).unwrap().unwrap()
    };
    let embed = other(ComponentKind::Embed);
    assert_eq!(key(&embed, &embed.outputs), hidden_key(0));
    assert_eq!(range_key(&embed, embed.inputs[0].0), "gathered@0");
    let head = other(ComponentKind::Head);
    assert_eq!(key(&head, &head.inputs), LAST_HIDDEN);
    assert_eq!(range_key(&head, head.output(&Role::Logits).unwrap()), "head/softcap");
    let per_layer = other(ComponentKind::PerLayerInput);
    assert_eq!(key(&per_layer, &per_layer.inputs), hidden_key(0));
    assert_eq!(range_key(&per_layer, per_layer.outputs[0].0), PER_LAYER);
    let (slice, _) = tensor(&whole, "per-layer");
    assert_eq!(range_key(&whole, slice), PER_LAYER);
    let state = whole.input(&Role::State { state: StateId(0) }).unwrap();
    assert_eq!(range_key(&whole, state), state_key("layer.0.k"));
}

#[test]
fn what_moves_into_each_other_shares_an_encoding() {
    let graph = toy(&Recipe::sharing());
    let semantic = entry(&graph, EntryKind::Decode, 0..4);
    let entry = decompose_all(&semantic);
    let ranges = ranges(
        &entry,
        &[
            ("decoder/layer.0.q-norm.mul-7", range(-3.0, 5.0)),
            ("decoder/layer.0.q-norm", range(-4.0, 2.0)),
            (PER_LAYER, range(-7.0, 0.0)),
            (&state_key("layer.0.k"), range(0.5, 9.0)),
            (&hidden_key(4), range(-1.0, 64.0)),
        ],
    );
    let formats = FormatTuple::uniform(WeightFormat::F32, ActivationFormat::A16, StateFormat::A8);
    let encoded = encode(&entry, &Encodings::of(&formats, &ranges)).unwrap();
    let of = |name: &str| tensor(&encoded, name).1.encoding().unwrap();
    // A reshape in a grouped norm: the union of both observed ranges.
    assert_eq!(of("layer.0.q-norm"), Encoding::affine_over(-4.0, 5.0, 16));
    assert_eq!(of("layer.0.q-norm.mul-7"), of("layer.0.q-norm"));
    // Slices of the per-layer inputs have the range of the whole.
    assert_eq!(of("layer.2.per-layer-slice"), Encoding::affine_over(-7.0, 0.0, 16));
    assert_eq!(of("layer.2.per-layer-input"), of("per-layer"));
    // The residual stream has the encoding in which the next shard reads it.
    let (last, _) = *encoded.outputs.iter().find(|(_, role)| *role == Role::Hidden).unwrap();
    assert_eq!(encoded.tensor(last).encoding(), Some(Encoding::affine_over(-1.0, 64.0, 16)));
    // A state, its new rows, and the keys that attention reads from it have the state's own format
    // and range.
    let state = Encoding::centred_over(0.0, 9.0, 8);
    for name in ["state.layer.0.k", "layer.0.k-write", "layer.0.k-rope", "layer.0.k-rope.rotate-1.concat-12"]
    {
        assert_eq!(of(name), state, "{name}");
    }
    let reads = encoded.nodes.iter().filter(|node| node.name.starts_with("layer.0.attention.reshape"));
    assert!(reads.filter(|node| encoded.tensor(node.output).encoding() == Some(state)).count() >= 1);
    // A softmax's results have a fixed range too, in every form and for all observed values.
    let unit = Encoding::affine_over(0.0, 1.0, 16);
    assert_eq!(of("layer.0.attention.softmax-12"), unit);
    assert_ne!(of("layer.0.attention.softmax-12.exp-3"), unit);
    let whole = |_: usize, node: &shardwright_graph::EntryNode| matches!(node.op, Op::Attention(_));
    let whole = encode(&decompose_where(&semantic, whole), &Encodings::of(&formats, &ranges)).unwrap();
    assert!(whole.nodes.iter().any(|node| node.op == Op::Softmax));
    assert_eq!(tensor(&whole, "layer.0.attention.softmax-12").1.encoding(), Some(unit));
    // Tables always have the same range.
    let (cos, _) = *encoded.inputs.iter().find(|(_, role)| matches!(role, Role::RotaryCos(_))).unwrap();
    assert_eq!(encoded.tensor(cos).encoding(), Some(Encoding::affine_over(-1.0, 1.0, 16)));
    let symmetric = FormatTuple { activations: ActivationFormat::A16Symmetric, ..formats };
    let encoded = encode(&entry, &Encodings::of(&symmetric, &ranges)).unwrap();
    let of = tensor(&encoded, "layer.0.q-norm").1.encoding();
    assert_eq!(of, Some(Encoding::symmetric_over(-4.0, 5.0, 16)));
}

#[test]
fn states_take_their_own_format() {
    let graph = toy(&Recipe::sharing());
    let entry = entry(&graph, EntryKind::Decode, 0..4);
    let ranges = ranges(&entry, &[(&state_key("layer.1.v"), range(-2.0, 3.0))]);
    for (states, wanted) in [
        (StateFormat::F32, Encoding::F32),
        (StateFormat::F16, Encoding::F16),
        (StateFormat::A16, Encoding::centred_over(-2.0, 3.0, 16)),
        (StateFormat::A8, Encoding::centred_over(-2.0, 3.0, 8)),
    ] {
        for &activations in ActivationFormat::ALL {
            // Signed integers are joined to new rows that are signed too.
            let wanted = match (activations, states) {
                (activations, StateFormat::A16) if activations.is_symmetric() => {
                    Encoding::symmetric_over(-2.0, 3.0, 16)
                }
                _ => wanted,
            };
            let formats = FormatTuple::uniform(WeightFormat::F32, activations, states);
            let encodings = Encodings::of(&formats, &ranges);
            assert_eq!(encodings.state("layer.1.v").unwrap(), wanted);
            let encoded = encode(&entry, &encodings).unwrap();
            for name in ["state.layer.1.v", "layer.1.v-write", "layer.1.v-norm"] {
                assert_eq!(tensor(&encoded, name).1.encoding(), Some(wanted), "{formats} {name}");
            }
            let inside = match activations {
                ActivationFormat::F32 | ActivationFormat::A8Dynamic | ActivationFormat::A8DynamicBlock32 => {
                    DType::F32
                }
                ActivationFormat::F16 => DType::F16,
                ActivationFormat::A16 | ActivationFormat::A16F16Stream => DType::U16,
                ActivationFormat::A16Symmetric | ActivationFormat::A16SymmetricF16Stream => DType::I16,
            };
            assert_eq!(tensor(&encoded, "layer.1.v").1.dtype, inside, "{formats}");
        }
    }
    // Values that are also keys, with the same encoding in both states.
    let mut shared = entry.clone();
    let write = shared.nodes.iter().find(|node| node.name == "layer.1.k-write").unwrap().inputs[1];
    shared.nodes.iter_mut().find(|node| node.name == "layer.1.v-write").unwrap().inputs[1] = write;
    let of = |states| {
        let formats = FormatTuple::uniform(WeightFormat::F32, ActivationFormat::F32, states);
        encode(&shared, &Encodings::of(&formats, &ranges))
    };
    of(StateFormat::F16).unwrap().validate().unwrap();
    let error = of(StateFormat::A8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("the states `layer.1.k` and `layer.1.v`"), "{error}");
    assert!(error.help().is_some());

    let none = Ranges::new();
    let formats = FormatTuple::uniform(WeightFormat::F32, ActivationFormat::F32, StateFormat::A8);
    let error = Encodings::of(&formats, &none).state("layer.1.v").unwrap_err();
    assert!(is_no_range(&error, "decoder/state.layer.1.v"), "{error}");
}

#[test]
fn masks_reach_below_every_score_whether_one_was_seen_masked_or_not() {
    let graph = toy(&Recipe::sharing());
    let whole = entry(&graph, EntryKind::Decode, 0..4);
    for entry in [decompose_all(&whole), by_runtime(&whole)] {
        let add = entry
            .nodes
            .iter()
            .find(|node| node.layer == Some(1) && node.op == Op::Add && node.name.contains("attention."))
            .unwrap();
        let (scores, mask) = (add.inputs[0], add.inputs[1]);
        let below = entry
            .nodes
            .iter()
            .find(|node| node.layer == Some(1) && node.op == Op::Sub && node.inputs[0] == add.output)
            .unwrap()
            .output;
        let key = |tensor| range_key(&entry, tensor);
        for masked in [false, true] {
            // All scores are nearly equal. Without space below, an invisible key would have almost
            // the weight of a visible one.
            let ranges = ranges(
                &entry,
                &[
                    (&key(scores), range(3.0, 3.25)),
                    (&key(add.output), Range { low: 3.0, high: 3.25, masked }),
                    (&key(below), Range { low: -0.25, high: 0.0, masked }),
                ],
            );
            let formats = FormatTuple::uniform(WeightFormat::F32, ActivationFormat::A16, StateFormat::F32);
            let encoded = encode(&entry, &Encodings::of(&formats, &ranges)).unwrap();
            let of = |tensor| encoded.tensor(tensor).encoding().unwrap();
            let invisible = nearest_value(&of(mask), INVISIBLE);
            assert_eq!(nearest_value(&of(mask), 0.0), 0.0);
            for score in [3.0, 3.25] {
                let visible = nearest_value(&of(add.output), score);
                let hidden = nearest_value(&of(add.output), score + invisible);
                assert!((visible - score).abs() < 1e-3);
                let weight = nearest_value(&of(below), hidden - visible).exp();
                assert!(weight < 1e-10, "an invisible key weighs {weight}");
            }
            // A score keeps its own range, and so does the rest of the softmax.
            assert_eq!(of(scores), Encoding::affine_over(0.0, 3.25, 16));
        }
        let formats = FormatTuple::uniform(WeightFormat::F32, ActivationFormat::F16, StateFormat::F32);
        let encoded = encode(&entry, &Encodings::counting(&formats)).unwrap();
        assert_eq!(nearest_bound_value(&encoded.tensor(mask).encoding().unwrap(), INVISIBLE), -65_504.0);
    }
}

#[test]
fn the_epsilon_of_a_norm_stays_positive_in_f16() {
    let whole = entry(&toy(&Recipe::sharing()), EntryKind::Decode, 0..4);
    let ranges = ranges(&decompose_all(&whole), &[(&hidden_key(1), range(-3e5, 3e5))]);
    let of = |activations| {
        let formats = FormatTuple::uniform(WeightFormat::F32, activations, StateFormat::F32);
        let encodings = Encodings::of(&formats, &ranges);
        encode(&decompose_all(&prepared(&whole, &encodings)), &encodings).unwrap()
    };
    let scalars = |graph: &EntryGraph| -> Vec<f32> {
        let added = |op: &Op| if let Op::AddScalar { value } = op { Some(*value) } else { None };
        graph.nodes.iter().filter_map(|node| added(&node.op)).filter(|value| *value < 0.01).collect()
    };
    let (exact, raised) = (scalars(&of(ActivationFormat::F32)), scalars(&of(ActivationFormat::F16)));
    assert_eq!(exact.len(), raised.len());
    // The epsilon of norms that read the stream is divided by the square of its unit.
    assert!(exact.iter().all(|value| *value == 1e-6) && raised.iter().any(|value| *value < 1e-6));
    assert!(raised.iter().all(|value| nearest_value(&Encoding::F16, *value) > 0.0), "{raised:?}");
}

#[test]
fn ports_of_another_encoding_get_a_conversion() {
    let graph = toy(&Recipe::sharing());
    let whole = entry(&graph, EntryKind::Decode, 1..3);
    let bytes = Encoding { element: DType::U8, scale: ScaleBits::ONE, zero_point: 7 };
    let formats = FormatTuple::uniform(WeightFormat::F32, ActivationFormat::F16, StateFormat::F32);
    let mut encodings = Encodings::counting(&formats);
    encodings.ports = vec![
        (PortSide::Input, Role::Hidden, bytes),
        (PortSide::Output, Role::Hidden, Encoding::F32),
        // Encoded like the inside.
        (PortSide::Input, Role::PerLayer { first: 1, layers: 2 }, Encoding::F16),
        // The graph has no such port.
        (PortSide::Output, Role::Logits, bytes),
    ];
    let encoded = encode(&whole, &encodings).unwrap();
    encoded.validate().unwrap();
    assert_eq!(encoded.nodes.len(), whole.nodes.len() + 2);
    let (first, last) = (&encoded.nodes[0], encoded.nodes.last().unwrap());
    assert_eq!((&first.op, first.layer), (&Op::Convert, Some(1)));
    assert_eq!((&last.op, last.layer), (&Op::Convert, Some(2)));
    let input = encoded.input(&Role::Hidden).unwrap();
    assert_eq!(encoded.tensor(input).encoding(), Some(bytes));
    assert_eq!(first.inputs, [input]);
    assert_eq!(encoded.tensor(first.output).encoding(), Some(Encoding::F16));
    assert!(encoded.nodes[1..].iter().all(|node| !node.inputs.contains(&input)));
    let output = encoded.output(&Role::Hidden).unwrap();
    assert_eq!((last.output, encoded.tensor(output).encoding()), (output, Some(Encoding::F32)));
    let per_layer = encoded.input(&Role::PerLayer { first: 1, layers: 2 }).unwrap();
    assert_eq!(encoded.tensor(per_layer).name, "per-layer");

    // If a shim refuses the conversion, the help suggests another port. If a shim refuses an
    // operation, it gets the steps, including converted ports.
    let refusing = |refused: fn(&Op) -> bool| {
        legalise_encoded(&whole, &encodings, |graph| {
            graph.validate().unwrap();
            let verdict =
                |op: &Op| if refused(op) { NodeVerdict::refused("no") } else { NodeVerdict::accepted() };
            Ok::<_, Infallible>(graph.nodes.iter().map(|node| verdict(&node.op)).collect())
        })
    };
    let error = refusing(|op| *op == Op::Convert).unwrap_err();
    assert!(matches!(&error, LegaliseError::Refused { op: "convert", layer: Some(1), .. }), "{error}");
    let legal = refusing(Op::is_semantic).unwrap();
    assert_eq!(legal.graph.nodes.iter().filter(|node| node.op == Op::Convert).count(), 2);
    assert!(legal.graph.nodes.iter().all(|node| !node.op.is_semantic()));
    assert_eq!(legal.by_runtime.len(), 2);
    assert_eq!(encode(&by_runtime(&prepared(&whole, &encodings)), &encodings).unwrap(), legal.graph);
}

#[test]
fn a_range_that_is_not_known_is_named() {
    let graph = toy(&Recipe::sharing());
    let whole = decompose_all(&entry(&graph, EntryKind::Decode, 0..4));
    let formats = FormatTuple::uniform(WeightFormat::F32, ActivationFormat::A16, StateFormat::A16);
    let all = ranges(&whole, &[]);
    encode(&whole, &Encodings::of(&formats, &all)).unwrap();
    for key in
        ["hidden@0", "hidden@4", PER_LAYER, "decoder/state.layer.0.k", "decoder/layer.1.mlp-norm.rsqrt-4"]
    {
        let mut without = all.clone();
        assert!(without.remove(key).is_some(), "{key}");
        let error = encode(&whole, &Encodings::of(&formats, &without)).unwrap_err();
        assert!(is_no_range(&error, key), "{error}");
        let legal = legalise_encoded(&whole, &Encodings::of(&formats, &without), |graph| {
            Ok::<_, Infallible>(vec![NodeVerdict::accepted(); graph.nodes.len()])
        });
        let Err(LegaliseError::Other(error)) = &legal else { panic!("{legal:?}") };
        assert!(error.message().starts_with("no range of"), "{error}");
    }
    // Formats that do not need ranges do not query them.
    let none = Ranges::new();
    for activations in [ActivationFormat::F32, ActivationFormat::F16, ActivationFormat::A8Dynamic] {
        let formats = FormatTuple::uniform(WeightFormat::F32, activations, StateFormat::F16);
        encode(&whole, &Encodings::of(&formats, &none)).unwrap();
    }
    let encoded = encode(&whole, &Encodings::of(&formats, &all)).unwrap();
    let error = encode(&encoded, &Encodings::of(&formats, &all)).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Internal, "already encoded as u16"));
    assert!(error.place().is_some_and(|place| place.starts_with("tensor `")), "{error}");
    assert!(error.help().is_some());
}

#[test]
fn only_matrices_of_integers_have_rows_quantised_at_run_time() {
    let layers = vec![LayerRecipe { bias: true, ..LayerRecipe::plain() }; 2];
    let mut formats =
        FormatTuple::uniform(WeightFormat::W4Block32, ActivationFormat::A8Dynamic, StateFormat::F32);
    formats.roles = vec![RoleFormat { role: WeightRole::MlpOutput, format: WeightFormat::F16 }];
    let graph = quantised(&toy(&Recipe { layers, ..Recipe::sharing() }), &formats);
    let whole = entry(&graph, EntryKind::Decode, 0..2);
    for (activations, block) in [(ActivationFormat::A8Dynamic, 0), (ActivationFormat::A8DynamicBlock32, 32)] {
        let formats = FormatTuple { activations, ..formats.clone() };
        let dynamic = prepared(&whole, &Encodings::counting(&formats));
        dynamic.validate().unwrap();
        for (before, after) in whole.nodes.iter().zip(&dynamic.nodes) {
            let wanted = before.op == Op::Linear && !before.name.ends_with("down");
            assert_eq!(after.op == Op::DynamicLinear { block }, wanted, "{}", before.name);
            // Shims that only support whole rows must refuse blocks.
            assert_eq!(after.op.version(), if wanted && block > 0 { 2 } else { 1 }, "{}", before.name);
        }
        assert_eq!(unrounded(&dynamic), unrounded(&whole));
    }
    for activations in [ActivationFormat::F32, ActivationFormat::A16, ActivationFormat::A16Symmetric] {
        let formats = FormatTuple { activations, ..formats.clone() };
        assert_eq!(prepared(&whole, &Encodings::counting(&formats)), whole);
    }
}

#[test]
fn formats_apply_to_matrices_and_the_rest_follows_the_activations() {
    let graph = toy(&Recipe { dtype: DType::F16, ..Recipe::sharing() });
    let formats = |weights, activations| FormatTuple::uniform(weights, activations, StateFormat::F32);
    let of = |formats: &FormatTuple, part: &str| {
        let index = graph.weights.iter().position(|weight| weight.part == part).unwrap();
        graph.constant_formats(formats)[index]
    };
    use ActivationFormat::{A16, A16Symmetric, F16, F32};
    for (activations, norm) in [
        (F32, ConstantFormat::Stored),
        // Already stored in this format.
        (F16, ConstantFormat::Stored),
        (A16, ConstantFormat::Activation),
        (A16Symmetric, ConstantFormat::Activation),
    ] {
        let mut tuple = formats(WeightFormat::W8PerChannel, activations);
        tuple.roles = vec![
            RoleFormat { role: WeightRole::AttentionInput, format: WeightFormat::W4Block32 },
            RoleFormat { role: WeightRole::MlpOutput, format: WeightFormat::F16 },
        ];
        assert_eq!(of(&tuple, "norm"), norm);
        assert_eq!(of(&tuple, "k"), ConstantFormat::Matrix(WeightFormat::W4Block32));
        assert_eq!(of(&tuple, "o"), ConstantFormat::Matrix(WeightFormat::W8PerChannel));
        assert_eq!(of(&tuple, "head"), ConstantFormat::Matrix(WeightFormat::W8PerChannel));
        assert_eq!(of(&tuple, "down"), ConstantFormat::Stored);
        // The counted bytes are the stored bytes.
        let (planned, made) = (graph.planned(&tuple).unwrap(), quantised(&graph, &tuple));
        for (planned, made) in planned.weights.iter().zip(&made.weights) {
            assert_eq!((planned.dtype, planned.bytes()), (made.dtype, made.bytes()), "{}", made.name);
        }
    }
    let plain = toy(&Recipe::sharing());
    let norm = plain.weights.iter().position(|weight| weight.part == "norm").unwrap();
    let tuple = formats(WeightFormat::F32, F16);
    assert_eq!(plain.constant_formats(&tuple)[norm], ConstantFormat::Matrix(WeightFormat::F16));
}
