//! The gradients at the start of a backward pass.

use rayon::prelude::*;

/// Computes the gradients of −ln p(token) with respect to logits, in rows of `width` values. p is
/// their softmax, and each row's token is drawn from p. The gradient is `p − 1` at the token and
/// `p` elsewhere.
///
/// Their second moments are the Fisher information, which is the second derivative of the KL
/// divergence from the model itself (Martens 2020). `seed` belongs to the first row, and each
/// further row adds 1. Draws and sums are the same on every machine.
pub fn sampled_gradient(logits: &[f32], width: usize, seed: u64) -> Vec<f32> {
    let mut gradient = vec![0.0; logits.len()];
    let rows = logits.par_chunks(width.max(1)).zip(gradient.par_chunks_mut(width.max(1)));
    rows.enumerate().for_each(|(row, (logits, gradient))| {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for (weight, logit) in gradient.iter_mut().zip(logits) {
            *weight = exp_of_negative(logit - largest);
        }
        let weights = &*gradient;
        let sum: f64 = weights.iter().copied().map(f64::from).sum();
        let mut rest = uniform(seed.wrapping_add(row as u64)) * sum;
        let mut token = width - 1;
        for (index, weight) in weights.iter().enumerate() {
            if rest < f64::from(*weight) {
                token = index;
                break;
            }
            rest -= f64::from(*weight);
        }
        let by = (1.0 / sum) as f32;
        gradient.iter_mut().for_each(|weight| *weight *= by);
        gradient[token] -= 1.0;
    });
    gradient
}

/// Computes exp(x) for x ≤ 0 within 4 parts in 10 million, and 0 below the least normal number.
/// With the exact function, the logits of a whole vocabulary would dominate the time of a backward
/// pass. The polynomial of 2^f on ±½ is a Taylor polynomial. Products and sums are rounded one by
/// one, so that all machines give the same result.
fn exp_of_negative(x: f32) -> f32 {
    const TO_BASE_2: f32 = std::f32::consts::LOG2_E;
    // ln 2 to the power of n, divided by n!.
    const TERMS: [f32; 7] =
        [1.540_353e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 0.240_226_5, std::f32::consts::LN_2, 1.0];
    /// Adding and subtracting this rounds to the nearest integer.
    const ROUNDS: f32 = 12_582_912.0;
    let exponent = x * TO_BASE_2;
    // NaN stays NaN.
    let exponent = if exponent < -127.0 { -127.0 } else { exponent };
    let whole = (exponent + ROUNDS) - ROUNDS;
    // The rounding error of the product matters at large exponents.
    let fraction = (x - whole * 0.693_359_4) * TO_BASE_2 + whole * (2.121_944_4e-4 * TO_BASE_2);
    let fraction = if whole <= -127.0 { 0.0 } else { fraction };
    let value = TERMS.iter().fold(0.0, |sum, term| sum * fraction + term);
    let scale = f32::from_bits(((whole as i32 + 127) as u32) << 23);
    value * scale
}

/// Returns a number in [0, 1) for each seed (Steele, Lea and Flood 2014, "SplitMix64").
fn uniform(seed: u64) -> f64 {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((state ^ (state >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_within_its_bound() {
        for step in 0..200_000 {
            let x = -(step as f32) * 5e-4;
            let (found, exact) = (f64::from(exp_of_negative(x)), f64::from(x).exp());
            let off = (found - exact).abs();
            assert!(off <= 4e-7 * exact || exact < f64::from(f32::MIN_POSITIVE), "{x}: {found} {exact}");
        }
        assert_eq!(exp_of_negative(0.0), 1.0);
        for far in [-88.5, -1e4, f32::NEG_INFINITY] {
            assert_eq!(exp_of_negative(far), 0.0, "{far}");
        }
        assert!(exp_of_negative(f32::NAN).is_nan());
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        let row: [f32; 4] = [0.3, -1.0, 1.2, 0.0];
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        let p = row.map(|logit| f64::from(logit).exp() / sum);
        let count = 20_000;
        let gradient = sampled_gradient(&row.repeat(count), 4, 7);
        let mut drawn = [0.0; 4];
        for row in gradient.chunks(4) {
            assert!(row.iter().sum::<f32>().abs() < 1e-6, "{row:?}");
            for ((value, p), drawn) in row.iter().zip(p).zip(&mut drawn) {
                let off = (f64::from(*value) - p).abs();
                assert!(off < 1e-6 || (off - 1.0).abs() < 1e-6, "{row:?}");
                *drawn += off.round() / count as f64;
            }
        }
        assert!(drawn.iter().zip(p).all(|(drawn, p)| (drawn - p).abs() < 0.015), "{drawn:?} of {p:?}");
        // Each row's draw is independent of the others.
        assert_eq!(sampled_gradient(&row, 4, 8), gradient[4..8]);
    }
}
