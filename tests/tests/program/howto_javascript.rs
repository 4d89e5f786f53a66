//! Follows the page for planners in JavaScript: a component is made of the example, checked and used. It cuts where the
//! example in Rust does, which was written apart.

use std::process::Command;

use serde_json::Value;
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE};
use shardwright_tests::program::{self, shardwright};
use shardwright_tests::{skipped, tree};

/// Where `cargo xtask test` says that the program from npm is.
const VARIABLE: &str = "SHARDWRIGHT_COMPONENTIZE_QJS";

/// The cuts of a plan: component, layers, target.
fn cuts(plan: &Value) -> Vec<[Value; 3]> {
    let shards = plan["shards"].as_array().expect("a list of shards").iter();
    shards.map(|shard| ["component", "layers", "target"].map(|member| shard[member].clone())).collect()
}

#[test]
fn the_example_in_javascript_cuts_as_the_one_in_rust() {
    let Some(tool) = std::env::var_os(VARIABLE) else {
        skipped("a planner in JavaScript: nothing to make a component with");
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let component = folder.path().join("even-js.wasm");
    let package: Value =
        serde_json::from_str(&tree::read("plugins/javascript/package.json".as_ref())).expect("JSON");
    let build = package["scripts"]["build"].as_str().expect("how it is built");
    let mut words = build.split_whitespace();
    assert_eq!(words.next(), Some("componentize-qjs"), "{build}");
    let arguments = words
        .map(|word| if word == "even-js.wasm" { component.clone().into_os_string() } else { word.into() });
    let mut command = Command::new(tool);
    let output = command.current_dir(tree::root().join("plugins/javascript")).args(arguments).output();
    let output = output.expect("node is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let checked = shardwright(["planner", "check"]).argument(&component).json();
    assert_eq!(checked["name"], "even-js", "{checked}");
    assert!(checked["log"].to_string().contains("shards on sm8850"), "{checked}");
    for limit in ["ops=300", "ops=100000"] {
        let plan = |planner: &std::path::Path| {
            let plan = shardwright(["plan", DEMO_MODEL, "--soc", "mt6989", "--limit", limit, "--planner"]);
            plan.argument(planner).json()
        };
        let (own, rust) = (plan(&component), plan(&program::folder().join("planners/even.wasm")));
        assert_eq!(own["planner"]["name"], "even-js", "{own}");
        assert_eq!(cuts(&own), cuts(&rust), "{limit}");
    }
    // A record that is thrown is a refusal, in the planner's words.
    let refused = shardwright(["plan", EMBEDDING_FIXTURE, "--planner"]).argument(&component);
    let (code, stderr) = refused.refuses();
    assert!(code == 7 && stderr.contains("this planner is for models that decode"), "{code}: {stderr}");
}
