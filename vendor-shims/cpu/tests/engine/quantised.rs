//! Runs quantised weights and encoded tensors through the contract. Results are compared with the
//! plain evaluator, and bit for bit with other configurations.
//!
//! A result in f32 must be within 2·10⁻⁵ of the largest magnitude of the exact result. An encoded
//! result may differ from the encoded exact result by one step, but only if that is equally close
//! to the middle between two steps. Sums of quantised rows are exact.

use std::collections::HashMap;

use crate::decoder::{CHUNK, Decoder};
use crate::support::encoding::bits_of;
use crate::support::ranges::{Ends, encode_all, observe};
use crate::support::*;
use proptest::prelude::*;
use shardwright_shim_abi::raw::*;
use shardwright_shim_cpu::simd::{Level, narrow_f16, widen_f16};

const TENSOR: (u32, u64) = (SW_QUANTISATION_PER_TENSOR, 0);
const CHANNEL: (u32, u64) = (SW_QUANTISATION_PER_CHANNEL, 0);

/// Returns blocks of this size with minimums.
const fn minimums(block: u64) -> (u32, u64) {
    (SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM, block)
}

/// Every weight format: stored type, kind, block.
const FORMATS: [(u32, (u32, u64)); 9] = [
    (SW_DTYPE_I8, CHANNEL),
    (SW_DTYPE_I8, TENSOR),
    (SW_DTYPE_I8, (SW_QUANTISATION_PER_BLOCK, 32)),
    (SW_DTYPE_I4, CHANNEL),
    (SW_DTYPE_I4, TENSOR),
    (SW_DTYPE_I4, (SW_QUANTISATION_PER_BLOCK, 32)),
    (SW_DTYPE_I4, (SW_QUANTISATION_PER_BLOCK, 5)),
    (SW_DTYPE_I2, CHANNEL),
    (SW_DTYPE_I8, (SW_QUANTISATION_PER_BLOCK, 64)),
];

/// Checks whether blocks of weights and of 32 activations are multiples of each other and of 16.
fn suits(block: u64, inputs: u64) -> bool {
    block >= inputs || block.is_multiple_of(32) || block == 16
}

/// Formats that are supported only if integers are multiplied directly.
const MULTIPLIED: [(u32, (u32, u64)); 1] = [(SW_DTYPE_I2, (SW_QUANTISATION_PER_BLOCK, 24))];

/// Scales and minimums of blocks.
#[derive(Clone, Copy)]
enum Numbers {
    /// binary16
    Half,
    /// binary32
    Single,
    /// Products of a binary16, which 256 values share, and a small integer.
    Products,
}

/// A format whose blocks have an affine map: stored type, kind and block, zero point, least and
/// largest stored integer, numbers.
type Affine = (u32, (u32, u64), i32, (i32, i32), Numbers);

/// Blocks with affine maps. The first ones, except for the second, are GGUF's types `Q4_1`, `Q4_K`,
/// `Q5_K`, `Q6_K`, `Q5_0` and `Q5_1`. The one after them has a zero point like AWQ.
const AFFINE: [Affine; 12] = [
    (SW_DTYPE_I4, minimums(32), -8, (-8, 7), Numbers::Half),
    (SW_DTYPE_I4, minimums(32), -8, (-8, 7), Numbers::Single),
    (SW_DTYPE_I4, minimums(32), -8, (-8, 7), Numbers::Products),
    (SW_DTYPE_I8, minimums(32), 0, (0, 31), Numbers::Products),
    (SW_DTYPE_I8, (SW_QUANTISATION_PER_BLOCK, 16), 0, (-32, 31), Numbers::Products),
    (SW_DTYPE_I8, (SW_QUANTISATION_PER_BLOCK, 32), 0, (-16, 15), Numbers::Half),
    (SW_DTYPE_I8, minimums(32), 0, (0, 31), Numbers::Half),
    (SW_DTYPE_I8, (SW_QUANTISATION_PER_BLOCK, 64), 7, (0, 15), Numbers::Half),
    (SW_DTYPE_I8, minimums(16), 0, (-128, 127), Numbers::Products),
    (SW_DTYPE_I8, minimums(16), 0, (-128, 127), Numbers::Single),
    (SW_DTYPE_I4, minimums(5), 3, (-8, 7), Numbers::Single),
    (SW_DTYPE_I8, minimums(7), 0, (-128, 127), Numbers::Half),
];

/// Rounds the numbers of a row's blocks.
fn rounded(numbers: &mut [f32], block: u64, form: Numbers) {
    let half = |number: f32| widen_f16(narrow_f16(number));
    match form {
        Numbers::Half => numbers.iter_mut().for_each(|number| *number = half(*number)),
        Numbers::Single => {}
        Numbers::Products => {
            for numbers in numbers.chunks_mut(256 / block as usize) {
                let largest = numbers.iter().fold(0.0f32, |largest, number| largest.max(number.abs()));
                let factor = half(largest / 63.0).max(f32::MIN_POSITIVE);
                numbers.iter_mut().for_each(|number| *number = factor * (*number / factor).round());
            }
        }
    }
}

