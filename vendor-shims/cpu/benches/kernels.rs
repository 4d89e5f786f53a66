//! Prints the throughput of the kernels on this machine, after checking that they produce the same
//! bits as the scalar twin.
//!
//! `cargo bench -p shardwright-shim-cpu --bench kernels [-- PART… [THREADS…]]`, where PART is
//! `peak`, `read`, `integer`, `head`, `linear` or `attention`.
//!
//! `integer` multiplies the matrices of one token, in the shapes of Gemma 3 270M and 1B and in
//! memory of their size, so that one row is memory-bound as in a model. The bandwidth of the same
//! memory is measured before and after.
//!
//! `head` finds the top-k logits of split heads, and compares with computing all logits, split and
//! unsplit.
//!
//! Timings are medians of wall-clock time and assume an otherwise idle machine.
//!
//! The bandwidth of one row is bound by memory: compare it with the line `read`. The rate of many
//! rows is bound by the multiply-add units: compare it with the lines `peak`, which use registers
//! alone. AMX's tiles have no such line.

use std::hint::black_box;
use std::time::Instant;

use shardwright_shim_cpu::kernels::attention::{
    Heads, Operands, Products, Visible, attention, attention_rounded, scratch_rounded, scratch_values,
};
use shardwright_shim_cpu::kernels::encoding::{Element, ElementEncoding, Stored};
use shardwright_shim_cpu::kernels::integer::split::{
    Head, Split, pack_high, pack_low, panel_bytes, row_bytes, scratch_values as split_scratch, split_linear,
};
use shardwright_shim_cpu::kernels::integer::{
    Geometry, IntegerType, Map, Streams, Tiles, integer_linear, pack_tiles, scratch_values as integer_scratch,
};
use shardwright_shim_cpu::kernels::linear::{
    Finish, Numbers, PanelData, Panels, Scales, linear, packed_elements,
};
use shardwright_shim_cpu::pool::Pool;
use shardwright_shim_cpu::simd::dot::DotLevel;
use shardwright_shim_cpu::simd::{LANES, Level, peak};

fn values(count: usize) -> Vec<f32> {
    shardwright_shim_testing::values(count, count as u64, 1.0)
}

/// Returns the median of several timings, in seconds of wall-clock time. CPU time would suit a busy
/// machine, but it is counted in ticks, which are too coarse for the shortest timings.
fn median(mut run: impl FnMut()) -> f64 {
    let first = Instant::now();
    run();
    let times = (0.02 / first.elapsed().as_secs_f64()).clamp(1.0, 1000.0) as usize;
    let mut timings = Vec::new();
    let start = Instant::now();
    while timings.len() < 20 && (timings.len() < 5 || start.elapsed().as_secs_f64() < 1.0) {
        let each = Instant::now();
        (0..times).for_each(|_| run());
        timings.push(each.elapsed().as_secs_f64() / times as f64);
    }
    timings.sort_unstable_by(f64::total_cmp);
    timings[timings.len() / 2]
}

