//! Every supported operation agrees with the reference, in both lowerings.

use std::collections::HashMap;

use serde_json::json;
use shardwright_shim_abi::raw::*;
use shardwright_shim_testing::ranges::{encode_all, observe};
use shardwright_shim_testing::{
    Attribute, Bound, Builder, Compiled, Random, Region, TableEncoding, Weight, evaluate, evaluate_all,
    refused, values, weight,
};

use crate::support::{DEVICE, Simulator};

const ROWS: u64 = 3;

/// Builds an entry of one or more operations over the inputs `a` and `b` of `[3, 16]`.
type Make = fn(&mut Builder, u32, u32) -> u32;

fn number(name: &'static str, value: f64) -> Vec<Attribute> {
    vec![Attribute::Float(name, value)]
}

fn matrix(name: &str, outputs: u64, inputs: u64, bits: u32) -> Weight {
    Weight::matrix(name, [outputs, inputs], &values((outputs * inputs) as usize, 7, 0.3), bits)
}

/// Name, entry, and smallest and largest input.
const OPERATIONS: &[(&str, Make, (f64, f64))] = &[
    ("add", |b, x, y| b.binary(SW_OP_ADD, x, y), (-3.0, 3.0)),
    ("sub", |b, x, y| b.binary(SW_OP_SUB, x, y), (-3.0, 3.0)),
    ("mul", |b, x, y| b.binary(SW_OP_MUL, x, y), (-3.0, 3.0)),
    ("div", |b, x, y| b.binary(SW_OP_DIV, x, y), (0.5, 3.0)),
    ("add-scalar", |b, x, _| b.unary(SW_OP_ADD_SCALAR, x, number("value", 0.7)), (-3.0, 3.0)),
    ("mul-scalar", |b, x, _| b.unary(SW_OP_MUL_SCALAR, x, number("value", -1.3)), (-3.0, 3.0)),
    ("max-scalar", |b, x, _| b.unary(SW_OP_MAX_SCALAR, x, number("value", 0.4)), (-3.0, 3.0)),
    ("max", |b, x, y| b.binary(SW_OP_MAX, x, y), (-3.0, 3.0)),
    ("min", |b, x, y| b.binary(SW_OP_MIN, x, y), (-3.0, 3.0)),
    (
        "clamp",
        |b, x, _| {
            let bounds = [("low", -1.5), ("high", 2.0)];
            let bounds = bounds.map(|(name, bound)| b.constant(&weight(name, &[1], &[bound], SW_DTYPE_F32)));
            b.node(SW_OP_CLAMP, &[x, bounds[0], bounds[1]], &[ROWS, 16], vec![])
        },
        (-3.0, 3.0),
    ),
    ("sigmoid", |b, x, _| b.unary(SW_OP_SIGMOID, x, vec![]), (-6.0, 6.0)),
    ("gelu", |b, x, _| b.unary(SW_OP_GELU, x, vec![]), (-9.0, 9.0)),
    ("silu", |b, x, _| b.unary(SW_OP_SILU, x, vec![]), (-9.0, 9.0)),
    ("tanh", |b, x, _| b.unary(SW_OP_TANH, x, vec![]), (-3.0, 3.0)),
    ("exp", |b, x, _| b.unary(SW_OP_EXP, x, vec![]), (-3.0, 2.0)),
    ("neg", |b, x, _| b.unary(SW_OP_NEG, x, vec![]), (-3.0, 3.0)),
    ("sqrt", |b, x, _| b.unary(SW_OP_SQRT, x, vec![]), (0.5, 4.0)),
    ("rsqrt", |b, x, _| b.unary(SW_OP_RSQRT, x, vec![]), (0.5, 4.0)),
    ("reciprocal", |b, x, _| b.unary(SW_OP_RECIPROCAL, x, vec![]), (0.5, 4.0)),
    ("softcap", |b, x, _| b.unary(SW_OP_SOFTCAP, x, number("cap", 5.0)), (-9.0, 9.0)),
    ("softmax", |b, x, _| b.unary(SW_OP_SOFTMAX, x, vec![]), (-6.0, 6.0)),
    ("l2-normalize", |b, x, _| b.unary(SW_OP_L2_NORMALIZE, x, vec![]), (-3.0, 3.0)),
    ("reduce-sum", |b, x, _| b.node(SW_OP_REDUCE_SUM, &[x], &[ROWS, 1], vec![]), (-3.0, 3.0)),
    ("reduce-mean", |b, x, _| b.node(SW_OP_REDUCE_MEAN, &[x], &[ROWS, 1], vec![]), (-1.0, 3.0)),
    ("reduce-max", |b, x, _| b.node(SW_OP_REDUCE_MAX, &[x], &[ROWS, 1], vec![]), (-3.0, 3.0)),
    ("transpose", |b, x, _| b.transpose(x, &[1, 0]), (-3.0, 3.0)),
    ("reshape", |b, x, _| b.reshape(x, &[2, ROWS, 8]), (-3.0, 3.0)),
    ("slice", |b, x, _| b.slice(x, 1, 3, 9), (-3.0, 3.0)),
    ("concat", |b, x, y| b.concat(&[x, y], 0), (-3.0, 3.0)),
    ("mat-mul", |b, x, y| b.mat_mul(x, y, true), (-3.0, 3.0)),
    ("linear, 8 bits a channel", |b, x, _| b.linear(x, &matrix("w8", 5, 16, 8)), (-3.0, 3.0)),
    (
        "linear, 8 bits",
        |b, x, _| {
            let stored: Vec<i32> = (0..80).map(|at| at * 37 % 255 - 127).collect();
            let kind = (SW_QUANTISATION_PER_TENSOR, 0);
            let w = shardwright_shim_testing::integers("w", &[5, 16], &stored, SW_DTYPE_I8, kind, &[0.01], 0);
            b.linear(x, &w)
        },
        (-3.0, 3.0),
    ),
    (
        "linear, 4 bits",
        |b, x, _| {
            let stored: Vec<i32> = (0..80).map(|at| at * 5 % 15 - 7).collect();
            let kind = (SW_QUANTISATION_PER_TENSOR, 0);
            let w = shardwright_shim_testing::integers("w", &[5, 16], &stored, SW_DTYPE_I4, kind, &[0.1], 0);
            b.linear(x, &w)
        },
        (-3.0, 3.0),
    ),
    (
        "rms-norm with a scale",
        |b, x, _| {
            let gamma = weight("gamma", &[16], &values(16, 3, 0.5), SW_DTYPE_F32);
            b.norm(x, Some(&gamma), 16, 1.0)
        },
        (-3.0, 3.0),
    ),
    ("rms-norm of groups", |b, x, _| b.norm(x, None, 4, 0.0), (-3.0, 3.0)),
];

