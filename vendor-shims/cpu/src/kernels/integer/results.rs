//! Conversion of exact sums of units to results, with scales, minimums, bias and bounds. The first
//! lines of [`super`] define the order.

use super::Operands;
use super::numbers::Cursor;
use crate::kernels::linear::Scales;
use crate::kernels::math::clamp;
use crate::pool::SharedOutput;
use crate::simd::dot::Dot;
use crate::simd::{LANES, Simd};

/// Destination of the results.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// `[rows, stride]`
    pub out: SharedOutput<'a, f32>,
    /// Number of outputs of a row.
    pub stride: usize,
}

/// Mode: a row is one unit, whose exact sum is the result.
pub(super) const WHOLE: u8 = 0;
/// Mode: units have no scales. A row has several of them only because its sum would overflow.
pub(super) const LONG: u8 = 1;
/// Mode: blocks of the weights have scales.
pub(super) const OF_WEIGHTS: u8 = 2;
/// Mode: blocks of the rows have scales, and weights have a scale per output.
pub(super) const OF_ROWS: u8 = 3;
/// Mode: blocks of the weights and of the rows have scales.
pub(super) const OF_BOTH: u8 = 4;

pub(super) fn mode(operands: &Operands<'_>) -> u8 {
    match (operands.weights.scales, operands.geometry.scaled) {
        (Scales::Blocks { .. }, true) => OF_BOTH,
        (Scales::Blocks { .. }, false) => OF_WEIGHTS,
        (_, true) => OF_ROWS,
        _ if operands.geometry.units == 1 => WHOLE,
        _ => LONG,
    }
}

/// Computes a result from an exact sum.
#[inline(always)]
pub(super) fn value(sum: f64, row_scale: f64, scale: f64, bias: f64) -> f32 {
    (sum * (row_scale * scale) + bias) as f32
}

/// Factors for the results of a panel, which apply to every row.
pub(super) struct Columns {
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) scales: [f64; LANES],
    pub(super) bias: [f64; LANES],
}

impl Columns {
    pub(super) const NONE: Columns = Columns { first: 0, count: 0, scales: [0.0; LANES], bias: [0.0; LANES] };

    #[inline(always)]
    pub(super) fn of(operands: Operands<'_>, panel: usize) -> Columns {
        let first = panel * LANES;
        let count = LANES.min(operands.weights.outputs - first);
        let scales = match operands.weights.scales {
            Scales::PerOutput(scales) => lanes_of(&scales[first..first + count]),
            _ => unreachable!("sums of blocks with scales are finished as they are"),
        };
        let bias = operands.bias.map_or([0.0; LANES], |bias| lanes_of(&bias[first..first + count]));
        Columns { first, count, scales: scales.map(f64::from), bias: bias.map(f64::from) }
    }

    /// Writes the results of a row.
    #[inline(always)]
    pub(super) fn write<D: Dot>(
        &self,
        d: D,
        sums: D::Sums,
        operands: Operands<'_>,
        row: usize,
        target: Target<'_>,
    ) {
        let value = d.exact(sums, f64::from(operands.rows.scales[row]), &self.scales, &self.bias);
        store(d.values(), value, &operands, row, self.first, self.count, target);
    }
}

/// Writes the results of a tile from exact sums that do not fit into 32 bits.
#[inline(always)]
pub(super) fn finish_long<F: Simd, const ROWS: usize, const PANELS: usize>(
    f: F,
    totals: &[[[f64; LANES]; PANELS]; ROWS],
    operands: Operands<'_>,
    row: usize,
    panel: usize,
    target: Target<'_>,
) {
    // An opaque count stops the compiler from duplicating the end of a tile for every result.
    for result in 0..std::hint::black_box(ROWS * PANELS) {
        let (r, p) = (result / PANELS, result % PANELS);
        let (columns, totals) = (Columns::of(operands, panel + p), &totals[r][p]);
        let row_scale = f64::from(operands.rows.scales[row + r]);
        let mut results = [0.0; LANES];
        for lane in 0..LANES {
            results[lane] = value(totals[lane], row_scale, columns.scales[lane], columns.bias[lane]);
        }
        // SAFETY: sixteen values.
        let value = unsafe { f.load(results.as_ptr()) };
        store(f, value, &operands, row + r, columns.first, columns.count, target);
    }
}

/// Copies at most sixteen values and pads them with zeros.
#[inline(always)]
fn lanes_of(values: &[f32]) -> [f32; LANES] {
    match values.try_into() {
        Ok(all) => all,
        Err(_) => {
            let mut all = [0.0; LANES];
            all[..values.len()].copy_from_slice(values);
            all
        }
    }
}

/// Writes `count` results of a row from output `first` on, within the bounds.
#[inline(always)]
fn store<F: Simd>(
    f: F,
    mut value: F::V,
    operands: &Operands<'_>,
    row: usize,
    first: usize,
    count: usize,
    target: Target<'_>,
) {
    if let Some([low, high]) = operands.bounds {
        value = clamp(f, value, low, high);
    }
    // SAFETY: only the caller's task writes these results.
    unsafe {
        let out = target.out.part(row * target.stride + first, count);
        match count {
            LANES => f.store(out.as_mut_ptr(), value),
            count => f.store_partial(out.as_mut_ptr(), count, value),
        }
    }
}

