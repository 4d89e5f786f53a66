//! Whole graphs through the contract: against the plain evaluator, and against themselves bit for bit.

mod support;

use std::collections::HashMap;

use shardwright_shim_abi::raw::*;
use support::*;

/// A small decoder with everything that makes real ones hard: rings, a shared state, partial rotary, soft caps,
/// grouped heads, per-layer inputs, odd sizes, weights of three types.
struct Decoder {
    hidden: u64,
    weights: HashMap<String, Weight>,
}

const CONTEXT: u64 = 64;
const WINDOW: u64 = 10;
const CHUNK: u64 = 8;
const RING: u64 = WINDOW + CHUNK;
const VOCABULARY: u64 = 37;
const PER_LAYER: u64 = 5;

#[derive(Clone, Copy)]
struct Layer {
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    window: u64,
    pairs: u64,
    theta: f32,
    softcap: f32,
    donor: Option<usize>,
}

const LAYERS: [Layer; 4] = [
    Layer {
        heads: 4,
        kv_heads: 2,
        head_dim: 12,
        window: WINDOW,
        pairs: 6,
        theta: 1e4,
        softcap: 0.0,
        donor: None,
    },
    Layer {
        heads: 2,
        kv_heads: 1,
        head_dim: 34,
        window: 0,
        pairs: 4,
        theta: 1e6,
        softcap: 20.0,
        donor: None,
    },
    Layer {
        heads: 4,
        kv_heads: 2,
        head_dim: 12,
        window: WINDOW,
        pairs: 6,
        theta: 1e4,
        softcap: 0.0,
        donor: Some(0),
    },
    Layer {
        heads: 6,
        kv_heads: 1,
        head_dim: 34,
        window: 0,
        pairs: 4,
        theta: 1e6,
        softcap: 20.0,
        donor: Some(1),
    },
];

impl Decoder {
    fn new() -> Decoder {
        let hidden = 27;
        let mut weights = HashMap::new();
        let mut add = |name: String, shape: &[u64], scale: f32| {
            let count: u64 = shape.iter().product();
            let dtype = [SW_DTYPE_F32, SW_DTYPE_BF16, SW_DTYPE_F16][weights.len() % 3];
            let data = values(count as usize, weights.len() as u64 + 5, scale);
            weights.insert(name.clone(), weight(&name, shape, &data, dtype));
        };
        for (index, layer) in LAYERS.iter().enumerate() {
            let (q, kv) = (layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim);
            for (part, shape) in [
                ("q", [q, hidden]),
                ("k", [kv, hidden]),
                ("v", [kv, hidden]),
                ("o", [hidden, q]),
                ("gate", [70, hidden]),
                ("up", [70, hidden]),
                ("down", [hidden, 70]),
                ("per_gate", [PER_LAYER, hidden]),
                ("per_up", [hidden, PER_LAYER]),
            ] {
                add(format!("{index}.{part}"), &shape, 0.4);
            }
            add(format!("{index}.norm"), &[hidden], 0.5);
            add(format!("{index}.q_norm"), &[layer.head_dim], 0.5);
        }
        add("final".into(), &[hidden], 0.5);
        add("head".into(), &[VOCABULARY, hidden], 0.5);
        Decoder { hidden, weights }
    }

    fn capacity(layer: &Layer) -> u64 {
        if layer.window > 0 { RING } else { CONTEXT }
    }

