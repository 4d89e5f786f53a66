//! Goldens of vectors and tower rows: sampled values, compared by direction and length.

use serde::{Deserialize, Serialize};

/// Most values kept from a row, evenly spaced.
const VALUES: usize = 64;

/// Stored number of a row's largest value. It is coarse enough that processors with other orders of
/// addition agree.
const LARGEST: f64 = 10_000.0;

/// Sampled values of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GoldenVector {
    /// Number of values of the whole row.
    width: u32,
    /// Length of the kept values, in thousandths.
    length: u64,
    /// Kept values relative to the largest, in ten-thousandths.
    values: Vec<i32>,
}

/// Returns the kept values of a row.
fn sampled(row: &[f32]) -> impl Iterator<Item = f64> + '_ {
    let kept = row.len().min(VALUES);
    (0..kept).filter_map(move |index| row.get(index * row.len() / kept).map(|value| f64::from(*value)))
}

fn length(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

impl GoldenVector {
    /// Samples a row, whose values must be finite.
    pub fn of(row: &[f32]) -> GoldenVector {
        let largest = sampled(row).fold(0.0, |largest, value| value.abs().max(largest));
        let share = |value: f64| if largest > 0.0 { (value / largest * LARGEST).round() as i32 } else { 0 };
        GoldenVector {
            width: u32::try_from(row.len()).unwrap_or(u32::MAX),
            length: (length(sampled(row)) * 1000.0).round() as u64,
            values: sampled(row).map(share).collect(),
        }
    }

    /// Checks whether the number of values matches the width, for values read from a file.
    pub fn is_valid(&self) -> bool {
        !self.values.is_empty() && self.values.len() == VALUES.min(self.width as usize)
    }

    /// Returns the cosine distance to the corresponding values of a row, 0 to 2, and the ratio of
    /// the longer to the shorter length. Both are infinite if a value is not finite or the row has
    /// another width.
    pub fn compare(&self, row: &[f32]) -> (f64, f64) {
        const NOT: (f64, f64) = (f64::INFINITY, f64::INFINITY);
        if row.len() != self.width as usize {
            return NOT;
        }
        let own = || self.values.iter().map(|value| f64::from(*value));
        let product: f64 = own().zip(sampled(row)).map(|(one, other)| one * other).sum();
        let (one, other) = (length(own()), length(sampled(row)));
        // Vectors whose length rounds to zero are only like each other.
        const LEAST: f64 = 5e-4;
        let golden = self.length as f64 / 1000.0;
        if golden < LEAST && other < LEAST {
            return (0.0, 1.0);
        }
        let distance = 1.0 - product / (one * other);
        let longer = (golden / other).max(other / golden);
        if distance.is_finite() && longer.is_finite() { (distance.max(0.0), longer) } else { NOT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seed: u32, width: u32) -> Vec<f32> {
        (0..width).map(|index| ((index * 37 + seed * 11) % 101) as f32 / 10.0 - 5.0).collect()
    }

    #[test]
    fn a_row_is_near_itself_and_far_from_others() {
        for width in [1, 63, 64, 65, 768] {
            let golden = GoldenVector::of(&row(1, width));
            assert!(golden.is_valid() && golden.values.len() <= VALUES);
            let (distance, longer) = golden.compare(&row(1, width));
            assert!(distance < 1e-6 && longer < 1.01, "{distance} {longer}");
        }
        let golden = GoldenVector::of(&row(1, 768));
        let twice: Vec<f32> = row(1, 768).iter().map(|value| value * 3.0).collect();
        let (distance, longer) = golden.compare(&twice);
        assert!(distance < 1e-6 && (longer - 3.0).abs() < 0.01, "{distance} {longer}");
        assert!(golden.compare(&row(50, 768)).0 > 0.5);
        let opposite: Vec<f32> = row(1, 768).iter().map(|value| -value).collect();
        assert!(golden.compare(&opposite).0 > 1.99);
    }

    #[test]
    fn what_is_no_number_is_near_nothing() {
        let golden = GoldenVector::of(&row(1, 64));
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut changed = row(1, 64);
            changed[7] = wrong;
            assert_eq!(golden.compare(&changed), (f64::INFINITY, f64::INFINITY));
        }
        assert_eq!(golden.compare(&row(1, 63)).0, f64::INFINITY, "another width");
        assert_eq!(golden.compare(&[0.0; 64]).0, f64::INFINITY);
        assert_eq!(GoldenVector::of(&[0.0; 4]).compare(&[0.0; 4]), (0.0, 1.0));
        assert!(!GoldenVector::of(&[]).is_valid());
    }
}
