//! Compares each operation with a plain formula: inputs are decoded, the formula is computed in 64
//! bits, and the result must be within a quantisation step of it.

#![expect(
    clippy::type_complexity,
    clippy::too_many_arguments,
    clippy::cloned_ref_to_slice_refs,
    reason = "tables of cases are read as tables"
)]

use shardwright_neuron_adapter::operand::{
    EXT_TENSOR_QUANT4_SYMM, TENSOR_BOOL8, TENSOR_FLOAT16, TENSOR_FLOAT32, TENSOR_INT32, TENSOR_QUANT8_ASYMM,
    TENSOR_QUANT8_ASYMM_SIGNED, TENSOR_QUANT8_SYMM, TENSOR_QUANT8_SYMM_PER_CHANNEL, TENSOR_QUANT16_SYMM,
};
use shardwright_neuron_adapter::{extension, operation as op};

use crate::client::{Kind, Model, numbers, tensor};

fn i16s(dimensions: &[u32], bound: f32) -> Kind {
    tensor(TENSOR_QUANT16_SYMM, dimensions, bound / 32767.0, 0)
}

fn i8s(dimensions: &[u32], bound: f32, zero: i32) -> Kind {
    tensor(TENSOR_QUANT8_ASYMM_SIGNED, dimensions, bound / 100.0, zero)
}

fn f32s(dimensions: &[u32]) -> Kind {
    tensor(TENSOR_FLOAT32, dimensions, 0.0, 0)
}

fn i32s(dimensions: &[u32]) -> Kind {
    tensor(TENSOR_INT32, dimensions, 0.0, 0)
}

fn f16s(dimensions: &[u32]) -> Kind {
    tensor(TENSOR_FLOAT16, dimensions, 0.0, 0)
}

/// Checks that results are close to the formula's. `steps` counts steps of the output's scale, or
/// of the relative precision of its type.
fn close(out: &Kind, found: &[f64], expected: &[f64], steps: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let allowed = match out.of {
            TENSOR_FLOAT32 => steps * (expected.abs() * 1e-6 + 1e-6),
            TENSOR_FLOAT16 => steps * (expected.abs() / 1024.0 + 1e-5),
            _ if out.is_quantised() => steps * f64::from(out.scale) * 1.0001,
            _ => 0.0,
        };
        assert!(
            (found - expected).abs() <= allowed,
            "{what}: element {at} is {found}, not {expected}, ± {allowed}"
        );
    }
}

/// Makes the operation's operands after the inputs.
type Arguments<'a> = &'a dyn Fn(&mut Model) -> Vec<u32>;

/// Runs one operation on generated inputs and compares it with the formula.
fn check(
    what: &str,
    code: i32,
    inputs: &[Kind],
    bounds: &[f64],
    arguments: Arguments<'_>,
    out: &Kind,
    steps: f64,
    formula: &dyn Fn(&[Vec<f64>]) -> Vec<f64>,
) {
    let mut model = Model::new();
    let mut operands: Vec<u32> = inputs.iter().map(|kind| model.operand(kind)).collect();
    let outside = operands.clone();
    operands.extend(arguments(&mut model));
    let result = model.operand(out);
    model.operation(code, &operands, &[result]);
    let compiled = model.compile(&outside, &[result]);
    let bytes: Vec<Vec<u8>> = inputs
        .iter()
        .zip(bounds)
        .enumerate()
        .map(|(seed, (kind, bound))| kind.encode(&numbers(kind.elements(), *bound, seed as u64 + 7)))
        .collect();
    let size = out.encode(&vec![0.0; out.elements()]).len();
    let found = compiled.run(&bytes, &[size]).remove(0);
    let decoded: Vec<_> = inputs.iter().zip(&bytes).map(|(kind, bytes)| kind.decode(bytes)).collect();
    let limits = if out.is_quantised() {
        let ends = out.decode(&out.encode(&[-1e30, 1e30]));
        (ends[0], ends[1])
    } else {
        (f64::NEG_INFINITY, f64::INFINITY)
    };
    let expected: Vec<_> = formula(&decoded).into_iter().map(|real| real.clamp(limits.0, limits.1)).collect();
    close(out, &out.decode(&found), &expected, steps, what);
}

fn no_fuse(model: &mut Model) -> Vec<u32> {
    vec![model.int(0)]
}

fn product(x: &[f64], w: &[f64], depth: usize, columns: usize) -> Vec<f64> {
    x.chunks(depth)
        .flat_map(|x| w.chunks(depth).take(columns).map(move |w| x.iter().zip(w).map(|(x, w)| x * w).sum()))
        .collect()
}

