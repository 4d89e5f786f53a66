//! `cargo xtask aarch64`: the kernels' tests of the CPU shim, as programs for 64-bit ARM.
//!
//! On such a machine they run as they are, elsewhere under qemu's user-mode emulation with every
//! instruction it knows. Nothing is measured: emulation says what is right, not what is fast.

use std::process::Command;

use crate::error::Error;
use crate::process;
use crate::setup;
use crate::workspace::Workspace;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Links programs for the target on a machine of another kind.
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Runs them there.
const EMULATOR: &str = "qemu-aarch64";

/// Where what is emulated finds the C library, as Debian's cross compilers lay it out.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Says to the tests that the processor has every instruction set that the kernels know.
const EVERY_LEVEL: &str = "SHARDWRIGHT_EVERY_LEVEL";

/// Builds and runs the tests.
pub fn test(workspace: &Workspace) -> Result<(), Error> {
    setup::target(workspace, TARGET, "the kernels' tests are")?;
    let mut command = workspace.cargo();
    // What is written once for all processors, with every instruction set of the target, is in the
    // library's own tests.
    command.args(["test", "--package", "shardwright-shim-cpu", "--lib", "--target", TARGET]);
    if !cfg!(target_arch = "aarch64") {
        for program in [LINKER, EMULATOR] {
            if !process::succeeds(Command::new(program).arg("--version")) {
                return Err(process::not_started(
                    &Command::new(program),
                    std::io::ErrorKind::NotFound.into(),
                ));
            }
        }
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
        command.env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            format!("{EMULATOR} -cpu max -L {LIBRARIES}"),
        );
        // What is emulated has every instruction set, and a test fails unless it finds them all:
        // none may go untested unnoticed.
        command.env(EVERY_LEVEL, "1");
    }
    process::run(&mut command)
}
