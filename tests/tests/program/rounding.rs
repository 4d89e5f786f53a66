//! `compile --rounding compensated` as a user runs it: its reports, that its bytes depend only on
//! the checkpoint, the text and the format, and that it is resumed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::contents;
use shardwright_tests::cache::Cache;
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_tests::program::Run;

const CHECKPOINT: &str = TEXT_FIXTURES[1];
const FORMATS: [&str; 2] = ["--formats", "w4-block32/f32/f32"];
const COMPENSATED: [&str; 2] = ["--rounding", "compensated"];
const SAID: &str = "input moments of weights were computed in";
const KEPT: &str = "input moments of weights were cached for";

/// Prepares a compilation with a cache. The bundle is written to the folder of the cache.
fn compile(cache: &Cache, more: &[&str]) -> Run {
    cache.run(["compile", CHECKPOINT, "-o"]).argument(cache.home().join("bundle")).arguments(more)
}

/// Compiles with formats that round, and returns the messages.
fn compiled(cache: &Cache, more: &[&str]) -> String {
    said(compile(cache, more).arguments(FORMATS))
}

/// Returns the files of the bundle.
fn bundle(cache: &Cache) -> BTreeMap<PathBuf, Vec<u8>> {
    contents(&cache.home().join("bundle"))
}

/// Counts files of moments in the cache.
fn moments(cache: &Cache) -> usize {
    cache.files("moments", "moments").len()
}

/// Returns the messages of a command.
fn said(run: Run) -> String {
    let outcome = run.outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    outcome.stdout + &outcome.stderr
}

#[test]
fn weights_rounded_by_moments_depend_on_checkpoint_text_and_format_alone() {
    let (first, start) = (Cache::empty(), Instant::now());
    let taken = compiled(&first, &COMPENSATED);
    let took = start.elapsed();
    assert!(taken.contains(SAID) && taken.contains("turns, code, numbers, languages, long"), "{taken}");
    assert!(!taken.contains("`--rounding compensated` has no effect"), "{taken}");
    assert!(moments(&first) > 10);
    let wanted = bundle(&first);

    // One thread, killed while moments are taken, sums and rounds to the same bytes.
    let (killed, kills) = (Cache::empty(), cases(6, 50) as u32);
    let single = || compile(&killed, &COMPENSATED).arguments(FORMATS).environment("RAYON_NUM_THREADS", "1");
    let mut ended = 0;
    for kill in 1..=kills {
        ended += u32::from(single().killed_after(took * kill / (kills + 1)));
    }
    assert!(ended <= kills - kills / 3, "{ended} of {kills} ended before they were killed");
    said(single());
    assert!(bundle(&killed) == wanted);
    assert_eq!(moments(&killed), moments(&first));

    // The manifest contains the options of the user. Moments are cached.
    let made = |mut contents: BTreeMap<PathBuf, Vec<u8>>| {
        contents.remove(Path::new("bundle.json")).expect("a manifest");
        contents
    };
    let again = compiled(&first, &[]);
    assert!(again.contains(KEPT) && !again.contains(SAID), "{again}");
    assert!(made(bundle(&first)) == made(wanted.clone()));
    let nearest = Cache::empty();
    assert!(!compiled(&nearest, &["--rounding", "nearest"]).contains(SAID));
    assert!(made(bundle(&nearest)) != made(wanted.clone()) && moments(&nearest) == 0);
    // On the CPU, weights stay as stored unless other formats are offered.
    let stored = said(compile(&Cache::empty(), &COMPENSATED));
    assert!(stored.contains("`--rounding compensated` has no effect") && !stored.contains(SAID), "{stored}");
    // Another text gives other moments.
    let text = first.home().join("text");
    fs::write(&text, "What is a pot?\tA pot holds water.\n").expect("written");
    let text = text.display().to_string();
    let other = compiled(&first, &[&COMPENSATED[..], &["--calibration-text", &text]].concat());
    assert!(other.contains(SAID) && other.contains(&text), "{other}");
    assert!(bundle(&first) != wanted);
}

#[test]
fn plans_are_run_and_lose_less_by_the_usual_rounding() {
    let cache = Cache::for_test();
    let run = |more: &[&str]| cache.run(["plan", CHECKPOINT]).arguments(FORMATS).arguments(more);
    let measured = |more: &[&str]| run(more).json()["measured"].clone();
    let (nearest, usual) = (measured(&["--rounding", "nearest"]), measured(&[]));
    assert!(moments(&cache) > 0);
    let micronats = |measured: &Value| measured["micronats"].as_u64().expect("a number");
    assert!(0 < micronats(&usual) && micronats(&usual) < micronats(&nearest), "{usual} {nearest}");
    assert!(usual["tokens"].as_u64() >= Some(200) && usual["error_micronats"].as_u64() > Some(0), "{usual}");
    // From the cache, and again without it.
    assert_eq!(measured(&["--measure"]), usual);
    fs::remove_dir_all(cache.path().join("plan-losses")).expect("it was kept there");
    assert_eq!(measured(&[]), usual);
    assert_eq!(measured(&["--no-measure"]), Value::Null);
    let shown = run(&[]).succeeds();
    assert!(shown.contains("tokens of built-in text (unseen)") && shown.contains("before measuring"));
    // Stored formats have no loss, and a quality goal is compared with the measured loss.
    assert_eq!(cache.run(["plan", CHECKPOINT]).json()["measured"], Value::Null);
    let goal = run(&["--quality", "100000"]).json();
    assert_eq!(goal["goals"][0]["predicted"], goal["measured"]["micronats"], "{goal}");
    assert_eq!(goal["goals"][0]["provenance"], "measured");
}
