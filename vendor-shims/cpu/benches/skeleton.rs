//! Measures an upper bound for the speed of a token and a prompt: only the products of Gemma 3 270M
//! or 1B, with weights packed as in the engine. There are no norms, attention, sampling, cache or
//! contract. Threads synchronise after each dependent product. Compare the engine's tokens per
//! second with these results.
//!
//! `cargo bench -p shardwright-shim-cpu --bench skeleton [-- MODEL… [THREADS…]]`, where MODEL is
//! `270m` or `1b`. The benchmark needs AVX-512 VNNI. On other processors it prints a message and
//! exits.
//!
//! Decode reads every weight once, int8 with one scale per output and int4 with an f16 scale per 32
//! inputs. Prefill multiplies 504 rows, twelve at a time, with int8 weights. Results are medians of
//! wall-clock time and assume an otherwise idle machine.

fn main() {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw") {
        return products::measure();
    }
    println!("skeleton: this processor has no AVX-512 VNNI");
}

#[cfg(target_arch = "x86_64")]
mod products {
    use std::arch::x86_64::*;
    use std::hint::{black_box, spin_loop};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    const LANES: usize = 16;
    const BLOCK: usize = 32;
    /// Rows of a prompt, a multiple of [`TILE`].
    const ROWS: usize = 504;
    const TILE: usize = 12;
    const HEAD: usize = 262_144;

