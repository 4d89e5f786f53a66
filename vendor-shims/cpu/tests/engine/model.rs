//! Runs whole graphs through the contract. Results are compared with the plain evaluator, and bit
//! for bit with other configurations.

use std::collections::HashMap;

use crate::decoder::{CHUNK, CONTEXT, Decoder};
use crate::support::*;
use shardwright_shim_abi::raw::*;

/// Runs one generation: prefill in chunks of `chunk`, then single rows up to `positions`. Returns
/// the logits of the single rows.
fn generate(
    decoder: &Decoder,
    loaded: &mut Loaded<'_>,
    chunk: usize,
    prompt: usize,
    positions: usize,
) -> Vec<f32> {
    let mut bound = decoder.fresh_states();
    let mut first = 0;
    while first < prompt {
        let rows = chunk.min(prompt - first);
        decoder.step(&mut bound, first, rows, CHUNK as usize);
        loaded.run(&format!("prefill_{CHUNK}@{CONTEXT}"), rows, &mut bound).expect("prefill");
        first += rows;
    }
    let mut logits = Vec::new();
    for position in prompt..positions {
        decoder.step(&mut bound, position, 1, 1);
        loaded.run(&format!("decode_1@{CONTEXT}"), 1, &mut bound).expect("decode");
        logits.extend_from_slice(bound["logits"].f32());
    }
    logits
}

fn compile(host: &Host, builders: &[Builder]) -> Region {
    let entries: Vec<_> = builders.iter().map(Builder::build).collect();
    for entry in &entries {
        for (verdict, reason) in host.check(entry).expect("checked") {
            assert_eq!(verdict, SW_VERDICT_TAKEN, "{reason}");
        }
    }
    let compiled = host.compile(&entries, &[]).expect("compiled");
    assert_eq!(host.compatibility(&compiled.head).expect("answered").0, SW_COMPATIBILITY_OPTIMAL);
    compiled.artefact
}

fn close(got: &[f32], exact: &Tensor, rows: usize, tolerance: f64, what: &str) {
    let count = exact.data.len() / exact.shape[0] * rows;
    let size = exact.data[..count].iter().fold(1e-3f64, |size, v| size.max(v.abs()));
    for (index, (got, exact)) in got.iter().zip(&exact.data[..count]).enumerate() {
        let error = (f64::from(*got) - exact).abs();
        assert!(error <= tolerance * size, "{what}[{index}] is {got}, exactly {exact}");
    }
}

#[test]
fn every_step_agrees_with_the_plain_evaluator_whole_and_decomposed() {
    let decoder = Decoder::new();
    let host = open(&[("threads", "2")]).expect("opened");
    for decomposed in [false, true] {
        let builders = [
            decoder.entry(CHUNK, true, decomposed),
            decoder.entry(CHUNK, false, decomposed),
            decoder.entry(1, false, decomposed),
        ];
        let artefact = compile(&host, &builders);
        let mut loaded = host.load(&artefact, &[("verify-weights", "true")]).expect("loaded");
        let mut bound = decoder.fresh_states();
        let mut first = 0;
        // The chunks have every kind and length, and go several times around the ring.
        for (round, rows) in [8usize, 3, 1, 8, 5, 1, 7, 1, 8, 2].into_iter().enumerate() {
            let builder = &builders[if rows == 1 { 2 } else { round % 2 }];
            decoder.step(&mut bound, first, rows, builder.rows as usize);
            let mut clean = bound.clone();
            for value in clean.values_mut() {
                if let Bound::F32(values) = value {
                    values.iter_mut().filter(|v| v.is_nan()).for_each(|v| *v = 0.0);
                }
            }
            let exact = evaluate(builder, rows, &clean);
            loaded.run(&builder.name, rows, &mut bound).expect("ran");
            for (name, exact) in &exact {
                let valid = if name.starts_with("layer") { exact.shape[0] } else { rows };
                close(bound[name].f32(), exact, valid, 2e-5, &format!("{name} at {first}"));
            }
            first += rows;
        }
    }
}

