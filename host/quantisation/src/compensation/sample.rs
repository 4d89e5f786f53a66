//! The derivatives that a backward pass begins with.

use rayon::prelude::*;

/// The derivatives of −ln p(token) by logits, rows of `width` values, p their softmax and the token
/// of each row drawn from p: `p − 1` at the token and `p` elsewhere.
///
/// Their second moments are those of the Fisher information, which is the second derivative of the
/// KL divergence from the model itself (Martens 2020). `seed` is that of the first row; draws
/// and sums are the same on every machine.
pub fn sampled_gradient(logits: &[f32], width: usize, seed: u64) -> Vec<f32> {
    let mut gradient = vec![0.0; logits.len()];
    let rows = logits.par_chunks(width.max(1)).zip(gradient.par_chunks_mut(width.max(1)));
    rows.enumerate().for_each(|(row, (logits, gradient))| {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> =
            logits.iter().map(|&logit| libm::exp(f64::from(logit) - f64::from(largest))).collect();
        let sum: f64 = weights.iter().sum();
        let mut rest = uniform(seed.wrapping_add(row as u64)) * sum;
        let mut token = width - 1;
        for (index, weight) in weights.iter().enumerate() {
            if rest < *weight {
                token = index;
                break;
            }
            rest -= weight;
        }
        for (gradient, weight) in gradient.iter_mut().zip(&weights) {
            *gradient = (weight / sum) as f32;
        }
        gradient[token] -= 1.0;
    });
    gradient
}

/// A number of [0, 1) for each seed (Steele, Lea and Flood 2014, "SplitMix64").
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
        // A row's draw is its own.
        assert_eq!(sampled_gradient(&row, 4, 8), gradient[4..8]);
    }
}
