//! Every operation separately, on values that can be checked by hand.

use half::{bf16, f16};
use shardwright_graph::{
    Attention, ComponentKind, EntryGraph, EntryNode, EntryPoint, KeySource, Op, Role, Rope, Segment, State,
    StateId, StateKind, StatePort, Tensor, TensorId, Weight, WeightData, WeightId, infer_shape,
};
use shardwright_reference::{Array, Bindings, Evaluator, States, Weights, widen};
use shardwright_vocabulary::{AttentionFormat, DType, EntryKind};

/// Returns a constant of f32 values.
fn weight(shape: &[u64], values: &[f32]) -> Weight {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let data = WeightData::from_vec(bytes);
    Weight {
        name: "w".to_owned(),
        part: "test",
        shape: shape.to_vec(),
        dtype: DType::F32,
        data,
        quantisation: None,
    }
}

/// Returns the result of `op` for constants, with as many rows as its first operand has.
fn of(op: Op, operands: &[(&[u64], &[f32])]) -> Vec<f32> {
    let weights: Vec<Weight> = operands.iter().map(|(shape, values)| weight(shape, values)).collect();
    of_weights(op, &weights)
}

fn of_weights(op: Op, weights: &[Weight]) -> Vec<f32> {
    let constant = |(index, weight): (usize, &Weight)| Tensor {
        weight: Some(WeightId(index as u32)),
        ..Tensor::plain(format!("operand-{index}"), weight.shape.clone(), weight.dtype)
    };
    let mut tensors: Vec<Tensor> = weights.iter().enumerate().map(constant).collect();
    let shapes: Vec<&[u64]> = weights.iter().map(|weight| weight.shape.as_slice()).collect();
    let shape = infer_shape(&op, &shapes).unwrap();
    let output = TensorId(tensors.len() as u32);
    tensors.push(Tensor::plain("result", shape, DType::F32));
    let inputs = (0..weights.len() as u32).map(TensorId).collect();
    let tap = Role::Tap { name: "result".to_owned() };
    let entry = EntryGraph {
        segments: Segment::whole(ComponentKind::Head).into(),
        point: EntryPoint { kind: EntryKind::Decode, rows: 1, context: 1, largest_rows: 1 },
        tensors,
        nodes: vec![EntryNode { name: "node".to_owned(), op, inputs, output, layer: None }],
        inputs: Vec::new(),
        outputs: vec![(output, tap.clone())],
        states: Vec::new(),
    };
    let evaluator = Evaluator::new(entry, Weights::new(weights)).unwrap();
    let outputs = evaluator.run(&Bindings::new(), &mut States::none(), 1).unwrap();
    outputs.get(&tap).unwrap().floats().into_owned()
}

