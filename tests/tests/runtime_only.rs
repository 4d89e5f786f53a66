//! What a phone ships must stay small: the runtime feature of the public crate pulls in no compiler, no checkpoint
//! reader and no builder.

use std::collections::BTreeSet;
use std::process::Command;

use shardwright_tests::tree;

/// The names of all packages below `package`, without what only runs at build time or in tests.
fn packages_below(package: &str, flags: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(tree::root())
        .args([
            "tree",
            "--package",
            package,
            "--edges",
            "normal,no-proc-macro",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .args(flags)
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listing = String::from_utf8(output.stdout).expect("names of packages");
    listing.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// What no program that only runs models may contain.
const TOO_MUCH: &[&str] = &[
    "cranelift-codegen",
    "cranelift-frontend",
    "wasmtime-internal-cranelift",
    "wit-component",
    "safetensors",
    "shardwright-models",
    "shardwright-build",
    "shardwright-reference",
    "shardwright-planner-build",
];

fn assert_small(packages: &BTreeSet<String>) {
    let too_much: Vec<_> = TOO_MUCH.iter().filter(|name| packages.contains(**name)).collect();
    assert!(too_much.is_empty(), "the runtime pulls in {too_much:?}");
}

#[test]
fn the_default_build_of_the_public_crate_is_the_runtime_alone() {
    let packages = packages_below("shardwright", &[]);
    assert!(packages.contains("shardwright-runtime"), "{packages:?}");
    assert_small(&packages);
    let of_cranelift: Vec<_> = packages.iter().filter(|name| name.starts_with("cranelift")).collect();
    assert!(of_cranelift.is_empty(), "{of_cranelift:?}");
    assert_eq!(packages, packages_below("shardwright", &["--no-default-features", "--features", "runtime"]));
}

/// The interpreter shares some containers with the compiler (`cranelift-entity` and the like), not its code.
#[test]
fn planning_without_its_compiler_has_no_compiler() {
    let packages = packages_below("shardwright-planning", &["--no-default-features"]);
    assert!(packages.contains("wasmtime"), "packs are run by an interpreter: {packages:?}");
    assert_small(&packages);
}
