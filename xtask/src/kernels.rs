//! `cargo xtask kernels`: the CPU shim's own tests with debug assertions and overflow checks, and
//! the stack that its kernels need without optimisation.
//!
//! Other builds compile the shim without these checks, which make its inner loops three times as
//! slow.

use crate::error::Error;
use crate::process;
use crate::testing::suites;
use crate::workspace::Workspace;

/// Builds and runs the tests. With `ci`, they are a suite that may be left out.
pub fn test(workspace: &Workspace, ci: bool) -> Result<(), Error> {
    if ci && !suites::runs(workspace, &suites::KERNELS)? {
        return Ok(());
    }
    let mut command = workspace.cargo();
    // Uses the features of the other builds, so that shared crates are compiled once.
    command.args(["test", "--locked", "--package", "shardwright-shim-cpu"]);
    command.args(["--package", "shardwright-test-features", "--lib"]);
    // More optimisation takes twice as long to compile, and the suites of the workspace run
    // optimised kernels.
    for setting in ["debug-assertions=true", "overflow-checks=true", "opt-level=1"] {
        command.args(["--config", &format!("profile.dev.package.shardwright-shim-cpu.{setting}")]);
    }
    process::run(&mut command)?;
    // Applications compile the shim with their own settings, which are often without optimisation
    // at first. Kernels then have large stack frames.
    let mut command = workspace.cargo();
    command.args(["test", "--locked", "--package", "shardwright-shim-cpu"]);
    command.args(["--package", "shardwright-test-features", "--lib"]);
    command.args(["--config", "profile.dev.package.shardwright-shim-cpu.opt-level=0"]);
    command.args(["--", "every_kernel_fits_half_of_the_stack"]);
    process::run(&mut command)
}