/// Encodes an entry by the ranges for these inputs.
fn encoded(mut entry: Builder, dtype: u32, inputs: &[(&str, Vec<f32>)]) -> Builder {
    let plain: HashMap<String, Bound> =
        inputs.iter().map(|(name, values)| ((*name).to_owned(), Bound::F32(values.clone()))).collect();
    let mut seen = HashMap::new();
    observe(&mut seen, &evaluate_all(&entry, entry.rows as usize, &plain));
    // The sources of a state have the encoding of the state, so it must cover both.
    let ports = entry.inputs.iter().chain(&entry.outputs);
    let ends = ports
        .filter(|port| matches!(port.role, SW_ROLE_STATE | SW_ROLE_STATE_ROWS))
        .map(|port| seen[&port.tensor])
        .fold((0.0f64, 0.0f64), |ends, range| (ends.0.min(range.0), ends.1.max(range.1)));
    encode_all(&mut entry, (dtype, dtype), &seen, &HashMap::from([("k".to_owned(), ends)]));
    entry
}

/// Compiles and runs an encoded entry, and compares the result with the reference. Returns the
/// largest error in steps of the result, and as a fraction of the result's largest magnitude.
fn error_of(
    simulator: &Simulator,
    lowering: &str,
    entry: &Builder,
    inputs: &[(&str, Vec<f32>)],
) -> (f64, f64, Compiled) {
    let rows = entry.rows as usize;
    let encoding = |name: &str| {
        let port = entry.inputs.iter().chain(&entry.outputs).find(|port| port.name == name).expect("a port");
        entry.encoding_of(port.tensor)
    };
    let stored: HashMap<String, Bound> = inputs
        .iter()
        .map(|(name, values)| ((*name).to_owned(), Bound::store(encoding(name), values)))
        .collect();
    let expected = evaluate(entry, rows, &stored);
    let host = simulator.host(DEVICE, lowering);
    let compiled = host.compile(&[entry.build()], &[]).unwrap_or_else(|failure| panic!("{failure:?}"));
    let mut loaded = host.load(&compiled.artefact, &[]).unwrap_or_else(|failure| panic!("{failure:?}"));
    let mut bound: HashMap<String, Region> = inputs
        .iter()
        .map(|(name, values)| ((*name).to_owned(), Region::new(&encoding(name).encode_f32(values))))
        .collect();
    loaded.run(&entry.name, rows, &mut bound).unwrap_or_else(|failure| panic!("{failure:?}"));
    drop(loaded);
    let (mut steps, mut part) = (0.0f64, 0.0f64);
    for (name, tensor) in expected {
        let encoding = encoding(&name);
        let found = encoding.decode(bound[&name].bytes());
        assert_eq!(found.len(), tensor.data.len());
        let step = encoding.step(1.0).abs().max(1e-12);
        let reach = tensor.data.iter().fold(1e-9f64, |most, value| most.max(value.abs()));
        for (found, expected) in found.iter().zip(&tensor.data) {
            let error = (found - expected).abs();
            steps = steps.max(error / step);
            part = part.max(error / reach);
        }
    }
    (steps, part, compiled)
}

