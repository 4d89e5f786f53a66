//! Official clients of OpenAI's interface, for tests of the server: the packages `openai` and `llm`
//! from PyPI, and `openai` and the AI SDK from npm.
//!
//! `cargo xtask vendor clients` installs the versions that `tests/clients` pins into a folder of
//! the user's cache. `python` in it is a search path for Python, and `node_modules` one for Node.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::process;
use crate::vendor::{beside, cache_folder, file_error, put, remove, run_pip};
use crate::workspace::Workspace;

/// Variable with the folder of the clients, for tests.
pub const VARIABLE: &str = "SHARDWRIGHT_CLIENTS";

/// The folder of the files that pin the versions, relative to the root.
const PINS: &str = "tests/clients";

/// Python packages, one in a line, with all their dependencies.
const REQUIREMENTS: &str = "requirements.txt";

/// The files that `npm ci` needs. The second has a hash for each package.
const PACKAGES: [&str; 2] = ["package.json", "package-lock.json"];

/// Folder that pip installs into.
const PYTHON: &str = "python";

/// Folder that npm installs into.
const NODE: &str = "node_modules";

/// Programs that load every client. They show that an installation is complete, and that it fits
/// the local Python and Node.
const LOADS_PYTHON: &str = "import openai, llm.cli";
const LOADS_NODE: &str =
    "Promise.all(['openai', 'ai', '@ai-sdk/openai-compatible'].map((name) => import(name)))";

/// Fetches the clients unless they are present and load, and prints their path on stdout.
pub fn clients(workspace: &Workspace) -> Result<(), Error> {
    let folder = folder(workspace)?;
    fetch(workspace, &folder)?;
    println!("{VARIABLE}={}", folder.display());
    Ok(())
}

/// Like [`clients`], without printing. Every test run does it.
pub fn for_tests(workspace: &Workspace) -> Result<(), Error> {
    if is_said() { Ok(()) } else { fetch(workspace, &folder(workspace)?) }
}

/// Passes the folder to a command, unless the caller's environment names one or it is missing. The
/// folder was put there by a single rename, so it is complete.
pub fn offer(workspace: &Workspace, command: &mut Command) {
    if !is_said()
        && let Ok(folder) = folder(workspace)
        && folder.is_dir()
    {
        command.env(VARIABLE, folder);
    }
}

fn is_said() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|said| !said.is_empty())
}

/// Returns the folder of the pinned versions. Its name changes with them.
fn folder(workspace: &Workspace) -> Result<PathBuf, Error> {
    let mut hash = Sha256::new();
    for name in PACKAGES.into_iter().chain([REQUIREMENTS]) {
        let path = workspace.root.join(PINS).join(name);
        hash.update(fs::read(&path).map_err(|source| file_error(&path, source))?);
    }
    let hash: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    Ok(cache_folder()?.join("vendor").join(format!("clients-{hash}")))
}

/// Checks whether both interpreters load the clients.
fn is_whole(folder: &Path) -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", LOADS_PYTHON]).env("PYTHONPATH", folder.join(PYTHON));
    // Node looks for packages next to the program, and its text has the current folder as its
    // place.
    let mut node = Command::new("node");
    node.args(["--input-type=module", "--eval", LOADS_NODE]);
    folder.is_dir()
        && process::succeeds(python.current_dir(folder))
        && process::succeeds(node.current_dir(folder))
}

fn fetch(workspace: &Workspace, folder: &Path) -> Result<(), Error> {
    if is_whole(folder) {
        return Ok(());
    }
    let parent = folder.parent().ok_or(Error::NoCacheFolder)?;
    fs::create_dir_all(parent).map_err(|source| file_error(parent, source))?;
    // A second command waits, then finds the clients.
    let lock_path = parent.join(".clients.lock");
    let lock = File::create(&lock_path).map_err(|source| file_error(&lock_path, source))?;
    lock.lock().map_err(|source| file_error(&lock_path, source))?;
    if is_whole(folder) {
        return Ok(());
    }
    let scratch = beside(folder, "new");
    remove(&scratch)?;
    fs::create_dir_all(&scratch).map_err(|source| file_error(&scratch, source))?;
    let made = install(&workspace.root.join(PINS), &scratch).and_then(|()| put(&scratch, folder));
    if made.is_err() {
        // The first error is more useful than an error of the removal.
        let _ = remove(&scratch);
    }
    made
}

/// Installs the pinned versions into an empty folder.
fn install(pins: &Path, into: &Path) -> Result<(), Error> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir"]);
    // The requirements are complete. `llm` would bring pip itself.
    pip.args(["--no-deps", "--only-binary=:all:", "--target"]).arg(into.join(PYTHON));
    run_pip(pip.arg("--requirement").arg(pins.join(REQUIREMENTS)), "openai", "and its dependencies")?;
    for name in PACKAGES {
        let path = pins.join(name);
        fs::copy(&path, into.join(name)).map_err(|source| file_error(&path, source))?;
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]).arg(into);
    process::run(&mut npm)?;
    if !is_whole(into) {
        let problem = format!("{PYTHON} or {NODE} cannot be loaded: `{LOADS_PYTHON}`, `{LOADS_NODE}`");
        return Err(Error::Unexpected { path: into.to_owned(), problem });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_changes_with_each_pinned_version() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let pins = root.path().join(PINS);
        fs::create_dir_all(&pins).expect("made");
        let (root, target) = (root.path().to_owned(), root.path().join("target"));
        let workspace = Workspace { root, target, packages: Vec::new() };
        let names = || PACKAGES.into_iter().chain([REQUIREMENTS]);
        assert!(matches!(folder(&workspace), Err(Error::File { .. })));
        names().for_each(|name| fs::write(pins.join(name), "1").expect("written"));
        let mut found = vec![folder(&workspace).expect("a folder")];
        for name in names() {
            fs::write(pins.join(name), "2").expect("written");
            let other = folder(&workspace).expect("a folder");
            assert!(!found.contains(&other), "{name}");
            found.push(other);
        }
    }

    #[test]
    fn a_folder_without_clients_is_not_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir_all(folder.path().join(PYTHON)).expect("made");
        fs::create_dir_all(folder.path().join(NODE)).expect("made");
        assert!(!is_whole(folder.path()) && !is_whole(&folder.path().join("missing")));
    }

    #[test]
    fn every_package_is_pinned_exactly() {
        let pins = Workspace::locate().expect("the workspace").root.join(PINS);
        let requirements = fs::read_to_string(pins.join(REQUIREMENTS)).expect("a file");
        let pinned = |line: &str| line.split_once("==").is_some_and(|(_, version)| !version.is_empty());
        assert!(requirements.lines().count() > 10 && requirements.lines().all(pinned), "{requirements}");
        let lock = fs::read(pins.join(PACKAGES[1])).expect("a file");
        let lock: serde_json::Value = serde_json::from_slice(&lock).expect("JSON");
        for (name, package) in lock["packages"].as_object().expect("packages") {
            let hash = package["integrity"].as_str().unwrap_or_default();
            assert!(name.is_empty() || hash.starts_with("sha512-"), "{name}: {package}");
        }
    }
}
