//! External dependencies: licences that allow shipping, one registry, and one version of the engine
//! that runs planners.

use std::collections::BTreeSet;
use std::process::Command;

use cargo_metadata::{CargoOpt, MetadataCommand};
use shardwright_tests::tree;

/// Licences whose terms a shipped program can meet by naming the authors. An `OR` needs one of
/// them, an `AND` all.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "MIT",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "Unlicense",
    "CC0-1.0",
    "0BSD",
    "MIT-0",
    "BSL-1.0",
];

/// Packages under other licences, with the licence and why the package may stay.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "cbindgen",
        "MPL-2.0",
        "writes the header of the C interface, for a test alone; used unchanged, and no program contains it",
    ),
    (
        "generational-arena",
        "MPL-2.0",
        "through abi_stable; used unchanged, and its licence binds changes to its own files only",
    ),
    ("symphonia", "MPL-2.0", SYMPHONIA),
    ("symphonia-bundle-mp3", "MPL-2.0", SYMPHONIA),
    ("symphonia-codec-vorbis", "MPL-2.0", SYMPHONIA),
    ("symphonia-common", "MPL-2.0", SYMPHONIA),
    ("symphonia-core", "MPL-2.0", SYMPHONIA),
    ("symphonia-format-ogg", "MPL-2.0", SYMPHONIA),
    ("symphonia-metadata", "MPL-2.0", SYMPHONIA),
];

/// Why the packages of Symphonia may stay.
const SYMPHONIA: &str = "behind the feature `mp3-ogg` of preprocessing, off by default; used unchanged, and \
                         its licence binds changes to its own files only";

fn metadata() -> cargo_metadata::Metadata {
    MetadataCommand::new()
        .manifest_path(tree::root().join("Cargo.toml"))
        .features(CargoOpt::AllFeatures)
        // This system only: the test must not require downloading the crates of other systems.
        .other_options(["--filter-platform".to_owned(), "x86_64-unknown-linux-gnu".to_owned()])
        .exec()
        .expect("cargo metadata")
}

/// Checks whether a licence expression is allowed: `A OR B`, `A AND B`, `(A OR B) AND C`, `A/B`.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.trim().replace('/', " OR ");
    if let Some((left, right)) = split_at(&expression, " AND ") {
        return is_allowed(&left) && is_allowed(&right);
    }
    if let Some((left, right)) = split_at(&expression, " OR ") {
        return is_allowed(&left) || is_allowed(&right);
    }
    match expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(inner) => is_allowed(inner),
        None => LICENCES.contains(&expression.as_str()),
    }
}

/// Splits an expression at the first operator outside brackets.
fn split_at(expression: &str, operator: &str) -> Option<(String, String)> {
    let mut depth = 0;
    for (at, character) in expression.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ' ' if depth == 0 && expression[at..].starts_with(operator) => {
                return Some((expression[..at].to_owned(), expression[at + operator.len()..].to_owned()));
            }
            _ => {}
        }
    }
    None
}

#[test]
fn every_dependency_may_be_shipped() {
    let metadata = metadata();
    let wrong: Vec<_> = metadata
        .packages
        .iter()
        .filter(|package| {
            let licence = package.license.as_deref().unwrap_or_default();
            let excepted =
                EXCEPTIONS.iter().any(|(name, terms, _)| package.name.as_str() == *name && licence == *terms);
            !is_allowed(licence) && !excepted
        })
        .map(|package| format!("{} {}: {:?}", package.name, package.version, package.license))
        .collect();
    assert!(wrong.is_empty(), "licences to look at:\n  {}", wrong.join("\n  "));
}

#[test]
fn dependencies_come_from_the_registry_or_from_this_tree() {
    let wrong: Vec<_> = metadata()
        .packages
        .into_iter()
        .filter(|package| {
            package.source.as_ref().map_or_else(
                || !package.manifest_path.as_std_path().starts_with(tree::root()),
                |source| !source.is_crates_io(),
            )
        })
        .map(|package| format!("{} {}", package.name, package.version))
        .collect();
    assert!(wrong.is_empty(), "from elsewhere: {wrong:?}");
}

