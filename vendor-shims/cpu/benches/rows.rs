//! Measures the cost of a decode step of several rows relative to one row, as in the verification
//! of drafts. Whole decoders in the shapes of Gemma 3 270M and 1B with random weights run through
//! the contract, after a check that every row has the same bits as alone.
//!
//! `cargo bench -p shardwright-shim-cpu --bench rows [-- MODEL… FORMAT… [all-logits] [THREADS…]]`,
//! where MODEL is `270m` or `1b` and FORMAT `int8` (a scale per output) or `int4` (one per 32
//! inputs).
//!
//! Steps compute the largest logit of each row, or all logits, after 512 tokens, with a KV cache of
//! 16 bits. A step of several rows is timed between two steps of one row. The benchmark prints the
//! median and the quartiles of the ratios to the mean of the two. It also prints the ratio of the
//! shortest times, which other programs on the machine disturb least.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::time::Instant;

use shardwright_shim_abi::raw::*;
use shardwright_shim_testing::*;

const CONTEXT: u64 = 1024;
const WINDOW: i64 = 512;
const BEFORE: usize = 512;
const MOST: u64 = 16;
const VOCABULARY: u64 = 262_144;
const ROUNDS: usize = 25;

struct Model {
    name: &'static str,
    layers: usize,
    hidden: u64,
    inner: u64,
}

const HEADS: u64 = 4;
const HEAD_DIM: u64 = 256;
const MODELS: [Model; 2] = [
    Model { name: "270m", layers: 18, hidden: 640, inner: 2048 },
    Model { name: "1b", layers: 26, hidden: 1152, inner: 6912 },
];

/// Memory that outlives runs. Allocating outputs in each run would be timed too.
#[derive(Clone, Copy)]
struct Lasting(*mut u8, u64);

thread_local! {
    static OUTPUTS: RefCell<HashMap<u64, Lasting>> = RefCell::new(HashMap::new());
}

impl Lasting {
    fn new(bytes: Vec<u8>) -> Lasting {
        // Allocates words of eight bytes, for their alignment.
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        let place = words.as_mut_ptr().cast::<u8>();
        // SAFETY: the allocation has at least as many bytes.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        std::mem::forget(words);
        Lasting(place, bytes.len() as u64)
    }

