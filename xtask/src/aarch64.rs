//! `cargo xtask aarch64`: the kernels' tests of the CPU shim, as programs for 64-bit ARM.
//!
//! On such a machine they run natively, elsewhere under qemu's user-mode emulation with every
//! instruction set it supports. Nothing is measured: emulation checks correctness, not speed.

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

/// Where emulated programs find the C library, as Debian's cross compilers lay it out.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Makes the tests require every instruction set that the kernels support.
const EVERY_LEVEL: &str = "SHARDWRIGHT_EVERY_LEVEL";

/// Builds and runs the tests.
pub fn test(workspace: &Workspace) -> Result<(), Error> {
    setup::target(workspace, TARGET, "the kernels' tests are")?;
    let mut command = workspace.cargo();
    // Code for all processors, with every instruction set of the target, is tested in the library's
    // own tests.
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
        // The emulated processor has every instruction set, and a test fails unless it finds them
        // all: none may go untested unnoticed.
        command.env(EVERY_LEVEL, "1");
    }
    process::run(&mut command)
}