/// A model's matrices: name, layers, inputs and outputs of each matrix of a layer, and of the head.
type Model = (&'static str, usize, [(usize, usize); 4], (usize, usize));

const MODELS: [Model; 2] = [
    ("270m", 18, [(640, 1536), (1024, 640), (640, 4096), (2048, 640)], (640, 262_144)),
    ("1b", 26, [(1152, 1536), (1024, 1152), (1152, 13_824), (6912, 1152)], (1152, 262_144)),
];

/// A matrix of a model in its own memory.
struct Matrix {
    inputs: usize,
    outputs: usize,
    data: Vec<u8>,
    per_output: Vec<f32>,
    per_block: Vec<[u16; LANES]>,
    small: Vec<[u16; LANES / 2]>,
}

/// The stored type of weights, and of the numbers of their blocks.
#[derive(Clone, Copy)]
struct Form {
    kind: IntegerType,
    /// Weights of a block.
    block: Option<usize>,
    /// Whether blocks have minimums.
    minimum: bool,
    /// Whether 256 weights share factors, as in K-types.
    is_small: bool,
}

impl Form {
    const fn new(kind: IntegerType, block: Option<usize>) -> Form {
        Form { kind, block, minimum: false, is_small: false }
    }

    const fn small(kind: IntegerType, block: usize, minimum: bool) -> Form {
        Form { kind, block: Some(block), minimum, is_small: true }
    }
}

impl Matrix {
    fn new((inputs, outputs): (usize, usize), form: Form) -> Matrix {
        let Form { kind, block, minimum, is_small } = form;
        let geometry = Geometry::of(inputs, None, block).expect("short blocks");
        let panels = outputs.div_ceil(LANES);
        let kinds = if minimum { 2 } else { 1 };
        let blocks = block.map_or(0, |size| inputs.div_ceil(size));
        let groups = inputs.div_ceil(256);
        Matrix {
            inputs,
            outputs,
            // Any bytes are valid integers.
            data: (0..panels * geometry.panel_bytes(kind))
                .map(|at| (at as u32).wrapping_mul(2_654_435_769).to_be_bytes()[0])
                .collect(),
            per_output: (0..outputs).map(|output| 1e-3 + output as f32 * 1e-7).collect(),
            per_block: (0..if is_small { 0 } else { panels * kinds * blocks })
                .map(|at| [0x1400 | (at % 0x3ff) as u16; LANES])
                .collect(),
            // Both factors and pairs of bytes.
            small: (0..if is_small { panels * kinds * (blocks + 2 * groups) } else { 0 })
                .map(|at| [0x1400 | (at % 0x3ff) as u16; LANES / 2])
                .collect(),
        }
    }

    fn tiles(&self, form: Form) -> Tiles<'_> {
        let Form { kind, block, minimum, is_small } = form;
        let numbers = |size: usize| match is_small {
            true => Numbers::Small { pieces: &self.small, group: 256 / size },
            false => Numbers::F16(&self.per_block),
        };
        let scales = match block {
            Some(size) => Scales::Blocks { size, minimum, numbers: numbers(size) },
            None => Scales::PerOutput(&self.per_output),
        };
        let (inputs, outputs) = (self.inputs, self.outputs);
        Tiles { kind, base: kind.low(), data: &self.data, scales, inputs, outputs }
    }

    fn bytes(&self) -> usize {
        let numbers = 32 * self.per_block.len() + 16 * self.small.len();
        self.data.len() + if numbers == 0 { 4 * self.per_output.len() } else { numbers }
    }
}

/// Measures the bandwidth at which the weights are read, in GB/s.
fn probe(pool: &Pool, matrices: &[Matrix]) -> f64 {
    const PART: usize = 1 << 20;
    let parts: Vec<&[u8]> = matrices.iter().flat_map(|matrix| matrix.data.chunks(PART)).collect();
    let seconds = median(|| {
        pool.run(parts.len(), &|part| {
            let mut sums = [0u64; 64];
            for bytes in parts[part].as_chunks::<512>().0 {
                for (sum, word) in sums.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
                }
            }
            black_box(sums);
        });
    });
    parts.iter().map(|part| part.len()).sum::<usize>() as f64 / seconds / 1e9
}

