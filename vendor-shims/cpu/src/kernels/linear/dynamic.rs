//! `y = x · wᵀ (+ bias)` over integer weights, with rows quantised to eight bits as they come.
//!
//! Integers are summed in f32 lanes for as many steps of k as cannot leave the integers that f32 holds exactly, then in f64. So the
//! sums are exact, whatever the order; with scales per block, the scaled sums of the blocks are added in f64 in their order. The end
//! is `sum · (row scale · weight scale) + bias` (per block: `sum · row scale + bias`) in f64, rounded once.

use super::tile::{self, Blocks, Element, rows_by_panels};
use super::{PanelData, Panels, Scales};
use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

/// Largest magnitude of a quantised activation.
const MOST: f32 = 127.0;
/// Least magnitude that a row is scaled to, so that a row of zeros has a scale.
const LEAST: f32 = 1e-30;
/// Every integer up to here is an f32.
const EXACT: usize = 1 << 24;
/// Rows of one task: their sums fill 24 KiB.
const ROW_BLOCK: usize = 24;
/// Panels of one task.
const PANEL_GROUP: usize = 8;
const COLUMNS: usize = PANEL_GROUP * LANES;

/// Values of scratch memory that [`dynamic_linear`] needs; `None` on overflow.
pub fn dynamic_scratch_values(inputs: usize, rows: usize) -> Option<usize> {
    rows.checked_mul(inputs.checked_add(1)?)
}

/// Quantises each row of `x [rows, inputs]`: `scales[r] = max(max|x|, 1e-30) · (1/127)` and `q = round(x / scale)`, ties to even, within
/// −127 and 127.
///
/// # Panics
/// When a length does not fit the dimensions.
pub fn quantise_rows(
    level: Level,
    pool: &Pool,
    x: &[f32],
    inputs: usize,
    rows: usize,
    q: &mut [f32],
    scales: &mut [f32],
) {
    assert!(x.len() >= rows * inputs && q.len() >= rows * inputs, "values shorter than the rows");
    assert!(scales.len() >= rows, "fewer scales than rows");
    let (q, scales) = (SharedOutput::new(q), SharedOutput::new(scales));
    let body = |row: usize| {
        // SAFETY: every task has its own row.
        let (q, scale) = unsafe { (q.part(row * inputs, inputs), scales.part(row, 1)) };
        scale[0] = quantise_at(level, &x[row * inputs..(row + 1) * inputs], q);
    };
    if pool.worth(4 * rows as u64 * inputs as u64) { pool.run(rows, &body) } else { (0..rows).for_each(body) }
}

dispatch! { fn quantise_at => quantise_row(x: &[f32], q: &mut [f32]) -> f32 }

#[inline(always)]
fn quantise_row<S: Simd>(s: S, x: &[f32], q: &mut [f32]) -> f32 {
    let mut largest = s.splat(LEAST);
    for chunk in x.chunks(LANES) {
        // SAFETY: the chunk has `len` ≤ 16 values; lanes beyond are zero.
        largest = s.max(s.abs(unsafe { s.load_partial(chunk.as_ptr(), chunk.len()) }), largest);
    }
    let scale = s.reduce_max(largest) * (1.0 / MOST);
    for (x, q) in x.chunks(LANES).zip(q.chunks_mut(LANES)) {
        // SAFETY: both chunks have the same number of values, at most sixteen.
        unsafe {
            let steps = s.round(s.div(s.load_partial(x.as_ptr(), x.len()), s.splat(scale)));
            let within = s.max(s.min(steps, s.splat(MOST)), s.splat(-MOST));
            s.store_partial(q.as_mut_ptr(), x.len(), within);
        }
    }
    scale
}

/// Writes `out[r][n]` for `rows` rows of `x [rows, inputs]`.
///
/// # Panics
/// When a length does not fit the dimensions or the weights are no integers with scales.
#[allow(clippy::too_many_arguments, reason = "operands and where to work")]
pub fn dynamic_linear(
    level: Level,
    pool: &Pool,
    x: &[f32],
    weights: Panels<'_>,
    bias: Option<&[f32]>,
    rows: usize,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let Panels { inputs, outputs, .. } = weights;
    assert!(out.len() >= rows * outputs, "results shorter than the rows");
    assert!(bias.is_none_or(|bias| bias.len() >= outputs), "bias shorter than the outputs");
    weights.check();
    let (q, scales) = scratch[..rows * (inputs + 1)].split_at_mut(rows * inputs);
    quantise_rows(level, pool, x, inputs, rows, q, scales);
    let (q, scales) = (&*q, &*scales);
    let panels = outputs.div_ceil(LANES);
    let (groups, blocks) = (panels.div_ceil(PANEL_GROUP), rows.div_ceil(ROW_BLOCK));
    let target = SharedOutput::new(out);
    let body = |task: usize| {
        let (panel, row) = (task / blocks * PANEL_GROUP, task % blocks * ROW_BLOCK);
        let (count, rows) = (PANEL_GROUP.min(panels - panel), ROW_BLOCK.min(rows - row));
        sums_at(level, q, scales, weights, bias, row, rows, panel, count, target);
    };
    let work = rows as u64 * panels as u64 * LANES as u64 * inputs as u64;
    if pool.worth(work) { pool.run(groups * blocks, &body) } else { (0..groups * blocks).for_each(body) }
}

