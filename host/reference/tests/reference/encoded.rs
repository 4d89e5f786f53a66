//! Compares every operation on encoded operands with a separate computation from the stored values.

use crate::support::Noise;
use crate::support::quantise::packed;
use half::{bf16, f16};
use shardwright_graph::{
    AssetId, Attention, ComponentKind, EntryGraph, EntryNode, EntryPoint, KeySource, Op, Role, Rope, Segment,
    State, StateId, StateKind, StatePort, Tensor, TensorId, Weight, WeightData, WeightId, WeightQuantisation,
    decompose_all, infer_shape,
};
use shardwright_reference::{Array, Bindings, Evaluator, States, Weights, widen};
use shardwright_vocabulary::{
    AttentionFormat, DType, Encoding, EntryKind, ErrorKind, Granularity, ScaleBits,
};

/// Number of rows of every operand.
const ROWS: usize = 4;

fn integer(element: DType, scale: f32, zero_point: i32) -> Encoding {
    Encoding { element, scale: ScaleBits::new(scale).unwrap(), zero_point }
}

/// Returns encodings with every element type, and integers with zero points at ends and middle.
fn encodings() -> Vec<Encoding> {
    vec![
        Encoding::F32,
        Encoding::F16,
        Encoding { element: DType::Bf16, ..Encoding::F32 },
        integer(DType::U16, 1e-4, 30_011),
        integer(DType::U16, 3e-5, 0),
        integer(DType::I16, 1e-4, 0),
        integer(DType::I16, 7e-5, -32_768),
        integer(DType::U8, 0.02, 255),
        integer(DType::I8, 0.017, 3),
    ]
}

/// Returns the nearest stored value, by exact comparison in f64 of the f32 quotient with its
/// neighbours.
fn stored(encoding: &Encoding, value: f32) -> i32 {
    let (low, high) = encoding.element.raw_range().unwrap();
    let quotient = f64::from(value / encoding.scale.get()).clamp(-1e9, 1e9);
    let floor = quotient.floor();
    let below = floor as i64;
    let nearest = match (quotient - floor).partial_cmp(&0.5) {
        Some(std::cmp::Ordering::Less) => below,
        Some(std::cmp::Ordering::Greater) => below + 1,
        _ => below + (below & 1),
    };
    (nearest + i64::from(encoding.zero_point)).clamp(i64::from(low), i64::from(high)) as i32
}

/// Returns the value nearest to `value` that the encoding can represent.
fn rounded_to(encoding: &Encoding, value: f32) -> f32 {
    match encoding.element {
        DType::F32 => value,
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::Bf16 => bf16::from_f32(value).to_f32(),
        _ => (stored(encoding, value) - encoding.zero_point) as f32 * encoding.scale.get(),
    }
}

/// An operand passed at run time: `[ROWS, width]`.
#[derive(Clone)]
struct Operand {
    width: usize,
    values: Vec<f32>,
    encoding: Encoding,
}

impl Operand {
    fn random(noise: &mut Noise, width: usize, encoding: Encoding) -> Self {
        let values = (0..ROWS * width).map(|_| rounded_to(&encoding, 2.0 * noise.next())).collect();
        Operand { width, values, encoding }
    }

    fn wide(&self) -> Vec<f64> {
        self.values.iter().map(|&value| f64::from(value)).collect()
    }
}

/// Runs one operation over run-time operands and constants, in this order. If it uses positions,
/// the last operand is positions 3, 4, …
fn run(op: &Op, arguments: &[Operand], constants: &[Weight], result: Encoding) -> Array {
    let (entry, bindings) = bound(op, arguments, constants, result);
    evaluated(&entry, bindings, constants)
}

fn evaluated(entry: &EntryGraph, bindings: Bindings, constants: &[Weight]) -> Array {
    let evaluator = Evaluator::new(entry.clone(), Weights::new(constants)).unwrap();
    let tap = entry.outputs[0].1.clone();
    evaluator.run(&bindings, &mut States::none(), ROWS as u64).unwrap().take(&tap).unwrap()
}

/// Returns the graph that [`run`] evaluates, and its inputs.
fn bound(op: &Op, arguments: &[Operand], constants: &[Weight], result: Encoding) -> (EntryGraph, Bindings) {
    let mut tensors = Vec::new();
    let mut inputs = Vec::new();
    let mut bindings = Bindings::new();
    for (index, argument) in arguments.iter().enumerate() {
        let shape = [ROWS as u64, argument.width as u64];
        let mut tensor = Tensor::plain(format!("operand-{index}"), shape.to_vec(), argument.encoding.element);
        tensor.affine = argument.encoding.affine();
        let role = Role::Gathered { asset: AssetId(index as u32) };
        inputs.push((TensorId(tensors.len() as u32), role.clone()));
        tensors.push(tensor);
        bindings.bind(role, Array::floats_of(&shape, argument.values.clone()).unwrap());
    }
    for (index, weight) in constants.iter().enumerate() {
        let mut tensor = Tensor::plain(format!("constant-{index}"), weight.shape.clone(), weight.dtype);
        tensor.weight = Some(WeightId(index as u32));
        tensors.push(tensor);
    }
    if matches!(op, Op::Rope(_) | Op::Attention(_)) {
        inputs.push((TensorId(tensors.len() as u32), Role::Positions));
        tensors.push(Tensor::plain("positions", vec![ROWS as u64], DType::I32));
        bindings.bind(Role::Positions, Array::integers_of(&[ROWS as u64], (3..7).collect()).unwrap());
    }
    let operands: Vec<TensorId> = (0..tensors.len() as u32).map(TensorId).collect();
    let shapes: Vec<&[u64]> = tensors.iter().map(|tensor| tensor.shape.as_slice()).collect();
    let mut output = Tensor::plain("result", infer_shape(op, &shapes).unwrap(), result.element);
    output.affine = result.affine();
    tensors.push(output);
    let output = TensorId(operands.len() as u32);
    let tap = Role::Tap { name: "result".to_owned() };
    let rows = ROWS as u64;
    let entry = EntryGraph {
        segments: Segment::whole(ComponentKind::Head).into(),
        point: EntryPoint { kind: EntryKind::Encode, rows, context: rows, largest_rows: rows },
        tensors,
        nodes: vec![EntryNode {
            name: "node".to_owned(),
            op: op.clone(),
            inputs: operands,
            output,
            layer: None,
        }],
        inputs,
        outputs: vec![(output, tap)],
        states: Vec::new(),
    };
    (entry, bindings)
}

