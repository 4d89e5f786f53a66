//! Installs the parts that are missing on a machine with only rustup, git and a C compiler.

use std::process::Command;

use crate::error::Error;
use crate::process;
use crate::workspace::Workspace;

/// The compilation target of planners.
pub const PLANNER_TARGET: &str = "wasm32-unknown-unknown";

/// Adds the planners' target to the pinned toolchain and checks the C compiler. It is quick if both
/// are present.
pub fn prepare(workspace: &Workspace) -> Result<(), Error> {
    target(workspace, PLANNER_TARGET, "planners are")?;
    c_compiler()
}

/// Checks the C compiler.
pub fn c_compiler() -> Result<(), Error> {
    // `cc` links every Rust program, so it is available if this program was built here. The C shim
    // needs its headers too.
    if !process::succeeds(Command::new("cc").arg("--version")) {
        return Err(process::not_started(&Command::new("cc"), std::io::ErrorKind::NotFound.into()));
    }
    Ok(())
}

/// Checks whether the toolchain has the standard library of a target. It queries `rustc` instead of
/// rustup, because a toolchain may come from elsewhere.
fn has_target(workspace: &Workspace, target: &str) -> bool {
    let mut command = Command::new("rustc");
    command.current_dir(&workspace.root).args(["--print", "target-libdir", "--target", target]);
    // The folder exists for every target that the compiler knows. Only an installed target has
    // libraries in it.
    process::output(&mut command)
        .is_ok_and(|folder| std::fs::read_dir(folder.trim()).is_ok_and(|mut files| files.next().is_some()))
}

/// Adds a target to the pinned toolchain if it is missing. `what` names the code that is compiled
/// for it.
pub fn target(workspace: &Workspace, target: &str, what: &str) -> Result<(), Error> {
    if has_target(workspace, target) {
        return Ok(());
    }
    eprintln!("{what} compiled for {target}, which this toolchain lacks:");
    // Runs in the root, so that rustup reads rust-toolchain.toml and adds the target to that
    // toolchain.
    process::run(Command::new("rustup").current_dir(&workspace.root).args(["target", "add", target]))
}
