//! Quantisation of rows to signed bytes with a scale per row, or per block of a row.

use super::Geometry;
use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Registers, Simd, dispatch};

/// Largest magnitude of a quantised value.
const MOST: f32 = 127.0;
/// Smallest magnitude that a row is scaled to, so that a row of zeros has a scale.
const LEAST: f32 = 1e-30;
/// Quotients closer than this to a half are computed by division, because a product with the
/// reciprocal may be off by 128 · 3/2²⁴.
const TIE: f32 = 1e-4;
/// Approximate cost of a value, in multiply-adds.
const COST: u64 = 4;

/// Quantised rows (see [`quantise_rows`]).
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// `[rows, length]`
    pub q: &'a [i8],
    /// `[rows, units]`
    pub sums: &'a [i32],
    /// `[rows]`, or `[rows, units]` if the geometry is scaled.
    pub scales: &'a [f32],
    /// `[rows, units]` if weights have minimums, otherwise empty.
    pub totals: &'a [f32],
    /// Whether `q` is stored plus 128, as unsigned bytes.
    pub raised: bool,
}

/// Quantises each row of `x [rows, inputs]`. Computes `scale = max(max|x|, 1e-30) · (1/127)` and `q
/// = round(x / scale)`, ties to even, within −127 and 127, all in f32. If the geometry is scaled,
/// each block of a row is quantised separately, and every unit gets the scale of its block.
///
/// `q` receives rows of `geometry.length` with units padded with zeros, and `scales` as many scales
/// for each row as [`Geometry::scales`] returns. `sums` receives the sum of `q` of every unit of
/// every row. Unless it is empty, `totals` receives these sums in f32, multiplied by the unit's
/// scale if the geometry is scaled. A NaN or an infinity makes the scale NaN, so products of its
/// row are NaN. With `raised`, all of `q` is stored plus 128, as unsigned bytes.
///
/// # Panics
/// When a length does not fit the dimensions.
#[allow(clippy::too_many_arguments, reason = "operands and four results")]
pub fn quantise_rows(
    level: Level,
    pool: &Pool,
    x: &[f32],
    geometry: Geometry,
    rows: usize,
    raised: bool,
    q: &mut [i8],
    sums: &mut [i32],
    scales: &mut [f32],
    totals: &mut [f32],
) {
    let Geometry { inputs, units, length, .. } = geometry;
    assert!(x.len() >= rows * inputs && q.len() >= rows * length, "values shorter than the rows");
    let each = geometry.scales();
    assert!(scales.len() >= rows * each && sums.len() >= rows * units, "fewer scales or sums than rows");
    let some = if totals.is_empty() { 0 } else { units };
    let (q, sums) = (SharedOutput::new(q), SharedOutput::new(sums));
    let (scales, totals) = (SharedOutput::new(scales), SharedOutput::new(totals));
    let body = |row: usize| {
        // SAFETY: every task has its own row.
        let (q, sums) = unsafe { (q.part(row * length, length), sums.part(row * units, units)) };
        // SAFETY: as above.
        let (scales, totals) = unsafe { (scales.part(row * each, each), totals.part(row * some, some)) };
        quantise_at(level, &x[row * inputs..][..inputs], geometry, raised, q, sums, scales, totals);
    };
    if pool.worth(COST * rows as u64 * inputs as u64) && rows > 1 {
        // Rows are short, so a task has several.
        let part = rows.div_ceil(pool.threads() * 4);
        pool.run_pieces(rows, part, &|first, count| (first..first + count).for_each(&body));
    } else {
        (0..rows).for_each(body);
    }
}

