//! The ten-line program of the first page, built like an application: in a workspace of its own,
//! with cargo's default profile for development. The profiles of this workspace optimise the CPU
//! shim, but applications do not inherit them. A test starts the program. Its first build takes
//! minutes, so only thorough runs include it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::suites;
use crate::error::Error;
use crate::process;
use crate::vendor::cache_folder;
use crate::workspace::{self, Workspace};

/// Variable with the path of the program, for tests.
const VARIABLE: &str = "SHARDWRIGHT_TEN_LINES";

/// The page with the source of the program.
const PAGE: &str = "README.md";

/// Name of the application.
const NAME: &str = "ten-lines";

/// Returns the target folder of the application, which serves later runs.
fn target(workspace: &Workspace) -> PathBuf {
    workspace.target.join(NAME)
}

/// Passes the program's path to a command in a thorough run.
pub fn offer(workspace: &Workspace, command: &mut Command) {
    if suites::is_thorough() {
        let file = format!("debug/{NAME}{}", std::env::consts::EXE_SUFFIX);
        command.env(VARIABLE, target(workspace).join(file));
    }
}

/// Builds the program in a thorough run. Otherwise reports that it is left out.
pub fn build(workspace: &Workspace) -> Result<(), Error> {
    if !suites::is_thorough() {
        eprintln!("the ten lines of {PAGE} as an application: left out; {}=1 runs them", suites::THOROUGH);
        return Ok(());
    }
    let page = workspace.root.join(PAGE);
    let text = workspace::read(&page)?;
    let text = String::from_utf8_lossy(&text);
    let Some(source) = program_in(&text) else {
        return Err(Error::Unexpected { path: page, problem: "no program below `In an app`".to_owned() });
    };
    let folder = folder(workspace)?;
    workspace::replace(&folder.join("src/main.rs"), source.as_bytes())?;
    workspace::replace(&folder.join("Cargo.toml"), manifest(&workspace.root).as_bytes())?;
    // The versions of this tree, whose crates were downloaded to build it.
    let lock = workspace::read(&workspace.root.join("Cargo.lock"))?;
    workspace::replace(&folder.join("Cargo.lock"), &lock)?;
    let mut command = process::cargo();
    command.current_dir(&folder).args(["build", "--offline", "--target-dir"]).arg(target(workspace));
    // Lints are for the members of this workspace.
    command.env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("CLIPPY_ARGS");
    process::run(&mut command)
}

/// Returns the folder of the application. It is outside the tree, so that no configuration of the
/// tree applies. Its name has the path of the tree, because several clones use one cache.
fn folder(workspace: &Workspace) -> Result<PathBuf, Error> {
    let tree = workspace.root.display().to_string().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    Ok(cache_folder()?.join(NAME).join(tree))
}

/// Returns the manifest of the application: as on the page of the public crate, with the CPU shim
/// linked into the program. It changes no profile.
fn manifest(root: &Path) -> String {
    // JSON and TOML write strings in the same way.
    let path = Value::from(root.join("host/shardwright").display().to_string());
    format!(
        "[package]\nname = \"{NAME}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nshardwright = {{ path = {path}, features = [\"static-cpu\"] }}\n"
    )
}

/// Returns the first program below the heading `In an app`.
fn program_in(page: &str) -> Option<&str> {
    let (_, section) = page.split_once("\n## In an app\n")?;
    let (_, program) = section.split_once("```rust,no_run\n")?;
    program.split_once("```").map(|(program, _)| program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_the_page_becomes_an_application() {
        let other = "# A page\n\n```rust,no_run\nfn other() {}\n```\n";
        let page = format!("{other}\n## In an app\n\n```rust,no_run\nfn main() {{}}\n```\n\nText.\n");
        assert_eq!(program_in(&page), Some("fn main() {}\n"));
        assert_eq!(program_in(other), None);
        let manifest = manifest(Path::new("/w/\"a\""));
        let dependency = r#"shardwright = { path = "/w/\"a\"/host/shardwright", features = ["static-cpu"] }"#;
        assert!(manifest.contains("\n[workspace]\n") && manifest.ends_with(&format!("{dependency}\n")));
        assert!(!manifest.contains("profile"), "{manifest}");
    }
}
