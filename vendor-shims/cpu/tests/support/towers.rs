//! Small towers for pictures and sounds.

use shardwright_shim_abi::raw::*;

use super::*;

const CHANNEL: (u32, u64) = (SW_QUANTISATION_PER_CHANNEL, 0);

/// Storage format of matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Matrices {
    /// f32
    Float,
    /// Eight bits, widened to f32.
    Bytes,
    /// Eight bits, with rows quantised at run time.
    Dynamic,
}

/// A graph under construction with its own weights.
struct Tower {
    b: Builder,
    matrices: Matrices,
    /// Whether gates, clamps, means and convolutions along rows are decomposed into primitives.
    decomposed: bool,
    seed: u64,
}

impl Tower {
    fn new(rows: u64, matrices: Matrices, decomposed: bool) -> Tower {
        let b = Builder::new(&format!("encode_{rows}"), SW_ENTRY_ENCODE, rows, rows);
        Tower { b, matrices, decomposed, seed: 0 }
    }

    fn floats(&mut self, shape: &[u64], scale: f32) -> u32 {
        self.seed += 1;
        let count = shape.iter().product::<u64>() as usize;
        let name = format!("w{}", self.seed);
        self.b.constant(&weight(&name, shape, &values(count, self.seed, scale), SW_DTYPE_F32))
    }

    fn matrix(&mut self, outputs: u64, inputs: u64) -> u32 {
        if self.matrices == Matrices::Float {
            return self.floats(&[outputs, inputs], 0.4);
        }
        self.seed += 1;
        let stored = values((outputs * inputs) as usize, self.seed, 127.0);
        let stored: Vec<i32> = stored.iter().map(|value| *value as i32).collect();
        let (name, scales) = (format!("w{}", self.seed), vec![3e-3; outputs as usize]);
        self.b.constant(&integers(&name, &[outputs, inputs], &stored, SW_DTYPE_I8, CHANNEL, &scales, 0))
    }

    fn linear(&mut self, x: u32, outputs: u64) -> u32 {
        let mut shape = self.b.shape(x);
        let last = shape.len() - 1;
        let w = self.matrix(outputs, shape[last]);
        shape[last] = outputs;
        let op = if self.matrices == Matrices::Dynamic { SW_OP_DYNAMIC_LINEAR } else { SW_OP_LINEAR };
        self.b.node(op, &[x, w], &shape, vec![])
    }

    /// Adds a linear layer between two clamps, each of which limits some values.
    fn clipped(&mut self, x: u32, outputs: u64) -> u32 {
        let x = self.clamp(x, [-0.7, 0.9]);
        let y = self.linear(x, outputs);
        self.clamp(y, [-0.8, 0.6])
    }

    fn clamp(&mut self, x: u32, bounds: [f32; 2]) -> u32 {
        let [low, high] = bounds.map(|bound| {
            self.seed += 1;
            self.b.constant(&weight(&format!("w{}", self.seed), &[1], &[bound], SW_DTYPE_F32))
        });
        if self.decomposed {
            let above = self.b.binary(SW_OP_MAX, x, low);
            return self.b.binary(SW_OP_MIN, above, high);
        }
        let shape = self.b.shape(x);
        self.b.node(SW_OP_CLAMP, &[x, low, high], &shape, vec![])
    }

    fn glu(&mut self, x: u32) -> u32 {
        let [rows, width] = self.b.shape(x)[..] else { panic!("rows") };
        if self.decomposed {
            let up = self.b.slice(x, 1, 0, width / 2);
            let gate = self.b.slice(x, 1, width / 2, width);
            let gate = self.b.unary(SW_OP_SIGMOID, gate, vec![]);
            return self.b.binary(SW_OP_MUL, up, gate);
        }
        self.b.node(SW_OP_GLU, &[x], &[rows, width / 2], vec![])
    }

