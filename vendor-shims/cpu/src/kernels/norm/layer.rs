//! Normalisation to mean 0 and variance 1.
//!
//! A second pass computes the variance of the centred values. A single pass would lose it if the
//! mean is large.

use serde::{Deserialize, Serialize};

use super::over_groups;
use crate::kernels::reduce::total;
use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

/// Parameters of `(x − mean(x)) / sqrt(variance(x) + eps)` over each `width` consecutive values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    /// Values per group.
    pub width: usize,
    /// Value added under the root.
    pub eps: f32,
}

/// Normalises `groups` groups of `x` to `out`. `weight` and `bias` have `width` values each.
///
/// # Panics
/// When a length does not fit the dimensions.
#[allow(clippy::too_many_arguments, reason = "operands and where to work")]
pub fn layer_norm(
    level: Level,
    pool: &Pool,
    norm: LayerNorm,
    x: &[f32],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    groups: usize,
    out: &mut [f32],
) {
    let width = norm.width;
    assert!(x.len() >= groups * width && out.len() >= groups * width, "values shorter than the groups");
    let fits = |values: Option<&[f32]>| values.is_none_or(|values| values.len() >= width);
    assert!(fits(weight) && fits(bias), "weight or bias shorter than the group");
    let out = SharedOutput::new(out);
    over_groups(pool, groups, width, &|first, count| {
        // SAFETY: every task has its own groups.
        let out = unsafe { out.part(first * width, count * width) };
        groups_at(level, norm, &x[first * width..(first + count) * width], weight, bias, out);
    });
}

dispatch! {
    fn groups_at => all_groups(
        norm: LayerNorm, x: &[f32], weight: Option<&[f32]>, bias: Option<&[f32]>, out: &mut [f32],
    )
}

#[inline(always)]
fn all_groups<S: Simd>(
    s: S,
    norm: LayerNorm,
    x: &[f32],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let width = norm.width;
    if width == 0 {
        return;
    }
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let mean = s.splat(total(s, x) / width as f32);
        let variance = sum_of_squares(s, x, mean) / width as f32;
        let factor = s.splat(1.0 / (variance + norm.eps).sqrt());
        let mut at = 0;
        while at < width {
            let lanes = LANES.min(width - at);
            // SAFETY: `at + lanes` ≤ `width`, the length of all of them.
            unsafe {
                let mut value = s.mul(s.sub(s.load_partial(x.as_ptr().add(at), lanes), mean), factor);
                if let Some(weight) = weight {
                    value = s.mul(value, s.load_partial(weight.as_ptr().add(at), lanes));
                }
                if let Some(bias) = bias {
                    value = s.add(value, s.load_partial(bias.as_ptr().add(at), lanes));
                }
                s.store_partial(out.as_mut_ptr().add(at), lanes, value);
            }
            at += lanes;
        }
    }
}

/// Returns the sum of the squared distances from the mean.
#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32], mean: S::V) -> f32 {
    let mut sum = s.splat(0.0);
    let mut at = 0;
    while at + LANES <= x.len() {
        // SAFETY: `at + 16` ≤ `len`.
        let value = s.sub(unsafe { s.load(x.as_ptr().add(at)) }, mean);
        sum = s.fma(value, value, sum);
        at += LANES;
    }
    if at < x.len() {
        let lanes = x.len() - at;
        // Lanes beyond the end stay at distance zero.
        let mut distances = [0.0; LANES];
        // SAFETY: `at + lanes` ≤ `len`, and `lanes` ≤ sixteen, the length of the array.
        let value = unsafe {
            let value = s.sub(s.load_partial(x.as_ptr().add(at), lanes), mean);
            s.store_partial(distances.as_mut_ptr(), lanes, value);
            s.load(distances.as_ptr())
        };
        sum = s.fma(value, value, sum);
    }
    s.reduce_add(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardwright_shim_testing::{bits, values};

    #[test]
    fn agrees_with_the_definition_at_every_level() {
        for (width, groups) in [(1, 3), (15, 4), (16, 1), (33, 7), (128, 5), (1000, 3), (4, 0)] {
            // With a mean far from zero, a single pass would lose the variance.
            let x: Vec<f32> = values(width * groups, 7, 2.0).iter().map(|v| v + 100.0).collect();
            let (weight, bias) = (values(width, 8, 1.0), values(width, 9, 1.0));
            let norm = LayerNorm { width, eps: 1e-5 };
            for given in 0..3 {
                let (weight, bias) = ((given > 0).then_some(&weight[..]), (given > 1).then_some(&bias[..]));
                let run = |level, threads| {
                    let mut out = vec![f32::NAN; x.len()];
                    let pool = Pool::eager(threads);
                    layer_norm(level, &pool, norm, &x, weight, bias, groups, &mut out);
                    out
                };
                let expected = run(Level::Scalar, 1);
                for (x, got) in x.chunks(width).zip(expected.chunks(width)) {
                    let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / width as f64;
                    let squares = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>();
                    let root = (squares / width as f64 + f64::from(norm.eps)).sqrt();
                    for (at, (x, got)) in x.iter().zip(got).enumerate() {
                        let weight = weight.map_or(1.0, |weight| f64::from(weight[at]));
                        let bias = bias.map_or(0.0, |bias| f64::from(bias[at]));
                        let exact = (f64::from(*x) - mean) / root * weight + bias;
                        assert!((f64::from(*got) - exact).abs() < 1e-4, "{width}: {got}, exactly {exact}");
                    }
                }
                for level in Level::available() {
                    assert_eq!(bits(&run(level, 3)), bits(&expected), "{width} at {}", level.name());
                }
            }
        }
    }
}