/// Checks that the result is `wanted` in the encoding. If `exact` is false, one step of difference
/// is allowed, since functions of two libraries may round differently.
fn check(what: &str, found: &Array, wanted: &[f64], encoding: &Encoding, exact: bool) {
    assert_eq!(found.encoding(), Some(*encoding), "{what}");
    let values = found.floats();
    assert_eq!(values.len(), wanted.len(), "{what}");
    for (index, (&value, &wanted)) in values.iter().zip(wanted).enumerate() {
        let rounded = rounded_to(encoding, wanted as f32);
        let near = f64::from(value - rounded).abs() <= 1e-6 * wanted.abs() + f64::from(f32::MIN_POSITIVE);
        assert!(
            value == rounded || !exact && near,
            "{what} at {index}: {value} instead of {rounded} ({wanted})"
        );
    }
    if let Some(affine) = encoding.affine() {
        for (&stored, &value) in found.stored().iter().zip(values.iter()) {
            assert_eq!((stored - affine.zero_point) as f32 * affine.scale.get(), value, "{what}");
        }
    }
}

#[test]
fn functions_decode_compute_and_encode_once() {
    type Of = fn(f64) -> f64;
    let cases: [(Op, Of, bool); 13] = [
        (Op::AddScalar { value: 0.3 }, |x| x + f64::from(0.3_f32), true),
        (Op::MulScalar { value: -1.7 }, |x| x * f64::from(-1.7_f32), true),
        (Op::MaxScalar { value: 0.1 }, |x| x.max(f64::from(0.1_f32)), true),
        (Op::Neg, |x| -x, true),
        (Op::Exp, f64::exp, false),
        (Op::Tanh, f64::tanh, false),
        (Op::Reciprocal, |x| 1.0 / x, true),
        (Op::Round, |x| x - (x - x.round_ties_even()), true),
        (Op::Convert, |x| x, true),
        (Op::Silu, |x| x / (1.0 + (-x).exp()), false),
        (Op::Softcap { cap: 1.5 }, |x| 1.5 * (x / 1.5).tanh(), false),
        (
            Op::Gelu,
            |x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh()),
            false,
        ),
        (Op::MulScalar { value: 1e30 }, |x| x * f64::from(1e30_f32), true),
    ];
    let mut noise = Noise(1);
    for from in encodings() {
        for to in encodings() {
            for (op, of, exact) in &cases {
                let x = Operand::random(&mut noise, 5, from);
                let wanted: Vec<f64> = x.wide().into_iter().map(of).collect();
                // A reciprocal of zero is the end of the range, in every encoding that has one.
                if wanted.iter().any(|value| value.is_infinite()) {
                    continue;
                }
                check(&format!("{op:?} {from} → {to}"), &run(op, &[x], &[], to), &wanted, &to, *exact);
            }
        }
    }
}

