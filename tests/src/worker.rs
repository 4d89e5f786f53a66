//! Tests that need the worker program. A process looks for the worker next to its own program,
//! where a test has none, or at the path in an environment variable. A process can only set that
//! variable for its children.

use std::fs;
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

/// Name of the worker program as far as Linux keeps it.
const NAME: &str = "shardwright-wor";

/// Kills the workers of a process, as a driver that crashes would. Returns their number. Works on
/// Linux.
///
/// # Panics
/// If the program `kill` does not start.
pub fn kill_all_of(parent: u32) -> usize {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let workers = entries.filter_map(|entry| {
        let id: u32 = entry.file_name().to_str()?.parse().ok()?;
        is_worker_of(parent, &fs::read_to_string(entry.path().join("stat")).ok()?).then_some(id)
    });
    let kill = |worker: &u32| {
        let sent = Command::new("kill").args(["-KILL", &worker.to_string()]).status();
        sent.expect("kill starts").success()
    };
    workers.filter(kill).count()
}

/// Checks whether a process is a running worker of `parent`, by Linux's line about it:
/// `12 (name) S 1 …`.
fn is_worker_of(parent: u32, stat: &str) -> bool {
    let Some((begin, rest)) = stat.rsplit_once(')') else { return false };
    let mut fields = rest.split_whitespace();
    let (state, of) = (fields.next(), fields.next().and_then(|of| of.parse().ok()));
    begin.ends_with(&format!("({NAME}")) && of == Some(parent) && !matches!(state, None | Some("Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_running_children_with_the_name() {
        let of_7 = |stat: &str| is_worker_of(7, stat);
        assert!(of_7("12 (shardwright-wor) S 7 12 12 0 -1"));
        for other in
            ["12 (shardwright-wor) Z 7 12", "12 (shardwright-wor) S 8 12", "12 (sh) S 7 12", "12 (shard", ""]
        {
            assert!(!of_7(other), "{other}");
        }
    }
}
