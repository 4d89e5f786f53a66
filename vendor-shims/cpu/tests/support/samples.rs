//! Small work orders for damage tests and for the corpus of the fuzz targets.

use shardwright_shim_abi::raw::*;

use super::*;

/// Builds a sample with many features: a state, attention, rotary, products, copies.
pub fn sample() -> Builder {
    let rows = 3;
    let mut b = Builder::new("decode_3@8", SW_ENTRY_DECODE, rows, 8);
    let x = b.input("hidden", SW_ROLE_HIDDEN, &[rows, 8]);
    let positions = b.input("positions", SW_ROLE_POSITIONS, &[rows]);
    let slots = b.input("slots", SW_ROLE_SLOTS, &[rows]);
    let state = b.input("layer.0.k", SW_ROLE_STATE, &[8, 8]);
    let w = weight("w", &[8, 8], &values(64, 1, 0.7), SW_DTYPE_BF16);
    let norm = weight("norm", &[8], &values(8, 2, 0.7), SW_DTYPE_F16);
    let a = b.norm(x, Some(&norm), 8, 1.0);
    let k = b.linear(a, &w);
    let k = b.node(
        SW_OP_ROPE,
        &[k, positions],
        &[rows, 8],
        vec![
            Attribute::Integer("head_dim", 4),
            Attribute::Float("theta", 1e4),
            Attribute::Integer("rotated_pairs", 2),
            Attribute::Float("factor", 1.0),
        ],
    );
    let updated = b.node(SW_OP_STATE_UPDATE, &[state, k, slots], &[8, 8], vec![]);
    b.output("layer.0.k", SW_ROLE_STATE, updated);
    let o = b.node(
        SW_OP_ATTENTION,
        &[k, updated, updated, positions],
        &[rows, 8],
        vec![
            Attribute::Integer("heads", 2),
            Attribute::Integer("kv_heads", 2),
            Attribute::Integer("head_dim", 4),
            Attribute::Float("scale", 0.5),
            Attribute::Float("softcap", 0.0),
            Attribute::Integer("window", 5),
            Attribute::Integer("causal", 1),
            Attribute::Text("keys", "state"),
        ],
    );
    let h = b.binary(SW_OP_ADD, x, o);
    let t = b.transpose(h, &[1, 0]);
    let square = b.mat_mul(t, h, false);
    let square = b.unary(SW_OP_SOFTMAX, square, vec![]);
    let sum = b.node(SW_OP_REDUCE_SUM, &[square], &[8, 1], vec![]);
    let part = b.slice(sum, 0, 2, 5);
    let joined = b.concat(&[part, part], 1);
    b.output("tap", SW_ROLE_TAP, joined);
    b.output("hidden.out", SW_ROLE_HIDDEN, h);
    b
}

/// Builds [`sample`] with attention in bfloat16.
fn rounded_sample() -> Builder {
    let mut b = sample();
    b.round_attention("bf16");
    b
}

