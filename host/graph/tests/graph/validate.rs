use proptest::prelude::*;
use shardwright_graph::validate::{
    ELEMENT_LIMIT, EXTENT_LIMIT, LAYER_LIMIT, NAME_LIMIT, NODE_LIMIT, PORT_LIMIT, STATE_LIMIT, TENSOR_LIMIT,
};
use shardwright_graph::{
    ComponentKind, EntryGraph, EntryNode, EntryOptions, KeySource, NodeVerdict, Op, Role, Segment, StateId,
    Tensor, TensorId, WeightId, decompose_all, legalise,
};
use shardwright_vocabulary::{Affine, DType, EntryKind, ErrorKind, ScaleBits};

use crate::support::{Recipe, point, toy};

fn good() -> EntryGraph {
    let graph = toy(&Recipe::sharing());
    let options = EntryOptions { taps: true };
    graph.entry(ComponentKind::Decoder, 0..4, point(EntryKind::Decode, 4, 32), options).unwrap().unwrap()
}

fn node<'g>(graph: &'g mut EntryGraph, name: &str) -> &'g mut EntryNode {
    graph.nodes.iter_mut().find(|node| node.name == name).unwrap()
}

fn input(graph: &EntryGraph, name: &str) -> usize {
    graph.inputs.iter().position(|(_, role)| role.name() == name).unwrap()
}

fn output(graph: &EntryGraph, name: &str) -> usize {
    graph.outputs.iter().position(|(_, role)| role.name() == name).unwrap()
}

fn tensor<'g>(graph: &'g mut EntryGraph, name: &str) -> &'g mut Tensor {
    graph.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
}

#[test]
fn graphs_of_our_own_pass() {
    good().validate().unwrap();
    decompose_all(&good()).validate().unwrap();
}

/// A change to a graph, with parts of the place and the message of the error. An error without a
/// place has an empty one here.
type Case = (&'static str, fn(&mut EntryGraph), &'static str, &'static str);

fn check(cases: &[Case]) {
    for &(name, alter, place, message) in cases {
        let mut graph = good();
        alter(&mut graph);
        let error = graph.validate().expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error}");
        let found = error.place().unwrap_or_default();
        assert!(found.contains(place) && found.is_empty() == place.is_empty(), "{name}: {error}");
        assert!(error.message().contains(message), "{name}: {error}");
        assert!(error.help().is_some());
        assert!(error.to_string().len() < 2000, "{name}: {error}");
    }
}

#[test]
fn too_much_is_refused() {
    check(&[
        (
            "nodes",
            |graph| graph.nodes = vec![graph.nodes[0].clone(); NODE_LIMIT + 1],
            "",
            "nodes exceed the limit",
        ),
        (
            "tensors",
            |graph| graph.tensors = vec![graph.tensors[0].clone(); TENSOR_LIMIT + 1],
            "",
            "tensors exceed the limit",
        ),
        (
            "inputs",
            |graph| graph.inputs = vec![graph.inputs[0].clone(); PORT_LIMIT + 1],
            "",
            "inputs exceed the limit",
        ),
        (
            "outputs",
            |graph| graph.outputs = vec![graph.outputs[0].clone(); PORT_LIMIT + 1],
            "",
            "outputs exceed the limit",
        ),
        (
            "states",
            |graph| graph.states = vec![graph.states[0].clone(); STATE_LIMIT + 1],
            "",
            "states exceed the limit",
        ),
        (
            "layers",
            |graph| graph.segments = Segment::decoder(0, LAYER_LIMIT + 1).into(),
            "",
            "layers exceed the limit",
        ),
        ("context", |graph| graph.point.context = EXTENT_LIMIT + 1, "", "context rows exceed the limit"),
        (
            "largest rows",
            |graph| graph.point.largest_rows = u64::MAX,
            "",
            "rows of the largest entry point exceed the limit",
        ),
        ("an extent", |graph| graph.tensors[1].shape = vec![EXTENT_LIMIT + 1], "tensor `", "extent"),
        (
            "elements",
            |graph| graph.tensors[1].shape = vec![EXTENT_LIMIT, ELEMENT_LIMIT / EXTENT_LIMIT + 1],
            "tensor `",
            "elements",
        ),
        ("axes", |graph| graph.tensors[1].shape = vec![1; 7], "tensor `", "7 axes"),
        ("operands", |graph| graph.nodes[1].inputs = vec![TensorId(0); 65], "node `", "65 operands"),
        (
            "axes of a reshape",
            |graph| graph.nodes[1].op = Op::Reshape { shape: vec![1; 1 << 20] },
            "node `",
            "axes exceed",
        ),
    ]);
}

