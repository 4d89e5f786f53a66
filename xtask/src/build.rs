//! One build of everything, laid out beside the program the way the program looks for it:
//! `shardwright`, `shims/`, `planners/`, `profiles/`.

use std::path::PathBuf;
use std::process::Command;

use crate::error::Error;
use crate::workspace::{self, Package, Profile, Workspace};
use crate::{process, shims};

/// How much of the workspace is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The program, shims and planners: for a user.
    Program,
    /// All members. Cargo unifies features over the packages of one command, so building the
    /// program alone first and the tests later would compile its dependencies twice: commands that
    /// test or measure afterwards build everything.
    Workspace,
    /// All members and their tests: with these, dependencies have the features that `cargo test`
    /// asks for. A build without them would compile the engine, and what makes its bindings, a
    /// second time.
    Tests,
}

/// Selects all members. The excluded one is built by a test: it needs fewer features than the
/// workspace has together.
pub const WORKSPACE: [&str; 3] = ["--workspace", "--exclude", "shardwright-planning-runtime-only"];

/// The program, its worker, and the tool that makes planners into components. Cargo puts them into
/// one folder, which is where they look for each other.
const PROGRAMS: [&str; 6] = [
    "--package",
    "shardwright-cli",
    "--package",
    "shardwright-worker",
    "--package",
    "shardwright-planner-build",
];

/// Builds with one profile and lays everything out beside the program. Returns the program's path.
pub fn build(workspace: &Workspace, profile: Profile, scope: Scope) -> Result<PathBuf, Error> {
    let mut command = workspace.cargo();
    command.arg("build").args(profile.flags());
    match scope {
        Scope::Workspace => {
            command.args(WORKSPACE);
        }
        Scope::Tests => {
            command.args(WORKSPACE).args(["--lib", "--bins", "--tests"]);
        }
        Scope::Program => {
            command.args(PROGRAMS);
            for shim in workspace.packages_under("vendor-shims").filter(|package| package.library.is_some()) {
                command.args(["--package", &shim.name]);
            }
        }
    }
    process::run(&mut command)?;
    lay_out_shims(workspace, profile)?;
    lay_out_planners(workspace, profile)?;
    // The shipped profiles are inside the program; the folder is for others.
    let profiles = workspace.output(profile).join("profiles");
    std::fs::create_dir_all(&profiles).map_err(|source| Error::File { path: profiles, source })?;
    Ok(workspace.program(profile))
}

fn lay_out_shims(workspace: &Workspace, profile: Profile) -> Result<(), Error> {
    let mut laid_out = Vec::new();
    for package in workspace.packages_under("vendor-shims") {
        laid_out.extend(shims::lay_out(workspace, package, profile)?);
    }
    laid_out.extend(shims::compile_c(workspace, &workspace.root.join("vendor-shims/template/c"), profile)?);
    workspace::settle(&workspace.output(profile).join("shims"), &laid_out)
}

/// Prefix of a planner's package name; the rest names the file.
const PLANNER_PREFIX: &str = "shardwright-planner-";

fn lay_out_planners(workspace: &Workspace, profile: Profile) -> Result<(), Error> {
    let folder = workspace.output(profile).join("planners");
    let mut laid_out = Vec::new();
    for package in workspace.packages_under("plugins").filter(|package| package.library.is_some()) {
        let name = package.name.strip_prefix(PLANNER_PREFIX).unwrap_or(&package.name);
        let path = folder.join(format!("{name}.wasm"));
        workspace::replace(&path, &planner(workspace, package, profile)?)?;
        laid_out.push(path);
    }
    workspace::settle(&folder, &laid_out)
}

/// Builds one planner into a component, with the workspace's own tool.
fn planner(workspace: &Workspace, package: &Package, profile: Profile) -> Result<Vec<u8>, Error> {
    let scratch = workspace.target.join("planner-components");
    std::fs::create_dir_all(&scratch).map_err(|source| Error::File { path: scratch.clone(), source })?;
    let built = scratch.join(format!("{}.wasm", package.name));
    let builder = format!("shardwright-planner-build{}", std::env::consts::EXE_SUFFIX);
    process::run(
        Command::new(workspace.output(profile).join(builder))
            .current_dir(&workspace.root)
            .env("CARGO_TARGET_DIR", &workspace.target)
            .arg(package.folder.join("Cargo.toml"))
            .arg(&built),
    )?;
    workspace::read(&built)
}
