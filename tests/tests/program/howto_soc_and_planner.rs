//! A fictional chip (a profile) and an unknown planner (a `.wasm`) are added to folders after the
//! program is built. Both are used, and removing them is noticed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::neuron::{A16W8, Shim};
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::{plans, qnn, tree};
use tempfile::TempDir;

use crate::cli_hostile::expect_replaced;

/// Formats for Qualcomm's compiler. The fixture is small, and its decoder stays one shard.
const A16W8_QUALCOMM: &str = "w8-per-channel/a16/a8";

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

/// Copies the example planner `even`, built with the rest, to a file whose name is unknown to the
/// program.
fn drop_planner(folder: &Path) {
    let built = program::folder().join("planners/even.wasm");
    fs::copy(&built, folder.join("third.wasm"))
        .unwrap_or_else(|error| panic!("{}: {error}", built.display()));
}

/// Prepares a plan of the demo model for a chip, with the profiles in a folder.
fn planned(soc: &str, profiles: &Path) -> Run {
    shardwright(["plan", "--no-measure", DEMO_MODEL, "--soc", soc, "--profiles"]).argument(profiles)
}

fn layered_shards(plan: &Value) -> usize {
    let shards = plan["shards"].as_array().expect("a list of shards");
    shards.iter().filter(|shard| plans::holds(shard, "decoder")).count()
}

#[test]
fn a_profile_dropped_into_a_folder_is_a_chip() {
    let folder = folder();
    let plan = |soc: &str| planned(soc, folder.path());
    drop_profile(folder.path(), 100_000);
    let whole = plan("fictional").json();
    assert_eq!(whole["soc"], "fictional");

    drop_profile(folder.path(), 400);
    let cut = plan("f 9000").json();
    assert_eq!(cut["soc"], "fictional", "an alias is the same chip");
    assert!(layered_shards(&cut) > layered_shards(&whole), "the limit of the file decides: {cut}");
    assert!(cut["limits"].to_string().contains("declared"), "{cut}");

    fs::remove_file(folder.path().join("fictional.json")).expect("removed");
    let (_, stderr) = plan("fictional").refuses();
    assert!(stderr.contains("fictional"), "{stderr}");
}

/// A chip's overhead outside computing comes from its profile, and affects the plan.
#[test]
fn a_profile_says_what_calls_and_loading_take() {
    let folder = folder();
    let path = tree::root().join("plugins/profiles/mt6991.json");
    let text = fs::read_to_string(path).expect("a profile");
    let mut profile: Value = serde_json::from_str(&text).expect("JSON");
    profile["name"] = "fictional".into();
    profile["aliases"] = json!([]);
    let overhead = |name: &str, value: u64| json!({"name": name, "value": value, "provenance": "user", "note": "made up"});
    let drop = |profile: &Value| {
        fs::write(folder.path().join("fictional.json"), profile.to_string()).expect("written");
    };
    let plan = |further: &[&str]| planned("fictional", folder.path()).arguments(further);
    let calls = |plan: &Value| plan["totals"]["times"][0]["calls"]["microseconds"].as_u64().expect("calls");
    let decode = |plan: &Value| plan["totals"]["times"][0]["time"]["microseconds"].as_u64().expect("a time");
    profile["overheads"] = json!([]);
    drop(&profile);
    let plain = plan(&[]).json();
    assert_eq!(plain["forecast"]["loading"], Value::Null, "{plain}");
    // No call of an accelerator is free.
    assert!(calls(&plain) > 5, "{plain}");
    let alone = decode(&plain) - calls(&plain);

    profile["overheads"] = json!([
        overhead("call-microseconds", 5),
        overhead("load-microseconds", 1000),
        overhead("load-microseconds-per-mebibyte", 100)
    ]);
    let facts = profile["facts"].as_array_mut().expect("facts");
    facts.push(json!({"name": "polling-microseconds", "value": "30", "provenance": "user"}));
    drop(&profile);
    let called = plan(&[]).json();
    assert_eq!((decode(&called), layered_shards(&called)), (alone + 5, 1), "{called}");
    let loading = called["forecast"]["loading"]["microseconds"].as_u64().expect("a time");
    assert!((1000..10_000).contains(&loading), "{called}");
    let text = plan(&[]).succeeds();
    for words in ["5 µs of it calls", "; loading 1.", "for which callers poll on fictional"] {
        assert!(text.contains(words), "no `{words}` in\n{text}");
    }
    assert!(text.contains("`--limit call-microseconds=30` keeps calls shorter"), "{text}");
    let cut = plan(&["--limit", "call-microseconds=30"]).json();
    assert!(layered_shards(&cut) > 1, "{cut}");
    // Calls of the CPU cost nothing.
    let shards = cut["shards"].as_array().expect("shards").iter();
    let own = shards.filter(|shard| shard["target"] == "fictional").count();
    assert_eq!(calls(&cut), 5 * own as u64, "{cut}");
    assert!(!cut.to_string().contains("callers poll"), "{cut}");
}

