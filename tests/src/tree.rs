//! The project's files, as git lists them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder of the root manifest: the nearest folder above the test's crate with a lock
/// file.
pub fn root() -> PathBuf {
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = crate_folder.ancestors().find(|folder| folder.join("Cargo.lock").is_file());
    root.expect("the crate of the tests is in the workspace").to_owned()
}

/// Returns every file that git tracks or would track (new, not ignored), relative to the root and
/// sorted. Returns `None` without git or without a repository, for example in an unpacked archive.
pub fn files() -> Option<Vec<PathBuf>> {
    let output = Command::new("git")
        .current_dir(root())
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    let listing = String::from_utf8(output.stdout).ok()?;
    let mut files: Vec<_> = listing
        .split('\0')
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        // Deleted in the folder, but still in the index.
        .filter(|path| root().join(path).is_file())
        .collect();
    files.sort();
    files.dedup();
    Some(files)
}

/// Returns the Rust sources among [`files`].
pub fn rust_files() -> Option<Vec<PathBuf>> {
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    Some(files()?.into_iter().filter(is_rust).collect())
}

/// Reads a text file of the tree.
///
/// # Panics
/// If it cannot be read or is not UTF-8, because these are the project's own files.
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
