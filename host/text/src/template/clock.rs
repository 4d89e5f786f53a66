//! `strftime_now`: the date in a prompt.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::SignedDuration;
use jiff::civil::date;
use jiff::fmt::strtime;

/// Directives allowed after `%`, or after `%-`, which omits leading zeros. The crate has more. Some
/// of them print differently from Python, and widths can generate text of any length.
const DIRECTIVES: &str = "YymdjHIMSpBbAaFT%";

/// Returns the seconds since 1970 by the system's clock.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Formats a time in UTC, with English names. Fails with the directive if it is unknown.
pub(crate) fn strftime(format: &str, unix_seconds: u64) -> Result<String, String> {
    let mut characters = format.chars();
    while characters.any(|character| character == '%') {
        let directive = match characters.next() {
            Some('-') => characters.next(),
            other => other,
        };
        if !directive.is_some_and(|directive| DIRECTIVES.contains(directive)) {
            return Err(format!("%{}", directive.map(String::from).unwrap_or_default()));
        }
    }
    let since = SignedDuration::from_secs(i64::try_from(unix_seconds).unwrap_or(i64::MAX));
    // Limited to the year 9999, like Python's datetime.
    let moment = date(1970, 1, 1).at(0, 0, 0, 0).saturating_add(since);
    strtime::format(format, moment).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        for (seconds, format, expected) in [
            (0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001"),
            (951_782_400, "%d %B %Y, %a", "29 February 2000, Tue"),
            (1_709_164_799, "%F %T %I%p", "2024-02-28 23:59:59 11PM"),
            (1_709_164_800, "%-d %b %y %-I%p", "29 Feb 24 12AM"),
            (4_107_542_400, "%F", "2100-03-01"),
            (1_709_164_800, "%-m/%-j, %-H:%-M:%-S", "2/60, 0:0:0"),
            (
                3_155_760_000,
                "%-y|%-Y|%-p|%-B|%-a|%-F|%-T|%-%",
                "70|2070|AM|January|Wed|2070-01-01|00:00:00|%",
            ),
            (253_402_300_799, "%F %T %j", "9999-12-31 23:59:59 365"),
            (u64::MAX, "%Y%%", "9999%"),
            (0, "le %-d été, 100 %%", "le 1 été, 100 %"),
            (0, "", ""),
        ] {
            assert_eq!(strftime(format, seconds).unwrap(), expected);
        }
    }

    #[test]
    fn unknown_directives_are_named() {
        for (format, directive) in [
            ("%Q", "%Q"),
            ("%d%-e", "%e"),
            ("100%", "%"),
            ("%-", "%"),
            ("%%%é", "%é"),
            ("%--d", "%-"),
            ("%_d", "%_"),
            ("%9Y", "%9"),
            ("%.f", "%."),
            ("%:z", "%:"),
            ("%c", "%c"),
        ] {
            assert_eq!(strftime(format, 0).unwrap_err(), directive, "{format}");
        }
    }
}
