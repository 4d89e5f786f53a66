//! Collects the files that `shardwright shim new` and `planner new` write: the examples of this
//! tree, and the crates they depend on with a self-contained manifest.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../..");
    let workspace = root.join("Cargo.toml");
    println!("cargo::rerun-if-changed={}", workspace.display());
    let workspace = fs::read_to_string(workspace).expect("the workspace's manifest");

    let mut gathered = Gathered { workspace, lists: String::new() };
    let shims = root.join("vendor-shims");
    let vocabulary = root.join("host/vocabulary");
    let amounts = root.join("planner/amounts");
    gathered.list("SHIM_IN_C", &[(shims.join("template/c"), ""), (shims.join("abi/include"), "")], &[]);
    gathered.list(
        "SHIM_IN_RUST",
        &[
            (shims.join("template/rust/src"), "src/"),
            (shims.join("abi/src"), "abi/src/"),
            (vocabulary.join("src"), "vocabulary/src/"),
            (amounts.join("src"), "amounts/src/"),
        ],
        &[(shims.join("abi"), "abi/"), (vocabulary, "vocabulary/"), (amounts.clone(), "amounts/")],
    );
    let planner = root.join("planner");
    gathered.list(
        "PLANNER",
        &[
            (root.join("plugins/example-policy/src"), "src/"),
            (planner.join("src"), "sdk/src/"),
            (amounts.join("src"), "amounts/src/"),
            (root.join("wit"), "wit/"),
        ],
        &[(planner, "sdk/"), (amounts, "amounts/")],
    );
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    fs::write(out.join("starter.rs"), gathered.lists).expect("the build's own folder");
}

struct Gathered {
    /// Text of the workspace's manifest.
    workspace: String,
    /// Constants of the form `&[(path in the new folder, text)]`.
    lists: String,
}

impl Gathered {
    fn list(&mut self, name: &str, folders: &[(PathBuf, &str)], packages: &[(PathBuf, &str)]) {
        let mut entries = String::new();
        for (folder, place) in folders {
            for path in files(folder) {
                let relative =
                    path.strip_prefix(folder).expect("a file below it").to_str().expect("a plain name");
                let path = path.to_str().expect("a plain path");
                writeln!(entries, "    ({:?}, include_str!({path:?})),", format!("{place}{relative}"))
                    .expect("memory");
            }
        }
        for (package, place) in packages {
            let manifest = package.join("Cargo.toml");
            println!("cargo::rerun-if-changed={}", manifest.display());
            let manifest = alone(&fs::read_to_string(manifest).expect("a manifest"), &self.workspace);
            writeln!(entries, "    ({:?}, {manifest:?}),", format!("{place}Cargo.toml")).expect("memory");
        }
        writeln!(self.lists, "pub const {name}: &[(&str, &str)] = &[\n{entries}];").expect("memory");
    }
}

/// Returns the files below a folder except tests, sorted.
fn files(folder: &Path) -> Vec<PathBuf> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.retain(|path| path.file_name().is_some_and(|name| name != "tests.rs" && name != "tests"));
    let below = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    paths.into_iter().flat_map(below).collect()
}

/// Makes a manifest self-contained: replaces `NAME.workspace = true` by the workspace's own lines.
/// The sections of tests and lints are left out.
fn alone(manifest: &str, workspace: &str) -> String {
    let mut text = String::new();
    let mut kept = true;
    for line in manifest.lines() {
        if line.starts_with('[') {
            kept = !matches!(line, "[dev-dependencies]" | "[lints]");
        }
        let inherited = line.split_once(".workspace = true").map(|(name, _)| format!("{name} = "));
        let line = match &inherited {
            Some(begin) => {
                let found = workspace.lines().find(|line| line.starts_with(begin.as_str()));
                found.unwrap_or_else(|| panic!("the workspace has no `{begin}`"))
            }
            None => line,
        };
        // These crates are next to the packages that depend on them.
        let line = line.replace("\"host/vocabulary\"", "\"../vocabulary\"");
        let line = line.replace("\"planner/amounts\"", "\"../amounts\"");
        if kept {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}