#[test]
fn one_operand() {
    let x: &[f32] = &[-2.0, -0.5, 0.0, 1.5];
    let cases: [(Op, [f32; 4]); 16] = [
        (Op::Gelu, [-0.045402, -0.154286, 0.0, 1.399572]),
        (Op::Silu, [-0.238406, -0.188770, 0.0, 1.226361]),
        (Op::Softcap { cap: 2.0 }, [-1.523188, -0.489837, 0.0, 1.270298]),
        (Op::Softmax, [0.021746, 0.097457, 0.160680, 0.720117]),
        (Op::L2Normalize, [-0.784465, -0.196116, 0.0, 0.588348]),
        (Op::AddScalar { value: 0.25 }, [-1.75, -0.25, 0.25, 1.75]),
        (Op::MulScalar { value: -2.0 }, [4.0, 1.0, -0.0, -3.0]),
        (Op::MaxScalar { value: -0.25 }, [-0.25, -0.25, 0.0, 1.5]),
        (Op::Neg, [2.0, 0.5, -0.0, -1.5]),
        (Op::Exp, [0.135335, 0.606531, 1.0, 4.481689]),
        (Op::Tanh, [-0.964028, -0.462117, 0.0, 0.905148]),
        (Op::Reciprocal, [-0.5, -2.0, f32::INFINITY, 0.666667]),
        (Op::Reshape { shape: vec![2, 2] }, [-2.0, -0.5, 0.0, 1.5]),
        // Mean −0.25, variance 1.5625.
        (Op::LayerNorm { eps: 0.0 }, [-1.4, -0.2, 0.2, 1.4]),
        (Op::RmsNorm { width: 4, eps: 0.0, weight_offset: 0.0 }, [-1.568929, -0.392232, 0.0, 1.176697]),
        // Groups of two, each of mean square 2.125 and 1.125.
        (
            Op::RmsNorm { width: 2, eps: 0.0, weight_offset: 0.0 },
            [-1.371989, -0.342997, 0.0, std::f32::consts::SQRT_2],
        ),
    ];
    for (op, wanted) in cases {
        let found = of(op.clone(), &[(&[1, 4], x)]);
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!(found == wanted || (found - wanted).abs() < 2e-6, "{op:?}: {found} instead of {wanted}");
        }
    }
    let (weight, bias): (&[f32], &[f32]) = (&[1.0, 2.0, 0.0, -1.0], &[0.0, 1.0, 2.0, 3.0]);
    let found = of(Op::LayerNorm { eps: 0.0 }, &[(&[1, 4], x), (&[4], weight), (&[4], bias)]);
    for (found, wanted) in found.iter().zip([-1.4_f32, 0.6, 2.0, 1.6]) {
        assert!((found - wanted).abs() < 2e-6, "{found} instead of {wanted}");
    }
    let x: &[f32] = &[4.0, 0.25];
    assert_eq!(of(Op::Sqrt, &[(&[2], x)]), [2.0, 0.5]);
    assert_eq!(of(Op::Rsqrt, &[(&[2], x)]), [0.5, 2.0]);
    let x: &[f32] = &[1.0, 2.0, 6.0, -1.0, -2.0, -6.0];
    assert_eq!(of(Op::ReduceSum, &[(&[2, 3], x)]), [9.0, -9.0]);
    assert_eq!(of(Op::ReduceMean, &[(&[2, 3], x)]), [3.0, -3.0]);
    assert_eq!(of(Op::ReduceMax, &[(&[2, 3], x)]), [6.0, -1.0]);
    assert_eq!(of(Op::Transpose { perm: vec![1, 0] }, &[(&[2, 3], x)]), [1.0, -1.0, 2.0, -2.0, 6.0, -6.0]);
    assert_eq!(
        of(Op::Transpose { perm: vec![2, 0, 1] }, &[(&[1, 2, 3], x)]),
        [1.0, -1.0, 2.0, -2.0, 6.0, -6.0]
    );
    assert_eq!(of(Op::Slice { axis: 1, start: 1, end: 3 }, &[(&[2, 3], x)]), [2.0, 6.0, -2.0, -6.0]);
    assert_eq!(of(Op::Slice { axis: 0, start: 1, end: 2 }, &[(&[2, 3], x)]), [-1.0, -2.0, -6.0]);
}

