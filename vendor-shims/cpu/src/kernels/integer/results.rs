//! Conversion of exact sums of units to results, with scales, minimums, bias and bounds. The first
//! lines of [`super`] define the order.

use super::Operands;
use super::numbers::Cursor;
use crate::kernels::linear::Scales;
use crate::kernels::math::clamp;
use crate::pool::SharedOutput;
use crate::simd::dot::{Dot, Part};
use crate::simd::{LANES, Simd, each};

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
/// Mode: blocks of the rows have scales. Blocks of the weights have scales too, or count as 1.
pub(super) const OF_BOTH: u8 = 3;

pub(super) fn mode(operands: &Operands<'_>) -> u8 {
    match (operands.weights.scales, operands.geometry.scaled) {
        (_, true) => OF_BOTH,
        (Scales::Blocks { .. }, false) => OF_WEIGHTS,
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

/// Writes the results of a tile of rows that are one unit each, from their exact sums. `columns`
/// has the factors of each panel. If it is empty, they are computed here.
#[inline(always)]
pub(super) fn finish_whole<D: Dot, const ROWS: usize, const PANELS: usize>(
    d: D,
    lanes: &[[[i32; LANES]; PANELS]; ROWS],
    columns: &[Columns],
    operands: Operands<'_>,
    (row, panel): (usize, usize),
    target: Target<'_>,
) {
    struct Whole<'a> {
        lanes: &'a [[i32; LANES]],
        panels: usize,
        columns: &'a [Columns],
        operands: Operands<'a>,
        row: usize,
        panel: usize,
        target: Target<'a>,
    }
    impl<D: Dot> Part<D> for Whole<'_> {
        #[inline(always)]
        fn run(self, d: D) {
            for p in 0..self.panels {
                let made;
                let columns = match self.columns.get(p) {
                    Some(columns) => columns,
                    None => {
                        made = Columns::of(self.operands, self.panel + p);
                        &made
                    }
                };
                for (r, lanes) in self.lanes.chunks_exact(self.panels).enumerate() {
                    columns.write(d, d.sums(&lanes[p]), self.operands, self.row + r, self.target);
                }
            }
        }
    }
    d.apart(Whole { lanes: lanes.as_flattened(), panels: PANELS, columns, operands, row, panel, target });
}

/// Writes the results of a tile from exact sums that do not fit into 32 bits.
#[inline(always)]
pub(super) fn finish_long<D: Dot, const ROWS: usize, const PANELS: usize>(
    d: D,
    totals: &[[[f64; LANES]; PANELS]; ROWS],
    operands: Operands<'_>,
    row: usize,
    panel: usize,
    target: Target<'_>,
) {
    struct Long<'a> {
        totals: &'a [[f64; LANES]],
        panels: usize,
        operands: Operands<'a>,
        row: usize,
        panel: usize,
        target: Target<'a>,
    }
    impl<D: Dot> Part<D> for Long<'_> {
        #[inline(always)]
        fn run(self, d: D) {
            for (result, totals) in self.totals.iter().enumerate() {
                let (row, p) = (self.row + result / self.panels, result % self.panels);
                let columns = Columns::of(self.operands, self.panel + p);
                let row_scale = f64::from(self.operands.rows.scales[row]);
                let mut results = [0.0; LANES];
                for lane in 0..LANES {
                    results[lane] = value(totals[lane], row_scale, columns.scales[lane], columns.bias[lane]);
                }
                // SAFETY: sixteen values.
                let value = unsafe { d.values().load(results.as_ptr()) };
                store(d.values(), value, &self.operands, row, columns.first, columns.count, self.target);
            }
        }
    }
    d.apart(Long { totals: totals.as_flattened(), panels: PANELS, operands, row, panel, target });
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
/// factor is the scale of the weights' block, times the scale of the row's block if rows have some.
///
/// # Safety
/// The rows, the panels and the unit must exist, `MODE` must be [`OF_WEIGHTS`] or [`OF_BOTH`], as
/// the operands require, and `cursor` must be at the unit.
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
    // SAFETY: guaranteed by the caller.
    let of_weights: [_; PANELS] = unsafe { cursor.scales(f) };
    for (p, of_weights) in of_weights.iter().enumerate() {
        for r in 0..ROWS {
            let mut factor = *of_weights;
            if MODE == OF_BOTH {
                // SAFETY: rows have a scale for each unit.
                let of_row = unsafe { *operands.rows.scales.as_ptr().add((row + r) * units + unit) };
                factor = f.mul(f.splat(of_row), factor);
            }
            values[r][p] = f.fma(d.widen(sums[r][p]), factor, values[r][p]);
        }
    }
}