#[test]
fn a_planner_dropped_into_a_folder_plans() {
    let folder = folder();
    let plan = |planner: &Path, pieces: usize| {
        shardwright(["plan", "--no-measure", DEMO_MODEL, "--soc", "mt6989", "--strict", "--planner"])
            .argument(planner)
            .arguments(["--planner-option", &format!("pieces={pieces}"), "--planners"])
            .argument(folder.path())
    };
    drop_planner(folder.path());
    let file = folder.path().join("third.wasm");
    for pieces in [2, 4] {
        let report = plan(&file, pieces).json();
        assert_eq!(report["planner"]["name"], "even", "{report}");
        assert_eq!(layered_shards(&report), pieces, "{report}");
    }
    // A planner that is found by its name must have that name.
    let (code, stderr) = plan(Path::new("third"), 2).refuses();
    let said = format!("{} contains planner `even`, not `third`", file.display());
    assert!(code == 6 && stderr.contains(&said), "{code}: {stderr}");

    fs::remove_file(&file).expect("removed");
    let (code, stderr) = plan(Path::new("third"), 2).refuses();
    let said = "planner `third`: not found in the planner directories";
    assert!(code == 3 && stderr.contains(said), "{code}: {stderr}");
}

#[test]
fn a_dropped_planner_and_a_dropped_chip_carry_an_answer() {
    let folder = folder();
    drop_profile(folder.path(), 2600);
    drop_planner(folder.path());
    let run = shardwright(["run", DEMO_MODEL, "--soc", "fictional", "--on", "cpu", "--chat", "--greedy"]);
    let run = run.argument("--profiles").argument(folder.path()).argument("--planners");
    let run = run.argument(folder.path()).argument("--planner").argument(folder.path().join("third.wasm"));
    let run = run.arguments(["--planner-option", "pieces=3"]);
    let answer = run.arguments(["--prompt", "What is politics?"]).succeeds();
    assert!(answer.starts_with("A strife of interests masquerading as a contest of principles."), "{answer}");
}

#[test]
fn a_recorded_request_can_be_replayed_on_a_planner() {
    let folder = folder();
    drop_planner(folder.path());
    let request = folder.path().join("request.json");
    let plan = shardwright(["plan", "--no-measure", DEMO_MODEL, "--soc", "mt6989", "--write-request"]);
    let plan = plan.argument(&request).json();
    let replay = || shardwright(["planner", "replay"]).argument(&request);
    let even = replay().argument("--planner").argument(folder.path().join("third.wasm")).json();
    assert_eq!((&even["name"], &even["chosen"]), (&"even".into(), &"named".into()), "{even}");
    // Without a name, the planner of the request is called. Its plan is the same as before.
    let own = replay().json();
    assert_eq!((&own["name"], &own["chosen"]), (&"mediatek".into(), &"recorded".into()), "{own}");
    let first = format!("mediatek {}, recorded in the request\n", own["version"].as_str().expect("text"));
    assert!(replay().succeeds().starts_with(&first), "{first}");
    assert_eq!(own["shards"].as_array().map(Vec::len), plan["shards"].as_array().map(Vec::len), "{own}");
    // The plan is included in the form of the interface.
    let shards = own["plan"]["shards"].as_array().expect("a plan");
    assert!(!shards.is_empty() && shards.iter().all(|shard| shard["entries"].is_array()), "{own}");
    assert!(own["fuel"].as_u64() > Some(1000) && own["fuel"].as_u64() < own["fuel_limit"].as_u64());
    assert!(own["memory"].as_u64() > Some(1000) && own["memory"].as_u64() < own["memory_limit"].as_u64());
    // The name `generic` is that of the built-in planner, which also answers older requests.
    let generic = replay().arguments(["--planner", "generic"]).json();
    assert_eq!((&generic["name"], &generic["chosen"]), (&"generic".into(), &"named".into()), "{generic}");
    let text = fs::read_to_string(&request).expect("read");
    let recorded = ",\"planner\":\"mediatek\"}";
    fs::write(&request, text.replace(recorded, "}")).expect("written");
    let older = replay().json();
    assert_eq!((&older["name"], &older["chosen"]), (&"generic".into(), &"default".into()), "{older}");
    fs::write(&request, text.replace(recorded, ",\"planner\":\"third\"}")).expect("written");
    let missing = "request.json: its planner `third`: not found in the planner directories";
    replay().refuses_with(3, &[missing, "`--planner`"]);
}

