//! Conversion of sums of products to results, with scales, bias and bounds.

use super::Operands;
use super::tile::Target;
use crate::kernels::linear::Scales;
use crate::kernels::math::clamp;
use crate::simd::dot::Dot;
use crate::simd::{LANES, Simd};

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
        self.store(d.values(), value, operands, row, target);
    }

    /// Writes the results of a row whose sums are not in a register.
    #[inline(always)]
    pub(super) fn write_lanes<F: Simd>(
        &self,
        f: F,
        sums: [f64; LANES],
        operands: Operands<'_>,
        row: usize,
        target: Target<'_>,
    ) {
        let row_scale = f64::from(operands.rows.scales[row]);
        let mut results = [0.0; LANES];
        for lane in 0..LANES {
            results[lane] = value(sums[lane], row_scale, self.scales[lane], self.bias[lane]);
        }
        // SAFETY: sixteen values.
        let value = unsafe { f.load(results.as_ptr()) };
        self.store(f, value, operands, row, target);
    }

    #[inline(always)]
    fn store<F: Simd>(&self, f: F, mut value: F::V, operands: Operands<'_>, row: usize, target: Target<'_>) {
        if let Some([low, high]) = operands.bounds {
            value = clamp(f, value, low, high);
        }
        // SAFETY: only the caller's task writes these results.
        unsafe {
            let out = target.out.part(row * target.stride + self.first, self.count);
            match self.count {
                LANES => f.store(out.as_mut_ptr(), value),
                count => f.store_partial(out.as_mut_ptr(), count, value),
            }
        }
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

/// Writes the results of one row and panel from sums of blocks whose scales are already applied.
/// Weights with a scale per output are scaled here.
#[inline(always)]
pub(super) fn finish_paired<F: Simd>(
    f: F,
    sums: F::V,
    operands: Operands<'_>,
    row: usize,
    panel: usize,
    target: Target<'_>,
) {
    let first = panel * LANES;
    let count = LANES.min(operands.weights.outputs - first);
    // SAFETY: as many scales and values of the bias exist, and only the caller's task writes these
    // results.
    unsafe {
        let bias = operands.bias.map(|bias| f.load_partial(bias[first..first + count].as_ptr(), count));
        let scale = match operands.weights.scales {
            Scales::PerOutput(scales) => Some(f.load_partial(scales[first..first + count].as_ptr(), count)),
            _ => None,
        };
        let mut value = match (scale, bias) {
            (Some(scale), Some(bias)) => f.fma(sums, scale, bias),
            (Some(scale), None) => f.mul(sums, scale),
            (None, Some(bias)) => f.add(sums, bias),
            (None, None) => sums,
        };
        if let Some([low, high]) = operands.bounds {
            value = clamp(f, value, low, high);
        }
        let out = target.out.part(row * target.stride + first, count);
        f.store_partial(out.as_mut_ptr(), count, value);
    }
}

/// Writes the results of one row and panel from sums of scaled blocks.
#[inline(always)]
pub(super) fn finish_scaled<F: Simd>(
    f: F,
    sums: F::V,
    operands: Operands<'_>,
    row: usize,
    panel: usize,
    target: Target<'_>,
) {
    let column = panel * LANES;
    let columns = LANES.min(operands.weights.outputs - column);
    let scale = f.splat(operands.rows.scales[row]);
    // SAFETY: only the caller's task writes these results, and as many columns of the bias exist.
    unsafe {
        let out = target.out.part(row * target.stride + column, columns);
        let mut value = match operands.bias {
            Some(bias) => {
                f.fma(sums, scale, f.load_partial(bias[column..column + columns].as_ptr(), columns))
            }
            None => f.mul(sums, scale),
        };
        if let Some([low, high]) = operands.bounds {
            value = clamp(f, value, low, high);
        }
        f.store_partial(out.as_mut_ptr(), columns, value);
    }
}