#[test]
fn bad_names_are_refused() {
    check(&[
        ("empty", |graph| graph.nodes[0].name.clear(), "node `", "the name is empty"),
        (
            "long",
            |graph| graph.tensors[0].name = "x".repeat(NAME_LIMIT + 1),
            "tensor `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx`",
            "the name is too long",
        ),
        (
            "an escape sequence",
            |graph| graph.states[0].state.name = "layer\u{1b}[2J".to_owned(),
            "state `layer\\u{1b}[2J`",
            "the name contains control characters",
        ),
        (
            "a tap",
            |graph| {
                let tap = output(graph, "tap");
                graph.outputs[tap].1 = Role::Tap { name: "\n".to_owned() };
            },
            "output `tap`",
            "the name contains control characters",
        ),
        (
            "two nodes",
            |graph| graph.nodes[1].name = graph.nodes[0].name.clone(),
            "node `",
            "the name is used twice",
        ),
        (
            "two tensors",
            |graph| graph.tensors[1].name = graph.tensors[0].name.clone(),
            "tensor `",
            "the name is used twice",
        ),
    ]);
}

#[test]
fn impossible_points_and_ranges_are_refused() {
    check(&[
        ("no rows", |graph| graph.point.rows = 0, "", "an entry point of 0 rows"),
        ("rows beyond the context", |graph| graph.point.context = 3, "", "an entry point of 4 rows"),
        ("rows beyond the largest", |graph| graph.point.largest_rows = 3, "", "an entry point of 4 rows"),
        (
            "a turned range",
            |graph| graph.segments = Segment::decoder(4, 0).into(),
            "",
            "do not form one shard",
        ),
        (
            "an empty range",
            |graph| graph.segments = Segment::decoder(2, 2).into(),
            "",
            "do not form one shard",
        ),
        (
            "a decoder twice",
            |graph| graph.segments.0.push(Segment::decoder(4, 5)),
            "",
            "do not form one shard",
        ),
        ("no segment", |graph| graph.segments.0.clear(), "", "do not form one shard"),
        (
            "too many segments",
            |graph| graph.segments.0 = vec![Segment::whole(ComponentKind::Head); 12],
            "",
            "segments exceed the limit",
        ),
        ("a node of another layer", |graph| graph.nodes[0].layer = Some(4), "node `", "layer"),
        (
            "per-layer inputs of other layers",
            |graph| {
                let port = input(graph, "per-layer");
                graph.inputs[port].1 = Role::PerLayer { first: 1, layers: 4 };
            },
            "input `per-layer`",
            "expected the layers 0..4",
        ),
    ]);
}

#[test]
fn dangling_and_tangled_tensors_are_refused() {
    check(&[
        (
            "an operand out of range",
            |graph| graph.nodes[0].inputs[0] = TensorId(u32::MAX),
            "node `",
            "got tensor 4294967295",
        ),
        (
            "a result out of range",
            |graph| graph.nodes[0].output = TensorId(9999),
            "node `",
            "got tensor 9999",
        ),
        ("an input out of range", |graph| graph.inputs[0].0 = TensorId(9999), "port `", "got tensor 9999"),
        ("an output out of range", |graph| graph.outputs[0].0 = TensorId(9999), "port `", "got tensor 9999"),
        (
            "an operand used before it is made",
            |graph| graph.nodes.swap(0, 1),
            "tensor `",
            "used before it is produced",
        ),
        (
            "an operand that nothing makes",
            |graph| {
                let weight = graph.nodes[0].inputs[1];
                graph.tensors[weight.0 as usize].weight = None;
            },
            "tensor `",
            "used before it is produced",
        ),
        (
            "a node that writes its own operand",
            |graph| graph.nodes[0].output = graph.nodes[0].inputs[0],
            "tensor `",
            "produced twice",
        ),
        (
            "a constant that is also made",
            |graph| {
                let made = graph.nodes[0].output;
                graph.tensors[made.0 as usize].weight = Some(WeightId(0));
            },
            "tensor `",
            "produced twice",
        ),
        (
            "an output that leaves twice",
            |graph| {
                let tap = output(graph, "tap");
                graph.outputs[tap].0 = graph.outputs[output(graph, "hidden")].0;
            },
            "output `",
            "already another output",
        ),
        (
            "an output that is an input",
            |graph| {
                let hidden = output(graph, "hidden");
                graph.outputs[hidden].0 = graph.input(&Role::Hidden).unwrap();
            },
            "output `",
            "not the result of a node",
        ),
    ]);
}