#[test]
fn chunks_threads_and_instruction_sets_change_no_bit() {
    let decoder = Decoder::new();
    let host = open(&[]).expect("opened");
    let artefact = compile(&host, &[decoder.entry(CHUNK, true, false), decoder.entry(1, false, false)]);
    let positions = 50;
    let expected = {
        let mut loaded = host.load(&artefact, &[("threads", "1")]).expect("loaded");
        generate(&decoder, &mut loaded, 8, 40, positions)
    };
    assert!(expected.iter().all(|value| value.is_finite()));
    for level in shardwright_shim_cpu::simd::Level::available() {
        for threads in ["1", "2", "4"] {
            let mut loaded =
                host.load(&artefact, &[("threads", threads), ("simd", level.name())]).expect("loaded");
            for chunk in [1, 3, 8] {
                let got = generate(&decoder, &mut loaded, chunk, 40, positions);
                assert_eq!(
                    bits(&got),
                    bits(&expected),
                    "chunks of {chunk}, {threads} threads, {}",
                    level.name()
                );
            }
        }
    }
}

/// Types of the products of attention in version 2, with the largest error that a weight rounded to
/// its neighbour causes.
const PRODUCTS: [(&str, f64); 2] = [("bf16", 2e-2), ("f16", 3e-3)];

#[test]
fn attention_in_16_bits_agrees_with_the_plain_evaluator() {
    let decoder = Decoder::new();
    let host = open(&[("threads", "2")]).expect("opened");
    for (products, tolerance) in PRODUCTS {
        let mut builders = [decoder.entry(CHUNK, false, false), decoder.entry(1, false, false)];
        builders.iter_mut().for_each(|builder| builder.round_attention(products));
        let artefact = compile(&host, &builders);
        let mut loaded = host.load(&artefact, &[]).expect("loaded");
        let mut bound = decoder.fresh_states();
        let mut first = 0;
        for rows in [8usize, 3, 1, 8, 8, 5, 1, 7, 8, 8] {
            let builder = &builders[usize::from(rows == 1)];
            decoder.step(&mut bound, first, rows, builder.rows as usize);
            let mut clean = bound.clone();
            for value in clean.values_mut() {
                if let Bound::F32(values) = value {
                    values.iter_mut().filter(|v| v.is_nan()).for_each(|v| *v = 0.0);
                }
            }
            let exact = evaluate(builder, rows, &clean);
            loaded.run(&builder.name, rows, &mut bound).expect("ran");
            close(
                bound["logits"].f32(),
                &exact["logits"],
                rows,
                tolerance,
                &format!("{products} at {first}"),
            );
            first += rows;
        }
    }
}

#[test]
fn chunks_threads_and_instruction_sets_change_no_bit_of_attention_in_16_bits() {
    let decoder = Decoder::new();
    let host = open(&[]).expect("opened");
    let mut seen = Vec::new();
    for products in [None, Some("bf16"), Some("f16")] {
        let mut builders = [decoder.entry(CHUNK, true, false), decoder.entry(1, false, false)];
        for builder in &mut builders {
            products.into_iter().for_each(|products| builder.round_attention(products));
        }
        let artefact = compile(&host, &builders);
        let run = |threads: &str, level: &str, chunk: usize| {
            let flags = [("threads", threads), ("simd", level)];
            let mut loaded = host.load(&artefact, &flags).expect("loaded");
            bits(&generate(&decoder, &mut loaded, chunk, 40, 50))
        };
        let expected = run("1", "scalar", 8);
        for level in shardwright_shim_cpu::simd::Level::available() {
            for (threads, chunk) in [("1", 3), ("2", 8), ("4", 1)] {
                let got = run(threads, level.name(), chunk);
                assert_eq!(got, expected, "{products:?}, {threads} threads, {}", level.name());
            }
        }
        assert!(!seen.contains(&expected), "{products:?} computes the same as another type");
        seen.push(expected);
    }
}

