//! Weights of candidates, and the place of a random number among them.

/// Returns the index of the weight at which the running sum passes `target`, which is less than the
/// sum of all weights. If rounding leaves a remainder after the last weight, returns the last
/// index.
pub(crate) fn position_at(weights: &[f64], target: f64) -> usize {
    let mut left = target;
    for (index, &weight) in weights.iter().enumerate() {
        if left < weight {
            return index;
        }
        left -= weight;
    }
    weights.len().saturating_sub(1)
}

/// Computes eˣ for x ≤ 0, to about 1e-15, using additions and multiplications only. The library
/// functions of two platforms differ in their last bits, which could change the drawn token.
pub(super) fn exponential(x: f64) -> f64 {
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Below this the result would be subnormal, which is too unlikely to matter.
    if x < -708.0 {
        return 0.0;
    }
    let halvings = (x * std::f64::consts::LOG2_E).round();
    let rest = (x - halvings * LN_2_HIGH) - halvings * LN_2_LOW;
    // |rest| ≤ 0.35: the next term of the series would be below 1e-18.
    let mut sum = 1.0;
    for divisor in (1..=14).rev() {
        sum = 1.0 + rest / f64::from(divisor) * sum;
    }
    let exponent = (halvings as i64 + 1023) as u64;
    sum * f64::from_bits(exponent << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_agrees_with_the_library() {
        for step in 0..=70_800 {
            let x = -f64::from(step) / 100.0;
            let (ours, theirs) = (exponential(x), x.exp());
            assert!((ours - theirs).abs() <= 4e-15 * theirs, "{x}: {ours} {theirs}");
        }
        assert_eq!(exponential(0.0), 1.0);
        assert_eq!(exponential(f64::MIN), 0.0);
        // The exact bits, to detect a platform that computes them differently.
        assert_eq!(exponential(-1.0).to_bits(), 0x3fd7_8b56_362c_ef38);
    }
}
