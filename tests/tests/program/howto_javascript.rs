//! Follows the page for planners in JavaScript: a component is built from the example, checked and
//! used. It cuts like the example in Rust, which was written independently.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE};
use shardwright_tests::program::{self, shardwright};
use shardwright_tests::{skipped, tree};

/// Variable that `cargo xtask test` sets to the path of the program from npm.
const VARIABLE: &str = "SHARDWRIGHT_COMPONENTIZE_QJS";

/// Returns the cuts of a plan: segments and target of each shard.
fn cuts(plan: &Value) -> Vec<[Value; 2]> {
    let shards = plan["shards"].as_array().expect("a list of shards").iter();
    shards.map(|shard| ["segments", "target"].map(|member| shard[member].clone())).collect()
}

/// Builds into the folder as `package.json` specifies. Returns `None` if the tools are missing.
fn built(script: &str, folder: &Path) -> Option<PathBuf> {
    let Some(tool) = std::env::var_os(VARIABLE) else {
        skipped("a planner in JavaScript: nothing to make a component with");
        return None;
    };
    let package: Value =
        serde_json::from_str(&tree::read("plugins/javascript/package.json".as_ref())).expect("JSON");
    let build = package["scripts"][script].as_str().expect("how it is built");
    let mut words: Vec<&str> = build.split_whitespace().collect();
    assert_eq!(words.remove(0), "componentize-qjs", "{build}");
    let component = folder.join(words.pop().expect("the component"));
    let mut command = Command::new(tool);
    let output =
        command.current_dir(tree::root().join("plugins/javascript")).args(words).arg(&component).output();
    let output = output.expect("node is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(component)
}

/// Checks that a planner keeps every rule, and returns its check.
fn keeps_every_rule(component: &Path, name: &str) -> Value {
    let checked = shardwright(["planner", "check"]).argument(component).json();
    assert_eq!((&checked["name"], &checked["verdict"]), (&name.into(), &"held".into()), "{checked}");
    // A planner that refuses everything keeps the rules too.
    let rules = checked["rules"].as_array().expect("rules");
    assert!(rules.iter().all(|rule| rule["verdict"] == "held"), "{checked}");
    checked
}

#[test]
fn the_example_in_javascript_cuts_as_the_one_in_rust() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(component) = built("build", folder.path()) else { return };

    keeps_every_rule(&component, "even-js");
    let request = folder.path().join("request.json");
    shardwright(["plan", "--no-measure", DEMO_MODEL, "--soc", "mt6989", "--write-request"])
        .argument(&request)
        .succeeds();
    let replayed = shardwright(["planner", "replay"]).argument(&request).argument("--planner");
    let replayed = replayed.argument(&component).json();
    assert!(replayed["log"].to_string().contains("shards on mt6989"), "{replayed}");
    for limit in ["ops=300", "ops=100000"] {
        let plan = |planner: &Path| {
            let plan = ["plan", "--no-measure", DEMO_MODEL, "--soc", "mt6989", "--limit", limit];
            shardwright(plan).argument("--planner").argument(planner).json()
        };
        let (own, rust) = (plan(&component), plan(&program::folder().join("planners/even.wasm")));
        assert_eq!(own["planner"]["name"], "even-js", "{own}");
        assert_eq!(cuts(&own), cuts(&rust), "{limit}");
    }
    // A thrown record is a refusal, with the planner's message.
    let refused = shardwright(["plan", "--no-measure", EMBEDDING_FIXTURE, "--planner"]).argument(&component);
    refused.refuses_with(7, &["this planner is for models that decode"]);
}

/// Formats in 4 bits, in 4 bits with 8 in one role, and in 8 bits.
const FORMATS: [&str; 3] = [
    "w4-per-channel/a16-symmetric/a16",
    "w4-per-channel[mlp-output=w8-per-channel]/a16-symmetric/a16",
    "w8-per-channel/a16-symmetric/a16",
];

#[test]
fn a_policy_in_javascript_asks_the_built_in_solver() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(policy) = built("build-policy", folder.path()) else { return };
    let joined = folder.path().join("policy.wasm");
    let compose =
        |policy: &Path| shardwright(["planner", "compose", "-o"]).argument(&joined).argument(policy);
    let (_, stderr) = shardwright(["planner", "check"]).argument(&policy).refuses();
    assert!(stderr.contains("shardwright:planner/api"), "by itself it has an unsatisfied import: {stderr}");
    compose(&policy).succeeds();
    let checked = keeps_every_rule(&joined, "policy-js");
    let options = checked["options"].as_array().expect("the solver's options");
    assert!(options.iter().any(|option| option["name"] == "order"), "{checked}");

    // The policy of the example in Rust, which was written with the SDK.
    let plan = |planner: &Path| {
        let run =
            shardwright(["plan", "--no-measure", DEMO_MODEL, "--soc", "sm8850", "--on", "cpu", "--planner"]);
        run.argument(planner).arguments(FORMATS.iter().flat_map(|formats| ["--formats", *formats])).json()
    };
    let (own, rust) = (plan(&joined), plan(&program::folder().join("planners/example-policy.wasm")));
    assert_eq!(cuts(&own), cuts(&rust));
    let formats = |plan: &Value| -> Vec<String> {
        let shards = plan["shards"].as_array().expect("shards").iter();
        let layers = shards.flat_map(|shard| shard["by_layer"].as_array().expect("layers"));
        let decoder = layers.filter(|layer| layer["component"] == "decoder");
        decoder.map(|layer| layer["formats"].as_str().expect("formats").to_owned()).collect()
    };
    assert_eq!(formats(&own), formats(&rust));
    // A mixture by layer and role.
    let expected = (0..8).map(|layer| FORMATS[if layer % 7 == 0 { 2 } else { 1 }]);
    assert_eq!(formats(&own), expected.collect::<Vec<_>>());

    // The built-in solver is also a component, and another one has other options.
    let options = |solver: &Path| {
        compose(&policy).argument("--solver").argument(solver).succeeds();
        // The policy gives orders that not every solver keeps, so the check may fail.
        let check = shardwright(["planner", "check", "--format", "json"]).argument(&joined).outcome();
        let report: Value = serde_json::from_str(&check.stdout).expect("JSON");
        report["options"].clone()
    };
    let [generic, even] =
        ["generic", "even"].map(|name| program::folder().join(format!("planners/{name}.wasm")));
    assert_eq!(options(&generic), checked["options"]);
    assert_ne!(options(&even), checked["options"]);

    compose(&even).refuses_with(4, &["it does not import `shardwright:planner/api@"]);
}
