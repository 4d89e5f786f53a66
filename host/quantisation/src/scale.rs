//! The scale with the least squared error for a group of values.
//!
//! With w = s · v, stored q = clamp(round(v)), the error of a scale is s² Σ c (v − q)². c is the
//! importance of a value (1 without moments). Formats with few bits use all their integers, one
//! more below zero than above. If scales have a sign, the side of the largest value gets the extra
//! integer.
//!
//! Max-abs scaling spends the range on one outlier, so smaller scales are tried on a geometric
//! grid. For the stored integers of the best one, the least-squares scale is Σ c q w / Σ c q².
//! Values are then rounded again, for a few rounds. The best candidate wins. Plain max-abs scaling
//! is one of the candidates, so the result is never worse than that.

use half::f16;
use shardwright_vocabulary::DType;

/// Number of values summed in f32 lanes before they are added to an f64. It is small enough that
/// f32 precision suffices.
const RUN: usize = 256;
/// Number of independent sums, for the vector unit. It is fixed since it determines the order of
/// summation.
const LANES: usize = 8;
/// Rounds of fitting the scale to the integers and the integers to the scale.
pub(crate) const FITS: usize = 3;
/// Adding and subtracting 1.5 · 2²³ rounds a much smaller value to the nearest integer, ties to
/// even.
const ROUNDER: f32 = 12_582_912.0;

/// Smallest and largest positive f16.
const LEAST_HALF: f64 = 1.0 / 16_777_216.0;
const LARGEST_HALF: f64 = 65_504.0;

/// Range of the stored integers and scale type of a format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Steps {
    pub limit: f32,
    pub lowest: f32,
    pub scale: DType,
}

impl Steps {
    /// Returns the steps for an integer type. With 8 bits the range is symmetric, since some
    /// kernels negate values. With fewer bits all integers are used.
    pub const fn of(integers: DType, scale: DType) -> Self {
        let (limit, lowest) = match integers {
            DType::I2 => (1.0, -2.0),
            DType::I4 => (7.0, -8.0),
            _ => (127.0, -127.0),
        };
        Steps { limit, lowest, scale }
    }

    /// Returns whether scales may be negative. Only scales of blocks may, as no vendor compiler
    /// accepts these formats.
    const fn has_sign(&self) -> bool {
        matches!(self.scale, DType::F16) && self.limit < 16.0
    }

    /// Rounds a scale to its type and keeps its sign. The result is neither zero nor infinite, so
    /// every value can be divided by it.
    pub fn scale(&self, wanted: f64) -> f32 {
        let size = match self.scale {
            DType::F16 => f16::from_f32(wanted.abs().clamp(LEAST_HALF, LARGEST_HALF) as f32).to_f32(),
            _ => wanted.abs().clamp(f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)) as f32,
        };
        size.copysign(wanted as f32)
    }

    /// Returns candidate scales in descending magnitude from the max-abs scale, with the sign of
    /// `largest`. Formats with few integers profit from deep cuts, formats with many do not.
    pub fn grid(self, largest: f32) -> impl Iterator<Item = f32> {
        let (ratio, count) = match self.limit {
            limit if limit > 16.0 => (0.96, 16),
            limit if limit > 1.0 => (0.95, 24),
            _ => (0.92, 32),
        };
        let plain = f64::from(largest) / f64::from(self.limit);
        let factors = std::iter::successors(Some(1.0_f64), move |factor| Some(factor * ratio)).take(count);
        let mut before = 0.0;
        // Neighbouring small scales round to the same f16.
        factors.map(move |factor| self.scale(plain * factor)).filter(move |&scale| {
            let new = scale != before;
            before = scale;
            new
        })
    }
}

/// Returns the stored value nearest to `v` steps.
#[inline(always)]
pub(crate) fn nearest(v: f32, steps: Steps) -> f32 {
    let v = if v > steps.limit { steps.limit } else { v };
    let v = if v < steps.lowest { steps.lowest } else { v };
    (v + ROUNDER) - ROUNDER
}

/// Returns the largest magnitude.
pub(crate) fn largest(values: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for eight in whole {
        for (lane, value) in lanes.iter_mut().zip(eight) {
            let value = value.abs();
            *lane = if value > *lane { value } else { *lane };
        }
    }
    rest.iter().map(|value| value.abs()).chain(lanes).fold(0.0, f32::max)
}

/// Sums over values at one scale, in steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    /// Σ c (v − q)².
    pub error: f64,
    /// Σ c q v.
    pub product: f64,
    /// Σ c q², at least 0.
    pub square: f64,
}

impl Sums {
    /// Adds the sums of further values.
    pub fn plus(self, other: Sums) -> Sums {
        Sums {
            error: self.error + other.error,
            product: self.product + other.product,
            square: self.square + other.square,
        }
    }

    /// Returns the squared error in units of the values.
    pub fn squared_error(&self, scale: f32) -> f64 {
        self.error * f64::from(scale) * f64::from(scale)
    }

