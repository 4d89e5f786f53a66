use shardwright_graph::{
    ComponentKind, EntryGraph, EntryOptions, Keys, Op, Role, decompose_all, decompose_where,
};
use shardwright_vocabulary::EntryKind;

use crate::support::{LayerRecipe, Recipe, point, toy};

fn entry(recipe: &Recipe, component: ComponentKind, kind: EntryKind) -> EntryGraph {
    let graph = toy(recipe);
    let context = if kind == EntryKind::Encode { 4 } else { 32 };
    let options = EntryOptions { taps: true };
    graph.entry(component, 0..graph.layers(), point(kind, 4, context), options).unwrap().unwrap()
}

fn every_entry() -> Vec<EntryGraph> {
    let sharing = Recipe::sharing();
    let rich = LayerRecipe {
        heads: 4,
        kv_heads: 2,
        softcap: 5.0,
        rotated_pairs: 1,
        factor: 8.0,
        gelu: false,
        bias: true,
        ..LayerRecipe::plain()
    };
    let rich =
        Recipe { weight_offset: 1.0, layers: vec![rich, LayerRecipe::sliding(5)], ..Recipe::sharing() };
    let mut entries = Vec::new();
    for recipe in [&sharing, &rich] {
        for component in ComponentKind::ALL.iter().copied().filter(|kind| toy(recipe).has(*kind)) {
            entries.push(entry(recipe, component, EntryKind::Decode));
        }
        entries.push(entry(recipe, ComponentKind::Decoder, EntryKind::Prefill));
    }
    for component in [ComponentKind::Embed, ComponentKind::Decoder, ComponentKind::Pooling] {
        entries.push(entry(&Recipe::encoder(), component, EntryKind::Encode));
    }
    entries
}

fn ports(ports: &[(shardwright_graph::TensorId, Role)], graph: &EntryGraph) -> Vec<(String, Vec<u64>)> {
    ports.iter().map(|(tensor, role)| (format!("{role:?}"), graph.tensor(*tensor).shape.clone())).collect()
}

#[test]
fn every_semantic_operation_falls_into_primitives() {
    for graph in every_entry() {
        let primitive = decompose_all(&graph);
        primitive.validate().unwrap();
        for node in &primitive.nodes {
            assert!(!node.op.is_semantic() || node.op == Op::StateUpdate, "{}", node.name);
        }
        assert_eq!(ports(&graph.outputs, &graph), ports(&primitive.outputs, &primitive));
        assert_eq!(graph.states, primitive.states);
        assert_eq!(graph.weight_bytes(), primitive.weight_bytes());
        assert_eq!(graph.multiply_adds(), {
            // Pooling's product over rows is a primitive in both forms. The rest are the same
            // products under other names.
            primitive.multiply_adds()
        });
        assert_eq!(decompose_all(&primitive), primitive, "nothing is left to decompose");
        assert_eq!(decompose_where(&graph, |_, _| false).nodes.len(), graph.nodes.len());
    }
}

#[test]
fn positions_become_tables() {
    let graph = entry(&Recipe::sharing(), ComponentKind::Decoder, EntryKind::Decode);
    let primitive = decompose_all(&graph);
    let of = |name| primitive.inputs.iter().filter(|(_, role)| role.name() == name).count();
    assert_eq!(of("positions"), 0);
    // Two kinds of rotary tables, a mask for the ring and one for the linear states, and slots for
    // each.
    assert_eq!([of("rotary-cos"), of("rotary-sin"), of("mask"), of("slots")], [2, 2, 2, 2]);
    let masks: Vec<_> = primitive
        .inputs
        .iter()
        .filter_map(|(tensor, role)| match role {
            Role::Mask(mask) => Some((mask.keys, mask.window, primitive.tensor(*tensor).shape.clone())),
            _ => None,
        })
        .collect();
    let (ring, linear) = (Keys::State { capacity: 9 }, Keys::State { capacity: 32 });
    assert_eq!(masks, [(ring, 5, vec![4, 9]), (linear, 0, vec![4, 32])]);
}