    /// Decode entries give logits; prefill entries stop after the last state.
    fn entry(&self, rows: u64, prefill: bool, decomposed: bool) -> Builder {
        let kind = if prefill { SW_ENTRY_PREFILL } else { SW_ENTRY_DECODE };
        let name = format!("{}_{rows}@{CONTEXT}", if prefill { "prefill" } else { "decode" });
        let mut b = Builder::new(&name, kind, rows, CONTEXT);
        let w = |name: String| &self.weights[&name];
        let mut h = b.input("hidden", SW_ROLE_HIDDEN, &[rows, self.hidden]);
        let per_layer = b.input("per_layer", SW_ROLE_PER_LAYER, &[LAYERS.len() as u64, rows, PER_LAYER]);
        let positions = b.input("positions", SW_ROLE_POSITIONS, &[rows]);
        let slots: HashMap<u64, u32> = [RING, CONTEXT]
            .map(|capacity| (capacity, b.input(&format!("slots.{capacity}"), SW_ROLE_SLOTS, &[rows])))
            .into();
        let mut tables = Vec::new();
        if decomposed {
            for (index, layer) in LAYERS.iter().take(2).enumerate() {
                let table = [rows, layer.head_dim / 2];
                let keys = [rows, Decoder::capacity(layer)];
                tables.push([
                    b.input(&format!("cos.{index}"), SW_ROLE_ROTARY_COS, &table),
                    b.input(&format!("sin.{index}"), SW_ROLE_ROTARY_SIN, &table),
                    b.input(&format!("mask.{index}"), SW_ROLE_MASK, &keys),
                ]);
            }
        }
        let mut states: Vec<[u32; 2]> = Vec::new();
        for (index, layer) in LAYERS.iter().enumerate() {
            if prefill && index == 2 {
                break;
            }
            let (d, capacity) = (layer.head_dim, Decoder::capacity(layer));
            let a = b.norm(h, Some(w(format!("{index}.norm"))), self.hidden, 1.0);
            let table = tables.get(index % 2).copied();
            let rope = |b: &mut Builder, x: u32| match table {
                Some([cos, sin, _]) => rope_primitives(b, x, cos, sin, d),
                None => {
                    let shape = b.shape(x);
                    b.node(
                        SW_OP_ROPE,
                        &[x, positions],
                        &shape,
                        vec![
                            Attribute::Integer("head_dim", d as i64),
                            Attribute::Float("theta", layer.theta),
                            Attribute::Integer("rotated_pairs", layer.pairs as i64),
                            Attribute::Float("factor", 1.0),
                        ],
                    )
                }
            };
            let pair = match layer.donor {
                Some(donor) => states[donor],
                None => {
                    let width = layer.kv_heads * d;
                    let k = b.linear(a, w(format!("{index}.k")));
                    let k = b.norm(k, Some(w(format!("{index}.q_norm"))), d, 0.0);
                    let k = rope(&mut b, k);
                    let v = b.linear(a, w(format!("{index}.v")));
                    let v = b.norm(v, None, d, 0.0);
                    [("k", k), ("v", v)].map(|(part, new)| {
                        let name = format!("layer.{index}.{part}");
                        let state = b.input(&name, SW_ROLE_STATE, &[capacity, width]);
                        let inputs = [state, new, slots[&capacity]];
                        let updated = b.node(SW_OP_STATE_UPDATE, &inputs, &[capacity, width], vec![]);
                        b.output(&name, SW_ROLE_STATE, updated);
                        updated
                    })
                }
            };
            states.push(pair);
            if prefill && index == 1 {
                break;
            }
            let q = b.linear(a, w(format!("{index}.q")));
            let q = b.norm(q, Some(w(format!("{index}.q_norm"))), d, 0.0);
            let q = rope(&mut b, q);
            let o = match table {
                Some([_, _, mask]) => attention_primitives(&mut b, layer, q, pair, mask),
                None => {
                    let shape = b.shape(q);
                    b.node(
                        SW_OP_ATTENTION,
                        &[q, pair[0], pair[1], positions],
                        &shape,
                        vec![
                            Attribute::Integer("heads", layer.heads as i64),
                            Attribute::Integer("kv_heads", layer.kv_heads as i64),
                            Attribute::Integer("head_dim", d as i64),
                            Attribute::Float("scale", 0.3),
                            Attribute::Float("softcap", layer.softcap),
                            Attribute::Integer("window", layer.window as i64),
                            Attribute::Integer("causal", 1),
                            Attribute::Text("keys", "state"),
                        ],
                    )
                }
            };
            let o = b.linear(o, w(format!("{index}.o")));
            h = b.binary(SW_OP_ADD, h, o);
            let m = b.norm(h, Some(w(format!("{index}.norm"))), self.hidden, 1.0);
            let gate = b.linear(m, w(format!("{index}.gate")));
            let gate = b.unary(if index % 2 == 0 { SW_OP_GELU } else { SW_OP_SILU }, gate, vec![]);
            let up = b.linear(m, w(format!("{index}.up")));
            let inner = b.binary(SW_OP_MUL, gate, up);
            let down = b.linear(inner, w(format!("{index}.down")));
            h = b.binary(SW_OP_ADD, h, down);
            let p = b.slice(per_layer, 0, index as u64, index as u64 + 1);
            let p = b.reshape(p, &[rows, PER_LAYER]);
            let g = b.linear(h, w(format!("{index}.per_gate")));
            let g = b.unary(SW_OP_GELU, g, vec![]);
            let g = b.binary(SW_OP_MUL, g, p);
            let g = b.linear(g, w(format!("{index}.per_up")));
            h = b.binary(SW_OP_ADD, h, g);
            h = b.unary(SW_OP_MUL_SCALAR, h, vec![Attribute::Float("value", 0.9)]);
        }
        if !prefill {
            b.output("tap", SW_ROLE_TAP, h);
            let h = b.norm(h, Some(w("final".into())), self.hidden, 1.0);
            let logits = b.linear(h, w("head".into()));
            let logits = b.unary(SW_OP_SOFTCAP, logits, vec![Attribute::Float("cap", 30.0)]);
            b.output("logits", SW_ROLE_LOGITS, logits);
        }
        b
    }