/// Builds [`sample`] with integer weights, activations of 16 bits and a state of 8 bits.
pub fn encoded_sample() -> Builder {
    let mut b = sample();
    let rows = 3;
    let (x, first) = (b.inputs[0].tensor, b.nodes[0].outputs[0]);
    let blocks: Vec<i32> = (0..64).map(|i| i * 5 % 16 - 8).collect();
    let blocks =
        integers("blocks", &[8, 8], &blocks, SW_DTYPE_I4, (SW_QUANTISATION_PER_BLOCK, 3), &[0.25; 24], 0);
    let crumbs: Vec<i32> = (0..64).map(|i| i % 4 - 2).collect();
    let crumbs =
        integers("crumbs", &[8, 8], &crumbs, SW_DTYPE_I2, (SW_QUANTISATION_PER_CHANNEL, 0), &[0.5; 8], 0);
    let scale = integers("scale", &[8], &[9; 8], SW_DTYPE_U16, (SW_QUANTISATION_PER_TENSOR, 0), &[0.1], 2);
    let y = b.linear(x, &blocks);
    let w = b.constant(&crumbs);
    let y = b.node(SW_OP_DYNAMIC_LINEAR, &[y, w], &[rows, 8], vec![]);
    let y = b.norm(y, Some(&scale), 8, 0.0);
    let y = b.unary(SW_OP_ROUND, y, vec![]);
    b.output("rounded", SW_ROLE_TAP, y);
    for tensor in 0..b.tensors.len() as u32 {
        let constant = b.constants.iter().any(|(known, _)| *known == tensor);
        if b.encoding_of(tensor) == TableEncoding::F32 && !constant && tensor != first {
            b.encode(tensor, TableEncoding::integers(SW_DTYPE_U16, 1e-3, 30_000));
        }
    }
    // These are the state, its new rows and the result.
    let update = b.nodes.iter().find(|node| node.op == SW_OP_STATE_UPDATE).expect("an update").clone();
    for tensor in [update.inputs[0], update.inputs[1], update.outputs[0]] {
        b.encode(tensor, TableEncoding::integers(SW_DTYPE_U8, 0.05, 100));
    }
    b.encode(first, TableEncoding::F16);
    b
}

/// Builds a split head, whose logits may be capped.
pub fn head(rows: u64, cap: Option<f32>) -> Builder {
    let (outputs, inputs) = (40, 128);
    let mut b = Builder::new(&format!("decode_{rows}@8"), SW_ENTRY_DECODE, rows, 8);
    let x = b.input("x", SW_ROLE_HIDDEN, &[rows, inputs]);
    let w = b.constant(&bytes("head", outputs, inputs));
    let mut logits = b.node(SW_OP_DYNAMIC_LINEAR, &[x, w], &[rows, outputs], vec![]);
    if let Some(cap) = cap {
        logits = b.unary(SW_OP_SOFTCAP, logits, vec![Attribute::Float("cap", cap.into())]);
    }
    b.output("logits", SW_ROLE_LOGITS, logits);
    b
}

/// Creates a matrix of eight bits with a scale per output.
fn bytes(name: &str, outputs: u64, inputs: u64) -> Weight {
    let stored = values((outputs * inputs) as usize, inputs + outputs, 127.0);
    let stored: Vec<i32> = stored.iter().map(|value| *value as i32).collect();
    let kind = (SW_QUANTISATION_PER_CHANNEL, 0);
    integers(name, &[outputs, inputs], &stored, SW_DTYPE_I8, kind, &vec![0.01; outputs as usize], 0)
}

/// Creates a matrix of four bits with a scale for every 32 inputs.
fn halves(name: &str, outputs: u64, inputs: u64) -> Weight {
    let stored = values((outputs * inputs) as usize, inputs ^ outputs, 7.9);
    let stored: Vec<i32> = stored.iter().map(|value| *value as i32).collect();
    let scales = vec![0.125; (outputs * inputs.div_ceil(32)) as usize];
    let kind = (SW_QUANTISATION_PER_BLOCK, 32);
    integers(name, &[outputs, inputs], &stored, SW_DTYPE_I4, kind, &scales, 0)
}

/// Creates a matrix whose integers are within `least` and `most`, with a zero point, and whose
/// blocks have scales, and minimums if `kind` has them, that share a factor as in GGUF's K-types.
fn shared(
    name: &str,
    [outputs, inputs]: [u64; 2],
    (dtype, least, most, zero): (u32, i32, i32, i32),
    (kind, size): (u32, u64),
) -> Weight {
    let stored = values((outputs * inputs) as usize, inputs + outputs, 1.0);
    let raw = |value: &f32| least + ((value + 1.0) * 0.5 * (most - least) as f32).round() as i32;
    let stored: Vec<i32> = stored.iter().map(raw).collect();
    let kinds = if kind == SW_QUANTISATION_PER_BLOCK { 1 } else { 2 };
    let blocks = (kinds * outputs * inputs.div_ceil(size)) as usize;
    // Most products have too many digits for a binary16.
    let numbers: Vec<f32> =
        (0..blocks).map(|block| (1 + block % 63) as f32 * (1025.0 / (1 << 20) as f32)).collect();
    integers(name, &[outputs, inputs], &stored, dtype, (kind, size), &numbers, zero)
}

