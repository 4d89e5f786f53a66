//! Verification of proposed tokens as a user sees it: in plans, in bundles, and in reports on both.

use std::fs;

use serde_json::{Value, json};
use shardwright_bundle::Bundle;
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_tests::chip::TestChip;
use shardwright_tests::program::shardwright;
use shardwright_vocabulary::EntryKind;

const CHECKPOINT: &str = TEXT_FIXTURES[1];

/// Returns the rows of the decode entry points, which are equal in all shards.
fn decodes(plan: &Value) -> Vec<u64> {
    let of = |shard: &Value| -> Vec<u64> {
        let entries = shard["entries"].as_array().expect("entry points").iter();
        let names = entries.map(|entry| entry["entry"].as_str().expect("a name").to_owned());
        let rows = |name: String| name.strip_prefix("decode_")?.split('@').next()?.parse().ok();
        names.filter_map(rows).collect()
    };
    let all: Vec<Vec<u64>> = plan["shards"].as_array().expect("shards").iter().map(of).collect();
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
    all[0].clone()
}

#[test]
fn a_plan_has_the_rows_that_are_asked_for_and_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = |speculation: &str| {
        let option = format!("speculation={speculation}");
        shardwright(["plan", "--no-measure", CHECKPOINT, "--context", "64", "--planner-option", &option])
    };
    let none = plan("none").json();
    assert_eq!((decodes(&none), none.get("speculation")), (vec![1], None));
    let [four, _] = [4, 16].map(|rows: u64| {
        let asked = plan(&rows.to_string()).json();
        assert_eq!(decodes(&asked), [1, rows]);
        assert_eq!(
            (&asked["speculation"]["draft"], &asked["speculation"]["rows"]),
            (&json!("lookup"), &json!(rows))
        );
        assert_eq!(asked["speculation"]["provenance"], "modelled");
        let said = asked["reasons"].to_string();
        assert!(said.contains(&format!("decode_{rows}@64 verifies the proposals of lookup")), "{said}");
        asked
    });
    let screen = plan("16").succeeds();
    assert!(screen.contains("\nproposals lookup, up to 15 tokens a step, "), "{screen}");
    // The CPU's estimates decide, and the reason is reported in both cases.
    let auto = plan("auto").json();
    let said = auto["reasons"].to_string();
    assert!(said.contains("verifies the proposals") || said.contains("no proposals"), "{said}");
    assert_eq!(decodes(&auto).len(), 1 + usize::from(auto.get("speculation").is_some()));

    let files = [("none.json", none), ("four.json", four)].map(|(name, plan)| {
        let path = folder.path().join(name);
        fs::write(&path, plan.to_string()).expect("written");
        path
    });
    let changed = shardwright(["plan", "diff"]).arguments(files).outcome();
    assert_eq!(changed.code, Some(1), "{}", changed.stderr);
    assert!(changed.stdout.contains("draft that proposes tokens: nothing → lookup"), "{}", changed.stdout);
    let (_, refused) = plan("5").refuses();
    assert!(refused.contains("expected 4 or 16"), "{refused}");
}

/// A bundle records the speculation of each of its chains: the chip's, and the CPU's, which takes
/// over when the chip is lost.
#[test]
fn every_chain_of_a_bundle_says_what_it_verifies() {
    let chip = TestChip::new();
    let folder = tempfile::tempdir().expect("a folder");
    for (speculation, rows) in [("16", Some(16)), ("none", None)] {
        let path = folder.path().join(speculation);
        let option = format!("speculation={speculation}");
        let compile = shardwright(["compile", CHECKPOINT, "--context", "64", "--planner-option", &option]);
        chip.planned_by(compile).argument("-o").argument(&path).succeeds();
        let bundle = Bundle::open(&path).expect("a bundle");
        let chains = &bundle.manifest().variants[0].chains;
        assert_eq!(chains.iter().map(|chain| chain.name.as_str()).collect::<Vec<_>>(), ["primary", "cpu"]);
        for chain in chains {
            assert_eq!(chain.speculation.as_ref().map(|own| own.rows), rows, "{}", chain.name);
            let entries = chain.shards.iter().flat_map(|shard| &shard.entries);
            let decodes = entries.filter(|entry| entry.kind == EntryKind::Decode && entry.rows > 1);
            assert_eq!(decodes.count(), if rows.is_some() { chain.shards.len() } else { 0 });
        }
        let (told, count) = ("lookup, up to 15 tokens a step", if rows.is_some() { 2 } else { 0 });
        let show = shardwright(["inspect"]).argument(&path).succeeds();
        assert_eq!(show.matches(told).count(), count, "{show}");
        let doctor = chip.found_by(shardwright(["doctor"]).argument(&path)).outcome().stdout;
        assert_eq!(doctor.matches(told).count(), count, "{doctor}");
    }
}