    /// Returns the least-squares scale for the integers of these sums, or `None` if it is
    /// undefined.
    pub fn fitted(&self, scale: f32, steps: Steps) -> Option<f32> {
        (self.square > 0.0 && self.product.is_finite())
            .then(|| steps.scale(f64::from(scale) * self.product / self.square))
    }
}

/// Computes the sums of `values` at `scale`. `importance`, if any, has one entry per value.
pub(crate) fn sums(values: &[f32], importance: Option<&[f32]>, scale: f32, steps: Steps) -> Sums {
    let [error, product, square] = match importance {
        None => over_lanes(values, values, scale.recip(), |v, _| {
            let q = nearest(v, steps);
            [(v - q) * (v - q), q * v, q * q]
        }),
        Some(importance) => over_lanes(values, importance, scale.recip(), |v, c| {
            let q = nearest(v, steps);
            [(v - q) * (v - q) * c, q * c * v, q * c * q]
        }),
    };
    Sums { error, product, square }
}

/// Computes the squared error of `values` at `scale`.
pub(crate) fn squared_error(values: &[f32], importance: Option<&[f32]>, scale: f32, steps: Steps) -> f64 {
    let [error] = match importance {
        None => over_lanes(values, values, scale.recip(), |v, _| {
            let left = v - nearest(v, steps);
            [left * left]
        }),
        Some(importance) => over_lanes(values, importance, scale.recip(), |v, c| {
            let left = v - nearest(v, steps);
            [left * left * c]
        }),
    };
    error * f64::from(scale) * f64::from(scale)
}

/// Sums the results of `of` for every value times `factor` and its importance.
#[inline(always)]
fn over_lanes<const N: usize>(
    values: &[f32],
    importance: &[f32],
    factor: f32,
    of: impl Fn(f32, f32) -> [f32; N],
) -> [f64; N] {
    let mut total = [0.0; N];
    for (values, importance) in values.chunks(RUN).zip(importance.chunks(RUN)) {
        let mut lanes = [[0.0_f32; LANES]; N];
        let (whole, rest) = values.as_chunks::<LANES>();
        let (importances, rest_importance) = importance.as_chunks::<LANES>();
        for (eight, c) in whole.iter().zip(importances) {
            for lane in 0..LANES {
                let terms = of(eight[lane] * factor, c[lane]);
                for (lanes, term) in lanes.iter_mut().zip(terms) {
                    lanes[lane] += term;
                }
            }
        }
        for ((value, c), lane) in rest.iter().zip(rest_importance).zip(0..LANES) {
            let terms = of(value * factor, *c);
            for (lanes, term) in lanes.iter_mut().zip(terms) {
                lanes[lane] += term;
            }
        }
        for (total, lanes) in total.iter_mut().zip(lanes) {
            *total += lanes.iter().map(|&lane| f64::from(lane)).sum::<f64>();
        }
    }
    total
}