fn integers() {
    use IntegerType::{I4, I5, I6, I8};
    let forms = [
        ("i8", Form::new(I8, None), None),
        ("i4", Form::new(I4, None), None),
        ("i8/32", Form::new(I8, Some(32)), None),
        ("i4/32", Form::new(I4, Some(32)), None),
        // This case has one scale per block for many rows too.
        ("i8 r", Form::new(I8, None), Some(32)),
        ("i8/32r", Form::new(I8, Some(32)), Some(32)),
        ("i4/32r", Form::new(I4, Some(32)), Some(32)),
        // GGUF's types.
        ("q5_0 r", Form::new(I5, Some(32)), Some(32)),
        ("q4_k r", Form::small(I4, 32, true), Some(32)),
        ("q5_k r", Form::small(I5, 32, true), Some(32)),
        ("q6_k r", Form::small(I6, 16, false), Some(32)),
    ];
    let level = Level::detect();
    for (model, layers, layer, head) in MODELS {
        for (name, form, of_rows) in forms {
            let mut matrices: Vec<Matrix> =
                (0..layers).flat_map(|_| layer).map(|shape| Matrix::new(shape, form)).collect();
            matrices.push(Matrix::new(head, form));
            let bytes: usize = matrices.iter().map(Matrix::bytes).sum();
            let longest = layer.iter().chain([&head]).map(|(inputs, _)| *inputs).max().unwrap_or(0);
            let widest = layer.iter().map(|(_, outputs)| *outputs).max().unwrap_or(0);
            for threads in thread_counts() {
                let pool = Pool::new(threads);
                let dot = DotLevel::within(level);
                for (rows, matrices) in
                    [(1, &matrices[..]), (128, &matrices[..4 * layers]), (512, &matrices[..4 * layers])]
                {
                    let x = values(rows * longest);
                    let mut out = vec![0.0; rows * if rows == 1 { head.1 } else { widest }];
                    let needed = matrices.iter().map(|matrix| {
                        let geometry = matrix.tiles(form).rows(of_rows).expect("blocks that suit");
                        integer_scratch(geometry, rows, threads).expect("small")
                    });
                    let mut scratch = vec![0.0; needed.max().unwrap_or(0)];
                    let mut run = |streams: Streams, matrix: &Matrix| {
                        let tiles = matrix.tiles(form);
                        let map = Map { weights: tiles, bias: None, bounds: None, out: &mut out };
                        integer_linear(
                            level,
                            dot,
                            streams,
                            &pool,
                            &x,
                            of_rows,
                            [Some(map)],
                            rows,
                            &mut scratch,
                        );
                    };
                    // The scalar twin is slow, so only a few rows of a few panels are compared.
                    let few = Tiles { outputs: 80, ..matrices[0].tiles(form) };
                    let some = rows.min(9);
                    let [twin, got] = [DotLevel::Scalar, dot].map(|dot| {
                        let mut out = vec![0.0; some * 80];
                        let mut scratch =
                            vec![
                                0.0;
                                integer_scratch(few.rows(of_rows).expect("suits"), some, threads)
                                    .expect("small")
                            ];
                        let map = Map { weights: few, bias: None, bounds: None, out: &mut out };
                        integer_linear(
                            level,
                            dot,
                            Streams::One,
                            &pool,
                            &x,
                            of_rows,
                            [Some(map)],
                            some,
                            &mut scratch,
                        );
                        out
                    });
                    assert_bits(&got, &twin, name);
                    if rows == 1 {
                        for streams in Streams::of(dot) {
                            let before = probe(&pool, matrices);
                            let all = || matrices.iter().for_each(|matrix| run(*streams, matrix));
                            let seconds = median(all);
                            let after = probe(&pool, matrices);
                            let rate = bytes as f64 / seconds / 1e9;
                            println!(
                                "integer {model:5} {name:6} {:11} {threads} threads    1 row, {} streams {rate:6.1} GB/s, read {before:5.1} and {after:5.1}: {:3.0} %, {:6.1} tokens/s",
                                dot.name(),
                                streams.count(),
                                200.0 * rate / (before + after),
                                1.0 / seconds,
                            );
                        }
                        continue;
                    }
                    let products: usize = matrices.iter().map(|matrix| matrix.inputs * matrix.outputs).sum();
                    let seconds = median(|| matrices.iter().for_each(|matrix| run(Streams::One, matrix)));
                    println!(
                        "integer {model:5} {name:6} {:11} {threads} threads  {rows:3} rows  {:6.1} GMAC/s, {:7.1} tokens/s",
                        dot.name(),
                        (rows * products) as f64 / seconds / 1e9,
                        rows as f64 / seconds,
                    );
                }
            }
        }
    }
}

fn assert_bits(got: &[f32], expected: &[f32], what: &str) {
    assert!(
        got.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()),
        "{what} differs from the scalar twin"
    );
}

/// Returns the thread counts from the command line, or 1 and 2.
fn thread_counts() -> Vec<usize> {
    let asked: Vec<usize> = std::env::args().skip(1).filter_map(|count| count.parse().ok()).collect();
    if asked.is_empty() { vec![1, 2] } else { asked }
}