dispatch! {
    fn quantise_at => quantise(
        x: &[f32], geometry: Geometry, raised: bool,
        q: &mut [i8], sums: &mut [i32], scales: &mut [f32], totals: &mut [f32],
    )
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and four results")]
fn quantise<S: Simd>(
    s: S,
    x: &[f32],
    geometry: Geometry,
    raised: bool,
    q: &mut [i8],
    sums: &mut [i32],
    scales: &mut [f32],
    totals: &mut [f32],
) {
    let Geometry { unit, stride, scaled, per_row_scale, .. } = geometry;
    let (mut step, mut scale) = (0.0, 0.0);
    if !scaled {
        (step, scale) = match S::REGISTERS {
            Registers::Many => scale_of::<S, 4>(s, x),
            _ => scale_of::<S, 1>(s, x),
        };
        scales[0] = scale;
    }
    for (index, values) in x.chunks(unit).enumerate() {
        if scaled {
            if index.is_multiple_of(per_row_scale) {
                let block = &x[index * unit..];
                (step, scale) = scale_of::<S, 1>(s, &block[..block.len().min(unit * per_row_scale)]);
            }
            scales[index] = scale;
        }
        let sum = steps_of(s, values, step, &mut q[index * stride..][..geometry.places(index)]);
        sums[index] = sum;
        if let Some(total) = totals.get_mut(index) {
            *total = if scaled { scale * sum as f32 } else { sum as f32 };
        }
    }
    if raised {
        q.iter_mut().for_each(|q| *q ^= i8::MIN);
    }
}

/// Returns the step of a row or block, and its scale, which is NaN if a value is not finite.
#[inline(always)]
fn scale_of<S: Simd, const CHAINS: usize>(s: S, x: &[f32]) -> (f32, f32) {
    let (largest, poison) = extremes::<S, CHAINS>(s, x);
    let step = s.reduce_max(largest) * (1.0 / MOST);
    (step, step + s.reduce_add(poison))
}

/// Writes the quantised values of a unit, padded with zeros, and returns their sum.
#[inline(always)]
fn steps_of<S: Simd>(s: S, unit: &[f32], step: f32, q: &mut [i8]) -> i32 {
    let (divisor, reciprocal) = (s.splat(step), s.splat(1.0 / step));
    // The sums are integers below 2²⁴ in magnitude and therefore exact in f32: at most 2¹⁶ values
    // of 127 in sixteen lanes.
    let mut sum = s.splat(0.0);
    for (chunk, q) in unit.chunks(LANES).zip(q.chunks_exact_mut(LANES)) {
        // SAFETY: the chunk has `len` ≤ 16 values, lanes beyond are zero, and `q` has sixteen
        // places.
        unsafe {
            let values = s.load_partial(chunk.as_ptr(), chunk.len());
            let quotients = s.mul(values, reciprocal);
            let mut steps = s.round(quotients);
            if !s.all_less(s.abs(s.sub(quotients, steps)), s.splat(0.5 - TIE)) {
                steps = s.round(s.div(values, divisor));
            }
            // NaN becomes the largest value.
            let steps = s.max(s.min(steps, s.splat(MOST)), s.splat(-MOST));
            s.store_i8(q.as_mut_ptr(), steps);
            sum = s.add(sum, steps);
        }
    }
    s.reduce_add(sum) as i32
}

/// Returns the largest magnitudes, at least [`LEAST`], and zeros if all values are finite,
/// otherwise a NaN. Processes `CHAINS` vectors in parallel, because each chain waits for its last
/// operation.
#[inline(always)]
fn extremes<S: Simd, const CHAINS: usize>(s: S, x: &[f32]) -> (S::V, S::V) {
    let mut largest = [s.splat(LEAST); CHAINS];
    let mut poison = [s.splat(0.0); CHAINS];
    for chunk in x.chunks(CHAINS * LANES) {
        for (chain, (largest, poison)) in largest.iter_mut().zip(&mut poison).enumerate() {
            let from = (chain * LANES).min(chunk.len());
            // SAFETY: as many values follow, and lanes beyond are zero.
            let values = unsafe { s.load_partial(chunk.as_ptr().add(from), LANES.min(chunk.len() - from)) };
            *largest = s.max(s.abs(values), *largest);
            *poison = s.fma(values, s.splat(0.0), *poison);
        }
    }
    let mut all = (largest[0], poison[0]);
    for (largest, poison) in largest.iter().zip(&poison).skip(1) {
        all = (s.max(*largest, all.0), s.add(*poison, all.1));
    }
    all
}

#[cfg(test)]
mod tests {
    use shardwright_shim_testing::bits;

    use super::*;

    #[test]
    fn rows_have_their_scales_and_units_their_sums() {
        let (rows, inputs) = (3, 45);
        let mut x: Vec<f32> = (0..rows * inputs).map(|i| ((i * 29) % 71) as f32 / 10.0 - 3.0).collect();
        x[inputs..2 * inputs].fill(0.0);
        // Blocks of rows, and blocks of weights.
        let whole = [(None, None), (None, Some(20)), (None, Some(16))];
        let scaled = [(Some(16), None), (Some(32), None), (Some(32), Some(16)), (Some(16), Some(32))];
        for (block, size) in whole.into_iter().chain(scaled) {
            let geometry = Geometry::of(inputs, block, size).expect("blocks that suit");
            for level in Level::available() {
                let mut q = vec![99i8; rows * geometry.length];
                let mut sums = vec![99; rows * geometry.units];
                let mut scales = vec![f32::NAN; rows * geometry.scales()];
                let mut totals = vec![f32::NAN; rows * geometry.units];
                let pool = Pool::eager(2);
                let (q, sums, scales) = (&mut q, &mut sums, &mut scales);
                quantise_rows(level, &pool, &x, geometry, rows, true, q, sums, scales, &mut []);
                let raised = q.clone();
                quantise_rows(level, &pool, &x, geometry, rows, false, q, sums, scales, &mut totals);
                for (row, x) in x.chunks(inputs).enumerate() {
                    let scale_of = |k: usize| {
                        let part = x.chunks(block.unwrap_or(inputs)).nth(k / block.unwrap_or(inputs));
                        let part = part.expect("an input of the row");
                        part.iter().fold(1e-30f32, |most, value| most.max(value.abs())) * (1.0 / 127.0)
                    };
                    let mut expected = vec![0i8; geometry.length];
                    let mut sum = vec![0i32; geometry.units];
                    for (k, value) in x.iter().enumerate() {
                        let step = (value / scale_of(k)).round_ties_even() as i8;
                        expected[geometry.place(k)] = step;
                        sum[k / geometry.unit] += i32::from(step);
                    }
                    let firsts = (0..geometry.units).map(|unit| unit * geometry.unit);
                    let of_units: Vec<f32> = firsts.map(scale_of).collect();
                    let total = |(sum, scale): (&i32, &f32)| match block {
                        Some(_) => *scale * *sum as f32,
                        None => *sum as f32,
                    };
                    let total: Vec<f32> = sum.iter().zip(&of_units).map(total).collect();
                    let each = geometry.scales();
                    let how = format!("{block:?}, {size:?}, {}", level.name());
                    assert_eq!(bits(&scales[row * each..][..each]), bits(&of_units[..each]), "{how}");
                    assert_eq!(q[row * geometry.length..][..geometry.length], expected, "{how}");
                    let plus = expected.iter().map(|q| q.wrapping_add(-128)).collect::<Vec<i8>>();
                    assert_eq!(raised[row * geometry.length..][..geometry.length], plus, "{how}");
                    let units = row * geometry.units..(row + 1) * geometry.units;
                    assert_eq!(sums[units.clone()], sum, "{how}");
                    assert_eq!(bits(&totals[units]), bits(&total), "{how}");
                }
            }
        }
    }

    #[test]
    fn nan_or_infinity_makes_the_scale_nan() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for level in Level::available() {
                let mut x = [1.0f32; 40];
                x[33] = wrong;
                let geometry = Geometry::of(20, None, None).expect("no blocks");
                let (mut q, mut sums, mut scales) = ([0i8; 64], [0; 2], [0.0; 2]);
                let (pool, to) = (Pool::eager(1), (&mut q, &mut sums, &mut scales));
                quantise_rows(level, &pool, &x, geometry, 2, false, to.0, to.1, to.2, &mut []);
                assert!(scales[0].is_finite() && scales[1].is_nan(), "{wrong}, {}", level.name());
                assert!(q.iter().all(|q| *q != i8::MIN));
                // A scale for every 16 of 20 values: only the blocks with the wrong value are NaN.
                let geometry = Geometry::of(20, Some(16), None).expect("whole steps");
                let (mut sums, mut scales, mut totals) = ([0; 4], [0.0; 4], [0.0; 4]);
                let to = (&mut q, &mut sums, &mut scales, &mut totals);
                quantise_rows(level, &pool, &x, geometry, 2, false, to.0, to.1, to.2, to.3);
                assert_eq!(scales.map(f32::is_nan), [false, false, true, false]);
                assert_eq!(totals.map(f32::is_nan), [false, false, true, false]);
            }
        }
    }
}
