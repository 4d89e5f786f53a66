//! Resampling from other rates.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler, WindowFunction};

/// Samples of a block, rounded up further on. It is long enough for a filter with a cut-off just
/// below half the lower rate.
const BLOCK: u32 = 2048;

/// Resamples one channel by Fourier transforms of blocks. `n` samples become `n · to / from`,
/// rounded up, aligned in time. Errors are the resampler's messages. Rates within their caps cause
/// none.
pub(super) fn resample(samples: &[f32], from: u32, to: u32) -> Result<Vec<f32>, String> {
    let window = WindowFunction::BlackmanHarris2;
    // An even number of the smallest blocks. The delay is half a block, which is then a whole
    // number.
    let smallest = 2 * (from / common_divisor(from, to));
    let block = (BLOCK.div_ceil(smallest) * smallest) as usize;
    let mut resampler =
        Fft::<f64>::new_custom(from as usize, to as usize, block, 1, 1, window, FixedSync::Both)
            .map_err(|error| error.to_string())?;
    let wide: Vec<f64> = samples.iter().copied().map(f64::from).collect();
    let input = InterleavedSlice::new(&wide, 1, wide.len()).map_err(|error| error.to_string())?;
    let output = resampler.process_all(&input, wide.len(), None).map_err(|error| error.to_string())?;
    let mut resampled: Vec<f32> = output.take_data().into_iter().map(|sample| sample as f32).collect();
    let length = (samples.len() as u64 * u64::from(to)).div_ceil(u64::from(from));
    // The length is at most that of the longest clip.
    resampled.resize(length as usize, 0.0);
    Ok(resampled)
}

fn common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
