//! Normalisations over the last axis: root mean square, mean and variance, Euclidean, softmax.
//!
//! Sums accumulate in sixteen lanes, with value i in lane i mod 16, and the lanes are added as in
//! [`Simd::reduce_add`].

mod layer;

pub use layer::{LayerNorm, layer_norm};

use serde::{Deserialize, Serialize};

use crate::kernels::math::exp;
use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

/// Parameters of `x / sqrt(mean(x²) + eps)`, times `weight + offset`, over each `width` consecutive
/// values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm {
    /// Values per group.
    pub width: usize,
    /// Value added under the root.
    pub eps: f32,
    /// Value added to the weight.
    pub offset: f32,
}

/// Returns the number of groups of one task.
fn grain(width: usize) -> usize {
    (1usize << 14).div_ceil(width.max(1))
}

/// Calls `body(first group, groups)` over all groups, in parallel if it pays.
fn over_groups(pool: &Pool, groups: usize, width: usize, body: &(dyn Fn(usize, usize) + Sync)) {
    // A value of a norm costs about four multiply-adds.
    if !pool.worth(4 * groups as u64 * width as u64) {
        body(0, groups);
        return;
    }
    let grain = grain(width);
    pool.run_pieces(groups, grain, body);
}

/// Normalises `groups` groups of `x` to `out`. `weight` has `width` values. `residual`, which has
/// the length of `x`, is added at the end.
///
/// # Panics
/// When a length does not fit the dimensions.
#[allow(clippy::too_many_arguments, reason = "operands and where to work")]
pub fn rms_norm(
    level: Level,
    pool: &Pool,
    norm: RmsNorm,
    x: &[f32],
    weight: Option<&[f32]>,
    residual: Option<&[f32]>,
    groups: usize,
    out: &mut [f32],
) {
    let width = norm.width;
    assert!(
        residual.is_none_or(|residual| residual.len() >= groups * width),
        "fewer values to add than groups"
    );
    assert!(x.len() >= groups * width && out.len() >= groups * width, "values shorter than the groups");
    assert!(weight.is_none_or(|weight| weight.len() >= width), "weight shorter than the group");
    let out = SharedOutput::new(out);
    over_groups(pool, groups, width, &|first, count| {
        // SAFETY: every task has its own groups.
        let out = unsafe { out.part(first * width, count * width) };
        let range = first * width..(first + count) * width;
        let residual = residual.map(|residual| &residual[range.clone()]);
        rms_groups_at(level, norm, &x[range], weight, residual, out);
    });
}

dispatch! {
    fn rms_groups_at => rms_groups(
        norm: RmsNorm, x: &[f32], weight: Option<&[f32]>, residual: Option<&[f32]>, out: &mut [f32],
    )
}

#[inline(always)]
fn rms_groups<S: Simd>(
    s: S,
    norm: RmsNorm,
    x: &[f32],
    weight: Option<&[f32]>,
    residual: Option<&[f32]>,
    out: &mut [f32],
) {
    if norm.width == 0 {
        return;
    }
    let mut sums = [0.0; TOGETHER];
    for (group, (row, out)) in x.chunks_exact(norm.width).zip(out.chunks_exact_mut(norm.width)).enumerate() {
        if group % TOGETHER == 0 {
            sums = sums_of_squares(s, &x[group * norm.width..], norm.width);
        }
        let x = row;
        let residual = residual.map(|residual| &residual[group * norm.width..][..norm.width]);
        let mean = sums[group % TOGETHER] / norm.width as f32;
        let factor = s.splat(1.0 / (mean + norm.eps).sqrt());
        let mut at = 0;
        while at < norm.width {
            let lanes = LANES.min(norm.width - at);
            // SAFETY: `at + lanes` ≤ `width`, the length of all of them.
            unsafe {
                let mut value = s.mul(s.load_partial(x.as_ptr().add(at), lanes), factor);
                if let Some(weight) = weight {
                    let weight = s.load_partial(weight.as_ptr().add(at), lanes);
                    value = s.mul(value, s.add(weight, s.splat(norm.offset)));
                }
                if let Some(residual) = residual {
                    value = s.add(s.load_partial(residual.as_ptr().add(at), lanes), value);
                }
                s.store_partial(out.as_mut_ptr().add(at), lanes, value);
            }
            at += lanes;
        }
    }
}

/// Number of groups whose squares are summed in parallel, because a sum waits for its last
/// addition.
const TOGETHER: usize = 4;