#[test]
fn one_operation_alone_can_be_decomposed() {
    let cases: [(&str, &[&str]); 8] = [
        ("layer.0.input-norm", &["mul", "reduce-mean", "add-scalar", "rsqrt", "mul", "mul"]),
        ("layer.0.v-norm", &["mul", "reduce-mean", "add-scalar", "rsqrt", "mul"]),
        (
            "layer.0.q-norm",
            &["reshape", "mul", "reduce-mean", "add-scalar", "rsqrt", "mul", "mul", "reshape"],
        ),
        ("layer.0.q", &["mat-mul"]),
        ("layer.0.q-rope", &["rotate"]),
        (
            "layer.0.attention",
            &[
                "reshape",
                "transpose",
                "reshape",
                "transpose",
                "reshape",
                "reshape",
                "transpose",
                "reshape",
                "mat-mul",
                "mul-scalar",
                "add",
                "softmax",
                "mat-mul",
                "transpose",
                "reshape",
            ],
        ),
        (
            "layer.0.activation",
            &["mul", "mul", "mul-scalar", "add", "mul-scalar", "tanh", "add-scalar", "mul-scalar", "mul"],
        ),
        ("layer.0.per-layer-activation", &["mul-scalar", "tanh", "mul-scalar", "add-scalar", "mul"]),
    ];
    let graph = entry(&Recipe::sharing(), ComponentKind::Decoder, EntryKind::Decode);
    for (name, wanted) in cases {
        let one = decompose_where(&graph, |_, node| node.name == name);
        one.validate().unwrap();
        let steps: Vec<&str> = one
            .nodes
            .iter()
            .filter(|node| node.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
            .map(|node| node.op.name())
            .collect();
        assert_eq!(steps, wanted, "{name}");
        assert_eq!(one.nodes.len(), graph.nodes.len() - 1 + steps.len());
    }
    let steps = |recipe: &Recipe, component, kind, name: &str| {
        let graph = entry(recipe, component, kind);
        let one = decompose_where(&graph, |_, node| node.name == name);
        one.validate().unwrap();
        one.nodes
            .iter()
            .filter(|node| node.name.starts_with(&format!("{name}.")))
            .map(|n| n.op.name())
            .collect::<Vec<_>>()
    };
    let capped = LayerRecipe { softcap: 5.0, ..LayerRecipe::plain() };
    let capped = Recipe { layers: vec![capped], ..Recipe::sharing() };
    let attention = steps(&capped, ComponentKind::Decoder, EntryKind::Decode, "layer.0.attention");
    assert_eq!(attention[8..14], ["mat-mul", "mul-scalar", "softcap", "add", "softmax", "mat-mul"]);
    let head = steps(&Recipe::sharing(), ComponentKind::Head, EntryKind::Decode, "softcap");
    assert_eq!(head, ["mul-scalar", "tanh", "mul-scalar"]);
    let pooling = steps(&Recipe::encoder(), ComponentKind::Pooling, EntryKind::Encode, "unit");
    assert_eq!(pooling, ["mul", "reduce-sum", "sqrt", "max-scalar", "div"]);
}

#[test]
fn what_is_left_of_an_operation_falls_in_turn() {
    let capped = LayerRecipe { softcap: 5.0, ..LayerRecipe::plain() };
    let recipe = Recipe { layers: vec![capped], per_layer_width: 0, ..Recipe::sharing() };
    let graph = entry(&recipe, ComponentKind::Decoder, EntryKind::Decode);
    let first = decompose_where(&graph, |_, node| matches!(node.op, Op::Rope(_) | Op::Attention(_)));
    first.validate().unwrap();
    let cases: [(&str, &str, &[&str]); 3] = [
        (
            "layer.0.q-rope.rotate-1",
            "layer.0.q-rope",
            &[
                "reshape", "reshape", "reshape", "slice", "slice", "mul", "mul", "sub", "mul", "mul", "add",
                "concat", "reshape",
            ],
        ),
        (
            "layer.0.attention.softcap-11",
            "layer.0.attention.softcap-11",
            &["mul-scalar", "tanh", "mul-scalar"],
        ),
        (
            "layer.0.attention.softmax-13",
            "layer.0.attention.softmax-13",
            &["reduce-max", "sub", "exp", "reduce-sum", "div"],
        ),
    ];
    for (name, result, wanted) in cases {
        let node = first.nodes.iter().find(|node| node.name == name).unwrap();
        assert_eq!(first.tensor(node.output).name, result);
        let second = decompose_where(&first, |_, node| node.name == name);
        second.validate().unwrap();
        let steps: Vec<_> =
            second.nodes.iter().filter(|node| node.name.starts_with(&format!("{name}."))).collect();
        assert_eq!(steps.iter().map(|node| node.op.name()).collect::<Vec<_>>(), wanted, "{name}");
        assert_eq!(second.tensor(steps[steps.len() - 1].output).name, result, "its result keeps its name");
    }
}

/// Ranges are observed in primitives and apply to every form, so every form's tensors must exist in
/// the primitives.
#[test]
fn every_tensor_on_the_way_down_keeps_its_name() {
    for graph in every_entry() {
        let primitive = decompose_all(&graph);
        let names: std::collections::HashSet<&str> =
            primitive.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let once = decompose_where(&graph, |_, _| true);
        let parts = decompose_where(&graph, |_, node| matches!(node.op, Op::Rope(_) | Op::Attention(_)));
        for half_way in [graph, once, parts] {
            half_way.validate().unwrap();
            for tensor in half_way.tensors.iter().filter(|tensor| !tensor.is_index()) {
                assert!(names.contains(tensor.name.as_str()), "{}", tensor.name);
            }
        }
    }
}

#[test]
fn tables_that_differ_have_names_that_differ() {
    let layers = [1.0, 8.0].map(|factor| LayerRecipe { factor, ..LayerRecipe::plain() }).to_vec();
    let graph = entry(&Recipe { layers, ..Recipe::sharing() }, ComponentKind::Decoder, EntryKind::Decode);
    decompose_all(&graph).validate().unwrap();
}