/// Creates a matrix near `values` whose blocks have affine maps.
fn affine(name: &str, shape: &[u64], values: &[f32], format: Affine) -> Weight {
    let (dtype, (kind, block), zero, (least, most), form) = format;
    let (mut stored, mut numbers) = (Vec::new(), Vec::new());
    for row in values.chunks(shape[1] as usize) {
        let ends = |group: &[f32]| {
            let ends = |ends: [f32; 2], value: &f32| [ends[0].min(*value), ends[1].max(*value)];
            let [low, high] = group.iter().fold([0.0, 1e-3], ends);
            match kind {
                SW_QUANTISATION_PER_BLOCK => [low.min(-high), high.max(-low)],
                _ => [low, high],
            }
        };
        let ends: Vec<[f32; 2]> = row.chunks(block as usize).map(ends).collect();
        let mut scales: Vec<f32> =
            ends.iter().map(|[low, high]| (high - low) / (most - least) as f32).collect();
        rounded(&mut scales, block, form);
        let minimum = |(scale, [low, _]): (&f32, &[f32; 2])| match kind {
            SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM => (least - zero) as f32 * scale - low,
            _ => 0.0,
        };
        let mut minimums: Vec<f32> = scales.iter().zip(&ends).map(minimum).collect();
        rounded(&mut minimums, block, form);
        for ((group, scale), minimum) in row.chunks(block as usize).zip(&scales).zip(&minimums) {
            // A scale may be rounded to zero.
            let raw = |value: &f32| ((value + minimum) / scale).clamp(-999.0, 999.0).round() as i32 + zero;
            stored.extend(group.iter().map(|value| raw(value).clamp(least, most)));
        }
        numbers.extend(scales);
        if kind == SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM {
            numbers.extend(minimums);
        }
    }
    integers(name, shape, &stored, dtype, (kind, block), &numbers, zero)
}

/// Creates a matrix near `values` in a format.
fn quantised(name: &str, shape: &[u64], values: &[f32], (dtype, (kind, block)): (u32, (u32, u64))) -> Weight {
    let width = shape[1] as usize;
    let least = -(1i32 << (bits_of(dtype) - 1));
    let groups: Vec<&[f32]> = match kind {
        SW_QUANTISATION_PER_TENSOR => vec![values],
        SW_QUANTISATION_PER_CHANNEL => values.chunks(width).collect(),
        _ => values.chunks(width).flat_map(|row| row.chunks(block as usize)).collect(),
    };
    let mut stored = Vec::new();
    let mut scales = Vec::new();
    for group in groups {
        let largest = group.iter().fold(1e-3f32, |largest, value| largest.max(value.abs()));
        let mut scale = largest / -least as f32;
        if kind == SW_QUANTISATION_PER_BLOCK {
            scale = widen_f16(narrow_f16(scale));
        }
        scales.push(scale);
        // The values cover the whole range of the type, including its least value.
        stored.extend(group.iter().map(|value| ((value / scale).round() as i32).clamp(least, -least - 1)));
    }
    integers(name, shape, &stored, dtype, (kind, block), &scales, 0)
}

fn compile(host: &Host, builders: &[Builder]) -> Region {
    let entries: Vec<_> = builders.iter().map(Builder::build).collect();
    for entry in &entries {
        for (verdict, reason) in host.check(entry).expect("checked") {
            assert_eq!(verdict, SW_VERDICT_TAKEN, "{reason}");
        }
    }
    host.compile(&entries, &[]).expect("compiled").artefact
}

/// Checks that outputs are within the bound of the exact ones, at most `steps` steps of an encoding
/// apart.
fn within(
    b: &Builder,
    bound: &HashMap<String, Bound>,
    exact: &HashMap<String, Tensor>,
    rows: usize,
    steps: f64,
) {
    for port in &b.outputs {
        let exact = &exact[&port.name];
        let got = bound[&port.name].read(b.encoding_of(port.tensor));
        let count = match port.role {
            SW_ROLE_STATE => exact.data.len(),
            _ => exact.data.len() / exact.shape[0] * rows.min(exact.shape[0]),
        };
        let size = exact.data[..count].iter().fold(1e-3f64, |size, value| size.max(value.abs()));
        for (index, (got, exact)) in got.iter().zip(&exact.data[..count]).enumerate() {
            let allowed =
                2e-5 * size + 1.0001 * steps * b.encoding_of(port.tensor).step(got.abs().max(exact.abs()));
            assert!((got - exact).abs() <= allowed, "{}[{index}] is {got}, exactly {exact}", port.name);
        }
    }
}