/// Returns roughly normal values within −127 and 127, with a deviation of a third of the range,
/// like rows scaled to their largest value.
fn normal(count: usize) -> Vec<i8> {
    let uniform = values(4 * count);
    let sum = |four: &[f32]| four.iter().sum::<f32>() / 4.0 * 127.0;
    uniform.chunks_exact(4).map(|four| sum(four) as i8).collect()
}

fn heads() {
    const OUTPUTS: usize = 262_144;
    for inputs in [640, 1152, 1536] {
        let raw = normal(inputs * OUTPUTS);
        let geometry = Geometry::of(inputs, None, None).expect("no blocks");
        let (whole, part) = (geometry.panel_bytes(IntegerType::I8), panel_bytes(inputs));
        let mut data = vec![0; OUTPUTS / LANES * whole];
        let mut high = vec![0; OUTPUTS / LANES * part];
        let (mut low, mut spread) = (vec![0; OUTPUTS * row_bytes(inputs)], vec![0; OUTPUTS]);
        for (panel, rows) in raw.chunks(LANES * inputs).enumerate() {
            pack_tiles(IntegerType::I8, 0, geometry, rows, &mut data[panel * whole..][..whole]);
            pack_high(rows, inputs, &mut high[panel * part..][..part]);
        }
        for ((row, low), spread) in raw.chunks(inputs).zip(low.chunks_mut(row_bytes(inputs))).zip(&mut spread)
        {
            *spread = pack_low(row, low);
        }
        let scales: Vec<f32> = values(OUTPUTS).iter().map(|value| 1e-3 + value.abs() * 1e-5).collect();
        let split =
            Split { high: &high, low: &low, spread: &spread, scales: &scales, inputs, outputs: OUTPUTS };
        let tiles = Tiles {
            kind: IntegerType::I8,
            base: 0,
            data: &data,
            scales: Scales::PerOutput(&scales),
            inputs,
            outputs: OUTPUTS,
        };
        let x: Vec<f32> = normal(inputs).iter().map(|value| f32::from(*value)).collect();
        let (level, dot) = (Level::detect(), DotLevel::within(Level::detect()));
        for threads in thread_counts() {
            let pool = Pool::new(threads);
            let mut scratch = vec![0.0; integer_scratch(geometry, 1, threads).expect("small")];
            let mut expected = vec![0.0; OUTPUTS];
            let plain = median(|| {
                let map = Map { weights: tiles, bias: None, bounds: None, out: &mut expected };
                integer_linear(level, dot, Streams::One, &pool, &x, None, [Some(map)], 1, &mut scratch);
            });
            let mut scratch = vec![0.0; split_scratch(inputs, 1, threads).expect("small")];
            let mut out = vec![0.0; OUTPUTS];
            let mut order: Vec<f32> = expected.clone();
            order.sort_by(|a, b| b.total_cmp(a));
            print!("head {inputs}x{OUTPUTS} {threads} threads: whole {:.2} ms", plain * 1e3);
            for (wanted, head) in
                [(0, Head::All), (1, Head::Bounds), (1, Head::All), (64, Head::Bounds), (64, Head::All)]
            {
                let largest = std::num::NonZeroUsize::new(wanted);
                let seconds = median(|| {
                    split_linear(
                        level,
                        dot,
                        Streams::Eight,
                        head,
                        &pool,
                        &x,
                        split,
                        None,
                        largest,
                        1,
                        &mut scratch,
                        &mut out,
                    );
                });
                match wanted {
                    0 => assert!(out == expected, "all logits are those of whole bytes"),
                    _ => {
                        out.sort_by(|a, b| b.total_cmp(a));
                        assert_eq!(out[..wanted], order[..wanted]);
                    }
                }
                let what = match wanted {
                    0 => "all".to_owned(),
                    _ => format!("largest {wanted} with {head}"),
                };
                print!(", {what} {:.2} ms ({:.2}x)", seconds * 1e3, plain / seconds);
            }
            println!();
        }
    }
}

