//! The register tile: some rows by some panels, accumulators in registers over k.

use crate::simd::{LANES, Registers, Simd};

/// A stored weight type that widens to f32 exactly.
pub trait Element: Copy + Send + Sync {
    /// Whether widening costs instructions.
    const NARROW: bool;
    /// Sixteen values, widened.
    ///
    /// # Safety
    /// `source` is readable for sixteen elements.
    unsafe fn load<S: Simd>(s: S, source: *const Self) -> S::V;
}

impl Element for f32 {
    const NARROW: bool = false;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, source: *const Self) -> S::V {
        // SAFETY: as the caller grants.
        unsafe { s.load(source) }
    }
}

/// bfloat16 bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Bf16(u16);

impl Element for Bf16 {
    const NARROW: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, source: *const Self) -> S::V {
        // SAFETY: as the caller grants; the type is transparent.
        unsafe { s.load_bf16(source.cast()) }
    }
}

/// binary16 bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct F16(u16);

impl Element for F16 {
    const NARROW: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, source: *const Self) -> S::V {
        // SAFETY: as the caller grants; the type is transparent.
        unsafe { s.load_f16(source.cast()) }
    }
}

/// The same values, seen as bfloat16.
pub fn as_bf16(values: &[u16]) -> &[Bf16] {
    // SAFETY: the type is a transparent u16.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) }
}

/// The same values, seen as binary16.
pub fn as_f16(values: &[u16]) -> &[F16] {
    // SAFETY: the type is a transparent u16.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) }
}

/// `ROWS × PANELS` accumulators over `steps` of k. `columns` of the outputs exist (at most `PANELS · 16`).
///
/// # Safety
/// `x` is readable for `ROWS` rows of `x_stride` of which `steps` are used, `weights` for `PANELS` panels of `panel_stride`,
/// `out` is readable and writable for `ROWS` rows of `out_stride` of which `columns` are used.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a tile with its strides")]
unsafe fn tile<S: Simd, E: Element, const ROWS: usize, const PANELS: usize>(
    s: S,
    x: *const f32,
    x_stride: usize,
    weights: *const E,
    panel_stride: usize,
    steps: usize,
    out: *mut f32,
    out_stride: usize,
    columns: usize,
    resume: bool,
) {
    let mut sums = [[s.splat(0.0); PANELS]; ROWS];
    let full = columns == PANELS * LANES;
    if resume {
        for (r, row) in sums.iter_mut().enumerate() {
            for (p, sum) in row.iter_mut().enumerate() {
                // SAFETY: only the columns that exist are read.
                *sum = unsafe {
                    let place = out.add(r * out_stride + p * LANES).cast_const();
                    if full { s.load(place) } else { s.load_partial(place, LANES.min(columns - p * LANES)) }
                };
            }
        }
    }
    for k in 0..steps {
        // SAFETY: `k` < `steps`; rows and panels as the caller grants.
        unsafe {
            let mut w = [s.splat(0.0); PANELS];
            for (p, w) in w.iter_mut().enumerate() {
                *w = E::load(s, weights.add(p * panel_stride + k * LANES));
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let value = s.splat(*x.add(r * x_stride + k));
                for (sum, w) in row.iter_mut().zip(w) {
                    *sum = s.fma(value, w, *sum);
                }
            }
        }
    }
    for (r, row) in sums.iter().enumerate() {
        for (p, sum) in row.iter().enumerate() {
            // SAFETY: only the columns that exist are written.
            unsafe {
                let place = out.add(r * out_stride + p * LANES);
                if full {
                    s.store(place, *sum);
                } else {
                    s.store_partial(place, LANES.min(columns - p * LANES), *sum);
                }
            }
        }
    }
}

/// Covers `rows × columns` outputs with tiles.
///
/// # Safety
/// As [`tile`], for `rows` rows and the panels that hold `columns` outputs.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a block with its strides")]
pub unsafe fn rows_by_panels<S: Simd, E: Element>(
    s: S,
    x: *const f32,
    x_stride: usize,
    weights: *const E,
    panel_stride: usize,
    steps: usize,
    out: *mut f32,
    out_stride: usize,
    rows: usize,
    columns: usize,
    resume: bool,
) {
    let panels = columns.div_ceil(LANES);
    let mut panel = 0;
    while panel < panels {
        let left = panels - panel;
        // SAFETY: panel, row and column offsets stay within the block that the caller grants.
        unsafe {
            let w = weights.add(panel * panel_stride);
            let column = panel * LANES;
            macro_rules! cover {
                ($rows:literal, $panels:literal, $row:expr) => {
                    tile::<S, E, $rows, $panels>(
                        s,
                        x.add($row * x_stride),
                        x_stride,
                        w,
                        panel_stride,
                        steps,
                        out.add($row * out_stride + column),
                        out_stride,
                        (columns - column).min($panels * LANES),
                        resume,
                    )
                };
            }
            macro_rules! cover_rows {
                ($panels:literal) => {{
                    let mut row = 0;
                    while row < rows {
                        row += match rows - row {
                            6.. => {
                                cover!(6, $panels, row);
                                6
                            }
                            3.. => {
                                cover!(3, $panels, row);
                                3
                            }
                            _ => {
                                cover!(1, $panels, row);
                                1
                            }
                        };
                    }
                }};
            }
            // Eight accumulators of one row hide the latency of the multiply-add; six rows by four panels (by one, where
            // there are fewer registers) fill the register file without spilling.
            match (S::REGISTERS, rows) {
                (Registers::None, _) => {
                    for row in 0..rows {
                        cover!(1, 1, row);
                    }
                    panel += 1;
                }
                (Registers::Many, 1) if left >= 8 => {
                    cover!(1, 8, 0);
                    panel += 8;
                }
                (_, 1) if left >= 4 => {
                    cover!(1, 4, 0);
                    panel += 4;
                }
                (Registers::Many, 2..) if left >= 4 => {
                    cover_rows!(4);
                    panel += 4;
                }
                _ => {
                    cover_rows!(1);
                    panel += 1;
                }
            }
        }
    }
}
