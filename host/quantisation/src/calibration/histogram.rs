//! Histograms of observed values: bins of equal width on either side of zero. The width doubles
//! until the largest value fits.
//!
//! Widths are powers of two and bins begin at zero. Two histograms of the same values are therefore
//! equal, independent of order and grouping of the values.

use shardwright_graph::Range;

/// Number of bins on either side.
pub(crate) const BINS: usize = 1 << BIN_BITS;
const BIN_BITS: i32 = 10;
/// Exponents of the bin width. Subnormal values count as the smallest normal f32.
pub(crate) const EXPONENTS: std::ops::RangeInclusive<i32> = -126..=(127 - BIN_BITS + 1);

/// Counts on one side of zero, by magnitude.
pub(crate) type Side = Vec<u64>;

/// A histogram of all values except masked ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// The bin width is 2 to the power of this. `None` until a value other than zero is seen.
    pub exponent: Option<i32>,
    pub zeros: u64,
    /// Magnitudes of values below zero: empty, or [`BINS`] long.
    pub negative: Side,
    /// Magnitudes of values above zero: empty, or [`BINS`] long.
    pub positive: Side,
}

impl Histogram {
    /// Adds finite values. `largest` is the largest magnitude among them.
    pub fn add(&mut self, values: impl Iterator<Item = f32>, largest: f32) {
        if largest > 0.0 {
            self.grow(exponent_for(largest));
        }
        let inverse = self.exponent.map_or(1.0, |exponent| (-f64::from(exponent)).exp2());
        for value in values {
            if value == 0.0 {
                self.zeros += 1;
                continue;
            }
            let side = if value < 0.0 { &mut self.negative } else { &mut self.positive };
            if side.is_empty() {
                side.resize(BINS, 0);
            }
            side[((f64::from(value.abs()) * inverse) as usize).min(BINS - 1)] += 1;
        }
    }

    /// Widens bins to at least 2 to the power of `exponent`.
    fn grow(&mut self, exponent: i32) {
        let Some(existing) = self.exponent else {
            self.exponent = Some(exponent);
            return;
        };
        for _ in existing..exponent {
            for side in [&mut self.negative, &mut self.positive] {
                for bin in 0..side.len() {
                    side[bin] = match 2 * bin < BINS {
                        true => side[2 * bin] + side[2 * bin + 1],
                        false => 0,
                    };
                }
            }
        }
        self.exponent = Some(existing.max(exponent));
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, mut other: Histogram) {
        self.zeros = self.zeros.saturating_add(other.zeros);
        let Some(exponent) = other.exponent else { return };
        self.grow(exponent);
        if let Some(exponent) = self.exponent {
            other.grow(exponent);
        }
        let sides = [(&mut self.negative, other.negative), (&mut self.positive, other.positive)];
        for (existing, other) in sides {
            if existing.is_empty() {
                *existing = other;
            } else {
                existing
                    .iter_mut()
                    .zip(other)
                    .for_each(|(existing, other)| *existing = existing.saturating_add(other));
            }
        }
    }

    /// Returns the number of values counted.
    pub fn count(&self) -> u64 {
        self.negative.iter().chain(&self.positive).fold(self.zeros, |sum, &count| sum.saturating_add(count))
    }

    fn width(&self) -> f64 {
        self.exponent.map_or(0.0, |exponent| f64::from(exponent).exp2())
    }

    /// Returns the range that leaves out at most `1 − share` of the values at either end.
    pub fn percentile(&self, share: f64, seen: Range) -> Range {
        let spare = ((1.0 - share) * self.count() as f64) as u64;
        let (low, high) = (f64::from(seen.low), f64::from(seen.high));
        let end = |side: &Side, other: &Side| {
            let mut left = 0;
            for (bin, &count) in side.iter().enumerate().rev() {
                left += count;
                if left > spare {
                    return (bin + 1) as f64 * self.width();
                }
            }
            left += self.zeros;
            if left > spare {
                return 0.0;
            }
            // Nearly all values are on the other side of zero.
            for (bin, &count) in other.iter().enumerate() {
                left += count;
                if left > spare {
                    return -(bin as f64 * self.width());
                }
            }
            0.0
        };
        let (bottom, top) = (-end(&self.negative, &self.positive), end(&self.positive, &self.negative));
        Range { low: bottom.clamp(low, high) as f32, high: top.clamp(low, high) as f32, ..seen }
    }

