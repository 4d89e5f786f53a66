//! Attention of every row to itself and the rows before it within a window, with scores for each
//! distance.
//!
//! * score: `q·k` in sixteen lanes over the head, summed as `Simd::reduce_add`, plus the score by
//!   distance, then capped;
//! * weights and result as in [`attention`](super::attention), from the first visible row on.

use serde::{Deserialize, Serialize};

use super::attention::{divide, weigh};
use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

/// Dimensions and parameters of a relative attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Relative {
    pub heads: usize,
    pub head_dim: usize,
    /// Number of rows that a row sees, including itself.
    pub window: usize,
    /// Cap in `cap · tanh(score / cap)`, 0 for none.
    pub softcap: f32,
}

/// Dense operands. `q`, `k` and `v` have `heads · head_dim` values a row.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    /// Scores by distance, `heads · window` values a row. The values of a head are ordered from the
    /// farthest row to the row itself.
    pub by_distance: &'a [f32],
}

/// Returns the number of scratch values that [`relative_attention`] needs with `threads` threads
/// for at most `rows` rows, or `None` on overflow.
pub fn scratch_values(relative: Relative, rows: usize, threads: usize) -> Option<usize> {
    relative.window.min(rows).checked_mul(threads)
}

/// Writes `out [rows, heads · head_dim]`.
///
/// # Panics
/// When a length does not fit the dimensions.
pub fn relative_attention(
    level: Level,
    pool: &Pool,
    relative: Relative,
    operands: Operands<'_>,
    rows: usize,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let Relative { heads, head_dim, window, .. } = relative;
    let Operands { q, k, v, by_distance } = operands;
    let width = heads * head_dim;
    assert!(window > 0 && by_distance.len() >= rows * heads * window, "fewer scores than the window");
    let enough = |values: &[f32]| values.len() >= rows * width;
    assert!([q, k, v, &*out].into_iter().all(enough), "values shorter than the rows");
    let room = window.min(rows);
    assert!(scratch.len() >= room * pool.threads(), "scratch too small");
    let (out, scratch) = (SharedOutput::new(out), SharedOutput::new(scratch));
    let body = |row: usize, worker: usize| {
        // SAFETY: every task has its own row, and the pool numbers the threads of a job uniquely.
        let (out, scores) = unsafe { (out.part(row * width, width), scratch.part(worker * room, room)) };
        row_at(level, relative, operands, row, scores, out);
    };
    if pool.worth((2 * rows as u64 * width as u64).saturating_mul(room as u64)) {
        pool.run_indexed(rows, &body);
    } else {
        (0..rows).for_each(|row| body(row, 0));
    }
}

dispatch! {
    fn row_at => one_row(
        relative: Relative, operands: Operands<'_>, row: usize, scores: &mut [f32], out: &mut [f32],
    )
}

#[inline(always)]
fn one_row<S: Simd>(
    s: S,
    relative: Relative,
    operands: Operands<'_>,
    row: usize,
    scores: &mut [f32],
    out: &mut [f32],
) {
    let Relative { heads, head_dim, window, softcap } = relative;
    let Operands { q, k, v, by_distance } = operands;
    if head_dim == 0 {
        return;
    }
    let width = out.len();
    let first = (row + 1).saturating_sub(window);
    let scores = &mut scores[..row + 1 - first];
    for (head, out) in out.chunks_exact_mut(head_dim).enumerate() {
        let of = |values, row: usize| -> &[f32] {
            let values: &[f32] = values;
            &values[row * width + head * head_dim..][..head_dim]
        };
        let query = of(q, row);
        let added = &by_distance[(row * heads + head) * window..][..window];
        let added = &added[window - scores.len()..];
        for ((key, score), added) in (first..).zip(scores.iter_mut()).zip(added) {
            *score = dot(s, query, of(k, key)) + added;
        }
        let sum = weigh(s, 1.0, softcap, scores);
        let mut at = 0;
        while at < head_dim {
            let lanes = LANES.min(head_dim - at);
            let mut mixed = s.splat(0.0);
            for (key, weight) in (first..).zip(scores.iter()) {
                // SAFETY: `at + lanes` ≤ `head_dim`, the length of the slice.
                let value = unsafe { s.load_partial(of(v, key).as_ptr().add(at), lanes) };
                mixed = s.fma(s.splat(*weight), value, mixed);
            }
            // SAFETY: as above, for the result.
            unsafe { s.store_partial(out.as_mut_ptr().add(at), lanes, mixed) };
            at += lanes;
        }
        divide(s, out, sum);
    }
}

