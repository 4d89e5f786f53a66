//! Tests that need the worker program. A process looks for the worker next to its own program,
//! where a test has none, or at the path in an environment variable. A process can only set that
//! variable for its children.

use std::process::Command;

use crate::{program, skipped};

const VARIABLE: &str = "SHARDWRIGHT_WORKER";

/// Checks whether this process finds a worker. If not, the test runs to its end in a child process
/// that finds one, and the caller must return.
///
/// `test` is the test's full name, with its modules.
///
/// # Panics
/// If the test fails in the child, or if the child has no test of that name.
pub fn is_here(test: &str) -> bool {
    let worker = program::folder().join("shardwright-worker");
    if std::env::var_os(VARIABLE).is_some_and(|named| named == worker.as_os_str()) {
        return true;
    }
    if !worker.is_file() {
        skipped(&format!("{test}: there is no worker program"));
        return false;
    }
    let this = std::env::current_exe().expect("the test program's own path");
    let mut child = Command::new(this);
    let output = child.args([test, "--exact", "--nocapture"]).env(VARIABLE, worker).output();
    let output = output.expect("the test program starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} failed: {stdout}{stderr}");
    // The test program also succeeds if no test has the name.
    assert!(stdout.contains("test result: ok. 1 passed"), "{test} is not the full name of a test: {stdout}");
    false
}
