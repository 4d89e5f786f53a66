//! How reports look to a person. Every view has its JSON twin in the report's own serialisation.

mod bench;
mod bundle;
mod doctor;
mod document;
mod plan;
mod progress;
mod shims;
mod show;
mod verify;

pub use bench::bench;
pub use bundle::{compiled, inspected};
pub use doctor::doctor;
pub use document::document;
pub use plan::plan;
pub use progress::Progress;
pub use shims::shims;
pub use show::show;
pub use verify::{self_test, verify};

use comfy_table::{Table, presets};

/// An empty table in the house style: a line under the header, nothing else.
fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header.iter().copied());
    table
}

/// Bytes in the largest unit that leaves at least one digit before the point: `14.1 MiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `0-3, 5`
fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let part =
        |(first, last): (u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    parts.into_iter().map(part).collect::<Vec<_>>().join(", ")
}

/// What is going on, on standard error, where that is a terminal; gone when dropped.
pub struct Busy(indicatif::ProgressBar);

impl Busy {
    /// Shows that `what` takes its time.
    pub fn new(what: &'static str) -> Self {
        let bar = indicatif::ProgressBar::new_spinner().with_message(what);
        bar.enable_steady_tick(std::time::Duration::from_millis(100));
        Busy(bar)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn neighbours_become_ranges() {
        for (numbers, text) in
            [(&[0, 1, 2, 5][..], "0-2, 5"), (&[], ""), (&[7], "7"), (&[1, 3, 5], "1, 3, 5")]
        {
            assert_eq!(super::ranges(numbers), text);
        }
    }

    #[test]
    fn bytes_are_readable() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (14_782_040, "14.1 MiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(super::bytes(count), text);
        }
    }
}
