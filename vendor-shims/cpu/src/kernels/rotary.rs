//! Rotary position embedding: the table of a run and its application to head vectors.

use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

/// Returns `theta^(−2i/head_dim) / factor` for each rotated pair. Computes in f32 like the
/// reference: the exponent and the power are rounded to f32 before the reciprocal.
pub fn inverse_frequencies(head_dim: usize, theta: f32, pairs: usize, factor: f32) -> Vec<f32> {
    (0..pairs)
        .map(|pair| {
            let exponent = (2 * pair) as f32 / head_dim as f32;
            let power = f64::from(theta).powf(f64::from(exponent)) as f32;
            let inverse = 1.0 / power;
            if factor == 1.0 { inverse } else { inverse / factor }
        })
        .collect()
}

/// Computes cosines and sines `[rows, pairs]` of `position · inverse`, with the angle in f32.
///
/// # Panics
/// When a length does not fit.
pub fn rotary_table(
    pool: &Pool,
    positions: &[i32],
    inverse: &[f32],
    rows: usize,
    cos: &mut [f32],
    sin: &mut [f32],
) {
    let pairs = inverse.len();
    assert!(
        positions.len() >= rows && cos.len() >= rows * pairs && sin.len() >= rows * pairs,
        "table too short"
    );
    let (cos, sin) = (SharedOutput::new(cos), SharedOutput::new(sin));
    let body = |row: usize| {
        // SAFETY: every task has its own row.
        let (cos, sin) = unsafe { (cos.part(row * pairs, pairs), sin.part(row * pairs, pairs)) };
        let position = positions[row] as f32;
        for ((inverse, cos), sin) in inverse.iter().zip(cos).zip(sin) {
            // Computed in f64 and rounded once, which gives the nearest f32 independent of the
            // platform's f32 functions.
            let (s, c) = f64::from(position * inverse).sin_cos();
            (*cos, *sin) = (c as f32, s as f32);
        }
    };
    // A sine and cosine cost about a hundred multiply-adds.
    if pool.worth(100 * rows as u64 * pairs as u64) {
        pool.run(rows, &body)
    } else {
        (0..rows).for_each(body)
    }
}

/// Rotates pair `(x[i], x[i + head_dim/2])` of every head by the table's angle, for `i < pairs`,
/// and copies the rest.
///
/// # Panics
/// When a length does not fit or `pairs` is more than half of `head_dim`.
#[allow(clippy::too_many_arguments, reason = "operands, dimensions and where to work")]
pub fn rope(
    level: Level,
    pool: &Pool,
    x: &[f32],
    cos: &[f32],
    sin: &[f32],
    head_dim: usize,
    heads: usize,
    pairs: usize,
    rows: usize,
    out: &mut [f32],
) {
    let width = heads * head_dim;
    assert!(pairs <= head_dim / 2 && head_dim.is_multiple_of(2), "more pairs than half a head");
    assert!(x.len() >= rows * width && out.len() >= rows * width, "values shorter than the rows");
    assert!(cos.len() >= rows * pairs && sin.len() >= rows * pairs, "table too short");
    let out = SharedOutput::new(out);
    let body = |row: usize| {
        // SAFETY: every task has its own row.
        let out = unsafe { out.part(row * width, width) };
        let table = row * pairs..(row + 1) * pairs;
        row_at(level, &x[row * width..(row + 1) * width], &cos[table.clone()], &sin[table], head_dim, out);
    };
    if pool.worth(2 * rows as u64 * width as u64) { pool.run(rows, &body) } else { (0..rows).for_each(body) }
}

dispatch! { fn row_at => one_row(x: &[f32], cos: &[f32], sin: &[f32], head_dim: usize, out: &mut [f32]) }

#[inline(always)]
fn one_row<S: Simd>(s: S, x: &[f32], cos: &[f32], sin: &[f32], head_dim: usize, out: &mut [f32]) {
    if head_dim == 0 {
        return;
    }
    for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
        turn(s, x, cos, sin, out);
    }
}

