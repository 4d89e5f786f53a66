//! Generates the list of built-in profiles, and passes on the target that the sandbox compiles for.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    list_profiles();
    println!("cargo::rustc-env=SHARDWRIGHT_HOST_TARGET={}", variable("TARGET"));
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// Generates the list of built-in profiles: every file of `plugins/profiles`, sorted by name.
fn list_profiles() {
    let folder = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../../plugins/profiles");
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap_or_else(|error| panic!("{}: {error}", folder.display())).path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    let lines = files.iter().map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = path.canonicalize().unwrap_or_else(|error| panic!("{name}: {error}"));
        format!("({name:?}, include_str!({:?})),\n", path.display().to_string())
    });
    let list = format!("&[\n{}]\n", lines.collect::<String>());
    let out = PathBuf::from(variable("OUT_DIR")).join("profiles.rs");
    std::fs::write(&out, list).unwrap_or_else(|error| panic!("{}: {error}", out.display()));
}