#[test]
fn every_weight_format_agrees_with_the_plain_evaluator() {
    let mut runner =
        proptest::test_runner::TestRunner::new(ProptestConfig { cases: 24, ..Default::default() });
    let flags = prop::array::uniform2(any::<bool>());
    let shapes = (1usize..20, 1u64..150, 1u64..70, any::<u64>(), flags);
    let host = open(&[("threads", "2")]).expect("opened");
    let test = |(rows, inputs, outputs, seed, flags): (usize, u64, u64, u64, [bool; 2])| {
        let [with_bias, in_whole_blocks] = flags;
        // Weights of five and six bits need whole blocks. More than 256 inputs have two groups.
        let inputs = if in_whole_blocks { (2 * inputs).next_multiple_of(32) } else { inputs };
        let mut b = Builder::new("encode", SW_ENTRY_ENCODE, rows as u64, rows as u64);
        let x = b.input("x", SW_ROLE_GATHERED, &[rows as u64, inputs]);
        let bias = weight("bias", &[outputs], &values(outputs as usize, seed ^ 1, 1.0), SW_DTYPE_F32);
        let bias = b.constant(&bias);
        let data = values((inputs * outputs) as usize, seed ^ 2, 0.5);
        for (index, format) in FORMATS.into_iter().enumerate() {
            let w = quantised(&format!("w{index}"), &[outputs, inputs], &data, format);
            let w = b.constant(&w);
            let operands = if with_bias { vec![x, w, bias] } else { vec![x, w] };
            for op in [SW_OP_LINEAR, SW_OP_DYNAMIC_LINEAR] {
                let y = b.node(op, &operands, &[rows as u64, outputs], vec![]);
                b.output(&format!("{op}.{index}"), SW_ROLE_TAP, y);
            }
            if suits(format.1.1, inputs) {
                let y = b.block_linear(&operands, &[rows as u64, outputs], 32);
                b.output(&format!("blocks.{index}"), SW_ROLE_TAP, y);
            }
            let y = b.mat_mul(x, w, true);
            b.output(&format!("product.{index}"), SW_ROLE_TAP, y);
        }
        for (index, format) in MULTIPLIED.into_iter().enumerate() {
            let w = quantised(&format!("m{index}"), &[outputs, inputs], &data, format);
            let w = b.constant(&w);
            let y = b.node(SW_OP_DYNAMIC_LINEAR, &[x, w], &[rows as u64, outputs], vec![]);
            b.output(&format!("multiplied.{index}"), SW_ROLE_TAP, y);
        }
        for (index, format) in AFFINE.into_iter().enumerate() {
            let w = affine(&format!("a{index}"), &[outputs, inputs], &data, format);
            let w = b.constant(&w);
            let operands = if with_bias { vec![x, w, bias] } else { vec![x, w] };
            for op in [SW_OP_LINEAR, SW_OP_DYNAMIC_LINEAR] {
                let y = b.node(op, &operands, &[rows as u64, outputs], vec![]);
                b.output(&format!("affine-{op}.{index}"), SW_ROLE_TAP, y);
            }
            if suits(format.1.1, inputs) {
                let y = b.block_linear(&operands, &[rows as u64, outputs], 32);
                b.output(&format!("affine-blocks.{index}"), SW_ROLE_TAP, y);
            }
            let y = b.mat_mul(x, w, true);
            b.output(&format!("affine-product.{index}"), SW_ROLE_TAP, y);
        }
        let artefact = compile(&host, std::slice::from_ref(&b));
        let mut input = values(rows * inputs as usize, seed, 3.0);
        // The blocks have different magnitudes, so their scales differ.
        let place = |at: usize| at % inputs as usize / 32 % 3;
        input.iter_mut().enumerate().for_each(|(at, x)| *x *= [1.0, 0.05, 0.4][place(at)]);
        let mut bound = HashMap::from([("x".to_owned(), Bound::F32(input))]);
        let exact = evaluate(&b, rows, &bound);
        let mut first: Option<HashMap<String, Vec<u32>>> = None;
        for level in Level::available() {
            for threads in ["1", "3"] {
                let options = [("simd", level.name()), ("threads", threads), ("verify-weights", "true")];
                let mut loaded = host.load(&artefact, &options).expect("loaded");
                loaded.run("encode", rows, &mut bound).expect("ran");
                within(&b, &bound, &exact, rows, 0.0);
                // Sums of integers are exact. Without scales per block they differ only by the last
                // rounding.
                let whole = |name: &str| {
                    let index = name.strip_prefix("11.").and_then(|index| index.parse::<usize>().ok());
                    index.is_some_and(|index| FORMATS[index].1.0 != SW_QUANTISATION_PER_BLOCK)
                };
                for port in b.outputs.iter().filter(|port| whole(&port.name)) {
                    for (got, exact) in bound[&port.name].f32().iter().zip(&exact[&port.name].data) {
                        assert!((f64::from(*got) - exact).abs() <= exact.abs() * 2e-7, "{got} for {exact}");
                    }
                }
                let all: HashMap<String, Vec<u32>> =
                    b.outputs.iter().map(|port| (port.name.clone(), bits(bound[&port.name].f32()))).collect();
                assert_eq!(first.get_or_insert_with(|| all.clone()), &all, "{}", level.name());
            }
        }
        Ok(())
    };
    runner.run(&shapes, test).expect("every shape");
}