/// The request is written before the planner runs, so that a refusal can be replayed.
#[test]
fn the_request_of_a_refused_plan_is_written_and_replayed() {
    let folder = folder();
    let request = folder.path().join("request.json");
    let planned = shardwright(["plan", "--no-measure", DEMO_MODEL, "--soc", "mt6989", "--size", "1kB"]);
    let refused =
        planned.argument("--write-request").argument(&request).refuses_with(7, &["does not fit mt6989"]);
    let replayed = shardwright(["planner", "replay"]).argument(&request).refuses_with(7, &[]);
    let reason = |text: &str| text[text.find("refused (over-size)").expect("a reason")..].to_owned();
    assert_eq!(reason(&replayed), reason(&refused));
}

/// Every rule with its number.
#[test]
fn a_planner_is_held_to_numbered_rules() {
    let check = |planner: &str| {
        shardwright(["planner", "check"]).argument(program::folder().join("planners").join(planner))
    };
    let text = check("generic.wasm").succeeds();
    for words in ["P1 ", "P14", "14 held, 0 broken"] {
        assert!(text.contains(words), "no `{words}` in {text}");
    }
    // A pack only runs in the interpreter, so that there are no engines to compare.
    for shipped in ["mediatek.pack", "qualcomm.pack"] {
        let text = check(shipped).succeeds();
        assert!(text.contains("13 held, 0 broken"), "{shipped}: {text}");
    }
    // The name is that of the built-in planner, not of a file.
    let text = shardwright(["planner", "check", "generic"]).succeeds();
    assert!(text.starts_with("generic ") && text.contains("14 held, 0 broken"), "{text}");
    let twice = ["--planner-option", "pieces=2", "--planner-option", "pieces=3"];
    check("even.wasm").arguments(twice).refuses_with(2, &["pieces"]);
}

/// Returns a target folder for planners of another workspace. It begins as a copy of the folder of
/// this workspace's planners, so that common dependencies are compiled once. It is a separate
/// folder, because two workspaces would replace each other's files.
fn planners_of_others() -> PathBuf {
    let target = program::folder().parent().expect("the target folder").to_owned();
    let (own, others) = (target.join("planners"), target.join("planners-of-others"));
    if !others.exists() {
        // Cargo's locks, because another test may be building a planner.
        let locks = ["release", "wasm32-unknown-unknown/release"].map(|folder| {
            let lock = File::open(own.join(folder).join(".cargo-lock")).ok()?;
            lock.lock().ok().map(|()| lock)
        });
        // The copy keeps file times, which cargo uses to detect changes. Without a copy, more is
        // compiled.
        if locks.iter().all(Option::is_some) {
            let copied = Command::new("cp").arg("-a").args([&own, &others]).status();
            assert!(copied.is_ok_and(|status| status.success()), "{} is not copied", own.display());
        }
    }
    others
}

