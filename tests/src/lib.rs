//! The tests of the whole project: the program from outside, the dependencies between the crates,
//! the project rules.
//!
//! **Job.** Everything that no single crate can test: goldens and hostile inputs through the
//! program's own commands, the how-to pages followed step by step, the dependency arrows, the rules
//! for every crate. This library contains the shared parts of those tests.
//!
//! **Not its job.** It does not test single functions of a crate. Those tests are next to the
//! function. No crate depends on it.
//!
//! The first lines of each test file under `tests/` describe its checks.

pub mod browser;
pub mod bundles;
pub mod cache;
pub mod calling;
pub mod chain;
pub mod checkpoints;
pub mod chip;
pub mod deeper;
pub mod formats;
pub mod measure;
pub mod neuron;
pub mod outlines;
pub mod picky;
pub mod plans;
pub mod profiles;
pub mod program;
pub mod published;
pub mod qnn;
pub mod rust_source;
pub mod schemas;
pub mod scripted;
pub mod serving;
pub mod shapes;
pub mod texts;
pub mod tower_cases;
pub mod towers;
pub mod tree;
pub mod worker;

use std::io::Write;

/// Positions that suffice for the longest prompt of a fixture and its continuation. Simulators use
/// this context unless a sweep must be complete.
pub const SIMULATED_CONTEXT: u32 = 160;

/// Reports conspicuously that a check was skipped, and why. The line bypasses the test harness's
/// capture, which would hide it for a passing test. `cargo xtask test` repeats these lines at its
/// end and, with `--ci`, fails because of them.
pub fn skipped(why: &str) {
    // A closed standard output must not fail a test.
    let _ = writeln!(std::io::stdout().lock(), "SKIPPED: {why}");
}