#[test]
fn operations_that_do_not_fit_are_refused() {
    check(&[
        (
            "a declared shape that is not what comes out",
            |graph| tensor(graph, "layer.0.q").shape = vec![8, 4],
            "(linear)",
            "gives",
        ),
        (
            "operands of the wrong shape",
            |graph| node(graph, "layer.0.down").inputs[1] = node(graph, "layer.0.q").inputs[1],
            "(linear)",
            "does not multiply",
        ),
        ("no operands", |graph| node(graph, "layer.0.q").inputs.clear(), "(linear)", "inputs"),
        ("a result of indices", |graph| tensor(graph, "layer.0.q").dtype = DType::I32, "node `", "i32"),
        (
            "integers without a scale",
            |graph| tensor(graph, "layer.0.q").dtype = DType::U16,
            "tensor `",
            "is not an encoding",
        ),
        (
            "floats with a scale",
            |graph| {
                tensor(graph, "layer.0.q").affine = Some(Affine { scale: ScaleBits::ONE, zero_point: 0 });
            },
            "tensor `",
            "is not an encoding",
        ),
        (
            "rows of another encoding than their state",
            |graph| tensor(graph, "layer.0.v-norm").dtype = DType::F16,
            "(state-update)",
            "another encoding",
        ),
        (
            "a constant of indices",
            |graph| tensor(graph, "layers.0.q.weight").dtype = DType::I32,
            "tensor `",
            "i32",
        ),
        (
            "rows quantised against a float weight",
            |graph| {
                let node = graph.nodes.iter_mut().find(|node| node.op == Op::Linear).unwrap();
                node.op = Op::DynamicLinear { block: 0 };
            },
            "(dynamic-linear)",
            "is not an integer constant",
        ),
        (
            "an integer operand of arithmetic",
            |graph| {
                let positions = graph.input(&Role::Positions).unwrap();
                let square = tensor(graph, "layer.0.activation");
                square.shape = vec![4];
                let node = node(graph, "layer.0.activation");
                node.inputs = vec![positions];
            },
            "(gelu)",
            "i32",
        ),
        (
            "slots as positions",
            |graph| {
                let slots = graph.inputs[input(graph, "slots")].0;
                node(graph, "layer.0.q-rope").inputs[1] = slots;
            },
            "(rope)",
            "positions",
        ),
        (
            "attention over rows that says state",
            |graph| {
                let k = node(graph, "layer.0.k-rope").output;
                let v = node(graph, "layer.0.v-norm").output;
                let attention = node(graph, "layer.0.attention");
                attention.inputs[1] = k;
                attention.inputs[2] = v;
            },
            "(attention)",
            "not a state",
        ),
        (
            "attention over a state both ways",
            |graph| {
                if let Op::Attention(attention) = &mut node(graph, "layer.0.attention").op {
                    attention.causal = false;
                }
            },
            "(attention)",
            "causal",
        ),
        (
            "attention over rows of another count",
            |graph| {
                if let Op::Attention(attention) = &mut node(graph, "layer.0.attention").op {
                    attention.keys = KeySource::Rows;
                }
            },
            "(attention)",
            "key rows",
        ),
        (
            "a negative soft-cap of scores",
            |graph| {
                if let Op::Attention(attention) = &mut node(graph, "layer.0.attention").op {
                    attention.softcap = -1.0;
                }
            },
            "(attention)",
            "negative",
        ),
        (
            "a scale that is no number",
            |graph| {
                if let Op::Attention(attention) = &mut node(graph, "layer.0.attention").op {
                    attention.scale = f32::NAN;
                }
            },
            "node `",
            "`scale`",
        ),
        (
            "a divisor for some of the pairs",
            |graph| {
                if let Op::Rope(rope) = &mut node(graph, "layer.0.q-rope").op {
                    rope.divisors = vec![2.0];
                }
            },
            "(rope)",
            "1 divisors",
        ),
        (
            "a divisor of nothing",
            |graph| {
                if let Op::Rope(rope) = &mut node(graph, "layer.0.q-rope").op {
                    rope.divisors = vec![0.0; rope.head_dim as usize / 2];
                }
            },
            "(rope)",
            "divisors must be",
        ),
        (
            "a magnitude of nothing",
            |graph| {
                if let Op::Rope(rope) = &mut node(graph, "layer.0.q-rope").op {
                    rope.magnitude = 0.0;
                }
            },
            "(rope)",
            "magnitude 0 ",
        ),
        (
            "a theta of nothing",
            |graph| {
                if let Op::Rope(rope) = &mut node(graph, "layer.0.q-rope").op {
                    rope.theta = 0.0;
                }
            },
            "(rope)",
            "theta",
        ),
        (
            "a negative eps",
            |graph| {
                if let Op::RmsNorm { eps, .. } = &mut node(graph, "layer.0.q-norm").op {
                    *eps = -1.0;
                }
            },
            "(rms-norm)",
            "eps",
        ),
        (
            "a cap of nothing",
            |graph| node(graph, "layer.0.activation").op = Op::Softcap { cap: 0.0 },
            "(softcap)",
            "cap",
        ),
    ]);
}

