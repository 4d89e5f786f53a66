//! Tests that need the worker program: it is looked for beside the running program, where a test
//! has none, or where a variable of the environment says, which a process sets for its children
//! alone.

use std::process::Command;

use crate::{program, skipped};

const VARIABLE: &str = "SHARDWRIGHT_WORKER";

/// Whether this process finds a worker. If not, the test is run again in a child that does, to its
/// end, and has nothing to do here.
///
/// `test` is the test's full name.
///
/// # Panics
/// If the test fails in the child.
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
    let status = child.args([test, "--exact", "--nocapture"]).env(VARIABLE, worker).status();
    assert!(status.expect("the test program starts").success(), "{test} failed, see above");
    false
}
