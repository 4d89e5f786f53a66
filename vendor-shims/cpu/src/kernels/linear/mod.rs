//! `y = x · wᵀ (+ bias)` over packed weights.
//!
//! Weights are stored in panels of sixteen outputs, k-major: `panel[k][output]`, in their own type.
//! Integers are widened in registers. Every output element has one accumulator that starts at zero
//! and accumulates `fma(x[k], w[k], accumulator)` for k = 0, 1, … Blocking over k stores the
//! accumulator in the output without rounding, so tiles, threads and rows can be chosen for speed
//! alone.
//!
//! * Scales per output multiply the final sum, as `sum · scale` or `fma(sum, scale, bias)`.
//! * Scales per block multiply the weights without rounding: the product of eight or four bits and
//!   the eleven bits of a binary16 is exact.
//! * Affine maps per block give each weight the rounded value of its definition.
//!
//! A bias without scales is added after that. Finally bounds limit the result.

mod pack;
mod product;
mod tile;

pub use pack::{PanelType, pack_from_columns, pack_from_rows, pack_integers, packed_elements};
pub use product::{Sizes, mat_mul, scratch_values};

use std::ops::Range;

use crate::kernels::linear::tile::{Blocks, Element, HIGHEST, rows_by_panels};
use crate::kernels::math::clamp;
use crate::pool::{Cut, Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd};

/// Packed weights of one linear map.
#[derive(Clone, Copy, Debug)]
pub struct Panels<'a> {
    /// Values in panels. Their number is [`packed_elements`].
    pub data: PanelData<'a>,
    /// Scales of integers.
    pub scales: Scales<'a>,
    /// Stored integer that represents zero. Other than 0 only with [`Scales::Blocks`].
    pub zero: i32,
    /// Number of inputs, K.
    pub inputs: usize,
    /// Number of outputs, N. The last panel is padded with zeros.
    pub outputs: usize,
}

