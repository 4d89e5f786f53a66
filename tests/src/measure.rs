//! Timing for the benches: few repetitions, with median and best. On a shared machine the best
//! shows the speed of the code, and its distance to the median shows how quiet the machine was.

use std::fmt;
use std::time::{Duration, Instant};

/// Time of a repeated operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Time of the fastest repetition.
    pub best: Duration,
    /// Median time of the repetitions.
    pub median: Duration,
    /// Number of repetitions.
    pub repetitions: usize,
}

/// Times `repetitions` runs of `work`, at least one. Dropping the results is not timed.
pub fn timed<T>(repetitions: usize, mut work: impl FnMut() -> T) -> Timing {
    let mut times: Vec<_> = (0..repetitions.max(1))
        .map(|_| {
            let start = Instant::now();
            let result = work();
            let time = start.elapsed();
            drop(result);
            time
        })
        .collect();
    times.sort_unstable();
    Timing { best: times[0], median: times[times.len() / 2], repetitions: times.len() }
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (best {} of {})", shown(self.median), shown(self.best), self.repetitions)
    }
}

/// Formats a duration with three digits, in a readable unit.
pub fn shown(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "µs"),
        s => (s * 1e9, "ns"),
    };
    let digits = if value >= 100.0 { 0 } else { usize::from(value < 10.0) + 1 };
    format!("{value:.digits$} {unit}")
}

/// Prints one line of a bench's table.
pub fn row(what: &str, value: impl fmt::Display) {
    println!("  {what:<58} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_with_three_digits() {
        for (nanoseconds, text) in [
            (5, "5.00 ns"),
            (42_000, "42.0 µs"),
            (1_234_567, "1.23 ms"),
            (999_000_000, "999 ms"),
            (61_000_000_000, "61.0 s"),
        ] {
            assert_eq!(shown(Duration::from_nanos(nanoseconds)), text);
        }
    }

    #[test]
    fn the_middle_and_the_best_are_of_the_runs_made() {
        let mut runs = 0;
        let timing = timed(5, || runs += 1);
        assert_eq!((runs, timing.repetitions), (5, 5));
        assert!(timing.best <= timing.median);
    }
}
