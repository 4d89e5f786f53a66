//! The distribution of the next token at one position. All sums are in f64.

/// The logits of one position, as a distribution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextTokenDistribution<'l> {
    logits: &'l [f32],
    /// ln Σ exp(logit).
    log_sum: f64,
    /// The likeliest token, the first of equally likely ones.
    top: usize,
}

impl<'l> NextTokenDistribution<'l> {
    /// Computes the distribution. The error is the index of the first logit that is not finite.
    pub fn new(logits: &'l [f32]) -> Result<Self, usize> {
        let mut top = 0;
        for (index, &value) in logits.iter().enumerate() {
            if !value.is_finite() {
                return Err(index);
            }
            if value > logits[top] {
                top = index;
            }
        }
        let largest = logits.get(top).copied().map_or(0.0, f64::from);
        let sum: f64 = logits.iter().map(|&value| (f64::from(value) - largest).exp()).sum();
        Ok(NextTokenDistribution { logits, log_sum: largest + sum.ln(), top })
    }

    /// Returns −ln p(token) in nats, or infinity for a token without a logit.
    pub fn nll(&self, token: u32) -> f64 {
        self.logits.get(token as usize).map_or(f64::INFINITY, |&logit| self.log_sum - f64::from(logit))
    }

    /// Computes KL(self ‖ other) = Σ p · (ln p − ln q) in nats, with p of this row and q of
    /// `other`. Both rows must have equally many logits.
    pub fn divergence(&self, other: &NextTokenDistribution<'_>) -> f64 {
        let pairs = self.logits.iter().zip(other.logits);
        pairs
            .map(|(&own, &others)| {
                let own = f64::from(own) - self.log_sum;
                own.exp() * (own - (f64::from(others) - other.log_sum))
            })
            .sum()
    }

    /// Checks whether both rows have the same likeliest token.
    pub fn same_top(&self, other: &NextTokenDistribution<'_>) -> bool {
        self.top == other.top
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, wanted: f64) {
        assert!((got - wanted).abs() < 1e-12, "{got}, expected {wanted}");
    }

    #[test]
    fn likelihoods_and_divergences_are_those_of_the_definition() {
        // From probabilities 1/2, 1/4, 1/4 and 1/8, 1/8, 3/4, each with a constant added.
        let logits = |odds: [f32; 3], shift: f32| odds.map(|odds| odds.ln() + shift);
        let (one, other) = (logits([2.0, 1.0, 1.0], 700.0), logits([1.0, 1.0, 6.0], -900.0));
        let (one, other) = (
            NextTokenDistribution::new(&one).expect("finite"),
            NextTokenDistribution::new(&other).expect("finite"),
        );
        assert!((one.nll(0) - 2f64.ln()).abs() < 1e-4, "f32 keeps four digits beside 700");
        assert!(one.nll(3).is_infinite());
        let wanted = 0.5 * 4f64.ln() + 0.25 * 2f64.ln() + 0.25 * (1.0 / 3.0f64).ln();
        assert!((one.divergence(&other) - wanted).abs() < 1e-4, "{}", one.divergence(&other));
        assert!(one.divergence(&other) != other.divergence(&one));
        assert!(!one.same_top(&other));
        let exact = [0.0, 1.0, -2.0];
        let row = NextTokenDistribution::new(&exact).expect("finite");
        close(row.nll(1), (1.0 + (-1f64).exp() + (-3f64).exp()).ln());
        assert_eq!(row.divergence(&row), 0.0);
    }

    #[test]
    fn the_first_of_equal_logits_is_the_likeliest() {
        let (first, second) = ([1.0, 3.0, 3.0], [0.0, 3.0, 1.0]);
        let last = [0.0, 1.0, 3.0];
        let row = NextTokenDistribution::new(&first).expect("finite");
        assert!(row.same_top(&NextTokenDistribution::new(&second).expect("finite")));
        assert!(!row.same_top(&NextTokenDistribution::new(&last).expect("finite")));
    }

    #[test]
    fn logits_that_are_not_finite_are_named() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(NextTokenDistribution::new(&[0.0, bad, bad]).expect_err("refused"), 1);
        }
    }
}
