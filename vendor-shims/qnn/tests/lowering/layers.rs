//! Decoder layers of Gemma 4's shape in primitive operations. This is the graph that a host sends
//! if `rope`, `attention` and `state-update` are refused.

use shardwright_shim_abi::raw::*;
use shardwright_shim_testing::integers;

use super::tables::{Attribute, Random, Scales, TableEncoding, Tables, Weight, bits_of, over, random_matrix};

/// Extents of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    pub rows: u64,
    pub hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub feed_forward: u64,
    pub per_layer: u64,
    pub context: u64,
    /// Whether it has its own keys. Otherwise it reads a state that another shard writes.
    pub own_keys: bool,
    /// Element type of the matrices.
    pub weights: u32,
    /// Whether matrices are in blocks of 32.
    pub blocks: bool,
}

impl Layer {
    /// Returns a sliding layer of Gemma 4 E2B.
    pub fn sliding(rows: u64, weights: u32) -> Layer {
        Layer {
            rows,
            hidden: 1536,
            heads: 8,
            kv_heads: 1,
            head_dim: 256,
            feed_forward: 6144,
            per_layer: 256,
            context: 512,
            own_keys: true,
            weights,
            blocks: false,
        }
    }

    /// Returns a full layer of Gemma 4 E2B that reads an earlier layer's keys.
    pub fn full(rows: u64, weights: u32) -> Layer {
        Layer { head_dim: 512, feed_forward: 12_288, own_keys: false, ..Layer::sliding(rows, weights) }
    }

    /// Returns a layer with few values in every extent.
    pub fn small(rows: u64, kv_heads: u64) -> Layer {
        Layer {
            rows,
            hidden: 64,
            heads: 4,
            kv_heads,
            head_dim: 32,
            feed_forward: 96,
            per_layer: 32,
            context: 24,
            own_keys: true,
            weights: SW_DTYPE_I8,
            blocks: false,
        }
    }

    /// Builds the entry's tables. If `planned`, weights have no bytes.
    pub fn tables(&self, planned: bool) -> Tables {
        Builder { layer: *self, planned, random: Random(7), tables: Tables::new("decode", self.rows) }.build()
    }
}

struct Builder {
    layer: Layer,
    planned: bool,
    random: Random,
    tables: Tables,
}

const A: TableEncoding = TableEncoding::integers(SW_DTYPE_U16, 8.0 / 32_768.0, 32_768);

impl Builder {
    fn matrix(&mut self, name: &str, shape: [u64; 2]) -> Weight {
        let dtype = self.layer.weights;
        let name = format!("{name}.weight");
        let [outputs, inputs] = shape;
        if self.planned {
            let bytes = (inputs * u64::from(bits_of(dtype))).div_ceil(8) * outputs;
            let scales = match self.layer.blocks {
                true => Scales::blocks(32, vec![0.0; (outputs * inputs / 32) as usize]),
                false => Scales::per_channel(vec![0.0; outputs as usize]),
            };
            return Weight::planned(&name, &shape, dtype, bytes, Some(scales));
        }
        if !self.layer.blocks {
            return random_matrix(&name, shape, dtype, &mut self.random);
        }
        let stored: Vec<i32> = (0..outputs * inputs).map(|_| self.random.integer(-7, 7)).collect();
        let mut scales = Vec::new();
        for _ in 0..outputs {
            let channel = 0.2 / (10.0 * (inputs as f32).sqrt());
            scales.extend(
                (0..inputs / 32)
                    .map(|_| half::f16::from_f32(channel * self.random.integer(5, 16) as f32).to_f32()),
            );
        }
        integers(&name, &shape, &stored, dtype, (SW_QUANTISATION_PER_BLOCK, 32), &scales, 0)
    }

    fn scale(&mut self, name: &str, width: u64) -> Weight {
        let values = self.random.values(width, 0.8, 1.2);
        let weight = Weight::encoded(&format!("{name}.weight"), &[width], over(0.0, 1.2), &values);
        if self.planned { weight.without_bytes() } else { weight }
    }

    fn linear(&mut self, name: &str, x: u32, outputs: u64) -> u32 {
        let inputs = *self.tables.shape(x).last().expect("a matrix");
        let weight = self.matrix(name, [outputs, inputs]);
        self.tables.linear(name, x, weight, A)
    }

    fn norm(&mut self, name: &str, x: u32, width: u64) -> u32 {
        let weight = self.scale(name, width);
        self.tables.norm(name, x, Some(weight), width, over(-5.0, 5.0))
    }

    fn rotate(&mut self, name: &str, x: u32, tables: [u32; 2], store: TableEncoding) -> u32 {
        let shape = self.tables.shape(x);
        let attributes = vec![Attribute::Integer("head_dim", self.layer.head_dim as i64)];
        self.tables.node(name, SW_OP_ROTATE, &[x, tables[0], tables[1]], (&shape, store), attributes)
    }

    fn per_head(&mut self, name: &str, x: u32) -> u32 {
        let Layer { kv_heads, head_dim, .. } = self.layer;
        let slots = self.tables.shape(x)[0];
        let apart = self.tables.reshape(&format!("{name}.reshape-1"), x, &[slots, kv_heads, head_dim]);
        let turned = self.tables.transpose(&format!("{name}.transpose-2"), apart, &[1, 0, 2]);
        self.tables.reshape(&format!("{name}.reshape-3"), turned, &[kv_heads, 1, slots, head_dim])
    }

