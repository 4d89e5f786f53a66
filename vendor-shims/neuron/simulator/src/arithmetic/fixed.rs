//! Real multipliers as a 32-bit integer and a shift, as TensorFlow Lite applies them to
//! accumulators.
//!
//! They restate `MultiplyByQuantizedMultiplier` in `tensorflow/lite/kernels/internal/common.h`, in
//! the form that rounds twice, and `QuantizeMultiplier` in `quantization_util.cc`.

/// A positive real number ≈ `value` / 2³¹ × 2^`shift`, with `value` in [2³⁰, 2³¹) or zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Multiplier {
    value: i32,
    shift: i32,
}

impl Multiplier {
    /// Returns the multiplier nearest to a finite number that is not negative. Any other number
    /// becomes zero, and so does a number below 2⁻³².
    pub fn new(real: f64) -> Multiplier {
        if !real.is_finite() || real <= 0.0 {
            return Multiplier { value: 0, shift: 0 };
        }
        let (fraction, mut shift) = fraction_and_exponent(real);
        let mut value = (fraction * 2f64.powi(31)).round() as i64;
        if value == 1 << 31 {
            value >>= 1;
            shift += 1;
        }
        if shift < -31 {
            return Multiplier { value: 0, shift: 0 };
        }
        if shift > 30 {
            return Multiplier { value: i32::MAX, shift: 30 };
        }
        Multiplier { value: value as i32, shift }
    }

    /// Divides the number by a count. `value` is first extended by the count's bits, as far as
    /// `shift` has bits for, and is truncated after the division.
    pub fn over(self, count: u64) -> Multiplier {
        let bits = (63 - count.max(1).leading_zeros() as i32).min(32).min(31 + self.shift).max(0);
        let value = (i128::from(self.value) << bits) / i128::from(count.max(1));
        Multiplier { value: i32::try_from(value).unwrap_or(i32::MAX), shift: self.shift - bits }
    }

    /// Multiplies a 32-bit accumulator by the number. `x` is shifted left with saturation,
    /// multiplied keeping the upper half (rounded), and shifted right (rounded away from zero at a
    /// half).
    #[inline]
    pub fn apply(self, x: i32) -> i32 {
        let left = self.shift.max(0);
        let right = (-self.shift).max(0);
        let shifted = (i64::from(x) << left).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
        divide_by_power_of_two(high_half_of_double(shifted, self.value), right)
    }

    /// Multiplies a 64-bit accumulator by the number, with 16 bits of the multiplier. Halves are
    /// rounded up.
    #[inline]
    pub fn apply_wide(self, x: i64) -> i64 {
        let reduced = if self.value < 0x7FFF_0000 { (self.value + (1 << 15)) >> 16 } else { 0x7FFF };
        let total = 15 - self.shift;
        let product = i128::from(x) * i128::from(reduced);
        let scaled = if total > 0 { (product + (1i128 << (total - 1))) >> total } else { product << -total };
        scaled.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }
}

/// Splits `real` into fraction × 2^exponent, with the fraction in [0.5, 1).
fn fraction_and_exponent(real: f64) -> (f64, i32) {
    // Subnormal numbers are first brought into the normal range.
    let (real, correction) = if real < f64::MIN_POSITIVE { (real * 2f64.powi(64), -64) } else { (real, 0) };
    let bits = real.to_bits();
    let exponent = ((bits >> 52) & 0x7FF) as i32 - 1022;
    (f64::from_bits((bits & !(0x7FF << 52)) | (1022 << 52)), exponent + correction)
}

/// Computes the upper 32 bits of 2ab, rounded to nearest, halves up. The only product that
/// overflows is saturated.
#[inline]
fn high_half_of_double(a: i32, b: i32) -> i32 {
    if a == i32::MIN && b == i32::MIN {
        return i32::MAX;
    }
    let product = i64::from(a) * i64::from(b);
    let nudge = if product >= 0 { 1 << 30 } else { 1 - (1 << 30) };
    ((product + nudge) / (1 << 31)) as i32
}

/// Computes x / 2^exponent, rounded to nearest, halves away from zero. `exponent` ≤ 31.
#[inline]
fn divide_by_power_of_two(x: i32, exponent: i32) -> i32 {
    let mask = ((1i64 << exponent) - 1) as i32;
    let remainder = x & mask;
    let threshold = (mask >> 1) + i32::from(x < 0);
    let quotient = if exponent > 31 { x >> 31 } else { (i64::from(x) >> exponent) as i32 };
    quotient + i32::from(remainder > threshold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multipliers_are_within_rounding_of_the_product() {
        let reals = [1.0, 0.5, 0.999_999, 1.0e-3, 3.7e-5, 2.5, 100.0, 1.0 / 3.0, 4.6e-10, 7.9e-9];
        for real in reals {
            let multiplier = Multiplier::new(real);
            for x in [0, 1, -1, 2, -3, 77, -12_345, 1 << 20, -(1 << 20), 123_456_789, -123_456_789] {
                let exact = f64::from(x) * real;
                if exact.abs() < 2f64.powi(30) && f64::from(x).abs() * real.max(1.0) < 2f64.powi(30) {
                    assert!((f64::from(multiplier.apply(x)) - exact).abs() <= 1.0, "{x} × {real}");
                }
                // The multiplier has 16 bits, so the relative error of the result is 2⁻¹⁵.
                let wide = multiplier.apply_wide(i64::from(x)) as f64;
                assert!((wide - exact).abs() <= 0.5 + exact.abs() / 32_768.0 + 1e-6, "{x} × {real}: {wide}");
            }
        }
    }

    #[test]
    fn what_cannot_be_a_multiplier_is_zero() {
        for real in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, 5e-324] {
            assert_eq!(Multiplier::new(real).apply(i32::MAX), 0);
        }
        assert!(Multiplier::new(1e300).apply(1) >= 1 << 30, "as large as one can be");
    }

    #[test]
    fn halves_are_rounded_up_by_the_multiplier_and_away_from_zero_by_the_shift() {
        let half = Multiplier::new(0.5);
        assert_eq!([half.apply(1), half.apply(3), half.apply(-1), half.apply(-3)], [1, 2, 0, -1]);
        assert_eq!([1, 3, -1, -3].map(|x| divide_by_power_of_two(x, 1)), [1, 2, -1, -2]);
        assert_eq!([1, 3, -1, -3].map(|x| half.apply_wide(x)), [1, 2, 0, -1]);
    }
}
