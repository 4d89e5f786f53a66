//! Formats predicted times and rates with the digits that their error allows.

use std::fmt;

use shardwright_vocabulary::{TimeCost, units};

/// A predicted figure with its interval, as text: `about 52 ms (20 to 130)`. A figure whose
/// interval is narrow is formatted without it, in three digits: `52.1 ms`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranged {
    figure: String,
    /// The interval, in the unit of the figure.
    range: Option<String>,
}

/// Largest quotient of both ends of a narrow interval, in thousandths.
const NARROW: u64 = 1200;

/// Units of times, each with its microseconds.
const UNITS: [(f64, &str); 3] = [(1.0, "µs"), (1e3, "ms"), (1e6, "s")];

impl Ranged {
    /// Formats a time.
    pub fn time(time: &TimeCost) -> Self {
        if time.width() <= NARROW {
            return Ranged { figure: units::microseconds(time.microseconds), range: None };
        }
        let [low, likely, high] = [time.low, time.microseconds, time.high].map(|bound| bound as f64);
        // Two digits of 995 are 1000, which is shown in the next unit.
        let in_unit = UNITS.into_iter().find(|(size, _)| likely < 995.0 * size);
        let (size, unit) = in_unit.unwrap_or((1e6, "s"));
        Self::within([low / size, likely / size, high / size], unit)
    }

    /// Formats the rate in tokens per second at which tokens follow that need this time each.
    /// Returns `None` if no time is needed.
    pub fn rate(time: &TimeCost) -> Option<Self> {
        let of = |microseconds: u64| 1e6 / microseconds as f64;
        match (time.low, time.microseconds) {
            (_, 0) => None,
            _ if time.width() <= NARROW => {
                Some(Ranged { figure: units::tokens_per_second(of(time.microseconds)), range: None })
            }
            // The fastest rate has no bound.
            (0, likely) => {
                let Ranged { figure, .. } = Self::within([0.0, of(likely), 0.0], "tokens/s");
                let range = format!("at least {}", rounded(of(time.high), step(of(likely))));
                Some(Ranged { figure, range: Some(range) })
            }
            (low, likely) => Some(Self::within([of(time.high), of(likely), of(low)], "tokens/s")),
        }
    }

    fn within([low, likely, high]: [f64; 3], unit: &str) -> Self {
        let shown = |value| rounded(value, step(likely));
        Ranged {
            figure: format!("about {} {unit}", shown(likely)),
            range: Some(format!("{} to {}", shown(low), shown(high))),
        }
    }

    /// Returns the text with the source of the figure: `about 52 ms (20 to 130; modelled)`.
    pub fn with(&self, source: &str) -> String {
        match &self.range {
            Some(range) => format!("{} ({range}; {source})", self.figure),
            None => format!("{} ({source})", self.figure),
        }
    }
}

impl fmt::Display for Ranged {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.range {
            Some(range) => write!(formatter, "{} ({range})", self.figure),
            None => formatter.write_str(&self.figure),
        }
    }
}

/// Returns the power of ten of the second digit of a value.
fn step(value: f64) -> i32 {
    if value > 0.0 { value.log10().floor() as i32 - 1 } else { 0 }
}

/// Formats a value with two digits, but none below the power of ten `finest`, and without trailing
/// zeros of a fraction.
fn rounded(value: f64, finest: i32) -> String {
    let power = step(value).max(finest);
    if power >= 0 {
        let unit = 10_f64.powi(power);
        return format!("{:.0}", (value / unit).round() * unit);
    }
    let digits = power.unsigned_abs() as usize;
    // Halves up, like above.
    let scale = 10_f64.powi(-power);
    let text = format!("{:.digits$}", (value * scale).round() / scale);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::Provenance;

    use super::*;

    fn time(low: u64, likely: u64, high: u64) -> TimeCost {
        TimeCost::within(low, likely, high, Provenance::Modelled)
    }

    #[test]
    fn times_have_the_digits_that_their_error_allows() {
        for (of, shown) in [
            (time(20_300, 52_040, 130_400), "about 52 ms (20 to 130)"),
            (time(20, 52, 130), "about 52 µs (20 to 130)"),
            (time(500_000, 994_000, 4_000_000), "about 990 ms (500 to 4000)"),
            (time(500_000, 996_000, 4_000_000), "about 1 s (0.5 to 4)"),
            (time(400, 996, 2600), "about 1 ms (0.4 to 2.6)"),
            (time(1_000, 1_250, 12_600), "about 1.3 ms (1 to 13)"),
            (time(0, 7, 90), "about 7 µs (0 to 90)"),
            (time(0, 0, 90), "about 0 µs (0 to 90)"),
            (time(1_000_000, 123_000_000, u64::MAX), "about 120 s (0 to 18000000000000)"),
            // The interval is narrow: three digits.
            (time(52_140, 52_140, 52_140), "52.1 ms"),
            (time(10_000, 11_340, 12_000), "11.3 ms"),
            (time(10_000, 11_340, 12_100), "about 11 ms (10 to 12)"),
            (TimeCost::ZERO, "0 µs"),
        ] {
            assert_eq!(Ranged::time(&of).to_string(), shown);
        }
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
            assert_eq!(Ranged::rate(&of).map(|rate| rate.to_string()).as_deref(), shown);
        }
    }

    #[test]
    fn the_source_is_next_to_the_interval() {
        let wide = Ranged::time(&time(20_000, 52_000, 130_000));
        assert_eq!(wide.with("modelled"), "about 52 ms (20 to 130; modelled)");
        assert_eq!(Ranged::time(&time(7, 7, 7)).with("measured"), "7 µs (measured)");
    }
}
