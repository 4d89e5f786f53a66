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

/// The terms 1/n! of the series of eˣ. With |x| ≤ 0.35 the next term is below 1e-18.
const TERMS: [f64; 15] = {
    let mut terms = [1.0; 15];
    let mut n = 1;
    while n < terms.len() {
        terms[n] = terms[n - 1] / n as f64;
        n += 1;
    }
    terms
};

/// Computes eˣ for x ≤ 0, to about 1e-15, using additions and multiplications only. The library
/// functions of two platforms differ in their last bits, which could change the drawn token. There
/// are no calls and no branches, so that compilers compute several values at once.
pub(super) fn exponential(x: f64) -> f64 {
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Below this the result would be subnormal, which is too unlikely to matter.
    const LEAST: f64 = -708.0;
    // 1.5 · 2⁵². A sum with it is rounded to an integer, which its lowest bits contain.
    const ROUNDING: f64 = 6_755_399_441_055_744.0;
    let near = if x < LEAST { LEAST } else { x };
    let rounded = near * std::f64::consts::LOG2_E + ROUNDING;
    let halvings = rounded - ROUNDING;
    let rest = (near - halvings * LN_2_HIGH) - halvings * LN_2_LOW;
    let sum = TERMS.iter().rev().fold(0.0, |sum, term| sum * rest + term);
    let power = f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52);
    if x < LEAST { 0.0 } else { sum * power }
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