/// Follows the page outside this tree: a planner is created, built, checked, used, packed and
/// trusted.
#[test]
fn a_planner_that_was_begun_outside_plans_and_is_packed() {
    let outside = folder();
    let path = |name: &str| outside.path().join(name);
    shardwright(["planner", "new", "thrifty", "--within"]).argument(outside.path()).succeeds();
    // Uses the versions of this tree's lock file, so that cargo downloads no crates, and the
    // existing build.
    fs::copy(tree::root().join("Cargo.lock"), path("thrifty/Cargo.lock")).expect("copied");
    let target = planners_of_others();
    let built = shardwright(["planner", "build"]).argument(path("thrifty")).argument("-o");
    let built = built.argument(path("thrifty.wasm")).argument("--target-dir").argument(&target).json();
    assert!(built["bytes"].as_u64() > Some(10_000), "{built}");

    let checked = shardwright(["planner", "check"]).argument(path("thrifty.wasm")).json();
    assert_eq!((&checked["name"], &checked["verdict"]), (&"thrifty".into(), &"held".into()), "{checked}");
    let request = path("request.json");
    let plan = shardwright(["plan", "--no-measure", DEMO_MODEL, "--soc", "mt6989", "--write-request"]);
    plan.argument(&request).succeeds();
    let asked = shardwright(["planner", "replay"]).argument(&request).argument("--planner");
    let asked = asked.argument(path("thrifty.wasm")).json();
    let shards = asked["shards"].as_array().expect("a plan");
    let head = shards.last().expect("shards");
    assert_eq!((&head["shard"], &head["target"]), (&"head".into(), &"cpu".into()), "{asked}");

    // Its preferences are not a fallback, even if none is possible.
    let plan = |options: &[&str]| {
        let plan =
            shardwright(["plan", "--no-measure", DEMO_MODEL, "--planner"]).argument(path("thrifty.wasm"));
        plan.arguments(options)
    };
    let strict = plan(&["--soc", "sm8850", "--strict"]).json();
    let head = strict["shards"].as_array().and_then(|shards| shards.last()).expect("shards");
    assert_eq!(head["target"], "cpu", "{strict}");
    // Its directory and its name are enough too.
    let named = ["plan", "--no-measure", DEMO_MODEL, "--soc", "sm8850", "--planner", "thrifty", "--planners"];
    let named = shardwright(named).argument(outside.path()).json();
    assert_eq!((&named["planner"], &named["shards"]), (&strict["planner"], &strict["shards"]));
    // A shard that is too large is cut as often as allowed. If that is not enough, it moves to
    // another target.
    let limit = ["--soc", "sm8850", "--limit", "artefact-bytes=2500000", "--planner-option"];
    for (most, target) in [("most-shards=2", "sm8850"), ("most-shards=1", "cpu")] {
        let cut = plan(&[&limit[..], &[most]].concat()).json();
        let shards = cut["shards"].as_array().expect("shards");
        let layered = shards.iter().filter(|shard| shard["segments"].to_string().contains("layers"));
        let targets: Vec<&str> = layered.filter_map(|shard| shard["target"].as_str()).collect();
        let expected = if target == "cpu" { vec![target] } else { vec![target; 2] };
        assert_eq!(targets, expected, "{most}: {cut}");
    }
    let none = plan(&["--soc", "sm8850", "--planner-option", "most-shards=none"]);
    none.refuses_with(7, &["expected a number above zero"]);

    let made = shardwright(["trust", "key"]).argument(path("key")).json();
    let public = made["public"].as_str().expect("a key").to_owned();
    let packed = shardwright(["planner", "pack"]).argument(path("thrifty.wasm")).argument("--key");
    let packed = packed.argument(path("key")).argument("-o").argument(path("thrifty.pack")).json();
    assert!(packed["outcome"].as_str().is_some_and(|text| text.contains(&public)), "{packed}");
    let from_pack =
        shardwright(["plan", "--no-measure", DEMO_MODEL, "--soc", "sm8850", "--trust", &public, "--planner"]);
    let from_pack = from_pack.argument(path("thrifty.pack")).json();
    assert_eq!(from_pack["planner"]["name"], "thrifty", "{from_pack}");

    // A planner that stops reports the reason on one line.
    let source = path("thrifty/src/lib.rs");
    let text = fs::read_to_string(&source).expect("read");
    let broken = text.replacen(
        "-> Result<Plan, Refusal> {",
        "-> Result<Plan, Refusal> {\n        panic!(\"no thrift\");",
        1,
    );
    fs::write(&source, broken).expect("written");
    let built = shardwright(["planner", "build"]).argument(path("thrifty")).argument("-o");
    built.argument(path("broken.wasm")).argument("--target-dir").argument(target).succeeds();
    let replayed = shardwright(["planner", "replay"]).argument(&request).argument("--planner");
    let (_, stderr) = replayed.argument(path("broken.wasm")).refuses();
    let said =
        stderr.lines().find(|line| line.contains("planner log: a panic at src/lib.rs")).unwrap_or_default();
    assert!(said.contains("no thrift"), "{stderr}");
    let check = shardwright(["planner", "check", "--format", "json"]).argument(path("broken.wasm"));
    let checked = check.outcome();
    assert!(checked.code == Some(1) && checked.stdout.contains("no thrift"), "{}", checked.stdout);
    let broken: Value = serde_json::from_str(&checked.stdout).expect("JSON");
    assert_eq!(broken["verdict"], "broken", "{broken}");
    expect_replaced(&path("broken.wasm"), "planner `thrifty` 0.1.0: stopped in `make-plan`: ", 7);
}

