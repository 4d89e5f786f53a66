//! Builds, laid out next to the program where the program looks for them: `shardwright`,
//! `shardwright-worker`, `shims/`, `planners/`, `profiles/`.

use std::path::PathBuf;
use std::process::Command;

use crate::error::Error;
use crate::workspace::{self, Package, Profile, Workspace};
use crate::{process, shims, vendor};

/// Selects the parts of the workspace to build. In the development profile, all of them compile
/// dependencies with the same features ([`FEATURES`]), so that a larger build adds to a smaller
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// For the demo: the program without a WebAssembly compiler, its worker and the CPU shim. The
    /// packs of planners are committed, so that none is built.
    Demo,
    /// For a user: the program, its worker, all shims and all planners.
    Program,
    /// For benches, in the release profile: all members.
    Workspace,
}

/// Selects all members except one, which a test builds because it needs fewer features than the
/// workspace has together.
pub const WORKSPACE: [&str; 3] = ["--workspace", "--exclude", "shardwright-planning-runtime-only"];

/// The program and its worker. Cargo puts them into one folder, where they look for each other.
const PROGRAMS: [&str; 2] = ["shardwright-cli", "shardwright-worker"];

/// The tool that makes planners into components.
const PLANNER_BUILD: &str = "shardwright-planner-build";

/// The shim of the demo.
const CPU_SHIM: &str = "shardwright-shim-cpu-library";

/// The shim for tests of legalisation. It is never laid out next to the program.
const PICKY_SHIM: &str = "shardwright-shim-picky";

/// Package with the features that dependencies have in a build of all members and their tests.
/// Cargo unifies features over the packages of one command, so a build of the program without this
/// package would compile some of its dependencies a second time. A test in `tests/tests/house`
/// compares the two.
const FEATURES: &str = "shardwright-test-features";

impl Scope {
    /// Returns cargo's arguments that select the packages.
    fn selection(self, workspace: &Workspace, profile: Profile) -> Vec<&str> {
        let mut packages = Vec::new();
        match self {
            Self::Workspace => return WORKSPACE.to_vec(),
            Self::Demo => packages.push(CPU_SHIM),
            Self::Program => {
                packages.push(PLANNER_BUILD);
                let shims = workspace.packages_under("vendor-shims");
                packages.extend(shims.filter(|shim| shim.library.is_some()).map(|shim| shim.name.as_str()));
            }
        }
        packages.extend(PROGRAMS);
        // A release build shares no crates with the tests.
        if profile == Profile::Dev {
            packages.push(FEATURES);
        }
        packages.into_iter().flat_map(|package| ["--package", package]).collect()
    }
}

/// The cost of a first build with the crates downloaded. Measured on two idle cores of an AMD EPYC:
/// 2:43 minutes, 374 seconds of processor time.
struct Cost {
    minutes: u32,
    megabytes: u32,
    crates: u32,
}

impl Scope {
    /// Returns the cost of a first build with a profile, if it was measured.
    fn cost(self, profile: Profile) -> Option<Cost> {
        match (self, profile) {
            (Self::Demo, Profile::Dev) => Some(Cost { minutes: 3, megabytes: 1260, crates: 265 }),
            _ => None,
        }
    }

    /// Lists the parts in words.
    fn parts(self) -> &'static str {
        match self {
            Self::Demo => "the program, its worker and the CPU shim",
            Self::Program => "the program, its worker, all shims and all planners",
            Self::Workspace => "all members of the workspace",
        }
    }
}

/// Announces a first build: its parts, its time and its space.
fn announce(workspace: &Workspace, profile: Profile, scope: Scope) {
    if workspace.program(profile).exists() {
        return;
    }
    let cost = scope.cost(profile).map_or_else(String::new, |Cost { minutes, megabytes, crates }| {
        format!(
            ": {crates} crates, about {minutes} minutes on two cores of an AMD EPYC, {:.1} GB",
            f64::from(megabytes) / 1000.0
        )
    });
    eprintln!("first build of {}{cost} in {}", scope.parts(), workspace.target.display());
    eprintln!("later builds compile only the crates that changed");
}