#[test]
fn ports_that_do_not_fit_their_role_are_refused() {
    check(&[
        ("logits as input", |graph| graph.inputs[0].1 = Role::Logits, "input `logits`", "cannot be an input"),
        (
            "positions as output",
            |graph| graph.outputs[0].1 = Role::Positions,
            "output `positions`",
            "cannot be an output",
        ),
        ("one role twice", |graph| graph.inputs.push(graph.inputs[0].clone()), "input `", "twice"),
        (
            "another row count",
            |graph| {
                let hidden = graph.input(&Role::Hidden).unwrap();
                graph.tensors[hidden.0 as usize].shape[0] = 5;
            },
            "`hidden`",
            "[4, _]",
        ),
        ("another type", |graph| tensor(graph, "positions").dtype = DType::I64, "`positions`", "i64"),
        (
            "slots of no state",
            |graph| {
                let slots = input(graph, "slots");
                graph.inputs[slots].1 = Role::Slots { capacity: 0 };
            },
            "`slots`",
            "a state of 0 rows",
        ),
        (
            "an embedding of rows",
            |graph| {
                let hidden = output(graph, "hidden");
                graph.outputs[hidden].1 = Role::Embedding;
            },
            "`embedding`",
            "expected [_]",
        ),
        (
            "a state that is not declared",
            |graph| {
                graph.states.pop();
            },
            "`state`",
            "not declared",
        ),
    ]);
    // Tables occur only in primitives.
    type Table = (&'static str, fn(&mut Role));
    let tables: [Table; 3] = [
        ("mask", |role| {
            if let Role::Mask(mask) = role {
                mask.keys = shardwright_graph::Keys::StateAndRows { capacity: u64::MAX };
            }
        }),
        ("rotary-cos", |role| {
            if let Role::RotaryCos(rope) = role {
                rope.head_dim = 3;
            }
        }),
        ("rotary-sin", |role| {
            if let Role::RotarySin(rope) = role {
                rope.factor = f32::INFINITY;
            }
        }),
    ];
    for (name, alter) in tables {
        let mut graph = decompose_all(&good());
        let port = input(&graph, name);
        alter(&mut graph.inputs[port].1);
        let error = graph.validate().unwrap_err();
        assert_eq!(error.place(), Some(format!("input `{name}`").as_str()), "{error}");
    }
}

#[test]
fn states_that_cannot_be_written_in_place_are_refused() {
    check(&[
        ("declared twice", |graph| graph.states[1].id = StateId(0), "state ", "twice"),
        ("no rows", |graph| graph.states[0].capacity = 0, "state ", "not possible"),
        (
            "rows that do not follow from its kind",
            |graph| graph.states[0].capacity = 10,
            "state ",
            "expected 9 rows",
        ),
        ("written undeclared", |graph| graph.states[0].written = false, "state ", "not declared as written"),
        (
            "an update that does not leave",
            |graph| {
                graph.outputs.remove(0);
            },
            "(state-update)",
            "is not an output",
        ),
        (
            "another state's update",
            |graph| {
                let (k, v) = (graph.outputs[0].0, graph.outputs[1].0);
                (graph.outputs[0].0, graph.outputs[1].0) = (v, k);
            },
            "state ",
            "of the same state",
        ),
        (
            "slots of another numbering",
            |graph| {
                let slots = graph.input(&Role::Slots { capacity: 32 }).unwrap();
                node(graph, "layer.0.k-write").inputs[2] = slots;
            },
            "(state-update)",
            "slots",
        ),
        (
            "an update of an update",
            |graph| {
                let k = node(graph, "layer.0.k-write").output;
                node(graph, "layer.0.v-write").inputs[0] = k;
            },
            "(state-update)",
            "before this run",
        ),
        (
            "read beside the write",
            |graph| {
                let before = graph.input(&Role::State { state: StateId(0) }).unwrap();
                node(graph, "layer.2.attention").inputs[1] = before;
            },
            "tensor `",
            "also read elsewhere",
        ),
    ]);
}

#[test]
fn a_state_leaves_by_its_update_alone() {
    let graph = toy(&Recipe::sharing());
    let prefill = point(EntryKind::Prefill, 4, 32);
    let entry = graph.entry(ComponentKind::Decoder, 1..2, prefill, EntryOptions::default()).unwrap().unwrap();

    let mut copied = entry.clone();
    let write = node(&mut copied, "layer.1.k-write");
    write.op = Op::Neg;
    write.inputs.truncate(1);
    let error = copied.validate().unwrap_err();
    assert_eq!(error.message(), "the output is not the result of an update of the same state");
    assert!(error.place().is_some_and(|place| place.starts_with("state ")), "{error}");

    // Rows for the runtime to write, in addition to a write in the graph.
    let mut twice = entry.clone();
    let rows = node(&mut twice, "layer.1.k-rope").output;
    let state = twice.states[0].id;
    twice.outputs.push((rows, Role::StateRows { state }));
    let error = twice.validate().unwrap_err();
    assert_eq!(error.to_string(), format!("state {}: written twice", state.0));

    let mut unwritten = entry;
    unwritten.outputs.remove(0);
    unwritten.nodes.retain(|node| node.name != "layer.1.k-write");
    let error = unwritten.validate().unwrap_err();
    assert_eq!(error.message(), "declared as written, but not written");
    assert!(error.place().is_some_and(|place| place.starts_with("state ")), "{error}");
}

/// The definition could be extended to these shapes, but not the decomposition.
#[test]
fn what_is_accepted_can_be_decomposed() {
    let grouped = Op::RmsNorm { width: 2, eps: 1e-6, weight_offset: 0.0 };
    let cases: [(Op, &[u64], bool); 6] = [
        (grouped.clone(), &[1, 1, 1, 1, 4], true),
        (grouped.clone(), &[1, 1, 1, 1, 1, 2], true),
        (grouped, &[1, 1, 1, 1, 1, 4], false),
        (Op::Softmax, &[4], true),
        (Op::L2Normalize, &[1, 1, 1, 1, 1, 4], true),
        (Op::Gelu, &[1, 1, 1, 1, 1, 4], true),
    ];
    for (op, shape, accepted) in cases {
        let tensor = |name: &str| Tensor::plain(name, shape.to_vec(), DType::F32);
        let mut constant = tensor("x");
        constant.weight = Some(WeightId(0));
        let node = EntryNode {
            name: "node".to_owned(),
            op,
            inputs: vec![TensorId(0)],
            output: TensorId(1),
            layer: None,
        };
        let graph = EntryGraph {
            segments: Segment::whole(ComponentKind::Head).into(),
            point: point(EntryKind::Decode, 1, 8),
            tensors: vec![constant, tensor("y")],
            outputs: vec![(node.output, Role::Tap { name: "y".to_owned() })],
            nodes: vec![node],
            inputs: Vec::new(),
            states: Vec::new(),
        };
        assert_eq!(graph.validate().is_ok(), accepted, "{:?} {shape:?}", graph.nodes[0].op);
        if accepted {
            decompose_all(&graph).validate().unwrap();
        }
    }
}

fn mutated(graph: &EntryGraph, picks: &[(u8, u16, u32)]) -> EntryGraph {
    let mut graph = graph.clone();
    let numbers = [0, 1, 2, 3, 7, 31, 1 << 20, u32::MAX];
    let ops = crate::frozen::every_op();
    let roles = crate::frozen::every_role();
    for &(what, place, value) in picks {
        let number = numbers[value as usize % numbers.len()];
        let at = |length: usize| place as usize % length.max(1);
        let any_tensor =
            TensorId(if value % 9 == 0 { number } else { value % graph.tensors.len().max(1) as u32 });
        match what % 16 {
            0 => graph.nodes.remove(at(graph.nodes.len())).inputs.clear(),
            1 => {
                let index = at(graph.nodes.len());
                let node = &mut graph.nodes[index];
                if !node.inputs.is_empty() {
                    let operand = value as usize % node.inputs.len();
                    node.inputs[operand] = any_tensor;
                }
            }
            2 => {
                let index = at(graph.nodes.len());
                graph.nodes[index].output = any_tensor;
            }
            3 => {
                let index = at(graph.nodes.len());
                graph.nodes[index].op = ops[value as usize % ops.len()].clone();
            }
            4 => {
                let index = at(graph.tensors.len());
                let shape = &mut graph.tensors[index].shape;
                let axis = value as usize % shape.len().max(1);
                if let Some(extent) = shape.get_mut(axis) {
                    *extent = u64::from(number);
                }
            }
            5 => {
                let index = at(graph.tensors.len());
                graph.tensors[index].shape.push(u64::from(number) << 32);
            }
            6 => {
                let index = at(graph.tensors.len());
                graph.tensors[index].shape.pop();
            }
            7 => {
                let index = at(graph.tensors.len());
                graph.tensors[index].dtype = DType::ALL[value as usize % DType::ALL.len()];
            }
            8 => {
                let index = at(graph.inputs.len());
                graph.inputs[index] = (any_tensor, roles[value as usize % roles.len()].clone());
            }
            9 => {
                let index = at(graph.outputs.len());
                graph.outputs[index] = (any_tensor, roles[value as usize % roles.len()].clone());
            }
            10 => graph.point.rows = u64::from(number),
            11 => graph.point.context = u64::from(number) << (value % 33),
            12 => graph.segments = Segment::decoder(number, value).into(),
            13 => {
                let index = at(graph.states.len());
                graph.states[index].capacity = u64::from(number);
            }
            14 => {
                let index = at(graph.nodes.len());
                graph.nodes[index].inputs.push(any_tensor);
            }
            _ => {
                let index = at(graph.nodes.len());
                let other = value as usize % graph.nodes.len().max(1);
                graph.nodes.swap(index, other);
            }
        }
        if graph.nodes.is_empty() || graph.tensors.is_empty() {
            break;
        }
    }
    graph
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any file contents there is a verdict. If it is positive, every pass runs without a
    /// fault.
    #[test]
    fn altered_graphs_never_panic(
        picks in proptest::collection::vec(any::<(u8, u16, u32)>(), 1..4),
        primitive in any::<bool>(),
    ) {
        let graph = if primitive { decompose_all(&good()) } else { good() };
        let graph = mutated(&graph, &picks);
        if graph.validate().is_ok() {
            let primitive = decompose_all(&graph);
            prop_assert!(primitive.validate().is_ok(), "{:?}", primitive.validate());
            graph.multiply_adds();
            graph.weight_bytes();
            graph.written_state_bytes();
            let _ = legalise(&graph, |graph| {
                let verdict = |op: &Op| if op.is_semantic() { NodeVerdict::refused("") } else { NodeVerdict::accepted() };
                Ok::<_, std::convert::Infallible>(graph.nodes.iter().map(|node| verdict(&node.op)).collect())
            });
        }
    }
}
