//! `tune` as a user runs it: its stored files, that it is resumed to the same result, that it finds
//! a plan that estimates hide, and that later plans use it and report so.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::Compiled;
use shardwright_tests::cache::Cache;
use shardwright_tests::checkpoints::{EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::program::Run;
use shardwright_tests::skipped;

const CHECKPOINT: &str = TEXT_FIXTURES[1];

/// Prepares a run of `tune` on the checkpoint.
fn tune(cache: &Cache, more: &[&str]) -> Run {
    cache.run(["tune", CHECKPOINT, "--context", "64"]).arguments(more)
}

/// Returns the complete files in a folder of the cache.
fn kept(cache: &Cache, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = cache.files(name, "json").into_iter();
    files.map(|path| (path.clone(), fs::read(path).expect("read"))).collect()
}

/// Returns the number of plans that were timed.
fn timed(report: &Value) -> usize {
    let tried = report["tried"].as_array().expect("a list").iter();
    // The default plan is always timed.
    1 + tried.filter(|tried| !tried["ratio"].is_null()).count()
}

/// Checks whether later commands use the default plan, or a plan that is faster beyond the spread.
fn is_default_or_faster(report: &Value) -> bool {
    let ratio = &report["ratio"];
    let is_default = report["before"]["plan"] == report["after"]["plan"];
    if is_default { ratio.is_null() } else { ratio["high"].as_f64() < Some(1.0) }
}

/// The tables do not depend on when a run was killed, and no plan becomes slower on the CPU. What
/// is damaged is measured again, and what others may have written is not believed.
#[test]
fn killed_at_any_moment_it_goes_on_to_the_same_tables_and_plans_say_what_they_rest_on() {
    let cache = Cache::empty();
    let plan = |more: &[&str]| cache.run(["plan", CHECKPOINT, "--context", "64"]).arguments(more).succeeds();
    let before = plan(&[]);
    assert!(before.contains("modelled") && !before.contains("tune"), "{before}");
    let moments = cases(6, 50);
    let mut known: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    for moment in 0..moments {
        // The time increases with each try, until a run ends before it is killed.
        tune(&cache, &[]).killed_after(Duration::from_millis(20 + 4000 * moment as u64 / moments as u64));
        let trials = kept(&cache, "trials");
        for (path, bytes) in &known {
            assert!(trials.get(path) == Some(bytes), "{} was measured again", path.display());
        }
        known = trials;
    }
    let report = tune(&cache, &[]).json();
    let (trials, times) = (kept(&cache, "trials"), kept(&cache, "times"));
    assert!(known.iter().all(|(path, bytes)| trials.get(path) == Some(bytes)));
    assert_eq!(trials.len(), timed(&report), "{report}");
    assert!(!times.is_empty() && is_default_or_faster(&report), "{report}");
    let outcome = report["outcome"].as_str().expect("a word");
    assert!(["nothing-to-win", "faster", "faster-with-setting"].contains(&outcome), "{report}");
    for spread in ["prompt_seconds", "token_seconds"] {
        let spread = &report["before"][spread];
        let number = |name: &str| spread[name].as_f64().expect("a number");
        assert!(number("low") <= number("median") && number("median") <= number("high"), "{spread}");
        assert!(number("samples") >= 3.0, "{spread}");
    }
    let measured = plan(&[]);
    assert!(measured.contains("were measured by `shardwright tune`"), "{measured}");
    assert!(measured.contains("measured)"), "{measured}");
    // With another number of threads the times differ, and none has been measured.
    let other = plan(&["-t", "7"]);
    assert!(!other.contains("were measured by"), "{other}");

    // The tables are derived from the trials alone, whatever was stored before.
    fs::remove_dir_all(cache.path().join("times")).expect("removed");
    assert_eq!(plan(&[]), before);
    assert_eq!(tune(&cache, &[]).json(), report);
    assert!(kept(&cache, "times") == times && kept(&cache, "trials") == trials);
    // The text report contains this too, without another measurement.
    let text = tune(&cache, &[]).succeeds();
    for words in ["outcome", "default plan", "for later plans, in", "no loss"] {
        assert!(text.contains(words), "no `{words}` in {text}");
    }
    assert_eq!(text.contains("no gain: "), outcome == "nothing-to-win", "{text}");

    for name in ["trials", "times"] {
        for path in kept(&cache, name).keys() {
            fs::write(path, "{").expect("written");
        }
    }
    let damaged = plan(&[]);
    assert!(damaged.contains("is damaged; the file is ignored"), "{damaged}");
    let again = tune(&cache, &["--minutes", "0"]).outcome();
    assert!(again.stderr.contains("damaged. Measuring it again"), "{}", again.stderr);
    assert!(kept(&cache, "trials").values().any(|bytes| bytes.len() > 1));
    let open_to_all = fs::Permissions::from_mode(0o777);
    fs::set_permissions(cache.path().join("times"), open_to_all).expect("set");
    let doubted = plan(&[]);
    assert!(
        doubted.contains("may be written by others") && !doubted.contains("were measured by"),
        "{doubted}"
    );
    tune(&cache, &["--minutes", "0"]).refuses_with(3, &["a cache folder of your own"]);
}

#[test]
fn a_plan_that_estimates_hide_is_found_and_made_from_then_on() {
    let (chip, cache) = (TestChip::new(), Cache::empty());
    // Weights in 32 bits make it slow, but its estimates do not show that.
    let formats = ["--formats", "f32", "--formats", "w8-per-channel"];
    let run = |command: &str, more: &[&str]| {
        let run = chip.planned_by(cache.run([command, CHECKPOINT, "--context", "64"]));
        run.arguments(formats).arguments(more)
    };
    let sizes = |formats: &str| -> u64 {
        let plan = cache.run(["plan", CHECKPOINT, "--context", "64", "--formats", formats]);
        let plan = chip.planned_by(plan).json();
        let shards = plan["shards"].as_array().expect("shards").iter();
        shards.map(|shard| shard["artefact_bytes"].as_u64().expect("bytes")).sum()
    };
    let (small, large) = (sizes("w8-per-channel"), sizes("f32"));
    assert!(small * 3 < large * 2, "{small} {large}");
    chip.is_slow_above(u32::try_from(small.midpoint(large)).expect("a small model"));
    let places = |plan: &Value| -> Vec<String> {
        let shards = plan["shards"].as_array().expect("shards").iter();
        shards.map(|shard| format!("{} {}", shard["target"], shard["formats"])).collect()
    };
    let default = places(&run("plan", &[]).json());
    assert_eq!(default, [format!("\"{CHIP}\" \"f32/f32/f32\"")]);

    let report = run("tune", &[]).json();
    assert_eq!(report["outcome"], "faster", "{report}");
    assert!(report["ratio"]["high"].as_f64() < Some(0.9), "{report}");
    assert_eq!(report["change"]["same"], false, "{report}");
    assert_ne!(report["before"]["plan"], report["after"]["plan"], "{report}");
    // Another measurement may prefer another plan with about the same speed.
    let bundle = cache.home().join("bundle").display().to_string();
    run("compile", &["-o", &bundle]).succeeds();
    let planned = run("plan", &[]).json();
    assert!(!places(&planned).contains(&default[0]), "{planned}");
    let text = run("tune", &[]).succeeds();
    assert!(text.contains("faster by more than the spread") && text.contains("ratio"), "{text}");
    // Measurements on the chip do not apply to its cut on the CPU.
    assert_eq!(places(&run("plan", &["--on", "cpu"]).json()), default);

    // A bundle with that plan is tuned with its checkpoint, in a cache without measurements. Its
    // plan is timed together with the default plan for its options.
    let elsewhere = Cache::empty();
    let tuned = chip.found_by(elsewhere.run(["tune", &bundle, "--checkpoint", CHECKPOINT])).json();
    assert_eq!(tuned["before"]["plan"], report["before"]["plan"], "{tuned}");
    let of_bundle = &tuned["tried"][1];
    assert_eq!(of_bundle["asked"], "the bundle's plan", "{tuned}");
    assert_eq!(of_bundle["plan"], report["after"]["plan"], "{tuned}");
    let result = of_bundle["result"].as_str().expect("a result");
    assert!(result.starts_with("faster"), "{tuned}");
    assert_eq!(tuned["outcome"], "faster", "{tuned}");
    assert!(!kept(&elsewhere, "times").is_empty());
}

#[test]
fn on_a_simulator_times_count_for_the_simulator_alone() {
    let cache = Cache::empty();
    let asked = ["--soc", "mt6989", "--minutes", "0"];
    let report = tune(&cache, &asked).arguments(["--on", "simulator"]).json();
    assert_eq!((&report["outcome"], timed(&report)), (&Value::from("unfinished"), 1), "{report}");
    let plan = |on: &str| cache.run(["plan", CHECKPOINT, "--context", "64", "--soc", "mt6989", "--on", on]);
    assert!(plan("simulator").succeeds().contains("were measured by `shardwright tune`"));
    assert!(!plan("cpu").succeeds().contains("were measured by"));
    // On the CPU, the report states that these are not the chip's times.
    let emulated = tune(&cache, &asked).arguments(["--on", "cpu"]).succeeds();
    assert!(emulated.contains("*emulated on cpu*"), "{emulated}");
}

#[test]
fn what_cannot_be_tuned_is_refused_with_help() {
    let cache = Cache::empty();
    let bundle = Compiled::of(TEXT_FIXTURES[3]);
    let bundle = bundle.path().display().to_string();
    let on_device = ["tune", CHECKPOINT, "--soc", "mt6989", "--on", "device"];
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&on_device, 3, &["mt6989", "--on cpu"]),
        (&["tune", &bundle], 2, &["is a bundle", "--checkpoint DIR"]),
        (&["tune", &bundle, "--checkpoint", CHECKPOINT], 6, &["the bundle was not made from"]),
        (
            &["tune", &bundle, "--checkpoint", CHECKPOINT, "--soc", "mt6989"],
            2,
            &["no variant for `mt6989`", "variants are for generic", "--soc"],
        ),
        (&["tune", CHECKPOINT, "--checkpoint", CHECKPOINT], 2, &["needs a bundle"]),
        (&["tune", EMBEDDING_FIXTURE], 5, &["embeds", "plan"]),
        (&["tune", CHECKPOINT, "--context", "4"], 10, &["is too short for timing", "--context"]),
    ];
    for (arguments, code, words) in cases {
        cache.run(*arguments).refuses_with(*code, words);
    }
}

#[test]
fn an_interrupt_ends_it_and_keeps_what_was_measured() {
    let cache = Cache::empty();
    let tune = cache.run(["tune", CHECKPOINT, "--context", "1024"]);
    let mut child = tune.started_until(|| !kept(&cache, "trials").is_empty());
    let asked = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    let status = child.wait().expect("waited");
    if !asked.success() || status.success() {
        skipped("an interrupt of tuning: it had ended");
        return;
    }
    assert_eq!(status.code(), Some(130));
    assert!(!kept(&cache, "trials").is_empty());
}
