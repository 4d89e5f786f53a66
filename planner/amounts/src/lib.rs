//! Texts of amounts, for the reports of the host and the reasons of planners.
//!
//! **Job.** Formats bytes, times, losses and counts with three significant digits, in the unit that
//! leaves at least one digit before the point. Two compared amounts have as many digits as they
//! need to differ. Sizes have one digit after the point. An estimate has the digits that its error
//! allows.
//!
//! **Not its job.** It uses no floats, so that a planner writes the same text on every engine. It
//! does not format numbers for programs, which read exact ones from JSON.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod interval;
mod number;

pub use interval::{bounded, is_narrow, within};
pub use number::significant;

use number::{Rounding, divided, rounded, with_point};

/// Digits of an amount that is not compared.
const DIGITS: u32 = 3;
/// Largest number of digits that a comparison adds.
const MORE: u32 = 9;
/// More digits than an exact amount has.
const EXACT: u32 = 26;

/// The unit of an amount.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Microseconds,
    Nanoseconds,
    Micronats,
    Tokens,
    Count,
}

impl Unit {
    /// Returns the unit that the name of a limit or goal implies.
    fn of(name: &str) -> Unit {
        match name {
            "memory" | "size" | "bytes" => Unit::Bytes,
            "quality" => Unit::Micronats,
            "token" | "first-token" | "microseconds" => Unit::Microseconds,
            "context" => Unit::Tokens,
            name if name.ends_with("-bytes") => Unit::Bytes,
            name if name.ends_with("-microseconds") => Unit::Microseconds,
            _ => Unit::Count,
        }
    }

