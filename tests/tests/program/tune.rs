//! `tune` as a user runs it: its stored files, that it is resumed to the same result, that it finds
//! a plan that estimates hide, and that later plans use it and report so.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::{Compiled, contents};
use shardwright_tests::checkpoints::{EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::chip::{CHIP, Chip};
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::{skipped, tree};
use tempfile::TempDir;

const CHECKPOINT: &str = TEXT_FIXTURES[1];

/// A separate cache.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, arguments: &[&str]) -> Run {
        shardwright(arguments).environment("XDG_CACHE_HOME", self.path())
    }

    fn tune(&self, more: &[&str]) -> Run {
        self.run(&["tune", CHECKPOINT, "--context", "64"]).arguments(more)
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.path().join("shardwright").join(name)
    }

    /// Returns the complete files in a folder of the cache.
    fn kept(&self, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let folder = self.folder(name);
        match folder.is_dir() {
            true => contents(&folder).into_iter().filter(|(path, _)| is_json(path)).collect(),
            false => BTreeMap::new(),
        }
    }
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
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

#[test]
fn killed_at_any_moment_it_goes_on_to_the_same_tables() {
    let place = Place::new();
    let moments = cases(6, 50);
    let mut known: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    for moment in 0..moments {
        let mut child = Command::new(program::executable())
            .current_dir(tree::root())
            .args(["tune", CHECKPOINT, "--context", "64"])
            .env("XDG_CACHE_HOME", place.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        // The time increases with each try, until a run ends before it is killed.
        let until = Duration::from_millis(20 + 4000 * moment as u64 / moments as u64);
        let start = Instant::now();
        while start.elapsed() < until && child.try_wait().expect("waiting").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = child.kill();
        child.wait().expect("waited");
        let trials = place.kept("trials");
        for (path, bytes) in &known {
            assert!(trials.get(path) == Some(bytes), "{} was measured again", path.display());
        }
        known = trials;
    }
    let report = place.tune(&[]).json();
    let (trials, times) = (place.kept("trials"), place.kept("times"));
    assert!(known.iter().all(|(path, bytes)| trials.get(path) == Some(bytes)));
    assert_eq!(trials.len(), timed(&report), "{report}");
    assert!(!times.is_empty() && is_default_or_faster(&report), "{report}");
    // The tables are derived from the trials alone, whatever was stored before.
    fs::remove_dir_all(place.folder("times")).expect("removed");
    assert_eq!(place.tune(&[]).json(), report);
    assert!(place.kept("times") == times && place.kept("trials") == trials);
}

#[test]
fn on_the_cpu_no_plan_becomes_slower_and_later_plans_say_what_they_rest_on() {
    let place = Place::new();
    let before = place.run(&["plan", CHECKPOINT, "--context", "64"]).succeeds();
    assert!(before.contains("modelled") && !before.contains("tune"), "{before}");
    let report = place.tune(&[]).json();
    assert!(is_default_or_faster(&report), "{report}");
    let outcome = report["outcome"].as_str().expect("a word");
    assert!(["nothing-to-win", "faster", "faster-with-setting"].contains(&outcome), "{report}");
    for spread in ["prompt_seconds", "token_seconds"] {
        let spread = &report["before"][spread];
        let number = |name: &str| spread[name].as_f64().expect("a number");
        assert!(number("low") <= number("median") && number("median") <= number("high"), "{spread}");
        assert!(number("samples") >= 3.0, "{spread}");
    }
    // The text report contains this too, without another measurement.
    let text = place.tune(&[]).succeeds();
    for words in ["outcome", "default plan", "for later plans, in", "no loss"] {
        assert!(text.contains(words), "no `{words}` in {text}");
    }
    assert_eq!(text.contains("no gain: "), outcome == "nothing-to-win", "{text}");

    let plan = place.run(&["plan", CHECKPOINT, "--context", "64"]).succeeds();
    assert!(plan.contains("were measured by `shardwright tune`"), "{plan}");
    assert!(plan.contains("(measured)"), "{plan}");
    // With another number of threads the times differ, and none has been measured.
    let other = place.run(&["plan", CHECKPOINT, "--context", "64", "-t", "7"]).succeeds();
    assert!(!other.contains("(measured)"), "{other}");
    fs::remove_dir_all(place.folder("times")).expect("removed");
    assert_eq!(place.run(&["plan", CHECKPOINT, "--context", "64"]).succeeds(), before);
}

#[test]
fn a_plan_that_estimates_hide_is_found_and_made_from_then_on() {
    let (chip, place) = (Chip::new(), Place::new());
    // Weights in 32 bits make it slow, but its estimates do not show that.
    let formats = ["--formats", "f32", "--formats", "w8-per-channel"];
    let run = |command: &str, more: &[&str]| {
        let run = chip.planned_by(place.run(&[command, CHECKPOINT, "--context", "64"]));
        run.arguments(formats).arguments(more)
    };
    let sizes = |formats: &str| -> u64 {
        let plan = place.run(&["plan", CHECKPOINT, "--context", "64", "--formats", formats]);
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
    let bundle = place.path().join("bundle").display().to_string();
    run("compile", &["-o", &bundle]).succeeds();
    let planned = run("plan", &[]).json();
    assert!(!places(&planned).contains(&default[0]), "{planned}");
    let text = run("tune", &[]).succeeds();
    assert!(text.contains("faster by more than the spread") && text.contains("ratio"), "{text}");
    // Measurements on the chip do not apply to its cut on the CPU.
    assert_eq!(places(&run("plan", &["--on", "cpu"]).json()), default);

    // A bundle with that plan is tuned with its checkpoint, in a cache without measurements. Its
    // plan is timed together with the default plan for its options.
    let elsewhere = Place::new();
    let tuned = chip.found_by(elsewhere.run(&["tune", &bundle, "--checkpoint", CHECKPOINT])).json();
    assert_eq!(tuned["before"]["plan"], report["before"]["plan"], "{tuned}");
    let of_bundle = &tuned["tried"][1];
    assert_eq!(of_bundle["asked"], "the bundle's plan", "{tuned}");
    assert_eq!(of_bundle["plan"], report["after"]["plan"], "{tuned}");
    let result = of_bundle["result"].as_str().expect("a result");
    assert!(result.starts_with("faster"), "{tuned}");
    assert_eq!(tuned["outcome"], "faster", "{tuned}");
    assert!(!elsewhere.kept("times").is_empty());
}

#[test]
fn on_a_simulator_times_count_for_the_simulator_alone() {
    let place = Place::new();
    let asked = ["--soc", "mt6989", "--minutes", "0"];
    let report = place.tune(&asked).arguments(["--on", "simulator"]).json();
    assert_eq!((&report["outcome"], timed(&report)), (&Value::from("unfinished"), 1), "{report}");
    let plan = |on: &str| place.run(&["plan", CHECKPOINT, "--context", "64", "--soc", "mt6989", "--on", on]);
    assert!(plan("simulator").succeeds().contains("were measured by `shardwright tune`"));
    assert!(!plan("cpu").succeeds().contains("were measured by"));
    // On the CPU, the report states that these are not the chip's times.
    let emulated = place.tune(&asked).arguments(["--on", "cpu"]).succeeds();
    assert!(emulated.contains("*emulated on cpu*"), "{emulated}");
}

#[test]
fn what_cannot_be_tuned_is_refused_with_help() {
    let place = Place::new();
    let bundle = Compiled::from(TEXT_FIXTURES[3], [] as [&str; 0]);
    let bundle = bundle.path().display().to_string();
    let on_device = ["tune", CHECKPOINT, "--soc", "mt6989", "--on", "device"];
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&on_device, 3, &["mt6989", "--on cpu"]),
        (&["tune", &bundle], 2, &["is a bundle", "--checkpoint DIR"]),
        (&["tune", &bundle, "--checkpoint", CHECKPOINT], 6, &["not the checkpoint the bundle was made of"]),
        (
            &["tune", &bundle, "--checkpoint", CHECKPOINT, "--soc", "mt6989"],
            2,
            &["no variant for `mt6989`", "variants are for generic", "--soc"],
        ),
        (&["tune", CHECKPOINT, "--checkpoint", CHECKPOINT], 2, &["needs a bundle"]),
        (&["tune", EMBEDDING_FIXTURE], 5, &["embeds", "plan"]),
        (&["tune", CHECKPOINT, "--context", "4"], 10, &["is too short for timing", "--context"]),
        (&["tune", "no/such/folder"], 3, &["no such file"]),
        (&["tune", CHECKPOINT, "--minutes", "soon"], 2, &["number of minutes"]),
        (&["tune", CHECKPOINT, "--on", "simulator"], 2, &["generic", "--soc"]),
    ];
    for (arguments, code, words) in cases {
        let (actual, stderr) = place.run(arguments).refuses();
        assert_eq!(actual, *code, "{arguments:?}: {stderr}");
        for word in *words {
            assert!(stderr.contains(word), "{arguments:?}: no `{word}` in {stderr}");
        }
    }
}

