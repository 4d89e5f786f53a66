//! Amounts as the host's reports format them: with three significant digits, or with as many as two
//! amounts need to differ. Sizes have one digit after the point.

use super::count;

/// Digits of an amount that is not compared.
const DIGITS: u32 = 3;
/// Largest number of digits that a comparison adds.
const MORE: u32 = 9;
/// Largest `high` relative to `low` of a time without bounds in its text, in thousandths.
const NARROW: u128 = 1200;

/// The unit of a limit or goal.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Microseconds,
    Nanoseconds,
    Micronats,
    Count,
}

/// How an amount is rounded.
#[derive(Clone, Copy)]
enum Rounding {
    /// To the nearest, halves up. Halves of bytes are rounded to even digits.
    Nearest,
    Up,
}

impl Unit {
    /// Returns the unit that the name of a limit or goal implies.
    fn of(name: &str) -> Unit {
        match name {
            "size" | "memory" => Unit::Bytes,
            "quality" => Unit::Micronats,
            name if name.ends_with("bytes") => Unit::Bytes,
            name if name.ends_with("microseconds") => Unit::Microseconds,
            _ => Unit::Count,
        }
    }

    fn shown(self, value: u64, digits: u32, rounding: Rounding) -> String {
        let wide = u128::from(value);
        match self {
            Unit::Bytes => size(value, digits.saturating_sub(2), rounding),
            Unit::Microseconds => time(wide * 1000, digits, rounding),
            Unit::Nanoseconds => time(wide, digits, rounding),
            Unit::Micronats => {
                let shown = significant(wide, 1000, digits, rounding);
                let plural = if shown == "1" { "" } else { "s" };
                format!("{shown} millinat{plural}")
            }
            Unit::Count => value.to_string(),
        }
    }

    /// Formats two amounts, with more digits if they differ and their texts would not.
    fn apart(self, amounts: [u64; 2], digits: u32, roundings: [Rounding; 2]) -> [String; 2] {
        let shown = |digits| {
            let [one, other] = roundings;
            [self.shown(amounts[0], digits, one), self.shown(amounts[1], digits, other)]
        };
        let mut all = (digits..=digits + MORE).map(shown);
        let differ = |texts: &[String; 2]| amounts[0] == amounts[1] || texts[0] != texts[1];
        all.find(differ).unwrap_or_else(|| shown(digits + MORE))
    }
}

/// Formats bytes: `2.9 GiB`.
pub fn bytes(value: u64) -> String {
    Unit::Bytes.shown(value, DIGITS, Rounding::Nearest)
}

/// Formats microseconds: `513 ms`.
pub fn microseconds(value: u64) -> String {
    Unit::Microseconds.shown(value, DIGITS, Rounding::Nearest)
}

/// Formats millionths of a nat: `12.1 millinats`.
pub fn micronats(value: u64) -> String {
    Unit::Micronats.shown(value, DIGITS, Rounding::Nearest)
}

/// Formats the value of a limit or goal in the unit that its name implies.
pub fn quantity(name: &str, value: u64) -> String {
    Unit::of(name).shown(value, DIGITS, Rounding::Nearest)
}

/// Formats two values of a limit or goal so that their texts differ if the values do.
pub fn apart(name: &str, values: [u64; 2]) -> [String; 2] {
    Unit::of(name).apart(values, DIGITS, [Rounding::Nearest; 2])
}

/// Formats a goal. A size that is a round number of bytes is formatted as users state it:
/// `7 GB (6.5 GiB)`.
pub fn goal(name: &str, value: u64) -> String {
    stated(name, value, quantity(name, value))
}

/// Formats a value and the goal that it is compared with, so that their texts differ if they do.
pub fn against_goal(name: &str, value: u64, goal: u64) -> [String; 2] {
    let [value, shown] = apart(name, [value, goal]);
    [value, stated(name, goal, shown)]
}

