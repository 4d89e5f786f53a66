//! Other rates.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler, WindowFunction};

/// Samples of a block: long enough for a filter that cuts close below half the lower rate.
const BLOCK: usize = 2048;

/// Resamples one channel by Fourier transforms of blocks. Of `n` samples become `n · to / from`,
/// rounded up, aligned in time. An error is what the resampler says; rates within their caps raise
/// none.
pub(super) fn resample(samples: &[f32], from: u32, to: u32) -> Result<Vec<f32>, String> {
    let window = WindowFunction::BlackmanHarris2;
    let mut resampler =
        Fft::<f64>::new_custom(from as usize, to as usize, BLOCK, 1, 1, window, FixedSync::Both)
            .map_err(|error| error.to_string())?;
    let wide: Vec<f64> = samples.iter().copied().map(f64::from).collect();
    let input = InterleavedSlice::new(&wide, 1, wide.len()).map_err(|error| error.to_string())?;
    let output = resampler.process_all(&input, wide.len(), None).map_err(|error| error.to_string())?;
    let mut resampled: Vec<f32> = output.take_data().into_iter().map(|sample| sample as f32).collect();
    let length = (samples.len() as u64 * u64::from(to)).div_ceil(u64::from(from));
    // No more than the longest clip.
    resampled.resize(length as usize, 0.0);
    Ok(resampled)
}
