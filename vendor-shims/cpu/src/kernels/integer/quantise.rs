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

/// Quantises each row of `x [rows, inputs]`. Computes `scales[r] = max(max|x|, 1e-30) · (1/127)`
/// and `q = round(x / scale)`, ties to even, within −127 and 127, all in f32. If the geometry is
/// scaled, each block of a row is quantised separately, and `scales` is `[rows, blocks]`.
///
/// `q` receives rows of `geometry.length` with blocks padded with zeros. `sums` receives the sum of
/// `q` of every block of every row. A NaN or an infinity makes the scale NaN, so products of its
/// row are NaN. With `raised`, all of `q` is stored plus 128, as unsigned bytes.
///
/// # Panics
/// When a length does not fit the dimensions.
#[allow(clippy::too_many_arguments, reason = "operands and three results")]
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
) {
    let Geometry { inputs, blocks, length, .. } = geometry;
    assert!(x.len() >= rows * inputs && q.len() >= rows * length, "values shorter than the rows");
    let each = geometry.scales();
    assert!(scales.len() >= rows * each && sums.len() >= rows * blocks, "fewer scales or sums than rows");
    let (q, sums, scales) = (SharedOutput::new(q), SharedOutput::new(sums), SharedOutput::new(scales));
    let body = |row: usize| {
        // SAFETY: every task has its own row.
        let (q, sums, scales) = unsafe {
            (q.part(row * length, length), sums.part(row * blocks, blocks), scales.part(row * each, each))
        };
        quantise_at(level, &x[row * inputs..][..inputs], geometry, raised, q, sums, scales);
    };
    if pool.worth(COST * rows as u64 * inputs as u64) && rows > 1 {
        // Rows are short, so a task has several.
        let part = rows.div_ceil(pool.threads() * 4).max(1);
        pool.run(rows.div_ceil(part), &|task| (task * part..((task + 1) * part).min(rows)).for_each(&body));
    } else {
        (0..rows).for_each(body);
    }
}

dispatch! {
    fn quantise_at => quantise(
        x: &[f32], geometry: Geometry, raised: bool, q: &mut [i8], sums: &mut [i32], scales: &mut [f32],
    )
}

#[inline(always)]
fn quantise<S: Simd>(
    s: S,
    x: &[f32],
    geometry: Geometry,
    raised: bool,
    q: &mut [i8],
    sums: &mut [i32],
    scales: &mut [f32],
) {
    let mut step = 0.0;
    if !geometry.scaled {
        let (largest, poison) = match S::REGISTERS {
            Registers::Many => extremes::<S, 4>(s, x),
            _ => extremes::<S, 1>(s, x),
        };
        step = s.reduce_max(largest) * (1.0 / MOST);
        scales[0] = step + s.reduce_add(poison);
    }
    for (index, block) in x.chunks(geometry.block).enumerate() {
        if geometry.scaled {
            let (largest, poison) = extremes::<S, 1>(s, block);
            step = s.reduce_max(largest) * (1.0 / MOST);
            scales[index] = step + s.reduce_add(poison);
        }
        sums[index] = steps_of(s, block, step, &mut q[index * geometry.stride..][..geometry.places(index)]);
    }
    if raised {
        q.iter_mut().for_each(|q| *q ^= i8::MIN);
    }
}

/// Writes the quantised values of a block, padded with zeros, and returns their sum.
#[inline(always)]
fn steps_of<S: Simd>(s: S, block: &[f32], step: f32, q: &mut [i8]) -> i32 {
    let (divisor, reciprocal) = (s.splat(step), s.splat(1.0 / step));
    // The sums are integers below 2²⁴ in magnitude and therefore exact in f32: at most 2¹⁶ values
    // of 127 in sixteen lanes.
    let mut sum = s.splat(0.0);
    for (chunk, q) in block.chunks(LANES).zip(q.chunks_exact_mut(LANES)) {
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
    use super::*;

    #[test]
    fn rows_have_their_scale_and_blocks_their_sum() {
        let (rows, inputs) = (3, 45);
        let mut x: Vec<f32> = (0..rows * inputs).map(|i| ((i * 29) % 71) as f32 / 10.0 - 3.0).collect();
        x[inputs..2 * inputs].fill(0.0);
        let whole = [None, Some(20), Some(16)].map(|size| Geometry::new(inputs, size));
        let scaled = [16, 32].map(|size| Geometry::scaled(inputs, size, None).expect("whole steps"));
        for geometry in whole.into_iter().chain(scaled) {
            for level in Level::available() {
                let mut q = vec![99i8; rows * geometry.length];
                let mut sums = vec![99; rows * geometry.blocks];
                let mut scales = vec![f32::NAN; rows * geometry.scales()];
                let pool = Pool::eager(2);
                quantise_rows(level, &pool, &x, geometry, rows, true, &mut q, &mut sums, &mut scales);
                let raised = q.clone();
                quantise_rows(level, &pool, &x, geometry, rows, false, &mut q, &mut sums, &mut scales);
                for row in 0..rows {
                    let x = &x[row * inputs..][..inputs];
                    let size = if geometry.scaled { geometry.block } else { inputs };
                    let of = |part: &[f32]| {
                        part.iter().fold(1e-30f32, |most, value| most.max(value.abs())) * (1.0 / 127.0)
                    };
                    let wanted: Vec<f32> = x.chunks(size).map(of).collect();
                    let found = &scales[row * wanted.len()..][..wanted.len()];
                    assert!(found.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits()));
                    let mut expected = vec![0i8; geometry.length];
                    let mut totals = vec![0i32; geometry.blocks];
                    for (k, value) in x.iter().enumerate() {
                        let step = (value / wanted[k / size]).round_ties_even() as i8;
                        expected[k / geometry.block * geometry.stride + k % geometry.block] = step;
                        totals[k / geometry.block] += i32::from(step);
                    }
                    assert_eq!(q[row * geometry.length..][..geometry.length], expected, "{}", level.name());
                    let plus = expected.iter().map(|q| q.wrapping_add(-128)).collect::<Vec<i8>>();
                    assert_eq!(raised[row * geometry.length..][..geometry.length], plus);
                    assert_eq!(sums[row * geometry.blocks..][..geometry.blocks], totals);
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
                let geometry = Geometry::new(20, None);
                let (mut q, mut sums, mut scales) = ([0i8; 64], [0; 2], [0.0; 2]);
                quantise_rows(level, &Pool::eager(1), &x, geometry, 2, false, &mut q, &mut sums, &mut scales);
                assert!(scales[0].is_finite() && scales[1].is_nan(), "{wrong}, {}", level.name());
                assert!(q.iter().all(|q| *q != i8::MIN));
            }
        }
    }
}
