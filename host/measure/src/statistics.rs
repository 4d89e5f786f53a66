//! Means, spreads and medians of a few numbers.

/// Speeds of repetitions, in tokens per second.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Speeds {
    /// All speeds, in the order of measurement.
    pub samples: Vec<f64>,
    pub mean: f64,
    /// Standard deviation of the sample (n − 1), or 0 for a single one.
    pub deviation: f64,
    pub median: f64,
    /// The largest speed.
    pub best: f64,
    /// The smallest speed.
    pub worst: f64,
}

impl Speeds {
    /// Summarises speeds in the order of measurement.
    pub fn of(samples: Vec<f64>) -> Self {
        let count = samples.len().max(1) as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let (worst, best) = range(&samples);
        Speeds {
            mean,
            deviation: (squares / (count - 1.0).max(1.0)).sqrt(),
            median: median(&samples),
            best,
            worst,
            samples,
        }
    }
}

/// Returns the middle value, or the mean of the two middle ones. Returns 0 without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => 0.0,
        (length, middle) if length % 2 == 1 => sorted[middle],
        (_, middle) => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Returns the smallest and the largest value, or zeros without values.
pub fn range(values: &[f64]) -> (f64, f64) {
    if values.is_empty() {
        return (0.0, 0.0);
    }
    values
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), &value| (least.min(value), most.max(value)))
}

/// Returns the value that `share` of the sorted values do not exceed, or 0 without values.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((share * last as f64).round() as usize).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_summed_up() {
        let speeds = Speeds::of(vec![3.0, 1.0, 2.0, 10.0]);
        assert_eq!((speeds.mean, speeds.median, speeds.best, speeds.worst), (4.0, 2.5, 10.0, 1.0));
        assert!((speeds.deviation - (50.0_f64 / 3.0).sqrt()).abs() < 1e-12, "{}", speeds.deviation);
        assert_eq!(speeds.samples, [3.0, 1.0, 2.0, 10.0]);
        let one = Speeds::of(vec![7.0]);
        assert_eq!((one.mean, one.deviation, one.median), (7.0, 0.0, 7.0));
        assert_eq!(median(&[]), 0.0);
        assert_eq!(range(&[]), (0.0, 0.0));
    }

    #[test]
    fn percentiles_are_values_of_the_sample() {
        let sorted: Vec<f64> = (0..=10).map(f64::from).collect();
        assert_eq!(
            [0.0, 0.1, 0.5, 0.9, 1.0].map(|share| percentile(&sorted, share)),
            [0.0, 1.0, 5.0, 9.0, 10.0]
        );
        assert_eq!(percentile(&[], 0.5), 0.0);
    }
}
