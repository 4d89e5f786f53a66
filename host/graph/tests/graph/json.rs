use proptest::prelude::*;
use shardwright_graph::{
    ComponentKind, EntryGraph, EntryNode, EntryOptions, EntryPoint, Op, Segment, Segments, State, StateId,
    StateKind, StatePort, Tensor, TensorId, WeightId, decompose_all,
};
use shardwright_vocabulary::{DType, EntryKind, ScaleBits};

use crate::frozen::{every_op, every_role};
use crate::support::{Recipe, point, toy};

fn round_trip(graph: &EntryGraph) {
    let text = serde_json::to_string(graph).unwrap();
    let back: EntryGraph = serde_json::from_str(&text).unwrap();
    assert_eq!(&back, graph, "{text}");
    assert_eq!(serde_json::to_string(&back).unwrap(), text);
}

/// Creates a graph of nodes and ports that need not be consistent.
fn holding(ops: Vec<Op>) -> EntryGraph {
    let tensor = |index: usize| Tensor {
        name: format!("tensor \"{index}\" ▁"),
        shape: vec![u64::MAX, index as u64],
        dtype: DType::ALL[index % DType::ALL.len()],
        affine: None,
        weight: index.is_multiple_of(3).then_some(WeightId(index as u32)),
        unit: index.is_multiple_of(2).then_some(ScaleBits::power_of_two(4)),
    };
    let node = |(index, op): (usize, Op)| EntryNode {
        name: format!("layer.{index}"),
        op,
        inputs: vec![TensorId(index as u32), TensorId(u32::MAX)],
        output: TensorId(7),
        layer: index.is_multiple_of(2).then_some(index as u32),
    };
    let kinds = [StateKind::Linear, StateKind::Ring { window: 512 }];
    let port = |kind| StatePort {
        id: StateId(3),
        state: State { name: "layer.1.k".to_owned(), layer: 1, width: 256, kind },
        capacity: 4096,
        written: true,
    };
    EntryGraph {
        segments: Segments(vec![Segment::whole(ComponentKind::PerLayerInput), Segment::decoder(3, 7)]),
        point: EntryPoint { kind: EntryKind::Prefill, rows: 128, context: 4096, largest_rows: u64::MAX },
        tensors: (0..10).map(tensor).collect(),
        nodes: ops.into_iter().enumerate().map(node).collect(),
        inputs: every_role().into_iter().map(|role| (TensorId(1), role)).collect(),
        outputs: every_role().into_iter().map(|role| (TensorId(2), role)).collect(),
        states: kinds.map(port).to_vec(),
    }
}

#[test]
fn every_operation_and_role_reads_back() {
    round_trip(&holding(every_op()));
}

#[test]
fn real_entries_read_back() {
    let graph = toy(&Recipe::sharing());
    for component in graph.components.iter().map(|component| component.kind) {
        let options = EntryOptions { taps: true };
        let entry = graph.entry(component, 0..4, point(EntryKind::Decode, 4, 32), options).unwrap().unwrap();
        round_trip(&entry);
        round_trip(&decompose_all(&entry));
    }
}

#[test]
fn the_written_form_is_what_it_was() {
    let graph = serde_json::to_value(holding(every_op())).unwrap();
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let node = |index: usize| &graph["nodes"][index];
    let first = r#"{"inputs":[0,4294967295],"layer":0,"name":"layer.0","op":"linear","output":7}"#;
    assert_eq!(*node(0), read(first));
    assert_eq!((&node(2)["factor"], &node(2)["head_dim"]), (&read("8.0"), &read("8")));
    assert_eq!(node(3)["keys"], "state");
    let ports = [
        (0, r#"[1,{"role":"positions"}]"#),
        (4, r#"[1,{"capacity":9,"causal":true,"keys":"state","role":"mask","window":7}]"#),
        (5, r#"[1,{"capacity":9,"causal":true,"keys":"state-and-rows","role":"mask","window":7}]"#),
        (10, r#"[1,{"axis":"column","role":"grid"}]"#),
        (12, r#"[1,{"rate":4,"role":"valid"}]"#),
        (13, r#"[1,{"head_dim":8,"role":"axial-cos","theta":100.0}]"#),
        (15, r#"[1,{"asset":2,"axis":"row","role":"gathered-by-grid"}]"#),
        (17, r#"[1,{"first":3,"layers":2,"role":"per-layer"}]"#),
        (22, r#"[1,{"role":"state","state":5}]"#),
    ];
    for (index, port) in ports {
        assert_eq!(graph["inputs"][index], read(port));
    }
    assert_eq!(graph["states"][1]["kind"], read(r#"{"kind":"ring","window":512}"#));
    assert_eq!(graph["point"]["kind"], "prefill");
}

#[test]
fn unknown_words_are_refused() {
    let good = serde_json::to_string(&holding(vec![Op::Linear])).unwrap();
    let cases = [
        (r#""op":"linear""#, r#""op":"quadratic""#, "quadratic"),
        (r#""role":"positions""#, r#""role":"time""#, "time"),
        (r#""dtype":"f32""#, r#""dtype":"f8""#, "f8"),
        (r#""kind":"linear""#, r#""kind":"cubic""#, "cubic"),
        (r#""keys":"rows""#, r#""keys":"columns""#, "columns"),
        (r#""name":"layer.0""#, r#""title":"layer.0""#, "name"),
    ];
    for (from, to, named) in cases {
        assert!(good.contains(from), "{from}");
        let error = serde_json::from_str::<EntryGraph>(&good.replace(from, to)).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Attributes pass through a buffer of f64 when they are read back. The f32 must not change.
    #[test]
    fn floats_read_back_exactly(bits in any::<u32>(), other in any::<u32>()) {
        let float = |bits| Some(f32::from_bits(bits)).filter(|value: &f32| value.is_finite()).unwrap_or(-0.0);
        let (value, eps) = (float(bits), float(other));
        let graph = holding(vec![Op::AddScalar { value }, Op::RmsNorm { width: 1, eps, weight_offset: value }]);
        let text = serde_json::to_string(&graph).unwrap();
        let back: EntryGraph = serde_json::from_str(&text).unwrap();
        let (Op::AddScalar { value: a }, Op::RmsNorm { eps: b, .. }) = (&back.nodes[0].op, &back.nodes[1].op) else {
            panic!("other operations came back");
        };
        prop_assert_eq!((a.to_bits(), b.to_bits()), (value.to_bits(), eps.to_bits()));
    }
}