/// Computes `q·k`.
#[inline(always)]
fn dot<S: Simd>(s: S, q: &[f32], k: &[f32]) -> f32 {
    assert!(k.len() == q.len(), "heads of different sizes");
    let mut sum = s.splat(0.0);
    let mut at = 0;
    while at < q.len() {
        let lanes = LANES.min(q.len() - at);
        // SAFETY: `at + lanes` ≤ `len`, the length of both.
        unsafe {
            let q = s.load_partial(q.as_ptr().add(at), lanes);
            sum = s.fma(q, s.load_partial(k.as_ptr().add(at), lanes), sum);
        }
        at += lanes;
    }
    s.reduce_add(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardwright_shim_testing::{bits, values};

    fn exactly(relative: Relative, operands: Operands<'_>, rows: usize) -> Vec<f64> {
        let Relative { heads, head_dim: d, window, softcap } = relative;
        let width = heads * d;
        let mut out = vec![0.0; rows * width];
        for row in 0..rows {
            for head in 0..heads {
                let of =
                    |values: &[f32], row: usize, at: usize| f64::from(values[row * width + head * d + at]);
                let seen: Vec<usize> = ((row + 1).saturating_sub(window)..=row).collect();
                let score = |key: &usize| {
                    let product = |at: usize| of(operands.q, row, at) * of(operands.k, *key, at);
                    let column = head * window + window - 1 - (row - key);
                    let added = f64::from(operands.by_distance[row * heads * window + column]);
                    let score = (0..d).map(product).sum::<f64>() + added;
                    let cap = f64::from(softcap);
                    if cap == 0.0 { score } else { cap * (score / cap).tanh() }
                };
                let scores: Vec<f64> = seen.iter().map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for at in 0..d {
                    let mixed = seen.iter().zip(&weights).map(|(key, w)| w / sum * of(operands.v, *key, at));
                    out[row * width + head * d + at] = mixed.sum();
                }
            }
        }
        out
    }

    #[test]
    fn agrees_with_the_definition_at_every_level() {
        for (heads, head_dim, window, rows, softcap) in [
            (1, 1, 1, 3, 0.0),
            (2, 17, 4, 9, 5.0),
            (3, 16, 40, 21, 0.0),
            (2, 128, 12, 30, 50.0),
            (1, 8, 3, 0, 0.0),
        ] {
            let relative = Relative { heads, head_dim, window, softcap };
            let width = heads * head_dim;
            let [q, k, v] = [1, 2, 3].map(|seed| values(rows * width, seed, 1.5));
            let by_distance = values(rows * heads * window, 4, 1.5);
            let operands = Operands { q: &q, k: &k, v: &v, by_distance: &by_distance };
            let run = |level, threads, rows| {
                let mut out = vec![f32::NAN; rows * width];
                let mut scratch = vec![f32::NAN; scratch_values(relative, rows, threads).unwrap()];
                let pool = Pool::eager(threads);
                relative_attention(level, &pool, relative, operands, rows, &mut scratch, &mut out);
                out
            };
            let expected = run(Level::Scalar, 1, rows);
            for (got, exact) in expected.iter().zip(exactly(relative, operands, rows)) {
                assert!((f64::from(*got) - exact).abs() < 2e-5, "{got}, exactly {exact}");
            }
            for level in Level::available() {
                for (threads, rows) in [(1, rows), (3, rows), (2, rows / 2)] {
                    let got = run(level, threads, rows);
                    assert_eq!(bits(&got), bits(&expected[..rows * width]), "{window} at {}", level.name());
                }
            }
        }
    }
}
