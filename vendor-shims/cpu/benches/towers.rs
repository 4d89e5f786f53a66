//! Prints the time of one layer of the towers on this machine, in the sizes of Gemma 4: a picture
//! of 2,520 patches and a clip of 750 rows, with weights of f32 and of bytes with rows quantised as
//! they come.
//!
//! `cargo bench -p shardwright-shim-cpu --bench towers [-- THREADS…]`

use std::collections::HashMap;
use std::time::Instant;

use shardwright_shim_abi::raw::*;
use shardwright_shim_cpu::artefact::Artefact;
use shardwright_shim_testing::*;

/// A layer under construction, and its multiply-adds.
struct Layer {
    b: Builder,
    bytes: bool,
    rows: u64,
    count: u64,
    work: u64,
}

impl Layer {
    fn new(rows: u64, bytes: bool) -> Layer {
        Layer { b: Builder::new("encode", SW_ENTRY_ENCODE, rows, rows), bytes, rows, count: 0, work: 0 }
    }

    fn name(&mut self) -> String {
        self.count += 1;
        format!("w{}", self.count)
    }

    fn floats(&mut self, shape: &[u64], scale: f32) -> u32 {
        let name = self.name();
        let count = shape.iter().product::<u64>() as usize;
        self.b.constant(&weight(&name, shape, &values(count, self.count, scale), SW_DTYPE_F32))
    }

    fn clipped(&mut self, x: u32, outputs: u64) -> u32 {
        let x = self.clamp(x, 3.0);
        let inputs = self.b.shape(x)[1];
        self.work += self.rows * inputs * outputs;
        let scale = 1.0 / (inputs as f32).sqrt();
        let (op, w) = if self.bytes {
            let stored = values((inputs * outputs) as usize, self.count, 127.0);
            let stored: Vec<i32> = stored.iter().map(|value| *value as i32).collect();
            let (name, kind) = (self.name(), (SW_QUANTISATION_PER_CHANNEL, 0));
            let scales = vec![scale / 127.0; outputs as usize];
            let w = integers(&name, &[outputs, inputs], &stored, SW_DTYPE_I8, kind, &scales, 0);
            (SW_OP_DYNAMIC_LINEAR, self.b.constant(&w))
        } else {
            (SW_OP_LINEAR, self.floats(&[outputs, inputs], scale))
        };
        let y = self.b.node(op, &[x, w], &[self.rows, outputs], vec![]);
        self.clamp(y, 4.0)
    }