fn singles(random: &mut Random, count: u64, low: f64, high: f64) -> Vec<f32> {
    random.values(count, low, high).iter().map(|value| *value as f32).collect()
}

/// Runs every operation in both lowerings. With floats, weights have the type of the activations.
fn every_operation(dtype: u32, random: &mut Random, is_right: fn(f64, f64) -> bool) {
    let simulator = Simulator::with(json!({"strict": true}));
    for (name, make, (low, high)) in OPERATIONS {
        let inputs = ["a", "b"].map(|input| (input, singles(random, ROWS * 16, *low, *high)));
        for lowering in ["lean", "plain"] {
            let mut entry = Builder::new("decode_3@3", SW_ENTRY_DECODE, ROWS, ROWS);
            let [x, y] = ["a", "b"].map(|input| entry.input(input, SW_ROLE_HIDDEN, &[ROWS, 16]));
            let out = match dtype != SW_DTYPE_I16 && name.starts_with("linear") {
                true => entry.linear(x, &weight("w", &[5, 16], &values(80, 7, 0.3), dtype)),
                false => make(&mut entry, x, y),
            };
            entry.output("out", SW_ROLE_TAP, out);
            let (steps, part, _) = error_of(&simulator, lowering, &encoded(entry, dtype, &inputs), &inputs);
            let error = format!("{steps} steps, {part} of the reach");
            assert!(is_right(steps, part), "{name} {lowering} of type {dtype}: {error}");
        }
    }
}

#[test]
fn every_operation_gives_the_reference_s_numbers_in_both_lowerings() {
    // The bound is in steps of 16-bit integers where the lowering computes in integers, and in
    // steps of 16-bit floats elsewhere.
    every_operation(SW_DTYPE_I16, &mut Random(5), |steps, part| steps <= 3.0 || part <= 2e-3);
}

#[test]
fn floats_are_computed_as_sixteen_bits_hold_them() {
    let mut random = Random(6);
    for dtype in [SW_DTYPE_F16, SW_DTYPE_F32] {
        every_operation(dtype, &mut random, |_, part| part <= 4e-3);
    }
}