/// Builds an encoder with windows on both sides and mean pooling.
fn encoder(rows: u64, hidden: u64, weights: &[Weight]) -> Builder {
    let mut b = Builder::new(&format!("encode_{rows}"), SW_ENTRY_ENCODE, rows, rows);
    let mut h = b.input("gathered", SW_ROLE_GATHERED, &[rows, hidden]);
    let positions = b.input("positions", SW_ROLE_POSITIONS, &[rows]);
    let pooling = b.input("pooling", SW_ROLE_POOLING, &[1, rows]);
    for (window, weights) in [(0, &weights[..3]), (4, &weights[3..])] {
        let a = b.norm(h, None, hidden, 0.0);
        let q = b.linear(a, &weights[0]);
        let k = b.linear(a, &weights[1]);
        let shape = b.shape(q);
        let o = b.node(
            SW_OP_ATTENTION,
            &[q, k, a, positions],
            &shape,
            vec![
                Attribute::Integer("heads", 2),
                Attribute::Integer("kv_heads", 2),
                Attribute::Integer("head_dim", hidden as i64 / 2),
                Attribute::Float("scale", 0.2),
                Attribute::Float("softcap", 0.0),
                Attribute::Integer("window", window),
                Attribute::Integer("causal", 0),
                Attribute::Text("keys", "rows"),
            ],
        );
        let o = b.linear(o, &weights[2]);
        h = b.binary(SW_OP_ADD, h, o);
    }
    let pooled = b.mat_mul(pooling, h, false);
    let vector = b.unary(SW_OP_L2_NORMALIZE, pooled, vec![]);
    let vector = b.reshape(vector, &[hidden]);
    b.output("embedding", SW_ROLE_EMBEDDING, vector);
    b.output("tap", SW_ROLE_TAP, h);
    b
}

#[test]
fn an_encoder_pools_valid_rows_only() {
    let hidden = 24;
    let weights: Vec<Weight> =
        (0..6).map(|i| weight("w", &[hidden, hidden], &values(576, i + 90, 0.5), SW_DTYPE_BF16)).collect();
    let host = open(&[("threads", "2")]).expect("opened");
    for (products, tolerance) in [None].into_iter().chain(PRODUCTS.map(Some)).map(Option::unzip) {
        pools_valid_rows_only(&host, hidden, &weights, products, tolerance.unwrap_or(1e-5));
    }
}

fn pools_valid_rows_only(
    host: &Host,
    hidden: u64,
    weights: &[Weight],
    products: Option<&'static str>,
    tolerance: f64,
) {
    let mut vectors: HashMap<usize, Vec<u32>> = HashMap::new();
    for most in [9u64, 16] {
        let mut builder = encoder(most, hidden, weights);
        products.into_iter().for_each(|products| builder.round_attention(products));
        let artefact = compile(host, std::slice::from_ref(&builder));
        let mut loaded = host.load(&artefact, &[]).expect("loaded");
        for rows in [1usize, 5, 9] {
            let mut gathered = values(rows * hidden as usize, 7, 1.0);
            gathered.resize((most * hidden) as usize, f32::NAN);
            let pooling =
                (0..most as usize).map(|row| if row < rows { 1.0 / rows as f32 } else { 0.0 }).collect();
            let mut bound = HashMap::from([
                ("gathered".to_owned(), Bound::F32(gathered)),
                ("positions".to_owned(), Bound::I32((0..most as i32).collect())),
                ("pooling".to_owned(), Bound::F32(pooling)),
            ]);
            let mut clean = bound.clone();
            if let Some(Bound::F32(values)) = clean.get_mut("gathered") {
                values.iter_mut().filter(|v| v.is_nan()).for_each(|v| *v = 0.0);
            }
            let exact = evaluate(&builder, rows, &clean);
            loaded.run(&builder.name, rows, &mut bound).expect("ran");
            close(bound["tap"].f32(), &exact["tap"], rows, tolerance, "tap");
            // The evaluator also computes rows beyond the valid ones, which have no weight.
            close(bound["embedding"].f32(), &exact["embedding"], hidden as usize, tolerance, "embedding");
            let vector = bits(bound["embedding"].f32());
            assert_eq!(
                *vectors.entry(rows).or_insert_with(|| vector.clone()),
                vector,
                "{rows} rows in {most}"
            );
        }
    }
}

