//! `strftime_now`: the date in a prompt.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Seconds since 1970 by the system's clock.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `format` filled in for a moment in UTC, with English names; or the directive that is not known.
pub(crate) fn strftime(format: &str, unix_seconds: u64) -> Result<String, String> {
    let moment = Moment::of(unix_seconds);
    let mut out = String::with_capacity(format.len() + 16);
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = characters.next();
        let padded = directive != Some('-');
        if !padded {
            directive = characters.next();
        }
        let number = |value: u64, width: usize| {
            if padded { format!("{value:0width$}") } else { value.to_string() }
        };
        out += &match directive {
            Some('Y') => number(moment.year, 4),
            Some('y') => number(moment.year % 100, 2),
            Some('m') => number(moment.month, 2),
            Some('d') => number(moment.day, 2),
            Some('j') => number(moment.day_of_year, 3),
            Some('H') => number(moment.hour, 2),
            Some('I') => number((moment.hour + 11) % 12 + 1, 2),
            Some('M') => number(moment.minute, 2),
            Some('S') => number(moment.second, 2),
            Some('p') => if moment.hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => MONTHS[moment.month as usize - 1].to_owned(),
            Some('b') => MONTHS[moment.month as usize - 1][..3].to_owned(),
            Some('A') => WEEKDAYS[moment.weekday].to_owned(),
            Some('a') => WEEKDAYS[moment.weekday][..3].to_owned(),
            Some('F') => format!("{:04}-{:02}-{:02}", moment.year, moment.month, moment.day),
            Some('T') => format!("{:02}:{:02}:{:02}", moment.hour, moment.minute, moment.second),
            Some('%') => "%".to_owned(),
            other => return Err(format!("%{}", other.map(String::from).unwrap_or_default())),
        };
    }
    Ok(out)
}

struct Moment {
    year: u64,
    month: u64,
    day: u64,
    day_of_year: u64,
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Moment {
    fn of(unix_seconds: u64) -> Moment {
        // Year 9999: Python's datetime ends there too, and the sums below stay small.
        const LAST_SECOND: u64 = 253_402_300_799;
        let seconds = unix_seconds.min(LAST_SECOND);
        let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
        let mut year = 1970;
        let mut day_of_year = days;
        while day_of_year >= days_in_year(year) {
            day_of_year -= days_in_year(year);
            year += 1;
        }
        let mut month = 1;
        let mut day = day_of_year;
        while day >= days_in_month(year, month) {
            day -= days_in_month(year, month);
            month += 1;
        }
        Moment {
            year,
            month,
            day: day + 1,
            day_of_year: day_of_year + 1,
            // 1 January 1970 was a Thursday.
            weekday: ((days + 4) % 7) as usize,
            hour: second_of_day / 3600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
        }
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}

fn days_in_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
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
            (u64::MAX, "%Y%%", "9999%"),
        ] {
            assert_eq!(strftime(format, seconds).unwrap(), expected);
        }
        assert_eq!(strftime("%Q", 0).unwrap_err(), "%Q");
        assert_eq!(strftime("100%", 0).unwrap_err(), "%");
    }
}