#[test]
fn weights_need_the_bytes_of_their_bits() {
    let host = open(&[]).expect("opened");
    let data = values(512 * 512, 1, 1.0);
    let size = |w: &Weight| {
        let mut b = Builder::new("decode_1@8", SW_ENTRY_DECODE, 1, 8);
        let x = b.input("hidden", SW_ROLE_HIDDEN, &[1, 512]);
        let y = b.linear(x, w);
        b.output("tap", SW_ROLE_TAP, y);
        let compiled = host.compile(&[b.build()], &[]).expect("compiled");
        (compiled.artefact.bytes().len(), String::from_utf8(compiled.head).expect("text"))
    };
    for (format, bytes, name) in [
        (FORMATS[0], 512 * 512, "i8-per-output"),
        (FORMATS[2], 512 * 512 + 512 * 16 * 2, "i8-block-32-f16"),
        (FORMATS[3], 512 * 256, "i4-per-output"),
        (FORMATS[5], 512 * 256 + 512 * 16 * 2, "i4-block-32-f16"),
        (FORMATS[7], 512 * 128, "i2-per-output"),
    ] {
        let (length, head) = size(&quantised("w", &[512, 512], &data, format));
        assert!((bytes..bytes + 16384).contains(&length), "{name}: {length} bytes");
        assert!(head.contains(&format!("weights={name}\n")), "{head}");
    }
    // Blocks of GGUF's type Q4_1, 20 bytes each as planned, and with binary32 maps.
    for (format, block, form) in [(AFFINE[0], 20, "f16"), (AFFINE[1], 24, "f32")] {
        let bytes = 512 * 16 * block;
        let (length, head) = size(&affine("w", &[512, 512], &data, format));
        assert!((bytes..bytes + 8192).contains(&length), "{block} bytes per block: {length} bytes");
        assert!(head.contains(&format!("weights=i4-block-32-{form}-minimum\n")), "{head}");
    }
}

/// The bytes that products of integers read are as many as in a GGUF file, except for an eighth of
/// a bit per weight of K-types with minimums, which pack their small integers in six bits.
#[test]
fn tiles_need_the_bits_of_their_file_types() {
    let host = open(&[]).expect("opened");
    let data = values(512 * 512, 3, 1.0);
    let q8_0 = quantised("w", &[512, 512], &data, FORMATS[2]);
    let q4_0 = quantised("w", &[512, 512], &data, FORMATS[5]);
    let affine = |index: usize| affine("w", &[512, 512], &data, AFFINE[index]);
    // Bytes of 256 weights of sixteen outputs.
    for (w, bytes, name) in [
        (q8_0, 4096 + 256, "i8-block-32-f16"),
        (q4_0, 2048 + 256, "i4-block-32-f16"),
        (affine(0), 2048 + 512, "i4-block-32-f16-minimum"),
        (affine(1), 2048 + 1024, "i4-block-32-f32-minimum"),
        (affine(2), 2048 + 320, "i4-block-32-small-minimum"),
        (affine(3), 2560 + 320, "i5-block-32-small-minimum"),
        (affine(4), 3072 + 288, "i6-block-16-small"),
        (affine(5), 2560 + 256, "i5-block-32-f16"),
        (affine(6), 2560 + 512, "i5-block-32-f16-minimum"),
        (affine(7), 2048 + 128, "i4-block-64-f16"),
        (affine(8), 4096 + 576, "i8-block-16-small-minimum"),
    ] {
        let mut b = Builder::new("decode_1@8", SW_ENTRY_DECODE, 1, 8);
        let x = b.input("hidden", SW_ROLE_HIDDEN, &[1, 512]);
        let w = b.constant(&w);
        let y = b.node(SW_OP_DYNAMIC_LINEAR, &[x, w], &[1, 512], vec![]);
        b.output("tap", SW_ROLE_TAP, y);
        let compiled = host.compile(&[b.build()], &[]).expect("compiled");
        let (length, bytes) = (compiled.artefact.bytes().len(), bytes * 512 / 256 * 512 / 16);
        let head = String::from_utf8(compiled.head).expect("text");
        assert!((bytes..bytes + 8192).contains(&length), "{name}: {length} bytes");
        assert!(head.contains(&format!("weights={name}-tiles\n")), "{head}");
    }
}

#[test]
fn constants_are_encoded_like_activations() {
    let host = open(&[]).expect("opened");
    let mut b = Builder::new("encode", SW_ENTRY_ENCODE, 3, 3);
    let x = b.input("x", SW_ROLE_GATHERED, &[3, 20]);
    let mut outputs = Vec::new();
    for (dtype, zero_point) in
        [(SW_DTYPE_U16, 30_000), (SW_DTYPE_U8, 128), (SW_DTYPE_I16, 0), (SW_DTYPE_I8, 3)]
    {
        let (low, high) = encoding::range(dtype).expect("integers");
        let stored: Vec<i32> = (0..20).map(|i| low + (high - low) / 19 * i).collect();
        let scale = [2.0 / (high - low) as f32];
        let row = integers("row", &[20], &stored, dtype, TENSOR, &scale, zero_point);
        outputs.push(b.norm(x, Some(&row), 20, 0.0));
        let row = b.constant(&row);
        outputs.push(b.binary(SW_OP_MUL, x, row));
        // As a matrix the constant is decoded, in either orientation.
        let square: Vec<i32> = (0..100).map(|i| low + (high - low) / 99 * ((i * 37) % 100)).collect();
        let matrix = integers("matrix", &[5, 20], &square, dtype, TENSOR, &scale, zero_point);
        outputs.push(b.linear(x, &matrix));
        let matrix = integers("matrix", &[20, 5], &square, dtype, TENSOR, &scale, zero_point);
        let matrix = b.constant(&matrix);
        outputs.push(b.mat_mul(x, matrix, false));
    }
    for (index, output) in outputs.iter().enumerate() {
        b.output(&format!("out.{index}"), SW_ROLE_TAP, *output);
    }
    let mut bound = HashMap::from([("x".to_owned(), Bound::F32(values(60, 5, 2.0)))]);
    let exact = evaluate(&b, 3, &bound);
    let artefact = compile(&host, std::slice::from_ref(&b));
    host.load(&artefact, &[]).expect("loaded").run("encode", 3, &mut bound).expect("ran");
    within(&b, &bound, &exact, 3, 0.0);
}

