//! Durations of the test programs.

use std::fmt::Write as _;
use std::time::Duration;

/// Formats the seconds per test program, slowest first, and the time of compiling and running.
/// Programs that run in parallel add up to more than the elapsed time.
pub fn report(mut ran: Vec<(String, Duration)>, compiling: Duration, running: Duration) -> String {
    ran.sort_by_key(|&(_, took)| std::cmp::Reverse(took));
    let mut report = String::from("seconds per test program, slowest first:\n");
    for (name, took) in &ran {
        let _ = writeln!(report, "{:8.1}  {name}", took.as_secs_f64());
    }
    let _ = write!(
        report,
        "compiling {:.0} s, running {:.0} s in {} test programs, {} at a time",
        compiling.as_secs_f64(),
        running.as_secs_f64(),
        ran.len(),
        super::programs::AT_A_TIME,
    );
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_listed_by_how_long_they_ran() {
        let ran = [("graph (src/lib.rs)", 2), ("cli (tests/cli/main.rs)", 37), ("doc tests", 5)];
        let ran = ran.map(|(name, seconds)| (name.to_owned(), Duration::from_secs(seconds)));
        assert_eq!(
            report(ran.to_vec(), Duration::from_secs(100), Duration::from_secs(40)),
            "seconds per test program, slowest first:\n    37.0  cli (tests/cli/main.rs)\n     5.0  doc tests\n     2.0  \
             graph (src/lib.rs)\ncompiling 100 s, running 40 s in 3 test programs, 2 at a time"
        );
    }
}
