//! Times and rates with the bounds of their error.

use crate::number::{Rounding, divided};
use crate::{EXACT, microseconds, significant};

/// Largest `high` relative to `low` of a time without bounds in its text, in thousandths.
const NARROW: u128 = 1200;

/// Formats a time in microseconds within bounds: the likely time, and the bounds unless they are
/// narrow.
pub fn within([low, likely, high]: [u64; 3]) -> (String, Option<String>) {
    if is_narrow(low, high) {
        return (microseconds(likely), None);
    }
    let units = [(1, "µs"), (1000, "ms"), (1_000_000, "s")];
    // Two digits of 995 are 1000, which is shown in the next unit.
    let is_below = |unit: u128| u128::from(likely) < 995 * unit;
    let (unit, name) = units.into_iter().find(|(unit, _)| is_below(*unit)).unwrap_or(units[2]);
    let (figure, [low, high]) = bounded([low, likely, high].map(u128::from), unit, name);
    (figure, Some(format!("{low} to {high}")))
}

/// Returns whether a time with these bounds is formatted without them.
pub fn is_narrow(low: u64, high: u64) -> bool {
    match low {
        0 => high == 0,
        // The hand-off between shards is rounded to whole microseconds.
        2.. if high.saturating_sub(low) <= 1 => true,
        low => u128::from(high) * 1000 / u128::from(low) <= NARROW,
    }
}

/// Formats `likely / unit` with the name of the unit, and both bounds without it, in two digits:
/// `about 52 ms`, `20`, `130`. No bound has a finer last digit than the likely value.
pub fn bounded([low, likely, high]: [u128; 3], unit: u128, name: &str) -> (String, [String; 2]) {
    let second_digit = |value: u128| {
        let power = value.checked_ilog10().map_or(0, |power| power.saturating_sub(1));
        10_u128.pow(power)
    };
    let shown = |value: u128| {
        let step = second_digit(value).max(second_digit(likely));
        significant(divided(value, step, Rounding::Nearest) * step, unit, EXACT)
    };
    (format!("about {} {name}", shown(likely)), [shown(low), shown(high)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_digits_that_their_error_allows() {
        for (time, shown) in [
            ([20_300, 52_040, 130_400], ("about 52 ms", Some("20 to 130"))),
            ([20, 52, 130], ("about 52 µs", Some("20 to 130"))),
            ([500_000, 994_000, 4_000_000], ("about 990 ms", Some("500 to 4000"))),
            ([500_000, 996_000, 4_000_000], ("about 1 s", Some("0.5 to 4"))),
            ([400, 996, 2600], ("about 1 ms", Some("0.4 to 2.6"))),
            ([1_000, 1_250, 12_600], ("about 1.3 ms", Some("1 to 13"))),
            ([89_400, 180_000, 380_000], ("about 180 ms", Some("90 to 380"))),
            ([0, 7, 90], ("about 7 µs", Some("0 to 90"))),
            ([0, 0, 90], ("about 0 µs", Some("0 to 90"))),
            ([1_000_000, 123_000_000, u64::MAX], ("about 120 s", Some("0 to 18000000000000"))),
            ([10_000, 11_340, 12_000], ("11.3 ms", None)),
            ([10_000, 11_340, 12_100], ("about 11 ms", Some("10 to 12"))),
            ([2, 3, 3], ("3 µs", None)),
            ([0, 0, 0], ("0 µs", None)),
        ] {
            let (figure, range) = within(time);
            assert_eq!((figure.as_str(), range.as_deref()), shown);
        }
    }
}