/// Writes the results of a tile from values to which all units were added. Subtracts the sums of
/// minimums if there are any.
///
/// # Safety
/// The rows and the panels must exist.
#[inline(always)]
pub(super) unsafe fn finish<D: Dot, const ROWS: usize, const PANELS: usize>(
    d: D,
    values: &[[<D::F as Simd>::V; PANELS]; ROWS],
    operands: &Operands<'_>,
    row: usize,
    panel: usize,
    target: Target<'_>,
) {
    // Copied, because values that another function reads are not kept in registers.
    let mut results = [[d.values().splat(0.0); PANELS]; ROWS];
    for (results, values) in results.iter_mut().zip(values) {
        for (result, value) in results.iter_mut().zip(values) {
            *result = *value;
        }
    }
    let values = results.as_flattened_mut();
    d.apart(Results::<D> { values, rows: ROWS, panels: PANELS, operands, row, panel, target });
}

/// Values of a tile to which all units were added.
struct Results<'a, D: Dot> {
    /// `[rows, panels]`
    values: &'a mut [<D::F as Simd>::V],
    rows: usize,
    panels: usize,
    operands: &'a Operands<'a>,
    /// First row. All rows exist.
    row: usize,
    /// First panel. All panels exist.
    panel: usize,
    target: Target<'a>,
}

impl<D: Dot> Part<D> for Results<'_, D> {
    #[inline(always)]
    fn run(mut self, d: D) {
        let s = d.values();
        if self.operands.weights.scales.has_minimums() {
            let (rows, panels) = (self.rows, self.panels);
            let steps = match (rows, panels) {
                (1, 2) => [1, 2],
                (1, panels) if panels.is_multiple_of(4) => [1, 4],
                (1 | 2, _) => [rows, 1],
                _ => [4, 1],
            };
            for r in (0..rows).step_by(steps[0]) {
                for p in (0..panels).step_by(steps[1]) {
                    // SAFETY: the rows and panels exist, and blocks have minimums.
                    unsafe {
                        match steps {
                            [1, 4] => self.lower::<1, 4>(s, r, p),
                            [1, 2] => self.lower::<1, 2>(s, r, p),
                            [1, _] => self.lower::<1, 1>(s, r, p),
                            [2, _] => self.lower::<2, 1>(s, r, p),
                            _ => self.lower::<4, 1>(s, r, p),
                        }
                    }
                }
            }
        }
        for r in 0..self.rows {
            for p in 0..self.panels {
                let value = self.values[r * self.panels + p];
                finish_one(s, value, self.operands, self.row + r, self.panel + p, self.target);
            }
        }
    }
}

impl<D: Dot> Results<'_, D> {
    /// Subtracts `Σ total · minimum` over the units of each row and panel, in the order of
    /// `sum = fma(total, minimum, sum)` from zero. Skips rows after the last one.
    ///
    /// # Safety
    /// The rows and the panels must exist, and the blocks must have minimums.
    #[inline(always)]
    unsafe fn lower<const ROWS: usize, const PANELS: usize>(&mut self, s: D::F, row: usize, panel: usize) {
        let (operands, units) = (self.operands, self.operands.geometry.units);
        let last = self.rows - 1;
        let totals: [&[f32]; ROWS] = each(
            #[inline(always)]
            |r| &operands.rows.totals[(self.row + (row + r).min(last)) * units..][..units],
        );
        let mut cursor = Cursor::of(operands, self.panel + panel);
        let mut sums = [[s.splat(0.0); PANELS]; ROWS];
        for unit in 0..units {
            // SAFETY: guaranteed by the caller, and the cursor advances unit by unit.
            let minimums: [_; PANELS] = unsafe { cursor.minimums(s) };
            cursor.advance();
            for (totals, sums) in totals.iter().zip(&mut sums) {
                let total = s.splat(totals[unit]);
                for (sum, minimum) in sums.iter_mut().zip(&minimums) {
                    *sum = s.fma(total, *minimum, *sum);
                }
            }
        }
        for (r, sums) in (row..self.rows).zip(&sums) {
            for (p, sum) in (panel..).zip(sums) {
                let value = &mut self.values[r * self.panels + p];
                *value = s.sub(*value, *sum);
            }
        }
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