/// The name of a chip is in its profile, so the file may have any name.
#[test]
fn a_profile_that_is_wrong_is_named_with_its_file() {
    let folder = folder();
    let text = r#"{"schema": 1, "name": "my-chip", "surprise": 1}"#;
    fs::write(folder.path().join("other.json"), text).expect("written");
    let words = ["`my-chip`", "other.json", "unknown field `surprise`", "help: correct the profile"];
    planned("my-chip", folder.path()).refuses_with(3, &words);
    // It does not affect other chips, and skipping it is reported.
    let notices = planned("mt6989", folder.path()).json()["notices"].to_string();
    assert!(notices.contains("other.json") && notices.contains("the profile is skipped"), "{notices}");
    let words = ["other.json", "unknown field `surprise`", "help: see plugins/README.md"];
    planned("mt6989", folder.path()).argument("--strict").refuses_with(9, &words);
    let bundle = Compiled::of(TEXT_FIXTURES[3]);
    let run = shardwright(["run", "--prompt", "a", "--soc", "mt6989", "--strict", "--profiles"]);
    run.argument(folder.path()).argument(bundle.path()).refuses_with(9, &words);
}

/// Copies a shipped profile under a name unknown to the program and the shims, with some facts
/// replaced. `None` removes a fact.
fn drop_copy(folder: &Path, of: &str, facts: &[(&str, Option<&str>)]) {
    let text = fs::read(tree::root().join(format!("plugins/profiles/{of}.json"))).expect("a profile");
    let mut profile: Value = serde_json::from_slice(&text).expect("JSON");
    profile["name"] = json!("nobodys");
    profile["title"] = json!("Nobody's");
    profile["aliases"] = json!([]);
    let list = profile["facts"].as_array_mut().expect("facts");
    for (name, value) in facts {
        list.retain(|fact| fact["name"] != *name);
        list.extend(value.map(|value| json!({"name": name, "value": value, "provenance": "declared"})));
    }
    fs::write(folder.join("nobodys.json"), profile.to_string()).expect("written");
}

fn vector(document: &Value) -> Vec<f64> {
    let found = document[0]["embedding"].as_array().expect("a vector").iter();
    found.map(|value| value.as_f64().expect("a number")).collect()
}

/// Returns a sentence vector for the copied chip, computed in its vendor's simulator.
fn embedded(folder: &Path, formats: &str, more: impl FnOnce(Run) -> Run) -> Vec<f64> {
    let run = shardwright(["embed", EMBEDDING_FIXTURE, "a text", "--context", "32", "--soc", "nobodys"]);
    let run = run.arguments(["--on", "simulator", "--planner", "even", "--formats", formats, "--profiles"]);
    vector(&more(run.argument(folder)).json())
}

/// Prepares a plan for the copied chip.
fn planned_copy(folder: &Path) -> Run {
    let plan = ["plan", "--no-measure", EMBEDDING_FIXTURE, "--context", "32", "--soc", "nobodys"];
    shardwright(plan).argument("--profiles").argument(folder)
}

