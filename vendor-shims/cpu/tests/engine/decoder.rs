//! A small decoder with several entries.

use std::collections::HashMap;

use shardwright_shim_abi::raw::*;

use crate::support::*;

/// A small decoder with the difficult features of real ones: rings, a shared state, partial rotary,
/// soft caps, grouped heads, per-layer inputs, odd sizes, weights of three types.
pub struct Decoder {
    /// Width of the residual stream.
    pub hidden: u64,
    /// Weights by part, for example `2.gate`.
    pub weights: HashMap<String, Weight>,
}

/// Capacity of linear states in positions.
pub const CONTEXT: u64 = 64;
/// Positions that a sliding layer sees.
pub const WINDOW: u64 = 10;
/// Rows of the largest entry.
pub const CHUNK: u64 = 8;
/// Rows of a ring.
pub const RING: u64 = WINDOW + CHUNK;
/// Number of logits.
pub const VOCABULARY: u64 = 37;
/// Width of a per-layer input.
pub const PER_LAYER: u64 = 5;

/// Shape of one layer.
#[derive(Clone, Copy)]
pub struct Layer {
    /// Number of query heads.
    pub heads: u64,
    /// Number of key and value heads.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Positions that the layer sees, 0 for all.
    pub window: u64,
    /// Rotated pairs of a head.
    pub pairs: u64,
    /// Base of the rotary frequencies.
    pub theta: f32,
    /// Cap of the scores, 0 for none.
    pub softcap: f32,
    /// Layer whose states this layer reads instead of its own.
    pub donor: Option<usize>,
}

/// Two layers with their own states, and two layers that read these states.
pub const LAYERS: [Layer; 4] = [
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
    /// Creates a decoder whose weights alternate between f32, bf16 and f16.
    pub fn new() -> Decoder {
        let dtypes = [SW_DTYPE_F32, SW_DTYPE_BF16, SW_DTYPE_F16];
        let stored = |name: &str, shape: &[u64], data: &[f32], index: usize| {
            weight(name, shape, data, dtypes[index % 3])
        };
        Decoder::with(stored)
    }

    /// Creates a decoder whose weights `stored` encodes. Its arguments are name, shape, values and
    /// a number.
    pub fn with(stored: impl Fn(&str, &[u64], &[f32], usize) -> Weight) -> Decoder {
        let hidden = 27;
        let mut weights = HashMap::new();
        let mut add = |name: String, shape: &[u64], scale: f32| {
            let count: u64 = shape.iter().product();
            let index = weights.len();
            let data = values(count as usize, index as u64 + 5, scale);
            weights.insert(name.clone(), stored(&name, shape, &data, index));
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

    /// Returns the rows of the layer's states.
    pub fn capacity(layer: &Layer) -> u64 {
        if layer.window > 0 { RING } else { CONTEXT }
    }

    /// Builds an entry. Decode entries return logits, and prefill entries stop after the last
    /// state.
    pub fn entry(&self, rows: u64, prefill: bool, decomposed: bool) -> Builder {
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
                            Attribute::Float("theta", layer.theta.into()),
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
                            Attribute::Float("softcap", layer.softcap.into()),
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

    /// Returns zeroed states in f32.
    pub fn fresh_states(&self) -> HashMap<String, Bound> {
        let mut bound = HashMap::new();
        for (index, layer) in LAYERS.iter().enumerate().filter(|(_, layer)| layer.donor.is_none()) {
            let count = Decoder::capacity(layer) * layer.kv_heads * layer.head_dim;
            for part in ["k", "v"] {
                bound.insert(format!("layer.{index}.{part}"), Bound::F32(vec![0.0; count as usize]));
            }
        }
        bound
    }

    /// Binds the step inputs of positions `first..first + rows` in an entry of `most` rows. The
    /// remaining rows are poison.
    pub fn step(&self, bound: &mut HashMap<String, Bound>, first: usize, rows: usize, most: usize) {
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
                    let cached = position - (position - slot).rem_euclid(capacity);
                    let visible =
                        cached >= 0 && (layer.window == 0 || cached > position - layer.window as i64);
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
        let down = vec![Attribute::Float("value", f64::from(1.0 / layer.softcap))];
        scores = b.unary(SW_OP_MUL_SCALAR, scores, down);
        scores = b.unary(SW_OP_TANH, scores, vec![]);
        scores = b.unary(SW_OP_MUL_SCALAR, scores, vec![Attribute::Float("value", layer.softcap.into())]);
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
