//! `cargo xtask test`: set-up, builds, then every test of the workspace, doc tests included. Then
//! it prints how long each test program ran, slowest first, and one line of sums.

mod durations;
mod programs;
mod runtime_only;
pub mod suites;
mod ten_lines;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::Command;
use std::time::Instant;

use programs::Ended;

use crate::build::Scope;
use crate::error::Error;
use crate::workspace::{Profile, Workspace};
use crate::{build, clients, javascript, models, process, setup, templates, vendor};

/// Prefix of a line that reports an unchecked item. Tests bypass the test harness's capture
/// (`shardwright_tests::skipped`) for these lines, so that they are visible although the tests
/// pass.
const SKIPPED: &str = "SKIPPED: ";

/// A program that some test needs in addition to the programs for building.
struct Tool {
    name: &'static str,
    /// Arguments with which it succeeds if it is usable.
    probe: &'static [&'static str],
    /// The checks that are skipped without it, and where to get it.
    lacking: &'static str,
}

const TOOLS: [Tool; 3] = [
    Tool {
        name: "cc",
        probe: &["-include", "stdint.h", "-fsyntax-only", "-x", "c", "/dev/null"],
        lacking: "shim.h, the C shim and the programs of bindings/c are not compiled (Debian: apt-get install gcc libc6-dev)",
    },
    Tool {
        name: "c++",
        probe: &["-include", "memory", "-fsyntax-only", "-x", "c++", "/dev/null"],
        lacking: "the example in C++ of bindings/c is not compiled (Debian: apt-get install g++)",
    },
    Tool {
        name: "git",
        probe: &["--version"],
        lacking: "the list of tracked files is not checked (Debian: apt-get install git)",
    },
];

/// Runs all tests. With `strict`, any skipped check is a failure.
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
    if let Err(error) = models::for_tests(workspace) {
        let line = format!("{SKIPPED}no published model is run, since they could not be fetched: {error}");
        eprintln!("{line}");
        skipped.push(line);
    }
    if let Err(error) = templates::for_tests() {
        let line =
            format!("{SKIPPED}no published template is rendered, since they could not be fetched: {error}");
        eprintln!("{line}");
        skipped.push(line);
    }
    if let Err(error) = clients::for_tests(workspace) {
        let line = format!(
            "{SKIPPED}no official client calls the server, since they could not be fetched: {error} (Debian: apt-get install nodejs npm python3-pip)"
        );
        eprintln!("{line}");
        skipped.push(line);
    }
    if let Err(error) = javascript::fetch_for_tests(workspace) {
        let line = format!(
            "{SKIPPED}no planner in JavaScript is built, for npm gave nothing to build it with: {error} (Debian: apt-get install nodejs npm)"
        );
        eprintln!("{line}");
        skipped.push(line);
    }
    let left_out = if strict { suites::left_out(workspace)? } else { Vec::new() };
    let begun = Instant::now();
    build::build(workspace, Profile::Dev, Scope::Program)?;
    build::library_for_tests(workspace)?;
    let programs = programs::find(workspace, &left_out)?;
    if strict {
        build::benches(workspace)?;
    }
    runtime_only::build(workspace)?;
    ten_lines::build(workspace)?;
    let compiling = begun.elapsed();

    let mut arguments: Vec<OsString> = filters.iter().map(OsString::from).collect();
    if io::stdout().is_terminal() {
        arguments.push("--color=always".into());
    }
    let begun = Instant::now();
    let (mut sums, mut durations, mut without_a_failed_test) = (Sums::default(), Vec::new(), None);
    programs::run(
        workspace,
        &programs,
        &arguments,
        |name| eprintln!("{:>12} {name}", "Running"),
        |ended| {
            let failed_before = sums.failed;
            relay(&ended, &mut io::stdout(), &mut sums, &mut skipped);
            // For example, a documentation test that does not compile, or a harness that crashed.
            if !ended.status.success() && sums.failed == failed_before {
                without_a_failed_test.get_or_insert((ended.command, ended.status));
            }
            durations.push((ended.name, ended.took));
        },
    )?;

    eprintln!("\n{}", durations::report(durations, compiling, begun.elapsed()));
    for line in &skipped {
        eprintln!("{line}");
    }
    eprintln!("{} passed, {} failed, {} ignored", sums.passed, sums.failed, sums.ignored);
    sums.verdict()?;
    if let Some((command, status)) = without_a_failed_test {
        process::ended(command, status)?;
    }
    nothing_skipped(strict, &skipped)
}

fn nothing_skipped(strict: bool, skipped: &[String]) -> Result<(), Error> {
    if strict && !skipped.is_empty() { Err(Error::Skipped(skipped.len())) } else { Ok(()) }
}

/// Prints a program's output under its name, and reads the sums from it. A closed standard output
/// does not stop the tests.
fn relay(ended: &Ended, onto: &mut impl Write, sums: &mut Sums, skipped: &mut Vec<String>) {
    let _ = writeln!(onto, "\n{:>12} {} in {:.1} s", "Ran", ended.name, ended.took.as_secs_f64());
    let _ = onto.write_all(&ended.output).and_then(|()| onto.flush());
    for line in programs::lines(&ended.output) {
        let line = without_colours(&line);
        sums.add(&line);
        if line.starts_with(SKIPPED) {
            skipped.push(line.trim_end().to_owned());
        }
    }
}

/// Test results over all test programs.
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

    /// Adds a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered
    /// out; …`. A library may have written other text at its beginning.
    fn add(&mut self, line: &str) {
        let Some((_, result)) = line.split_once("test result: ") else { return };
        let Some((_, counts)) = result.split_once(". ") else { return };
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

/// Removes terminal colour sequences (`ESC [ … m`).
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
    fn sums_and_skips_are_read_from_the_output_of_test_programs() {
        let output = "\nrunning 2 tests\ntest a ... ok\n\
            SKIPPED: no phone\n  SKIPPED: quoted, not said\n\
            a library's wordstest result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; finished in 0.00s\n\
            test result: \u{1b}[31mFAILED\u{1b}(B\u{1b}[m. 5 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let ended = Ended {
            name: "some".to_owned(),
            command: String::new(),
            took: std::time::Duration::from_millis(1250),
            output: output.as_bytes().to_vec(),
            status: std::process::ExitStatus::default(),
        };
        let (mut sums, mut skipped, mut relayed) = (Sums::default(), Vec::new(), Vec::new());
        relay(&ended, &mut relayed, &mut sums, &mut skipped);
        assert_eq!(String::from_utf8_lossy(&relayed), format!("\n         Ran some in 1.2 s\n{output}"));
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
