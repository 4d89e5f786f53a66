//! A median with its spread, and the criterion for a difference.

use serde::{Deserialize, Serialize};
use shardwright_measure::{median, percentile};

/// Differences up to this share are ignored, however small the spread. Two runs of one plan on a
/// quiet machine differ by as much.
const INDISTINCT: f64 = 0.01;

/// The median and the quartiles of several values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    /// The lower quartile.
    pub low: f64,
    /// The upper quartile.
    pub high: f64,
    /// Number of values.
    pub samples: usize,
}

impl Spread {
    /// Computes the spread of some values. Returns `None` without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        (!sorted.is_empty()).then(|| Spread {
            median: median(&sorted),
            low: percentile(&sorted, 0.25),
            high: percentile(&sorted, 0.75),
            samples: sorted.len(),
        })
    }

    /// Returns whether ratios are below one by more than their spread.
    pub fn is_below_one(&self) -> bool {
        self.median < 1.0 - INDISTINCT && self.high < 1.0
    }

    /// Returns whether ratios are above one by more than their spread.
    pub fn is_above_one(&self) -> bool {
        self.median > 1.0 + INDISTINCT && self.low > 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_within_the_spread_is_none() {
        let of = |values: [f64; 5]| Spread::of(values).expect("there are values");
        let faster = of([0.8, 0.9, 0.85, 0.8, 0.9]);
        assert!(faster.is_below_one() && !faster.is_above_one(), "{faster:?}");
        let slower = of([1.2, 1.1, 1.15, 1.2, 1.1]);
        assert!(slower.is_above_one() && !slower.is_below_one(), "{slower:?}");
        for none in [of([0.8, 0.9, 0.95, 1.1, 1.2]), of([0.995; 5]), of([1.005; 5]), of([1.0; 5])] {
            assert!(!none.is_below_one() && !none.is_above_one(), "{none:?}");
        }
        assert_eq!(Spread::of([]), None);
    }
}
