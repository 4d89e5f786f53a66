//! One build of everything, laid out beside the program the way the program looks for it:
//! `shardwright`, `shims/`, `planners/`, `profiles/`.

use std::path::PathBuf;
use std::process::Command;

use crate::error::Error;
use crate::workspace::{self, Package, Profile, Workspace};
use crate::{process, shims};

/// Members that a test builds by itself, because they are about fewer features than the workspace has together.
pub const BUILT_BY_TESTS: [&str; 2] = ["--exclude", "shardwright-planning-runtime-only"];

/// Builds everything with one profile. Returns the program's path.
///
/// The whole workspace in one command, although the program needs only a part: cargo unites the features of the
/// packages it is given, so building a part first and all of it for the tests later would compile some dependencies
/// twice.
pub fn everything(workspace: &Workspace, profile: Profile) -> Result<PathBuf, Error> {
    process::run(
        workspace.cargo().args(["build", "--workspace"]).args(BUILT_BY_TESTS).args(profile.flags()),
    )?;
    lay_out_shims(workspace, profile)?;
    lay_out_planners(workspace, profile)?;
    // The profiles that come with the program are inside it; the folder is for others.
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

/// What a planner's package name begins with; the rest names the file.
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

/// Builds one planner into a component, with the program the workspace has for that.
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
