//! Means of consecutive rows.

use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

/// Computes the mean of every `rows` consecutive rows of `width` values, for the first `groups`
/// groups. Rows from `valid` on count as zeros, regardless of the stored values. Each mean is
/// summed from its first row to its last.
///
/// # Panics
/// When a length does not fit the dimensions.
#[allow(clippy::too_many_arguments, reason = "operands, dimensions and where to work")]
pub fn mean_rows(
    level: Level,
    pool: &Pool,
    x: &[f32],
    width: usize,
    rows: usize,
    valid: usize,
    groups: usize,
    out: &mut [f32],
) {
    let valid = valid.min(groups * rows);
    assert!(x.len() >= valid * width, "values shorter than the rows");
    assert!(out.len() >= groups * width, "results shorter than the groups");
    let out = SharedOutput::new(out);
    let body = |group: usize| {
        let (first, end) = ((group * rows).min(valid), ((group + 1) * rows).min(valid));
        // SAFETY: every task has its own group.
        let out = unsafe { out.part(group * width, width) };
        group_at(level, &x[first * width..end * width], rows, out);
    };
    if pool.worth(valid as u64 * width as u64) {
        pool.run(groups, &body);
    } else {
        (0..groups).for_each(body);
    }
}

dispatch! { fn group_at => one_group(x: &[f32], rows: usize, out: &mut [f32]) }

#[inline(always)]
fn one_group<S: Simd>(s: S, x: &[f32], rows: usize, out: &mut [f32]) {
    let width = out.len();
    let mut at = 0;
    while at < width {
        let lanes = LANES.min(width - at);
        let mut sum = s.splat(0.0);
        for row in x.chunks_exact(width) {
            // SAFETY: `at + lanes` ≤ `width`, the length of a row.
            sum = s.add(sum, unsafe { s.load_partial(row.as_ptr().add(at), lanes) });
        }
        // SAFETY: as above, for the result.
        unsafe { s.store_partial(out.as_mut_ptr().add(at), lanes, s.div(sum, s.splat(rows as f32))) };
        at += lanes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardwright_shim_testing::{bits, values};

    #[test]
    fn agrees_with_the_definition_at_every_level() {
        for (width, rows, groups, valid) in
            [(1, 1, 4, 4), (17, 9, 3, 27), (33, 4, 5, 18), (5, 3, 1, 0), (3, 2, 0, 0)]
        {
            let mut x = values(width * rows * groups, 3, 2.0);
            x[valid * width..].fill(f32::NAN);
            let run = |level, threads| {
                let mut out = vec![f32::NAN; width * groups];
                mean_rows(level, &Pool::eager(threads), &x, width, rows, valid, groups, &mut out);
                out
            };
            let expected = run(Level::Scalar, 1);
            for (at, got) in expected.iter().enumerate() {
                let (group, column) = (at / width, at % width);
                let of = (group * rows..(group + 1) * rows).filter(|row| *row < valid);
                let sum: f64 = of.map(|row| f64::from(x[row * width + column])).sum();
                assert!((f64::from(*got) - sum / rows as f64).abs() < 1e-6, "{got} of {sum} / {rows}");
            }
            for level in Level::available() {
                assert_eq!(bits(&run(level, 3)), bits(&expected), "{width} at {}", level.name());
            }
        }
    }
}