#[test]
fn pairs_rows_and_roots() {
    type OfPair = fn(f64, f64) -> f64;
    let pairs: [(Op, OfPair); 4] =
        [(Op::Add, |a, b| a + b), (Op::Sub, |a, b| a - b), (Op::Mul, |a, b| a * b), (Op::Div, |a, b| a / b)];
    let mut noise = Noise(2);
    for from in encodings() {
        for other in encodings() {
            for to in [other, Encoding::F32, integer(DType::U16, 1e-4, 30_000)] {
                for (op, of) in &pairs {
                    for width in [1, 5] {
                        let (a, mut b) =
                            (Operand::random(&mut noise, 5, from), Operand::random(&mut noise, width, other));
                        // Avoids a division by zero, even if all values are on one side of zero.
                        let half = [0.5, -0.5].map(|half| rounded_to(&other, half));
                        let half = half.into_iter().find(|half| *half != 0.0).unwrap();
                        b.values.iter_mut().filter(|b| **b == 0.0).for_each(|b| *b = half);
                        let (x, y) = (a.wide(), b.wide());
                        let wanted: Vec<f64> = x
                            .iter()
                            .enumerate()
                            .map(|(index, &a)| of(a, y[index / 5 * width + index % 5 % width]))
                            .collect();
                        check(
                            &format!("{op:?} {from} {other} → {to}"),
                            &run(op, &[a, b], &[], to),
                            &wanted,
                            &to,
                            true,
                        );
                    }
                }
            }
            let to = other;
            let x = Operand::random(&mut noise, 6, from);
            let wide = x.wide();
            let rows: Vec<&[f64]> = wide.chunks(6).collect();
            let each =
                |of: &dyn Fn(&[f64]) -> Vec<f64>| rows.iter().flat_map(|row| of(row)).collect::<Vec<_>>();
            let sum = |row: &[f64]| row.iter().sum::<f64>();
            let largest = |row: &[f64]| row.iter().copied().fold(f64::MIN, f64::max);
            let exponentials = |row: &[f64]| row.iter().map(|x| (x - largest(row)).exp()).collect::<Vec<_>>();
            let rms = |row: &[f64]| {
                (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + f64::from(1e-6_f32)).sqrt()
            };
            let norm = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
            let cases: Vec<(Op, Vec<f64>)> = vec![
                (Op::ReduceSum, each(&|row| vec![sum(row)])),
                (Op::ReduceMean, each(&|row| vec![sum(row) / 6.0])),
                (Op::ReduceMax, each(&|row| vec![largest(row)])),
                (
                    Op::Softmax,
                    each(&|row| exponentials(row).iter().map(|e| e / sum(&exponentials(row))).collect()),
                ),
                (Op::L2Normalize, each(&|row| row.iter().map(|x| x / norm(row)).collect())),
                (
                    Op::LayerNorm { eps: 1e-6 },
                    each(&|row| {
                        let mean = sum(row) / row.len() as f64;
                        let centred: Vec<f64> = row.iter().map(|x| x - mean).collect();
                        let variance = centred.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
                        centred.iter().map(|x| x / (variance + 1e-6).sqrt()).collect()
                    }),
                ),
                (
                    Op::RmsNorm { width: 3, eps: 1e-6, weight_offset: 0.0 },
                    each(&|row| {
                        row.chunks(3).flat_map(|g| g.iter().map(|x| x / rms(g)).collect::<Vec<_>>()).collect()
                    }),
                ),
            ];
            for (op, wanted) in cases {
                check(
                    &format!("{op:?} {from} → {to}"),
                    &run(&op, std::slice::from_ref(&x), &[], to),
                    &wanted,
                    &to,
                    false,
                );
            }
            let mut positive = x.clone();
            positive.values.iter_mut().for_each(|x| *x = rounded_to(&from, x.abs() + 0.1));
            let positive = Operand {
                values: positive.values.iter().map(|x| x.abs().max(1e-3)).collect(),
                encoding: Encoding::F32,
                ..positive
            };
            type Root = (Op, fn(f64) -> f64, bool);
            let roots: [Root; 2] = [(Op::Sqrt, f64::sqrt, true), (Op::Rsqrt, |x| 1.0 / x.sqrt(), false)];
            for (op, of, exact) in roots {
                let wanted: Vec<f64> = positive.wide().into_iter().map(of).collect();
                check(
                    &format!("{op:?} → {to}"),
                    &run(&op, std::slice::from_ref(&positive), &[], to),
                    &wanted,
                    &to,
                    exact,
                );
            }
        }
    }
}

#[test]
fn movement_moves_stored_values() {
    let mut noise = Noise(3);
    for encoding in encodings() {
        let x = Operand::random(&mut noise, 6, encoding);
        let y = Operand::random(&mut noise, 2, encoding);
        let at = |row: usize, column: usize| f64::from(x.values[row * 6 + column]);
        let grid = |rows: usize, columns: usize, of: &dyn Fn(usize, usize) -> f64| {
            (0..rows * columns).map(|index| of(index / columns, index % columns)).collect::<Vec<_>>()
        };
        let joined = |row: usize, column: usize| match column {
            0..6 => at(row, column),
            _ => f64::from(y.values[row * 2 + column - 6]),
        };
        let cases: Vec<(Op, Vec<Operand>, Vec<f64>)> = vec![
            (Op::Reshape { shape: vec![3, 8] }, vec![x.clone()], x.wide()),
            (Op::Transpose { perm: vec![1, 0] }, vec![x.clone()], grid(6, 4, &|a, b| at(b, a))),
            (Op::Slice { axis: 1, start: 2, end: 5 }, vec![x.clone()], grid(4, 3, &|a, b| at(a, b + 2))),
            (Op::Slice { axis: 0, start: 1, end: 3 }, vec![x.clone()], grid(2, 6, &|a, b| at(a + 1, b))),
            (Op::Concat { axis: 1 }, vec![x.clone(), y.clone()], grid(4, 8, &joined)),
        ];
        for (op, operands, wanted) in cases {
            let found = run(&op, &operands, &[], encoding);
            check(&format!("{op:?} {encoding}"), &found, &wanted, &encoding, true);
            assert_eq!(found.stored().is_empty(), encoding.element.is_float());
            assert_eq!(found.bytes().len() as u64, found.elements() as u64 * encoding.element.bytes());
        }
    }
}

/// A matrix `[N, K]` of random stored integers over the whole range of its type, with the scale of
/// each value.
struct Matrix {
    weight: Weight,
    /// The values of `stored − zero point`.
    steps: Vec<i64>,
    /// Number of consecutive values of a row that share a scale.
    block: usize,
    /// The scale of each row and block.
    scales: Vec<f32>,
}

const N: usize = 3;
const K: usize = 70;