/// Returns [`sum_of_squares`] of the first groups of `x`, and zeros for missing groups.
#[inline(always)]
fn sums_of_squares<S: Simd>(s: S, x: &[f32], width: usize) -> [f32; TOGETHER] {
    let mut sums = [0.0; TOGETHER];
    if x.len() < TOGETHER * width {
        for (sum, x) in sums.iter_mut().zip(x.chunks_exact(width)) {
            *sum = sum_of_squares(s, x);
        }
        return sums;
    }
    let mut lanes = [s.splat(0.0); TOGETHER];
    let mut at = 0;
    while at < width {
        let count = LANES.min(width - at);
        for (group, sum) in lanes.iter_mut().enumerate() {
            // SAFETY: `at + count` ≤ `width`, and at least `TOGETHER` groups exist.
            let value = unsafe { s.load_partial(x.as_ptr().add(group * width + at), count) };
            *sum = s.fma(value, value, *sum);
        }
        at += count;
    }
    for (sum, lanes) in sums.iter_mut().zip(lanes) {
        *sum = s.reduce_add(lanes);
    }
    sums
}

#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    let mut at = 0;
    while at < x.len() {
        let lanes = LANES.min(x.len() - at);
        // SAFETY: `at + lanes` ≤ `len`.
        let value = unsafe { s.load_partial(x.as_ptr().add(at), lanes) };
        sum = s.fma(value, value, sum);
        at += lanes;
    }
    s.reduce_add(sum)
}

/// Computes `x / max(‖x‖, 1e-12)` over each `width` consecutive values.
///
/// # Panics
/// When a length does not fit the dimensions.
pub fn l2_normalize(level: Level, pool: &Pool, x: &[f32], width: usize, groups: usize, out: &mut [f32]) {
    assert!(x.len() >= groups * width && out.len() >= groups * width, "values shorter than the groups");
    let out = SharedOutput::new(out);
    over_groups(pool, groups, width, &|first, count| {
        // SAFETY: every task has its own groups.
        let out = unsafe { out.part(first * width, count * width) };
        l2_groups_at(level, width, &x[first * width..(first + count) * width], out);
    });
}

dispatch! { fn l2_groups_at => l2_groups(width: usize, x: &[f32], out: &mut [f32]) }

#[inline(always)]
fn l2_groups<S: Simd>(s: S, width: usize, x: &[f32], out: &mut [f32]) {
    /// Smallest divisor, so that a zero vector stays zero.
    const LEAST: f32 = 1e-12;
    if width == 0 {
        return;
    }
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let length = sum_of_squares(s, x).sqrt();
        let length = s.splat(if length > LEAST { length } else { LEAST });
        let mut at = 0;
        while at < width {
            let lanes = LANES.min(width - at);
            // SAFETY: `at + lanes` ≤ `width`.
            unsafe {
                let value = s.div(s.load_partial(x.as_ptr().add(at), lanes), length);
                s.store_partial(out.as_mut_ptr().add(at), lanes, value);
            }
            at += lanes;
        }
    }
}

/// Computes `exp(x − largest) / sum` over each `width` consecutive values.
///
/// # Panics
/// When a length does not fit the dimensions.
pub fn softmax(level: Level, pool: &Pool, x: &[f32], width: usize, groups: usize, out: &mut [f32]) {
    assert!(x.len() >= groups * width && out.len() >= groups * width, "values shorter than the groups");
    let out = SharedOutput::new(out);
    over_groups(pool, groups, width.saturating_mul(4), &|first, count| {
        let (start, length) = (first * width, count.min(groups - first) * width);
        // SAFETY: every task has its own groups.
        let out = unsafe { out.part(start, length) };
        softmax_groups_at(level, width, &x[start..start + length], out);
    });
}

dispatch! { fn softmax_groups_at => softmax_groups(width: usize, x: &[f32], out: &mut [f32]) }

#[inline(always)]
fn softmax_groups<S: Simd>(s: S, width: usize, x: &[f32], out: &mut [f32]) {
    if width == 0 {
        return;
    }
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let largest = s.splat(super::reduce::largest(s, x));
        let mut sum = s.splat(0.0);
        let mut at = 0;
        while at < width {
            let lanes = LANES.min(width - at);
            // SAFETY: `at + lanes` ≤ `width`.
            unsafe {
                let value = exp(s, s.sub(s.load_partial(x.as_ptr().add(at), lanes), largest));
                s.store_partial(out.as_mut_ptr().add(at), lanes, value);
                // Loaded again, so that lanes beyond the end are zero and do not change the sum.
                sum = s.add(sum, s.load_partial(out.as_ptr().add(at), lanes));
            }
            at += lanes;
        }
        let sum = s.splat(s.reduce_add(sum));
        let mut at = 0;
        while at < width {
            let lanes = LANES.min(width - at);
            // SAFETY: `at + lanes` ≤ `width`.
            unsafe {
                let value = s.div(s.load_partial(out.as_ptr().add(at), lanes), sum);
                s.store_partial(out.as_mut_ptr().add(at), lanes, value);
            }
            at += lanes;
        }
    }
}

#[cfg(test)]
mod tests;
