//! A run in which some computed values are replaced.

use shardwright_graph::{
    AssetId, ComponentKind, EntryGraph, EntryNode, EntryPoint, Op, Role, Segment, Tensor, TensorId,
};
use shardwright_reference::{Array, Bindings, Evaluator, States, Weights};
use shardwright_vocabulary::{DType, EntryKind};

/// Returns a graph that computes x · 2, and that · 3.
fn twice_and_thrice() -> EntryGraph {
    let node = |name: &str, value: f32, input: u32| EntryNode {
        name: name.to_owned(),
        op: Op::MulScalar { value },
        inputs: vec![TensorId(input)],
        output: TensorId(input + 1),
        layer: None,
    };
    let tensor = |name: &str| Tensor::plain(name, vec![2, 2], DType::F32);
    EntryGraph {
        segments: Segment::whole(ComponentKind::Head).into(),
        point: EntryPoint { kind: EntryKind::Encode, rows: 2, context: 2, largest_rows: 2 },
        tensors: vec![tensor("x"), tensor("twice"), tensor("thrice")],
        nodes: vec![node("twice", 2.0, 0), node("thrice", 3.0, 1)],
        inputs: vec![(TensorId(0), Role::Gathered { asset: AssetId(0) })],
        outputs: vec![(TensorId(2), Role::Tap { name: "thrice".to_owned() })],
        states: Vec::new(),
    }
}

#[test]
fn what_follows_is_computed_from_the_values_put_in_place() {
    let evaluator = Evaluator::new(twice_and_thrice(), Weights::new(&[])).unwrap();
    let array = |values: [f32; 4]| Array::floats_of(&[2, 2], values.to_vec()).unwrap();
    let mut bindings = Bindings::new();
    bindings.bind(Role::Gathered { asset: AssetId(0) }, array([1.0, 2.0, 3.0, 4.0]));
    let mut shown = Vec::new();
    let mut correct = |tensor: TensorId, computed: &Array| {
        shown.push((tensor.0, computed.floats().to_vec()));
        match tensor.0 {
            1 => Some(array([10.0, 0.0, 0.0, 1.0])),
            // A replacement of another shape is ignored.
            _ => Array::floats_of(&[4], vec![0.0; 4]).ok(),
        }
    };
    let outputs = evaluator.run_corrected(&bindings, &mut States::none(), 2, &mut correct).unwrap();
    let given = outputs.get(&Role::Tap { name: "thrice".to_owned() }).unwrap();
    assert_eq!(*given.floats(), [30.0, 0.0, 0.0, 3.0]);
    // Inputs are not passed to `correct`.
    assert_eq!(shown, [(1, vec![2.0, 4.0, 6.0, 8.0]), (2, vec![30.0, 0.0, 0.0, 3.0])]);
}