#[test]
fn extremes_stay_finite() {
    assert_eq!(of(Op::Softmax, &[(&[3], &[-1e30, 3e38, 3e38])]), [0.0, 0.5, 0.5]);
    assert_eq!(of(Op::Softmax, &[(&[2], &[-1e30, -1e30])]), [0.5, 0.5]);
    assert_eq!(of(Op::L2Normalize, &[(&[2], &[0.0, 0.0])]), [0.0, 0.0]);
    assert_eq!(of(Op::LayerNorm { eps: 1e-6 }, &[(&[1, 2], &[3.0, 3.0])]), [0.0, 0.0]);
    assert_eq!(of(Op::Silu, &[(&[2], &[-200.0, 200.0])]), [-0.0, 200.0]);
    assert_eq!(of(Op::Gelu, &[(&[2], &[-200.0, 200.0])]), [-0.0, 200.0]);
    assert_eq!(
        of(Op::RmsNorm { width: 2, eps: 1e-6, weight_offset: 0.0 }, &[(&[1, 2], &[0.0, 0.0])]),
        [0.0, 0.0]
    );
    // 2²⁴ + 1 is not an f32, so a sum in f32 would lose every one of them.
    let mut many = vec![1.0_f32; 101];
    many[0] = 16_777_216.0;
    assert_eq!(of(Op::ReduceSum, &[(&[101], &many)]), [16_777_316.0]);
    let ones = vec![1.0_f32; 101];
    assert_eq!(of(Op::Linear, &[(&[1, 101], &many), (&[1, 101], &ones)]), [16_777_316.0]);
}

#[test]
fn two_operands_broadcast() {
    let column: (&[u64], &[f32]) = (&[2, 1], &[1.0, 2.0]);
    let row: (&[u64], &[f32]) = (&[3], &[10.0, 20.0, 40.0]);
    let cases: [(Op, [f32; 6]); 4] = [
        (Op::Add, [11.0, 21.0, 41.0, 12.0, 22.0, 42.0]),
        (Op::Sub, [-9.0, -19.0, -39.0, -8.0, -18.0, -38.0]),
        (Op::Mul, [10.0, 20.0, 40.0, 20.0, 40.0, 80.0]),
        (Op::Div, [0.1, 0.05, 0.025, 0.2, 0.1, 0.05]),
    ];
    for (op, wanted) in cases {
        assert_eq!(of(op, &[column, row]), wanted);
    }
    let whole: (&[u64], &[f32]) = (&[2, 2, 1], &[1.0, 2.0, 3.0, 4.0]);
    let middle: (&[u64], &[f32]) = (&[2, 1, 2], &[0.0, 10.0, 20.0, 30.0]);
    assert_eq!(of(Op::Add, &[whole, middle]), [1.0, 11.0, 2.0, 12.0, 23.0, 33.0, 24.0, 34.0]);
    let joined = of(Op::Concat { axis: 1 }, &[column, (&[2, 2], &[5.0, 6.0, 7.0, 8.0])]);
    assert_eq!(joined, [1.0, 5.0, 6.0, 2.0, 7.0, 8.0]);
    assert_eq!(of(Op::Concat { axis: 0 }, &[column, column]), [1.0, 2.0, 1.0, 2.0]);
}

