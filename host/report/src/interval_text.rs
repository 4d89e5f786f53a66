//! Formats predicted times and rates with the digits that their error allows.

use std::fmt;

use shardwright_vocabulary::TimeCost;
use shardwright_vocabulary::units::{bounded, is_narrow, tokens_per_second, within};

/// A predicted figure with its interval, as text: `about 52 ms (20 to 130)`. A figure whose
/// interval is narrow is formatted without it, in three digits: `52.1 ms`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntervalText {
    figure: String,
    /// The interval, in the unit of the figure.
    range: Option<String>,
}

impl IntervalText {
    /// Formats a time.
    pub fn time(time: &TimeCost) -> Self {
        let (figure, range) = within([time.low, time.microseconds, time.high]);
        IntervalText { figure, range }
    }

    /// Formats the rate in tokens per second at which tokens follow that need this time each.
    /// Returns `None` if no time is needed.
    pub fn rate(time: &TimeCost) -> Option<Self> {
        let TimeCost { low, microseconds, high, .. } = *time;
        if microseconds == 0 {
            return None;
        }
        if is_narrow(low, high) {
            return Some(IntervalText { figure: tokens_per_second(1e6 / microseconds as f64), range: None });
        }
        let millionths = |time: u64| 1_000_000_000_000 / u128::from(time.max(1));
        let rates = [high, microseconds, low].map(millionths);
        let (figure, [least, most]) = bounded(rates, 1_000_000, "tokens/s");
        // The fastest rate has no bound if the fastest time is 0.
        let range = if low == 0 { format!("at least {least}") } else { format!("{least} to {most}") };
        Some(IntervalText { figure, range: Some(range) })
    }

    /// Returns the text with the source of the figure: `about 52 ms (20 to 130; modelled)`.
    pub fn with(&self, source: &str) -> String {
        match &self.range {
            Some(range) => format!("{} ({range}; {source})", self.figure),
            None => format!("{} ({source})", self.figure),
        }
    }
}

impl fmt::Display for IntervalText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.range {
            Some(range) => write!(formatter, "{} ({range})", self.figure),
            None => formatter.write_str(&self.figure),
        }
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::Provenance;

    use super::*;

    fn time(low: u64, likely: u64, high: u64) -> TimeCost {
        TimeCost::within(low, likely, high, Provenance::Modelled)
    }

    #[test]
    fn rates_have_the_interval_of_their_times() {
        for (of, shown) in [
            (time(20_000, 52_000, 130_000), Some("about 19 tokens/s (8 to 50)")),
            (time(118, 118, 118), Some("8470 tokens/s")),
            (time(0, 52_000, 130_000), Some("about 19 tokens/s (at least 8)")),
            (time(400_000, 2_000_000, 4_000_000), Some("about 0.5 tokens/s (0.25 to 2.5)")),
            (time(0, 0, 130_000), None),
        ] {
            assert_eq!(IntervalText::rate(&of).map(|rate| rate.to_string()).as_deref(), shown);
        }
    }

    #[test]
    fn the_source_is_next_to_the_interval() {
        let wide = IntervalText::time(&time(20_000, 52_000, 130_000));
        assert_eq!(wide.with("modelled"), "about 52 ms (20 to 130; modelled)");
        assert_eq!(IntervalText::time(&time(7, 7, 7)).with("measured"), "7 µs (measured)");
    }
}