/// Dependencies without releases for years. `docs/security.md` has the reason for each.
const OLD: [&str; 5] = ["abi_stable", "generational-arena", "paste", "claxon", "hound"];

#[test]
fn old_dependencies_are_listed_with_reasons() {
    let page = tree::read("docs/security.md".as_ref());
    let (_, section) = page.split_once("## Dependencies without releases").expect("a section");
    let metadata = metadata();
    for name in OLD {
        assert!(section.contains(&format!("\n| `{name}` | ")), "{name} has no reason");
        let is_used = metadata.packages.iter().any(|package| package.name.as_str() == name);
        assert!(is_used, "{name} is gone: remove its row");
    }
    // Only tests use this one.
    for package in metadata.workspace_packages() {
        let mut uses = package.dependencies.iter().filter(|dependency| dependency.name == "hound");
        assert!(uses.all(|own| own.kind == cargo_metadata::DependencyKind::Development), "{}", package.name);
    }
}

/// A compiled planner only runs in the exact engine version that compiled it.
#[test]
fn there_is_one_version_of_the_engine() {
    let versions: BTreeSet<_> = metadata()
        .packages
        .iter()
        .filter(|package| package.name.as_str() == "wasmtime")
        .map(|package| package.version.to_string())
        .collect();
    assert_eq!(versions.len(), 1, "{versions:?}");
}

#[test]
fn licence_expressions_are_read_with_brackets() {
    for (expression, allowed) in [
        ("MIT", true),
        ("MIT/Apache-2.0", true),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND GPL-3.0", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression), allowed, "{expression}");
    }
}

/// Returns the registry crates that a cargo command compiles, each with its kind, mode, features
/// and optimisation level. The pinned cargo lists them only as an unstable feature.
fn compiled_by(command: &[&str]) -> BTreeSet<String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(tree::root()).env("RUSTC_BOOTSTRAP", "1").args(command);
    let output =
        cargo.args(["--unit-graph", "-Zunstable-options", "--locked"]).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let graph: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a graph of units");
    let units = graph["units"].as_array().expect("units");
    let crates = units.iter().filter_map(|unit| {
        let package = unit["pkg_id"].as_str()?.rsplit_once("crates.io-index#")?.1;
        let (mode, features) = (&unit["mode"], &unit["features"]);
        let (kind, level) = (&unit["target"]["kind"], &unit["profile"]["opt_level"]);
        Some(format!("{package} {kind} {mode} {features} {level}"))
    });
    crates.collect()
}

/// `shardwright-test-features` gives dependencies the features of a build of all members. A test
/// run then compiles none of the crates of the demo or the program again. Without the planner
/// compiler, the crates of its engine have other features.
#[test]
fn a_build_of_the_program_compiles_dependencies_as_the_tests_do() {
    const PROGRAM: [&str; 9] = [
        "build",
        "--package",
        "shardwright-cli",
        "--package",
        "shardwright-worker",
        "--package",
        "shardwright-shim-cpu-library",
        "--package",
        "shardwright-test-features",
    ];
    let tests =
        compiled_by(&["test", "--no-run", "--workspace", "--exclude", "shardwright-planning-runtime-only"]);
    let again = |command: &[&str]| -> Vec<String> {
        // This crate is used only by the package of features.
        let few = |unit: &String| !unit.starts_with("allocator-api2@");
        compiled_by(command).difference(&tests).filter(|unit| few(unit)).cloned().collect()
    };
    assert_eq!(again(&PROGRAM), Vec::<String>::new());
    let engine = ["wasmtime", "pulley-interpreter", "gimli", "object"];
    let demo = again(&[&PROGRAM[..], &["--no-default-features"]].concat());
    let further: Vec<_> =
        demo.iter().filter(|unit| !engine.iter().any(|name| unit.starts_with(name))).collect();
    assert!(further.is_empty(), "compiled again by a test run: {further:?}");
}
