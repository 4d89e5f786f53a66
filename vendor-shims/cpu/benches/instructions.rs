//! Integer products on 64-bit ARM, for counting instructions with
//! `cargo xtask aarch64 --instructions`: the engine's kernels and plain loops of the same products
//! over the same packed weights.
//!
//! Call it as `instructions CASE engine|plain TIMES`. It creates operands, runs the product TIMES
//! times, and checks some results against the definition. The instruction counts of two runs with
//! different TIMES differ only by the products. Without arguments it prints each case and the
//! multiply-adds of its product, one a line. On other architectures it prints a message and exits.
//! It does not measure time, because an emulator does not reproduce a processor's timing.

fn main() {
    #[cfg(target_arch = "aarch64")]
    aarch64::main();
    #[cfg(not(target_arch = "aarch64"))]
    println!("instructions: for 64-bit ARM alone");
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use std::arch::aarch64::*;
    use std::arch::asm;
    use std::hint::black_box;

    use shardwright_shim_cpu::kernels::integer::{
        Geometry, IntegerType, Map, Streams, Tiles, integer_linear, pack_tiles, scratch_values,
    };
    use shardwright_shim_cpu::kernels::linear::{Numbers, Scales};
    use shardwright_shim_cpu::pool::Pool;
    use shardwright_shim_cpu::simd::dot::DotLevel;
    use shardwright_shim_cpu::simd::{LANES, Level};

    const INPUTS: usize = 640;
    const OUTPUTS: usize = 1024;
    const BLOCK: usize = 32;
    /// Rows of a prompt: a multiple of the tiles of both plain loops.
    const ROWS: usize = 48;
    /// Bytes of a panel of sixteen outputs at eight bits.
    const PANEL: usize = INPUTS * LANES;

    /// Name, rows, stored type and level.
    type Case = (&'static str, usize, IntegerType, DotLevel);
    const CASES: [Case; 4] = [
        ("row-int8-dot", 1, IntegerType::I8, DotLevel::NeonDot),
        ("row-int4-blocks-dot", 1, IntegerType::I4, DotLevel::NeonDot),
        ("rows-int8-dot", ROWS, IntegerType::I8, DotLevel::NeonDot),
        ("rows-int8-i8mm", ROWS, IntegerType::I8, DotLevel::NeonI8mm),
    ];

    pub fn main() {
        let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
        let [case, who, times] = words.as_slice() else {
            for (name, rows, ..) in CASES {
                println!("{name} {}", rows * INPUTS * OUTPUTS);
            }
            return;
        };
        let case = CASES.iter().find(|(name, ..)| name == case).expect("a case by its name");
        assert!(DotLevel::available().contains(&case.3), "the processor has no {}", case.3.name());
        let times: usize = times.parse().expect("a number of times");
        let operands = Operands::new(case);
        match who.as_str() {
            "engine" => operands.engine(case, times),
            "plain" => operands.plain(case, times),
            _ => panic!("engine or plain, not {who}"),
        }
    }

    struct Operands {
        /// Integers that are their own quantised values: a row's largest magnitude is 127.
        x: Vec<f32>,
        q: Vec<i8>,
        packed: Vec<u8>,
        /// `[outputs, inputs]`
        raw: Vec<i8>,
        per_output: Vec<f32>,
        per_block: Vec<[u16; LANES]>,
    }

    impl Operands {
        fn new((_, rows, kind, _): &Case) -> Operands {
            let mut q: Vec<i8> = (0..rows * INPUTS).map(|at| (at * 37 % 251) as i32 as i8).collect();
            q.iter_mut().for_each(|q| *q = (*q).max(-127));
            q.chunks_mut(INPUTS).for_each(|row| row[0] = 127);
            let half = 1i32 << (kind.bits() - 1);
            let raw: Vec<i8> =
                (0..OUTPUTS * INPUTS).map(|at| ((at * 53 % 255) as i32 % (2 * half) - half) as i8).collect();
            let block = (*kind != IntegerType::I8).then_some(BLOCK);
            let geometry = Geometry::of(INPUTS, None, block).expect("short blocks");
            let bytes = geometry.panel_bytes(*kind);
            let mut packed = vec![0; OUTPUTS / LANES * bytes];
            for (raw, target) in raw.chunks(LANES * INPUTS).zip(packed.chunks_mut(bytes)) {
                pack_tiles(*kind, kind.low(), geometry, raw, target);
            }
            Operands {
                x: q.iter().map(|q| f32::from(*q)).collect(),
                q,
                packed,
                raw,
                per_output: vec![1.0; OUTPUTS],
                // Scales of 1.
                per_block: vec![[0x3c00; LANES]; OUTPUTS / LANES * geometry.units],
            }
        }

        fn engine(&self, &(name, rows, kind, dot): &Case, times: usize) {
            let scales = match kind {
                IntegerType::I8 => Scales::PerOutput(&self.per_output),
                _ => {
                    let numbers = Numbers::F16(&self.per_block);
                    Scales::Blocks { size: BLOCK, minimum: false, numbers }
                }
            };
            let (base, inputs, outputs) = (kind.low(), INPUTS, OUTPUTS);
            let weights = Tiles { kind, base, data: &self.packed, scales, inputs, outputs };
            let mut out = vec![0.0; rows * OUTPUTS];
            let cut = weights.rows(None).expect("short blocks");
            let mut scratch = vec![0.0; scratch_values(cut, rows, 1).expect("small")];
            let pool = Pool::new(1);
            for _ in 0..times {
                let map = Map { weights, bias: None, bounds: None, out: &mut out };
                let level = Level::detect();
                integer_linear(
                    level,
                    dot,
                    Streams::Four,
                    &pool,
                    &self.x,
                    None,
                    [Some(map)],
                    rows,
                    &mut scratch,
                );
                black_box(&out);
            }
            self.check(name, rows, &out);
        }

        fn plain(&self, &(name, rows, kind, dot): &Case, times: usize) {
            let mut out = vec![0.0; rows * OUTPUTS];
            for _ in 0..times {
                // SAFETY: the processor has the instructions, and operands have the dimensions that
                // the loops are written for.
                unsafe {
                    match (rows, kind, dot) {
                        (1, IntegerType::I8, _) => row(&self.packed, &self.q, &mut out),
                        (1, ..) => row_in_blocks(&self.packed, &self.per_block, &self.q, &mut out),
                        (_, _, DotLevel::NeonDot) => many(&self.packed, &self.q, &mut out),
                        _ => pairs(&self.packed, &self.q, &mut out),
                    }
                }
                black_box(&out);
            }
            self.check(name, rows, &out);
        }

        /// Compares some results with the definition.
        fn check(&self, name: &str, rows: usize, out: &[f32]) {
            for row in [0, rows - 1] {
                for output in [0, 17, OUTPUTS - 1] {
                    let q = &self.q[row * INPUTS..][..INPUTS];
                    let w = &self.raw[output * INPUTS..][..INPUTS];
                    let sum: i32 = q.iter().zip(w).map(|(q, w)| i32::from(*q) * i32::from(*w)).sum();
                    let got = out[row * OUTPUTS + output];
                    // The largest magnitude is 127: a row's scale is 1 but for its rounding.
                    assert!((got - sum as f32).abs() <= 1e-5 * sum.abs() as f32, "{name}: {got} for {sum}");
                }
            }
        }
    }

    /// `sum += w · q[lane]`, four bytes each.
    macro_rules! dot {
        ($sum:expr, $w:expr, $q:expr, $lane:literal) => {
            asm!(
                ".arch_extension dotprod",
                concat!("sdot {sum:v}.4s, {w:v}.16b, {q:v}.4b[", $lane, "]"),
                sum = inout(vreg) $sum,
                w = in(vreg) $w,
                // An element operand must be in one of the lower sixteen registers.
                q = in(vreg_low16) $q,
                options(pure, nomem, nostack, preserves_flags),
            )
        };
    }

    /// # Safety
    /// The processor must support the dot product of four bytes. Operands have [`INPUTS`] inputs
    /// and [`OUTPUTS`] outputs.
    #[target_feature(enable = "neon")]
    unsafe fn row(weights: &[u8], q: &[i8], out: &mut [f32]) {
        for (panel, out) in weights.chunks_exact(PANEL).zip(out.chunks_exact_mut(LANES)) {
            let mut sums = [vdupq_n_s32(0); 4];
            for step in 0..INPUTS / 16 {
                // SAFETY: sixteen inputs of sixteen outputs.
                unsafe {
                    let q = vld1q_s8(q.as_ptr().add(16 * step));
                    let w = panel.as_ptr().cast::<i8>().add(256 * step);
                    for (part, sum) in sums.iter_mut().enumerate() {
                        dot!(*sum, vld1q_s8(w.add(16 * part)), q, 0);
                        dot!(*sum, vld1q_s8(w.add(64 + 16 * part)), q, 1);
                        dot!(*sum, vld1q_s8(w.add(128 + 16 * part)), q, 2);
                        dot!(*sum, vld1q_s8(w.add(192 + 16 * part)), q, 3);
                    }
                }
            }
            for (part, sum) in sums.iter().enumerate() {
                // SAFETY: sixteen results.
                unsafe { vst1q_f32(out.as_mut_ptr().add(4 * part), vcvtq_f32_s32(*sum)) };
            }
        }
    }

    /// # Safety
    /// See [`row`].
    #[target_feature(enable = "neon")]
    unsafe fn row_in_blocks(weights: &[u8], scales: &[[u16; LANES]], q: &[i8], out: &mut [f32]) {
        const BLOCKS: usize = INPUTS / BLOCK;
        let sums: Vec<i32> =
            q.chunks(BLOCK).map(|block| block.iter().map(|q| i32::from(*q)).sum::<i32>() * -8).collect();
        let mask = vdupq_n_u8(15);
        for (index, (panel, out)) in
            weights.chunks_exact(PANEL / 2).zip(out.chunks_exact_mut(LANES)).enumerate()
        {
            let mut results = [vdupq_n_f32(0.0); 4];
            for block in 0..BLOCKS {
                let mut parts = [vdupq_n_s32(sums[block]); 4];
                // SAFETY: a block has 32 inputs and sixteen scales.
                unsafe {
                    let q = q.as_ptr().add(BLOCK * block);
                    let q = [vld1q_s8(q), vld1q_s8(q.add(16))];
                    let w = panel.as_ptr().add(256 * block);
                    for (part, sum) in parts.iter_mut().enumerate() {
                        macro_rules! both {
                            ($vector:literal, $q:expr, $low:literal, $high:literal) => {{
                                let bytes = vld1q_u8(w.add(64 * $vector + 16 * part));
                                dot!(*sum, vreinterpretq_s8_u8(vandq_u8(bytes, mask)), $q, $low);
                                dot!(*sum, vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes)), $q, $high);
                            }};
                        }
                        both!(0, q[0], 0, 1);
                        both!(1, q[0], 2, 3);
                        both!(2, q[1], 0, 1);
                        both!(3, q[1], 2, 3);
                    }
                    let halves = scales[index * BLOCKS + block].as_ptr();
                    for (part, (result, sum)) in results.iter_mut().zip(parts).enumerate() {
                        let scale: float32x4_t;
                        asm!(
                            "fcvtl {scale:v}.4s, {halves:v}.4h",
                            scale = out(vreg) scale,
                            halves = in(vreg) vld1_u16(halves.add(4 * part)),
                            options(pure, nomem, nostack, preserves_flags),
                        );
                        *result = vfmaq_f32(*result, vcvtq_f32_s32(sum), scale);
                    }
                }
            }
            for (part, result) in results.iter().enumerate() {
                // SAFETY: sixteen results.
                unsafe { vst1q_f32(out.as_mut_ptr().add(4 * part), *result) };
            }
        }
    }

    /// Multiplies four rows at a time with each panel.
    ///
    /// # Safety
    /// See [`row`].
    #[target_feature(enable = "neon")]
    unsafe fn many(weights: &[u8], q: &[i8], out: &mut [f32]) {
        for (index, panel) in weights.chunks_exact(PANEL).enumerate() {
            for first in (0..ROWS).step_by(4) {
                let mut sums = [[vdupq_n_s32(0); 4]; 4];
                for step in 0..INPUTS / 16 {
                    // SAFETY: sixteen inputs of sixteen outputs and of four rows.
                    unsafe {
                        let q: [int8x16_t; 4] = std::array::from_fn(|row| {
                            vld1q_s8(q.as_ptr().add((first + row) * INPUTS + 16 * step))
                        });
                        let w = panel.as_ptr().cast::<i8>().add(256 * step);
                        macro_rules! quad {
                            ($lane:literal) => {
                                for part in 0..4 {
                                    let w = vld1q_s8(w.add(64 * $lane + 16 * part));
                                    dot!(sums[0][part], w, q[0], $lane);
                                    dot!(sums[1][part], w, q[1], $lane);
                                    dot!(sums[2][part], w, q[2], $lane);
                                    dot!(sums[3][part], w, q[3], $lane);
                                }
                            };
                        }
                        quad!(0);
                        quad!(1);
                        quad!(2);
                        quad!(3);
                    }
                }
                for (row, sums) in sums.iter().enumerate() {
                    for (part, sum) in sums.iter().enumerate() {
                        let at = (first + row) * OUTPUTS + index * LANES + 4 * part;
                        // SAFETY: sixteen results of a row.
                        unsafe { vst1q_f32(out.as_mut_ptr().add(at), vcvtq_f32_s32(*sum)) };
                    }
                }
            }
        }
    }

    /// Multiplies four rows by eight outputs in products of two by two over eight inputs. The
    /// weights of each panel are first copied into the required layout.
    ///
    /// # Safety
    /// See [`row`]. In addition, the processor must support `smmla`, and rows come in pairs.
    #[target_feature(enable = "neon")]
    unsafe fn pairs(weights: &[u8], q: &[i8], out: &mut [f32]) {
        // [eight inputs][sixteen outputs][eight bytes]
        let mut ready = vec![0i8; PANEL];
        for (index, panel) in weights.chunks_exact(PANEL).enumerate() {
            for (step, ready) in ready.chunks_exact_mut(128).enumerate() {
                // SAFETY: two vectors of sixteen times four bytes.
                unsafe {
                    let w = panel.as_ptr().cast::<i32>().add(32 * step);
                    for part in 0..4 {
                        let (a, b) = (vld1q_s32(w.add(4 * part)), vld1q_s32(w.add(16 + 4 * part)));
                        let target = ready.as_mut_ptr().add(32 * part).cast::<i32>();
                        vst1q_s32(target, vzip1q_s32(a, b));
                        vst1q_s32(target.add(4), vzip2q_s32(a, b));
                    }
                }
            }
            for first in (0..ROWS).step_by(4) {
                for half in 0..2 {
                    let mut sums = [[vdupq_n_s32(0); 4]; 2];
                    for step in 0..INPUTS / 16 {
                        // SAFETY: sixteen inputs of four rows and of eight outputs.
                        unsafe {
                            let row = |row: usize| {
                                vreinterpretq_s64_s8(vld1q_s8(
                                    q.as_ptr().add((first + row) * INPUTS + 16 * step),
                                ))
                            };
                            for (pair, sums) in sums.iter_mut().enumerate() {
                                let (a, b) = (row(2 * pair), row(2 * pair + 1));
                                for (eight, rows) in [vzip1q_s64(a, b), vzip2q_s64(a, b)].iter().enumerate() {
                                    let w = ready.as_ptr().add(128 * (2 * step + eight) + 64 * half);
                                    for (column, sum) in sums.iter_mut().enumerate() {
                                        asm!(
                                            ".arch_extension i8mm",
                                            "smmla {sum:v}.4s, {rows:v}.16b, {w:v}.16b",
                                            sum = inout(vreg) *sum,
                                            rows = in(vreg) vreinterpretq_s8_s64(*rows),
                                            w = in(vreg) vld1q_s8(w.add(16 * column)),
                                            options(pure, nomem, nostack, preserves_flags),
                                        );
                                    }
                                }
                            }
                        }
                    }
                    for (pair, sums) in sums.iter().enumerate() {
                        for (two, sums) in sums.as_chunks::<2>().0.iter().enumerate() {
                            let [a, b] = sums.map(|sum| vreinterpretq_s64_s32(sum));
                            for (row, sums) in [vzip1q_s64(a, b), vzip2q_s64(a, b)].iter().enumerate() {
                                let at =
                                    (first + 2 * pair + row) * OUTPUTS + index * LANES + 8 * half + 4 * two;
                                let values = vcvtq_f32_s32(vreinterpretq_s32_s64(*sums));
                                // SAFETY: four results of a row.
                                unsafe { vst1q_f32(out.as_mut_ptr().add(at), values) };
                            }
                        }
                    }
                }
            }
        }
    }
}