/// Rotates pair `(x[i], x[i + half])` for each cosine, and copies the rest.
///
/// # Panics
/// When lengths differ or there are more cosines than pairs.
#[inline(always)]
pub(super) fn turn<S: Simd>(s: S, x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
    let (half, pairs) = (x.len() / 2, cos.len());
    assert!(pairs <= half && sin.len() == pairs && out.len() == x.len(), "tables of another head");
    let mut at = 0;
    while at < pairs {
        let lanes = LANES.min(pairs - at);
        // SAFETY: `at + lanes` ≤ `pairs` ≤ half of the head.
        unsafe {
            let (first, second) =
                (s.load_partial(x.as_ptr().add(at), lanes), s.load_partial(x.as_ptr().add(half + at), lanes));
            let (cos, sin) =
                (s.load_partial(cos.as_ptr().add(at), lanes), s.load_partial(sin.as_ptr().add(at), lanes));
            // Products are rounded before the sum, as in the decomposed form.
            s.store_partial(out.as_mut_ptr().add(at), lanes, s.sub(s.mul(first, cos), s.mul(second, sin)));
            s.store_partial(
                out.as_mut_ptr().add(half + at),
                lanes,
                s.add(s.mul(second, cos), s.mul(first, sin)),
            );
        }
        at += lanes;
    }
    out[pairs..half].copy_from_slice(&x[pairs..half]);
    out[half + pairs..].copy_from_slice(&x[half + pairs..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotates_pairs_and_leaves_the_rest() {
        for (head_dim, heads, pairs) in [(8, 2, 4), (64, 3, 32), (80, 1, 10), (512, 2, 64), (2, 1, 0)] {
            let rows = 5;
            let positions = [0, 1, 7, 1000, 131_071];
            let inverse = inverse_frequencies(head_dim, 10_000.0, pairs, 1.0);
            let (mut cos, mut sin) = (vec![0.0; rows * pairs], vec![0.0; rows * pairs]);
            rotary_table(&Pool::eager(2), &positions, &inverse, rows, &mut cos, &mut sin);
            let x: Vec<f32> =
                (0..rows * heads * head_dim).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
            let mut expected = x.clone();
            for (row, position) in positions.iter().enumerate() {
                for head in 0..heads {
                    let at = (row * heads + head) * head_dim;
                    for pair in 0..pairs {
                        let inverse = 10_000f64.powf(-2.0 * pair as f64 / head_dim as f64);
                        let angle = f64::from(*position) * inverse;
                        let (a, b) = (f64::from(x[at + pair]), f64::from(x[at + pair + head_dim / 2]));
                        expected[at + pair] = (a * angle.cos() - b * angle.sin()) as f32;
                        expected[at + pair + head_dim / 2] = (b * angle.cos() + a * angle.sin()) as f32;
                    }
                }
            }
            let run = |level, threads| {
                let mut out = vec![f32::NAN; x.len()];
                rope(level, &Pool::eager(threads), &x, &cos, &sin, head_dim, heads, pairs, rows, &mut out);
                out
            };
            let scalar = run(Level::Scalar, 1);
            for (got, exact) in scalar.iter().zip(&expected) {
                // The angle at position 131071 is rounded to f32, as in the reference.
                assert!((got - exact).abs() < 2e-2, "{got} instead of {exact}");
            }
            for level in Level::available() {
                assert_eq!(run(level, 3), scalar);
            }
        }
    }

    #[test]
    fn frequencies_are_divided_by_the_factor() {
        let plain = inverse_frequencies(16, 1e6, 8, 1.0);
        let divided = inverse_frequencies(16, 1e6, 8, 8.0);
        assert_eq!(plain[0], 1.0);
        assert!(plain.iter().zip(divided).all(|(p, d)| p / 8.0 == d));
    }
}