#[test]
fn products() {
    let x: (&[u64], &[f32]) = (&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let w: (&[u64], &[f32]) = (&[2, 3], &[1.0, 0.0, -1.0, 0.5, 0.5, 0.5]);
    assert_eq!(of(Op::Linear, &[x, w]), [-2.0, 3.0, -2.0, 7.5]);
    assert_eq!(of(Op::Linear, &[x, w, (&[2], &[10.0, 20.0])]), [8.0, 23.0, 8.0, 27.5]);
    assert_eq!(of(Op::MatMul { transpose_b: true }, &[x, w]), [-2.0, 3.0, -2.0, 7.5]);
    let b: (&[u64], &[f32]) = (&[3, 2], &[1.0, 0.5, 0.0, 0.5, -1.0, 0.5]);
    assert_eq!(of(Op::MatMul { transpose_b: false }, &[x, b]), [-2.0, 3.0, -2.0, 7.5]);
    // One matrix a for two matrices b.
    let a: (&[u64], &[f32]) = (&[1, 1, 2], &[1.0, 10.0]);
    let b: (&[u64], &[f32]) = (&[2, 2, 1], &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(of(Op::MatMul { transpose_b: false }, &[a, b]), [21.0, 43.0]);
    let weighted = Op::RmsNorm { width: 2, eps: 0.0, weight_offset: 1.0 };
    assert_eq!(
        of(weighted, &[(&[1, 4], &[1.0, -1.0, 3.0, -3.0]), (&[2], &[0.0, 1.0])]),
        [1.0, -2.0, 1.0, -2.0]
    );
}

#[test]
fn a_large_product_does_not_depend_on_its_rows() {
    // Enough work for several threads and blocks, and a length that is not a multiple of the lanes.
    let (m, n, k) = (37_u64, 83_u64, 61_u64);
    let values = |count: u64, step: f32| (0..count).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>();
    let (x, w) = (values(m * k, 0.37), values(n * k, 0.11));
    let whole = of(Op::Linear, &[(&[m, k], &x), (&[n, k], &w)]);
    for row in [0, 17, 36] {
        let x = &x[row * k as usize..][..k as usize];
        let alone = of(Op::Linear, &[(&[1, k], x), (&[n, k], &w)]);
        assert_eq!(alone, whole[row * n as usize..][..n as usize]);
        for (column, value) in alone.iter().enumerate() {
            let w = &w[column * k as usize..][..k as usize];
            let sum: f64 = x.iter().zip(w).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            assert!((f64::from(*value) - sum).abs() < 1e-6);
        }
    }
}

#[test]
fn stored_types_widen_exactly() {
    let values = [1.0, -0.0, 65504.0, 6.0e-8, 1.0 / 3.0];
    let half =
        |values: &[f32]| values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect::<Vec<u8>>();
    let brain =
        |values: &[f32]| values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect::<Vec<u8>>();
    let stored = |dtype, bytes| Weight {
        name: "w".to_owned(),
        part: "test",
        shape: vec![5],
        dtype,
        data: WeightData::from_vec(bytes),
        quantisation: None,
    };
    let cases = [
        (stored(DType::F16, half(&values)), values.map(|v| f16::from_f32(v).to_f32())),
        (stored(DType::Bf16, brain(&values)), values.map(|v| bf16::from_f32(v).to_f32())),
        (weight(&[5], &values), values),
    ];
    for (weight, wanted) in cases {
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&widen(&weight).unwrap()), bits(&wanted));
        assert_eq!(of_weights(Op::Neg, std::slice::from_ref(&weight)), wanted.map(|v| -v));
        let row = Weight { shape: vec![1, 5], ..weight.clone() };
        let identity: Vec<f32> = (0..25).map(|i| if i % 6 == 0 { 1.0 } else { 0.0 }).collect();
        for op in [Op::Linear, Op::MatMul { transpose_b: true }] {
            assert_eq!(of_weights(op, &[self::weight(&[5, 5], &identity), row.clone()]), wanted);
        }
        let column = Weight { shape: vec![5, 1], ..weight };
        let op = Op::MatMul { transpose_b: false };
        assert_eq!(of_weights(op, &[self::weight(&[5, 5], &identity), column]), wanted);
    }
    for code in 0..=u16::MAX {
        let wide =
            widen(&Weight { shape: vec![1], ..stored(DType::Bf16, code.to_le_bytes().to_vec()) }).unwrap();
        assert_eq!(wide[0].to_bits(), u32::from(code) << 16);
    }
}

