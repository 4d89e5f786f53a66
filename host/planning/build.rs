//! Lists the profiles that are shipped, embeds the built-in planner, where there is a compiler to
//! run it with, and tells the sandbox its host.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    list_profiles();
    #[cfg(feature = "compiler")]
    embed();
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// Every file of `plugins/profiles` is built in, sorted by name.
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

#[cfg(feature = "compiler")]
fn embed() {
    println!("cargo::rustc-env=SHARDWRIGHT_HOST_TARGET={}", variable("TARGET"));

    let workspace = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    for source in ["planner/src", "planner/Cargo.toml", "plugins/generic", "wit/v0.2"] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    // OUT_DIR is TARGET/PROFILE/build/PACKAGE/out. Planners share one directory beside the
    // profiles, so that a second profile or a test builds nothing again.
    let planners = out.ancestors().nth(4).unwrap_or(&out).join("planners");
    let built = shardwright_planner_build::build(&workspace.join("plugins/generic/Cargo.toml"), &planners);
    let component = built.unwrap_or_else(|error| {
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
        if let Some(help) = error.help() {
            println!("cargo::error=help: {help}");
        }
        std::process::exit(1);
    });
    if let Err(error) = std::fs::write(out.join("generic.wasm"), component) {
        panic!("cannot write the built-in planner: {error}");
    }
}