    fn floats(values: &[f32]) -> Lasting {
        Lasting::new(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn indices(values: impl Iterator<Item = i32>) -> Lasting {
        Lasting::new(values.flat_map(i32::to_le_bytes).collect())
    }

    fn bits(&self) -> &[u32] {
        // SAFETY: the memory is aligned and leaked, and only runs write to it.
        unsafe { std::slice::from_raw_parts(self.0.cast(), self.1 as usize / 4) }
    }
}

impl Memory for Lasting {
    fn poison(_: u32, bytes: u64) -> Lasting {
        OUTPUTS.with_borrow_mut(|known| {
            *known.entry(bytes).or_insert_with(|| Lasting::new(vec![0x5a; bytes as usize]))
        })
    }

    fn place(&mut self) -> (*mut c_void, u64) {
        (self.0.cast(), self.1)
    }
}

/// Random weights of a decoder: the layers in order, then the head.
struct Weights {
    layers: Vec<[Weight; 7]>,
    head: Weight,
    norm: Weight,
    head_norm: Weight,
}

impl Weights {
    fn new(model: &Model, four: bool) -> Weights {
        // Roughly normal bytes, like rows scaled to their largest value. Their number is prime, so
        // rows differ.
        let uniform = values(4 * 1_048_583, 7, 1.0);
        let pool: Vec<u8> =
            uniform.chunks_exact(4).map(|four| (four.iter().sum::<f32>() * 31.0) as i8 as u8).collect();
        let mut at = 0;
        let mut matrix = |outputs: u64, inputs: u64| {
            let count = (outputs * inputs) as usize / if four { 2 } else { 1 };
            let bytes: Vec<u8> = pool.iter().copied().cycle().skip(at % pool.len()).take(count).collect();
            at += count;
            let size = 0.02 / (inputs as f32).sqrt();
            let (dtype, scales) = match four {
                true => (
                    SW_DTYPE_I4,
                    Scales {
                        kind: SW_QUANTISATION_PER_BLOCK,
                        axis: 1,
                        block: 32,
                        values: vec![16.0 * size; (outputs * inputs / 32) as usize],
                        zero_point: 0,
                        half: true,
                    },
                ),
                false => (
                    SW_DTYPE_I8,
                    Scales {
                        kind: SW_QUANTISATION_PER_CHANNEL,
                        axis: 0,
                        block: 0,
                        values: (0..outputs)
                            .map(|output| size * (1.0 + (output % 7) as f32 / 50.0))
                            .collect(),
                        zero_point: 0,
                        half: false,
                    },
                ),
            };
            Weight::raw("matrix", &[outputs, inputs], dtype, bytes, Some(scales))
        };
        let (hidden, inner) = (model.hidden, model.inner);
        let layers = (0..model.layers)
            .map(|_| {
                [
                    (HEADS * HEAD_DIM, hidden),
                    (HEAD_DIM, hidden),
                    (HEAD_DIM, hidden),
                    (hidden, HEADS * HEAD_DIM),
                    (inner, hidden),
                    (inner, hidden),
                    (hidden, inner),
                ]
                .map(|(outputs, inputs)| matrix(outputs, inputs))
            })
            .collect();
        let vector = |width: u64| weight("norm", &[width], &values(width as usize, width, 0.2), SW_DTYPE_F32);
        Weights {
            layers,
            head: matrix(VOCABULARY, hidden),
            norm: vector(hidden),
            head_norm: vector(HEAD_DIM),
        }
    }
}

fn entry(model: &Model, weights: &Weights, rows: u64) -> Builder {
    let mut b = Builder::new(&format!("decode_{rows}@{CONTEXT}"), SW_ENTRY_DECODE, rows, CONTEXT);
    let mut h = b.input("hidden", SW_ROLE_HIDDEN, &[rows, model.hidden]);
    let positions = b.input("positions", SW_ROLE_POSITIONS, &[rows]);
    let slots = b.input("slots", SW_ROLE_SLOTS, &[rows]);
    let linear = |b: &mut Builder, x, w: &Weight| {
        let tensor = b.constant(w);
        b.node(SW_OP_DYNAMIC_LINEAR, &[x, tensor], &[rows, w.shape()[0]], vec![])
    };
    for (index, layer) in weights.layers.iter().enumerate() {
        let [q, k, v, o, gate, up, down] = layer;
        let full = index % 6 == 5;
        let rope = |b: &mut Builder, x| {
            let x = b.norm(x, Some(&weights.head_norm), HEAD_DIM, 1.0);
            let shape = b.shape(x);
            let attributes = vec![
                Attribute::Integer("head_dim", HEAD_DIM as i64),
                Attribute::Float("theta", if full { 1e6 } else { 1e4 }),
                Attribute::Integer("rotated_pairs", HEAD_DIM as i64 / 2),
                Attribute::Float("factor", 1.0),
            ];
            b.node(SW_OP_ROPE, &[x, positions], &shape, attributes)
        };
        let a = b.norm(h, Some(&weights.norm), model.hidden, 1.0);
        let [q, k, v] = [q, k, v].map(|w| linear(&mut b, a, w));
        let (q, k) = (rope(&mut b, q), rope(&mut b, k));
        let [k, v] = [("k", k), ("v", v)].map(|(part, new)| {
            let name = format!("layer.{index}.{part}");
            b.encode(new, TableEncoding::F16);
            let state = b.input_as(&name, SW_ROLE_STATE, &[CONTEXT, HEAD_DIM], TableEncoding::F16);
            let updated = b.node(SW_OP_STATE_UPDATE, &[state, new, slots], &[CONTEXT, HEAD_DIM], vec![]);
            b.encode(updated, TableEncoding::F16);
            b.output(&name, SW_ROLE_STATE, updated);
            updated
        });
        let attributes = vec![
            Attribute::Integer("heads", HEADS as i64),
            Attribute::Integer("kv_heads", 1),
            Attribute::Integer("head_dim", HEAD_DIM as i64),
            Attribute::Float("scale", 1.0 / 16.0),
            Attribute::Float("softcap", 0.0),
            Attribute::Integer("window", if full { 0 } else { WINDOW }),
            Attribute::Integer("causal", 1),
            Attribute::Text("keys", "state"),
        ];
        let attended = b.node(SW_OP_ATTENTION, &[q, k, v, positions], &[rows, HEADS * HEAD_DIM], attributes);
        let attended = linear(&mut b, attended, o);
        let attended = b.norm(attended, Some(&weights.norm), model.hidden, 1.0);
        h = b.binary(SW_OP_ADD, h, attended);
        let m = b.norm(h, Some(&weights.norm), model.hidden, 1.0);
        let [gate, up] = [gate, up].map(|w| linear(&mut b, m, w));
        let gate = b.unary(SW_OP_GELU, gate, vec![]);
        let gated = b.binary(SW_OP_MUL, gate, up);
        let fed = linear(&mut b, gated, down);
        let fed = b.norm(fed, Some(&weights.norm), model.hidden, 1.0);
        h = b.binary(SW_OP_ADD, h, fed);
    }
    let h = b.norm(h, Some(&weights.norm), model.hidden, 1.0);
    let logits = linear(&mut b, h, &weights.head);
    b.output("logits", SW_ROLE_LOGITS, logits);
    b
}

/// Returns all bindings except the rows of a step.
fn states(model: &Model) -> HashMap<String, Lasting> {
    let mut bound = HashMap::new();
    for index in 0..model.layers {
        for (seed, part) in [(1, "k"), (2, "v")] {
            let values = values((CONTEXT * HEAD_DIM) as usize, 2 * index as u64 + seed, 1.0);
            let Bound::U16(bits) = Bound::store(TableEncoding::F16, &values) else { unreachable!("16 bits") };
            let bytes = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
            bound.insert(format!("layer.{index}.{part}"), Lasting::new(bytes));
        }
    }
    bound
}

/// Binds rows from `first` on, for an entry of `most` rows.
fn bind(model: &Model, bound: &mut HashMap<String, Lasting>, first: usize, most: u64) {
    let hidden: Vec<f32> =
        (0..most as usize).flat_map(|row| values(model.hidden as usize, (first + row) as u64, 2.0)).collect();
    bound.insert("hidden".into(), Lasting::floats(&hidden));
    for name in ["positions", "slots"] {
        bound
            .insert(name.into(), Lasting::indices((0..most as i32).map(|row| (BEFORE + first) as i32 + row)));
    }
}

fn measure(model: &Model, four: bool, wanted: u64, threads: usize) {
    let host = Host::open(shardwright_shim_cpu::shim_entry(), "cpu", &[("threads", &threads.to_string())])
        .expect("opened");
    let artefact = {
        let weights = Weights::new(model, four);
        let entries = [1, MOST].map(|rows| entry(model, &weights, rows).build());
        host.compile(&entries, &[]).expect("compiled").artefact
    };
    let mut loaded = host.load(&artefact, &[]).expect("loaded");
    let [one, several] = [1, MOST].map(|rows| format!("decode_{rows}@{CONTEXT}"));
    let mut alone = states(model);
    let mut together = alone.clone();
    let vocabulary = VOCABULARY as usize;
    let largest = |logits: &[u32]| {
        let value = |bits: &u32| f32::from_bits(*bits);
        let best =
            logits.iter().enumerate().max_by(|a, b| value(a.1).total_cmp(&value(b.1)).then(b.0.cmp(&a.0)));
        best.map(|(index, bits)| (index, *bits)).expect("logits")
    };
    bind(model, &mut together, 0, MOST);
    for rows in [16, 2, 3, 5] {
        loaded.run_for_largest(&several, rows, &mut together, wanted).expect("ran");
        let logits = together["logits"].bits().to_vec();
        for row in 0..rows {
            bind(model, &mut alone, row, 1);
            loaded.run_for_largest(&one, 1, &mut alone, wanted).expect("ran");
            let expected = largest(alone["logits"].bits());
            assert_eq!(largest(&logits[row * vocabulary..][..vocabulary]), expected, "row {row} of {rows}");
        }
    }
    // These runs let the shim find the fastest way to read weights for one row.
    (0..30).for_each(|_| loaded.run_for_largest(&one, 1, &mut alone, wanted).expect("ran"));
    let mut timed = |rows: usize| {
        let (entry, bound) = if rows == 1 { (&one, &mut alone) } else { (&several, &mut together) };
        let begun = Instant::now();
        loaded.run_for_largest(entry, rows, bound, wanted).expect("ran");
        begun.elapsed().as_secs_f64() * 1e3
    };
    let counts = [2, 3, 4, 6, 8, 12, 16];
    let mut found = counts.map(|_| (Vec::new(), f64::MAX));
    let mut shortest = f64::MAX;
    for _ in 0..ROUNDS {
        for (rows, (ratios, least)) in counts.iter().zip(&mut found) {
            let [before, time, after] = [1, *rows, 1].map(&mut timed);
            ratios.push(2.0 * time / (before + after));
            *least = least.min(time);
            shortest = shortest.min(before).min(after);
        }
    }
    let format = if four { "int4" } else { "int8" };
    let format = if wanted == 0 { format!("{format}, all logits,") } else { format.to_owned() };
    println!("rows {:5} {format} {threads} threads   1 row  {shortest:6.2} ms at least", model.name);
    for (rows, (mut ratios, least)) in counts.into_iter().zip(found) {
        ratios.sort_unstable_by(f64::total_cmp);
        let [low, median, high] = [1, 2, 3].map(|quarter| ratios[ratios.len() * quarter / 4]);
        println!(
            "rows {:5} {format} {threads} threads  {rows:2} rows {least:6.2} ms at least, {median:.2} times one row ({low:.2} to {high:.2}), of the shortest {:.2}",
            model.name,
            least / shortest
        );
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let threads: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let threads = if threads.is_empty() { vec![2] } else { threads };
    let wanted = u64::from(!words.iter().any(|word| word == "all-logits"));
    let among = |names: &[&str], name: &str| {
        let named = words.iter().any(|word| names.contains(&word.as_str()));
        !named || words.iter().any(|word| word == name)
    };
    for model in MODELS.iter().filter(|model| among(&["270m", "1b"], model.name)) {
        for format in ["int8", "int4"].into_iter().filter(|format| among(&["int8", "int4"], format)) {
            threads.iter().for_each(|threads| measure(model, format == "int4", wanted, *threads));
        }
    }
}