/// The types that an activation may have.
const ACTIVATIONS: [u32; 6] =
    [SW_DTYPE_U16, SW_DTYPE_I16, SW_DTYPE_U8, SW_DTYPE_I8, SW_DTYPE_F16, SW_DTYPE_BF16];

/// Builds every operation separately, from inputs to an output.
fn operations() -> Builder {
    let rows = 6;
    let mut b = Builder::new("encode_6", SW_ENTRY_ENCODE, rows, rows);
    let x = b.input("x", SW_ROLE_GATHERED, &[rows, 20]);
    let y = b.input("y", SW_ROLE_GATHERED, &[rows, 20]);
    let p = b.input("p", SW_ROLE_GATHERED, &[rows, 20]);
    let positions = b.input("positions", SW_ROLE_POSITIONS, &[rows]);
    let row = weight("row", &[20], &values(20, 3, 1.0), SW_DTYPE_F16);
    let scale: Vec<i32> = (0..20).map(|i| i * 3000).collect();
    let scale = integers("scale", &[20], &scale, SW_DTYPE_U16, TENSOR, &[1e-4], 20_000);
    let wide = weight("wide", &[7, 20], &values(140, 5, 1.0), SW_DTYPE_F32);
    let bias =
        integers("bias", &[7], &[0, 1, 2, 3, 4, 60_000, 65_535], SW_DTYPE_U16, TENSOR, &[1e-4], 30_000);
    let narrow = quantised("narrow", &[7, 20], &values(140, 6, 1.0), FORMATS[0]);
    let mut outputs = Vec::new();
    for (op, attributes) in [
        (SW_OP_GELU, vec![]),
        (SW_OP_SILU, vec![]),
        (SW_OP_SOFTCAP, vec![Attribute::Float("cap", 2.0)]),
        (SW_OP_SOFTMAX, vec![]),
        (SW_OP_L2_NORMALIZE, vec![]),
        (SW_OP_ADD_SCALAR, vec![Attribute::Float("value", 1.5)]),
        (SW_OP_MUL_SCALAR, vec![Attribute::Float("value", -2.0)]),
        (SW_OP_MAX_SCALAR, vec![Attribute::Float("value", 0.1)]),
        (SW_OP_NEG, vec![]),
        (SW_OP_EXP, vec![]),
        (SW_OP_TANH, vec![]),
        (SW_OP_ROUND, vec![]),
        (SW_OP_CONVERT, vec![]),
    ] {
        outputs.push(b.unary(op, x, attributes));
    }
    for op in [SW_OP_SQRT, SW_OP_RSQRT, SW_OP_RECIPROCAL] {
        outputs.push(b.unary(op, p, vec![]));
    }
    for op in [SW_OP_REDUCE_SUM, SW_OP_REDUCE_MEAN, SW_OP_REDUCE_MAX] {
        outputs.push(b.node(op, &[x], &[rows, 1], vec![]));
    }
    outputs.push(b.norm(x, Some(&row), 20, 1.0));
    outputs.push(b.norm(x, Some(&scale), 20, 0.0));
    let [cos, sin] = [(x, 3), (y, 9)].map(|(of, start)| b.slice(of, 1, start, start + 5));
    outputs.push(b.node(SW_OP_ROTATE, &[p, cos, sin], &[rows, 20], vec![Attribute::Integer("head_dim", 10)]));
    outputs.push(b.node(
        SW_OP_ROPE,
        &[x, positions],
        &[rows, 20],
        vec![
            Attribute::Integer("head_dim", 10),
            Attribute::Float("theta", 1e4),
            Attribute::Integer("rotated_pairs", 4),
            Attribute::Float("factor", 1.0),
        ],
    ));
    outputs.push(b.node(
        SW_OP_ATTENTION,
        &[x, y, p, positions],
        &[rows, 20],
        vec![
            Attribute::Integer("heads", 2),
            Attribute::Integer("kv_heads", 2),
            Attribute::Integer("head_dim", 10),
            Attribute::Float("scale", 0.3),
            Attribute::Float("softcap", 0.0),
            Attribute::Integer("window", 0),
            Attribute::Integer("causal", 1),
            Attribute::Text("keys", "rows"),
        ],
    ));
    for op in [SW_OP_ADD, SW_OP_SUB, SW_OP_MUL, SW_OP_MAX, SW_OP_MIN] {
        outputs.push(b.binary(op, x, y));
    }
    outputs.push(b.binary(SW_OP_DIV, x, p));
    let [wide_t, narrow_t, bias_t] = [&wide, &narrow, &bias].map(|w| b.constant(w));
    outputs.push(b.node(SW_OP_LINEAR, &[x, wide_t, bias_t], &[rows, 7], vec![]));
    outputs.push(b.node(SW_OP_LINEAR, &[x, narrow_t, bias_t], &[rows, 7], vec![]));
    outputs.push(b.node(SW_OP_DYNAMIC_LINEAR, &[x, narrow_t, bias_t], &[rows, 7], vec![]));
    outputs.push(b.block_linear(&[x, narrow_t, bias_t], &[rows, 7], 32));
    outputs.push(b.mat_mul(x, narrow_t, true));
    outputs.push(b.mat_mul(x, y, true));
    let t = b.transpose(x, &[1, 0]);
    outputs.push(t);
    outputs.push(b.slice(x, 1, 3, 9));
    outputs.push(b.slice(x, 0, 2, 5));
    outputs.push(b.concat(&[x, x], 1));
    outputs.push(b.reshape(x, &[rows, 2, 10]));
    // One output is an input.
    outputs.push(y);
    for (index, output) in outputs.iter().enumerate() {
        b.output(&format!("out.{index}"), SW_ROLE_TAP, *output);
    }
    b
}

