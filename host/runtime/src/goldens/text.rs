//! Goldens of predicted distributions: the most probable tokens of a row, compared by KL
//! divergence.

use serde::{Deserialize, Serialize};

/// Number of most probable tokens kept from a row.
pub(super) const LARGEST: usize = 16;

/// The distribution after one token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GoldenRow {
    /// The most probable tokens, each with its negative log probability in thousandths of a nat.
    /// This is coarse enough that processors with other orders of addition agree.
    pub largest: Vec<(u32, u32)>,
}

impl GoldenRow {
    pub fn of(logits: &[f32]) -> GoldenRow {
        let norm = norm(logits);
        let mut order: Vec<usize> = (0..logits.len()).collect();
        let kept = LARGEST.min(order.len());
        let by_size =
            |one: &usize, other: &usize| logits[*other].total_cmp(&logits[*one]).then(one.cmp(other));
        if kept > 0 && kept < order.len() {
            order.select_nth_unstable_by(kept - 1, by_size);
        }
        order.truncate(kept);
        order.sort_by(by_size);
        let thousandths = |at: &usize| ((norm - f64::from(logits[*at])) * 1000.0).round() as u32;
        GoldenRow { largest: order.iter().map(|at| (*at as u32, thousandths(at))).collect() }
    }

    /// Returns the KL divergence from this row to these logits, and whether the most probable token
    /// is the same.
    pub fn compare(&self, logits: &[f32]) -> (f64, bool) {
        let norm = norm(logits);
        let (mut divergence, mut mass, mut theirs) = (0.0, 0.0, 0.0);
        for &(id, thousandths) in &self.largest {
            let Some(logit) = logits.get(id as usize) else { return (f64::INFINITY, false) };
            let own = -f64::from(thousandths) / 1000.0;
            let other = f64::from(*logit) - norm;
            divergence += own.exp() * (own - other);
            mass += own.exp();
            theirs += other.exp();
        }
        // The remaining probability may be a rounding error on either side.
        const LEAST: f64 = 1e-6;
        let (rest, other) = ((1.0 - mass).max(LEAST), (1.0 - theirs).max(LEAST));
        divergence += rest * (rest / other).ln();
        let first = self.largest.first().and_then(|(id, _)| logits.get(*id as usize));
        let is_same = first.is_some_and(|first| logits.iter().all(|logit| logit <= first));
        // This also covers values that are not finite.
        if divergence.is_finite() { (divergence.max(0.0), is_same) } else { (f64::INFINITY, false) }
    }
}

/// Returns the logarithm of the sum of exponentials.
fn norm(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    f64::from(largest) + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(seed: u32) -> Vec<f32> {
        (0..500_u32).map(|index| ((index * 37 + seed * 11) % 101) as f32 / 10.0).collect()
    }

    #[test]
    fn a_row_is_like_itself_and_unlike_others() {
        let row = GoldenRow::of(&logits(1));
        assert_eq!(row.largest.len(), LARGEST);
        assert!(row.largest.is_sorted_by_key(|(_, thousandths)| *thousandths));
        let (divergence, same) = row.compare(&logits(1));
        assert!(divergence < 1e-4 && same, "{divergence}");
        let near: Vec<f32> = logits(1).iter().map(|logit| logit * 1.05).collect();
        let (divergence, same) = row.compare(&near);
        assert!(divergence > 1e-4 && divergence < 0.1 && same, "{divergence}");
        let (divergence, same) = row.compare(&logits(50));
        assert!(divergence > 1.0 && !same, "{divergence}");
    }

    #[test]
    fn what_is_no_number_is_like_nothing() {
        let row = GoldenRow::of(&logits(1));
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut changed = logits(1);
            changed[7] = wrong;
            assert_eq!(row.compare(&changed).0, f64::INFINITY);
        }
        assert_eq!(row.compare(&logits(1)[..3]).0, f64::INFINITY, "another vocabulary");
        assert!(row.compare(&[]).0.is_infinite());
        let all_the_same = GoldenRow::of(&[0.0; 4]);
        assert!(all_the_same.compare(&[0.0; 4]).0 < 1e-3);
    }
}
