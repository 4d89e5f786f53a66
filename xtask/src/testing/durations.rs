//! How long each test program ran, from the lines with which cargo announces it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// The test programs in the order in which cargo started them.
#[derive(Debug, Default)]
pub struct Durations {
    programs: Vec<(String, Instant)>,
}

impl Durations {
    /// Takes a line of cargo's stderr, without colours, that was read at `now`.
    pub fn line(&mut self, line: &str, now: Instant) {
        if let Some(name) = announced(line) {
            self.programs.push((name, now));
        }
    }

    /// Seconds per test program, slowest first, and the totals of compiling and running. The last program ended at `end`.
    pub fn report(&self, compiling: Duration, end: Instant) -> String {
        let ends = self.programs.iter().skip(1).map(|(_, start)| *start).chain([end]);
        let mut ran: Vec<(&str, Duration)> = self
            .programs
            .iter()
            .zip(ends)
            .map(|((name, start), end)| (name.as_str(), end.saturating_duration_since(*start)))
            .collect();
        ran.sort_by_key(|&(_, duration)| std::cmp::Reverse(duration));
        let running: Duration = ran.iter().map(|(_, duration)| *duration).sum();
        let mut report = String::from("seconds per test program, slowest first:\n");
        for (name, duration) in &ran {
            let _ = writeln!(report, "{:8.1}  {name}", duration.as_secs_f64());
        }
        let _ = write!(
            report,
            "compiling {:.0} s, running {:.0} s in {} test programs",
            compiling.as_secs_f64(),
            running.as_secs_f64(),
            ran.len(),
        );
        report
    }
}

/// The program a line such as `     Running tests/cli/main.rs (target/debug/deps/cli-0123456789abcdef)` or
/// `   Doc-tests shardwright` announces: its file without cargo's hash, and what it was made from.
fn announced(line: &str) -> Option<String> {
    let line = line.trim();
    if let Some(library) = line.strip_prefix("Doc-tests ") {
        return Some(format!("doc tests of {library}"));
    }
    let (source, program) = line.strip_prefix("Running ")?.strip_suffix(')')?.split_once(" (")?;
    let file = program.rsplit(['/', '\\']).next().unwrap_or(program);
    let name = file.rsplit_once('-').map_or(file, |(name, _)| name);
    Some(format!("{name} ({source})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_listed_by_how_long_they_ran() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut durations = Durations::default();
        for (line, seconds) in [
            ("   Compiling shardwright v0.1.0", 0),
            ("     Running unittests src/lib.rs (target/debug/deps/shardwright_graph-0a1b)\n", 1),
            ("     Running tests/cli/main.rs (target/debug/deps/cli-0123)", 3),
            ("error: test failed, to rerun pass `-p shardwright-tests --test cli`", 40),
            ("   Doc-tests shardwright", 40),
        ] {
            durations.line(line, at(seconds));
        }
        assert_eq!(
            durations.report(Duration::from_secs(100), at(45)),
            "seconds per test program, slowest first:\n    37.0  cli (tests/cli/main.rs)\n     5.0  doc tests of \
             shardwright\n     2.0  shardwright_graph (unittests src/lib.rs)\ncompiling 100 s, running 44 s in 3 test \
             programs"
        );
    }

    #[test]
    fn nothing_that_ran_is_a_report_too() {
        let report = Durations::default().report(Duration::ZERO, Instant::now());
        assert!(report.ends_with("compiling 0 s, running 0 s in 0 test programs"), "{report}");
    }
}