fn assert_same_direction(found: &[f64]) {
    static WANTED: OnceLock<Vec<f64>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        vector(&shardwright(["embed", EMBEDDING_FIXTURE, "a text", "--context", "32"]).json())
    });
    let dot: f64 = wanted.iter().zip(found).map(|(a, b)| a * b).sum();
    assert_eq!(wanted.len(), found.len());
    assert!(dot >= 0.99, "cosine {dot}");
}

/// Compiles a bundle for the copied chip's simulator.
fn compiled(folder: &Path) -> Compiled {
    let folder = folder.to_str().expect("text");
    let target = ["--soc", "nobodys", "--on", "simulator", "--planner", "even", "--context", "32"];
    Compiled::from(
        EMBEDDING_FIXTURE,
        target.into_iter().chain(["--formats", A16W8_QUALCOMM, "--profiles", folder]),
    )
}

#[test]
fn a_renamed_snapdragon_compiles_and_runs_in_its_vendors_simulator() {
    if !qnn::library() {
        return;
    }
    let folder = folder();
    drop_copy(folder.path(), "sm8850", &[]);
    assert_same_direction(&embedded(folder.path(), A16W8_QUALCOMM, |run| run.arguments(["--strict"])));
    // The shim is available, which is reported.
    let plan = planned_copy(folder.path()).json().to_string();
    assert!(!plan.contains("shim was not found") && !plan.contains("counted in primitives"), "{plan}");

    // The chip's facts are stored in the bundle, so the profile need not exist on the machine that
    // runs it.
    let bundle = compiled(folder.path());
    let shown = bundle.path().display().to_string();
    fs::remove_file(folder.path().join("nobodys.json")).expect("removed");
    let run = shardwright(["embed", &shown, "a text"]);
    assert_same_direction(&vector(&run.json()));
    let document = shardwright(["inspect", &shown]).json().to_string();
    for word in ["\"arch\":81", "\"soc\":87", "nobodys"] {
        assert!(document.contains(word), "no {word} in {document}");
    }
}

#[test]
fn code_is_made_for_the_number_of_a_profile_or_by_its_architecture_and_that_is_said() {
    if !qnn::library() {
        return;
    }
    let folder = folder();
    // Another chip that the library knows.
    drop_copy(folder.path(), "sm8850", &[("soc-id", Some("97"))]);
    let other = compiled(folder.path());
    let document = shardwright(["inspect"]).argument(other.path()).json().to_string();
    assert!(document.contains("\"soc\":97") && document.contains("\"arch\":81"), "{document}");
    assert!(!other.variant_json()["notices"].to_string().contains("compiled for soc-id"));

    // A chip that the library does not know.
    drop_copy(folder.path(), "sm8850", &[("soc-id", Some("999"))]);
    let unknown = compiled(folder.path());
    let notices = unknown.variant_json()["notices"].to_string();
    assert!(notices.contains("compiled for soc-id 87") && notices.contains("does not know 999"), "{notices}");
    assert!(notices.contains("fallback"), "{notices}");
    assert_same_direction(&vector(
        &shardwright(["embed"]).argument(unknown.path()).argument("a text").json(),
    ));
    let strict = shardwright(["embed", EMBEDDING_FIXTURE, "a text", "--context", "32", "--strict"]);
    let strict = strict.arguments(["--soc", "nobodys", "--on", "simulator", "--planner", "even"]);
    let strict = strict.arguments(["--formats", A16W8_QUALCOMM]);
    let (_, stderr) = strict.argument("--profiles").argument(folder.path()).refuses();
    assert!(stderr.contains("does not know 999"), "{stderr}");

    // A missing number is not a fallback, because no specific chip was requested.
    drop_copy(folder.path(), "sm8850", &[("soc-id", None), ("vtcm-megabytes", Some("16"))]);
    assert_same_direction(&embedded(folder.path(), A16W8_QUALCOMM, |run| run.argument("--strict")));
    let bare = compiled(folder.path());
    let notices = bare.variant_json()["notices"].to_string();
    assert!(notices.contains("compiled for soc-id 87") && notices.contains("have this fact"), "{notices}");
    // The artefact also reports twice the fast memory.
    let document = shardwright(["inspect"]).argument(bare.path()).json().to_string();
    assert!(document.contains("\"vtcm_megabytes\":16"), "{document}");
}