    fn build(mut self) -> Tables {
        let Layer {
            rows, hidden, heads, kv_heads, head_dim, feed_forward, per_layer, context, own_keys, ..
        } = self.layer;
        let key_width = kv_heads * head_dim;
        let state = TableEncoding::integers(SW_DTYPE_U8, 5.0 / 127.0, 128);
        let unit = over(-1.0, 1.0);
        let t = &mut self.tables;
        let h = t.input("hidden", SW_ROLE_HIDDEN, &[rows, hidden], A);
        let state_k = t.input("state.k", SW_ROLE_STATE, &[context, key_width], state);
        let state_v = t.input("state.v", SW_ROLE_STATE, &[context, key_width], state);
        let p = t.input("per-layer", SW_ROLE_PER_LAYER, &[1, rows, per_layer], A);
        let keys = if own_keys { context + rows } else { context };
        let mask = t.input("mask", SW_ROLE_MASK, &[rows, keys], over(-100.0, 0.0));
        let cos = t.input("rotary-cos", SW_ROLE_ROTARY_COS, &[rows, head_dim / 2], unit);
        let sin = t.input("rotary-sin", SW_ROLE_ROTARY_SIN, &[rows, head_dim / 2], unit);

        let a = self.norm("input-norm", h, hidden);
        let q = self.linear("q-projection", a, heads * head_dim);
        let q = self.norm("q-norm", q, head_dim);
        let q = self.rotate("q-rope", q, [cos, sin], over(-5.0, 5.0));
        let (k, v) = match own_keys {
            true => {
                let k = self.linear("k-projection", a, key_width);
                let k = self.norm("k-norm", k, head_dim);
                let k = self.rotate("k-rope", k, [cos, sin], state);
                let v = self.linear("v-projection", a, key_width);
                let v = self.tables.norm("v-norm", v, None, head_dim, state);
                self.tables.output("state.k", SW_ROLE_STATE_ROWS, k);
                self.tables.output("state.v", SW_ROLE_STATE_ROWS, v);
                (
                    self.tables.concat("state.k.joined", &[state_k, k], 0),
                    self.tables.concat("state.v.joined", &[state_v, v], 0),
                )
            }
            false => (state_k, state_v),
        };
        let group = heads / kv_heads;
        let q = self.tables.reshape("attention.reshape-1", q, &[rows, kv_heads, group, head_dim]);
        let q = self.tables.transpose("attention.transpose-2", q, &[1, 2, 0, 3]);
        let k = self.per_head("attention.k", k);
        let v = self.per_head("attention.v", v);
        let t = &mut self.tables;
        let scores = t.mat_mul("attention.mat-mul-9", q, k, true, over(-40.0, 40.0));
        let masked = t.binary("attention.add-10", SW_OP_ADD, scores, mask, over(-64.0, 40.0));
        let weights = t.unary("attention.softmax-11", SW_OP_SOFTMAX, masked, over(0.0, 1.0), vec![]);
        let mixed = t.mat_mul("attention.mat-mul-12", weights, v, false, over(-5.0, 5.0));
        let mixed = t.transpose("attention.transpose-13", mixed, &[2, 0, 1, 3]);
        let mixed = t.reshape("attention", mixed, &[rows, heads * head_dim]);
        let o = self.linear("o-projection", mixed, hidden);
        let o = self.norm("post-attention-norm", o, hidden);
        let h = self.tables.binary("attention-residual", SW_OP_ADD, h, o, A);

        let m = self.norm("pre-feed-forward-norm", h, hidden);
        let gate = self.linear("gate-projection", m, feed_forward);
        let gate = self.tables.unary("gate-activation", SW_OP_GELU, gate, A, vec![]);
        let up = self.linear("up-projection", m, feed_forward);
        let gated = self.tables.binary("gated", SW_OP_MUL, gate, up, over(-20.0, 20.0));
        let down = self.linear("down-projection", gated, hidden);
        let down = self.norm("post-feed-forward-norm", down, hidden);
        let h = self.tables.binary("feed-forward-residual", SW_OP_ADD, h, down, A);

        let gate = self.linear("per-layer-gate", h, per_layer);
        let gate = self.tables.unary("per-layer-activation", SW_OP_GELU, gate, A, vec![]);
        let own = self.tables.slice("per-layer-slice", p, 0, 0, 1);
        let own = self.tables.reshape("per-layer-input", own, &[rows, per_layer]);
        let gated = self.tables.binary("per-layer-gated", SW_OP_MUL, gate, own, over(-20.0, 20.0));
        let x = self.linear("per-layer-projection", gated, hidden);
        let x = self.norm("post-per-layer-norm", x, hidden);
        let h = self.tables.binary("per-layer-residual", SW_OP_ADD, h, x, A);
        let scalar = Weight::encoded("layer_scalar", &[1], over(0.0, 0.9), &[0.9]);
        let scalar = self.tables.constant(scalar);
        let h = self.tables.binary("layer-scale", SW_OP_MUL, h, scalar, A);
        self.tables.output("hidden.out", SW_ROLE_HIDDEN, h);
        self.tables
    }
}
