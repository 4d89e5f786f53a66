//! `y = x · wᵀ (+ bias)` over packed weights.
//!
//! Weights lie in panels of sixteen outputs, k-major: `panel[k][output]`, in their own type. Every output element has
//! one accumulator that starts at zero and takes `fma(x[k], w[k], accumulator)` for k = 0, 1, …; the bias is added last.
//! Blocking over k parks the accumulator in the output, which rounds nothing, so tiles, threads and rows are free to be
//! chosen for speed.

mod pack;
mod product;
mod tile;

pub use pack::{PanelType, pack_from_columns, pack_from_rows, packed_elements};
pub use product::{Sizes, mat_mul, scratch_values};

use crate::kernels::linear::tile::{Element, rows_by_panels};
use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd};

/// Packed weights of one linear map.
#[derive(Clone, Copy, Debug)]
pub struct Panels<'a> {
    /// Values in panels, [`packed_elements`] of them.
    pub data: PanelData<'a>,
    /// Inputs, K.
    pub inputs: usize,
    /// Outputs, N; the last panel is filled up with zeros.
    pub outputs: usize,
}

/// Panel values in their stored type.
#[derive(Clone, Copy, Debug)]
pub enum PanelData<'a> {
    /// binary32
    F32(&'a [f32]),
    /// bfloat16 bits
    Bf16(&'a [u16]),
    /// binary16 bits
    F16(&'a [u16]),
}

impl PanelData<'_> {
    fn len(&self) -> usize {
        match self {
            PanelData::F32(values) => values.len(),
            PanelData::Bf16(values) | PanelData::F16(values) => values.len(),
        }
    }
}

/// Steps of k between two visits of the accumulators when many rows share widened weights: 4 panels of 256 steps
/// are 64 KiB, which stay in the second-level cache beside the rows.
const K_BLOCK: usize = 256;
/// Rows from which 16-bit panels are widened once per block instead of at every use.
const WIDEN_ROWS: usize = 12;
/// Rows of one task, so that few panels still spread over many threads.
const ROW_BLOCK: usize = 96;
/// Panels of one task when several rows share them.
const PANEL_GROUP: usize = 4;

/// Writes `out[r][n]` for `rows` rows. `x` is `[rows, inputs]`, `out` `[rows, outputs]`, both dense.
///
/// # Panics
/// When a length does not fit the dimensions.
pub fn linear(
    level: Level,
    pool: &Pool,
    x: &[f32],
    weights: Panels<'_>,
    bias: Option<&[f32]>,
    rows: usize,
    out: &mut [f32],
) {
    let Panels { data, inputs, outputs } = weights;
    assert!(x.len() >= rows * inputs && out.len() >= rows * outputs, "activations shorter than the rows");
    assert!(data.len() >= packed_elements(inputs, outputs), "fewer weights than panels");
    assert!(bias.is_none_or(|bias| bias.len() >= outputs), "bias shorter than the outputs");
    if rows == 0 || outputs == 0 {
        return;
    }
    let panels = outputs.div_ceil(LANES);
    let work = rows as u64 * panels as u64 * LANES as u64 * inputs as u64;
    let target = SharedOutput::new(out);
    if rows == 1 {
        // One row: a task is a contiguous run of panels, read once from front to back.
        let run = if pool.worth(work) { panels.div_ceil(pool.threads() * 4).max(8) } else { panels };
        pool.run(panels.div_ceil(run), &|task| {
            let first = task * run;
            task_at(level, x, data, bias, inputs, outputs, 0, 1, first, run.min(panels - first), target);
        });
    } else {
        let groups = panels.div_ceil(PANEL_GROUP);
        let blocks = rows.div_ceil(ROW_BLOCK);
        let body = |task: usize| {
            let (group, block) = (task / blocks, task % blocks);
            let (panel, row) = (group * PANEL_GROUP, block * ROW_BLOCK);
            let count = PANEL_GROUP.min(panels - panel);
            task_at(
                level,
                x,
                data,
                bias,
                inputs,
                outputs,
                row,
                ROW_BLOCK.min(rows - row),
                panel,
                count,
                target,
            );
        };
        if pool.worth(work) { pool.run(groups * blocks, &body) } else { (0..groups * blocks).for_each(body) }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
fn task<S: Simd>(
    s: S,
    x: &[f32],
    data: PanelData<'_>,
    bias: Option<&[f32]>,
    inputs: usize,
    outputs: usize,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    out: SharedOutput<'_, f32>,
) {
    match data {
        PanelData::F32(values) => block(s, x, values, bias, inputs, outputs, row, rows, panel, panels, out),
        PanelData::Bf16(values) => {
            block(s, x, tile::as_bf16(values), bias, inputs, outputs, row, rows, panel, panels, out)
        }
        PanelData::F16(values) => {
            block(s, x, tile::as_f16(values), bias, inputs, outputs, row, rows, panel, panels, out)
        }
    }
}

crate::simd::dispatch! {
    fn task_at => task(
        x: &[f32], data: PanelData<'_>, bias: Option<&[f32]>, inputs: usize, outputs: usize,
        row: usize, rows: usize, panel: usize, panels: usize, out: SharedOutput<'_, f32>,
    )
}

/// Widened weights of one block of k and up to [`PANEL_GROUP`] panels.
#[repr(C, align(64))]
struct Widened([std::mem::MaybeUninit<f32>; PANEL_GROUP * LANES * K_BLOCK]);

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
fn block<S: Simd, E: Element>(
    s: S,
    x: &[f32],
    values: &[E],
    bias: Option<&[f32]>,
    inputs: usize,
    outputs: usize,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    out: SharedOutput<'_, f32>,
) {
    let panel_stride = inputs * LANES;
    let column = panel * LANES;
    let columns = (panels * LANES).min(outputs - column);
    // SAFETY: `linear` checked the lengths; `row + rows`, `panel + panels` stay within them.
    let (source, weights) =
        unsafe { (x.as_ptr().add(row * inputs), values.as_ptr().add(panel * panel_stride)) };
    // SAFETY: as above; no other task writes these rows of these columns.
    let target = unsafe { out.pointer().add(row * outputs + column) };
    // One row visits its weights once, from front to back; several rows come back to a block while it is in cache.
    let step_limit = if rows == 1 { inputs } else { K_BLOCK };
    let widen = E::NARROW && rows >= WIDEN_ROWS && panels <= PANEL_GROUP;
    let mut widened = Widened([const { std::mem::MaybeUninit::uninit() }; PANEL_GROUP * LANES * K_BLOCK]);
    let scratch = widened.0.as_mut_ptr().cast::<f32>();
    let mut k = 0;
    loop {
        let steps = step_limit.min(inputs - k);
        // SAFETY: `k + steps` ≤ `inputs`, so the blocks of x and of the panels are in bounds as computed above; the scratch
        // holds 4 panels of K_BLOCK steps, and is read only where it was just written.
        unsafe {
            if widen {
                for index in 0..panels {
                    for step in 0..steps {
                        let value = E::load(s, weights.add(index * panel_stride + (k + step) * LANES));
                        s.store(scratch.add((index * K_BLOCK + step) * LANES), value);
                    }
                }
                let (x, w, stride) = (source.add(k), scratch.cast_const(), K_BLOCK * LANES);
                rows_by_panels(s, x, inputs, w, stride, steps, target, outputs, rows, columns, k > 0);
            } else {
                let (x, w) = (source.add(k), weights.add(k * LANES));
                rows_by_panels(s, x, inputs, w, panel_stride, steps, target, outputs, rows, columns, k > 0);
            }
        }
        k += steps;
        if k >= inputs {
            break;
        }
    }
    if let Some(bias) = bias {
        for r in 0..rows {
            let mut done = 0;
            while done < columns {
                let count = LANES.min(columns - done);
                // SAFETY: `column + columns` ≤ `outputs` ≤ the length of the bias; the output block is ours.
                unsafe {
                    let place = target.add(r * outputs + done);
                    let sum = s.add(
                        s.load_partial(place.cast_const(), count),
                        s.load_partial(bias.as_ptr().add(column + done), count),
                    );
                    s.store_partial(place, count, sum);
                }
                done += count;
            }
        }
    }
}

#[cfg(test)]
mod tests;