/// Formats a goal that cannot be met, and the nearest one that can. The nearest one is rounded up,
/// so that it holds.
pub fn nearest_goal(name: &str, goal: u64, nearest: u64) -> [String; 2] {
    let roundings = [Rounding::Nearest, Rounding::Up];
    let [shown, nearest] = Unit::of(name).apart([goal, nearest], DIGITS, roundings);
    [stated(name, goal, shown), nearest]
}

/// Formats two times in nanoseconds with at least this number of significant digits, so that their
/// texts differ if the times do.
pub(crate) fn times_apart(nanoseconds: [u64; 2], digits: u32) -> [String; 2] {
    Unit::Nanoseconds.apart(nanoseconds, digits, [Rounding::Nearest; 2])
}

/// Formats a time in nanoseconds with this number of significant digits.
pub(crate) fn time_in(nanoseconds: u64, digits: u32) -> String {
    Unit::Nanoseconds.shown(nanoseconds, digits, Rounding::Nearest)
}

/// Formats a part of a whole in whole percent: `19 %`, `less than 1 %`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    match divided(u128::from(part) * 100, whole.max(1).into(), Rounding::Nearest) {
        0 if part > 0 => "less than 1 %".to_owned(),
        percent => format!("{percent} %"),
    }
}

/// Formats a part of a whole in percent, rounded up: `20 %`.
pub(crate) fn percent_at_most(part: u64, whole: u64) -> String {
    format!("{} %", divided(u128::from(part) * 100, whole.max(1).into(), Rounding::Up))
}

/// Formats how many times as large as another value, which is not 0, a value is: `9.1x`.
pub(crate) fn factor(value: u64, other: u64) -> String {
    format!("{}x", significant(value.into(), other.into(), 2, Rounding::Nearest))
}

/// Formats a time within bounds: the likely time, and the bounds unless they are narrow. No bound
/// has a finer last digit than the likely time.
pub(crate) fn within([low, likely, high]: [u64; 3]) -> (String, Option<String>) {
    if is_narrow(low, high) {
        return (microseconds(likely), None);
    }
    let units = [(1_u128, "µs"), (1000, "ms"), (1_000_000, "s")];
    // Two digits of 995 are 1000, which is shown in the next unit.
    let is_below = |unit: u128| u128::from(likely) < 995 * unit;
    let (unit, name) = units.into_iter().find(|(unit, _)| is_below(*unit)).unwrap_or(units[2]);
    let second_digit = |value: u64| {
        let power = value.checked_ilog10().map_or(0, |power| power.saturating_sub(1));
        10_u128.pow(power)
    };
    let shown = |value: u64| {
        let step = second_digit(value).max(second_digit(likely));
        let rounded = divided(value.into(), step, Rounding::Nearest) * step;
        trimmed(&fixed(rounded, unit, 6, Rounding::Nearest))
    };
    (format!("about {} {name}", shown(likely)), Some(format!("{} to {}", shown(low), shown(high))))
}

/// Returns whether a time with these bounds is formatted without them.
pub(crate) fn is_narrow(low: u64, high: u64) -> bool {
    match low {
        0 => high == 0,
        // The hand-off between shards is rounded to whole microseconds.
        2.. if high.saturating_sub(low) <= 1 => true,
        low => u128::from(high) * 1000 / u128::from(low) <= NARROW,
    }
}

/// Adds the number that a user probably stated for a goal: `7 GB (6.5 GiB)`,
/// `55.6 ms (18 tokens/s)`.
fn stated(name: &str, value: u64, shown: String) -> String {
    let (giga, mega) = (1_000_000_000, 1_000_000);
    match Unit::of(name) {
        Unit::Bytes if value >= giga && value.is_multiple_of(giga / 100) => {
            format!("{} GB ({shown})", trimmed(&fixed(value.into(), giga.into(), 2, Rounding::Nearest)))
        }
        Unit::Bytes if (mega..giga).contains(&value) && value.is_multiple_of(mega) => {
            format!("{} MB ({shown})", value / mega)
        }
        Unit::Microseconds if name == "token-microseconds" => match rate(value) {
            Some(rate) => format!("{shown} ({rate} tokens/s)"),
            None => shown,
        },
        _ => shown,
    }
}