#[test]
fn a_profile_that_a_shim_says_against_is_refused_with_the_fact_and_the_file() {
    let refused = |of: &str, facts: &[(&str, Option<&str>)], fact: &str, says: &str| {
        let folder = folder();
        drop_copy(folder.path(), of, facts);
        let (_, stderr) = planned_copy(folder.path()).refuses();
        for part in ["profile `nobodys`", &format!("fact `{fact}`"), says, "nobodys.json"] {
            assert!(stderr.contains(part), "no `{part}` in {stderr}");
        }
    };
    refused("sm8850", &[("hexagon-arch", None)], "hexagon-arch", "which shim `qnn` needs");
    refused("sm8850", &[("soc-id", Some("eighty"))], "soc-id", "an integer from 1");
    refused("sm8850", &[("vtcm-megabytes", Some("1000"))], "vtcm-megabytes", "from 1 to 64");
    refused("mt6989", &[("platform", Some("Dimensity"))], "platform", "`Dimensity`");
    let memory = "memory-gigabytes-per-second";
    refused("mt6989", &[(memory, None)], memory, "missing, but rates");
    if qnn::library() {
        refused("sm8850", &[("hexagon-arch", Some("v79"))], "hexagon-arch", "v81 code for soc-id 87");
        refused("sm8850", &[("soc-id", Some("122"))], "soc-id", "cannot compile for soc-id 122");
        let facts = [("soc-id", None), ("hexagon-arch", Some("v99"))];
        refused("sm8850", &facts, "hexagon-arch", "the library makes v68 code");
    }
}

/// Compares two limits: the size of shards that were reported to load, and the modelled space of a
/// context.
#[test]
fn a_plan_says_which_of_two_limits_it_obeyed() {
    let folder = folder();
    let obeyed = |parts: u64, room: u64| {
        drop_copy(folder.path(), "sm8850", &[]);
        let file = folder.path().join("nobodys.json");
        let mut profile: Value = serde_json::from_slice(&fs::read(&file).expect("read")).expect("JSON");
        for limit in profile["limits"].as_array_mut().expect("limits") {
            let value = match limit["name"].as_str() {
                Some("artefact-bytes") => parts,
                Some("context-bytes") => room,
                _ => panic!("another limit: {limit}"),
            };
            limit["value"] = json!(value);
        }
        fs::write(&file, profile.to_string()).expect("written");
        let plan = planned("nobodys", folder.path()).json();
        let reasons = plan["reasons"].as_array().expect("reasons").iter();
        let of_cuts =
            reasons.filter(|reason| reason["choice"].as_str().is_some_and(|said| said.contains("is cut")));
        let mut limits: Vec<String> =
            of_cuts.filter_map(|reason| reason["cause"]["limit"].as_str().map(str::to_owned)).collect();
        limits.dedup();
        (layered_shards(&plan), limits)
    };
    let (most, few) = (1_000_000_000, 3_000_000);
    assert_eq!(obeyed(most, most), (1, vec![]));
    let (shards, limits) = obeyed(few, most);
    assert_eq!((shards > 1, limits), (true, vec!["artefact-bytes".to_owned()]));
    let (shards, limits) = obeyed(most, few);
    assert_eq!((shards > 1, limits), (true, vec!["context-bytes".to_owned()]));
}

#[test]
fn a_renamed_dimensity_compiles_and_runs_in_the_simulator() {
    let shim = Shim::with("lean");
    let with_shim = |run: Run| run.argument("--shims").argument(shim.folder());
    let folder = folder();
    drop_copy(folder.path(), "mt6989", &[]);
    assert_same_direction(&embedded(folder.path(), A16W8, |run| with_shim(run).argument("--strict")));
    // The profile decides whether 4-bit weights per channel are refused or supported.
    let four = |facts: &[(&str, Option<&str>)]| {
        drop_copy(folder.path(), "mt6991", facts);
        let plan = planned_copy(folder.path()).arguments(["--planner", "even"]);
        with_shim(plan.arguments(["--formats", "w4-per-channel/a16-symmetric/a16"]))
    };
    assert!(!four(&[]).json().to_string().contains("refuses it at any size"));
    let refused = four(&[("four-bits-per-channel", Some("refused"))]);
    refused.refuses_with(7, &["nobodys refuses it at any size"]);
}