dispatch! {
    fn sums_at => sums(
        q: &[f32], row_scales: &[f32], weights: Panels<'_>, bias: Option<&[f32]>, row: usize, rows: usize, panel: usize,
        panels: usize, out: SharedOutput<'_, f32>,
    )
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
fn sums<S: Simd>(
    s: S,
    q: &[f32],
    row_scales: &[f32],
    weights: Panels<'_>,
    bias: Option<&[f32]>,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    out: SharedOutput<'_, f32>,
) {
    macro_rules! with {
        ($steps:expr, $element:ty, $least:literal) => {{
            let steps = $steps.as_ptr().cast::<$element>();
            let limit = EXACT / (MOST as usize * $least);
            block::<S, $element>(s, q, row_scales, steps, limit, weights, bias, row, rows, panel, panels, out)
        }};
    }
    match weights.data {
        PanelData::I8(steps) => with!(steps, tile::I8, 128),
        PanelData::I4(steps) => with!(steps, tile::I4, 8),
        PanelData::I2(steps) => with!(steps, tile::I2, 2),
        PanelData::F32(_) | PanelData::Bf16(_) | PanelData::F16(_) => panic!("weights that are no integers"),
    }
}

/// `limit` is the most steps whose sum is exact in f32.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
fn block<S: Simd, E: Element>(
    s: S,
    q: &[f32],
    row_scales: &[f32],
    steps: *const E,
    limit: usize,
    weights: Panels<'_>,
    bias: Option<&[f32]>,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    out: SharedOutput<'_, f32>,
) {
    let Panels { inputs, outputs, scales, .. } = weights;
    assert!(rows <= ROW_BLOCK && panels <= PANEL_GROUP, "a block of {rows} rows and {panels} panels");
    assert!((row + rows) * inputs <= q.len() && row + rows <= row_scales.len(), "rows beyond the values");
    let column = panel * LANES;
    let columns = (panels * LANES).min(outputs - column);
    let mut sums = [0.0f64; ROW_BLOCK * COLUMNS];
    let mut part = [0.0f32; ROW_BLOCK * COLUMNS];
    let block_size = match scales {
        Scales::PerBlock { size, .. } => size,
        _ => inputs,
    };
    let mut k = 0;
    while k < inputs {
        let end = (k - k % block_size).saturating_add(block_size).min(inputs).min(k + limit);
        // SAFETY: the caller checked the lengths of the weights, the assertions above those of the rows; `part` holds
        // `rows` rows of COLUMNS.
        unsafe {
            let (x, w) = (q.as_ptr().add(row * inputs + k), steps.add(panel * inputs + k));
            let part = part.as_mut_ptr();
            let none = Blocks::NONE;
            rows_by_panels(s, x, inputs, w, inputs, none, end - k, part, COLUMNS, rows, columns, false);
        }
        let mut factors = [1.0f64; COLUMNS];
        if let Scales::PerBlock { size, values } = scales {
            let stride = inputs.div_ceil(size);
            for index in 0..panels {
                let mut lanes = [0.0f32; LANES];
                // SAFETY: sixteen scales to sixteen lanes.
                unsafe {
                    let scale = s.load_f16(values[(panel + index) * stride + k / size].as_ptr());
                    s.store(lanes.as_mut_ptr(), scale);
                }
                for (factor, lane) in factors[index * LANES..].iter_mut().zip(lanes) {
                    *factor = f64::from(lane);
                }
            }
        }
        for r in 0..rows {
            let sums = &mut sums[r * COLUMNS..][..columns];
            for ((sum, part), factor) in sums.iter_mut().zip(&part[r * COLUMNS..]).zip(&factors) {
                *sum += f64::from(*part) * factor;
            }
        }
        k = end;
    }
    for r in 0..rows {
        // SAFETY: no other task writes these rows of these columns.
        let out = unsafe { out.part((row + r) * outputs + column, columns) };
        let row_scale = f64::from(row_scales[row + r]);
        for (index, (out, sum)) in out.iter_mut().zip(&sums[r * COLUMNS..]).enumerate() {
            let scale = match scales {
                Scales::PerOutput(scales) => f64::from(scales[column + index]),
                _ => 1.0,
            };
            let bias = bias.map_or(0.0, |bias| f64::from(bias[column + index]));
            *out = (sum * (row_scale * scale) + bias) as f32;
        }
    }
}