/// Builds with one profile and lays everything out next to the program. Returns the program's path.
pub fn build(workspace: &Workspace, profile: Profile, scope: Scope) -> Result<PathBuf, Error> {
    announce(workspace, profile, scope);
    let mut command = workspace.cargo();
    command.arg("build").args(profile.flags()).args(scope.selection(workspace, profile));
    // Without the WebAssembly compiler, the built-in planner runs in an interpreter.
    if scope == Scope::Demo {
        command.arg("--no-default-features");
    }
    process::run(&mut command)?;
    lay_out_shims(workspace, profile, scope)?;
    if scope != Scope::Demo {
        lay_out_planners(workspace, profile)?;
    }
    // The shipped profiles are in the program. The folder is for other profiles.
    let profiles = workspace.output(profile).join("profiles");
    std::fs::create_dir_all(&profiles).map_err(|source| Error::File { path: profiles, source })?;
    Ok(workspace.program(profile))
}

/// Builds the library that only tests load, which a build of the test programs leaves out.
pub fn library_for_tests(workspace: &Workspace) -> Result<(), Error> {
    process::run(workspace.cargo().args(["build", "--package", PICKY_SHIM, "--package", FEATURES]))
}

/// Builds all benches in the development profile, so that the compiler and its lints see them.
pub fn benches(workspace: &Workspace) -> Result<(), Error> {
    process::run(workspace.cargo().arg("build").args(WORKSPACE).args(["--bench", "*"]))
}

/// Builds the program of the demo and lays it out in a folder of its own, next to the CPU shim
/// alone and the committed packs of planners. Returns the program's path.
///
/// If a program with more features is already there, it is built again instead, so that the demo
/// does not replace it.
pub fn demo(workspace: &Workspace) -> Result<PathBuf, Error> {
    let output = workspace.output(Profile::Dev);
    let scope = if output.join("planners").is_dir() { Scope::Program } else { Scope::Demo };
    let program = build(workspace, Profile::Dev, scope)?;
    let folder = output.join("demo");
    let worker = program.with_file_name(format!("shardwright-worker{}", std::env::consts::EXE_SUFFIX));
    let shim = workspace.packages.iter().find(|package| package.name == CPU_SHIM);
    let mut files = vec![program.clone(), worker];
    if let Some(library) = shim.and_then(|shim| shim.library.as_ref()) {
        files.extend(shims::files(&output.join("shims"), library));
    }
    for name in SHIPPED {
        let pack = workspace::read(&workspace.root.join(pack_of(name)))?;
        workspace::replace(&folder.join("planners").join(format!("{name}.pack")), &pack)?;
    }
    for file in files {
        let place = folder.join(file.strip_prefix(&output).unwrap_or(&file));
        workspace::link(&file, &place)?;
    }
    Ok(folder.join(program.file_name().unwrap_or_default()))
}

fn lay_out_shims(workspace: &Workspace, profile: Profile, scope: Scope) -> Result<(), Error> {
    let mut laid_out = Vec::new();
    for package in workspace.packages_under("vendor-shims") {
        if scope != Scope::Demo || package.name == CPU_SHIM {
            laid_out.extend(shims::lay_out(workspace, package, profile)?);
        }
    }
    // The other shims of an earlier build do not belong to this one.
    if scope == Scope::Demo {
        return Ok(());
    }
    laid_out.extend(shims::compile_c(workspace, &workspace.root.join("vendor-shims/template/c"), profile)?);
    workspace::settle(&workspace.output(profile).join("shims"), &laid_out)
}

/// Prefix of a planner's package name. The rest names the file.
const PLANNER_PREFIX: &str = "shardwright-planner-";

/// Name of the planner that is part of the program.
const BUILT_IN: &str = "generic";

/// Names of the planners that ship next to the program.
const SHIPPED: [&str; 2] = ["mediatek", "qualcomm"];

