//! The tests of the whole project: the program from outside, the arrows between the crates, the
//! house rules.
//!
//! **Job.** What no single crate can test: goldens and hostile inputs through the program's own
//! commands, the how-to pages followed step by step, the dependency arrows, the rules every crate
//! keeps. This library holds what those tests share.
//!
//! **Not its job.** It tests no function of a crate; that is done beside the function. Nothing
//! depends on it.
//!
//! The test files under `tests/` say in their first lines what they check.

pub mod bundles;
pub mod chain;
pub mod checkpoints;
pub mod chip;
pub mod formats;
pub mod measure;
pub mod neuron;
pub mod picky;
pub mod profiles;
pub mod program;
pub mod qnn;
pub mod rust_source;
pub mod shapes;
pub mod tree;
pub mod worker;

use std::io::Write;

/// Positions that hold the longest prompt of a fixture and what follows it: what a simulator is
/// asked for unless a sweep is to be whole.
pub const SIMULATED_CONTEXT: u32 = 160;

/// Says loudly that something was not checked and why. Written past the test harness's capture,
/// which would hide the line of a passing test; `cargo xtask test` repeats these lines at its end
/// and, with `--ci`, fails over them.
pub fn skipped(why: &str) {
    // A standard output that went away is no reason to fail a test.
    let _ = writeln!(std::io::stdout().lock(), "SKIPPED: {why}");
}
