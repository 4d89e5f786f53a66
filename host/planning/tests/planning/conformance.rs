//! Conformance rules: the built-in planner keeps them all, and a violation is reported with its
//! rule.

#![cfg(feature = "compiler")]

use std::collections::BTreeSet;

use shardwright_planning::builtin;
use shardwright_planning::conformance::{Conformance, RULES, RuleVerdict, requests, run};
use shardwright_planning::request::{PlannerOption, Request};
use shardwright_planning::sandbox::{Bounds, EngineKind, Planner, Sandbox};

use crate::common::{cache, even, generic, hostile, mediatek, policy, qualcomm, workspace};

/// Enough for the built-in planner on the large model, and soon used up by an endless loop.
const FUEL: u64 = 1_000_000_000;

fn load(kind: EngineKind, wasm: &[u8], fuel: u64) -> Planner {
    let sandbox = Sandbox::with_bounds(kind, Bounds { fuel, ..Bounds::default() }).unwrap();
    sandbox.load("given.wasm", wasm, Some(&cache())).unwrap()
}

fn recorded() -> Request {
    requests::recorded().unwrap()
}

fn behaving(behave: &str) -> Conformance {
    let mut base = recorded();
    base.options.push(PlannerOption { name: "behave".to_owned(), value: behave.to_owned() });
    // A planner that uses all its fuel is called thirty times.
    run(&load(EngineKind::Native, hostile(), FUEL), None, &base)
}

fn broken(report: &Conformance) -> Vec<&'static str> {
    assert_eq!(report.rules.len(), RULES.len());
    let rules = report.rules.iter().filter(|rule| rule.verdict == RuleVerdict::Broken);
    rules.map(|rule| rule.id).collect()
}

#[test]
fn every_request_is_sound_and_the_recorded_one_is_what_it_says() {
    let base = recorded();
    assert_eq!((base.targets.len(), base.formats.len()), (2, 2));
    assert!(base.targets[0].limits.iter().any(|limit| limit.name == "ops"));
    let mut all = vec![
        requests::plain(&base),
        requests::layers(&base, 1),
        requests::layers(&base, 2),
        requests::layers(&base, 200),
        requests::with_wide_times(&base),
        requests::with_unknown_option(&base),
        requests::hedge(&base, 100, true),
    ];
    all.extend(requests::without_rows(&base));
    all.extend(requests::contradictory(&base));
    all.extend(requests::extreme(&base));
    for case in &all {
        case.request.validate().unwrap_or_else(|fault| panic!("{}: {fault}", case.name));
    }
    let count = |request: &Request| request.model.components[2].layer_count();
    assert_eq!([0, 1, 2, 3].map(|index: usize| count(&all[index].request)), [8, 1, 2, 200]);
}

#[test]
fn the_built_in_planner_keeps_every_rule() {
    let native = load(EngineKind::Native, builtin::component().unwrap(), Bounds::default().fuel);
    let pulley = load(EngineKind::Pulley, builtin::component().unwrap(), Bounds::default().fuel);
    let report = run(&native, Some(&pulley), &recorded());
    for rule in &report.rules {
        assert_eq!(rule.verdict, RuleVerdict::Held, "{}: {}", rule.id, rule.seen);
        assert!(!rule.seen.is_empty(), "{}", rule.id);
    }
    assert!(report.holds());
    let fuel = report.fuel.unwrap();
    assert!(fuel.used > 1000 && fuel.used < FUEL, "{fuel:?}");
    assert_eq!(fuel.request, "many layers");
    let memory = report.memory.unwrap();
    assert!(memory.used > 64 << 10 && memory.used < memory.limit / 2, "{memory:?}");
}

/// A violation in an example would be copied.
#[test]
fn every_planner_of_the_plugins_keeps_every_rule() {
    let folder = workspace().join("plugins");
    let mut checked = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.join("Cargo.toml").exists() {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let wasm = match name.as_str() {
            "generic" => generic(),
            "mediatek" => mediatek(),
            "qualcomm" => qualcomm(),
            "example-policy" => policy(),
            "example-even" => even(),
            _ => panic!("plugins/{name} is not checked"),
        };
        let report = run(&load(EngineKind::Native, wasm, Bounds::default().fuel), None, &recorded());
        assert_eq!(broken(&report), [""; 0], "{name}: {:#?}", report.rules);
        // A planner that refuses everything keeps the rules too.
        for id in ["P4", "P5", "P7"] {
            let rule = report.rules.iter().find(|rule| rule.id == id).unwrap();
            assert_eq!(rule.verdict, RuleVerdict::Held, "{name}: {id}: {}", rule.seen);
        }
        checked.insert(name);
    }
    assert_eq!(checked.len(), 5, "{checked:?}");
}