    /// Name, layers, inputs and outputs of the matrices of a layer, and of the head. Each matrix
    /// depends on the result of the previous one.
    type Model = (&'static str, usize, [(usize, usize); 4], (usize, usize));
    const MODELS: [Model; 2] = [
        ("270m", 18, [(640, 1536), (1024, 640), (640, 4096), (2048, 640)], (640, HEAD)),
        ("1b", 26, [(1152, 1536), (1024, 1152), (1152, 13_824), (6912, 1152)], (1152, HEAD)),
    ];

    struct Matrix {
        inputs: usize,
        outputs: usize,
        weights: Vec<u8>,
    }

    impl Matrix {
        fn new((inputs, outputs): (usize, usize), bits: usize) -> Matrix {
            let bytes = outputs / LANES * panel(inputs, bits);
            let mut weights: Vec<u8> =
                (0..bytes).map(|at| (at as u32).wrapping_mul(2_654_435_769).to_be_bytes()[0]).collect();
            if bits == 4 {
                // Scales of 1.
                for block in weights.chunks_exact_mut(2 * LANES + BLOCK * LANES / 2) {
                    block[..2 * LANES].as_chunks_mut().0.fill(0x3c00u16.to_le_bytes());
                }
            }
            Matrix { inputs, outputs, weights }
        }
    }

    /// Returns the bytes of sixteen outputs. At four bits, each block is preceded by its scales.
    fn panel(inputs: usize, bits: usize) -> usize {
        match bits {
            8 => inputs * LANES,
            _ => inputs / BLOCK * (2 * LANES + BLOCK * LANES / 2),
        }
    }

    /// A quantised row with as many values as the longest input.
    struct Row {
        values: Vec<i8>,
        sums: Vec<i32>,
    }

    impl Row {
        fn new(length: usize) -> Row {
            let values: Vec<i8> = (0..length).map(|at| (at * 7 % 255) as i8).map(|v| v.max(-127)).collect();
            let sums = values.chunks(BLOCK).map(|block| block.iter().map(|v| i32::from(*v)).sum()).collect();
            Row { values, sums }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn eight(weights: *const u8, row: &Row, inputs: usize, out: *mut f32) {
        let flip = _mm512_set1_epi8(-128);
        let mut sums = [_mm512_setzero_si512(); 4];
        let quads = row.values.as_ptr().cast::<i32>();
        for step in 0..inputs / 16 {
            for (chain, sum) in sums.iter_mut().enumerate() {
                let at = 4 * step + chain;
                // SAFETY: the panel has inputs / 4 vectors and the row as many quads.
                unsafe {
                    let w = _mm512_xor_si512(_mm512_loadu_si512(weights.add(64 * at).cast()), flip);
                    *sum = _mm512_dpbusd_epi32(*sum, w, _mm512_set1_epi32(quads.add(at).read_unaligned()));
                }
            }
        }
        let all = _mm512_add_epi32(_mm512_add_epi32(sums[0], sums[1]), _mm512_add_epi32(sums[2], sums[3]));
        let offset: i32 = row.sums[..inputs / BLOCK].iter().sum::<i32>() * 128;
        let all = _mm512_sub_epi32(all, _mm512_set1_epi32(offset));
        // SAFETY: sixteen results.
        unsafe { _mm512_storeu_ps(out, _mm512_cvtepi32_ps(all)) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,f16c")]
    unsafe fn four(weights: *const u8, row: &Row, inputs: usize, out: *mut f32) {
        let low = _mm512_set1_epi8(15);
        let mut results = _mm512_setzero_ps();
        let quads = row.values.as_ptr().cast::<i32>();
        for block in 0..inputs / BLOCK {
            let mut sums = [_mm512_set1_epi32(-8 * row.sums[block]), _mm512_setzero_si512()];
            // SAFETY: a block has sixteen scales and four vectors, and the row has its 32 values.
            unsafe {
                let begin = weights.add(block * (2 * LANES + BLOCK * LANES / 2));
                for vector in 0..4 {
                    let both = _mm512_loadu_si512(begin.add(2 * LANES + 64 * vector).cast());
                    let quad = |at: usize| {
                        _mm512_set1_epi32(quads.add(8 * block + 2 * vector + at).read_unaligned())
                    };
                    sums[0] = _mm512_dpbusd_epi32(sums[0], _mm512_and_si512(both, low), quad(0));
                    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), low);
                    sums[1] = _mm512_dpbusd_epi32(sums[1], high, quad(1));
                }
                let scales = _mm512_cvtph_ps(_mm256_loadu_si256(begin.cast()));
                let sum = _mm512_cvtepi32_ps(_mm512_add_epi32(sums[0], sums[1]));
                results = _mm512_fmadd_ps(sum, scales, results);
            }
        }
        // SAFETY: sixteen results.
        unsafe { _mm512_storeu_ps(out, results) }
    }

    /// Multiplies twelve rows with a panel.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn many(weights: *const u8, rows: &[i8], stride: usize, inputs: usize, out: *mut f32, ld: usize) {
        let flip = _mm512_set1_epi8(-128);
        let mut sums = [_mm512_setzero_si512(); TILE];
        for at in 0..inputs / 4 {
            // SAFETY: the panel has inputs / 4 vectors, and each row as many quads.
            unsafe {
                let w = _mm512_xor_si512(_mm512_loadu_si512(weights.add(64 * at).cast()), flip);
                for (row, sum) in sums.iter_mut().enumerate() {
                    let quad = rows.as_ptr().add(row * stride + 4 * at).cast::<i32>().read_unaligned();
                    *sum = _mm512_dpbusd_epi32(*sum, w, _mm512_set1_epi32(quad));
                }
            }
        }
        for (row, sum) in sums.into_iter().enumerate() {
            // SAFETY: sixteen results of each row.
            unsafe { _mm512_storeu_ps(out.add(row * ld), _mm512_cvtepi32_ps(sum)) }
        }
    }

    /// Results to which several threads write, each to its own places.
    struct Shared(*mut f32);
    // SAFETY: every task writes its own panels.
    unsafe impl Sync for Shared {}

    /// A barrier on which threads spin.
    struct Barrier {
        arrived: AtomicUsize,
        phase: AtomicUsize,
        threads: usize,
    }

    impl Barrier {
        fn wait(&self) {
            let phase = self.phase.load(Ordering::Acquire);
            if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
                self.arrived.store(0, Ordering::Release);
                self.phase.store(phase + 1, Ordering::Release);
            } else {
                while self.phase.load(Ordering::Acquire) == phase {
                    spin_loop();
                }
            }
        }
    }

    /// Returns the median seconds for multiplying all matrices once, one after the other, on
    /// `threads` threads. `task` multiplies some panels of a matrix.
    fn timed(
        matrices: &[Matrix],
        threads: usize,
        repetitions: usize,
        task: &(dyn Fn(&Matrix, std::ops::Range<usize>) + Sync),
    ) -> f64 {
        let barrier = Barrier { arrived: AtomicUsize::new(0), phase: AtomicUsize::new(0), threads };
        let work = |thread: usize| {
            let mut times = Vec::new();
            for _ in 0..repetitions {
                barrier.wait();
                let begun = Instant::now();
                for matrix in matrices {
                    let panels = matrix.outputs / LANES;
                    task(matrix, panels * thread / threads..panels * (thread + 1) / threads);
                    barrier.wait();
                }
                times.push(begun.elapsed().as_secs_f64());
            }
            times.sort_unstable_by(f64::total_cmp);
            times[times.len() / 2]
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || work(thread))).collect();
            let median = work(0);
            others.into_iter().for_each(|other| drop(other.join()));
            median
        })
    }

    fn decode(model: &Model, bits: usize, threads: usize) {
        let (name, layers, layer, head) = *model;
        let mut matrices: Vec<Matrix> =
            (0..layers).flat_map(|_| layer).map(|shape| Matrix::new(shape, bits)).collect();
        matrices.push(Matrix::new(head, bits));
        let row = Row::new(6912);
        let mut out = vec![0.0f32; HEAD];
        let shared = Shared(out.as_mut_ptr());
        let shared = &shared;
        let task = |matrix: &Matrix, panels: std::ops::Range<usize>| {
            let bytes = panel(matrix.inputs, bits);
            for panel in panels {
                // SAFETY: the panel exists, its results are this task's, and the processor has the
                // instructions.
                unsafe {
                    let (weights, out) =
                        (matrix.weights.as_ptr().add(panel * bytes), shared.0.add(panel * LANES));
                    match bits {
                        8 => eight(weights, &row, matrix.inputs, out),
                        _ => four(weights, &row, matrix.inputs, out),
                    }
                }
            }
        };
        task(&matrices[0], 0..1);
        for output in [0, 7, 15] {
            assert_eq!(
                black_box(&out)[output],
                by_definition(&matrices[0], bits, &row, output),
                "{bits} bits"
            );
        }
        let bytes: usize = matrices.iter().map(|matrix| matrix.weights.len()).sum();
        let seconds = timed(&matrices, threads, 60, &task);
        println!(
            "skeleton {name:5} decode int{bits} {threads} threads {:7.1} tokens/s, {:5.1} GB/s",
            1.0 / seconds,
            bytes as f64 / seconds / 1e9
        );
    }

    /// Computes a result of the first panel, one product after the other.
    fn by_definition(matrix: &Matrix, bits: usize, row: &Row, output: usize) -> f32 {
        let mut sum = 0i32;
        for k in 0..matrix.inputs {
            let weight = match bits {
                8 => i32::from(matrix.weights[k / 4 * 64 + output * 4 + k % 4] as i8),
                _ => {
                    let block = k / BLOCK * (2 * LANES + BLOCK * LANES / 2) + 2 * LANES;
                    let byte = matrix.weights[block + k % BLOCK / 8 * 64 + output * 4 + k % 4];
                    i32::from(byte >> (4 * (k / 4 % 2)) & 15) - 8
                }
            };
            sum += weight * i32::from(row.values[k]);
        }
        sum as f32
    }

    fn prefill(model: &Model, threads: usize) {
        let (name, layers, layer, _) = *model;
        let matrices: Vec<Matrix> =
            (0..layers).flat_map(|_| layer).map(|shape| Matrix::new(shape, 8)).collect();
        let longest = layer.iter().map(|(inputs, _)| *inputs).max().unwrap_or(0);
        let widest = layer.iter().map(|(_, outputs)| *outputs).max().unwrap_or(0);
        let rows = Row::new(longest * ROWS).values;
        let mut out = vec![0.0f32; widest * ROWS];
        let shared = Shared(out.as_mut_ptr());
        let shared = &shared;
        let task = |matrix: &Matrix, panels: std::ops::Range<usize>| {
            let (inputs, outputs) = (matrix.inputs, matrix.outputs);
            for panel in panels {
                for first in (0..ROWS).step_by(TILE) {
                    // SAFETY: the panel and the rows exist, the results are this task's, and the
                    // processor has the instructions.
                    unsafe {
                        let weights = matrix.weights.as_ptr().add(panel * inputs * LANES);
                        let out = shared.0.add(first * outputs + panel * LANES);
                        many(weights, &rows[first * inputs..], inputs, inputs, out, outputs);
                    }
                }
            }
        };
        task(&matrices[0], 0..1);
        black_box(&out);
        let products: usize = matrices.iter().map(|matrix| matrix.inputs * matrix.outputs).sum();
        let seconds = timed(&matrices, threads, 7, &task);
        println!(
            "skeleton {name:5} prefill int8 {threads} threads {:7.1} tokens/s, {:5.1} GMAC/s",
            ROWS as f64 / seconds,
            (ROWS * products) as f64 / seconds / 1e9
        );
    }

    pub fn measure() {
        let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
        let mut threads: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
        if threads.is_empty() {
            threads = vec![1, 2];
        }
        let named = |name: &str| words.iter().any(|word| word == name);
        let any = MODELS.iter().any(|(name, ..)| named(name));
        for model in MODELS.iter().filter(|(name, ..)| named(name) || !any) {
            for &threads in &threads {
                decode(model, 8, threads);
                decode(model, 4, threads);
                prefill(model, threads);
            }
        }
    }
}
