//! Formatting of amounts in reports: three significant digits, in the unit that leaves at least one
//! digit before the point. JSON, for programs, has exact numbers in one unit instead.

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
    match rounded.contains('.') {
        true => rounded.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => rounded,
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
    seconds(microseconds as f64 / 1e6)
}

/// Formats a rate: `8470 tokens/s`.
pub fn tokens_per_second(rate: f64) -> String {
    format!("{} tokens/s", significant(rate))
}

/// Formats a number of bytes: `14.1 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a loss given in millionths of a nat: `1 millinat`, `12.1 millinats`.
pub fn micronats(micronats: u64) -> String {
    let shown = significant(micronats as f64 / 1000.0);
    let plural = if shown == "1" { "" } else { "s" };
    format!("{shown} millinat{plural}")
}

/// Formats a count with its noun: `1 shard`, `2 shards`.
pub fn count(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Formats the value of a limit or a goal in the unit that its name implies.
pub fn quantity(name: &str, value: u64) -> String {
    match name {
        "memory" | "size" => bytes(value),
        "quality" => micronats(value),
        "token" | "first-token" => microseconds(value),
        "context" => format!("{value} tokens"),
        name if name.ends_with("-bytes") => bytes(value),
        name if name.ends_with("-microseconds") => microseconds(value),
        _ => value.to_string(),
    }
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
        for (value, shown) in [(0, "0 B"), (1023, "1023 B"), (14_782_040, "14.1 MiB"), (1 << 40, "1.0 TiB")] {
            assert_eq!(bytes(value), shown);
        }
        assert_eq!(bytes((1 << 30) - 1), "1.0 GiB");
        assert_eq!([count(1, "shard"), count(0, "shard")], ["1 shard", "0 shards"]);
        let named =
            [("context-bytes", 1 << 20), ("call-microseconds", 1500), ("ops", 2600), ("quality", 1000)];
        let shown = named.map(|(name, value)| quantity(name, value));
        assert_eq!(shown, ["1.0 MiB", "1.5 ms", "2600", "1 millinat"]);
    }
}
