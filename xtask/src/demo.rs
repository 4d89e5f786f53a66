//! `cargo xtask run` and `cargo xtask demo`: builds, then starts the program.

use std::ffi::OsString;
use std::process::Command;

use crate::build::Scope;
use crate::error::Error;
use crate::workspace::{Profile, Workspace};
use crate::{build, models, process, setup, vendor};

/// The demo's limit, which is so low that the eight layers of the demo model need three shards.
const DEMO_LIMIT: &str = "ops=400";

/// A question that the demo model answers well.
const DEMO_PROMPT: &str = "What does bug mean?";

/// Builds and runs `shardwright` with the arguments, in the caller's folder. It uses the release
/// profile, or the development profile if only that program was built. The engine is optimised in
/// both.
pub fn run(workspace: &Workspace, arguments: &[OsString]) -> Result<(), Error> {
    setup::prepare(workspace)?;
    let profile =
        match (workspace.program(Profile::Release).exists(), workspace.program(Profile::Dev).exists()) {
            (false, true) => Profile::Dev,
            _ => Profile::Release,
        };
    let program = build::build(workspace, profile, Scope::Program)?;
    if profile == Profile::Dev {
        eprintln!(
            "note: this is the development build, which reads and quantises large models slowly; \
             `cargo xtask build --release` builds the optimised program, which `run` then uses"
        );
    }
    let mut command = Command::new(program);
    vendor::offer(&mut command);
    process::run(command.args(arguments))
}

/// Fetches a published model and runs its file on the CPU. A chat model answers a question. Other
/// models continue a text.
pub fn published(workspace: &Workspace, name: &str) -> Result<(), Error> {
    setup::c_compiler()?;
    let (file, arguments) = models::one(name)?;
    let program = build::demo(workspace)?;
    eprintln!();
    process::run(Command::new(&program).current_dir(&workspace.root).arg("run").arg(file).args(arguments))
}

/// Plans the demo model for a phone whose compiler supports few operations at a time, then runs it
/// on the CPU, cut in the same way, to answer a question.
pub fn demo(workspace: &Workspace) -> Result<(), Error> {
    setup::c_compiler()?;
    let program = build::demo(workspace)?;
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
    let question = ["--on", "cpu", "--prompt", DEMO_PROMPT];
    process::run(shardwright().args(["run", "demo-model"]).args(target).args(question))
}