    fn depthwise(&mut self, x: u32, kernel: u64) -> u32 {
        let [rows, width] = self.b.shape(x)[..] else { panic!("rows") };
        let weight = self.floats(&[width, kernel], 0.8);
        if !self.decomposed {
            return self.b.node(SW_OP_DEPTHWISE_CONVOLUTION, &[x, weight], &[rows, width], vec![]);
        }
        let before = self.b.slice(x, 0, 0, kernel - 1);
        let before = self.b.unary(SW_OP_MUL_SCALAR, before, vec![Attribute::Float("value", 0.0)]);
        let moved = self.b.concat(&[before, x], 0);
        let places = (0..kernel).map(|place| {
            let run = self.b.slice(moved, 0, place, place + rows);
            let column = self.b.slice(weight, 1, place, place + 1);
            let column = self.b.reshape(column, &[1, width]);
            self.b.binary(SW_OP_MUL, run, column)
        });
        let places: Vec<u32> = places.collect();
        places.into_iter().reduce(|sum, place| self.b.binary(SW_OP_ADD, sum, place)).expect("a place")
    }

    fn mean_rows(&mut self, x: u32, of: u64) -> u32 {
        let [rows, width] = self.b.shape(x)[..] else { panic!("rows") };
        if self.decomposed {
            let groups = self.b.reshape(x, &[rows / of, of, width]);
            let last = self.b.transpose(groups, &[0, 2, 1]);
            let mean = self.b.node(SW_OP_REDUCE_MEAN, &[last], &[rows / of, width, 1], vec![]);
            return self.b.reshape(mean, &[rows / of, width]);
        }
        let attributes = vec![Attribute::Integer("rows", of as i64)];
        self.b.node(SW_OP_MEAN_ROWS, &[x], &[rows / of, width], attributes)
    }

    fn norm(&mut self, x: u32, width: u64) -> u32 {
        let w = self.floats(&[width], 1.0);
        let attributes = vec![
            Attribute::Integer("width", width as i64),
            Attribute::Float("eps", 1e-6),
            Attribute::Float("weight_offset", 0.0),
        ];
        let shape = self.b.shape(x);
        self.b.node(SW_OP_RMS_NORM, &[x, w], &shape, attributes)
    }

    fn add(&mut self, a: u32, b: u32) -> u32 {
        self.b.binary(SW_OP_ADD, a, b)
    }
}

const POOLED: u64 = 3;

/// Builds a tower from patches to means of `POOLED` patches, through one layer.
pub fn vision(rows: u64, matrices: Matrices, decomposed: bool) -> Builder {
    let (hidden, heads, d) = (24, 2, 12);
    let mut t = Tower::new(rows, matrices, decomposed);
    let patches = t.b.input("features", SW_ROLE_FEATURES, &[rows, 10]);
    let grid = ["columns", "rows"].map(|name| t.b.input(name, SW_ROLE_GRID, &[rows]));
    let gathered = t.b.input("gathered", SW_ROLE_GATHERED_BY_GRID, &[rows, hidden]);
    let positions = t.b.input("positions", SW_ROLE_POSITIONS, &[rows]);
    let x = t.b.unary(SW_OP_ADD_SCALAR, patches, vec![Attribute::Float("value", -0.5)]);
    let x = t.linear(x, hidden);
    let mut x = t.add(x, gathered);
    for _ in 0..2 {
        let a = t.norm(x, hidden);
        let [q, k, v] = [(); 3].map(|()| t.clipped(a, heads * d));
        let [q, k] = [q, k].map(|of| {
            let of = t.norm(of, d);
            let attributes = vec![Attribute::Integer("head_dim", d as i64), Attribute::Float("theta", 100.0)];
            t.b.node(SW_OP_AXIAL_ROPE, &[of, grid[0], grid[1]], &[rows, heads * d], attributes)
        });
        let attributes = vec![
            Attribute::Integer("heads", heads as i64),
            Attribute::Integer("kv_heads", heads as i64),
            Attribute::Integer("head_dim", d as i64),
            Attribute::Float("scale", 1.0),
            Attribute::Float("softcap", 0.0),
            Attribute::Integer("window", 0),
            Attribute::Integer("causal", 0),
            Attribute::Text("keys", "rows"),
        ];
        let mixed = t.b.node(SW_OP_ATTENTION, &[q, k, v, positions], &[rows, heads * d], attributes);
        let mixed = t.clipped(mixed, hidden);
        let mixed = t.norm(mixed, hidden);
        x = t.add(x, mixed);
        let m = t.norm(x, hidden);
        let gate = t.clipped(m, 40);
        let gate = t.b.unary(SW_OP_GELU, gate, vec![]);
        let up = t.clipped(m, 40);
        let gated = t.b.binary(SW_OP_MUL, gate, up);
        let down = t.clipped(gated, hidden);
        let down = t.norm(down, hidden);
        x = t.add(x, down);
    }
    t.b.output("hidden", SW_ROLE_HIDDEN, x);
    let pooled = t.mean_rows(x, POOLED);
    let (bias, scale) = (t.floats(&[hidden], 1.0), t.floats(&[hidden], 1.0));
    let pooled = t.b.binary(SW_OP_SUB, pooled, bias);
    let pooled = t.b.binary(SW_OP_MUL, pooled, scale);
    let soft = t.linear(pooled, 7);
    t.b.output("soft", SW_ROLE_SOFT_ROWS, soft);
    t.b
}