    fn clamp(&mut self, x: u32, bound: f32) -> u32 {
        let [low, high] = [-bound, bound].map(|bound| {
            let name = self.name();
            self.b.constant(&weight(&name, &[1], &[bound], SW_DTYPE_F32))
        });
        let shape = self.b.shape(x);
        self.b.node(SW_OP_CLAMP, &[x, low, high], &shape, vec![])
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
}

/// 12 heads of 64, all patches seeing each other, and a gate of 3,072.
fn vision(bytes: bool) -> Layer {
    let (rows, hidden, heads, d) = (2520, 768, 12, 64);
    let mut t = Layer::new(rows, bytes);
    let x = t.b.input("x", SW_ROLE_HIDDEN, &[rows, hidden]);
    let grid = ["columns", "rows"].map(|name| t.b.input(name, SW_ROLE_GRID, &[rows]));
    let positions = t.b.input("positions", SW_ROLE_POSITIONS, &[rows]);
    let a = t.norm(x, hidden);
    let [q, k, v] = [(); 3].map(|()| t.clipped(a, heads * d));
    let [q, k] = [q, k].map(|of| {
        let of = t.norm(of, d);
        let attributes = vec![Attribute::Integer("head_dim", d as i64), Attribute::Float("theta", 100.0)];
        t.b.node(SW_OP_AXIAL_ROPE, &[of, grid[0], grid[1]], &[rows, heads * d], attributes)
    });
    let v = t.b.norm(v, None, d, 0.0);
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
    t.work += 2 * rows * rows * heads * d;
    let mixed = t.clipped(mixed, hidden);
    let mixed = t.norm(mixed, hidden);
    let x = t.b.binary(SW_OP_ADD, x, mixed);
    let m = t.norm(x, hidden);
    let gate = t.clipped(m, 3072);
    let gate = t.b.unary(SW_OP_GELU, gate, vec![]);
    let up = t.clipped(m, 3072);
    let gated = t.b.binary(SW_OP_MUL, gate, up);
    let down = t.clipped(gated, hidden);
    let down = t.norm(down, hidden);
    let x = t.b.binary(SW_OP_ADD, x, down);
    t.b.output("out", SW_ROLE_HIDDEN, x);
    t
}

/// Half a feed-forward of 4,096, attention of 8 heads of 128 over 12 rows, a convolution along 5
/// rows, and the other half.
fn audio(bytes: bool) -> Layer {
    let (rows, hidden, heads, d) = (750, 1024, 8, 128);
    let mut t = Layer::new(rows, bytes);
    let mut x = t.b.input("x", SW_ROLE_HIDDEN, &[rows, hidden]);
    let feed_forward = |t: &mut Layer, x: u32| {
        let m = t.norm(x, hidden);
        let m = t.clipped(m, 4 * hidden);
        let m = t.b.unary(SW_OP_SILU, m, vec![]);
        let m = t.clipped(m, hidden);
        let m = t.norm(m, hidden);
        let m = t.b.unary(SW_OP_MUL_SCALAR, m, vec![Attribute::Float("value", 0.5)]);
        t.b.binary(SW_OP_ADD, x, m)
    };
    x = feed_forward(&mut t, x);
    let a = t.norm(x, hidden);
    let [q, k, v] = [(); 3].map(|()| t.clipped(a, heads * d));
    let scale = t.floats(&[hidden], 0.1);
    let q = t.b.binary(SW_OP_MUL, q, scale);
    let k = t.b.unary(SW_OP_MUL_SCALAR, k, vec![Attribute::Float("value", 1.9)]);
    let distances = t.floats(&[12, heads * d], 1.0);
    let attributes = vec![
        Attribute::Integer("heads", heads as i64),
        Attribute::Integer("head_dim", d as i64),
        Attribute::Float("softcap", 50.0),
    ];
    let mixed = t.b.node(SW_OP_RELATIVE_ATTENTION, &[q, k, v, distances], &[rows, heads * d], attributes);
    t.work += 3 * rows * 12 * heads * d;
    let mixed = t.clipped(mixed, hidden);
    let mixed = t.norm(mixed, hidden);
    x = t.b.binary(SW_OP_ADD, x, mixed);
    let c = t.norm(x, hidden);
    let c = t.clipped(c, 2 * hidden);
    let c = t.b.node(SW_OP_GLU, &[c], &[rows, hidden], vec![]);
    let kernel = t.floats(&[hidden, 5], 0.5);
    let c = t.b.node(SW_OP_DEPTHWISE_CONVOLUTION, &[c, kernel], &[rows, hidden], vec![]);
    let c = t.norm(c, hidden);
    let c = t.b.unary(SW_OP_SILU, c, vec![]);
    let c = t.clipped(c, hidden);
    x = t.b.binary(SW_OP_ADD, x, c);
    x = feed_forward(&mut t, x);
    let x = t.norm(x, hidden);
    t.b.output("out", SW_ROLE_HIDDEN, x);
    t
}

/// The two convolutions before the layers, over 3,000 frames of 128 bins.
fn frames(_: bool) -> Layer {
    let rows = 750;
    let mut t = Layer::new(rows, false);
    let features = t.b.input("x", SW_ROLE_FEATURES, &[4 * rows, 128]);
    let mut x = t.b.reshape(features, &[4 * rows, 128, 1]);
    for (rate, width, inputs, channels) in [(2, 64, 1, 128), (1, 32, 128, 32)] {
        let w = t.floats(&[channels, inputs * 9], 0.1);
        let attributes = ["kernel", "stride", "padding"].into_iter().zip([3, 2, 1]);
        let attributes = attributes.map(|(name, value)| Attribute::Integer(name, value)).collect();
        let shape = [rate * rows, width, channels];
        x = t.b.node(SW_OP_CONVOLUTION, &[x, w], &shape, attributes);
        t.work += rate * rows * width * channels * inputs * 9;
        let w = t.floats(&[channels], 1.0);
        x = t.b.node(SW_OP_LAYER_NORM, &[x, w], &shape, vec![Attribute::Float("eps", 1e-6)]);
        x = t.b.unary(SW_OP_MAX_SCALAR, x, vec![Attribute::Float("value", 0.0)]);
    }
    t.b.output("out", SW_ROLE_HIDDEN, x);
    t
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| word.parse::<u16>().is_ok()).collect();
    let threads = if asked.is_empty() { vec!["1".to_owned(), "2".to_owned()] } else { asked };
    let host = Host::open(shardwright_shim_cpu::shim_entry(), "cpu", &[]).expect("opened");
    type Make = fn(bool) -> Layer;
    let layers: [(&str, Make); 3] = [("vision", vision), ("audio", audio), ("frames", frames)];
    for (name, make) in layers {
        for bytes in [false, true] {
            if name == "frames" && bytes {
                continue;
            }
            let Layer { b, work, rows, .. } = make(bytes);
            let artefact = host.compile(&[b.build()], &[]).expect("compiled").artefact;
            let program = Artefact::read(artefact.bytes()).expect("readable").program;
            let arena = program.entries[0].arena as f64 * 4e-6;
            println!("{name:7} activations take {arena:.1} MB");
            for threads in &threads {
                let mut loaded = host.load(&artefact, &[("threads", threads)]).expect("loaded");
                let column =
                    |divisor: i32| Bound::I32((0..rows as i32).map(|row| row / divisor % 60).collect());
                let count = b.shape(b.inputs[0].tensor).iter().product::<u64>() as usize;
                let mut bound = HashMap::from([
                    ("x".to_owned(), Bound::F32(values(count, 1, 1.0))),
                    ("columns".to_owned(), column(1)),
                    ("rows".to_owned(), column(60)),
                    ("positions".to_owned(), Bound::I32((0..rows as i32).collect())),
                ]);
                let mut best = f64::INFINITY;
                for _ in 0..4 {
                    let start = Instant::now();
                    loaded.run("encode", rows as usize, &mut bound).expect("ran");
                    best = best.min(start.elapsed().as_secs_f64());
                }
                let weights = if bytes { "bytes" } else { "f32" };
                let rate = 2.0 * work as f64 / best / 1e9;
                println!(
                    "{name:7} {weights:6} {threads:>2} threads {:8.1} ms {rate:7.1} GFLOP/s",
                    best * 1e3
                );
            }
        }
    }
}