/// Returns a graph with one layer's attention over its own state, with rows directly from the
/// inputs. x is `[R, 2]`, used as query, key and value.
fn attention_entry(attention: Attention, rows: u64, kind: StateKind, context: u64) -> EntryGraph {
    let state = State { name: "k".to_owned(), layer: 0, width: 2, kind };
    let capacity = state.capacity(context, rows);
    let tensor = |name: &str, shape: Vec<u64>, dtype| Tensor::plain(name, shape, dtype);
    let node = |name: &str, op, inputs: &[u32], output| EntryNode {
        name: name.to_owned(),
        op,
        inputs: inputs.iter().copied().map(TensorId).collect(),
        output: TensorId(output),
        layer: None,
    };
    let id = StateId(0);
    EntryGraph {
        segments: Segment::decoder(0, 1).into(),
        point: EntryPoint { kind: EntryKind::Decode, rows, context, largest_rows: rows },
        tensors: vec![
            tensor("x", vec![rows, 2], DType::F32),
            tensor("positions", vec![rows], DType::I32),
            tensor("slots", vec![rows], DType::I32),
            tensor("before", vec![capacity, 2], DType::F32),
            tensor("after", vec![capacity, 2], DType::F32),
            tensor("y", vec![rows, 2], DType::F32),
        ],
        nodes: vec![
            node("write", Op::StateUpdate, &[3, 0, 2], 4),
            node("mix", Op::Attention(attention), &[0, 4, 4, 1], 5),
        ],
        inputs: vec![
            (TensorId(0), Role::Hidden),
            (TensorId(1), Role::Positions),
            (TensorId(2), Role::Slots { capacity }),
            (TensorId(3), Role::State { state: id }),
        ],
        outputs: vec![(TensorId(5), Role::Hidden), (TensorId(4), Role::State { state: id })],
        states: vec![StatePort { id, state, capacity, written: true }],
    }
}

/// Uniform attention, so that a result is the mean of the visible rows.
const UNIFORM: Attention = Attention {
    heads: 2,
    kv_heads: 2,
    head_dim: 1,
    scale: 0.0,
    softcap: 0.0,
    window: 0,
    causal: true,
    keys: KeySource::State,
    products: AttentionFormat::F32,
};

/// Runs rows `[position, −position]` in chunks and returns the first value of each result row.
fn means(window: u32, total: usize, chunk: usize, context: u64) -> Vec<f32> {
    let kind = if window == 0 { StateKind::Linear } else { StateKind::Ring { window } };
    let entry = attention_entry(Attention { window, ..UNIFORM }, chunk as u64, kind, context);
    let capacity = entry.states[0].capacity;
    let evaluator = Evaluator::new(entry, Weights::new(&[])).unwrap();
    let mut states = States::none();
    states.set(StateId(0), Array::floats_of(&[capacity, 2], vec![1e6; 2 * capacity as usize]).unwrap());
    let mut means = Vec::new();
    for first in (0..total).step_by(chunk) {
        let rows = chunk.min(total - first);
        let step =
            shardwright_reference::step::Step { first: first as u64, rows: rows as u64, of: chunk as u64 };
        let mut bindings = Bindings::new();
        for (_, role) in &evaluator.entry().inputs {
            if let Some(array) = shardwright_reference::step::step_input(role, step, &[], &[]).unwrap() {
                bindings.bind(role.clone(), array);
            }
        }
        let x = (0..chunk).flat_map(|row| [(first + row) as f32, -((first + row) as f32)]).collect();
        bindings.bind(Role::Hidden, Array::floats_of(&[chunk as u64, 2], x).unwrap());
        let outputs = evaluator.run(&bindings, &mut states, rows as u64).unwrap();
        let y = outputs.get(&Role::Hidden).unwrap();
        means.extend((0..rows).map(|row| y.row(row)[0]));
        assert!((0..rows).all(|row| y.row(row)[1] == -y.row(row)[0]));
        assert!(outputs.get(&Role::State { state: StateId(0) }).is_none(), "states are written in place");
    }
    means
}

#[test]
fn attention_sees_its_window_through_ring_and_chunks() {
    let wanted = |window: usize, total: usize| -> Vec<f32> {
        (0..total)
            .map(|position| {
                let first = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
                (first + position) as f32 / 2.0
            })
            .collect()
    };
    for window in [0, 1, 3, 5] {
        for chunk in [1, 2, 3, 7, 40] {
            // A ring of 3 + 2 rows wraps eight times in 40 positions.
            assert_eq!(
                means(window, 40, chunk, 40),
                wanted(window as usize, 40),
                "window {window}, chunk {chunk}"
            );
        }
    }
}