#[test]
fn fully_connected_in_integers_is_the_product() {
    let (depth, columns) = (300usize, 24usize);
    for (x, wkind, out, what) in [
        (
            i16s(&[1, 3, 300], 4.0),
            TENSOR_QUANT8_SYMM_PER_CHANNEL,
            i16s(&[1, 3, 24], 40.0),
            "A16W8 per channel",
        ),
        (i16s(&[3, 300], 4.0), TENSOR_QUANT8_SYMM, i16s(&[3, 24], 40.0), "A16W8"),
        (i16s(&[3, 300], 4.0), EXT_TENSOR_QUANT4_SYMM, i16s(&[3, 24], 40.0), "A16W4"),
        (i16s(&[3, 300], 4.0), TENSOR_QUANT16_SYMM, i16s(&[3, 24], 40.0), "A16W16"),
        (
            i8s(&[3, 300], 4.0, 11),
            TENSOR_QUANT8_SYMM_PER_CHANNEL,
            i8s(&[3, 24], 40.0, -9),
            "A8W8 per channel",
        ),
        (
            i8s(&[3, 300], 4.0, 11),
            TENSOR_QUANT8_ASYMM_SIGNED,
            i8s(&[3, 24], 40.0, -9),
            "A8W8 with zero points",
        ),
        (
            tensor(TENSOR_QUANT8_ASYMM, &[3, 300], 0.03, 120),
            TENSOR_QUANT8_ASYMM,
            tensor(TENSOR_QUANT8_ASYMM, &[3, 24], 0.4, 130),
            "u8",
        ),
    ] {
        for fuse in [0, 1] {
            let mut model = Model::new();
            let input = model.operand(&x);
            let per_channel = wkind == TENSOR_QUANT8_SYMM_PER_CHANNEL;
            let scales: Vec<f32> = (0..columns).map(|column| 0.002 + 0.0001 * column as f32).collect();
            let whole = match wkind {
                EXT_TENSOR_QUANT4_SYMM => 0.05,
                TENSOR_QUANT16_SYMM => 1e-5,
                _ => 0.004,
            };
            let zero = if matches!(wkind, TENSOR_QUANT8_ASYMM | TENSOR_QUANT8_ASYMM_SIGNED) { 5 } else { 0 };
            let w =
                tensor(wkind, &[columns as u32, depth as u32], if per_channel { 0.0 } else { whole }, zero);
            let reals = numbers(columns * depth, 0.3, 3);
            let mut stored = Vec::new();
            let mut decoded = Vec::new();
            for (column, row) in reals.chunks(depth).enumerate() {
                let kind =
                    tensor(wkind, &w.dimensions, if per_channel { scales[column] } else { whole }, zero);
                let bytes = kind.encode(row);
                decoded.extend(kind.decode(&bytes));
                stored.extend(bytes);
            }
            let weight = model.constant(&w, stored);
            if per_channel {
                assert_eq!(model.symmetric_channels(weight, 0, &scales), 0);
            }
            let biases: Vec<i32> = (0..columns as i32).map(|column| column * 500 - 4000).collect();
            let bias_scale = if per_channel { 0.0 } else { x.scale * whole };
            let bias = model.constant(
                &tensor(TENSOR_INT32, &[columns as u32], bias_scale, 0),
                biases.iter().flat_map(|bias| bias.to_le_bytes()).collect(),
            );
            let fused = model.int(fuse);
            let result = model.operand(&out);
            model.operation(op::FULLY_CONNECTED, &[input, weight, bias, fused], &[result]);
            let compiled = model.compile(&[input], &[result]);
            let bytes = x.encode(&numbers(x.elements(), 3.0, 5));
            let size = out.encode(&vec![0.0; out.elements()]).len();
            let found = out.decode(&compiled.run(&[bytes.clone()], &[size])[0]);
            let ends = out.decode(&out.encode(&[-1e30, 1e30]));
            let expected: Vec<f64> = product(&x.decode(&bytes), &decoded, depth, columns)
                .iter()
                .enumerate()
                .map(|(at, sum)| {
                    let column = at % columns;
                    let scale =
                        f64::from(x.scale) * f64::from(if per_channel { scales[column] } else { whole });
                    let real = (sum + f64::from(biases[column]) * scale).clamp(ends[0], ends[1]);
                    if fuse == 1 { real.max(0.0) } else { real }
                })
                .collect();
            // A multiplier of 16 bits has an error of one part in 32768, which is a step at the end
            // of the range.
            close(&out, &found, &expected, 1.5, &format!("{what}, activation {fuse}"));
        }
    }
}