    fn fresh_states(&self) -> HashMap<String, Bound> {
        let mut bound = HashMap::new();
        for (index, layer) in LAYERS.iter().enumerate().filter(|(_, layer)| layer.donor.is_none()) {
            let count = Decoder::capacity(layer) * layer.kv_heads * layer.head_dim;
            for part in ["k", "v"] {
                bound.insert(format!("layer.{index}.{part}"), Bound::F32(vec![0.0; count as usize]));
            }
        }
        bound
    }

    /// Binds the step inputs of positions `first..first + rows` in an entry of `most` rows; the rest is poison.
    fn step(&self, bound: &mut HashMap<String, Bound>, first: usize, rows: usize, most: usize) {
        let fill = |seed: u64, width: u64| {
            let mut out = vec![f32::NAN; most * width as usize];
            for row in 0..rows {
                let at = row * width as usize;
                let value = values(width as usize, seed + (first + row) as u64, 1.0);
                out[at..at + width as usize].copy_from_slice(&value);
            }
            out
        };
        bound.insert("hidden".into(), Bound::F32(fill(1000, self.hidden)));
        let per_layer =
            (0..LAYERS.len() as u64).flat_map(|layer| fill(2000 + 100 * layer, PER_LAYER)).collect();
        bound.insert("per_layer".into(), Bound::F32(per_layer));
        bound.insert("positions".into(), Bound::I32((0..most).map(|row| (first + row) as i32).collect()));
        for capacity in [RING, CONTEXT] {
            let slots =
                (0..most).map(|row| if row < rows { ((first + row) as u64 % capacity) as i32 } else { -1 });
            bound.insert(format!("slots.{capacity}"), Bound::I32(slots.collect()));
        }
        for (index, layer) in LAYERS.iter().take(2).enumerate() {
            let (mut cos, mut sin, mut mask) = (Vec::new(), Vec::new(), Vec::new());
            let capacity = Decoder::capacity(layer) as i64;
            for row in 0..most {
                let position = (first + row) as i64;
                for pair in 0..layer.head_dim / 2 {
                    let exponent = (2 * pair) as f32 / layer.head_dim as f32;
                    let inverse = 1.0 / layer.theta.powf(exponent);
                    let angle = if pair < layer.pairs { position as f32 * inverse } else { 0.0 };
                    cos.push(angle.cos());
                    sin.push(angle.sin());
                }
                for slot in 0..capacity {
                    let held = position - (position - slot).rem_euclid(capacity);
                    let visible = held >= 0 && (layer.window == 0 || held > position - layer.window as i64);
                    mask.push(if visible { 0.0 } else { -1e30 });
                }
            }
            bound.insert(format!("cos.{index}"), Bound::F32(cos));
            bound.insert(format!("sin.{index}"), Bound::F32(sin));
            bound.insert(format!("mask.{index}"), Bound::F32(mask));
        }
    }
}

fn rope_primitives(b: &mut Builder, x: u32, cos: u32, sin: u32, d: u64) -> u32 {
    let flat = b.shape(x);
    let (rows, heads) = (flat[0], flat[1] / d);
    let x = b.reshape(x, &[rows, heads, d]);
    let [cos, sin] = [cos, sin].map(|table| b.reshape(table, &[rows, 1, d / 2]));
    let (first, second) = (b.slice(x, 2, 0, d / 2), b.slice(x, 2, d / 2, d));
    let (fc, ss) = (b.binary(SW_OP_MUL, first, cos), b.binary(SW_OP_MUL, second, sin));
    let (sc, fs) = (b.binary(SW_OP_MUL, second, cos), b.binary(SW_OP_MUL, first, sin));
    let (low, high) = (b.binary(SW_OP_SUB, fc, ss), b.binary(SW_OP_ADD, sc, fs));
    let joined = b.concat(&[low, high], 2);
    b.reshape(joined, &flat)
}