fn matrix(noise: &mut Noise, dtype: DType, granularity: Granularity, zero_point: i32) -> Matrix {
    let (low, high) = dtype.raw_range().unwrap();
    let raw: Vec<i32> = (0..N * K)
        .map(|index| match index {
            0 => low,
            1 => high,
            _ => {
                (f64::from(low) + f64::from(high - low) * f64::from(noise.next() + 1.0) / 2.0).round() as i32
            }
        })
        .collect();
    let scale_dtype =
        if matches!(granularity, Granularity::PerBlock { .. }) { DType::F16 } else { DType::F32 };
    let (count, block) = match granularity {
        Granularity::PerTensor => (1, K),
        Granularity::PerChannel => (N, K),
        Granularity::PerBlock { size, .. } => (N * K.div_ceil(size as usize), size as usize),
    };
    let made: Vec<f32> = (0..count).map(|_| f16::from_f32(0.01 + 0.004 * noise.next()).to_f32()).collect();
    let scale_bytes = made.iter().flat_map(|&scale| match scale_dtype {
        DType::F16 => f16::from_f32(scale).to_le_bytes().to_vec(),
        _ => scale.to_le_bytes().to_vec(),
    });
    let blocks = K.div_ceil(block);
    let scales = (0..N * blocks)
        .map(|index| match granularity {
            Granularity::PerTensor => made[0],
            Granularity::PerChannel => made[index / blocks],
            Granularity::PerBlock { .. } => made[index],
        })
        .collect();
    let weight = Weight {
        name: "w".to_owned(),
        part: "q",
        shape: vec![N as u64, K as u64],
        dtype,
        data: WeightData::from_vec(packed(dtype, &raw, K)),
        quantisation: Some(WeightQuantisation {
            granularity,
            scale_dtype,
            scales: WeightData::from_vec(scale_bytes.collect()),
            zero_point,
        }),
    };
    Matrix { weight, steps: raw.iter().map(|raw| i64::from(raw - zero_point)).collect(), block, scales }
}

impl Matrix {
    fn value(&self, row: usize, column: usize) -> f32 {
        self.steps[row * K + column] as f32 * self.scales[row * K.div_ceil(self.block) + column / self.block]
    }

    /// Multiplies a row of integers with row `n`: exact sums, scales in f64.
    fn product(&self, steps: &[i64], scale: f32, n: usize) -> f64 {
        let blocks = K.div_ceil(self.block);
        let sum = |range: std::ops::Range<usize>| -> f64 {
            let exact: i128 = range.map(|k| i128::from(steps[k]) * i128::from(self.steps[n * K + k])).sum();
            exact as f64
        };
        if blocks == 1 {
            return sum(0..K) * (f64::from(scale) * f64::from(self.scales[n]));
        }
        let mut total = 0.0;
        for block in 0..blocks {
            let end = K.min((block + 1) * self.block);
            total += sum(block * self.block..end) * f64::from(self.scales[n * blocks + block]);
        }
        total * f64::from(scale)
    }
}

fn matrices(noise: &mut Noise) -> Vec<Matrix> {
    let mut made = Vec::new();
    for dtype in [DType::I8, DType::I4, DType::I2] {
        for granularity in
            [Granularity::PerTensor, Granularity::PerChannel, Granularity::blocks(32), Granularity::blocks(7)]
        {
            made.push(matrix(noise, dtype, granularity, 0));
        }
    }
    made.push(matrix(noise, DType::U16, Granularity::PerTensor, 40_000));
    made.push(matrix(noise, DType::I16, Granularity::PerTensor, -5));
    made.push(matrix(noise, DType::U8, Granularity::PerChannel, 128));
    made
}

