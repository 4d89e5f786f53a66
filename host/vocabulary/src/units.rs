//! Formatting of amounts in reports: three significant digits, in the unit that leaves at least one
//! digit before the point. Two compared amounts have as many digits as they need to differ. JSON,
//! for programs, has exact numbers in one unit instead.

/// Significant digits of an amount that is not compared.
const DIGITS: u32 = 3;
/// Largest number of digits that a comparison adds.
const MORE: u32 = 9;

/// Formats a number with three significant digits, without trailing zeros of a fraction.
fn significant(value: f64) -> String {
    let before = if value.abs() < 1.0 { 1 } else { value.abs().log10().floor() as i32 + 1 };
    let rounded = match before {
        4.. => {
            let unit = 10_f64.powi(before - 3);
            return format!("{:.0}", (value / unit).round() * unit);
        }
        before => format!("{value:.*}", (3 - before).max(0) as usize),
    };
    trimmed(&rounded)
}

/// Formats `value / unit` with a number of significant digits, without trailing zeros of a
/// fraction.
fn significant_part(value: u128, unit: u128, digits: u32) -> String {
    let before = (value / unit).checked_ilog10().map_or(1, |power| power + 1);
    if before > digits {
        let step = 10_u128.pow(before - digits);
        return (divided(value, unit * step) * step).to_string();
    }
    trimmed(&fixed(value, unit, digits - before))
}

/// Formats `value / unit` with a number of digits after the point.
fn fixed(value: u128, unit: u128, decimals: u32) -> String {
    with_point(divided(value * 10_u128.pow(decimals), unit), decimals)
}

/// Formats an integer with its last digits after a point.
fn with_point(number: u128, decimals: u32) -> String {
    let scale = 10_u128.pow(decimals);
    match decimals {
        0 => number.to_string(),
        _ => format!("{}.{:0width$}", number / scale, number % scale, width = decimals as usize),
    }
}

/// Divides and rounds to the nearest integer, halves up.
fn divided(value: u128, by: u128) -> u128 {
    (value + by / 2) / by
}

/// Removes trailing zeros of a fraction.
fn trimmed(number: &str) -> String {
    match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => number.to_owned(),
    }
}

/// Returns whether the formatted value is less than `most`.
fn shows_below(value: f64, most: f64) -> bool {
    // 999.5 rounds up to four digits.
    value.abs() < most * 0.9995
}

/// Formats a time: `870 µs`, `9.73 s`.
pub fn seconds(seconds: f64) -> String {
    let microseconds = seconds * 1e6;
    match microseconds {
        value if shows_below(value, 1e3) => format!("{} µs", significant(value)),
        value if shows_below(value, 1e6) => format!("{} ms", significant(value / 1e3)),
        value => format!("{} s", significant(value / 1e6)),
    }
}

/// Formats a time in microseconds like [`seconds`].
pub fn microseconds(microseconds: u64) -> String {
    Unit::Microseconds.shown(microseconds, DIGITS)
}

/// Formats a rate: `8470 tokens/s`.
pub fn tokens_per_second(rate: f64) -> String {
    format!("{} tokens/s", significant(rate))
}

/// Formats a number of bytes: `14.1 MiB`.
pub fn bytes(count: u64) -> String {
    Unit::Bytes.shown(count, DIGITS)
}

/// Formats a loss given in millionths of a nat: `1 millinat`, `12.1 millinats`.
pub fn micronats(micronats: u64) -> String {
    Unit::Micronats.shown(micronats, DIGITS)
}

/// Formats a part of a whole in whole percent: `19 %`, `less than 1 %`. More than twice the whole
/// is a factor: `9.1x`. Only the whole itself is `100 %`.
pub fn share(part: u64, whole: u64) -> String {
    let [wide, of] = [part, whole.max(1)].map(u128::from);
    match (part, whole) {
        (1.., 0) => "more than 100 %".to_owned(),
        _ if wide > of * 2 => format!("{}x", significant_part(wide, of, 2)),
        _ if wide > of => format!("{} %", (wide * 100).div_ceil(of)),
        (1.., _) if wide * 100 < of => "less than 1 %".to_owned(),
        _ => format!("{} %", wide * 100 / of),
    }
}

