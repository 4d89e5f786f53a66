//! A checkpoint whose weights are elsewhere. `plan` gives the plan of the whole checkpoint and
//! reports that. All other commands refuse, name the missing file and give help.
//! `host/checkpoints/tests/outlines.rs` compares more plans.

use std::fs;

use serde_json::Value;
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, MULTIMODAL_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::shardwright;

/// Splits a plan into the plan without notices, and the notices, which report the source of times.
fn apart(mut plan: Value) -> (Value, Vec<String>) {
    let notices = plan["notices"].take();
    leave_out_losses(&mut plan);
    let texts = notices.as_array().expect("a list").iter().filter_map(|notice| notice["text"].as_str());
    (plan, texts.map(str::to_owned).collect())
}

/// Removes expected losses, which depend on the weights if these are present.
fn leave_out_losses(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| {
                !["loss", "sensitivities", "value_sensitivities", "micronats"].contains(&name.as_str())
            });
            members.values_mut().for_each(leave_out_losses);
        }
        Value::Array(items) => items.iter_mut().for_each(leave_out_losses),
        _ => {}
    }
}

#[test]
fn headers_are_enough_to_plan() {
    let cases: [(&str, &[&str]); 2] =
        [(MULTIMODAL_FIXTURE, &[]), (DEMO_MODEL, &["--soc", "mt6989", "--context", "256"])];
    for (fixture, target) in cases {
        let copy = Copy::of(fixture);
        let request = copy.file("request");
        let plan = |copy: &Copy| {
            let run = shardwright(["plan", "--no-measure"]).argument(copy.path()).arguments(target);
            let plan = run.argument("--write-request").argument(&request).json();
            let asked = fs::read(&request).expect("a request");
            let mut asked: Value = serde_json::from_slice(&asked).expect("JSON");
            leave_out_losses(&mut asked);
            (apart(plan), asked)
        };
        let ((whole, _), asked) = plan(&copy);
        let copy = copy.only_header();
        let ((outlined, notices), asked_without) = plan(&copy);
        assert!(asked == asked_without, "{fixture}: another request");
        assert_eq!(outlined, whole, "{fixture}");
        assert!(notices[0].contains("the weights are missing"), "{notices:?}");
        let text = shardwright(["plan"]).argument(copy.path()).arguments(target).succeeds();
        assert!(text.contains("note: the weights are missing") && text.contains(": decode needs "), "{text}");
    }
}

/// Loss goals use the expected losses of normally distributed weights.
#[test]
fn headers_are_enough_for_a_goal_in_losses() {
    let copy = Copy::of(DEMO_MODEL).only_header();
    let plan =
        |quality: &str| shardwright(["plan", "--soc", "mt6993", "--quality", quality]).argument(copy.path());
    let good = plan("good").json();
    assert_eq!(good["totals"]["loss"]["known"], "expected", "{good}");
    assert!(good["totals"]["loss"]["micronats"].as_u64().is_some_and(|loss| loss <= 150_000), "{good}");
    let goals = good["goals"].as_array().expect("goals").iter();
    let goal = goals.clone().find(|goal| goal["goal"] == "quality").expect("the goal");
    assert_eq!((&goal["provenance"], &goal["verdict"]), (&"modelled".into(), &"likely".into()), "{goal}");
    plan("0").arguments(["--formats", "w8-per-channel"]).refuses_with(7, &["over-quality"]);
}

#[test]
fn nothing_else_goes_without_values() {
    let copy = Copy::of(TEXT_FIXTURES[3]).only_header();
    let bundle = copy.file("bundle").display().to_string();
    let commands: [&[&str]; 5] = [
        &["run", "--prompt", "Hello", "--max-tokens", "1"],
        &["bench", "-p", "4", "-n", "1"],
        &["compile", "-o", &bundle],
        &["verify"],
        &["show"],
    ];
    for command in commands {
        let words = ["model.safetensors", "help: download the weights: "];
        shardwright(command).argument(copy.path()).refuses_with(3, &words);
    }
    assert!(!copy.file("bundle").exists());
    // A refusal is a verdict.
    let run = shardwright(["plan", "--soc", "mt6989", "--memory", "1KB"]).argument(copy.path());
    run.refuses_with(7, &["error: does not fit mt6989: "]);
}
