//! `cargo xtask platforms`: checks whether the code that applications link compiles for the systems
//! of phones and of other desktops. It is not linked or run, so no C compilers for these systems
//! are needed.

use crate::error::Error;
use crate::testing::suites;
use crate::workspace::Workspace;
use crate::{process, setup};

/// A system, and the packages that are offered on it.
struct Platform {
    target: &'static str,
    packages: &'static [&'static str],
}

/// Packages that run models, with the shim for every machine.
const EVERYWHERE: [&str; 3] = ["shardwright-runtime", "shardwright-shims", "shardwright-shim-cpu"];

/// Shims of phones' vendors, and the worker, which needs Linux system calls.
const ON_PHONES: [&str; 3] = ["shardwright-worker", "shardwright-shim-qnn", "shardwright-shim-neuron"];

const PLATFORMS: [Platform; 3] = [
    Platform { target: "aarch64-linux-android", packages: &ON_PHONES },
    Platform { target: "aarch64-apple-darwin", packages: &[] },
    Platform { target: "x86_64-pc-windows-gnu", packages: &[] },
];

/// Checks all of them. With `ci`, they are a suite that may be left out.
pub fn check(workspace: &Workspace, ci: bool) -> Result<(), Error> {
    if ci && !suites::runs(workspace, &suites::PLATFORMS)? {
        return Ok(());
    }
    for Platform { target, packages } in PLATFORMS {
        setup::target(workspace, target, "the runtime and shims are")?;
        let mut command = workspace.cargo();
        command.args(["check", "--locked", "--quiet", "--target", target]);
        // Lints apply only to the machine that runs the tests: a cast that changes a type here may
        // be redundant elsewhere.
        command.env_remove("RUSTC_WORKSPACE_WRAPPER");
        for package in EVERYWHERE.iter().chain(packages) {
            command.args(["--package", package]);
        }
        process::run(&mut command)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_page_has_the_systems_that_are_checked() {
        let names = PLATFORMS.map(|platform| match platform.target {
            "aarch64-linux-android" => "Android",
            "aarch64-apple-darwin" => "macOS",
            "x86_64-pc-windows-gnu" => "Windows",
            other => panic!("{other} has no name"),
        });
        let row = format!("| {} | what an app links compiles (`cargo xtask platforms`) |", names.join(", "));
        assert!(include_str!("../../README.md").contains(&row), "no `{row}`");
        let script = include_str!("../../.ci/run");
        for step in ["cargo xtask platforms --ci", "cargo xtask aarch64 --ci", "cargo xtask test --ci"] {
            assert!(script.contains(step), "`.ci/run` does not run `{step}`");
        }
    }
}