#[test]
fn damaged_files_are_measured_again_and_others_folders_are_not_believed() {
    let place = Place::new();
    place.tune(&["--minutes", "0"]).succeeds();
    for name in ["trials", "times"] {
        for path in place.kept(name).keys() {
            fs::write(place.folder(name).join(path), "{").expect("written");
        }
    }
    let plan = place.run(&["plan", CHECKPOINT, "--context", "64"]).succeeds();
    assert!(plan.contains("is damaged; it counts as not measured"), "{plan}");
    let outcome = place.tune(&["--minutes", "0"]).outcome();
    assert!(outcome.stderr.contains("damaged. Measuring it again"), "{}", outcome.stderr);
    assert!(place.kept("trials").values().all(|bytes| bytes.len() > 1));

    let open_to_all = fs::Permissions::from_mode(0o777);
    fs::set_permissions(place.folder("times"), open_to_all).expect("set");
    let plan = place.run(&["plan", CHECKPOINT, "--context", "64"]).succeeds();
    assert!(plan.contains("may be written by others") && !plan.contains("(measured)"), "{plan}");
    let (code, stderr) = place.tune(&["--minutes", "0"]).refuses();
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("a cache folder of your own"), "{stderr}");
}

#[test]
fn an_interrupt_ends_it_and_keeps_what_was_measured() {
    let place = Place::new();
    let child = Command::new(program::executable())
        .current_dir(tree::root())
        .args(["tune", CHECKPOINT, "--context", "1024"])
        .env("XDG_CACHE_HOME", place.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let start = Instant::now();
    while place.kept("trials").is_empty() && start.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let asked = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    let output = child.wait_with_output().expect("waited");
    if !asked.success() || output.status.success() {
        skipped("an interrupt of tuning: it had ended");
        return;
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(!place.kept("trials").is_empty());
}
