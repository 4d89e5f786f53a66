//! `cargo xtask test`: set-up, builds, then every test of the workspace, doc tests included; then how long each test
//! program ran, slowest first, and one line of sums.

mod durations;

use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use durations::Durations;

use crate::build::Scope;
use crate::error::Error;
use crate::workspace::{Profile, Workspace};
use crate::{build, process, setup, vendor};

/// A line that starts like this says that something was not checked. Tests write it past the test harness's capture
/// (`shardwright_tests::skipped`), so that it is seen although they pass.
const SKIPPED: &str = "SKIPPED: ";

/// A program some test needs beyond what the builds need.
struct Tool {
    name: &'static str,
    /// Arguments with which it succeeds where it is usable.
    probe: &'static [&'static str],
    /// What is not checked without it, and where it comes from.
    lacking: &'static str,
}

const TOOLS: [Tool; 2] = [
    Tool {
        name: "cc",
        probe: &["-include", "stdint.h", "-fsyntax-only", "-x", "c", "/dev/null"],
        lacking: "shim.h and the C shim are not compiled (Debian: apt-get install gcc libc6-dev)",
    },
    Tool {
        name: "git",
        probe: &["--version"],
        lacking: "the list of tracked files is not checked (Debian: apt-get install git)",
    },
];

/// Runs everything. With `strict`, anything skipped is a failure.
pub fn run(workspace: &Workspace, strict: bool, filters: &[String]) -> Result<(), Error> {
    setup::prepare(workspace)?;
    let mut skipped = Vec::new();
    for tool in &TOOLS {
        if !process::succeeds(Command::new(tool.name).args(tool.probe)) {
            let line = format!("{SKIPPED}no usable `{}`: {}", tool.name, tool.lacking);
            eprintln!("{line}");
            skipped.push(line);
        }
    }
    if let Err(error) = vendor::qnn_for_tests() {
        let line =
            format!("{SKIPPED}nothing is compiled by the QNN library, which could not be fetched: {error}");
        eprintln!("{line}");
        skipped.push(line);
    }
    if let Err(error) = vendor::litert_for_tests() {
        let line = format!(
            "{SKIPPED}no client of others' compiles through the Neuron simulator, for it could not be fetched: {error}"
        );
        eprintln!("{line}");
        skipped.push(line);
    }
    let started = Instant::now();
    build::build(workspace, Profile::Dev, Scope::Tests)?;
    let compiling = started.elapsed();

    let mut command = workspace.cargo();
    command.args(["test", "--no-fail-fast"]).args(build::WORKSPACE);
    command.env("SHARDWRIGHT_BIN_DIR", workspace.output(Profile::Dev));
    let colour = io::stdout().is_terminal();
    if !filters.is_empty() || colour {
        command.arg("--");
        command.args(filters);
        if colour {
            command.arg("--color=always");
        }
    }
    process::announce(&command);
    // stdout carries the harness's result lines, stderr cargo's word of which program it starts.
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| process::not_started(&command, source))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut sums = Sums::default();
    let mut durations = Durations::default();
    std::thread::scope(|scope| {
        if let Some(stderr) = stderr {
            scope.spawn(|| {
                each_line(stderr, &mut io::stderr(), |text| durations.line(text, Instant::now()));
            });
        }
        if let Some(stdout) = stdout {
            relay(stdout, &mut io::stdout(), &mut sums, &mut skipped);
        }
    });
    let status = child.wait().map_err(|source| process::not_started(&command, source))?;

    eprintln!("\n{}", durations.report(compiling, Instant::now()));
    for line in &skipped {
        eprintln!("{line}");
    }
    eprintln!("{} passed, {} failed, {} ignored", sums.passed, sums.failed, sums.ignored);
    sums.verdict()?;
    // Whatever fails without a failed test: a test that does not compile, a harness that crashed.
    process::check(&command, status)?;
    nothing_skipped(strict, &skipped)
}

fn nothing_skipped(strict: bool, skipped: &[String]) -> Result<(), Error> {
    if strict && !skipped.is_empty() { Err(Error::Skipped(skipped.len())) } else { Ok(()) }
}

/// Passes the harness's output on and reads the sums from it. A reader of this program's output that went away does
/// not stop the tests.
fn relay(stdout: impl io::Read, onto: &mut impl Write, sums: &mut Sums, skipped: &mut Vec<String>) {
    each_line(stdout, onto, |text| {
        sums.add(text);
        if text.starts_with(SKIPPED) {
            skipped.push(text.trim_end().to_owned());
        }
    });
}

/// Passes every line on as it came and shows it without its colours.
fn each_line(from: impl io::Read, onto: &mut impl Write, mut see: impl FnMut(&str)) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let _ = onto.write_all(&line);
        see(&without_colours(&String::from_utf8_lossy(&line)));
        line.clear();
    }
}

/// How many tests ended how, over all test programs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Sums {
    fn verdict(&self) -> Result<(), Error> {
        match self.failed {
            0 => Ok(()),
            failed => Err(Error::TestsFailed { failed, all: self.passed + failed }),
        }
    }

    /// Adds a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; …`.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for count in counts.split(';') {
            let Some((number, word)) = count.trim().split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match word {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// Drops terminal colour sequences (`ESC [ … m`).
fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_skips_are_read_from_the_output_of_many_test_programs() {
        let output = "\nrunning 2 tests\ntest a ... ok\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.00s\n\
            SKIPPED: no phone\n  SKIPPED: quoted, not said\n\
            test result: \u{1b}[31mFAILED\u{1b}(B\u{1b}[m. 5 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let (mut sums, mut skipped) = (Sums::default(), Vec::new());
        let mut relayed = Vec::new();
        relay(output.as_bytes(), &mut relayed, &mut sums, &mut skipped);
        assert_eq!(relayed, output.as_bytes());
        assert_eq!(sums, Sums { passed: 7, failed: 3, ignored: 1 });
        assert_eq!(skipped, ["SKIPPED: no phone"]);
        assert!(matches!(sums.verdict(), Err(Error::TestsFailed { failed: 3, all: 10 })));
        assert!(matches!(nothing_skipped(true, &skipped), Err(Error::Skipped(1))));
        assert!(nothing_skipped(false, &skipped).is_ok() && nothing_skipped(true, &[]).is_ok());
    }

    #[test]
    fn colours_are_dropped() {
        for (line, plain) in [("a\u{1b}[1mb\u{1b}[0mc", "abc"), ("none", "none"), ("cut \u{1b}[3", "cut ")] {
            assert_eq!(without_colours(line), plain);
        }
    }
}