#[test]
fn a_planner_that_misbehaves_is_told_which_rules_it_broke() {
    let all = ["P4", "P5", "P6", "P7", "P8", "P9", "P10", "P11"];
    let with = |more: &'static str| all.into_iter().chain([more, "P14"]).collect::<Vec<_>>();
    for (behave, expected) in [
        ("well", vec![]),
        ("refuse", vec![]),
        ("panic", with("P12")),
        ("index", with("P12")),
        ("recurse", with("P12")),
        ("memory", with("P13")),
        ("loop", with("P13")),
        ("flood-lines", with("P13")),
        ("panic-later", vec!["P11", "P12"]),
        ("stubborn", vec!["P11"]),
        ("hedge-every-plan", vec!["P14"]),
    ] {
        let report = behaving(behave);
        assert_eq!(broken(&report), expected, "{behave}: {:#?}", report.rules);
        let verdict = |id: &str| report.rules.iter().find(|rule| rule.id == id).unwrap();
        assert_eq!(verdict("P3").verdict, RuleVerdict::NotApplicable);
        if behave == "panic" {
            assert!(verdict("P4").seen.contains("planner log: a panic"), "{}", verdict("P4").seen);
            assert!(verdict("P12").seen.contains("`plain`"), "{}", verdict("P12").seen);
        }
        if behave == "refuse" {
            assert_eq!(verdict("P4").verdict, RuleVerdict::NotApplicable);
            assert!(verdict("P4").seen.contains("not today"), "{}", verdict("P4").seen);
        }
    }
    // For invalid plans, the violated rule is the one with the request that shows the fault.
    for (behave, shows) in [("skip-layer", "P5"), ("one-shard-too-large", "P5"), ("bad-scale", "P7")] {
        let report = behaving(behave);
        assert!(broken(&report).contains(&shows), "{behave}: {:#?}", report.rules);
        assert!(!broken(&report).contains(&"P12"), "{behave}");
    }
}

#[test]
fn engines_that_disagree_are_told() {
    let native = load(EngineKind::Native, hostile(), FUEL);
    let other = load(EngineKind::Pulley, even(), FUEL);
    let report = run(&native, Some(&other), &recorded());
    assert_eq!(broken(&report), ["P3"], "{:#?}", report.rules);
}

#[test]
fn a_planner_that_stops_while_it_describes_itself_breaks_the_first_rule() {
    let bounds = Bounds { fuel: 10, ..Bounds::default() };
    let sandbox = Sandbox::with_bounds(EngineKind::Native, bounds).unwrap();
    let error = sandbox.load("generic", builtin::component().unwrap(), None).unwrap_err();
    let report = Conformance::of_stopped(&error).unwrap();
    assert_eq!(broken(&report), ["P1"]);
    assert_eq!(report.count(RuleVerdict::NotApplicable), RULES.len() - 1);
    assert!(report.rules[0].seen.contains("fuel"), "{}", report.rules[0].seen);
    // A file that is not a planner gets no verdict.
    let error = sandbox.load("garbage", b"none", None).unwrap_err();
    assert_eq!(Conformance::of_stopped(&error), None);
}

/// The page lists exactly the rules, with their numbers.
#[test]
fn the_page_for_planners_has_every_rule() {
    let page = std::fs::read_to_string(workspace().join("plugins/README.md")).unwrap();
    let listed: BTreeSet<(&str, &str)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| P")?.strip_suffix(" |")?.split_once(" | "))
        .collect();
    let known: BTreeSet<(&str, &str)> = RULES.iter().map(|rule| (&rule.id[1..], rule.sentence)).collect();
    assert_eq!(listed, known);
    assert_eq!(known.len(), RULES.len());
}