#[test]
fn every_operation_agrees_with_the_plain_evaluator_in_every_encoding() {
    let host = open(&[("threads", "2")]).expect("opened");
    let plain = operations();
    let inputs: HashMap<String, Vec<f32>> = HashMap::from([
        ("x".to_owned(), values(120, 1, 2.0)),
        ("y".to_owned(), values(120, 2, 2.0)),
        ("p".to_owned(), values(120, 3, 1.0).iter().map(|value| value.abs() + 0.5).collect()),
    ]);
    let positions = ("positions".to_owned(), Bound::I32((0..6).collect()));
    let mut bound: HashMap<String, Bound> =
        inputs.iter().map(|(name, values)| (name.clone(), Bound::F32(values.clone()))).collect();
    bound.extend([positions.clone()]);
    let mut seen = HashMap::new();
    observe(&mut seen, &evaluate_all(&plain, 6, &bound));
    for dtype in ACTIVATIONS {
        let mut b = plain.clone();
        encode_all(&mut b, (dtype, dtype), &seen, &HashMap::new());
        let artefact = compile(&host, std::slice::from_ref(&b));
        let mut bound: HashMap<String, Bound> = b
            .inputs
            .iter()
            .filter_map(|port| {
                Some((port.name.clone(), Bound::store(b.encoding_of(port.tensor), inputs.get(&port.name)?)))
            })
            .collect();
        bound.extend([positions.clone()]);
        let exact = evaluate(&b, 6, &bound);
        let mut first: Option<HashMap<String, Bound>> = None;
        for level in Level::available() {
            for threads in ["1", "3"] {
                let mut loaded =
                    host.load(&artefact, &[("simd", level.name()), ("threads", threads)]).expect("loaded");
                for binding in &loaded.entries[0].1 {
                    let count: u64 = binding.shape.iter().product();
                    assert_eq!(
                        binding.bytes,
                        count * u64::from(bits_of(binding.dtype) / 8),
                        "{}",
                        binding.name
                    );
                }
                loaded.run("encode_6", 6, &mut bound).expect("ran");
                within(&b, &bound, &exact, 6, 1.0);
                assert_eq!(
                    first.get_or_insert_with(|| bound.clone()),
                    &bound,
                    "type {dtype}, {}",
                    level.name()
                );
            }
        }
        // Elements that are only moved stay the same.
        assert_eq!(bound[&b.outputs.last().expect("outputs").name], bound["y"]);
    }
}

/// The decoder with integer weights. The value ranges of plain runs determine the encodings of each
/// entry.
struct Encoded {
    decoder: Decoder,
    entries: Vec<Builder>,
}

impl Encoded {
    fn new(formats: (u32, u32), decomposed: bool) -> Encoded {
        let decoder = Decoder::with(|name, shape, data, index| match shape {
            [_, _] => quantised(name, shape, data, FORMATS[index % FORMATS.len()]),
            _ => weight(name, shape, data, SW_DTYPE_F32),
        });
        let mut entries = vec![
            decoder.entry(CHUNK, true, decomposed),
            decoder.entry(CHUNK, false, decomposed),
            decoder.entry(1, false, decomposed),
        ];
        let mut seen: Vec<HashMap<u32, Ends>> = vec![HashMap::new(); entries.len()];
        let mut states: HashMap<String, Ends> = HashMap::new();
        let mut bound = decoder.fresh_states();
        for (round, first) in (0..40).step_by(CHUNK as usize).enumerate() {
            for (entry, seen) in entries.iter().zip(&mut seen) {
                let rows = entry.rows as usize;
                decoder.step(&mut bound, first, rows, rows);
                let all = evaluate_all(entry, rows, &bound);
                observe(seen, &all);
                for port in entry.outputs.iter().filter(|port| port.role == SW_ROLE_STATE) {
                    let range = states.entry(port.name.clone()).or_insert((0.0, 0.0));
                    let ends = seen[&port.tensor];
                    *range = (range.0.min(ends.0), range.1.max(ends.1));
                    if rows == CHUNK as usize && round % 2 == 0 {
                        let values = all[&port.tensor].data.iter().map(|value| *value as f32).collect();
                        bound.insert(port.name.clone(), Bound::F32(values));
                    }
                }
            }
        }
        for (entry, seen) in entries.iter_mut().zip(&seen) {
            encode_all(entry, formats, seen, &states);
        }
        Encoded { decoder, entries }
    }

