//! Log-probabilities of chosen tokens and their likeliest alternatives.

use std::cmp::Ordering;

/// How likely the model considered a chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLikelihood {
    /// Id of the chosen token.
    pub id: u32,
    /// Natural logarithm of the token's probability. It belongs to the model's own distribution:
    /// temperature, penalties, excluded tokens and constraints do not change it.
    pub log_probability: f32,
    /// The likeliest tokens with their log-probabilities, in descending order. Among equally likely
    /// tokens, lower ids come first.
    pub likeliest: Vec<(u32, f32)>,
    /// Whether the token belongs to a thought, or begins or ends one.
    pub is_of_thought: bool,
}

impl TokenLikelihood {
    /// Computes the likelihood of `id` and of the `count` likeliest tokens from all logits of a
    /// row.
    pub(crate) fn of(logits: &[f32], id: u32, count: usize) -> Self {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
        let log_sum = sum.ln();
        let log_probability = |id: u32| {
            let logit = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
            // The difference first: large logits would absorb the sum.
            (f64::from(logit) - f64::from(most) - log_sum) as f32
        };
        let likelier = |one: &u32, other: &u32| -> Ordering {
            let logit = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
            logit(*other).total_cmp(&logit(*one)).then(one.cmp(other))
        };
        let mut ids: Vec<u32> = (0..u32::try_from(logits.len()).unwrap_or(u32::MAX)).collect();
        if count < ids.len() {
            if count > 0 {
                ids.select_nth_unstable_by(count - 1, likelier);
            }
            ids.truncate(count);
        }
        ids.sort_unstable_by(likelier);
        let likeliest = ids.into_iter().map(|id| (id, log_probability(id))).collect();
        TokenLikelihood { id, log_probability: log_probability(id), likeliest, is_of_thought: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_ties_go_to_lower_ids() {
        let logits = [1.0, 3.0, 3.0, -2.0];
        let found = TokenLikelihood::of(&logits, 3, 4);
        let sum: f64 = found.likeliest.iter().map(|(_, log)| f64::from(*log).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        let ids: Vec<u32> = found.likeliest.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [1, 2, 0, 3]);
        assert_eq!(found.likeliest[3], (3, found.log_probability));
        let two = TokenLikelihood::of(&logits, 0, 2);
        assert_eq!(two.likeliest, found.likeliest[..2]);
        assert_eq!(two.log_probability, found.likeliest[2].1);
        assert!(TokenLikelihood::of(&logits, 0, 0).likeliest.is_empty());
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let found = TokenLikelihood::of(&[1e30, 1e30], 0, 1);
        assert!((found.log_probability + std::f32::consts::LN_2).abs() < 1e-6, "{found:?}");
        assert_eq!(TokenLikelihood::of(&[0.0, f32::NEG_INFINITY], 1, 0).log_probability, f32::NEG_INFINITY);
    }
}