#[test]
fn every_operation_agrees_with_the_plain_evaluator() {
    let rows = 6;
    let mut b = Builder::new("encode_6", SW_ENTRY_ENCODE, rows, rows);
    let x = b.input("x", SW_ROLE_GATHERED, &[rows, 20]);
    let y = b.input("y", SW_ROLE_GATHERED, &[rows, 20]);
    let row = weight("row", &[20], &values(20, 3, 1.0), SW_DTYPE_F16);
    let matrix = weight("matrix", &[20, 7], &values(140, 4, 1.0), SW_DTYPE_BF16);
    let wide = weight("wide", &[7, 20], &values(140, 5, 1.0), SW_DTYPE_F32);
    let bias = weight("bias", &[7], &values(7, 6, 1.0), SW_DTYPE_BF16);
    let scalar = weight("scalar", &[1], &[0.7], SW_DTYPE_F32);
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
        (SW_OP_RECIPROCAL, vec![]),
    ] {
        outputs.push(b.unary(op, x, attributes));
    }
    let positive = b.unary(SW_OP_EXP, x, vec![]);
    outputs.push(b.unary(SW_OP_SQRT, positive, vec![]));
    outputs.push(b.unary(SW_OP_RSQRT, positive, vec![]));
    for op in [SW_OP_REDUCE_SUM, SW_OP_REDUCE_MEAN, SW_OP_REDUCE_MAX] {
        outputs.push(b.node(op, &[x], &[rows, 1], vec![]));
    }
    let [row, matrix_t, wide_t, scalar_t] = [&row, &matrix, &wide, &scalar].map(|w| b.constant(w));
    for op in [SW_OP_ADD, SW_OP_SUB, SW_OP_MUL, SW_OP_DIV, SW_OP_MAX, SW_OP_MIN] {
        outputs.push(b.binary(op, x, y));
        outputs.push(b.binary(op, x, row));
        outputs.push(b.binary(op, scalar_t, x));
    }
    let bias_t = b.constant(&bias);
    outputs.push(b.node(SW_OP_LINEAR, &[x, wide_t, bias_t], &[rows, 7], vec![]));
    outputs.push(b.mat_mul(x, matrix_t, false));
    outputs.push(b.mat_mul(x, wide_t, true));
    outputs.push(b.mat_mul(x, y, true));
    outputs.push(b.mat_mul(wide_t, x, true));
    let t = b.transpose(x, &[1, 0]);
    outputs.push(t);
    outputs.push(b.slice(x, 1, 3, 9));
    outputs.push(b.slice(x, 0, 2, 5));
    outputs.push(b.slice(t, 0, 4, 8));
    outputs.push(b.concat(&[x, y, x], 1));
    outputs.push(b.concat(&[x, y], 0));
    let boxes = b.reshape(x, &[2, 3, 20]);
    outputs.push(b.transpose(boxes, &[2, 0, 1]));
    outputs.push(b.reshape(wide_t, &[14, 10]));
    outputs.push(b.slice(wide_t, 0, 1, 3));
    outputs.push(b.transpose(wide_t, &[1, 0]));
    let [cos, sin] = [(x, 3), (y, 9)].map(|(of, start)| b.slice(of, 1, start, start + 5));
    let heads = vec![Attribute::Integer("head_dim", 10)];
    outputs.push(b.node(SW_OP_ROTATE, &[y, cos, sin], &[rows, 20], heads));
    let crossed = b.reshape(t, &[rows, 20]);
    outputs.push(b.binary(SW_OP_ADD, crossed, x));
    // One output is an input, one is listed twice, and one is part of another.
    outputs.push(x);
    outputs.push(t);
    for (index, output) in outputs.iter().enumerate() {
        b.output(&format!("out.{index}"), SW_ROLE_TAP, *output);
    }
    let host = open(&[("threads", "2")]).expect("opened");
    let artefact = compile(&host, std::slice::from_ref(&b));
    for level in shardwright_shim_cpu::simd::Level::available() {
        let mut loaded = host.load(&artefact, &[("simd", level.name())]).expect("loaded");
        let mut bound = HashMap::from([
            ("x".to_owned(), Bound::F32(values(120, 1, 2.0))),
            ("y".to_owned(), Bound::F32(values(120, 2, 2.0))),
        ]);
        let exact = evaluate(&b, 6, &bound);
        loaded.run("encode_6", 6, &mut bound).expect("ran");
        for (name, exact) in &exact {
            close(bound[name].f32(), exact, exact.shape[0], 3e-6, name);
        }
    }
}