#[test]
fn floats_of_32_bits_are_said_to_be_computed_in_16() {
    let simulator = Simulator::with(json!({}));
    let fixed = TableEncoding::integers(SW_DTYPE_I16, 0.001, 0);
    for (dtype, own, expected) in
        [(SW_DTYPE_F32, TableEncoding::F32, [0, 1, 2]), (SW_DTYPE_I16, fixed, [1, 9, 9])]
    {
        let mut entry = Builder::new("decode_3@3", SW_ENTRY_DECODE, ROWS, ROWS);
        entry.encoding = own;
        let x = entry.input_as("x", SW_ROLE_HIDDEN, &[ROWS, 16], own);
        let x = entry.unary(SW_OP_GELU, x, vec![]);
        // For integers, the lowering computes this operation in floats.
        let x = entry.unary(SW_OP_EXP, x, vec![]);
        let x = entry.unary(SW_OP_MUL_SCALAR, x, number("value", 0.5));
        entry.output("out", SW_ROLE_TAP, x);
        for lowering in ["lean", "plain"] {
            let host = simulator.host(DEVICE, lowering);
            let compiled = host.compile(&[entry.build()], &[]).expect("compiled");
            let placed: Vec<u64> =
                compiled.placements.iter().filter(|one| one.2 == "npu").map(|one| one.1).collect();
            let wanted: Vec<u64> = expected.into_iter().filter(|node| *node < 3).collect();
            assert_eq!(placed, wanted, "{dtype} {lowering}: {:?}", compiled.placements);
        }
    }
}

/// Builds an attention of grouped heads with a state, new rows and rotary embedding, in the form
/// that `legalise` produces.
fn attention(rows: u64, kv: u64) -> Builder {
    let (group, width, slots) = (2u64, 8u64, 5 + rows);
    let heads = kv * group;
    let mut b = Builder::new(&format!("decode_{rows}@5"), SW_ENTRY_DECODE, rows, 5);
    let hidden = b.input("hidden", SW_ROLE_HIDDEN, &[rows, heads * width]);
    let state = b.input("k", SW_ROLE_STATE, &[5, kv * width]);
    let cos = b.input("cos", SW_ROLE_ROTARY_COS, &[rows, width / 2]);
    let sin = b.input("sin", SW_ROLE_ROTARY_SIN, &[rows, width / 2]);
    let mask = b.input("mask", SW_ROLE_MASK, &[rows, slots]);
    let rotate = |b: &mut Builder, x: u32| {
        let shape = b.shape(x);
        b.node(SW_OP_ROTATE, &[x, cos, sin], &shape, vec![Attribute::Integer("head_dim", width as i64)])
    };
    let new = b.linear(hidden, &matrix("k", kv * width, heads * width, 8));
    let new = rotate(&mut b, new);
    let joined = b.concat(&[state, new], 0);
    let query = b.norm(hidden, None, width, 0.0);
    let query = rotate(&mut b, query);
    let query = b.reshape(query, &[rows, kv, group, width]);
    let query = b.transpose(query, &[1, 2, 0, 3]);
    let apart = |b: &mut Builder| {
        let keys = b.reshape(joined, &[slots, kv, width]);
        let keys = b.transpose(keys, &[1, 0, 2]);
        b.reshape(keys, &[kv, 1, slots, width])
    };
    let (keys, values) = (apart(&mut b), apart(&mut b));
    let scores = b.mat_mul(query, keys, true);
    let scores = b.unary(SW_OP_MUL_SCALAR, scores, number("value", 0.35));
    let scores = b.unary(SW_OP_SOFTCAP, scores, number("cap", 20.0));
    let masked = b.binary(SW_OP_ADD, scores, mask);
    let weights = b.unary(SW_OP_SOFTMAX, masked, vec![]);
    let mixed = b.mat_mul(weights, values, false);
    let mixed = b.transpose(mixed, &[2, 0, 1, 3]);
    let mixed = b.reshape(mixed, &[rows, heads * width]);
    b.output("k.rows", SW_ROLE_STATE_ROWS, new);
    b.output("out", SW_ROLE_TAP, mixed);
    b
}