fn main() {
    let chosen = |name: &str| {
        let mut words = std::env::args()
            .skip(1)
            .filter(|word| !word.starts_with("--") && word.parse::<usize>().is_err())
            .peekable();
        words.peek().is_none() || words.any(|word| word == name)
    };
    let sections: [(&str, fn()); 6] = [
        ("peak", peaks),
        ("read", reads),
        ("integer", integers),
        ("head", heads),
        ("linear", linears),
        ("attention", attentions),
    ];
    sections.into_iter().filter(|(name, _)| chosen(name)).for_each(|(_, section)| section());
}

/// Prints the peak rate of the multiply-add units on all threads.
fn peaks() {
    const ROUNDS: usize = 1 << 20;
    for threads in thread_counts() {
        let pool = Pool::new(threads);
        for level in Level::available().into_iter().skip(1) {
            let made = peak::floats(level, 1) * ROUNDS * threads;
            let seconds = median(|| {
                pool.run(threads, &|_| {
                    black_box(peak::floats(level, ROUNDS));
                });
            });
            println!(
                "peak f32  {:12} {threads} threads  {:7.1} GFLOP/s",
                level.name(),
                2.0 * made as f64 / seconds / 1e9
            );
        }
        // Levels that need several instructions for a product of four bytes are skipped: the
        // compiler moves the first of these instructions out of the loop.
        let single = |level: &DotLevel| !matches!(level.name(), "scalar" | "avx2" | "neon");
        for level in DotLevel::available().into_iter().filter(single) {
            let mut made = 0;
            peak::bytes(level, ROUNDS, &mut made);
            let seconds = median(|| {
                pool.run(threads, &|_| {
                    peak::bytes(level, ROUNDS, &mut black_box(0));
                });
            });
            println!(
                "peak i8   {:12} {threads} threads  {:7.1} GMAC/s",
                level.name(),
                (made * threads) as f64 / seconds / 1e9
            );
        }
    }
}

fn reads() {
    let wide = values(64 << 20);
    for threads in thread_counts() {
        let pool = Pool::new(threads);
        let parts = 16;
        let seconds = median(|| {
            pool.run(parts, &|part| {
                let chunk = &wide[part * wide.len() / parts..(part + 1) * wide.len() / parts];
                let mut sums = [0.0f32; 64];
                for values in chunk.as_chunks::<64>().0 {
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum += value;
                    }
                }
                black_box(sums);
            });
        });
        println!(
            "read                       {threads} threads  {:7.1} GB/s",
            256.0 / 1024.0 * 1.073_741_824 / seconds
        );
    }
}

fn linears() {
    let (inputs, outputs) = (2048, 16384);
    let f32_panels = values(packed_elements(inputs, outputs));
    let bf16_panels: Vec<u16> = f32_panels.iter().map(|v| (v.to_bits() >> 16) as u16).collect();
    let f16_panels: Vec<u16> = (0..bf16_panels.len()).map(|i| 0x2c00 | (i % 0x3ff) as u16).collect();
    // Any bytes are valid integers.
    let bytes: Vec<u8> = f32_panels.iter().map(|v| (v.to_bits() >> 12) as u8).collect();
    let i8_panels: Vec<i8> = bytes.iter().map(|byte| *byte as i8).collect();
    let block_scales = f16_panels[..packed_elements(inputs, outputs) / 32].as_chunks().0;
    let (none, per_output) = (Scales::None, Scales::PerOutput(&f32_panels[..outputs]));
    let forms = [
        ("f32", 4.0, PanelData::F32(f32_panels.as_chunks().0), none),
        ("bf16", 2.0, PanelData::Bf16(bf16_panels.as_chunks().0), none),
        ("f16", 2.0, PanelData::F16(f16_panels.as_chunks().0), none),
        ("i8", 1.0, PanelData::I8(i8_panels.as_chunks().0), per_output),
        ("i4", 0.5, PanelData::I4(bytes.as_chunks().0), per_output),
        (
            "i4/32",
            0.5625,
            PanelData::I4(bytes.as_chunks().0),
            Scales::Blocks { size: 32, minimum: false, numbers: Numbers::F16(block_scales) },
        ),
        ("i2", 0.25, PanelData::I2(bytes.as_chunks().0), per_output),
    ];
    let rows = 128;
    let x = values(rows * inputs);
    for (name, bytes, data, scales) in forms {
        let weights = Panels { data, scales, zero: 0, inputs, outputs };
        // The scalar twin is slow, so only a few rows of a few panels are compared.
        let few = Panels { outputs: 80, ..weights };
        let mut twin = vec![0.0; 7 * 80];
        linear(Level::Scalar, &Pool::new(1), &x, few, Finish::default(), 7, &mut twin);
        for level in Level::available().into_iter().skip(1) {
            for threads in thread_counts() {
                let pool = Pool::new(threads);
                let mut out = vec![0.0; rows * outputs];
                let one = median(|| linear(level, &pool, &x, weights, Finish::default(), 1, &mut out));
                assert_bits(&out[..80], &twin[..80], name);
                let many = median(|| linear(level, &pool, &x, weights, Finish::default(), rows, &mut out));
                for row in 0..7 {
                    assert_bits(
                        &out[row * outputs..row * outputs + 80],
                        &twin[row * 80..(row + 1) * 80],
                        name,
                    );
                }
                println!(
                    "linear {name:5} {:8} {threads} threads  1 row {:7.1} GB/s  {rows} rows {:7.1} GFLOP/s",
                    level.name(),
                    (inputs * outputs) as f64 * bytes / one / 1e9,
                    (2 * rows * inputs * outputs) as f64 / many / 1e9,
                );
            }
        }
    }
}