    /// Returns the range with the least expected squared error for `bits` bits. Values inside are
    /// off by up to half a step, values outside by their distance to the end.
    pub fn least_squares(&self, bits: u32, seen: Range) -> Range {
        /// Number of ends to try on each side, from the outermost value inwards.
        const ENDS: usize = 40;
        const RATIO: f64 = 0.93;
        let steps = (bits.min(31) as f64).exp2() - 1.0;
        let inside = self.count().saturating_sub(self.zeros) as f64;
        let ends = |outermost: f32| -> Vec<f64> {
            let outermost = f64::from(outermost).max(0.0);
            let count = if outermost == 0.0 { 1 } else { ENDS };
            (0..count).map(|step| outermost * RATIO.powi(step as i32)).collect()
        };
        let cut = |side: &Side, end: f64| -> f64 {
            let first = if self.width() > 0.0 { (end / self.width()) as usize } else { 0 };
            let beyond = side.iter().enumerate().skip(first.min(side.len()));
            beyond
                .map(|(bin, &count)| {
                    let distance = ((bin as f64 + 0.5) * self.width() - end).max(0.0);
                    count as f64 * distance * distance
                })
                .sum()
        };
        let with_costs = |ends: Vec<f64>, side: &Side| -> Vec<(f64, f64)> {
            ends.into_iter()
                .enumerate()
                .map(|(at, end)| (end, if at == 0 { 0.0 } else { cut(side, end) }))
                .collect()
        };
        let low = with_costs(ends(-seen.low), &self.negative);
        let high = with_costs(ends(seen.high), &self.positive);
        let (mut best, mut least) = ((low[0].0, high[0].0), f64::INFINITY);
        for (bottom, below) in &low {
            for (top, above) in &high {
                let step = (bottom + top) / steps;
                let cost = below + above + inside * step * step / 12.0;
                if cost < least {
                    (best, least) = ((*bottom, *top), cost);
                }
            }
        }
        // A side without values keeps its end, since the range includes zero anyway.
        let low = if seen.low < 0.0 { -best.0 as f32 } else { seen.low };
        let high = if seen.high > 0.0 { best.1 as f32 } else { seen.high };
        Range { low, high, ..seen }
    }
}

/// Returns the smallest exponent for which a magnitude falls into a bin.
fn exponent_for(largest: f32) -> i32 {
    // The exponent field of a subnormal number is 0, one lower than that of any normal number.
    let exponent = (largest.to_bits() >> 23 & 0xFF) as i32 - 127;
    (exponent + 1 - BIN_BITS).clamp(*EXPONENTS.start(), *EXPONENTS.end())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[f32]) -> Histogram {
        let mut histogram = Histogram::default();
        add(&mut histogram, values);
        histogram
    }

    fn add(histogram: &mut Histogram, values: &[f32]) {
        let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        histogram.add(values.iter().copied(), largest);
    }

    fn seen(values: &[f32]) -> Range {
        let low = values.iter().copied().fold(f32::INFINITY, f32::min);
        let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Range { low, high, masked: false }
    }

    proptest! {
        #[test]
        fn grouping_and_order_change_nothing(
            values in prop::collection::vec((-1.0_f32..1.0, -30_i32..30), 1..60),
            cut in 0_usize..60,
        ) {
            let values: Vec<f32> = values.iter().map(|(value, power)| value * 2.0_f32.powi(*power)).collect();
            let cut = cut.min(values.len());
            let whole = of(&values);
            prop_assert_eq!(whole.count(), values.len() as u64);
            let mut first = of(&values[..cut]);
            let second = of(&values[cut..]);
            let mut turned = second.clone();
            turned.merge(first.clone());
            first.merge(second);
            prop_assert_eq!(&first, &whole);
            prop_assert_eq!(&turned, &whole);
            let mut one_by_one = Histogram::default();
            values.iter().rev().for_each(|value| add(&mut one_by_one, &[*value]));
            prop_assert_eq!(&one_by_one, &whole);
        }

        #[test]
        fn methods_stay_within_what_was_seen(values in prop::collection::vec(-5.0_f32..9.0, 1..200), share in 0.5_f64..1.0) {
            let (histogram, seen) = (of(&values), seen(&values));
            for range in [
                histogram.percentile(share, seen),
                histogram.percentile(1.0, seen),
                histogram.least_squares(8, seen),
                histogram.least_squares(16, seen),
            ] {
                prop_assert!(range.low >= seen.low && range.high <= seen.high && range.low <= range.high, "{range:?} {seen:?}");
            }
            prop_assert_eq!(histogram.percentile(1.0, seen), seen);
        }
    }

    #[test]
    fn outliers_are_cut() {
        let mut values: Vec<f32> = (0..10_000).map(|i| ((i % 201) as f32 - 100.0) / 100.0).collect();
        values.push(60.0);
        let (histogram, seen) = (of(&values), seen(&values));
        let percentile = histogram.percentile(0.999, seen);
        assert!(percentile.high < 1.2 && percentile.high >= 1.0, "{percentile:?}");
        assert!(percentile.low >= -1.0 && percentile.low < -0.9, "{percentile:?}");
        // One outlier among many values: eight bits gain from clipping part of its distance,
        // sixteen bits have enough resolution.
        let mut many = of(&values[..10_000]);
        for _ in 0..9 {
            many.merge(many.clone());
        }
        add(&mut many, &[60.0]);
        let (eight, sixteen) = (many.least_squares(8, seen), many.least_squares(16, seen));
        assert!(eight.high < 50.0 && eight.low == -1.0 && sixteen.high >= 59.0, "{eight:?} {sixteen:?}");
    }

    #[test]
    fn extremes_are_counted() {
        let values = [f32::MAX, -f32::MAX, f32::MIN_POSITIVE / 8.0, 0.0, -0.0];
        let histogram = of(&values);
        assert_eq!((histogram.count(), histogram.zeros), (5, 2));
        assert_eq!(histogram.percentile(1.0, seen(&values)), seen(&values));
        let tiny = of(&[f32::MIN_POSITIVE / 8.0]);
        assert_eq!((tiny.exponent, tiny.count()), (Some(-126), 1));
        assert_eq!(of(&[0.0; 3]).exponent, None);
        assert_eq!(of(&[0.0; 3]).least_squares(8, seen(&[0.0])), seen(&[0.0]));
    }
}
