//! `cargo xtask run` and `cargo xtask demo`: builds, then starts the program.

use std::ffi::OsString;
use std::process::Command;

use crate::build::Scope;
use crate::error::Error;
use crate::workspace::{Profile, Workspace};
use crate::{build, process, setup, vendor};

/// The demo's limit: low enough that the eight layers of the demo model need three shards.
const DEMO_LIMIT: &str = "ops=400";

/// A question that the demo model answers well.
const DEMO_PROMPT: &str = "What does bug mean?";

/// Builds with the release profile and runs `shardwright` with the arguments, in the caller's
/// folder.
pub fn run(workspace: &Workspace, arguments: &[OsString]) -> Result<(), Error> {
    setup::prepare(workspace)?;
    let program = build::build(workspace, Profile::Release, Scope::Program)?;
    let mut command = Command::new(program);
    vendor::offer(&mut command);
    process::run(command.args(arguments))
}

/// Plans the demo model for a phone whose compiler supports few operations at a time, then runs it
/// on the CPU, cut in the same way, to answer a question.
pub fn demo(workspace: &Workspace) -> Result<(), Error> {
    setup::prepare(workspace)?;
    let program = build::build(workspace, Profile::Dev, Scope::Workspace)?;
    let shardwright = || {
        let mut command = Command::new(&program);
        command.current_dir(&workspace.root);
        vendor::offer(&mut command);
        command
    };
    let target = ["--soc", "mt6989", "--limit", DEMO_LIMIT];
    eprintln!();
    process::run(shardwright().args(["plan", "demo-model"]).args(target))?;
    eprintln!();
    process::run(shardwright().args(["run", "demo-model"]).args(target).args([
        "--on",
        "cpu",
        "--chat",
        "--temperature",
        "0",
        "--prompt",
        DEMO_PROMPT,
    ]))
}