    /// Formats a value with a number of significant digits. Bytes have two digits fewer after the
    /// point.
    fn shown(self, value: u64, digits: u32, rounding: Rounding) -> String {
        let wide = u128::from(value);
        match self {
            Unit::Bytes => size(wide, digits.saturating_sub(2), rounding),
            Unit::Microseconds => time(wide * 1000, digits, rounding),
            Unit::Nanoseconds => time(wide, digits, rounding),
            Unit::Micronats => {
                let shown = rounded(wide, 1000, digits, rounding);
                let plural = if shown == "1" { "" } else { "s" };
                format!("{shown} millinat{plural}")
            }
            Unit::Tokens => count(value, "token"),
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

/// Formats a number of bytes: `14.1 MiB`.
pub fn bytes(count: u64) -> String {
    Unit::Bytes.shown(count, DIGITS, Rounding::Nearest)
}

/// Formats a time in microseconds: `513 ms`.
pub fn microseconds(microseconds: u64) -> String {
    Unit::Microseconds.shown(microseconds, DIGITS, Rounding::Nearest)
}

/// Formats a loss given in millionths of a nat: `1 millinat`, `12.1 millinats`.
pub fn micronats(micronats: u64) -> String {
    Unit::Micronats.shown(micronats, DIGITS, Rounding::Nearest)
}

/// Formats a count with its noun: `1 shard`, `2 shards`.
pub fn count(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Formats a time in nanoseconds with this number of significant digits.
pub fn time_in(nanoseconds: u64, digits: u32) -> String {
    Unit::Nanoseconds.shown(nanoseconds, digits, Rounding::Nearest)
}

/// Formats two times in nanoseconds with at least this number of significant digits, so that their
/// texts differ if the times do.
pub fn times_apart(nanoseconds: [u64; 2], digits: u32) -> [String; 2] {
    Unit::Nanoseconds.apart(nanoseconds, digits, [Rounding::Nearest; 2])
}

/// Formats the value of a limit or goal in the unit that its name implies.
pub fn quantity(name: &str, value: u64) -> String {
    Unit::of(name).shown(value, DIGITS, Rounding::Nearest)
}

/// Formats two values of a limit or goal so that their texts differ if the values do.
pub fn apart(name: &str, values: [u64; 2]) -> [String; 2] {
    Unit::of(name).apart(values, DIGITS, [Rounding::Nearest; 2])
}

/// Formats a goal. A round number in the unit of a user is added: `7 GB (6.5 GiB)`,
/// `55.6 ms (18 tokens/s)`.
pub fn goal(name: &str, value: u64) -> String {
    stated(name, value, quantity(name, value))
}

/// Formats a value and the goal that it is compared with, so that their texts differ if they do.
pub fn against_goal(name: &str, value: u64, goal: u64) -> [String; 2] {
    let [value, shown] = apart(name, [value, goal]);
    [value, stated(name, goal, shown)]
}

/// Formats a goal that cannot be met, and the nearest one that can. The nearest one is rounded up,
/// so that a plan meets it as shown.
pub fn nearest_goal(name: &str, goal: u64, nearest: u64) -> [String; 2] {
    let roundings = [Rounding::Nearest, Rounding::Up];
    let [shown, nearest] = Unit::of(name).apart([goal, nearest], DIGITS, roundings);
    [stated(name, goal, shown), nearest]
}

/// Adds the number that a user probably stated for a goal.
fn stated(name: &str, value: u64, shown: String) -> String {
    let (giga, mega) = (1_000_000_000, 1_000_000);
    match Unit::of(name) {
        Unit::Bytes if value >= giga && value.is_multiple_of(giga / 100) => {
            format!("{} GB ({shown})", significant(value.into(), giga.into(), EXACT))
        }
        Unit::Bytes if (mega..giga).contains(&value) && value.is_multiple_of(mega) => {
            format!("{} MB ({shown})", value / mega)
        }
        Unit::Microseconds if ["token", "token-microseconds"].contains(&name) => match rate(value) {
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
    is_exact.then(|| significant(tenths, 10, EXACT))
}

/// Formats bytes with a number of digits after the point.
fn size(count: u128, decimals: u32, rounding: Rounding) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    let units = [(1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB")];
    // From 1023.95 on, one digit after the point would show 1024.0.
    let is_below = |unit: u128| count * 20 < 20_479 * unit;
    let (unit, name) = units.into_iter().find(|(unit, _)| is_below(*unit)).unwrap_or(units[3]);
    // Halves are rounded to even digits.
    let scaled = count * 10_u128.pow(decimals);
    let (whole, rest) = (scaled / unit, scaled % unit * 2);
    let up = match rounding {
        Rounding::Nearest => rest > unit || rest == unit && whole % 2 == 1,
        Rounding::Up => rest > 0,
    };
    format!("{} {name}", with_point(whole + u128::from(up), decimals))
}

fn time(nanoseconds: u128, digits: u32, rounding: Rounding) -> String {
    let units = [(1000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s")];
    // In three digits, 999.5 is 1000, which is shown in the next unit.
    let scale = 10_u128.pow(digits);
    let is_below = |unit: u128| nanoseconds * 2 * scale < unit * (2000 * scale - 1000);
    let (unit, name) = units.into_iter().find(|(unit, _)| is_below(*unit)).unwrap_or(units[2]);
    format!("{} {name}", rounded(nanoseconds, unit, digits, rounding))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_three_digits_in_a_unit_that_suits_them() {
        for (value, shown) in [
            (0, "0 µs"),
            (870, "870 µs"),
            (1001, "1 ms"),
            (28_250, "28.3 ms"),
            (213_427, "213 ms"),
            (999_600, "1 s"),
            (9_726_500, "9.73 s"),
            (1_234_567_890, "1230 s"),
        ] {
            assert_eq!(microseconds(value), shown);
        }
        for (value, shown) in [(0, "0 millinats"), (1000, "1 millinat"), (12_050, "12.1 millinats")] {
            assert_eq!(micronats(value), shown);
        }
        for (value, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1280, "1.2 KiB"),
            (5 << 18, "1.2 MiB"),
            (14_782_040, "14.1 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (1 << 40, "1.0 TiB"),
        ] {
            assert_eq!(bytes(value), shown);
        }
        assert_eq!([count(1, "shard"), count(0, "shard")], ["1 shard", "0 shards"]);
        for (name, value, shown) in [
            ("context-bytes", 1 << 20, "1.0 MiB"),
            ("size", 7, "7 B"),
            ("call-microseconds", 1500, "1.5 ms"),
            ("quality", 1000, "1 millinat"),
            ("ops", 2600, "2600"),
        ] {
            assert_eq!(quantity(name, value), shown);
        }
    }

    #[test]
    fn compared_amounts_have_the_digits_that_they_need_to_differ() {
        for (name, values, shown) in [
            ("context-bytes", [7 << 30, 4 << 30], ["7.0 GiB", "4.0 GiB"]),
            ("memory", [4_015_934_808, 4_000_000_000], ["3.74 GiB", "3.73 GiB"]),
            ("size", [4_000_000_001, 4_000_000_000], ["3.725290299 GiB", "3.725290298 GiB"]),
            ("call-microseconds", [11_340, 11_310], ["11.34 ms", "11.31 ms"]),
            ("quality", [127_375, 127_375], ["127 millinats", "127 millinats"]),
            ("context", [4096, 512], ["4096 tokens", "512 tokens"]),
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
            ("size", 2000, "2.0 KiB"),
            ("token", 55_555, "55.6 ms (18 tokens/s)"),
            ("token-microseconds", 80_000, "80 ms (12.5 tokens/s)"),
            ("token", 16_700, "16.7 ms"),
            ("token-microseconds", 299, "299 µs"),
            ("first-token", 300_000, "300 ms"),
        ] {
            assert_eq!(goal(name, value), shown);
        }
        let shown = against_goal("memory", 4_015_934_808, 4_000_000_000);
        assert_eq!(shown, ["3.74 GiB", "4 GB (3.73 GiB)"]);
        // A user may enter the nearest goal as it is shown.
        let nearest = nearest_goal("memory-bytes", 4_000_000_000, 4_015_934_808);
        assert_eq!(nearest, ["4 GB (3.7 GiB)", "3.8 GiB"]);
        assert_eq!(nearest_goal("first-token-microseconds", 512_000, 512_301), ["512 ms", "513 ms"]);
    }
}