fn attention_primitives(b: &mut Builder, layer: &Layer, q: u32, [k, v]: [u32; 2], mask: u32) -> u32 {
    let flat = b.shape(q);
    let (rows, capacity) = (flat[0], b.shape(k)[0]);
    let (kv, group, d) = (layer.kv_heads, layer.heads / layer.kv_heads, layer.head_dim);
    let q = b.reshape(q, &[rows, kv, group, d]);
    let q = b.transpose(q, &[1, 2, 0, 3]);
    let [k, v] = [k, v].map(|state| {
        let state = b.reshape(state, &[capacity, kv, 1, d]);
        b.transpose(state, &[1, 2, 0, 3])
    });
    let scores = b.mat_mul(q, k, true);
    let mut scores = b.unary(SW_OP_MUL_SCALAR, scores, vec![Attribute::Float("value", 0.3)]);
    if layer.softcap > 0.0 {
        let down = vec![Attribute::Float("value", 1.0 / layer.softcap)];
        scores = b.unary(SW_OP_MUL_SCALAR, scores, down);
        scores = b.unary(SW_OP_TANH, scores, vec![]);
        scores = b.unary(SW_OP_MUL_SCALAR, scores, vec![Attribute::Float("value", layer.softcap)]);
    }
    let scores = b.binary(SW_OP_ADD, scores, mask);
    let mut one = b.shape(scores);
    one[3] = 1;
    let largest = b.node(SW_OP_REDUCE_MAX, &[scores], &one, vec![]);
    let shifted = b.binary(SW_OP_SUB, scores, largest);
    let weights = b.unary(SW_OP_EXP, shifted, vec![]);
    let sum = b.node(SW_OP_REDUCE_SUM, &[weights], &one, vec![]);
    let weights = b.binary(SW_OP_DIV, weights, sum);
    let out = b.mat_mul(weights, v, false);
    let out = b.transpose(out, &[2, 0, 1, 3]);
    b.reshape(out, &flat)
}

/// One generation: prefill in chunks of `chunk`, then single rows up to `positions`. Logits of the single rows.
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
    assert_eq!(host.compatibility(&compiled.head).expect("answered"), SW_COMPATIBILITY_OPTIMAL);
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
    let host = Host::open(&[("threads", "2")]).expect("opened");
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
        // Chunks of every kind and length, several times around the ring.
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
    let host = Host::open(&[]).expect("opened");
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

#[test]
fn rows_of_a_decode_entry_equal_single_rows() {
    let decoder = Decoder::new();
    let host = Host::open(&[]).expect("opened");
    let artefact = compile(&host, &[decoder.entry(CHUNK, false, false), decoder.entry(1, false, false)]);
    let mut loaded = host.load(&artefact, &[("threads", "2")]).expect("loaded");
    let mut bound = decoder.fresh_states();
    let mut single = Vec::new();
    for position in 0..30 {
        decoder.step(&mut bound, position, 1, 1);
        loaded.run(&format!("decode_1@{CONTEXT}"), 1, &mut bound).expect("ran");
        single.extend_from_slice(bound["logits"].f32());
    }
    let mut bound = decoder.fresh_states();
    let (mut first, mut many) = (0, Vec::new());
    for rows in [8, 7, 1, 8, 6] {
        decoder.step(&mut bound, first, rows, CHUNK as usize);
        loaded.run(&format!("decode_{CHUNK}@{CONTEXT}"), rows, &mut bound).expect("ran");
        many.extend_from_slice(&bound["logits"].f32()[..rows * VOCABULARY as usize]);
        first += rows;
    }
    assert_eq!(bits(&many), bits(&single));
}

#[test]
fn a_run_at_an_earlier_position_overwrites() {
    let decoder = Decoder::new();
    let host = Host::open(&[]).expect("opened");
    let artefact = compile(&host, &[decoder.entry(1, false, false)]);
    let mut loaded = host.load(&artefact, &[]).expect("loaded");
    let mut bound = decoder.fresh_states();
    let mut run = |bound: &mut HashMap<String, Bound>, position: usize| {
        decoder.step(bound, position, 1, 1);
        loaded.run(&format!("decode_1@{CONTEXT}"), 1, bound).expect("ran");
        bits(bound["logits"].f32())
    };
    let expected: Vec<Vec<u32>> = (0..12).map(|position| run(&mut bound, position)).collect();
    // The ring holds window + chunk rows, so eight positions back are still whole.
    for (position, expected) in expected.iter().enumerate().skip(6) {
        assert_eq!(&run(&mut bound, position), expected);
    }
}

/// An encoder with windows on both sides and mean pooling.
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
    let host = Host::open(&[("threads", "2")]).expect("opened");
    let mut vectors: HashMap<usize, Vec<u32>> = HashMap::new();
    for most in [9u64, 16] {
        let builder = encoder(most, hidden, &weights);
        let artefact = compile(&host, std::slice::from_ref(&builder));
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
            close(bound["tap"].f32(), &exact["tap"], rows, 1e-5, "tap");
            // The evaluator computes rows beyond as well; they weigh nothing.
            close(bound["embedding"].f32(), &exact["embedding"], hidden as usize, 1e-5, "embedding");
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
    for op in [SW_OP_ADD, SW_OP_SUB, SW_OP_MUL, SW_OP_DIV] {
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
    let crossed = b.reshape(t, &[rows, 20]);
    outputs.push(b.binary(SW_OP_ADD, crossed, x));
    // An output that is an input, one that is given twice, one that is part of another.
    outputs.push(x);
    outputs.push(t);
    for (index, output) in outputs.iter().enumerate() {
        b.output(&format!("out.{index}"), SW_ROLE_TAP, *output);
    }
    let host = Host::open(&[("threads", "2")]).expect("opened");
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