/// Creates a matrix like one of GGUF's type `Q4_K`: 32 unsigned values of four bits with a minimum.
fn q4k(name: &str, outputs: u64, inputs: u64) -> Weight {
    let blocks = (SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM, 32);
    shared(name, [outputs, inputs], (SW_DTYPE_I4, -8, 7, -8), blocks)
}

/// Creates a matrix like one of GGUF's type `Q5_K`: 32 unsigned values of five bits with a minimum.
fn q5k(name: &str, outputs: u64, inputs: u64) -> Weight {
    let blocks = (SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM, 32);
    shared(name, [outputs, inputs], (SW_DTYPE_I8, 0, 31, 0), blocks)
}

/// Creates a matrix like one of GGUF's type `Q6_K`: 16 signed values of six bits.
fn q6k(name: &str, outputs: u64, inputs: u64) -> Weight {
    shared(name, [outputs, inputs], (SW_DTYPE_I8, -32, 31, 0), (SW_QUANTISATION_PER_BLOCK, 16))
}

/// Builds a sample with f32 only: a norm, a gate, a sum.
pub fn floats() -> Builder {
    let (rows, width, inner) = (9, 20, 28);
    let mut b = Builder::new("encode", SW_ENTRY_ENCODE, rows, rows);
    let x = b.input("x", SW_ROLE_GATHERED, &[rows, width]);
    let matrix = |name: &str, outputs: u64, inputs: u64| {
        weight(name, &[outputs, inputs], &values((outputs * inputs) as usize, inputs, 0.4), SW_DTYPE_F32)
    };
    let norm = weight("norm", &[width], &values(width as usize, 4, 0.9), SW_DTYPE_F32);
    let a = b.norm(x, Some(&norm), width, 1.0);
    let gate = b.linear(a, &matrix("gate", inner, width));
    let gate = b.unary(SW_OP_GELU, gate, vec![]);
    let up = b.linear(a, &matrix("up", inner, width));
    let gated = b.binary(SW_OP_MUL, gate, up);
    let down = b.linear(gated, &matrix("down", width, inner));
    let sum = b.binary(SW_OP_ADD, x, down);
    b.output("hidden.out", SW_ROLE_HIDDEN, sum);
    b
}

/// Builds a sample with integers only: maps of the same, many rows, quantised whole or in blocks.
/// The maps have `width` inputs and as many outputs as listed.
fn dynamic(
    of: fn(&str, u64, u64) -> Weight,
    in_blocks: bool,
    width: u64,
    [outputs, others]: [u64; 2],
) -> Builder {
    let rows = 11;
    let mut b = Builder::new("encode", SW_ENTRY_ENCODE, rows, rows);
    let x = b.input("x", SW_ROLE_GATHERED, &[rows, width]);
    let map = |b: &mut Builder, x, name: &str, outputs| {
        let inputs = b.shape(x)[1];
        let w = b.constant(&of(name, outputs, inputs));
        match in_blocks {
            true => b.block_linear(&[x, w], &[rows, outputs], 32),
            false => b.node(SW_OP_DYNAMIC_LINEAR, &[x, w], &[rows, outputs], vec![]),
        }
    };
    let first = map(&mut b, x, "first", outputs);
    let second = map(&mut b, x, "second", others);
    let third = map(&mut b, second, "third", outputs);
    let sum = b.binary(SW_OP_ADD, first, third);
    b.output("tap", SW_ROLE_TAP, second);
    b.output("hidden.out", SW_ROLE_HIDDEN, sum);
    b
}

