//! Conversion of scores to weights, and the division by their sum.

use crate::kernels::math::{exp, softcap};
use crate::simd::{LANES, Simd};

/// Scores this far below the largest get weight zero. All keys of the longest context together
/// would add less than 2⁻⁶⁰ of the result. Without this cut, weights and sums become subnormal, and
/// each operation on subnormal numbers costs processors about a hundred cycles.
pub const NEGLIGIBLE: f32 = -64.0;

/// Turns scores times `scale`, capped unless `cap` is 0, into weights and returns their sum.
#[inline(always)]
pub fn weigh<S: Simd>(s: S, scale: f32, cap: f32, scores: &mut [f32]) -> f32 {
    let count = scores.len();
    let place = scores.as_mut_ptr();
    let mut largest = s.splat(f32::NEG_INFINITY);
    let mut at = 0;
    while at < count {
        let lanes = LANES.min(count - at);
        // SAFETY: `at + lanes` ≤ `count`.
        unsafe {
            let mut score = s.mul(s.load_partial(place.add(at), lanes), s.splat(scale));
            if cap != 0.0 {
                score = softcap(s, score, cap);
            }
            s.store_partial(place.add(at), lanes, score);
            // Lanes beyond the end repeat the first lane, which does not change the maximum.
            if lanes == LANES {
                largest = s.max(score, largest);
            } else {
                for lane in 0..lanes {
                    largest = s.max(s.splat(*place.add(at + lane)), largest);
                }
            }
        }
        at += lanes;
    }
    let largest = s.splat(s.reduce_max(largest));
    let mut sum = s.splat(0.0);
    let mut at = 0;
    while at < count {
        let lanes = LANES.min(count - at);
        // SAFETY: `at + lanes` ≤ `count`.
        unsafe {
            let below = s.sub(s.load_partial(place.add(at), lanes), largest);
            let weight = s.select_less(below, s.splat(NEGLIGIBLE), s.splat(0.0), exp(s, below));
            s.store_partial(place.add(at), lanes, weight);
            // Loaded again, so that lanes beyond the end are zero and do not change the sum.
            sum = s.add(sum, s.load_partial(place.add(at), lanes));
        }
        at += lanes;
    }
    s.reduce_add(sum)
}

#[inline(always)]
pub fn divide<S: Simd>(s: S, values: &mut [f32], by: f32) {
    let by = s.splat(by);
    for chunk in values.chunks_mut(LANES) {
        // SAFETY: the chunk has `len` ≤ 16 values.
        unsafe {
            let value = s.load_partial(chunk.as_ptr(), chunk.len());
            s.store_partial(chunk.as_mut_ptr(), chunk.len(), s.div(value, by));
        }
    }
}