/// Returns the rate in tokens per second that gives exactly this time of a token, if it has at most
/// one digit after the point and is between 1 and 1000.
fn rate(microseconds: u64) -> Option<String> {
    let tenths = divided(10_000_000, u128::from(microseconds).max(1), Rounding::Nearest);
    let is_exact = (10..=10_000).contains(&tenths) && 10_000_000 / tenths == u128::from(microseconds);
    is_exact.then(|| trimmed(&fixed(tenths, 10, 1, Rounding::Nearest)))
}

/// Formats bytes with a number of digits after the point, or exactly below one mebibyte.
fn size(value: u64, decimals: u32, rounding: Rounding) -> String {
    if value < 1 << 20 {
        return count(value, "byte");
    }
    let units = [(1_u128 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB")];
    // From 1023.95 on, one digit after the point would show 1024.0.
    let is_below = |unit: u128| u128::from(value) * 20 < 20_479 * unit;
    let (unit, name) = units.into_iter().find(|(unit, _)| is_below(*unit)).unwrap_or(units[2]);
    let scaled = u128::from(value) * 10_u128.pow(decimals);
    let (whole, rest) = (scaled / unit, scaled % unit * 2);
    let up = match rounding {
        Rounding::Nearest => rest > unit || rest == unit && whole % 2 == 1,
        Rounding::Up => rest > 0,
    };
    format!("{} {name}", with_point(whole + u128::from(up), decimals))
}

fn time(nanoseconds: u128, digits: u32, rounding: Rounding) -> String {
    let units = [(1000_u128, "µs"), (1_000_000, "ms"), (1_000_000_000, "s")];
    // In three digits, 999.5 is 1000, which is shown in the next unit.
    let scale = 10_u128.pow(digits);
    let is_below = |unit: u128| nanoseconds * 2 * scale < unit * (2000 * scale - 1000);
    let (unit, name) = units.into_iter().find(|(unit, _)| is_below(*unit)).unwrap_or(units[2]);
    format!("{} {name}", significant(nanoseconds, unit, digits, rounding))
}

/// Formats `value / unit` with a number of significant digits, without trailing zeros after the
/// point.
fn significant(value: u128, unit: u128, digits: u32, rounding: Rounding) -> String {
    let before = (value / unit).checked_ilog10().map_or(1, |power| power + 1);
    if before > digits {
        let step = 10_u128.pow(before - digits);
        return (divided(value, unit * step, rounding) * step).to_string();
    }
    trimmed(&fixed(value, unit, digits - before, rounding))
}

/// Formats `value / unit` with a number of digits after the point.
fn fixed(value: u128, unit: u128, decimals: u32, rounding: Rounding) -> String {
    with_point(divided(value * 10_u128.pow(decimals), unit, rounding), decimals)
}

/// Formats an integer with its last digits after a point.
fn with_point(number: u128, decimals: u32) -> String {
    let scale = 10_u128.pow(decimals);
    match decimals {
        0 => number.to_string(),
        _ => format!("{}.{:0width$}", number / scale, number % scale, width = decimals as usize),
    }
}

fn divided(value: u128, by: u128, rounding: Rounding) -> u128 {
    match rounding {
        Rounding::Nearest => (value + by / 2) / by,
        Rounding::Up => value.div_ceil(by),
    }
}

/// Removes trailing zeros after the point.
fn trimmed(number: &str) -> String {
    match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => number.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host's reports have the same texts: the tests of its `units` and `ranged` have the rows
    /// from 1 MiB on.
    #[test]
    fn amounts_have_three_digits_in_a_unit_that_suits_them() {
        for (value, shown) in [
            (1, "1 byte"),
            (999_999, "999999 bytes"),
            (5 << 18, "1.2 MiB"),
            (14_782_040, "14.1 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (1 << 40, "1.0 TiB"),
        ] {
            assert_eq!(bytes(value), shown);
        }
        for (value, shown) in [
            (0, "0 µs"),
            (870, "870 µs"),
            (1001, "1 ms"),
            (213_427, "213 ms"),
            (28_250, "28.3 ms"),
            (999_600, "1 s"),
            (9_726_500, "9.73 s"),
            (1_234_567_890, "1230 s"),
        ] {
            assert_eq!(microseconds(value), shown);
        }
        for (value, shown) in [(0, "0 millinats"), (1000, "1 millinat"), (12_050, "12.1 millinats")] {
            assert_eq!(micronats(value), shown);
        }
        let named = [("context-bytes", 1 << 20), ("call-microseconds", 50), ("ops", 2600), ("size", 7)];
        let shown = named.map(|(name, value)| quantity(name, value));
        assert_eq!(shown, ["1.0 MiB", "50 µs", "2600", "7 bytes"]);
    }

    #[test]
    fn compared_amounts_have_the_digits_that_they_need_to_differ() {
        for (name, values, shown) in [
            ("context-bytes", [7 << 30, 4 << 30], ["7.0 GiB", "4.0 GiB"]),
            ("memory", [4_015_934_808, 4_000_000_000], ["3.74 GiB", "3.73 GiB"]),
            ("size", [4_000_000_001, 4_000_000_000], ["3.725290299 GiB", "3.725290298 GiB"]),
            ("call-microseconds", [11_340, 11_310], ["11.34 ms", "11.31 ms"]),
            ("quality", [127_375, 127_375], ["127 millinats", "127 millinats"]),
            ("ops", [1980, 1019], ["1980", "1019"]),
        ] {
            assert_eq!(apart(name, values), shown);
        }
        assert_eq!(times_apart([64_600_000, 65_400_000], 2), ["64.6 ms", "65.4 ms"]);
        assert_eq!(times_apart([42_200_000, 43_000_400], 2), ["42 ms", "43 ms"]);
        assert_eq!(time_in(996_000, 2), "1 ms");
    }

    #[test]
    fn goals_are_formatted_as_users_state_them() {
        for (name, value, shown) in [
            ("size", 7_000_000_000, "7 GB (6.5 GiB)"),
            ("size", 1_250_000_000, "1.25 GB (1.2 GiB)"),
            ("memory-bytes", 900_000_000, "900 MB (858.3 MiB)"),
            ("size", 6 << 30, "6.0 GiB"),
            ("size", 2000, "2000 bytes"),
            ("token-microseconds", 55_555, "55.6 ms (18 tokens/s)"),
            ("token-microseconds", 80_000, "80 ms (12.5 tokens/s)"),
            ("token-microseconds", 16_700, "16.7 ms"),
            ("token-microseconds", 299, "299 µs"),
            ("first-token-microseconds", 300_000, "300 ms"),
        ] {
            assert_eq!(goal(name, value), shown);
        }
        let shown = against_goal("memory", 4_015_934_808, 4_000_000_000);
        assert_eq!(shown, ["3.74 GiB", "4 GB (3.73 GiB)"]);
        // What is entered as the nearest goal must hold.
        let nearest = nearest_goal("memory-bytes", 4_000_000_000, 4_015_934_808);
        assert_eq!(nearest, ["4 GB (3.7 GiB)", "3.8 GiB"]);
        assert_eq!(nearest_goal("first-token-microseconds", 512_000, 512_301), ["512 ms", "513 ms"]);
    }

    #[test]
    fn times_have_the_digits_that_their_error_allows() {
        for (time, shown) in [
            ([20_300, 52_040, 130_400], ("about 52 ms", Some("20 to 130"))),
            ([500_000, 994_000, 4_000_000], ("about 990 ms", Some("500 to 4000"))),
            ([500_000, 996_000, 4_000_000], ("about 1 s", Some("0.5 to 4"))),
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

    #[test]
    fn percentages_and_factors_have_no_digits_that_estimates_lack() {
        assert_eq!([percent(192, 1000), percent(1, 1000), percent(0, 9)], ["19 %", "less than 1 %", "0 %"]);
        assert_eq!([percent_at_most(192, 1000), percent_at_most(1, 1000)], ["20 %", "1 %"]);
        assert_eq!([factor(9136, 1000), factor(100, 10), factor(5, 2)], ["9.1x", "10x", "2.5x"]);
    }
}
