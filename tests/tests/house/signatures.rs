//! Bundles that a user names are opened under the signature rules.

use std::path::Path;

use shardwright_tests::rust_source::{code_only, test_part};
use shardwright_tests::{skipped, tree};

/// Crates that receive bundle paths from users.
const CRATES: &[&str] =
    &["build", "checkpoints", "cli", "delivery", "doctor", "shardwright", "tune", "verify"];

/// Ways to open a bundle without checking signatures.
const WITHOUT_RULES: &[&str] =
    &["Bundle::open(", "Bundle::open_section(", "Bundle::open_volumes(", "Trust::off()"];

/// Files that may use them, with the reason.
const MAY: &[(&str, &str)] = &[
    ("host/doctor/src/planners.rs", "a pack is made of the planner that a user signs"),
    ("host/doctor/src/shims.rs", "shims are listed, whoever signed them"),
    ("host/doctor/src/trust.rs", "what is signed, or whose signature is shown, need not have one"),
    ("host/shardwright/src/goldens.rs", "the bundle was written just before"),
];

#[test]
fn a_bundle_is_opened_by_the_rules_of_signatures() {
    let Some(files) = tree::rust_files() else {
        return skipped("how bundles are opened: no git repository to list the project's files");
    };
    let (mut found, mut used) = (Vec::new(), 0);
    for path in files {
        let is_asked = CRATES.iter().any(|name| path.starts_with(Path::new("host").join(name).join("src")));
        let is_test = path.file_name().is_some_and(|name| name == "tests.rs");
        if !is_asked || is_test || MAY.iter().any(|(file, _)| path.ends_with(file)) {
            continue;
        }
        let source = tree::read(&path);
        let code = code_only(source.strip_suffix(test_part(&source)).unwrap_or(&source));
        used += code.matches("open_trusting(").count();
        let ways = WITHOUT_RULES.iter().filter(|way| code.contains(**way));
        found.extend(ways.map(|way| format!("{}: `{way}`", path.display())));
    }
    assert!(found.is_empty(), "bundles opened without the rules:\n  {}", found.join("\n  "));
    assert!(used > 5, "{used} bundles are opened by the rules");
}
