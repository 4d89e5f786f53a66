//! Standard errors by resampling whole windows.
//!
//! Tokens of one window share their context, so their scores are not independent. An error that
//! treats them as independent is too small. Windows are drawn with replacement, as many as there
//! are, and the error of a figure is its standard deviation over the resamples (Efron and
//! Tibshirani, *An Introduction to the Bootstrap*, 1993).

use shardwright_text::Random;

/// Number of resamples.
pub(crate) const RESAMPLES: usize = 1000;
/// Seed of the draws.
pub(crate) const SEED: u64 = 0;

/// Values with their windows in ascending order, for quantiles of any resample.
#[derive(Debug)]
pub(crate) struct Sorted(Vec<(f64, usize)>);

impl Sorted {
    /// Sorts the values of all windows.
    pub fn of<'v>(windows: impl Iterator<Item = &'v [f64]>) -> Self {
        let pairs = windows.enumerate().flat_map(|(window, values)| values.iter().map(move |&v| (v, window)));
        let mut sorted: Vec<(f64, usize)> = pairs.collect();
        sorted.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        Sorted(sorted)
    }

    /// Returns the quantiles at `shares` (0 to 1, ascending) of a resample that has window `w`
    /// `times[w]` times. They are interpolated linearly as in `llama-perplexity`, and 0 if the
    /// resample has no values.
    pub fn quantiles<const N: usize>(&self, times: &[usize], shares: [f64; N]) -> [f64; N] {
        let total: usize = self.0.iter().map(|(_, window)| times[*window]).sum();
        let mut drawn = self.0.iter().filter(|(_, window)| times[*window] > 0).peekable();
        // Number of values of the resample before `drawn`.
        let mut before = 0;
        shares.map(|share| {
            let place = share * total.saturating_sub(1) as f64;
            let lower = place as usize;
            while let Some((_, window)) = drawn.peek()
                && before + times[*window] <= lower
            {
                before += times[*window];
                drawn.next();
            }
            let mut rest = drawn.clone();
            let Some((value, window)) = rest.next() else { return 0.0 };
            let next = match before + times[*window] > lower + 1 {
                true => *value,
                false => rest.next().map_or(*value, |(next, _)| *next),
            };
            value + (place - lower as f64) * (next - value)
        })
    }
}

/// Returns the figures of all windows with their standard errors, which need at least two windows.
/// `figures` computes them from how often a resample has each window.
pub(crate) fn with_errors<const N: usize>(
    windows: usize,
    figures: impl Fn(&[usize]) -> [f64; N],
) -> [(f64, Option<f64>); N] {
    let values = figures(&vec![1; windows]);
    if windows < 2 {
        return values.map(|value| (value, None));
    }
    let mut random = Random::new(SEED);
    let drawn: Vec<[f64; N]> = (0..RESAMPLES)
        .map(|_| {
            let mut times = vec![0; windows];
            for _ in 0..windows {
                times[(random.next_unit() * windows as f64) as usize] += 1;
            }
            figures(&times)
        })
        .collect();
    std::array::from_fn(|figure| {
        let mean = drawn.iter().map(|figures| figures[figure]).sum::<f64>() / RESAMPLES as f64;
        let squares: f64 = drawn.iter().map(|figures| (figures[figure] - mean).powi(2)).sum();
        (values[figure], Some((squares / (RESAMPLES - 1) as f64).sqrt()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_resample_are_those_of_its_values() {
        let windows = [vec![5.0, 1.0, 4.0], vec![2.0, 9.0, 2.0], vec![7.0, 3.0, 8.0]];
        let sorted = Sorted::of(windows.iter().map(Vec::as_slice));
        let shares = [0.0, 0.33, 0.5, 0.95, 1.0];
        for times in [[1, 1, 1], [0, 2, 1], [3, 0, 0], [0, 1, 2]] {
            let mut values: Vec<f64> = Vec::new();
            for (window, times) in windows.iter().zip(times) {
                (0..times).for_each(|_| values.extend(window));
            }
            values.sort_by(f64::total_cmp);
            let wanted = shares.map(|share| {
                let place = share * (values.len() - 1) as f64;
                let (lower, upper) = (values[place as usize], values[place.ceil() as usize]);
                lower + place.fract() * (upper - lower)
            });
            assert_eq!(sorted.quantiles(&times, shares), wanted, "{times:?}");
        }
        assert_eq!(sorted.quantiles(&[0, 0, 0], shares), [0.0; 5]);
    }

    #[test]
    fn the_error_of_a_mean_is_that_of_whole_windows() {
        // 64 windows of equal tokens each: the error of the mean is the deviation by √64, however
        // many tokens a window has.
        let means: Vec<f64> = (0..64).map(|window| f64::from(window % 8)).collect();
        let mean = |times: &[usize]| {
            let sum: f64 = times.iter().zip(&means).map(|(&times, mean)| times as f64 * mean).sum();
            [sum / 64.0, 3.0]
        };
        let [(value, error), (constant, none)] = with_errors(64, mean);
        assert_eq!((value, constant, none), (3.5, 3.0, Some(0.0)));
        let wanted = (5.25_f64 / 64.0).sqrt();
        let error = error.expect("an error");
        assert!((error / wanted - 1.0).abs() < 0.08, "{error}, expected about {wanted}");
        assert_eq!(with_errors(64, mean)[0].1, Some(error), "the same seed");
    }

    #[test]
    fn one_window_has_no_error() {
        assert_eq!(with_errors(1, |times| [times[0] as f64 * 2.0]), [(2.0, None)]);
    }
}
