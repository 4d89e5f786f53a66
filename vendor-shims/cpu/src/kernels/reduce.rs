//! Sum, mean and maximum of the last axis. Sixteen lanes accumulate, with value i in lane i mod 16,
//! and are added as in [`Simd::reduce_add`].

use serde::{Deserialize, Serialize};

use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reduction {
    Sum,
    /// Sum divided by the count.
    Mean,
    Max,
}

/// Reduces every `width` consecutive values to one.
///
/// # Panics
/// When a length does not fit the dimensions.
pub fn reduce(
    level: Level,
    pool: &Pool,
    kind: Reduction,
    x: &[f32],
    width: usize,
    groups: usize,
    out: &mut [f32],
) {
    assert!(x.len() >= groups * width && out.len() >= groups, "values shorter than the groups");
    let out = SharedOutput::new(out);
    let body = |first: usize, count: usize| {
        // SAFETY: every task has its own groups.
        let out = unsafe { out.part(first, count) };
        groups_at(level, kind, width, &x[first * width..(first + count) * width], out);
    };
    if !pool.worth(groups as u64 * width as u64) {
        return body(0, groups);
    }
    let grain = (1usize << 15).div_ceil(width.max(1));
    pool.run_pieces(groups, grain, &body);
}

dispatch! { fn groups_at => reduce_groups(kind: Reduction, width: usize, x: &[f32], out: &mut [f32]) }

#[inline(always)]
fn reduce_groups<S: Simd>(s: S, kind: Reduction, width: usize, x: &[f32], out: &mut [f32]) {
    for (group, out) in out.iter_mut().enumerate() {
        let x = &x[group * width..(group + 1) * width];
        *out = match kind {
            Reduction::Sum => total(s, x),
            Reduction::Mean => total(s, x) / width as f32,
            Reduction::Max => largest(s, x),
        };
    }
}

/// Returns the sum of all values.
#[inline(always)]
pub fn total<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    let mut at = 0;
    while at < x.len() {
        let lanes = LANES.min(x.len() - at);
        // SAFETY: `at + lanes` ≤ `len`.
        sum = s.add(sum, unsafe { s.load_partial(x.as_ptr().add(at), lanes) });
        at += lanes;
    }
    s.reduce_add(sum)
}

/// Returns the largest value, or −∞ if there are no values.
#[inline(always)]
pub fn largest<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut largest = s.splat(f32::NEG_INFINITY);
    let mut at = 0;
    while at + LANES <= x.len() {
        // SAFETY: `at + 16` ≤ `len`.
        largest = s.max(unsafe { s.load(x.as_ptr().add(at)) }, largest);
        at += LANES;
    }
    for &value in &x[at..] {
        largest = s.max(s.splat(value), largest);
    }
    s.reduce_max(largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_definition_at_every_level() {
        for width in [1usize, 2, 15, 16, 17, 100, 333] {
            let groups = 5;
            let x: Vec<f32> = (0..width * groups).map(|i| ((i * 7919) % 1000) as f32 / 100.0 - 5.0).collect();
            for kind in [Reduction::Sum, Reduction::Mean, Reduction::Max] {
                let run = |level, threads| {
                    let mut out = vec![f32::NAN; groups];
                    reduce(level, &Pool::eager(threads), kind, &x, width, groups, &mut out);
                    out
                };
                let expected = run(Level::Scalar, 1);
                for (x, got) in x.chunks(width).zip(&expected) {
                    let sum: f64 = x.iter().map(|v| f64::from(*v)).sum();
                    let exact = match kind {
                        Reduction::Sum => sum,
                        Reduction::Mean => sum / width as f64,
                        Reduction::Max => x.iter().copied().fold(f32::NEG_INFINITY, f32::max).into(),
                    };
                    assert!(
                        (f64::from(*got) - exact).abs() < 1e-3,
                        "{kind:?} of {width}: {got}, exactly {exact}"
                    );
                }
                for level in Level::available() {
                    assert_eq!(run(level, 3), expected, "{kind:?} of {width} at {}", level.name());
                }
            }
        }
    }
}