/// Builds a sample with the operations of towers, and with tensors that have several rows per row,
/// or one for several.
pub fn tower() -> Builder {
    let (rows, width) = (6, 8);
    let mut b = Builder::new("encode", SW_ENTRY_ENCODE, rows, rows);
    let frames = b.input("features", SW_ROLE_FEATURES, &[2 * rows, 4]);
    let valid = b.input("valid", SW_ROLE_VALID, &[2 * rows, 1]);
    let grid = ["columns", "rows"].map(|name| b.input(name, SW_ROLE_GRID, &[rows]));
    let float = |b: &mut Builder, name: &str, shape: &[u64]| {
        let data = values(shape.iter().product::<u64>() as usize, shape[0], 0.9);
        b.constant(&weight(name, shape, &data, SW_DTYPE_F32))
    };
    let x = b.binary(SW_OP_MUL, frames, valid);
    let x = b.reshape(x, &[2 * rows, 4, 1]);
    let planes = float(&mut b, "planes", &[4, 9]);
    let window = [("kernel", 3), ("stride", 2), ("padding", 1)];
    let window = window.map(|(name, value)| Attribute::Integer(name, value)).to_vec();
    let x = b.node(SW_OP_CONVOLUTION, &[x, planes], &[rows, 2, 4], window);
    let (gain, shift) = (float(&mut b, "gain", &[4]), float(&mut b, "shift", &[4]));
    let eps = vec![Attribute::Float("eps", 1e-3)];
    let x = b.node(SW_OP_LAYER_NORM, &[x, gain, shift], &[rows, 2, 4], eps);
    let x = b.reshape(x, &[rows, width]);
    let heads = vec![Attribute::Integer("head_dim", 4), Attribute::Float("theta", 100.0)];
    let q = b.node(SW_OP_AXIAL_ROPE, &[x, grid[0], grid[1]], &[rows, width], heads);
    let by_distance = b.slice(x, 1, 0, 6);
    let attributes = vec![
        Attribute::Integer("heads", 2),
        Attribute::Integer("head_dim", 4),
        Attribute::Float("softcap", 5.0),
    ];
    let x = b.node(SW_OP_RELATIVE_ATTENTION, &[q, x, x, by_distance], &[rows, width], attributes);
    let kernel = float(&mut b, "kernel", &[width, 3]);
    let x = b.node(SW_OP_DEPTHWISE_CONVOLUTION, &[x, kernel], &[rows, width], vec![]);
    let [low, high] = [("low", -0.5), ("high", 0.5)]
        .map(|(name, bound)| b.constant(&weight(name, &[1], &[bound], SW_DTYPE_F32)));
    let x = b.node(SW_OP_CLAMP, &[x, low, high], &[rows, width], vec![]);
    let x = b.node(SW_OP_GLU, &[x], &[rows, width / 2], vec![]);
    let x = b.node(SW_OP_MEAN_ROWS, &[x], &[3, width / 2], vec![Attribute::Integer("rows", 2)]);
    let x = b.unary(SW_OP_SIGMOID, x, vec![]);
    b.output("soft", SW_ROLE_SOFT_ROWS, x);
    b
}

/// Returns the name and the artefact of every sample of the corpus.
pub fn artefacts() -> Vec<(&'static str, Region)> {
    let host = open(&[]).expect("opened");
    [
        ("f32", floats()),
        ("w8-dynamic", dynamic(bytes, false, 40, [40, 24])),
        ("w8-dynamic-block32", dynamic(bytes, true, 40, [40, 24])),
        ("w4-block32", dynamic(halves, false, 40, [40, 24])),
        // More than 256 inputs have two groups of blocks.
        ("q4k", dynamic(q4k, true, 300, [16, 8])),
        ("q5k", dynamic(q5k, true, 288, [16, 32])),
        ("q6k", dynamic(q6k, true, 272, [16, 16])),
        ("split-head", head(1, None)),
        ("capped-head", head(3, Some(30.0))),
        ("attention-state", sample()),
        ("attention-bf16", rounded_sample()),
        ("encoded", encoded_sample()),
        ("tower", tower()),
    ]
    .map(|(name, order)| (name, host.compile(&[order.build()], &[]).expect("compiled").artefact))
    .into()
}