/// Returns the median time of an attention.
fn attention_seconds(
    level: Level,
    threads: usize,
    heads: Heads,
    products: Products,
    operands: Operands<'_>,
    visible: &[Visible],
) -> f64 {
    let pool = Pool::new(threads);
    let plain = scratch_values(heads, operands.capacity, threads, true).expect("small");
    let mut scratch = vec![0.0; plain.max(scratch_rounded(heads, threads).expect("small"))];
    let mut out = vec![0.0; visible.len() * heads.heads * heads.head_dim];
    let (mut blocks, scratch, out) = (Vec::new(), &mut scratch, &mut out);
    median(|| match products {
        Products::F32 => attention(level, &pool, heads, operands, visible, &mut blocks, scratch, out),
        products => {
            attention_rounded(level, &pool, heads, products, operands, visible, &mut blocks, scratch, out);
        }
    })
}

fn attentions() {
    let rows = 128;
    let heads = Heads { heads: 8, kv_heads: 1, head_dim: 256, scale: 1.0, softcap: 0.0 };
    let capacity = 4096;
    let [k, v] = [(); 2].map(|()| &*values(capacity * 256).leak());
    let q = values(rows * 2048);
    for (rows, positions) in [(1, 4095), (128, 4096 - 128)] {
        let visible: Vec<Visible> = (0..rows)
            .map(|row| Visible { start: 0, count: positions + row + 1 })
            .map(|mut seen| {
                seen.count = seen.count.min(capacity);
                seen
            })
            .collect();
        for (name, element, scale, zero_point) in
            [("f32", Element::F32, 1.0, 0), ("f16", Element::F16, 1.0, 0), ("u16", Element::U16, 4e-5, 32768)]
        {
            let encoding = ElementEncoding { element, scale, zero_point };
            // Any bytes are valid keys and values, except as f32, which get real values.
            let stored = |values: &'static [f32]| {
                // SAFETY: the bytes are plain, four for each value.
                let bytes = unsafe {
                    std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), values.len() * element.bytes())
                };
                Stored::new(encoding, bytes).expect("aligned")
            };
            let operands = Operands { q: &q, k: stored(k), v: stored(v), capacity, stride: 256 };
            for level in Level::available().into_iter().skip(1) {
                for threads in thread_counts() {
                    for products in [Products::F32, Products::Bf16, Products::F16] {
                        let seconds = attention_seconds(level, threads, heads, products, operands, &visible);
                        println!(
                            "attention {name} {products:?} {:8} {threads} threads  {rows:3} rows of 8 heads, 4096 keys  {:8.0} µs  {:6.1} GFLOP/s",
                            level.name(),
                            seconds * 1e6,
                            (4 * rows * 8 * 256 * capacity) as f64 / seconds / 1e9
                        );
                    }
                }
            }
        }
    }
}
