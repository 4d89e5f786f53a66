//! Checks that the steps of a program do not allocate: the allocations of a run must not grow with
//! the model.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use shardwright_shim_abi::raw::*;
use support::*;

struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WIDTH: u64 = 64;

/// Builds `count` blocks of attention and a gate, between one input and one output.
fn blocks(count: u64, rows: u64) -> Builder {
    let mut b = Builder::new("encode", SW_ENTRY_ENCODE, rows, rows);
    let mut h = b.input("x", SW_ROLE_GATHERED, &[rows, WIDTH]);
    let positions = b.input("positions", SW_ROLE_POSITIONS, &[rows]);
    let norm_weight = weight("norm", &[WIDTH], &values(WIDTH as usize, 3, 1.0), SW_DTYPE_F32);
    for layer in 0..count {
        let stored: Vec<i32> =
            values((WIDTH * WIDTH) as usize, layer, 127.0).iter().map(|value| *value as i32).collect();
        let matrix = |name: &str| {
            let kind = (SW_QUANTISATION_PER_CHANNEL, 0);
            let name = format!("{layer}.{name}");
            integers(&name, &[WIDTH, WIDTH], &stored, SW_DTYPE_I8, kind, &[1e-3; WIDTH as usize], 0)
        };
        let map = |b: &mut Builder, x, name: &str| {
            let w = b.constant(&matrix(name));
            b.node(SW_OP_DYNAMIC_LINEAR, &[x, w], &[rows, WIDTH], vec![])
        };
        let a = b.norm(h, Some(&norm_weight), WIDTH, 1.0);
        let [q, k, v] = ["q", "k", "v"].map(|name| map(&mut b, a, name));
        let attributes = vec![
            Attribute::Integer("head_dim", 16),
            Attribute::Float("theta", 10000.0),
            Attribute::Integer("rotated_pairs", 8),
            Attribute::Float("factor", 1.0),
        ];
        let q = b.node(SW_OP_ROPE, &[q, positions], &[rows, WIDTH], attributes);
        let attributes = vec![
            Attribute::Integer("heads", 4),
            Attribute::Integer("kv_heads", 4),
            Attribute::Integer("head_dim", 16),
            Attribute::Float("scale", 0.25),
            Attribute::Float("softcap", 0.0),
            Attribute::Integer("window", 0),
            Attribute::Integer("causal", (layer % 2) as i64),
            Attribute::Text("keys", "rows"),
        ];
        let o = b.node(SW_OP_ATTENTION, &[q, k, v, positions], &[rows, WIDTH], attributes);
        let o = map(&mut b, o, "o");
        let o = b.norm(o, Some(&norm_weight), WIDTH, 1.0);
        h = b.binary(SW_OP_ADD, h, o);
        // Blocks with minimums, by blocks of 32 activations: 32 weights of five bits whose numbers
        // share factors, and 16 weights of eight bits.
        let narrow: Vec<i32> = stored.iter().map(|value| value & 31).collect();
        let product = 3.0 * 1025.0 / (1 << 20) as f32;
        let maps = [("gate", 32, &narrow, product), ("up", 16, &stored, 1e-3)];
        let [gate, up] = maps.map(|(name, size, stored, number)| {
            let kind = (SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM, size);
            let numbers = vec![number; (2 * WIDTH * WIDTH / size) as usize];
            let name = format!("{layer}.{name}");
            let w = integers(&name, &[WIDTH, WIDTH], stored, SW_DTYPE_I8, kind, &numbers, 0);
            let w = b.constant(&w);
            b.block_linear(&[h, w], &[rows, WIDTH], 32)
        });
        let gate = b.unary(SW_OP_GELU, gate, vec![]);
        h = b.binary(SW_OP_MUL, gate, up);
    }
    b.output("y", SW_ROLE_TAP, h);
    // Every second attention rounds its operands.
    let attentions = b.nodes.iter_mut().filter(|node| node.op == SW_OP_ATTENTION);
    for node in attentions.step_by(2) {
        node.version = 2;
        node.attributes.push(Attribute::Text("products", "bf16"));
    }
    b
}

/// Returns the number of allocations in ten runs, after some warm-up runs.
fn allocations(count: u64, rows: u64) -> usize {
    let host = open(&[("threads", "2")]).expect("opened");
    let compiled = host.compile(&[blocks(count, rows).build()], &[]).expect("compiled");
    let mut loaded = host.load(&compiled.artefact, &[]).expect("loaded");
    let mut bound = HashMap::from([
        ("x".to_owned(), Bound::F32(values((rows * WIDTH) as usize, 7, 2.0))),
        ("positions".to_owned(), Bound::I32((0..rows as i32).collect())),
    ]);
    let mut run = || loaded.run("encode", rows as usize, &mut bound).expect("ran");
    (0..3).for_each(|_| run());
    let before = COUNT.load(Ordering::Relaxed);
    (0..10).for_each(|_| run());
    COUNT.load(Ordering::Relaxed) - before
}

#[test]
fn what_a_run_allocates_does_not_grow_with_the_model() {
    for rows in [1, 40] {
        let (one, many) = (allocations(1, rows), allocations(12, rows));
        // Occasional allocations by the system's threads stay below one for each of the ten runs.
        assert!(many < one + 10, "{one} in ten runs of one block, {many} of twelve, {rows} rows");
    }
}
