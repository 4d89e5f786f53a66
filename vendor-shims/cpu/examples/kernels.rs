//! Prints what the kernels reach on this machine, after checking that they give the bits of the scalar twin.
//!
//! `cargo run --release -p shardwright-shim-cpu --example kernels [THREADS…]`
//!
//! Timings of one thread count the time on the core, so they hold on a busy machine; the others are by the clock.
//!
//! Bandwidth of one row is bound by memory: compare it with the line `read`. Rate of many rows is bound by the multiply-add
//! units: 16 lanes, 2 units and 3 GHz are 192 GFLOP/s per core with AVX-512, half of it with AVX2.

use std::hint::black_box;
use std::time::Instant;

use shardwright_shim_cpu::kernels::attention::{Heads, Operands, Visible, attention, scratch_values};
use shardwright_shim_cpu::kernels::encoding::{Element, Encoding, Stored};
use shardwright_shim_cpu::kernels::linear::{
    PanelData, Panels, Scales, dynamic_linear, dynamic_scratch_values, linear, packed_elements,
};
use shardwright_shim_cpu::pool::Pool;
use shardwright_shim_cpu::simd::Level;

fn values(count: usize) -> Vec<f32> {
    let mut state = count as u64;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Seconds this thread has spent on a core, where the system tells; for figures on a busy machine.
fn on_core() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
}

/// Shortest of several timings, in seconds: of the clock, or with one thread of the core.
fn best(threads: usize, mut run: impl FnMut()) -> f64 {
    let first = Instant::now();
    run();
    // The system counts time on a core coarsely: a timing covers at least 20 ms.
    let times = (0.02 / first.elapsed().as_secs_f64()).clamp(1.0, 1000.0) as usize;
    let mut best = f64::INFINITY;
    let start = Instant::now();
    for _ in 0..20 {
        let each = (Instant::now(), on_core());
        (0..times).for_each(|_| run());
        let seconds = match (threads, each.1, on_core()) {
            (1, Some(before), Some(after)) if after > before => after - before,
            _ => each.0.elapsed().as_secs_f64(),
        };
        best = best.min(seconds / times as f64);
        if start.elapsed().as_secs_f64() > 2.0 {
            break;
        }
    }
    best
}

fn assert_bits(got: &[f32], expected: &[f32], what: &str) {
    assert!(
        got.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()),
        "{what} differs from the scalar twin"
    );
}

/// Thread counts to try: those of the command line, or 1, 2 and 4.
fn thread_counts() -> Vec<usize> {
    let asked: Vec<usize> = std::env::args().skip(1).filter_map(|count| count.parse().ok()).collect();
    if asked.is_empty() { vec![1, 2, 4] } else { asked }
}

fn main() {
    let wide = values(64 << 20);
    for threads in thread_counts() {
        let pool = Pool::new(threads);
        let parts = 16;
        let seconds = best(threads, || {
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
    drop(wide);

    let (inputs, outputs) = (2048, 16384);
    let f32_panels = values(packed_elements(inputs, outputs));
    let bf16_panels: Vec<u16> = f32_panels.iter().map(|v| (v.to_bits() >> 16) as u16).collect();
    let f16_panels: Vec<u16> = (0..bf16_panels.len()).map(|i| 0x2c00 | (i % 0x3ff) as u16).collect();
    // As integers any bytes will do.
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
            Scales::PerBlock { size: 32, values: block_scales },
        ),
        ("i2", 0.25, PanelData::I2(bytes.as_chunks().0), per_output),
    ];
    let rows = 128;
    let x = values(rows * inputs);
    for (name, bytes, data, scales) in forms {
        let weights = Panels { data, scales, inputs, outputs };
        // The scalar twin is slow: a few rows of a few panels stand for all.
        let few = Panels { outputs: 80, ..weights };
        let mut twin = vec![0.0; 7 * 80];
        linear(Level::Scalar, &Pool::new(1), &x, few, None, 7, &mut twin);
        for level in Level::available().into_iter().skip(1) {
            for threads in thread_counts() {
                let pool = Pool::new(threads);
                let mut out = vec![0.0; rows * outputs];
                let one = best(threads, || linear(level, &pool, &x, weights, None, 1, &mut out));
                assert_bits(&out[..80], &twin[..80], name);
                let many = best(threads, || linear(level, &pool, &x, weights, None, rows, &mut out));
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
                if matches!(scales, Scales::None) {
                    continue;
                }
                let mut scratch = vec![0.0; dynamic_scratch_values(inputs, rows).expect("small")];
                let mut run = |rows: usize| {
                    best(threads, || {
                        dynamic_linear(level, &pool, &x, weights, None, rows, &mut scratch, &mut out)
                    })
                };
                println!(
                    "dynamic {name:4} {:8} {threads} threads  1 row {:7.1} GB/s  {rows} rows {:7.1} GFLOP/s",
                    level.name(),
                    (inputs * outputs) as f64 * bytes / run(1) / 1e9,
                    (2 * rows * inputs * outputs) as f64 / run(rows) / 1e9,
                );
            }
        }
    }

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
            let encoding = Encoding { element, scale, zero_point };
            // Any bytes are keys and values; those of f32 are real ones.
            let stored = |values: &'static [f32]| {
                // SAFETY: plain bytes, four of each value.
                let bytes = unsafe {
                    std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), values.len() * element.bytes())
                };
                Stored::new(encoding, bytes).expect("aligned")
            };
            let operands = Operands { q: &q, k: stored(k), v: stored(v), capacity };
            for level in Level::available().into_iter().skip(1) {
                for threads in thread_counts() {
                    let pool = Pool::new(threads);
                    let mut scratch =
                        vec![0.0; scratch_values(heads, capacity, threads, true).expect("small")];
                    let mut out = vec![0.0; rows * 2048];
                    let seconds = best(threads, || {
                        attention(level, &pool, heads, operands, &visible, &mut scratch, &mut out)
                    });
                    println!(
                        "attention {name} {:8} {threads} threads  {rows:3} rows of 8 heads, 4096 keys  {:8.0} µs  {:6.1} GFLOP/s",
                        level.name(),
                        seconds * 1e6,
                        (4 * rows * 8 * 256 * capacity) as f64 / seconds / 1e9
                    );
                }
            }
        }
    }
}
