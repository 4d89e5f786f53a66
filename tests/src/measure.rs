//! Timing for the benches: few repetitions, with median and best. On a shared machine the best
//! shows the speed of the code, and its distance to the median shows how quiet the machine was. Two
//! ways to do the same alternate, so that a drift of the machine favours neither.

use std::fmt;
use std::time::{Duration, Instant};

use shardwright_measure::{median, range};

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

/// Measures two ways alternately, and returns the results of `pairs` pairs after one that does not
/// count. The order changes from pair to pair.
pub fn alternately<T>(pairs: usize, mut one: impl FnMut() -> T, mut other: impl FnMut() -> T) -> Vec<(T, T)> {
    let mut measured = Vec::new();
    for pair in 0..=pairs {
        let results = if pair % 2 == 0 {
            let first = one();
            (first, other())
        } else {
            let second = other();
            (one(), second)
        };
        measured.extend((pair > 0).then_some(results));
    }
    measured
}

/// Columns of [`compared`] after the name.
pub const COMPARED: [&str; 3] = ["ratio", "of single pairs", "pairs"];

/// Summarises pairs: the medians of both sides, the ratio of the medians, the least and the largest
/// ratio of single pairs, and the number of pairs.
pub fn compared(what: &str, pairs: &[(f64, f64)], shown: impl Fn(f64) -> String) -> Vec<String> {
    let (ones, others): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let ratios: Vec<f64> = pairs.iter().map(|(one, other)| one / other).collect();
    let (one, other) = (median(&ones), median(&others));
    let (least, most) = range(&ratios);
    vec![
        what.to_owned(),
        shown(one),
        shown(other),
        format!("{:.3}", one / other),
        format!("{least:.3} to {most:.3}"),
        pairs.len().to_string(),
    ]
}

/// Prints a Markdown table. The first column is text, and the others are numbers.
pub fn markdown(head: &[&str], rows: &[Vec<String>]) {
    println!("\n| {} |", head.join(" | "));
    println!("|---{}|", "|---:".repeat(head.len().saturating_sub(1)));
    rows.iter().for_each(|row| println!("| {} |", row.join(" | ")));
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_alternate_and_the_first_does_not_count() {
        let order = std::cell::RefCell::new(String::new());
        let run = |name: &str| {
            order.borrow_mut().push_str(name);
            order.borrow().len()
        };
        let pairs = alternately(2, || run("a"), || run("b"));
        assert_eq!((order.borrow().as_str(), pairs), ("abbaab", vec![(4, 3), (5, 6)]));
    }

    #[test]
    fn ratios_are_of_medians() {
        let pairs = [(2.0, 1.0), (9.0, 3.0), (4.0, 4.0)];
        let row = compared("a", &pairs, |value| format!("{value}"));
        assert_eq!(row, ["a", "4", "3", "1.333", "1.000 to 3.000", "3"]);
    }

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