/// Panels in their stored type. One element is a step of k with sixteen outputs.
#[derive(Clone, Copy, Debug)]
pub enum PanelData<'a> {
    /// binary32
    F32(&'a [[f32; LANES]]),
    /// bfloat16 bits
    Bf16(&'a [[u16; LANES]]),
    /// binary16 bits
    F16(&'a [[u16; LANES]]),
    I8(&'a [[i8; LANES]]),
    /// Signed values of four bits (see [`Simd::load_i4`]).
    I4(&'a [[u8; 8]]),
    /// Signed values of two bits (see [`Simd::load_i2`]).
    I2(&'a [[u8; 4]]),
}

/// Scales of packed weights.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    None,
    /// One scale per output.
    PerOutput(&'a [f32]),
    /// A scale for every `size` steps of k: sixteen per panel and block, followed by sixteen
    /// minimums if `minimum` is true. A weight is `(stored − zero) · scale − minimum`. Only with
    /// [`PanelData::I8`] and [`PanelData::I4`].
    Blocks {
        /// Steps of k that share a scale.
        size: usize,
        /// Whether there are minimums.
        minimum: bool,
        /// Panel after panel, block after block.
        numbers: Numbers<'a>,
    },
}

/// Scales and minimums of blocks in their stored type, sixteen outputs each.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// binary16 bits
    F16(&'a [[u16; LANES]]),
    /// binary32
    F32(&'a [[f32; LANES]]),
    /// Products of a binary16, which a group of blocks shares, and a signed byte of each block, as
    /// in GGUF's K-types. Only for integer products.
    ///
    /// A panel is a sequence of groups. A group is the sixteen binary16 factors of the scales, the
    /// factors of the minimums (if there are any), sixteen bytes for the scales of each block, then
    /// sixteen bytes for the minimums of each block.
    Small {
        /// Sixteen bytes each: half of the factors, or the bytes of a block.
        pieces: &'a [[u16; LANES / 2]],
        /// Blocks of a group. The last group of a panel may have fewer.
        group: usize,
    },
}

impl Numbers<'_> {
    /// Checks whether there are as many numbers as these panels need, each of `blocks` blocks.
    pub(crate) fn suffice(&self, panels: usize, blocks: usize, minimum: bool) -> bool {
        let times = panels * if minimum { 2 } else { 1 };
        match *self {
            Numbers::F16(numbers) => numbers.len() >= times * blocks,
            Numbers::F32(numbers) => numbers.len() >= times * blocks,
            Numbers::Small { group: 0, .. } => false,
            Numbers::Small { pieces, group } => pieces.len() >= times * Numbers::pieces(blocks, group),
        }
    }

    /// Returns the pieces of the scales of a panel's blocks, or of their minimums.
    pub(crate) const fn pieces(blocks: usize, group: usize) -> usize {
        blocks + 2 * blocks.div_ceil(group)
    }
}

impl Scales<'_> {
    /// Returns the steps of k of a block, or `None` without blocks.
    pub fn block(&self) -> Option<usize> {
        match *self {
            Scales::Blocks { size, .. } => Some(size),
            Scales::None | Scales::PerOutput(_) => None,
        }
    }

    /// Checks whether blocks have minimums.
    pub fn has_minimums(&self) -> bool {
        matches!(self, Scales::Blocks { minimum: true, .. })
    }
}

impl PanelData<'_> {
    /// Returns the number of steps of all panels.
    fn steps(&self) -> usize {
        match self {
            PanelData::F32(steps) => steps.len(),
            PanelData::Bf16(steps) | PanelData::F16(steps) => steps.len(),
            PanelData::I8(steps) => steps.len(),
            PanelData::I4(steps) => steps.len(),
            PanelData::I2(steps) => steps.len(),
        }
    }
}

impl Panels<'_> {
    /// Returns the scales of blocks, in the form that tiles read.
    fn blocks(&self) -> Blocks {
        let Scales::Blocks { size, minimum, numbers } = self.scales else { return Blocks::NONE };
        let (stride, zero) = (self.inputs.div_ceil(size), self.zero as f32);
        let blocks = Blocks { minimum, zero, stride, size, ..Blocks::NONE };
        match numbers {
            Numbers::F16(numbers) => Blocks { half: numbers.as_ptr(), ..blocks },
            Numbers::F32(numbers) => Blocks { single: numbers.as_ptr(), is_single: true, ..blocks },
            Numbers::Small { .. } => unreachable!("numbers of panels are not products"),
        }
    }

    /// Checks whether blocks have zero points, minimums or binary32 scales.
    fn is_affine(&self) -> bool {
        match self.scales {
            Scales::Blocks { minimum, numbers, .. } => {
                minimum || self.zero != 0 || matches!(numbers, Numbers::F32(_))
            }
            Scales::None | Scales::PerOutput(_) => false,
        }
    }

    /// Checks the lengths of weights and scales.
    ///
    /// # Panics
    /// When there are fewer weights or scales than the dimensions require, or scales of other
    /// blocks.
    fn check(&self) {
        let panels = self.outputs.div_ceil(LANES);
        assert!(self.data.steps() >= panels * self.inputs, "fewer weights than panels");
        match self.scales {
            Scales::None => {}
            Scales::PerOutput(scales) => assert!(scales.len() >= self.outputs, "fewer scales than outputs"),
            Scales::Blocks { size, minimum, numbers } => {
                let blocks = matches!(self.data, PanelData::I8(_) | PanelData::I4(_));
                let plain = !matches!(numbers, Numbers::Small { .. });
                assert!(blocks && plain && size > 0, "scales of other blocks");
                let found = numbers.suffice(panels, self.inputs.div_ceil(size), minimum);
                assert!(found, "fewer scales than blocks");
            }
        }
    }
}

/// Steps of k between two visits of the accumulators when many rows share widened weights. 4 panels
/// of 256 steps are 64 KiB, which stay in the second-level cache together with the rows.
const K_BLOCK: usize = 256;
/// Fewest rows for which narrow panels are widened once per block instead of at every use.
const WIDEN_ROWS: usize = 12;
/// Most rows that share widened weights.
const ROW_BLOCK: usize = 4 * ROW_STEP;
/// Rows of a unit that threads take, a multiple of [`HIGHEST`].
const ROW_STEP: usize = 24;
/// Panels of a unit when several rows share them.
const PANEL_GROUP: usize = 4;
/// Cut of one row. A unit is a panel, and a run of panels is read once from front to back.
const ONE_ROW: Cut = Cut { wide: 8, most: 32 };

/// Operations on a sum after the reduction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finish<'a> {
    /// Bias to add, one value per output.
    pub bias: Option<&'a [f32]>,
    /// Limits of the result, applied with the bits of [`clamp`].
    pub bounds: Option<[f32; 2]>,
}

impl<'a> Finish<'a> {
    /// Creates a finish with an optional bias and without bounds.
    pub fn biased(bias: Option<&'a [f32]>) -> Finish<'a> {
        Finish { bias, bounds: None }
    }
}

/// Writes `out[r][n]` for `rows` rows. `x` is `[rows, inputs]` and `out` is `[rows, outputs]`, both
/// dense.
///
/// # Panics
/// When a length does not fit the dimensions.
pub fn linear(
    level: Level,
    pool: &Pool,
    x: &[f32],
    weights: Panels<'_>,
    finish: Finish<'_>,
    rows: usize,
    out: &mut [f32],
) {
    let Panels { inputs, outputs, .. } = weights;
    assert!(x.len() >= rows * inputs && out.len() >= rows * outputs, "activations shorter than the rows");
    weights.check();
    assert!(finish.bias.is_none_or(|bias| bias.len() >= outputs), "bias shorter than the outputs");
    if rows == 0 || outputs == 0 {
        return;
    }
    let panels = outputs.div_ceil(LANES);
    let work = rows as u64 * panels as u64 * LANES as u64 * inputs as u64;
    let target = SharedOutput::new(out);
    let shared = pool.worth(work);
    if rows == 1 {
        let body = |panels: Range<usize>, _: usize| {
            task_at(level, x, weights, finish, 0, 1, panels.start, panels.len(), target);
        };
        return if shared { pool.run_ranges(panels, ONE_ROW, &body) } else { body(0..panels, 0) };
    }
    // A unit is a step of rows by a group of panels. Every thread gets one, even if there are few
    // outputs.
    let steps = rows.div_ceil(ROW_STEP);
    let group = PANEL_GROUP.min((panels * steps).div_ceil(pool.threads()));
    let body = |units: Range<usize>, _: usize| {
        let mut next = units.start;
        while next < units.end {
            let (index, step) = (next / steps, next % steps);
            let count = (ROW_BLOCK / ROW_STEP).min(steps - step).min(units.end - next);
            let (panel, row) = (index * group, step * ROW_STEP);
            let (panels, rows) = (group.min(panels - panel), (count * ROW_STEP).min(rows - row));
            task_at(level, x, weights, finish, row, rows, panel, panels, target);
            next += count;
        }
    };
    let units = panels.div_ceil(group) * steps;
    let wide = steps.min(ROW_BLOCK / ROW_STEP);
    if shared { pool.run_ranges(units, Cut { wide, most: wide }, &body) } else { body(0..units, 0) }
}

/// Computes [`linear`] without a bias on the calling thread alone, as part of a larger task.
///
/// # Panics
/// See [`linear`].
pub fn linear_alone(level: Level, x: &[f32], weights: Panels<'_>, rows: usize, out: &mut [f32]) {
    let Panels { inputs, outputs, .. } = weights;
    assert!(x.len() >= rows * inputs && out.len() >= rows * outputs, "activations shorter than the rows");
    weights.check();
    let (panels, target) = (outputs.div_ceil(LANES), SharedOutput::new(out));
    for panel in (0..panels).step_by(PANEL_GROUP) {
        for row in (0..rows).step_by(ROW_BLOCK) {
            let (count, rows) = (PANEL_GROUP.min(panels - panel), ROW_BLOCK.min(rows - row));
            task_at(level, x, weights, Finish::default(), row, rows, panel, count, target);
        }
    }
}

/// Defines `$name::run(level, …)`, which computes a block of work over weights of one stored type.
///
/// Each type has its own function. Without optimisation, the stack frame of a function includes the
/// tiles of all types that it can run, and the tiles of ten types would exceed a thread's stack.
macro_rules! of_types {
    ($($name:ident: $element:ident;)*) => { $(
        mod $name {
            use super::tile::$element as Element;
            use super::{Finish, Panels, SharedOutput, Simd, block};

            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
            fn task<S: Simd>(
                s: S,
                x: &[f32],
                steps: *const Element,
                weights: Panels<'_>,
                finish: Finish<'_>,
                (row, rows): (usize, usize),
                (panel, panels): (usize, usize),
                out: SharedOutput<'_, f32>,
            ) {
                block::<S, Element>(s, x, steps, weights, finish, row, rows, panel, panels, out);
            }

            crate::simd::dispatch! {
                pub(super) fn run => task(
                    x: &[f32], steps: *const Element, weights: Panels<'_>, finish: Finish<'_>,
                    rows: (usize, usize), panels: (usize, usize), out: SharedOutput<'_, f32>,
                )
            }
        }
    )* };
}
of_types! {
    f32s: F32;
    bf16s: Bf16;
    f16s: F16;
    i8s: I8;
    i8_blocks: BlockI8;
    i8_affine: AffineI8;
    i4s: I4;
    i4_blocks: BlockI4;
    i4_affine: AffineI4;
    i2s: I2;
}

/// Computes a block of work: `rows` rows from `row`, `panels` panels from `panel`.
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
fn task_at(
    level: Level,
    x: &[f32],
    weights: Panels<'_>,
    finish: Finish<'_>,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    out: SharedOutput<'_, f32>,
) {
    macro_rules! with {
        ($name:ident, $steps:expr) => {
            $name::run(level, x, $steps.as_ptr().cast(), weights, finish, (row, rows), (panel, panels), out)
        };
    }
    let (affine, blocks) = (weights.is_affine(), weights.scales.block().is_some());
    match weights.data {
        PanelData::F32(steps) => with!(f32s, steps),
        PanelData::Bf16(steps) => with!(bf16s, steps),
        PanelData::F16(steps) => with!(f16s, steps),
        PanelData::I8(steps) if affine => with!(i8_affine, steps),
        PanelData::I8(steps) if blocks => with!(i8_blocks, steps),
        PanelData::I8(steps) => with!(i8s, steps),
        PanelData::I4(steps) if affine => with!(i4_affine, steps),
        PanelData::I4(steps) if blocks => with!(i4_blocks, steps),
        PanelData::I4(steps) => with!(i4s, steps),
        PanelData::I2(steps) => with!(i2s, steps),
    }
}

/// Widened weights of one block of k and up to [`PANEL_GROUP`] panels.
#[repr(C, align(64))]
struct Widened([std::mem::MaybeUninit<f32>; PANEL_GROUP * LANES * K_BLOCK]);

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
fn block<S: Simd, E: Element>(
    s: S,
    x: &[f32],
    steps: *const E,
    weights: Panels<'_>,
    finish: Finish<'_>,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    out: SharedOutput<'_, f32>,
) {
    let Panels { inputs, outputs, scales, .. } = weights;
    // The number of scales was checked together with the lengths.
    let blocks = weights.blocks().panel(panel);
    let column = panel * LANES;
    let columns = (panels * LANES).min(outputs - column);
    // SAFETY: `linear` checked the lengths, and `row + rows` and `panel + panels` stay within them.
    let (source, weights) = unsafe { (x.as_ptr().add(row * inputs), steps.add(panel * inputs)) };
    // SAFETY: as above, and no other task writes these rows of these columns.
    let target = unsafe { out.pointer().add(row * outputs + column) };
    // The rows of one tile read their weights once, from front to back. More rows reuse a block
    // while it is in cache.
    let step_limit = if rows <= HIGHEST { inputs } else { K_BLOCK };
    let widen = E::NARROW && rows >= WIDEN_ROWS && panels <= PANEL_GROUP;
    let mut widened = Widened([const { std::mem::MaybeUninit::uninit() }; PANEL_GROUP * LANES * K_BLOCK]);
    let scratch = widened.0.as_mut_ptr().cast::<f32>();
    let mut k = 0;
    loop {
        let steps = step_limit.min(inputs - k);
        // SAFETY: `k + steps` ≤ `inputs`, so the blocks of x and of the panels are in bounds as
        // computed above. The scratch array has room for 4 panels of K_BLOCK steps, and is only
        // read where it was just written.
        unsafe {
            if widen {
                for index in 0..panels {
                    for step in 0..steps {
                        let mut value = E::load(s, weights.add(index * inputs + k + step));
                        if E::SCALED {
                            let map = blocks.map::<S, E>(s, index, (k + step) / blocks.size);
                            value = blocks.value::<S, E>(s, value, map);
                        }
                        s.store(scratch.add((index * K_BLOCK + step) * LANES), value);
                    }
                }
                let (x, w) = (source.add(k), scratch.cast_const().cast::<[f32; LANES]>());
                rows_by_panels(
                    s,
                    x,
                    inputs,
                    w,
                    K_BLOCK,
                    Blocks::NONE,
                    steps,
                    target,
                    outputs,
                    rows,
                    columns,
                    k > 0,
                );
            } else {
                let (x, w, blocks) = (source.add(k), weights.add(k), Blocks { first: k, ..blocks });
                rows_by_panels(s, x, inputs, w, inputs, blocks, steps, target, outputs, rows, columns, k > 0);
            }
        }
        k += steps;
        if k >= inputs {
            break;
        }
    }
    let scales = match scales {
        Scales::PerOutput(scales) => Some(scales),
        _ => None,
    };
    let Finish { bias, bounds } = finish;
    if bias.is_none() && scales.is_none() && bounds.is_none() {
        return;
    }
    for r in 0..rows {
        let mut done = 0;
        while done < columns {
            let count = LANES.min(columns - done);
            // SAFETY: `column + columns` ≤ `outputs` ≤ the lengths of bias and scales, and this
            // task owns the output block.
            unsafe {
                let place = target.add(r * outputs + done);
                let sum = s.load_partial(place.cast_const(), count);
                let of = |values: &[f32]| s.load_partial(values.as_ptr().add(column + done), count);
                let mut value = match (scales, bias) {
                    (Some(scales), Some(bias)) => s.fma(sum, of(scales), of(bias)),
                    (Some(scales), None) => s.mul(sum, of(scales)),
                    (None, Some(bias)) => s.add(sum, of(bias)),
                    (None, None) => sum,
                };
                if let Some([low, high]) = bounds {
                    value = clamp(s, value, low, high);
                }
                s.store_partial(place, count, value);
            }
            done += count;
        }
    }
}

#[cfg(test)]
mod tests;
