//! What a phone ships must stay small: the runtime feature of the public crate pulls in no compiler, no checkpoint
//! reader and no builder.

use std::collections::BTreeSet;
use std::process::Command;

use shardwright_tests::tree;

/// The names of all packages below `package`, without its test dependencies.
fn packages_below(package: &str, flags: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(tree::root())
        .args(["tree", "--package", package, "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .args(flags)
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listing = String::from_utf8(output.stdout).expect("names of packages");
    listing.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn assert_small(packages: &BTreeSet<String>) {
    let too_much: Vec<_> = packages
        .iter()
        .filter(|name| {
            name.starts_with("cranelift")
                || matches!(
                    name.as_str(),
                    "shardwright-models"
                        | "shardwright-build"
                        | "shardwright-reference"
                        | "shardwright-planner-build"
                        | "safetensors"
                        | "wit-component"
                        | "wasm-encoder"
                )
        })
        .collect();
    assert!(too_much.is_empty(), "the runtime pulls in {too_much:?}");
}

#[test]
fn the_default_build_of_the_public_crate_is_the_runtime_alone() {
    let packages = packages_below("shardwright", &[]);
    assert!(packages.contains("shardwright-runtime"), "{packages:?}");
    assert_small(&packages);
    assert_eq!(packages, packages_below("shardwright", &["--no-default-features", "--features", "runtime"]));
}

#[test]
fn planning_without_its_compiler_has_no_compiler() {
    let packages = packages_below("shardwright-planning", &["--no-default-features"]);
    assert!(packages.contains("wasmtime"), "packs are run by an interpreter: {packages:?}");
    assert_small(&packages);
}
