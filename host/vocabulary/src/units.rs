//! Formatting of amounts in reports. JSON, for programs, has exact numbers in one unit instead.

pub use shardwright_amounts::{
    against_goal, apart, bounded, bytes, count, goal, is_narrow, micronats, microseconds, quantity, within,
};
use shardwright_amounts::{significant, time_in};

/// Formats a time: `870 µs`, `9.73 s`.
pub fn seconds(seconds: f64) -> String {
    time_in((seconds * 1e9).round() as u64, 3)
}

/// Formats a rate: `8470 tokens/s`.
pub fn tokens_per_second(rate: f64) -> String {
    let millionths = (rate * 1e6).round() as u64;
    format!("{} tokens/s", significant(millionths.into(), 1_000_000, 3))
}

/// Formats a part of a whole in whole percent: `19 %`, `less than 1 %`. More than twice the whole
/// is a factor: `9.1x`. Only the whole itself is `100 %`.
pub fn share(part: u64, whole: u64) -> String {
    let [wide, of] = [part, whole.max(1)].map(u128::from);
    match (part, whole) {
        (1.., 0) => "more than 100 %".to_owned(),
        _ if wide > of * 2 => format!("{}x", significant(wide, of, 2)),
        _ if wide > of => format!("{} %", (wide * 100).div_ceil(of)),
        (1.., _) if wide * 100 < of => "less than 1 %".to_owned(),
        _ => format!("{} %", wide * 100 / of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_have_three_digits() {
        for (time, shown) in [(1.25e-6, "1.25 µs"), (0.0282, "28.2 ms"), (9.7265, "9.73 s")] {
            assert_eq!(seconds(time), shown);
        }
        for (rate, shown) in [(8474.6, "8470"), (0.5432, "0.54"), (12.0, "12"), (999.7, "1000")] {
            assert_eq!(tokens_per_second(rate), format!("{shown} tokens/s"));
        }
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