/// Builds a tower with four frames per row: two convolutions and one conformer layer.
pub fn audio(rows: u64, matrices: Matrices, decomposed: bool) -> Builder {
    let (hidden, heads, d, bins) = (20, 2, 10, 8);
    let mut t = Tower::new(rows, matrices, decomposed);
    let frames = t.b.input("features", SW_ROLE_FEATURES, &[4 * rows, bins]);
    let mask = t.b.input("valid4", SW_ROLE_VALID, &[4 * rows, 1]);
    let half = t.b.input("valid2", SW_ROLE_VALID, &[2 * rows, 1]);
    let x = t.b.binary(SW_OP_MUL, frames, mask);
    let mut x = t.b.reshape(x, &[4 * rows, bins, 1]);
    for (rate, channels) in [(2, 5), (1, 6)] {
        if rate == 1 {
            let mask = t.b.reshape(half, &[2 * rows, 1, 1]);
            x = t.b.binary(SW_OP_MUL, x, mask);
        }
        let shape = t.b.shape(x);
        let w = t.matrix(channels, shape[2] * 9);
        let attributes = vec![
            Attribute::Integer("kernel", 3),
            Attribute::Integer("stride", 2),
            Attribute::Integer("padding", 1),
        ];
        let shape = [rate * rows, shape[1] / 2, channels];
        x = t.b.node(SW_OP_CONVOLUTION, &[x, w], &shape, attributes);
        let (w, bias) = (t.floats(&[channels], 1.0), t.floats(&[channels], 0.3));
        let operands = if rate == 1 { vec![x, w, bias] } else { vec![x, w] };
        x = t.b.node(SW_OP_LAYER_NORM, &operands, &shape, vec![Attribute::Float("eps", 1e-3)]);
        x = t.b.unary(SW_OP_MAX_SCALAR, x, vec![Attribute::Float("value", 0.0)]);
    }
    let x = t.b.reshape(x, &[rows, bins / 4 * 6]);
    let mut x = t.linear(x, hidden);
    t.b.output("embedded", SW_ROLE_HIDDEN, x);
    for _ in 0..2 {
        let a = t.norm(x, hidden);
        let m = t.clipped(a, 30);
        let m = t.b.unary(SW_OP_SILU, m, vec![]);
        let m = t.clipped(m, hidden);
        let m = t.b.unary(SW_OP_MUL_SCALAR, m, vec![Attribute::Float("value", 0.5)]);
        x = t.add(x, m);
        let a = t.norm(x, hidden);
        let [q, k, v] = [(); 3].map(|()| t.clipped(a, heads * d));
        let by_distance = t.linear(q, 5 * heads);
        let attributes = vec![
            Attribute::Integer("heads", heads as i64),
            Attribute::Integer("head_dim", d as i64),
            Attribute::Float("softcap", 5.0),
        ];
        let operands = [q, k, v, by_distance];
        let mixed = t.b.node(SW_OP_RELATIVE_ATTENTION, &operands, &[rows, heads * d], attributes);
        let mixed = t.clipped(mixed, hidden);
        x = t.add(x, mixed);
        let c = t.norm(x, hidden);
        let c = t.clipped(c, 2 * hidden);
        let c = t.glu(c);
        let c = t.depthwise(c, 5);
        let c = t.norm(c, hidden);
        let c = t.b.unary(SW_OP_SILU, c, vec![]);
        let c = t.clipped(c, hidden);
        x = t.add(x, c);
    }
    let x = t.linear(x, 7);
    let x = t.b.unary(SW_OP_SIGMOID, x, vec![]);
    t.b.output("soft", SW_ROLE_SOFT_ROWS, x);
    t.b
}