    /// Returns memory for the states, which all entries encode in the same way.
    fn fresh_states(&self) -> HashMap<String, Bound> {
        let entry = &self.entries[0];
        let plain = self.decoder.fresh_states();
        let ports = entry.inputs.iter().filter(|port| port.role == SW_ROLE_STATE);
        ports
            .map(|port| {
                (port.name.clone(), Bound::store(entry.encoding_of(port.tensor), plain[&port.name].f32()))
            })
            .collect()
    }

    /// Binds inputs like [`Decoder::step`], in the encodings of an entry. Rows beyond the valid
    /// ones are poison or zero.
    fn step(&self, bound: &mut HashMap<String, Bound>, entry: &Builder, first: usize, rows: usize) {
        let mut plain = HashMap::new();
        self.decoder.step(&mut plain, first, rows, entry.rows as usize);
        for port in entry.inputs.iter().filter(|port| port.role != SW_ROLE_STATE) {
            let value = match &plain[&port.name] {
                Bound::F32(values) => Bound::store(entry.encoding_of(port.tensor), values),
                other => other.clone(),
            };
            bound.insert(port.name.clone(), value);
        }
    }

    fn generate(&self, loaded: &mut Loaded<'_>, chunk: usize, prompt: usize, positions: usize) -> Vec<u32> {
        let mut bound = self.fresh_states();
        let mut first = 0;
        while first < prompt {
            let rows = chunk.min(prompt - first);
            self.step(&mut bound, &self.entries[0], first, rows);
            loaded.run(&self.entries[0].name, rows, &mut bound).expect("prefill");
            first += rows;
        }
        let mut logits = Vec::new();
        for position in prompt..positions {
            self.step(&mut bound, &self.entries[2], position, 1);
            loaded.run(&self.entries[2].name, 1, &mut bound).expect("decode");
            logits.extend(bits(bound["logits"].f32()));
        }
        logits
    }
}

/// Formats of activations and states, with the largest allowed difference of logits from the
/// evaluator, relative to the largest logit. A difference of one step of a 16-bit type in an early
/// layer propagates through all later layers.
const TUPLES: [((u32, u32), f64); 6] = [
    ((SW_DTYPE_U16, SW_DTYPE_U16), 1e-3),
    ((SW_DTYPE_U16, SW_DTYPE_U8), 1e-3),
    ((SW_DTYPE_I16, SW_DTYPE_U16), 1e-3),
    ((SW_DTYPE_F16, SW_DTYPE_F16), 1e-2),
    ((SW_DTYPE_F32, SW_DTYPE_F16), 1e-4),
    ((SW_DTYPE_F32, SW_DTYPE_U8), 1e-4),
];

#[test]
fn encoded_steps_agree_with_the_plain_evaluator() {
    let host = open(&[("threads", "2")]).expect("opened");
    for (formats, tolerance) in TUPLES {
        for decomposed in [false, true] {
            // Masked scores do not fit a narrow range. In such graphs the host chooses the value of
            // masks.
            if decomposed && formats.0 != SW_DTYPE_F32 {
                continue;
            }
            let encoded = Encoded::new(formats, decomposed);
            let artefact = compile(&host, &encoded.entries);
            let mut loaded = host.load(&artefact, &[("verify-weights", "true")]).expect("loaded");
            let mut bound = encoded.fresh_states();
            let mut first = 0;
            // The chunks go several times around the ring.
            for (round, rows) in [8usize, 3, 1, 8, 5, 1, 7, 1, 8, 2].into_iter().enumerate() {
                let entry = &encoded.entries[if rows == 1 { 2 } else { round % 2 }];
                encoded.step(&mut bound, entry, first, rows);
                let mut clean = bound.clone();
                for value in clean.values_mut() {
                    if let Bound::F32(values) = value {
                        values.iter_mut().filter(|v| v.is_nan()).for_each(|v| *v = 0.0);
                    }
                }
                let exact = evaluate(entry, rows, &clean);
                loaded.run(&entry.name, rows, &mut bound).expect("ran");
                for port in &entry.outputs {
                    let exact = &exact[&port.name];
                    let got = bound[&port.name].read(entry.encoding_of(port.tensor));
                    let valid = if port.role == SW_ROLE_STATE { exact.shape[0] } else { rows };
                    let count = exact.data.len() / exact.shape[0] * valid;
                    let size = exact.data[..count].iter().fold(1e-3f64, |size, value| size.max(value.abs()));
                    for (got, exact) in got.iter().zip(&exact.data[..count]) {
                        let allowed = tolerance * size + entry.encoding_of(port.tensor).step(*exact) * 1.001;
                        assert!(
                            (got - exact).abs() <= allowed,
                            "{formats:?} {} at {first}: {got}, exactly {exact}",
                            port.name
                        );
                    }
                }
                first += rows;
            }
        }
    }
}