/// Returns the best scale found for a group of values. Values must be finite. The scale is 1 if all
/// are zero.
pub(crate) fn best_scale(values: &[f32], importance: Option<&[f32]>, steps: Steps) -> f32 {
    let mut largest = largest(values);
    if largest == 0.0 {
        return steps.scale(1.0);
    }
    if steps.has_sign() && values.contains(&largest) {
        largest = -largest;
    }
    /// Number of consecutive grid steps without gain that ends the search. With four integers,
    /// whose range is not symmetric, the whole grid is tried.
    const PATIENCE: usize = 5;
    let patience = if steps.limit > 1.0 { PATIENCE } else { usize::MAX };
    let (mut best, mut least, mut idle) = (0.0, f64::INFINITY, 0);
    for scale in steps.grid(largest) {
        let error = squared_error(values, importance, scale, steps);
        // Always accept the first scale.
        if best == 0.0 || error < least {
            (best, least, idle) = (scale, error, 0);
        } else {
            idle += 1;
            if idle == patience {
                break;
            }
        }
    }
    for _ in 0..FITS {
        let fitted = sums(values, importance, best, steps).fitted(best, steps);
        let Some(fitted) = fitted.filter(|fitted| *fitted != best) else { break };
        let error = squared_error(values, importance, fitted, steps);
        if error >= least {
            break;
        }
        (best, least) = (fitted, error);
    }
    best
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WIDE: Steps = Steps::of(DType::I8, DType::F32);
    const NARROW: Steps = Steps::of(DType::I4, DType::F32);
    const BLOCK: Steps = Steps::of(DType::I4, DType::F16);
    const FOUR: Steps = Steps::of(DType::I2, DType::F32);

    /// Returns the max-abs scale.
    fn plain(steps: Steps, values: &[f32]) -> f32 {
        steps.grid(largest(values)).next().unwrap()
    }

    /// Computes the error by its plain definition, in f64.
    fn error(values: &[f32], importance: Option<&[f32]>, scale: f32, steps: Steps) -> f64 {
        let of = |(index, &value): (usize, &f32)| {
            let q = (f64::from(value) / f64::from(scale)).round_ties_even();
            let q = q.clamp(f64::from(steps.lowest), f64::from(steps.limit));
            let left = f64::from(value) - q * f64::from(scale);
            left * left * importance.map_or(1.0, |importance| f64::from(importance[index]))
        };
        values.iter().enumerate().map(of).sum()
    }

    fn values() -> impl Strategy<Value = Vec<f32>> {
        let near = -1.0_f32..1.0;
        let value = prop_oneof![8 => near.clone(), 1 => near.prop_map(|x| x * 40.0), 1 => Just(0.0)];
        (prop::collection::vec(value, 1..700), -12_i32..8)
            .prop_map(|(values, power)| values.iter().map(|value| value * 2.0_f32.powi(power)).collect())
    }

    proptest! {
        #[test]
        fn never_worse_than_max_abs_scaling(values in values(), weigh in any::<bool>()) {
            let importance: Vec<f32> = (0..values.len()).map(|i| 0.1 + (i % 7) as f32).collect();
            let importance = weigh.then_some(importance.as_slice());
            for steps in [WIDE, NARROW, BLOCK, FOUR] {
                let found = error(&values, importance, best_scale(&values, importance, steps), steps);
                let plain = error(&values, importance, plain(steps, &values), steps);
                // If a grid represents the values exactly, only the rounding of the scale and of
                // its multiple to f32 remains: twice 2⁻²⁴ of a value, squared.
                let squares = |(i, &value): (usize, &f32)| {
                    f64::from(value).powi(2) * importance.map_or(1.0, |importance| f64::from(importance[i]))
                };
                let rounding = 2.0_f64.powi(-46) * values.iter().enumerate().map(squares).sum::<f64>();
                prop_assert!(found <= plain * (1.0 + 1e-5) + rounding + 1e-30, "{steps:?}: {found} > {plain}");
            }
        }

        #[test]
        fn scales_of_four_integers_are_nearly_the_best(values in prop::collection::vec(-3.0_f32..3.0, 1..40)) {
            let found = error(&values, None, best_scale(&values, None, FOUR), FOUR);
            let largest = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let all = (1..2000).map(|step| error(&values, None, largest * step as f32 / 1000.0, FOUR));
            let squares: f64 = values.iter().map(|&w| f64::from(w) * f64::from(w)).sum();
            let best = all.fold(squares, f64::min);
            prop_assert!(found <= 1.35 * best + 1e-6 * squares, "{found} > {best}");
        }

        #[test]
        fn sums_are_what_they_say(values in values(), scale in 0.01_f32..3.0) {
            let made = sums(&values, None, scale, NARROW);
            let wanted = error(&values, None, scale, NARROW);
            let size: f64 = values.iter().map(|&w| f64::from(w) * f64::from(w)).sum();
            prop_assert!((made.squared_error(scale) - wanted).abs() <= 1e-4 * wanted + 1e-9 * size);
        }
    }

    #[test]
    fn outliers_are_cut_where_integers_are_few() {
        // A bell curve of 2,000 values, and one outlier.
        let bell = |i: i32| ((i * 37 % 101) + (i * 53 % 97) + (i * 71 % 89) - 142) as f32 / 100.0;
        let values: Vec<f32> = (0..2000).map(bell).chain([12.0]).collect();
        let plain = plain(NARROW, &values);
        let found = best_scale(&values, None, NARROW);
        assert!(found < 0.5 * plain, "{found} of {plain}");
        assert!(error(&values, None, found, NARROW) < 0.5 * error(&values, None, plain, NARROW));
    }

    #[test]
    fn of_scales_with_a_sign_the_largest_value_has_the_integer_more() {
        for sign in [1.0, -1.0] {
            let values = [sign * 8.0, -2.0, 5.0, 3.0, -6.0, 7.0];
            let scale = best_scale(&values, None, BLOCK);
            assert_eq!((scale, error(&values, None, scale, BLOCK)), (-sign, 0.0));
            assert!(best_scale(&values, None, NARROW) > 0.0);
        }
    }

    #[test]
    fn extremes_have_a_usable_scale() {
        for steps in [WIDE, NARROW, BLOCK, FOUR] {
            for values in [
                vec![0.0; 9],
                vec![f32::MIN_POSITIVE / 4.0; 3],
                vec![f32::MAX, -f32::MAX, 0.0],
                vec![1e-30, 1.0],
            ] {
                let scale = best_scale(&values, None, steps);
                assert!(
                    scale.is_normal() && (scale > 0.0 || steps == BLOCK),
                    "{steps:?} {values:?}: {scale}"
                );
            }
        }
        assert_eq!(best_scale(&[0.0; 5], None, BLOCK), 1.0);
    }

    #[test]
    fn rounding_is_to_the_nearest_and_ties_go_to_even() {
        for (v, steps, wanted) in [
            (2.5, NARROW, 2.0),
            (3.5, NARROW, 4.0),
            (-0.5, NARROW, 0.0),
            (1e30, WIDE, 127.0),
            (-128.0, WIDE, -127.0),
            (-9.0, NARROW, -8.0),
            (-2.0, FOUR, -2.0),
        ] {
            assert_eq!(nearest(v, steps), wanted);
        }
    }
}