fn bias(values: &[f32]) -> Weight {
    Weight {
        name: "bias".to_owned(),
        part: "bias",
        shape: vec![values.len() as u64],
        dtype: DType::F32,
        data: WeightData::from_vec(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        quantisation: None,
    }
}

#[test]
fn integers_times_integers_are_summed_exactly() {
    let mut noise = Noise(4);
    let biases = [0.25_f32, -1.5, 3.0];
    for matrix in matrices(&mut noise) {
        let stored = widen(&matrix.weight).unwrap();
        assert!(stored.iter().enumerate().all(|(index, &value)| value == matrix.value(index / K, index % K)));
        for from in encodings() {
            let x = Operand::random(&mut noise, K, from);
            let what = format!("{from} · {:?} {:?}", matrix.weight.dtype, matrix.weight.quantisation);
            let wide = x.wide();
            let plain = |row: usize, n: usize| -> f64 {
                match from.affine() {
                    Some(affine) => {
                        let steps: Vec<i64> = x.values[row * K..][..K]
                            .iter()
                            .map(|&value| {
                                i64::from(self::stored(&from, value)) - i64::from(affine.zero_point)
                            })
                            .collect();
                        matrix.product(&steps, affine.scale.get(), n)
                    }
                    None => (0..K).map(|k| wide[row * K + k] * f64::from(matrix.value(n, k))).sum(),
                }
            };
            let exact = !from.element.is_float();
            for to in [Encoding::F32, integer(DType::U16, 5e-3, 33_000)] {
                let wanted: Vec<f64> = (0..ROWS * N).map(|index| plain(index / N, index % N)).collect();
                let one = std::slice::from_ref(&x);
                let weight = std::slice::from_ref(&matrix.weight);
                check(&what, &run(&Op::Linear, one, weight, to), &wanted, &to, exact);
                check(&what, &run(&Op::MatMul { transpose_b: true }, one, weight, to), &wanted, &to, exact);
                let with_bias: Vec<f64> =
                    wanted.iter().enumerate().map(|(index, y)| y + f64::from(biases[index % N])).collect();
                let constants = [matrix.weight.clone(), bias(&biases)];
                check(&what, &run(&Op::Linear, one, &constants, to), &with_bias, &to, exact);
            }
        }
    }
}

#[test]
fn products_of_two_activations_are_exact() {
    let mut noise = Noise(5);
    let integers: Vec<Encoding> =
        encodings().into_iter().filter(|encoding| !encoding.element.is_float()).collect();
    for left in &integers {
        for right in &integers {
            let to = integer(DType::U16, 2e-4, 30_000);
            for transpose_b in [true, false] {
                let width = if transpose_b { 9 } else { ROWS };
                let (a, b) =
                    (Operand::random(&mut noise, width, *left), Operand::random(&mut noise, 9, *right));
                let steps = |operand: &Operand, at: usize| {
                    i128::from(stored(&operand.encoding, operand.values[at]) - operand.encoding.zero_point)
                };
                let columns = if transpose_b { ROWS } else { 9 };
                let wanted: Vec<f64> = (0..ROWS * columns)
                    .map(|index| {
                        let (row, column) = (index / columns, index % columns);
                        let at = |k: usize| if transpose_b { column * 9 + k } else { k * 9 + column };
                        let sum: i128 =
                            (0..width).map(|k| steps(&a, row * width + k) * steps(&b, at(k))).sum();
                        sum as f64 * (f64::from(left.scale.get()) * f64::from(right.scale.get()))
                    })
                    .collect();
                let found = run(&Op::MatMul { transpose_b }, &[a, b], &[], to);
                check(&format!("{left} · {right}"), &found, &wanted, &to, true);
            }
        }
    }
}

#[test]
fn a_constant_by_columns_is_read_as_it_is() {
    // 4 × 70 times 70 × 3: columns of packed rows.
    let mut noise = Noise(6);
    for granularity in [Granularity::PerTensor, Granularity::PerChannel, Granularity::blocks(2)] {
        let (low, high) = (-7, 7);
        let raw: Vec<i32> = (0..K * 3).map(|index| low + index as i32 * 5 % (high - low + 1)).collect();
        let count = match granularity {
            Granularity::PerTensor => 1,
            Granularity::PerChannel => K,
            Granularity::PerBlock { .. } => K * 2,
        };
        let scales: Vec<f32> = (0..count).map(|index| 0.5 + (index % 4) as f32).collect();
        let weight = Weight {
            shape: vec![K as u64, 3],
            data: WeightData::from_vec(packed(DType::I4, &raw, 3)),
            quantisation: Some(WeightQuantisation {
                granularity,
                scale_dtype: DType::F32,
                scales: WeightData::from_vec(scales.iter().flat_map(|scale| scale.to_le_bytes()).collect()),
                zero_point: 0,
            }),
            ..matrix(&mut noise, DType::I4, Granularity::PerTensor, 0).weight
        };
        let value = |k: usize, n: usize| {
            let scale = match granularity {
                Granularity::PerTensor => scales[0],
                Granularity::PerChannel => scales[k],
                Granularity::PerBlock { .. } => scales[k * 2 + n / 2],
            };
            f64::from(raw[k * 3 + n] as f32 * scale)
        };
        for from in [Encoding::F32, integer(DType::I16, 1e-4, 12)] {
            let x = Operand::random(&mut noise, K, from);
            let wide = x.wide();
            let wanted: Vec<f64> = (0..ROWS * 3)
                .map(|index| (0..K).map(|k| wide[index / 3 * K + k] * value(k, index % 3)).sum())
                .collect();
            let op = Op::MatMul { transpose_b: false };
            let found = run(&op, &[x], std::slice::from_ref(&weight), Encoding::F32);
            check(&format!("{from} {granularity:?}"), &found, &wanted, &Encoding::F32, false);
        }
    }
}

#[test]
fn rows_quantised_at_run_time() {
    let mut noise = Noise(7);
    let biases = [0.25_f32, -1.5, 3.0];
    for matrix in matrices(&mut noise) {
        for from in [Encoding::F32, Encoding::F16, integer(DType::U16, 1e-4, 30_011)] {
            let mut x = Operand::random(&mut noise, K, from);
            // One row of zeros. Its scale must not cause a division by zero.
            x.values[K..2 * K].fill(0.0);
            for block in [0, 32, 8] {
                let wanted = rounded_products(&matrix, &x.values, block, &biases);
                let constants = [matrix.weight.clone(), bias(&biases)];
                let op = Op::DynamicLinear { block: block as u32 };
                let what = format!("{from} · {:?}, blocks of {block}", matrix.weight.quantisation);
                let found = run(&op, std::slice::from_ref(&x), &constants, Encoding::F32);
                check(&what, &found, &wanted, &Encoding::F32, block == 0);
                // In primitives, values of blocks are rounded to f32 before they are multiplied.
                let (entry, bindings) = bound(&op, std::slice::from_ref(&x), &constants, Encoding::F32);
                let steps = evaluated(&decompose_all(&entry), bindings, &constants);
                let size = wanted.iter().fold(0.0f64, |size, value| size.max(value.abs()));
                for (found, wanted) in steps.floats().iter().zip(&wanted) {
                    assert!(
                        (f64::from(*found) - wanted).abs() <= 1e-6 * size,
                        "{what}: {found} for {wanted}"
                    );
                }
            }
        }
    }
}

/// Multiplies rows whose blocks have separate scales, as the definition specifies.
fn rounded_products(matrix: &Matrix, x: &[f32], block: usize, biases: &[f32]) -> Vec<f64> {
    let size = if block == 0 { K } else { block };
    let mut wanted = Vec::new();
    for row in x.chunks(K) {
        let mut sums = [0.0; N];
        for start in (0..K).step_by(size) {
            let values = &row[start..K.min(start + size)];
            let largest = values.iter().fold(1e-30_f32, |largest, x| largest.max(x.abs()));
            let scale = largest * (1.0 / 127.0);
            let mut steps = vec![0; K];
            for (step, x) in steps[start..].iter_mut().zip(values) {
                *step = i64::from(stored(&integer(DType::I8, scale, 0), *x));
            }
            assert!(steps.iter().all(|step| (-127..=127).contains(step)));
            sums.iter_mut().enumerate().for_each(|(n, sum)| *sum += matrix.product(&steps, scale, n));
        }
        wanted.extend((0..N).map(|n| sums[n] + f64::from(biases[n])));
    }
    wanted
}

/// Blocks with minimums are not multiples of a scale. So rows are rounded, and weights are decoded.
#[test]
fn rows_quantised_at_run_time_times_blocks_with_minimums() {
    let mut noise = Noise(17);
    let mut weight = matrix(&mut noise, DType::I4, Granularity::blocks(32), 0).weight;
    let numbers: Vec<u8> = (0..N * 2 * K.div_ceil(32))
        .flat_map(|i| f16::from_f32(0.01 + i as f32 * 0.001).to_le_bytes())
        .collect();
    let existing = weight.quantisation.as_mut().unwrap();
    existing.granularity = Granularity::PerBlock { size: 32, minimum: true };
    existing.scales = WeightData::from_vec(numbers);
    let x = Operand::random(&mut noise, K, Encoding::F32);
    for block in [0, 32] {
        let size = if block == 0 { K } else { block };
        let mut wanted = Vec::new();
        for row in x.values.chunks(K) {
            let rounded: Vec<f64> = row
                .chunks(size)
                .flat_map(|values| {
                    let scale = values.iter().fold(1e-30_f32, |most, x| most.max(x.abs())) * (1.0 / 127.0);
                    values.iter().map(move |x| f64::from((x / scale).round_ties_even()) * f64::from(scale))
                })
                .collect();
            for n in 0..N {
                let mut decoded = vec![0.0; K];
                assert!(weight.decode_row(n, &mut decoded));
                wanted.push(rounded.iter().zip(&decoded).map(|(x, w)| x * f64::from(*w)).sum::<f64>());
            }
        }
        let op = Op::DynamicLinear { block: block as u32 };
        let found = run(&op, std::slice::from_ref(&x), std::slice::from_ref(&weight), Encoding::F32);
        check(&format!("blocks of {block}"), &found, &wanted, &Encoding::F32, false);
    }
}

#[test]
fn norms_scale_by_encoded_constants() {
    let mut noise = Noise(8);
    let scales = matrix(&mut noise, DType::U16, Granularity::PerTensor, 1000);
    let weight = Weight {
        shape: vec![3],
        data: WeightData::from_vec([0_u16, 1100, 60_000].iter().flat_map(|raw| raw.to_le_bytes()).collect()),
        ..scales.weight.clone()
    };
    let factor = |index: usize| f64::from([-1000.0_f32, 100.0, 59_000.0][index] * scales.scales[0]) + 1.0;
    for from in encodings() {
        let x = Operand::random(&mut noise, 3, from);
        let wanted: Vec<f64> = x
            .wide()
            .chunks(3)
            .flat_map(|row| {
                let rms = (row.iter().map(|x| x * x).sum::<f64>() / 3.0 + f64::from(1e-5_f32)).sqrt();
                row.iter().enumerate().map(|(index, x)| x / rms * factor(index)).collect::<Vec<_>>()
            })
            .collect();
        let op = Op::RmsNorm { width: 3, eps: 1e-5, weight_offset: 1.0 };
        let found = run(&op, &[x], std::slice::from_ref(&weight), Encoding::F32);
        check(&format!("norm {from}"), &found, &wanted, &Encoding::F32, false);
    }
}

#[test]
fn attention_and_rotation_of_encoded_rows() {
    let mut noise = Noise(9);
    let rope = Rope {
        head_dim: 4,
        theta: 100.0,
        rotated_pairs: 2,
        factor: 1.0,
        divisors: Vec::new(),
        magnitude: 1.0,
    };
    let attention = Attention {
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        scale: 0.5,
        softcap: 3.0,
        window: 3,
        causal: true,
        keys: KeySource::Rows,
        products: AttentionFormat::F32,
    };
    for from in encodings() {
        for to in [Encoding::F32, Encoding::F16, integer(DType::U16, 1e-4, 30_000)] {
            let q = Operand::random(&mut noise, 8, from);
            let wide = q.wide();
            let turned: Vec<f64> = (0..ROWS * 8)
                .map(|index| {
                    let (row, column) = (index / 8, index % 8);
                    let (head, place) = (column / 4 * 4, column % 4);
                    let angle =
                        f64::from((row + 3) as f32 * (1.0 / 100.0_f32.powf((place % 2) as f32 / 2.0)));
                    let (a, b) = (wide[row * 8 + head + place % 2], wide[row * 8 + head + place % 2 + 2]);
                    match place < 2 {
                        true => a * angle.cos() - b * angle.sin(),
                        false => b * angle.cos() + a * angle.sin(),
                    }
                })
                .collect();
            // Positions 3, 4, …, as in `run`, in tables of f32.
            let table = |of: fn(f64) -> f64| Operand {
                values: (0..ROWS * 2)
                    .map(|at| of(f64::from((at / 2 + 3) as f32 * 0.1_f32.powi((at % 2) as i32))) as f32)
                    .collect(),
                width: 2,
                encoding: Encoding::F32,
            };
            let tables =
                run(&Op::Rotate { head_dim: 4 }, &[q.clone(), table(f64::cos), table(f64::sin)], &[], to);
            let found = run(&Op::Rope(rope.clone()), std::slice::from_ref(&q), &[], to);
            for (value, wanted) in tables.floats().iter().zip(found.floats().iter()) {
                let step = if to.element.is_float() { wanted.abs() * 1e-3 } else { to.scale.get() };
                assert!((value - wanted).abs() <= step + 1e-6, "{from} → {to} by tables: {value} {wanted}");
            }
            // The tables are f32, but the angles here are not.
            for (value, wanted) in found.floats().iter().zip(&turned) {
                let step = if to.element.is_float() { wanted.abs() as f32 * 1e-3 } else { to.scale.get() };
                assert!((value - *wanted as f32).abs() <= step + 1e-6, "{from} → {to}: {value} {wanted}");
            }

            let (k, v) = (Operand::random(&mut noise, 4, from), Operand::random(&mut noise, 4, from));
            let (keys, values) = (k.wide(), v.wide());
            let mut wanted = Vec::new();
            for row in 0..ROWS {
                for head in 0..2 {
                    let visible: Vec<usize> = (row.saturating_sub(2)..=row).collect();
                    let weights: Vec<f64> = visible
                        .iter()
                        .map(|&key| {
                            let dot: f64 =
                                (0..4).map(|i| wide[row * 8 + head * 4 + i] * keys[key * 4 + i]).sum();
                            (3.0 * (dot * 0.5 / 3.0).tanh()).exp()
                        })
                        .collect();
                    let sum: f64 = weights.iter().sum();
                    wanted.extend((0..4).map(|i| {
                        visible
                            .iter()
                            .zip(&weights)
                            .map(|(&key, weight)| weight / sum * values[key * 4 + i])
                            .sum::<f64>()
                    }));
                }
            }
            let found = run(&Op::Attention(attention), &[q, k, v], &[], to);
            check(&format!("attention {from} → {to}"), &found, &wanted, &to, false);
        }
    }
}

/// Returns a graph that writes `hidden` to a state, which is an output.
fn update(encoding: Encoding, kept: Encoding) -> EntryGraph {
    let state = State { name: "k".to_owned(), layer: 0, width: 2, kind: StateKind::Linear };
    let tensor = |name: &str, shape: Vec<u64>, encoding: Encoding| {
        let mut tensor = Tensor::plain(name, shape, encoding.element);
        tensor.affine = encoding.affine();
        tensor
    };
    EntryGraph {
        segments: Segment::decoder(0, 1).into(),
        point: EntryPoint { kind: EntryKind::Decode, rows: 2, context: 3, largest_rows: 2 },
        tensors: vec![
            tensor("hidden", vec![2, 2], encoding),
            tensor("rows", vec![2, 2], kept),
            Tensor::plain("slots", vec![2], DType::I32),
            tensor("before", vec![3, 2], kept),
            tensor("after", vec![3, 2], kept),
        ],
        nodes: vec![
            EntryNode {
                name: "convert".to_owned(),
                op: Op::Convert,
                inputs: vec![TensorId(0)],
                output: TensorId(1),
                layer: None,
            },
            EntryNode {
                name: "write".to_owned(),
                op: Op::StateUpdate,
                inputs: vec![TensorId(3), TensorId(1), TensorId(2)],
                output: TensorId(4),
                layer: None,
            },
        ],
        inputs: vec![
            (TensorId(0), Role::Hidden),
            (TensorId(2), Role::Slots { capacity: 3 }),
            (TensorId(3), Role::State { state: StateId(0) }),
        ],
        outputs: vec![(TensorId(4), Role::State { state: StateId(0) })],
        states: vec![StatePort { id: StateId(0), state, capacity: 3, written: true }],
    }
}

#[test]
fn states_hold_stored_values() {
    let kept = integer(DType::U8, 0.5, 10);
    let evaluator = Evaluator::new(update(Encoding::F16, kept), Weights::new(&[])).unwrap();
    let before = Array::stored_of(&[3, 2], kept, vec![10, 20, 30, 40, 50, 60]).unwrap();
    let mut states = States::none();
    states.set(StateId(0), before.clone());
    let mut bindings = Bindings::new();
    bindings
        .bind(Role::Hidden, Array::floats_of(&[2, 2], vec![1.26, -99.0, 1e9, 0.25]).unwrap())
        .bind(Role::Slots { capacity: 3 }, Array::integers_of(&[2], vec![2, -1]).unwrap());
    evaluator.run(&bindings, &mut states, 2).unwrap();
    assert_eq!(states.get(StateId(0)).unwrap().stored(), [10, 20, 30, 40, 13, 0]);
    assert_eq!(states.get(StateId(0)).unwrap().floats()[..2], [0.0, 5.0]);

    // Rows that the runtime places have the state's encoding.
    let rows = Array::floats_of(&[2, 2], vec![0.75, 1.0, -5.0, 1e9]).unwrap();
    states.place(StateId(0), &rows, &[0, 1]).unwrap();
    assert_eq!(states.get(StateId(0)).unwrap().stored(), [12, 12, 0, 255, 13, 0]);

    let mut other = States::none();
    other.set(StateId(0), Array::floats_of(&[3, 2], vec![0.0; 6]).unwrap());
    let error = evaluator.run(&bindings, &mut other, 2).unwrap_err();
    assert_eq!((error.kind(), error.place()), (ErrorKind::Argument, Some("state 0")));
    assert!(error.message().starts_with(&format!("expected the encoding {kept}, got ")), "{error}");
    assert!(error.help().is_some());
}

#[test]
fn arrays_hold_what_their_encoding_can() {
    let encoding = integer(DType::I8, 0.25, -3);
    let array = Array::stored_of(&[2, 2], encoding, vec![-128, -3, 0, 127]).unwrap();
    assert_eq!(array.floats().as_ref(), [-31.25, 0.0, 0.75, 32.5]);
    assert_eq!(array.bytes(), [0x80, 0xfd, 0, 0x7f]);
    assert_eq!((array.dtype(), array.row(1)), (DType::I8, vec![0.75, 32.5]));
    assert_eq!(array.first_rows(0, 1).stored(), [-128, -3]);
    for stored in [-129, 128] {
        let error = Array::stored_of(&[1], encoding, vec![stored]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.message().starts_with(&format!("{stored} is not a stored value of ")), "{error}");
    }
    let error = Array::stored_of(&[1], Encoding::F16, vec![0]).unwrap_err();
    assert!(error.message().starts_with("0 is not a stored value of "), "{error}");
    let error = Array::stored_of(&[3], encoding, vec![0]).unwrap_err();
    assert_eq!(error.message(), "1 values do not fill a tensor of [3]");
    // Saturation of integers, overflow of floats, ties to even, and NaN.
    let values = vec![0.125, 0.375, -1e30, 1e30, f32::INFINITY, f32::NAN];
    let array = Array::floats_of(&[6], values.clone()).unwrap();
    assert_eq!(
        array.clone().encoded(integer(DType::U16, 0.25, 100)).stored(),
        [100, 102, 0, 65_535, 65_535, 0]
    );
    let half = array.clone().encoded(Encoding::F16);
    assert_eq!(half.floats()[..5], [0.125, 0.375, f32::NEG_INFINITY, f32::INFINITY, f32::INFINITY]);
    // The host saturates finite values of tensors that it binds.
    let bound = array.clone().bound(Encoding::F16);
    assert_eq!(bound.floats()[..5], [0.125, 0.375, -65_504.0, 65_504.0, f32::INFINITY]);
    assert_eq!(half.bytes()[..4], [0, 0x30, 0, 0x36]);
    let brain = array.clone().encoded(Encoding { element: DType::Bf16, ..Encoding::F32 });
    assert_eq!((brain.dtype(), brain.bytes()[..2].to_vec()), (DType::Bf16, vec![0, 0x3e]));
    assert_eq!(array.bytes()[..4], 0.125_f32.to_le_bytes());
    let slots = Array::integers_of(&[2], vec![-1, 7]).unwrap().encoded(Encoding::F16);
    assert_eq!((slots.integers(), slots.bytes().len(), slots.encoding()), (&[-1, 7][..], 8, None));
}

#[test]
fn constants_that_cannot_be_read_say_why() {
    let mut noise = Noise(10);
    let good = matrix(&mut noise, DType::I4, Granularity::blocks(32), 0).weight;
    assert!(widen(&good).is_ok());
    type Breaks = fn(&mut Weight);
    let cases: [(&str, Breaks); 6] = [
        ("number of bytes", |weight| weight.data = WeightData::from_vec(vec![0; 3])),
        ("do not exist yet", |weight| weight.data = WeightData::planned(weight.data.length())),
        ("neither f32 nor f16", |weight| weight.quantisation.as_mut().unwrap().scale_dtype = DType::Bf16),
        ("number of scales", |weight| {
            weight.quantisation.as_mut().unwrap().scales = WeightData::from_vec(vec![0; 4]);
        }),
        ("zero point", |weight| weight.quantisation.as_mut().unwrap().zero_point = 8),
        ("finite", |weight| {
            let scales = &mut weight.quantisation.as_mut().unwrap().scales;
            let mut bytes = scales.bytes().to_vec();
            bytes[..2].copy_from_slice(&f16::NAN.to_le_bytes());
            *scales = WeightData::from_vec(bytes);
        }),
    ];
    for (wanted, breaks) in cases {
        let mut weight = good.clone();
        breaks(&mut weight);
        let error = widen(&weight).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.message().contains(wanted), "{error}");
        assert!(error.help().is_some());
    }
    let mut float = good.clone();
    float.dtype = DType::F32;
    let error = widen(&float).unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Unsupported, "stored as f32, which is not supported")
    );
}
