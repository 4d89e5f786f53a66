//! Installs what a machine with only rustup, git and a C compiler lacks.

use std::process::Command;

use crate::error::Error;
use crate::process;
use crate::workspace::Workspace;

/// The compilation target of planners.
pub const PLANNER_TARGET: &str = "wasm32-unknown-unknown";

/// Adds the planners' target to the pinned toolchain and checks the C compiler. Quick if nothing is
/// missing.
pub fn prepare(workspace: &Workspace) -> Result<(), Error> {
    target(workspace, PLANNER_TARGET, "planners are")?;
    c_compiler()
}

/// Checks the C compiler.
pub fn c_compiler() -> Result<(), Error> {
    // `cc` links every Rust program, so it is here if this program was built here; the C shim needs
    // its headers too.
    if !process::succeeds(Command::new("cc").arg("--version")) {
        return Err(process::not_started(&Command::new("cc"), std::io::ErrorKind::NotFound.into()));
    }
    Ok(())
}

/// Whether the toolchain has the standard library of a target. Asked of `rustc`, not of rustup: a
/// toolchain may come from elsewhere.
fn has_target(workspace: &Workspace, target: &str) -> bool {
    let mut command = Command::new("rustc");
    command.current_dir(&workspace.root).args(["--print", "target-libdir", "--target", target]);
    // The folder exists for every target the compiler knows; only an installed one has libraries in
    // it.
    process::output(&mut command)
        .is_ok_and(|folder| std::fs::read_dir(folder.trim()).is_ok_and(|mut files| files.next().is_some()))
}

/// Adds a target to the pinned toolchain where it lacks it; `what` is compiled for it.
pub fn target(workspace: &Workspace, target: &str, what: &str) -> Result<(), Error> {
    if has_target(workspace, target) {
        return Ok(());
    }
    eprintln!("{what} compiled for {target}, which this toolchain lacks:");
    // In the root, so that rustup reads rust-toolchain.toml and adds to that toolchain.
    process::run(Command::new("rustup").current_dir(&workspace.root).args(["target", "add", target]))
}