#[test]
fn fully_connected_in_real_numbers_is_the_product() {
    for (kind, steps) in [(TENSOR_FLOAT32, 40.0), (TENSOR_FLOAT16, 1.0)] {
        let of = |dimensions: &[u32]| tensor(kind, dimensions, 0.0, 0);
        let formula = |inputs: &[Vec<f64>]| {
            product(&inputs[0], &inputs[1], 130, 7)
                .iter()
                .enumerate()
                .map(|(at, sum)| sum + inputs[2][at % 7])
                .collect()
        };
        let (inputs, out) = ([of(&[2, 130]), of(&[7, 130]), of(&[7])], of(&[2, 7]));
        check("FULLY_CONNECTED", op::FULLY_CONNECTED, &inputs, &[1.0; 3], &no_fuse, &out, steps, &formula);
    }
}

#[test]
fn products_of_matrices_follow_their_flags_and_broadcast() {
    type Make = fn(&[u32]) -> Kind;
    let makes: [(Make, Make, f64); 4] = [
        (|d| i16s(d, 2.0), |d| i16s(d, 60.0), 1.2),
        (|d| i8s(d, 2.0, 3), |d| i8s(d, 60.0, -20), 1.0),
        (f32s, f32s, 40.0),
        (f16s, f16s, 1.0),
    ];
    for (make, result, steps) in makes {
        for (adjoint_x, adjoint_y) in [(false, false), (false, true), (true, false), (true, true)] {
            let (x, y): ([u32; 4], [u32; 4]) = (
                if adjoint_x { [2, 3, 50, 4] } else { [2, 3, 4, 50] },
                if adjoint_y { [2, 1, 6, 50] } else { [2, 1, 50, 6] },
            );
            let formula = |inputs: &[Vec<f64>]| {
                let at = |matrix: &[f64], row: usize, column: usize, columns: usize| {
                    matrix[row * columns + column]
                };
                let mut out = Vec::new();
                for (batch, head) in (0..2).flat_map(|batch| (0..3).map(move |head| (batch, head))) {
                    let left = &inputs[0][(batch * 3 + head) * 200..][..200];
                    let right = &inputs[1][batch * 300..][..300];
                    for (row, column) in (0..4).flat_map(|row| (0..6).map(move |column| (row, column))) {
                        out.push(
                            (0..50)
                                .map(|k| {
                                    let a =
                                        if adjoint_x { at(left, k, row, 4) } else { at(left, row, k, 50) };
                                    let b = if adjoint_y {
                                        at(right, column, k, 50)
                                    } else {
                                        at(right, k, column, 6)
                                    };
                                    a * b
                                })
                                .sum(),
                        );
                    }
                }
                out
            };
            let flags = move |model: &mut Model| vec![model.truth(adjoint_x), model.truth(adjoint_y)];
            let (inputs, out) = ([make(&x), make(&y)], result(&[2, 3, 4, 6]));
            check("BATCH_MATMUL", op::BATCH_MATMUL, &inputs, &[1.5, 1.5], &flags, &out, steps, &formula);
        }
    }
}

fn broadcast(inputs: &[Vec<f64>], one: fn(f64, f64) -> f64) -> Vec<f64> {
    // [2, 3, 5] with [3, 1]
    (0..30).map(|at| one(inputs[0][at], inputs[1][at / 5 % 3])).collect()
}