/// Adds the exact sums of a unit to the values of a tile, `value = fma(sum, factor, value)`. The
/// factor is the scale of the row's block, of the weights' block, or their product.
///
/// # Safety
/// The rows, the panels and the unit must exist, `MODE` must be the operands' mode, with scales of
/// blocks, and `cursor` must be at the unit.
#[inline(always)]
pub(super) unsafe fn add_unit<D: Dot, const MODE: u8, const ROWS: usize, const PANELS: usize>(
    d: D,
    operands: &Operands<'_>,
    (row, unit): (usize, usize),
    cursor: &Cursor<'_>,
    sums: &[[D::Sums; PANELS]; ROWS],
    values: &mut [[<D::F as Simd>::V; PANELS]; ROWS],
) {
    let (f, units) = (d.values(), operands.geometry.units);
    let mut of_weights = [f.splat(1.0); PANELS];
    if MODE == OF_WEIGHTS || MODE == OF_BOTH {
        // SAFETY: guaranteed by the caller.
        of_weights = unsafe { cursor.scales(f) };
    }
    for (p, of_weights) in of_weights.iter().enumerate() {
        for r in 0..ROWS {
            let mut factor = *of_weights;
            if MODE == OF_ROWS || MODE == OF_BOTH {
                // SAFETY: rows have a scale for each unit.
                let of_row = unsafe { *operands.rows.scales.as_ptr().add((row + r) * units + unit) };
                factor = match MODE {
                    OF_BOTH => f.mul(f.splat(of_row), *of_weights),
                    _ => f.splat(of_row),
                };
            }
            values[r][p] = f.fma(d.widen(sums[r][p]), factor, values[r][p]);
        }
    }
}

/// Computes `Σ total · minimum` over the units of each row and panel, `sum = fma(total, minimum,
/// sum)` from zero.
///
/// # Safety
/// The rows and the panels must exist, and the blocks must have minimums.
#[inline(always)]
unsafe fn lower<S: Simd, const ROWS: usize, const PANELS: usize>(
    s: S,
    operands: &Operands<'_>,
    row: usize,
    panel: usize,
) -> [[S::V; PANELS]; ROWS] {
    let units = operands.geometry.units;
    let totals = &operands.rows.totals[row * units..][..ROWS * units];
    let mut cursor = Cursor::of(operands, panel);
    let mut sums = [[s.splat(0.0); PANELS]; ROWS];
    for unit in 0..units {
        // SAFETY: guaranteed by the caller, and the cursor advances unit by unit.
        let minimums: [S::V; PANELS] = unsafe { cursor.minimums(s) };
        cursor.advance();
        for (r, sums) in sums.iter_mut().enumerate() {
            let total = s.splat(totals[r * units + unit]);
            for (sum, minimum) in sums.iter_mut().zip(&minimums) {
                *sum = s.fma(total, *minimum, *sum);
            }
        }
    }
    sums
}

/// Writes the results of a tile from values to which all units were added. Subtracts the sums of
/// minimums if there are any.
///
/// # Safety
/// The rows and the panels must exist.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd, const ROWS: usize, const PANELS: usize>(
    s: S,
    mut values: [[S::V; PANELS]; ROWS],
    operands: &Operands<'_>,
    row: usize,
    panel: usize,
    target: Target<'_>,
) {
    if operands.weights.scales.has_minimums() {
        // SAFETY: guaranteed by the caller, and the blocks have minimums.
        let lower = unsafe { lower::<S, ROWS, PANELS>(s, operands, row, panel) };
        for (values, lower) in values.iter_mut().zip(&lower) {
            for (value, lower) in values.iter_mut().zip(lower) {
                *value = s.sub(*value, *lower);
            }
        }
    }
    // Copied, because values that are indexed with a variable are not kept in registers.
    let mut results = [[s.splat(0.0); PANELS]; ROWS];
    for (results, values) in results.iter_mut().zip(&values) {
        for (result, value) in results.iter_mut().zip(values) {
            *result = *value;
        }
    }
    // An opaque count stops the compiler from duplicating the end of a tile for every result.
    for result in 0..std::hint::black_box(ROWS * PANELS) {
        let (r, p) = (result / PANELS, result % PANELS);
        finish_one(s, results[r][p], operands, row + r, panel + p, target);
    }
}

/// Writes the results of one row and panel: `value · factor + bias`, rounded once. The factor is
/// the scale of the row, or of the output if blocks of rows have scales. If blocks of the weights
/// have scales too, the sums include all factors.
#[inline(always)]
fn finish_one<S: Simd>(
    s: S,
    value: S::V,
    operands: &Operands<'_>,
    row: usize,
    panel: usize,
    target: Target<'_>,
) {
    let first = panel * LANES;
    let count = LANES.min(operands.weights.outputs - first);
    let factor = match operands.weights.scales {
        _ if !operands.geometry.scaled => Some(s.splat(operands.rows.scales[row])),
        Scales::PerOutput(scales) => Some(load(s, scales, first, count)),
        _ => None,
    };
    let value = match (factor, operands.bias) {
        (Some(factor), Some(bias)) => s.fma(value, factor, load(s, bias, first, count)),
        (Some(factor), None) => s.mul(value, factor),
        (None, Some(bias)) => s.add(value, load(s, bias, first, count)),
        (None, None) => value,
    };
    store(s, value, operands, row, first, count, target);
}

/// Loads `count` values from `first` on. The other lanes are zero.
#[inline(always)]
fn load<S: Simd>(s: S, values: &[f32], first: usize, count: usize) -> S::V {
    // SAFETY: the slice has as many values.
    unsafe { s.load_partial(values[first..first + count].as_ptr(), count) }
}
