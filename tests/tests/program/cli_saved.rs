//! `run --save` and `run --restore` as a user runs them.

use std::fs;

use serde_json::Value;
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::program::{Run, shardwright};

const FIRST: &str = "What is politics?";
const SECOND: &str = "Define happiness.";

fn run(model: &str) -> Run {
    shardwright(["run", model, "--greedy", "-n", "12"])
}

#[test]
fn a_saved_conversation_continues() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, lines) = (folder.path().join("session"), folder.path().join("lines"));
    fs::write(&lines, format!("{FIRST}\n{SECOND}\n")).expect("written");
    let both = run(DEMO_MODEL).argument("--chat").input(&lines).succeeds();

    let saving = run(DEMO_MODEL).arguments(["--prompt", FIRST, "--save"]).argument(&file).outcome();
    assert_eq!(saving.code, Some(0), "{}", saving.stderr);
    assert!(saving.stderr.contains("saved ") && saving.stderr.contains("tokens to "), "{}", saving.stderr);
    let whole = fs::read(&file).expect("a file");
    let restore = || run(DEMO_MODEL).argument("--restore").argument(&file);
    let restored = restore().arguments(["--prompt", SECOND]).outcome();
    assert_eq!(restored.code, Some(0), "{}", restored.stderr);
    assert!(restored.stderr.contains("restored 2 turns and "), "{}", restored.stderr);
    assert_eq!(format!("{}{}", saving.stdout, restored.stdout), both);
    assert_eq!(fs::read(&file).expect("a file"), whole, "restoring changes nothing");
    let json = restore().arguments(["--prompt", SECOND, "--format", "json", "--strict"]).succeeds();
    let done: Value = serde_json::from_str(json.lines().last().expect("an end")).expect("JSON");
    let statistics = &done["statistics"];
    assert!(statistics["reused_tokens"].as_u64() > Some(0), "{statistics}");
    assert_eq!(statistics["recomputed_tokens"], 0, "{statistics}");

    // The lines of a chat continue it too, and its end is saved over the earlier file.
    fs::write(&lines, format!("{SECOND}\n")).expect("written");
    let chat = restore().arguments(["--chat", "--quiet", "--save"]).argument(&file).input(&lines);
    assert_eq!(chat.succeeds(), restored.stdout);
    assert_ne!(fs::read(&file).expect("a file"), whole);
    let four = restore().arguments(["--prompt", FIRST]).outcome();
    assert!(four.stderr.contains("restored 4 turns and "), "{}", four.stderr);
}

#[test]
fn a_session_of_another_plan_is_run_again_and_refused_under_strict() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("session");
    run(DEMO_MODEL).arguments(["--prompt", FIRST, "--save"]).argument(&file).succeeds();
    let other = || {
        let other = run(DEMO_MODEL).arguments(["--formats", "w8-per-channel", "--prompt", SECOND]);
        other.argument("--restore").argument(&file)
    };
    let outcome = other().outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let said = &outcome.stderr;
    assert!(said.contains("saved with the plan") && said.contains("again."), "{said}");
    other().argument("--strict").refuses_with(9, &["the KV cache cannot be used", "saved with the plan"]);
    let foreign = run(TEXT_FIXTURES[3]).arguments(["--prompt", "a", "--restore"]).argument(&file);
    foreign.refuses_with(6, &["another vocabulary", "session"]);
}

#[test]
fn what_cannot_be_saved_or_restored_is_refused_before_any_reply() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, thesis) = (folder.path().join("session"), folder.path().join("thesis"));
    fs::write(&thesis, "my thesis").expect("written");
    let ask = || run(DEMO_MODEL).arguments(["--prompt", FIRST]);
    ask().argument("--save").argument(&thesis).refuses_with(2, &["exists and is not a saved session"]);
    ask().argument("--restore").argument(&thesis).refuses_with(4, &["not a saved session"]);
    ask().argument("--restore").argument(&file).refuses_with(3, &["session"]);
    ask().arguments(["--system", "Be brief.", "--restore"]).argument(&file).refuses_with(2, &["--system"]);
    assert_eq!(fs::read(&thesis).expect("a file"), b"my thesis");
}

/// Without a template, the prompt is the whole text.
#[test]
fn a_text_is_read_on_from_its_saved_beginning() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("session");
    let compiled = Compiled::from(DEMO_MODEL, ["--context", "256"]);
    let path = compiled.path();
    let complete = |text: &str| {
        let run = shardwright(["run", "--raw", "--greedy", "-n", "8", "--format", "json", "--prompt", text]);
        run.argument(&path)
    };
    let done = |run: Run| -> Value {
        serde_json::from_str(run.succeeds().lines().last().expect("an end")).expect("JSON")
    };
    let longer = format!("{FIRST} {SECOND}");
    let expected = done(complete(&longer));
    done(complete(FIRST).argument("--save").argument(&file));
    let found = done(complete(&longer).argument("--restore").argument(&file));
    assert_eq!(found["reply"], expected["reply"]);
    assert!(found["statistics"]["reused_tokens"].as_u64() > Some(0), "{found}");
    assert_eq!(expected["statistics"]["reused_tokens"], 0, "{expected}");
}