#[test]
fn pairs_of_elements_are_computed_within_a_step() {
    type Make = fn(&[u32], f32) -> Kind;
    let makes: [(Make, f64); 4] =
        [(|d, b| i16s(d, b), 1.0), (|d, b| i8s(d, b, 4), 1.0), (|d, _| f32s(d), 2.0), (|d, _| f16s(d), 1.0)];
    for (make, steps) in makes {
        let inputs = [make(&[2, 3, 5], 3.0), make(&[3, 1], 2.0)];
        let of = |bound: f32| make(&[2, 3, 5], bound);
        let truth = tensor(TENSOR_BOOL8, &[2, 3, 5], 0.0, 0);
        let relu = |model: &mut Model| vec![model.int(3)];
        let none = |_: &mut Model| Vec::new();
        let name = |model: &mut Model| vec![model.extension(extension::SQUARED_DIFFERENCE).0];
        let general = neuron_adapter::target::GENERAL_OPERATION;
        // The second operand's bound, the other arguments, the result, its tolerance, the formula.
        let operations: [(&str, i32, f64, Arguments<'_>, Kind, f64, fn(f64, f64) -> f64); 9] = [
            ("ADD", op::ADD, 1.5, &no_fuse, of(6.0), steps, |a, b| a + b),
            ("SUB", op::SUB, 1.5, &no_fuse, of(6.0), steps, |a, b| a - b),
            ("MUL", op::MUL, 1.5, &no_fuse, of(6.0), steps, |a, b| a * b),
            ("DIV", op::DIV, 1.9, &no_fuse, of(9.0), steps, |a, b| a / b),
            ("ADD and RELU6", op::ADD, 1.5, &relu, of(6.0), steps, |a, b| (a + b).clamp(0.0, 6.0)),
            ("MAXIMUM", op::MAXIMUM, 1.5, &none, of(3.0), steps, f64::max),
            ("MINIMUM", op::MINIMUM, 1.5, &none, of(3.0), steps, f64::min),
            ("SQUARED_DIFFERENCE", general, 1.5, &name, of(16.0), steps, |a, b| (a - b) * (a - b)),
            ("GREATER", op::GREATER, 1.5, &none, truth, 0.0, |a, b| f64::from(a > b)),
        ];
        for (what, code, bound, arguments, out, steps, one) in operations {
            let formula = |inputs: &[Vec<f64>]| broadcast(inputs, one);
            check(what, code, &inputs, &[2.5, bound], arguments, &out, steps, &formula);
        }
    }
}

#[test]
fn results_beyond_the_range_saturate() {
    let formula = |inputs: &[Vec<f64>]| broadcast(inputs, |a, b| a + b);
    for (inputs, out) in [
        ([i16s(&[2, 3, 5], 3.0), i16s(&[3, 1], 2.0)], i16s(&[2, 3, 5], 0.5)),
        ([i8s(&[2, 3, 5], 3.0, 7), i8s(&[3, 1], 2.0, -7)], i8s(&[2, 3, 5], 0.5, 50)),
    ] {
        check("ADD", op::ADD, &inputs, &[3.0, 2.0], &no_fuse, &out, 1.0, &formula);
    }
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
}

#[test]
fn functions_of_one_element_follow_their_formula() {
    let none = |_: &mut Model| Vec::new();
    let approximate =
        |model: &mut Model| {
            vec![model.constant(
                &tensor(shardwright_neuron_adapter::operand::UINT32, &[], 0.0, 0),
                vec![1, 0, 0, 0],
            )]
        };
    // A table of 513 points over ±8 has an error of (1/32)²/8 of the second derivative, which is
    // below 1, plus its own rounding. Both are counted in steps of the output.
    let unit = || tensor(TENSOR_QUANT16_SYMM, &[4, 50], 1.0 / 32768.0, 0);
    let tables: [(i32, &str, Kind, fn(f64) -> f64, Arguments<'_>); 3] = [
        (op::LOGISTIC, "LOGISTIC", unit(), |x| 1.0 / (1.0 + (-x).exp()), &none),
        (op::TANH, "TANH", unit(), f64::tanh, &none),
        (op::GELU_V2, "GELU", i16s(&[4, 50], 8.0), gelu, &approximate),
    ];
    for (code, what, out, one, arguments) in tables {
        let formula = |inputs: &[Vec<f64>]| inputs[0].iter().map(|x| one(*x)).collect();
        let steps = (1.0 / 32.0f64).powi(2) / 8.0 / f64::from(out.scale) + 2.0;
        check(what, code, &[i16s(&[4, 50], 8.0)], &[7.9], arguments, &out, steps, &formula);
        let byte = if what == "GELU" {
            i8s(&[4, 50], 8.0, 3)
        } else {
            tensor(TENSOR_QUANT8_ASYMM_SIGNED, &[4, 50], 1.0 / 128.0, 0)
        };
        check(what, code, &[i8s(&[4, 50], 8.0, -5)], &[7.9], arguments, &byte, 0.51, &formula);
        check(what, code, &[f32s(&[4, 50])], &[7.9], arguments, &f32s(&[4, 50]), 1.0, &formula);
        check(what, code, &[f16s(&[4, 50])], &[7.9], arguments, &f16s(&[4, 50]), 1.0, &formula);
    }
    let plain: [(i32, &str, fn(f64) -> f64); 9] = [
        (op::RELU, "RELU", |x| x.max(0.0)),
        (op::RELU6, "RELU6", |x| x.clamp(0.0, 6.0)),
        (op::HARD_SWISH, "HARD_SWISH", |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
        (op::ABS, "ABS", f64::abs),
        (op::NEG, "NEG", |x| -x),
        (op::EXP, "EXP", f64::exp),
        (op::SQRT, "SQRT", |x| x.max(0.0).sqrt()),
        (op::RSQRT, "RSQRT", |x| 1.0 / x.sqrt()),
        (op::FLOOR, "FLOOR", f64::floor),
    ];
    for (code, what, one) in plain {
        let formula = |inputs: &[Vec<f64>]| -> Vec<f64> { inputs[0].iter().map(|x| one(*x)).collect() };
        if matches!(code, op::SQRT | op::RSQRT) {
            // The inputs are squares, so that none is negative.
            let mut model = Model::new();
            let x = model.operand(&f32s(&[40]));
            let none = model.int(0);
            let (square, out) = (model.operand(&f32s(&[40])), model.operand(&f32s(&[40])));
            model.operation(op::MUL, &[x, x, none], &[square]);
            model.operation(code, &[square], &[out]);
            let bytes = f32s(&[40]).encode(&numbers(40, 3.0, 1));
            let found = f32s(&[40]).decode(&model.compile(&[x], &[out]).run(&[bytes.clone()], &[160])[0]);
            let squares: Vec<f64> = f32s(&[40]).decode(&bytes).iter().map(|x| x * x).collect();
            close(&f32s(&[40]), &found, &formula(&[squares]), 2.0, what);
            continue;
        }
        check(what, code, &[f32s(&[4, 50])], &[3.0], &none, &f32s(&[4, 50]), 1.0, &formula);
        if code != op::EXP {
            check(what, code, &[i16s(&[4, 50], 4.0)], &[3.0], &none, &i16s(&[4, 50], 7.0), 1.0, &formula);
        }
    }
}

fn softmax(row: &[f64], beta: f64) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = row.iter().map(|x| ((x - largest) * beta).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

#[test]
fn softmax_follows_its_formula_down_to_the_end_of_its_tables() {
    let formula = |inputs: &[Vec<f64>]| inputs[0].chunks(20).flat_map(|row| softmax(row, 0.5)).collect();
    let beta = |model: &mut Model| vec![model.real(0.5)];
    let out = tensor(TENSOR_QUANT16_SYMM, &[3, 20], 1.0 / 32768.0, 0);
    check("SOFTMAX", op::SOFTMAX, &[i16s(&[3, 20], 8.0)], &[4.0], &beta, &out, 4.0, &formula);
    let byte = tensor(TENSOR_QUANT8_ASYMM_SIGNED, &[3, 20], 1.0 / 256.0, -128);
    check("SOFTMAX", op::SOFTMAX, &[i8s(&[3, 20], 8.0, 2)], &[4.0], &beta, &byte, 0.51, &formula);
    check("SOFTMAX", op::SOFTMAX, &[f32s(&[3, 20])], &[4.0], &beta, &f32s(&[3, 20]), 1.0, &formula);
    // The 16-bit tables end at ten below the maximum. Masked values still have 2/32768 of its
    // weight.
    let mut model = Model::new();
    let kind = i16s(&[1, 4], 100.0);
    let (x, one, result) = (
        model.operand(&kind),
        model.real(1.0),
        model.operand(&tensor(TENSOR_QUANT16_SYMM, &[1, 4], 1.0 / 32768.0, 0)),
    );
    model.operation(op::SOFTMAX, &[x, one], &[result]);
    let found =
        model.compile(&[x], &[result]).run(&[kind.encode(&[100.0, -100.0, -100.0, -100.0])], &[8]).remove(0);
    let found: Vec<i16> = found.chunks(2).map(|two| i16::from_le_bytes([two[0], two[1]])).collect();
    assert!(found[0] > 32_700 && (1..=2).contains(&found[1]), "{found:?}");
}

#[test]
fn elements_are_moved_and_not_changed() {
    let x = i16s(&[2, 3, 4], 1.0);
    let of = |dimensions: &[u32]| i16s(dimensions, 1.0);
    let at = |inputs: &[Vec<f64>], a: usize, b: usize, c: usize| inputs[0][(a * 3 + b) * 4 + c];
    let exact = 1e-6;
    let all = |counts: [usize; 3], from: &dyn Fn(usize, usize, usize) -> f64| -> Vec<f64> {
        let mut out = Vec::new();
        for (a, b, c) in (0..counts[0])
            .flat_map(|a| (0..counts[1]).flat_map(move |b| (0..counts[2]).map(move |c| (a, b, c))))
        {
            out.push(from(a, b, c));
        }
        out
    };
    let cases: [(&str, i32, Arguments<'_>, Kind, &dyn Fn(&[Vec<f64>]) -> Vec<f64>); 7] = [
        ("RESHAPE", op::RESHAPE, &|model| vec![model.ints(&[6, -1])], of(&[6, 4]), &|inputs| {
            inputs[0].clone()
        }),
        ("TRANSPOSE", op::TRANSPOSE, &|model| vec![model.ints(&[2, 0, 1])], of(&[4, 2, 3]), &|inputs| {
            all([4, 2, 3], &|a, b, c| at(inputs, b, c, a))
        }),
        (
            "SLICE",
            op::SLICE,
            &|model| vec![model.ints(&[1, 0, 1]), model.ints(&[1, -1, 2])],
            of(&[1, 3, 2]),
            &|inputs| all([1, 3, 2], &|_, b, c| at(inputs, 1, b, c + 1)),
        ),
        (
            "STRIDED_SLICE",
            op::STRIDED_SLICE,
            &|model| {
                let lists = [&[1, -1, 0], &[2, -4, 99], &[1, -2, 3]].map(|list: &[i32; 3]| model.ints(list));
                let masks = [0, 2, 1].map(|mask| model.int(mask));
                [&lists[..], &masks[..]].concat()
            },
            of(&[2, 2]),
            &|inputs| all([1, 2, 2], &|_, b, c| at(inputs, 1, 2 - 2 * b, 3 * c)),
        ),
        (
            "PAD",
            op::PAD,
            &|model| {
                vec![model.constant(
                    &tensor(TENSOR_INT32, &[3, 2], 0.0, 0),
                    [0i32, 0, 1, 0, 0, 2].iter().flat_map(|x| x.to_le_bytes()).collect(),
                )]
            },
            of(&[2, 4, 6]),
            &|inputs| all([2, 4, 6], &|a, b, c| if b == 0 || c > 3 { 0.0 } else { at(inputs, a, b - 1, c) }),
        ),
        ("TILE", op::TILE, &|model| vec![model.ints(&[1, 2, 3])], of(&[2, 6, 12]), &|inputs| {
            all([2, 6, 12], &|a, b, c| at(inputs, a, b % 3, c % 4))
        }),
        ("EXPAND_DIMS", op::EXPAND_DIMS, &|model| vec![model.ints(&[0])], of(&[1, 2, 3, 4]), &|inputs| {
            inputs[0].clone()
        }),
    ];
    for (what, code, arguments, out, formula) in cases {
        check(what, code, std::slice::from_ref(&x), &[0.9], arguments, &out, exact, formula);
    }
    let axis = |model: &mut Model| vec![model.int(-2)];
    let (parts, joined) = ([of(&[2, 3, 4]), of(&[2, 2, 4])], of(&[2, 5, 4]));
    check("CONCATENATION", op::CONCATENATION, &parts, &[0.9, 0.9], &axis, &joined, exact, &|inputs| {
        all([2, 5, 4], &|a, b, c| {
            if b < 3 { at(inputs, a, b, c) } else { inputs[1][(a * 2 + b - 3) * 4 + c] }
        })
    });
    let mut model = Model::new();
    let (operand, axis, count) = (model.operand(&x), model.ints(&[2]), model.int(2));
    let parts = [model.operand(&of(&[2, 3, 2])), model.operand(&of(&[2, 3, 2]))];
    model.operation(op::SPLIT, &[operand, axis, count], &parts);
    let bytes = x.encode(&numbers(24, 0.9, 2));
    let found = model.compile(&[operand], &parts).run(&[bytes.clone()], &[24, 24]);
    let whole = [x.decode(&bytes)];
    for (part, found) in found.iter().enumerate() {
        assert_eq!(x.decode(found), all([2, 3, 2], &|a, b, c| at(&whole, a, b, c + 2 * part)));
    }
}

#[test]
fn dimensions_are_reduced() {
    type Make = fn(&[u32], f32) -> Kind;
    let makes: [(Make, f64); 4] =
        [(|d, b| i16s(d, b), 1.0), (|d, b| i8s(d, b, 4), 1.0), (|d, _| f32s(d), 4.0), (|d, _| f16s(d), 1.0)];
    for (make, steps) in makes {
        let x = make(&[2, 3, 4], 3.0);
        let kept = |model: &mut Model| vec![model.ints(&[1]), model.int(1)];
        let dropped = |model: &mut Model| vec![model.ints(&[-2]), model.truth(false)];
        let add = |a: f64, b: f64| a + b;
        // The arguments, the result, how three numbers become one and from which, the divisor.
        let operations: [(&str, i32, Arguments<'_>, Kind, fn(f64, f64) -> f64, f64, f64); 4] = [
            ("MEAN", op::MEAN, &kept, make(&[2, 1, 4], 3.0), add, 0.0, 3.0),
            ("REDUCE_SUM", op::REDUCE_SUM, &dropped, make(&[2, 4], 9.0), add, 0.0, 1.0),
            ("REDUCE_MAX", op::REDUCE_MAX, &dropped, make(&[2, 4], 3.0), f64::max, -1e9, 1.0),
            ("REDUCE_MIN", op::REDUCE_MIN, &dropped, make(&[2, 4], 3.0), f64::min, 1e9, 1.0),
        ];
        for (what, code, arguments, out, fold, start, divisor) in operations {
            let formula = |inputs: &[Vec<f64>]| -> Vec<f64> {
                let three = |a: usize, c: usize| (0..3).map(move |b| inputs[0][(a * 3 + b) * 4 + c]);
                let one = |(a, c)| three(a, c).fold(start, fold) / divisor;
                (0..2).flat_map(|a| (0..4).map(move |c| (a, c))).map(one).collect()
            };
            check(what, code, &[x.clone()], &[2.9], arguments, &out, steps, &formula);
        }
    }
}

#[test]
fn numbers_change_their_type() {
    let none = |_: &mut Model| Vec::new();
    let same = |inputs: &[Vec<f64>]| inputs[0].clone();
    for (code, from, to, steps) in [
        (op::QUANTIZE, f32s(&[90]), i16s(&[90], 2.0), 0.51),
        (op::QUANTIZE, f16s(&[90]), i8s(&[90], 2.0, 9), 0.51),
        (op::QUANTIZE, i16s(&[90], 3.0), i16s(&[90], 2.0), 1.0),
        (op::QUANTIZE, i16s(&[90], 3.0), i8s(&[90], 2.0, -3), 1.0),
        (op::QUANTIZE, i8s(&[90], 3.0, 5), i16s(&[90], 4.0), 1.0),
        (op::DEQUANTIZE, i16s(&[90], 3.0), f32s(&[90]), 1.0),
        (op::DEQUANTIZE, i8s(&[90], 3.0, -8), f16s(&[90]), 1.0),
        (op::CAST, f32s(&[90]), f16s(&[90]), 1.0),
        (op::CAST, f16s(&[90]), f32s(&[90]), 1.0),
    ] {
        let what = format!("{code} from {} to {}", from.of, to.of);
        check(&what, code, &[from], &[2.5], &none, &to, steps, &same);
    }
    let ints = tensor(TENSOR_INT32, &[90], 0.0, 0);
    check("CAST", op::CAST, &[f32s(&[90])], &[90.0], &none, &ints, 0.0, &|inputs| {
        inputs[0].iter().map(|x| x.trunc()).collect()
    });
}

#[test]
fn rows_are_normalised() {
    let width = 40usize;
    let epsilon = 1e-3;
    let gamma_of = |inputs: &[Vec<f64>], at: usize| inputs[1][at % width];
    let named = |name: &'static str| {
        move |inputs: &[Vec<f64>]| -> Vec<f64> {
            let mut out = Vec::new();
            for row in inputs[0].chunks(width) {
                let mean = if name == extension::RMS_NORMALIZATION {
                    0.0
                } else {
                    row.iter().sum::<f64>() / width as f64
                };
                let divisor =
                    (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64 + epsilon).sqrt();
                out.extend(
                    row.iter().enumerate().map(|(at, x)| (x - mean) / divisor * gamma_of(inputs, at) + 0.25),
                );
            }
            out
        }
    };
    for name in [extension::RMS_NORMALIZATION, extension::LAYER_NORMALIZATION] {
        for (x, gamma, out, steps) in [
            (i16s(&[1, 2, 40], 4.0), i16s(&[40], 2.0), i16s(&[1, 2, 40], 8.0), 0.51),
            (f32s(&[2, 40]), f32s(&[40]), f32s(&[2, 40]), 4.0),
            (f16s(&[2, 40]), f16s(&[40]), f16s(&[2, 40]), 1.0),
        ] {
            let mut model = Model::new();
            let (input, factor) = (model.operand(&x), model.operand(&gamma));
            let axis = model.ints(&[x.dimensions.len() as i32 - 1]);
            let beta = model.constant(&f32s(&[40]), f32s(&[40]).encode(&[0.25; 40]));
            let small = model.real(epsilon as f32);
            let (text, code) = model.extension(name);
            let result = model.operand(&out);
            model.operation(code, &[input, axis, factor, beta, small, text], &[result]);
            let bytes = [x.encode(&numbers(80, 3.9, 1)), gamma.encode(&numbers(40, 1.9, 2))];
            let size = out.encode(&[0.0; 80]).len();
            let found = out.decode(&model.compile(&[input, factor], &[result]).run(&bytes, &[size])[0]);
            let decoded = [x.decode(&bytes[0]), gamma.decode(&bytes[1])];
            close(&out, &found, &named(name)(&decoded), steps, name);
        }
    }
    let none = |_: &mut Model| Vec::new();
    let unit = |inputs: &[Vec<f64>]| {
        inputs[0]
            .chunks(40)
            .flat_map(|row| {
                let root = row.iter().map(|x| x * x).sum::<f64>().sqrt();
                row.iter().map(move |x| x / root).collect::<Vec<_>>()
            })
            .collect()
    };
    for (x, out, steps) in
        [(f32s(&[2, 40]), f32s(&[2, 40]), 1.0), (i16s(&[2, 40], 3.0), i16s(&[2, 40], 1.0), 0.51)]
    {
        check("L2_NORMALIZATION", op::L2_NORMALIZATION, &[x], &[3.0], &none, &out, steps, &unit);
    }
}

#[test]
fn convolutions_sum_their_windows() {
    for (same, stride, dilation, height, width) in
        [(true, 1, 1, 6, 5), (true, 2, 1, 3, 3), (false, 1, 1, 4, 3), (false, 1, 2, 2, 1)]
    {
        let formula = |inputs: &[Vec<f64>]| {
            let reach = 2 * dilation + 1;
            let before = |size: usize, out: usize| {
                if same { ((out - 1) * stride + reach).saturating_sub(size) / 2 } else { 0 }
            };
            let (top, left) = (before(6, height), before(5, width));
            let mut out = Vec::new();
            for (y, x, o) in
                (0..height).flat_map(|y| (0..width).flat_map(move |x| (0..3).map(move |o| (y, x, o))))
            {
                let mut sum = 0.0;
                for (v, h, c) in (0..3usize)
                    .flat_map(|v| (0..3usize).flat_map(move |h| (0..2usize).map(move |c| (v, h, c))))
                {
                    let row = (y * stride + v * dilation).wrapping_sub(top);
                    let column = (x * stride + h * dilation).wrapping_sub(left);
                    if row < 6 && column < 5 {
                        sum +=
                            inputs[0][(row * 5 + column) * 2 + c] * inputs[1][((o * 3 + v) * 3 + h) * 2 + c];
                    }
                }
                out.push(sum);
            }
            out
        };
        let (steps, step) = (dilation as i32, stride as i32);
        let out = [1, height as u32, width as u32, 3];
        let bytes = tensor(TENSOR_QUANT8_SYMM, &[3, 3, 3, 2], 0.01, 0);
        for (x, w, bias, y, tolerance) in [
            (f32s(&[1, 6, 5, 2]), f32s(&[3, 3, 3, 2]), f32s(&[3]), f32s(&out), 10.0),
            (i16s(&[1, 6, 5, 2], 1.0), bytes.clone(), i32s(&[3]), i16s(&out, 12.0), 1.5),
            (i8s(&[1, 6, 5, 2], 1.0, 6), bytes, i32s(&[3]), i8s(&out, 12.0, 1), 1.5),
        ] {
            let bias = Kind { scale: x.scale * w.scale, ..bias };
            let arguments = |model: &mut Model| {
                let bias = model.constant(&bias, vec![0; 12]);
                let numbers = [if same { 1 } else { 2 }, step, step, 0].map(|value| model.int(value));
                let first = model.truth(false);
                let dilations = [steps, steps].map(|value| model.int(value));
                [&[bias][..], &numbers, &[first], &dilations].concat()
            };
            check("CONV_2D", op::CONV_2D, &[x, w], &[1.0, 1.0], &arguments, &y, tolerance, &formula);
        }
    }
}

#[test]
fn elements_are_selected() {
    let none = |_: &mut Model| Vec::new();
    let condition = tensor(TENSOR_BOOL8, &[2, 3, 5], 0.0, 0);
    let inputs = [condition, i16s(&[2, 3, 5], 1.0), i16s(&[3, 1], 2.0)];
    let formula = |inputs: &[Vec<f64>]| {
        (0..30).map(|at| if inputs[0][at] != 0.0 { inputs[1][at] } else { inputs[2][at / 5 % 3] }).collect()
    };
    let out = i16s(&[2, 3, 5], 2.0);
    check("SELECT", op::SELECT, &inputs, &[1.0, 1.0, 2.0], &none, &out, 0.51, &formula);
}

#[test]
fn relaxed_models_compute_in_sixteen_bits() {
    let mut model = Model::new();
    let kind = f32s(&[64]);
    let (x, y, none, out) = (model.operand(&kind), model.operand(&kind), model.int(0), model.operand(&kind));
    model.operation(op::ADD, &[x, y, none], &[out]);
    assert_eq!(model.try_finish(&[x, y], &[out]), 0);
    model.relax();
    let compiled = model.try_compile("").expect("compiles");
    let (a, b) = (kind.encode(&numbers(64, 3.0, 1)), kind.encode(&numbers(64, 3.0, 2)));
    let found = kind.decode(&compiled.run(&[a.clone(), b.clone()], &[256])[0]);
    for ((found, a), b) in found.iter().zip(kind.decode(&a)).zip(kind.decode(&b)) {
        let rounded = |x: f64| half::f16::from_f32(x as f32).to_f32();
        assert_eq!(*found as f32, rounded(f64::from(rounded(a) + rounded(b))));
    }
}