/// Formats a count with its noun: `1 shard`, `2 shards`.
pub fn count(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Formats the value of a limit or a goal in the unit that its name implies.
pub fn quantity(name: &str, value: u64) -> String {
    Unit::of(name).shown(value, DIGITS)
}

/// Formats two values of a limit or a goal so that their texts differ if the values do.
pub fn apart(name: &str, values: [u64; 2]) -> [String; 2] {
    let shown = |digits| values.map(|value| Unit::of(name).shown(value, digits));
    let differ = |texts: &[String; 2]| values[0] == values[1] || texts[0] != texts[1];
    let mut all = (DIGITS..=DIGITS + MORE).map(shown);
    all.find(differ).unwrap_or_else(|| shown(DIGITS + MORE))
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

/// Adds the number that a user probably stated for a goal.
fn stated(name: &str, value: u64, shown: String) -> String {
    let (giga, mega) = (1_000_000_000, 1_000_000);
    match Unit::of(name) {
        Unit::Bytes if value >= giga && value.is_multiple_of(giga / 100) => {
            format!("{} GB ({shown})", trimmed(&fixed(value.into(), giga.into(), 2)))
        }
        Unit::Bytes if (mega..giga).contains(&value) && value.is_multiple_of(mega) => {
            format!("{} MB ({shown})", value / mega)
        }
        Unit::Microseconds if name == "token" => match rate(value) {
            Some(rate) => format!("{shown} ({rate} tokens/s)"),
            None => shown,
        },
        _ => shown,
    }
}

/// Returns the rate in tokens per second that gives exactly this time of a token, if it has at most
/// one digit after the point and is between 1 and 1000.
fn rate(microseconds: u64) -> Option<String> {
    let tenths = divided(10_000_000, u128::from(microseconds).max(1));
    let is_exact = (10..=10_000).contains(&tenths) && 10_000_000 / tenths == u128::from(microseconds);
    is_exact.then(|| trimmed(&fixed(tenths, 10, 1)))
}

/// The unit of a limit or a goal.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Microseconds,
    Micronats,
    Tokens,
    Count,
}

impl Unit {
    /// Returns the unit that the name of a limit or a goal implies.
    fn of(name: &str) -> Unit {
        match name {
            "memory" | "size" => Unit::Bytes,
            "quality" => Unit::Micronats,
            "token" | "first-token" => Unit::Microseconds,
            "context" => Unit::Tokens,
            name if name.ends_with("-bytes") => Unit::Bytes,
            name if name.ends_with("-microseconds") => Unit::Microseconds,
            _ => Unit::Count,
        }
    }

    /// Formats a value with a number of significant digits. Bytes have two digits fewer after the
    /// point.
    fn shown(self, value: u64, digits: u32) -> String {
        let wide = u128::from(value);
        match self {
            Unit::Bytes => size(wide, digits.saturating_sub(2)),
            Unit::Microseconds => {
                // In three digits, 999.5 is 1000, which is shown in the next unit.
                let scale = 10_u128.pow(digits);
                let is_below = |unit: u128| wide * 2 * scale < unit * (2000 * scale - 1000);
                let units = [(1, "µs"), (1000, "ms"), (1_000_000, "s")];
                let (unit, name) = units.into_iter().find(|(unit, _)| is_below(*unit)).unwrap_or(units[2]);
                format!("{} {name}", significant_part(wide, unit, digits))
            }
            Unit::Micronats => {
                let shown = significant_part(wide, 1000, digits);
                let plural = if shown == "1" { "" } else { "s" };
                format!("{shown} millinat{plural}")
            }
            Unit::Tokens => format!("{value} tokens"),
            Unit::Count => value.to_string(),
        }
    }
}

/// Formats bytes with a number of digits after the point.
fn size(count: u128, decimals: u32) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    let units = [(1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB")];
    // From 1023.95 on, one digit after the point would show 1024.0.
    let is_below = |unit: u128| count * 20 < 20_479 * unit;
    let (unit, name) = units.into_iter().find(|(unit, _)| is_below(*unit)).unwrap_or(units[3]);
    // Halves are rounded to even digits, as in the formatting of floats.
    let scaled = count * 10_u128.pow(decimals);
    let (whole, rest) = (scaled / unit, scaled % unit * 2);
    let up = rest > unit || rest == unit && whole % 2 == 1;
    format!("{} {name}", with_point(whole + u128::from(up), decimals))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_three_digits_in_a_unit_that_suits_them() {
        for (value, shown) in [
            (0, "0 µs"),
            (7, "7 µs"),
            (870, "870 µs"),
            (1000, "1 ms"),
            (213_427, "213 ms"),
            (999_600, "1 s"),
            (9_726_500, "9.73 s"),
            (1_234_567_890, "1230 s"),
        ] {
            assert_eq!(microseconds(value), shown);
        }
        assert_eq!(seconds(1.25e-6), "1.25 µs");
        for (rate, shown) in [(8474.6, "8470"), (0.5432, "0.54"), (12.0, "12"), (999.7, "1000")] {
            assert_eq!(tokens_per_second(rate), format!("{shown} tokens/s"));
        }
        for (value, shown) in [(1000, "1 millinat"), (12_050, "12.1 millinats"), (0, "0 millinats")] {
            assert_eq!(micronats(value), shown);
        }
        for (value, shown) in
            [(0, "0 B"), (1023, "1023 B"), (1280, "1.2 KiB"), (14_782_040, "14.1 MiB"), (1 << 40, "1.0 TiB")]
        {
            assert_eq!(bytes(value), shown);
        }
        assert_eq!(bytes((1 << 30) - 1), "1.0 GiB");
        assert_eq!([count(1, "shard"), count(0, "shard")], ["1 shard", "0 shards"]);
        let named =
            [("context-bytes", 1 << 20), ("call-microseconds", 1500), ("ops", 2600), ("quality", 1000)];
        let shown = named.map(|(name, value)| quantity(name, value));
        assert_eq!(shown, ["1.0 MiB", "1.5 ms", "2600", "1 millinat"]);
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
        ] {
            assert_eq!(apart(name, values), shown);
        }
    }

    #[test]
    fn goals_are_formatted_as_users_state_them() {
        for (name, value, shown) in [
            ("size", 7_000_000_000, "7 GB (6.5 GiB)"),
            ("memory", 900_000_000, "900 MB (858.3 MiB)"),
            ("size", 6 << 30, "6.0 GiB"),
            ("token", 55_555, "55.6 ms (18 tokens/s)"),
            ("token", 16_700, "16.7 ms"),
            ("first-token", 300_000, "300 ms"),
        ] {
            assert_eq!(goal(name, value), shown);
        }
        assert_eq!(against_goal("memory", 4_015_934_808, 4_000_000_000), ["3.74 GiB", "4 GB (3.73 GiB)"]);
    }

    #[test]
    fn shares_are_whole_percent_and_large_ones_factors() {
        for (part, whole, shown) in [
            (0, 7, "0 %"),
            (1, 700, "less than 1 %"),
            (192, 1000, "19 %"),
            (999, 1000, "99 %"),
            (7, 7, "100 %"),
            (1001, 1000, "101 %"),
            (9136, 1000, "9.1x"),
            (1, 0, "more than 100 %"),
        ] {
            assert_eq!(share(part, whole), shown);
        }
    }
}
