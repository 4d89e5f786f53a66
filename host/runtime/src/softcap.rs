//! The soft-cap of logits, `cap · tanh(logit / cap)` in f32, for plans that leave it to the
//! runtime.
//!
//! A vocabulary has hundreds of thousands of entries, and every token needs all of them. The
//! hyperbolic tangent therefore has no calls and no branches, so that compilers vectorise it. Its
//! relative error is at most 3 · 10⁻⁷.

/// From this value on the exponential is exact enough. Below it, the rational function is.
const SWITCH: f32 = 0.625;

/// From twice this value the tangent is 1 in f32.
const SATURATED: f32 = 10.0;

pub(crate) fn softcap(cap: f32, logits: &mut [f32]) {
    let inverse = 1.0 / cap;
    for logit in logits {
        *logit = cap * tanh(*logit * inverse);
    }
}

/// Computes the hyperbolic tangent. NaN stays NaN.
fn tanh(x: f32) -> f32 {
    let size = x.abs();
    // The fifth convergent of Lambert's continued fraction x / (1 + x² / (3 + x² / (5 + …))). Its
    // error grows with x¹⁰ and is below 10⁻⁹ at the switch.
    let square = size * size;
    let near = size * (945.0 + square * (105.0 + square)) / (945.0 + square * (420.0 + square * 15.0));
    let far = 1.0 - 2.0 / (exponential(2.0 * size.min(SATURATED)) + 1.0);
    let tangent = if size > SWITCH { far } else { near };
    tangent.copysign(x)
}

/// Computes the exponential for 0 to 2 · [`SATURATED`]: a power of two times the Taylor polynomial
/// of the remainder, which is at most half of ln 2.
fn exponential(x: f32) -> f32 {
    /// 1.5 · 2²³. Adding it rounds to an integer, which is then in the lowest bits of the sum.
    const ROUNDER: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let rounded = x * std::f32::consts::LOG2_E + ROUNDER;
    let power = rounded - ROUNDER;
    let rest = x - power * LN_2_HIGH - power * LN_2_LOW;
    let mut polynomial = 1.0 / 5040.0;
    for divisor in [720.0f32, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        polynomial = polynomial * rest + 1.0 / divisor;
    }
    // The exponent is biased by 127. Higher bits are shifted out.
    polynomial * f32::from_bits(rounded.to_bits().wrapping_add(127) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_hyperbolic_tangent() {
        let mut worst = 0.0f64;
        for step in 0..400_000 {
            let x = (step as f32 - 200_000.0) * 6.25e-5;
            let (got, exact) = (f64::from(tanh(x)), f64::from(x).tanh());
            worst = worst.max((got - exact).abs() / exact.abs().max(f64::from(f32::MIN_POSITIVE)));
        }
        assert!(worst < 3e-7, "{worst}");
        for tiny in [f32::MIN_POSITIVE, 1e-30, -1e-20, 1e-7] {
            assert!((tanh(tiny) - tiny).abs() <= tiny.abs() * 3e-7, "{tiny}");
        }
        for (x, exact) in
            [(0.0, 0.0), (1e30, 1.0), (-1e30, -1.0), (f32::INFINITY, 1.0), (f32::NEG_INFINITY, -1.0)]
        {
            assert_eq!(tanh(x), exact, "{x}");
        }
        assert!(tanh(-0.0).is_sign_negative() && tanh(f32::NAN).is_nan());
    }

    #[test]
    fn logits_keep_their_order_and_stay_below_the_cap() {
        let mut logits: Vec<f32> = (-4000..4000).map(|step| step as f32 * 0.02).collect();
        softcap(30.0, &mut logits);
        assert!(logits.is_sorted(), "argmax is what it was");
        assert!(logits.iter().all(|logit| logit.abs() < 30.0));
    }
}