#[test]
fn attention_with_its_states_gives_the_reference_s_numbers_with_fewer_operations_in_the_lean_lowering() {
    let simulator = Simulator::with(json!({"strict": true}));
    for (rows, kv) in [(ROWS, 2u64), (ROWS, 1), (1, 2)] {
        let mut random = Random(9);
        let mut inputs = [
            ("hidden", rows * kv * 16, 2.0),
            ("k", 5 * kv * 8, 2.0),
            ("cos", rows * 4, 1.0),
            ("sin", rows * 4, 1.0),
        ]
        .map(|(name, count, reach)| (name, singles(&mut random, count, -reach, reach)))
        .to_vec();
        let slots = 5 + rows;
        let mask = (0..rows * slots).map(|at| if at % slots > at / slots + 4 { -60.0 } else { 0.0 });
        inputs.push(("mask", mask.collect()));
        let entry = encoded(attention(rows, kv), SW_DTYPE_I16, &inputs);
        let counts = ["lean", "plain"].map(|lowering| {
            let (_, part, compiled) = error_of(&simulator, lowering, &entry, &inputs);
            assert!(part <= 4e-3, "{rows} rows, {kv} key heads, {lowering}: {part} of the reach");
            let host = simulator.host(DEVICE, lowering);
            let (_, document) =
                host.inspect(compiled.artefact.bytes()).expect("readable").expect("an artefact");
            let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
            assert_eq!(document["compilations"][0]["soc"], "mt6989", "{document}");
            document["entries"][0]["operations"].as_u64().expect("a number")
        });
        assert!(counts[0] < counts[1], "{counts:?}");
    }
}

#[test]
fn what_is_not_taken_is_refused_with_the_reason() {
    let simulator = Simulator::with(json!({}));
    let reason = |device: &str, encoding: TableEncoding, weights: &Weight| {
        let mut entry = Builder::new("decode_3@3", SW_ENTRY_DECODE, ROWS, ROWS);
        let x = entry.input_as("a", SW_ROLE_HIDDEN, &[ROWS, 16], encoding);
        entry.encoding = encoding;
        let out = entry.linear(x, weights);
        entry.output("out", SW_ROLE_TAP, out);
        let refusals = simulator.host(device, "lean").refusals(entry.build()).expect("verdicts");
        refusals.into_iter().map(|(_, reason)| reason).next().unwrap_or_default()
    };
    let fixed = TableEncoding::integers(SW_DTYPE_I16, 0.001, 0);
    let (eight, four) = (matrix("w", 5, 16, 8), matrix("w", 5, 16, 4));
    assert_eq!(reason(DEVICE, fixed, &eight), "");
    for (device, encoding, weights, part) in [
        (DEVICE, TableEncoding::integers(SW_DTYPE_U16, 0.001, 32_768), &eight, "a16-symmetric"),
        (DEVICE, TableEncoding::integers(SW_DTYPE_I16, 0.001, 5), &eight, "zero point is 5"),
        (DEVICE, TableEncoding::F32, &eight, "with f32"),
        (DEVICE, fixed, &four, "refuses it at any size, according to the fact `four-bits-per-channel`"),
        (DEVICE, fixed, &matrix("w", 5, 16, 2), "i2"),
    ] {
        let found = reason(device, encoding, weights);
        assert!(found.contains(part), "`{part}` not in `{found}`");
    }
    assert_eq!(reason("mt6991.simulated", fixed, &four), "", "adapter 8.2.28 has a type for it");
    simulator.set(json!({"version": [8, 2, 26]}));
    let found = reason("mt6991.simulated", fixed, &four);
    assert!(found.contains("8.2.26") && found.contains("8.2.28"), "{found}");
    refused(simulator.host("mt6989", "lean").told(), SW_ERROR_INVALID_ARGUMENT, "unknown device");
}