#[test]
fn attention_weighs_by_scaled_and_capped_scores() {
    let attention = Attention { heads: 1, kv_heads: 1, head_dim: 2, scale: 0.5, ..UNIFORM };
    let run = |attention: Attention| {
        let entry = attention_entry(attention, 2, StateKind::Linear, 2);
        let evaluator = Evaluator::new(entry, Weights::new(&[])).unwrap();
        let mut states = States::none();
        states.set(StateId(0), Array::floats_of(&[2, 2], vec![0.0; 4]).unwrap());
        let mut bindings = Bindings::new();
        bindings
            .bind(Role::Positions, Array::integers_of(&[2], vec![0, 1]).unwrap())
            .bind(Role::Slots { capacity: 2 }, Array::integers_of(&[2], vec![0, 1]).unwrap())
            .bind(Role::Hidden, Array::floats_of(&[2, 2], vec![1.0, 2.0, 3.0, -1.0]).unwrap());
        let outputs = evaluator.run(&bindings, &mut states, 2).unwrap();
        assert_eq!(states.get(StateId(0)).unwrap().floats().as_ref(), [1.0, 2.0, 3.0, -1.0]);
        outputs.get(&Role::Hidden).unwrap().floats().into_owned()
    };
    // Row 1 scores (3 − 2) · 0.5 and (9 + 1) · 0.5.
    for (softcap, scores) in [(0.0, [0.5_f64, 5.0]), (2.0, [2.0 * 0.25_f64.tanh(), 2.0 * 2.5_f64.tanh()])] {
        let weight = 1.0 / (1.0 + (scores[0] - scores[1]).exp());
        let wanted = [1.0, 2.0, (1.0 - weight + 3.0 * weight) as f32, (2.0 * (1.0 - weight) - weight) as f32];
        assert_eq!(run(Attention { softcap, ..attention }), wanted);
    }
}

/// The weight of a key is rounded relative to the largest score of its block of 64 positions.
#[test]
fn attention_in_16_bits_rounds_operands_and_weights() {
    const ROWS: usize = 70;
    let value = |row: usize| 1.0 + row as f32 / 1024.0;
    let attention =
        Attention { heads: 1, kv_heads: 1, head_dim: 2, scale: 1.0, keys: KeySource::Rows, ..UNIFORM };
    let run = |products: AttentionFormat| -> Vec<f32> {
        let operands = [("q", DType::F32), ("positions", DType::I32), ("y", DType::F32)];
        let shape = |dtype: DType| if dtype == DType::I32 { vec![ROWS as u64] } else { vec![ROWS as u64, 2] };
        let tensors = operands.map(|(name, dtype)| Tensor::plain(name, shape(dtype), dtype)).to_vec();
        let entry = EntryGraph {
            segments: Segment::whole(ComponentKind::Head).into(),
            point: EntryPoint {
                kind: EntryKind::Encode,
                rows: ROWS as u64,
                context: ROWS as u64,
                largest_rows: ROWS as u64,
            },
            tensors,
            nodes: vec![EntryNode {
                name: "attention".to_owned(),
                op: Op::Attention(Attention { products, ..attention }),
                inputs: [0, 0, 0, 1].map(TensorId).to_vec(),
                output: TensorId(2),
                layer: None,
            }],
            inputs: vec![(TensorId(0), Role::Hidden), (TensorId(1), Role::Positions)],
            outputs: vec![(TensorId(2), Role::Hidden)],
            states: Vec::new(),
        };
        let evaluator = Evaluator::new(entry, Weights::new(&[])).unwrap();
        let x = (0..ROWS).flat_map(|row| [value(row), 0.5]).collect();
        let mut bindings = Bindings::new();
        bindings
            .bind(Role::Positions, Array::integers_of(&[ROWS as u64], (0..ROWS as i32).collect()).unwrap())
            .bind(Role::Hidden, Array::floats_of(&[ROWS as u64, 2], x).unwrap());
        let outputs = evaluator.run(&bindings, &mut States::none(), ROWS as u64).unwrap();
        outputs.get(&Role::Hidden).unwrap().row(ROWS - 1).to_vec()
    };
    let round = |products: AttentionFormat, value: f64| match products {
        AttentionFormat::F32 => value,
        AttentionFormat::Bf16 => half::bf16::from_f64(value).to_f64(),
        AttentionFormat::F16 => half::f16::from_f64(value).to_f64(),
    };
    let mut seen = Vec::new();
    for &products in AttentionFormat::ALL {
        let operand = |row: usize| round(products, f64::from(value(row)));
        let score = |row: usize| operand(ROWS - 1) * operand(row) + 0.25;
        let mut sum = [0.0; 2];
        let all = (0..ROWS).map(score).fold(f64::NEG_INFINITY, f64::max);
        for rows in [0..64, 64..ROWS] {
            let own = rows.clone().map(score).fold(f64::NEG_INFINITY, f64::max);
            for row in rows {
                let weight = round(products, (score(row) - own).exp()) * (own - all).exp();
                sum = [sum[0] + weight, sum[1] + weight * operand(row)];
            }
        }
        let found = run(products);
        assert!((f64::from(found[0]) - sum[1] / sum[0]).abs() < 1e-6, "{products}: {found:?} {sum:?}");
        assert_eq!(found[1], 0.5);
        assert!(!seen.contains(&found), "{products}");
        seen.push(found);
    }
}

