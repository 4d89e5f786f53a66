//! The tool from npm that makes a component of a planner in JavaScript. It is fetched once, for the
//! test of the how-to page.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::error::Error;
use crate::process;
use crate::vendor::cache_folder;
use crate::workspace::Workspace;

/// Variable with the path of the program, for tests.
const VARIABLE: &str = "SHARDWRIGHT_COMPONENTIZE_QJS";

/// Path of the program in the folder that npm installs into.
const PROGRAM: &str = "node_modules/.bin/componentize-qjs";

/// The folder of the example, whose `package.json` pins the version.
const EXAMPLE: &str = "plugins/javascript";

/// Fetches the tool unless it exists or the environment names it.
pub fn fetch_for_tests(workspace: &Workspace) -> Result<(), Error> {
    let folder = folder(workspace)?;
    if is_said() || folder.join(PROGRAM).exists() {
        return Ok(());
    }
    let failed = |source| Error::File { path: folder.clone(), source };
    let parent = folder.parent().unwrap_or(&folder);
    fs::create_dir_all(parent).map_err(failed)?;
    // The folder is renamed when it is complete.
    let begun = parent.join(format!("{}.{}", name(&folder), std::process::id()));
    fs::create_dir_all(&begun).map_err(failed)?;
    let manifest = workspace.root.join(EXAMPLE).join("package.json");
    fs::copy(manifest, begun.join("package.json")).map_err(failed)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "--prefix"]).arg(&begun);
    let fetched = process::run(&mut npm);
    if fetched.is_ok() && !folder.join(PROGRAM).exists() {
        fs::rename(&begun, &folder).map_err(failed)?;
    } else {
        // The remains would never be used again.
        let _ = fs::remove_dir_all(&begun);
    }
    fetched
}

/// Passes the tool's path to a command, unless the caller's environment does or it was not fetched.
pub fn offer(workspace: &Workspace, command: &mut Command) {
    if let (false, Ok(folder)) = (is_said(), folder(workspace)) {
        let program = folder.join(PROGRAM);
        if program.exists() {
            command.env(VARIABLE, program);
        }
    }
}

fn is_said() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|said| !said.is_empty())
}

/// Returns the folder of the version that the example requires.
fn folder(workspace: &Workspace) -> Result<PathBuf, Error> {
    let path = workspace.root.join(EXAMPLE).join("package.json");
    let text = fs::read_to_string(&path).map_err(|source| Error::File { path: path.clone(), source })?;
    let wrong = |problem: String| Error::Answer { command: path.display().to_string(), problem };
    let manifest: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let version = manifest["dependencies"]["componentize-qjs"].as_str();
    let version = version.ok_or_else(|| wrong("no version of componentize-qjs".to_owned()))?;
    Ok(cache_folder()?.join("npm").join(format!("componentize-qjs-{version}")))
}

fn name(folder: &std::path::Path) -> String {
    folder.file_name().unwrap_or(OsStr::new("npm")).to_string_lossy().into_owned()
}
