//! The program is built; then a chip nobody makes (a profile) and a planner it has never seen (a `.wasm`) are dropped
//! into folders. Both are used, and taking them away is noticed.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::program::{self, shardwright};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn drop_profile(folder: &Path, ops: u64) {
    let profile = json!({
        "schema": 1, "name": "fictional", "title": "Fictional 9000", "vendor": "Nobody",
        "aliases": ["F-9000"], "shim": "nobody", "kind": "npu",
        "limits": [{"name": "ops", "value": ops, "provenance": "declared", "note": "made up"}]
    });
    fs::write(folder.join("fictional.json"), profile.to_string()).expect("written");
}

/// The example planner, built with the rest, under a name nothing in the program knows.
fn drop_planner(folder: &Path) {
    let built = program::folder().join("planners/even.wasm");
    fs::copy(&built, folder.join("third.wasm"))
        .unwrap_or_else(|error| panic!("{}: {error}", built.display()));
}

fn layered_shards(plan: &Value) -> usize {
    let shards = plan["shards"].as_array().expect("a list of shards");
    shards.iter().filter(|shard| shard["component"] == "decoder").count()
}

#[test]
fn a_profile_dropped_into_a_folder_is_a_chip() {
    let folder = folder();
    let plan =
        |soc: &str| shardwright(["plan", DEMO_MODEL, "--soc", soc, "--profiles"]).argument(folder.path());
    let (_, stderr) = plan("fictional").refuses();
    assert!(stderr.contains("fictional"), "{stderr}");

    drop_profile(folder.path(), 100_000);
    let whole = plan("fictional").json();
    assert_eq!(whole["soc"], "fictional");
    assert_eq!(plan("f 9000").json(), whole, "an alias is the same chip");

    drop_profile(folder.path(), 400);
    let cut = plan("fictional").json();
    assert!(layered_shards(&cut) > layered_shards(&whole), "the limit of the file decides: {cut}");
    assert!(cut["limits"].to_string().contains("declared"), "{cut}");

    fs::remove_file(folder.path().join("fictional.json")).expect("removed");
    plan("fictional").refuses();
}

#[test]
fn a_planner_dropped_into_a_folder_plans() {
    let folder = folder();
    let plan = |pieces: &str| {
        shardwright(["plan", DEMO_MODEL, "--soc", "mt6989", "--planner", "third", "--strict"])
            .arguments(["--planner-option", &format!("pieces={pieces}"), "--planners"])
            .argument(folder.path())
    };
    let (_, stderr) = plan("2").refuses();
    assert!(stderr.contains("third"), "{stderr}");

    drop_planner(folder.path());
    for pieces in [2, 4] {
        let report = plan(&pieces.to_string()).json();
        assert_eq!(report["planner"]["name"], "even", "{report}");
        assert_eq!(layered_shards(&report), pieces, "{report}");
    }

    fs::remove_file(folder.path().join("third.wasm")).expect("removed");
    plan("2").refuses();
}

#[test]
fn a_dropped_planner_and_a_dropped_chip_carry_an_answer() {
    let folder = folder();
    drop_profile(folder.path(), 2600);
    drop_planner(folder.path());
    let answer = shardwright([
        "run",
        DEMO_MODEL,
        "--soc",
        "fictional",
        "--on",
        "cpu",
        "--chat",
        "--greedy",
        "--profiles",
    ])
    .argument(folder.path())
    .argument("--planners")
    .argument(folder.path())
    .arguments(["--planner", "third", "--planner-option", "pieces=3", "--prompt", "What is politics?"])
    .succeeds();
    assert!(answer.starts_with("A strife of interests masquerading as a contest of principles."), "{answer}");
}

#[test]
fn a_recorded_request_can_be_replayed_on_a_planner() {
    let folder = folder();
    drop_planner(folder.path());
    let request = folder.path().join("request.json");
    shardwright(["plan", DEMO_MODEL, "--soc", "mt6989", "--write-request"]).argument(&request).succeeds();
    let report = shardwright(["planner", "check"])
        .argument(folder.path().join("third.wasm"))
        .argument("--request")
        .argument(&request)
        .json();
    assert_eq!(report["name"], "even", "{report}");
}

#[test]
fn profiles_that_are_wrong_are_named() {
    for (text, says) in [
        ("{", "fictional.json"),
        (r#"{"schema": 2}"#, "fictional.json"),
        (r#"{"schema": 1, "name": "fictional", "surprise": 1}"#, "surprise"),
    ] {
        let folder = folder();
        fs::write(folder.path().join("fictional.json"), text).expect("written");
        let (_, stderr) = shardwright(["plan", DEMO_MODEL, "--soc", "fictional", "--profiles"])
            .argument(folder.path())
            .refuses();
        assert!(stderr.contains(says), "{text}: {stderr}");
    }
}
