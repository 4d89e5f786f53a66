//! Logarithmic mel features.

use std::f64::consts::TAU;

use realfft::RealFftPlanner;

use crate::SoundSettings;

/// Writes the valid frames of a sound. Each frame is windowed and transformed. Triangles that are
/// evenly spaced on the mel scale sum its magnitudes, followed by the logarithm. `frames` must have
/// exactly `bins` values for each frame.
///
/// Samples and window are multiplied in 32 bits, as in the library. The rest has a higher
/// precision.
pub(super) fn write(samples: &[f32], settings: &SoundSettings, frames: &mut [f32]) {
    let (frame, transform) = (settings.frame as usize, settings.transform as usize);
    let (hop, bins) = (settings.hop as usize, settings.bins as usize);
    let window: Vec<f32> =
        (0..frame).map(|at| (0.5 - 0.5 * (TAU * at as f64 / frame as f64).cos()) as f32).collect();
    let triangles = triangles(settings);
    let plan = RealFftPlanner::<f64>::new().plan_fft_forward(transform);
    let (mut input, mut spectrum) = (plan.make_input_vec(), plan.make_output_vec());
    let mut scratch = plan.make_scratch_vec();
    let mut magnitudes = vec![0.0; spectrum.len()];
    // Half a frame of zeros precedes the sound.
    let silence = frame / 2;
    for (index, destination) in frames.chunks_exact_mut(bins).enumerate() {
        input.fill(0.0);
        for (at, (to, weight)) in input.iter_mut().zip(&window).enumerate() {
            if let Some(sample) = (index * hop + at).checked_sub(silence).and_then(|at| samples.get(at)) {
                *to = f64::from(sample * weight);
            }
        }
        let transformed = plan.process_with_scratch(&mut input, &mut spectrum, &mut scratch);
        debug_assert!(transformed.is_ok(), "buffers have the lengths of the plan");
        for (magnitude, value) in magnitudes.iter_mut().zip(&spectrum) {
            *magnitude = value.re.hypot(value.im);
        }
        for (to, Triangle { start, weights }) in destination.iter_mut().zip(&triangles) {
            let sum: f64 =
                weights.iter().zip(&magnitudes[*start..]).map(|(weight, value)| weight * value).sum();
            *to = (sum + settings.floor).ln() as f32;
        }
    }
}

/// Weights of neighbouring frequencies.
struct Triangle {
    start: usize,
    weights: Vec<f64>,
}

/// Returns one triangle per bin, from the top of the one below to the top of the one above. The
/// narrowest may be between two frequencies and have no weights.
fn triangles(settings: &SoundSettings) -> Vec<Triangle> {
    let (count, bins) = (settings.transform as usize / 2 + 1, settings.bins as usize);
    let (lowest, highest) = (mel(settings.lowest_hertz), mel(settings.highest_hertz));
    let step = (highest - lowest) / (bins + 1) as f64;
    let edges: Vec<f64> = (0..bins + 2).map(|edge| hertz(lowest + step * edge as f64)).collect();
    // The highest frequency is half the rate, rounded down to whole Hz as in the library.
    let spacing = f64::from(settings.rate / 2) / (count - 1) as f64;
    let triangle = |edges: &[f64]| {
        let weight = |at: usize| {
            let frequency = spacing * at as f64;
            let up = (frequency - edges[0]) / (edges[1] - edges[0]);
            let down = (edges[2] - frequency) / (edges[2] - edges[1]);
            up.min(down).max(0.0)
        };
        let weights: Vec<f64> = (0..count).map(weight).collect();
        let start = weights.iter().position(|weight| *weight > 0.0).unwrap_or(0);
        let end = weights.iter().rposition(|weight| *weight > 0.0).map_or(start, |last| last + 1);
        Triangle { start, weights: weights[start..end].to_vec() }
    };
    edges.windows(3).map(triangle).collect()
}

/// Converts to the mel scale of the Hidden Markov Model Toolkit.
fn mel(hertz: f64) -> f64 {
    2595.0 * (1.0 + hertz / 700.0).log10()
}

fn hertz(mel: f64) -> f64 {
    700.0 * (10f64.powf(mel / 2595.0) - 1.0)
}