#[test]
fn rope_turns_pairs_by_position() {
    let rope = Rope {
        head_dim: 4,
        theta: 100.0,
        rotated_pairs: 1,
        factor: 2.0,
        divisors: Vec::new(),
        magnitude: 1.0,
    };
    let entry = EntryGraph {
        segments: Segment::whole(ComponentKind::Head).into(),
        point: EntryPoint { kind: EntryKind::Decode, rows: 2, context: 8, largest_rows: 2 },
        tensors: vec![
            Tensor::plain("x", vec![2, 8], DType::F32),
            Tensor::plain("positions", vec![2], DType::I32),
            Tensor::plain("y", vec![2, 8], DType::F32),
        ],
        nodes: vec![EntryNode {
            name: "rope".to_owned(),
            op: Op::Rope(rope),
            inputs: vec![TensorId(0), TensorId(1)],
            output: TensorId(2),
            layer: None,
        }],
        inputs: vec![(TensorId(0), Role::Hidden), (TensorId(1), Role::Positions)],
        outputs: vec![(TensorId(2), Role::Hidden)],
        states: Vec::new(),
    };
    let evaluator = Evaluator::new(entry, Weights::new(&[])).unwrap();
    let x: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let mut bindings = Bindings::new();
    bindings
        .bind(Role::Hidden, Array::floats_of(&[2, 8], x.clone()).unwrap())
        .bind(Role::Positions, Array::integers_of(&[2], vec![0, 3]).unwrap());
    let outputs = evaluator.run(&bindings, &mut States::none(), 2).unwrap();
    let y = outputs.get(&Role::Hidden).unwrap().floats().into_owned();
    assert_eq!(y[..8], x[..8], "position 0 turns nothing");
    // Pair 0 of each head is (x[0], x[2]) and rotates by 3 · 1 / 2. Pair 1 is not rotated.
    let (sin, cos) = 1.5_f64.sin_cos();
    for head in [8, 12] {
        let (a, b) = (f64::from(x[head]), f64::from(x[head + 2]));
        assert!((f64::from(y[head]) - (a * cos - b * sin)).abs() < 1e-6);
        assert!((f64::from(y[head + 2]) - (b * cos + a * sin)).abs() < 1e-6);
        assert_eq!([y[head + 1], y[head + 3]], [x[head + 1], x[head + 3]]);
    }
}
