//! Convolution along rows, separately for each channel.

use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

/// Returns the number of scratch values that [`depthwise`] needs, or `None` on overflow.
pub fn scratch_values(channels: usize, kernel: usize) -> Option<usize> {
    channels.checked_mul(kernel)
}

/// Computes `out[r, c] = Σⱼ weight[c, j] · x[r − kernel + 1 + j, c]` for `rows` rows of `channels`
/// values. Uses one accumulator, from j = 0 on. Rows before the first one count as zeros and add no
/// term.
///
/// # Panics
/// When a length does not fit the dimensions.
#[allow(clippy::too_many_arguments, reason = "operands, dimensions and where to work")]
pub fn depthwise(
    level: Level,
    pool: &Pool,
    x: &[f32],
    weight: &[f32],
    channels: usize,
    kernel: usize,
    rows: usize,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    assert!(x.len() >= rows * channels && out.len() >= rows * channels, "values shorter than the rows");
    assert!(kernel > 0 && weight.len() >= channels * kernel, "weight shorter than the channels");
    // Kernel places become rows, so that neighbouring channels are read together.
    let places = &mut scratch[..channels * kernel];
    for (channel, weight) in weight.chunks_exact(kernel).take(channels).enumerate() {
        for (place, weight) in weight.iter().enumerate() {
            places[place * channels + channel] = *weight;
        }
    }
    let (places, out) = (&*places, SharedOutput::new(out));
    let body = |row: usize| {
        // SAFETY: every task has its own row.
        let out = unsafe { out.part(row * channels, channels) };
        let first = (row + 1).saturating_sub(kernel);
        let missing = kernel - (row + 1 - first);
        row_at(level, &x[first * channels..(row + 1) * channels], &places[missing * channels..], out);
    };
    if pool.worth((rows as u64 * channels as u64).saturating_mul(kernel as u64)) {
        pool.run(rows, &body);
    } else {
        (0..rows).for_each(body);
    }
}

dispatch! { fn row_at => one_row(x: &[f32], places: &[f32], out: &mut [f32]) }

#[inline(always)]
fn one_row<S: Simd>(s: S, x: &[f32], places: &[f32], out: &mut [f32]) {
    let channels = out.len();
    let mut at = 0;
    while at < channels {
        let lanes = LANES.min(channels - at);
        let mut sum = s.splat(0.0);
        for (x, weight) in x.chunks_exact(channels).zip(places.chunks_exact(channels)) {
            // SAFETY: `at + lanes` ≤ `channels`, the length of both.
            let (x, weight) = unsafe {
                (s.load_partial(x.as_ptr().add(at), lanes), s.load_partial(weight.as_ptr().add(at), lanes))
            };
            sum = s.fma(weight, x, sum);
        }
        // SAFETY: as above, for the result.
        unsafe { s.store_partial(out.as_mut_ptr().add(at), lanes, sum) };
        at += lanes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardwright_shim_testing::{bits, values};

    #[test]
    fn agrees_with_the_definition_at_every_level() {
        for (channels, kernel, rows) in [(1, 1, 1), (17, 5, 9), (33, 3, 2), (64, 32, 40), (5, 4, 0)] {
            let (x, weight) = (values(channels * rows, 3, 2.0), values(channels * kernel, 4, 1.0));
            let run = |level, threads| {
                let mut out = vec![f32::NAN; x.len()];
                let mut scratch = vec![f32::NAN; scratch_values(channels, kernel).unwrap()];
                let pool = Pool::eager(threads);
                depthwise(level, &pool, &x, &weight, channels, kernel, rows, &mut scratch, &mut out);
                out
            };
            let expected = run(Level::Scalar, 1);
            for (at, got) in expected.iter().enumerate() {
                let (row, channel) = (at / channels, at % channels);
                let places = (0..kernel).filter(|place| row + place + 1 >= kernel);
                let product = |place: usize| {
                    f64::from(weight[channel * kernel + place])
                        * f64::from(x[(row + place + 1 - kernel) * channels + channel])
                };
                let exact: f64 = places.map(product).sum();
                assert!((f64::from(*got) - exact).abs() < 1e-5, "{got}, exactly {exact}");
            }
            for level in Level::available() {
                assert_eq!(bits(&run(level, 3)), bits(&expected), "{channels} at {}", level.name());
            }
        }
    }
}