/// Lays out the planners: the committed packs of those that ship with the program, and components
/// of the others.
fn lay_out_planners(workspace: &Workspace, profile: Profile) -> Result<(), Error> {
    let folder = workspace.output(profile).join("planners");
    let mut laid_out = Vec::new();
    for package in workspace.packages_under("plugins").filter(|package| package.library.is_some()) {
        let name = package.name.strip_prefix(PLANNER_PREFIX).unwrap_or(&package.name);
        let pack = workspace.root.join(pack_of(name));
        // Before the first `cargo xtask pack` there is no pack.
        let (kind, bytes) = match SHIPPED.contains(&name) && pack.is_file() {
            true => ("pack", workspace::read(&pack)?),
            false => ("wasm", workspace::read(&planner(workspace, package, profile)?)?),
        };
        let path = folder.join(format!("{name}.{kind}"));
        workspace::replace(&path, &bytes)?;
        laid_out.push(path);
    }
    workspace::settle(&folder, &laid_out)
}

/// Builds one planner into a component, with the workspace's own tool. Returns its path.
fn planner(workspace: &Workspace, package: &Package, profile: Profile) -> Result<PathBuf, Error> {
    let scratch = workspace.target.join("planner-components");
    std::fs::create_dir_all(&scratch).map_err(|source| Error::File { path: scratch.clone(), source })?;
    let built = scratch.join(format!("{}.wasm", package.name));
    let builder = format!("{PLANNER_BUILD}{}", std::env::consts::EXE_SUFFIX);
    process::run(
        Command::new(workspace.output(profile).join(builder))
            .current_dir(&workspace.root)
            .env("CARGO_TARGET_DIR", &workspace.target)
            .arg(package.folder.join("Cargo.toml"))
            .arg(&built),
    )?;
    Ok(built)
}

/// Writes the packs of the planners that are part of the program or ship with it, which are
/// committed, from their sources, and the digests of those that ship with it. The key is not
/// secret: the host trusts these packs by their contents and does not read their signatures.
pub fn pack(workspace: &Workspace) -> Result<(), Error> {
    let program = build(workspace, Profile::Dev, Scope::Program)?;
    let key = workspace.target.join("planner-components").join("embedded.key");
    workspace::replace(&key, "00".repeat(32).as_bytes())?;
    workspace::permit(&key, 0o600)?;
    let mut digests = String::new();
    for name in [BUILT_IN].into_iter().chain(SHIPPED) {
        let of = format!("{PLANNER_PREFIX}{name}");
        let package = workspace.packages.iter().find(|package| package.name == of);
        let package = package.ok_or_else(|| Error::Unexpected {
            path: workspace.root.join("plugins"),
            problem: format!("no package `{of}`"),
        })?;
        let pack = workspace.root.join(pack_of(name));
        let mut command = Command::new(&program);
        command.args(["planner", "pack"]).arg(planner(workspace, package, Profile::Dev)?);
        process::run(command.arg("--key").arg(&key).arg("--output").arg(&pack))?;
        if SHIPPED.contains(&name) {
            let digest = vendor::sha256(&pack).map_err(|source| vendor::file_error(&pack, source))?;
            digests.push_str(&format!("{digest}  {name}/{name}.pack\n"));
        }
    }
    workspace::replace(&workspace.root.join(DIGESTS), digests.as_bytes())?;
    lay_out_planners(workspace, Profile::Dev)
}

/// Returns the path of a planner's pack, relative to the root.
fn pack_of(name: &str) -> String {
    format!("plugins/{name}/{name}.pack")
}

/// List of the digests of the packs that ship with the program, relative to the root.
const DIGESTS: &str = "plugins/packs.sha256";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_page_has_the_cost_of_a_first_build() {
        let page = include_str!("../../README.md").replace('\n', " ");
        let Cost { minutes, megabytes, .. } = Scope::Demo.cost(Profile::Dev).expect("it was measured");
        let words = format!(
            "A first build takes about {minutes} minutes on two cores and {:.1} GB of disk.",
            f64::from(megabytes) / 1000.0
        );
        assert!(page.contains(&words), "no `{words}`");
    }
}