#[test]
fn chunks_threads_and_instruction_sets_change_no_bit_of_encoded_graphs() {
    let host = open(&[]).expect("opened");
    for (formats, _) in TUPLES {
        let encoded = Encoded::new(formats, false);
        let artefact = compile(&host, &[encoded.entries[0].clone(), encoded.entries[2].clone()]);
        let expected = {
            let mut loaded = host.load(&artefact, &[("threads", "1")]).expect("loaded");
            encoded.generate(&mut loaded, 8, 40, 48)
        };
        assert!(expected.iter().all(|bits| f32::from_bits(*bits).is_finite()));
        for level in Level::available() {
            for (threads, chunk) in [("1", 1), ("2", 3), ("4", 8)] {
                let options = [("threads", threads), ("simd", level.name())];
                let mut loaded = host.load(&artefact, &options).expect("loaded");
                let got = encoded.generate(&mut loaded, chunk, 40, 48);
                assert_eq!(
                    got,
                    expected,
                    "{formats:?}, chunks of {chunk}, {threads} threads, {}",
                    level.name()
                );
            }
        }
    }
}

#[test]
fn chunks_threads_and_instruction_sets_change_no_bit_of_products_of_bytes() {
    let host = open(&[]).expect("opened");
    for blocks in [false, true] {
        products_of_bytes_keep_their_bits(&host, blocks);
    }
}

/// Checks products whose rows are quantised whole, or in blocks if the weights permit it.
fn products_of_bytes_keep_their_bits(host: &Host, blocks: bool) {
    let mut encoded = Encoded::new((SW_DTYPE_F32, SW_DTYPE_F16), false);
    let (mut products, mut whole) = (0, 0);
    for entry in &mut encoded.entries {
        for node in entry.nodes.iter_mut().filter(|node| node.op == SW_OP_LINEAR) {
            node.op = SW_OP_DYNAMIC_LINEAR;
            products += 1;
            if blocks {
                node.version = 2;
                node.attributes = vec![Attribute::Integer("block", 32)];
            }
        }
        let verdicts = host.check(entry.build()).expect("checked");
        for (node, _) in
            entry.nodes.iter_mut().zip(verdicts).filter(|(_, (taken, _))| *taken != SW_VERDICT_TAKEN)
        {
            node.version = 1;
            whole += 1;
        }
    }
    // Every ninth weight has blocks of five.
    assert!(products >= 3 * 20 && whole * 4 < products, "{whole} of {products} products");
    assert_eq!(whole > 0, blocks);
    let artefact = compile(host, &[encoded.entries[0].clone(), encoded.entries[2].clone()]);
    let expected = {
        let mut loaded = host.load(&artefact, &[("threads", "1")]).expect("loaded");
        encoded.generate(&mut loaded, 8, 40, 48)
    };
    assert!(expected.iter().all(|bits| f32::from_bits(*bits).is_finite()));
    for level in Level::available() {
        for (threads, chunk) in [("1", 1), ("2", 3), ("4", 8)] {
            let options = [("threads", threads), ("simd", level.name())];
            let mut loaded = host.load(&artefact, &options).expect("loaded");
            let got = encoded.generate(&mut loaded, chunk, 40, 48);
            assert_eq!(got, expected, "chunks of {chunk}, {threads} threads, {}", level.name());
        }
    }
    // If two computations round a value to different sides of the middle between two steps, the
    // results differ by one step. The evaluator is therefore only approximately equal.
    let mut loaded = host.load(&artefact, &[]).expect("loaded");
    let mut bound = encoded.fresh_states();
    let entry = &encoded.entries[2];
    encoded.step(&mut bound, entry, 0, 1);
    let exact = evaluate(entry, 1, &bound);
    loaded.run(&entry.name, 1, &mut bound).expect("ran");
    let (got, exact) = (bound["logits"].f32(), &exact["logits"].data);
    let size = exact.iter().fold(0.0f64, |size, value| size.max(value.abs()));
    for (got, exact) in got.iter().zip(exact) {
        assert!((f64::from(*got) - exact).abs() <= 0.02 * size, "{got}, about {exact} of {size}");
    }
}

#[test]
fn states_are_stored_in_their_encoding() {
    let host = open(&[]).expect("opened");
    for ((activation, state), bytes) in [
        ((SW_DTYPE_F32, SW_DTYPE_U8), 1),
        ((SW_DTYPE_U16, SW_DTYPE_U16), 2),
        ((SW_DTYPE_F16, SW_DTYPE_F16), 2),
    ] {
        let encoded = Encoded::new((activation, state), false);
        let artefact = compile(&host, &encoded.entries);
        let loaded = host.load(&artefact, &[]).expect("loaded");
        let states = loaded.entries.iter().flat_map(|(_, bindings)| bindings);
        let states: Vec<_> = states.filter(|binding| binding.role == SW_ROLE_STATE).collect();
        assert_eq!(states.len(), 12);
        for binding in states {
            assert_eq!(binding.dtype, state, "{}", binding.name);
            assert_eq!(binding.bytes, binding.shape.iter().product::<u64>() * bytes, "{}", binding.name);
        }
    }
}
