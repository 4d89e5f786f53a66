//! `sensitivity` as a user runs it: its stored files, that it is resumed to the same result, and
//! that plans use the losses and report so.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::contents;
use shardwright_tests::cache::Cache;
use shardwright_tests::checkpoints::{EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::Run;

const CHECKPOINT: &str = TEXT_FIXTURES[1];
const FORMATS: [&str; 4] = ["--formats", "w8-per-channel/a8-dynamic/f16", "--formats", "w4-block32/a16/a8"];

/// A short text, so that moments are computed quickly.
const TEXT: &str = "What is a pot?\tA pot holds water.\nAnd a lid?\tA lid covers a pot.\n\
                    Who walks there?\tThe king walks in the garden, and his men behind him.\n";

/// A separate cache, and a text.
struct Place {
    cache: Cache,
    text: PathBuf,
}

impl Place {
    fn new() -> Self {
        let cache = Cache::empty();
        let text = cache.home().join("text");
        fs::write(&text, TEXT).expect("written");
        Place { cache, text }
    }

    fn sensitivity(&self, more: &[&str]) -> Run {
        let run = self.cache.run(["sensitivity", CHECKPOINT, "--text"]).argument(&self.text);
        run.arguments(FORMATS).arguments(more)
    }

    fn losses(&self) -> PathBuf {
        self.cache.path().join("sensitivities")
    }

    /// Returns the stored files.
    fn kept(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        contents(&self.losses())
    }

    /// Returns the paths of stored losses.
    fn kept_losses(&self) -> Vec<PathBuf> {
        self.cache.files("sensitivities", "loss")
    }

    /// Removes one of so many losses, and returns how many are removed.
    fn lose(&self, one_of: usize) -> usize {
        let lost: Vec<PathBuf> = self.kept_losses().into_iter().step_by(one_of).collect();
        lost.iter().for_each(|path| fs::remove_file(path).expect("removed"));
        lost.len()
    }
}

fn measured(report: &Value) -> (u64, u64) {
    let number = |name: &str| report[name].as_u64().expect("a number");
    (number("measured"), number("of"))
}

#[test]
fn neither_threads_nor_interruptions_change_a_loss() {
    let whole = Place::new();
    let table = whole.sensitivity(&["-t", "2"]).succeeds();
    let (wanted, all) = (whole.kept(), whole.kept_losses().len());
    // Another run on the same text has one thread, and is killed.
    let (place, moments) = (Place { text: whole.text.clone(), ..Place::new() }, cases(6, 50));
    let single = || place.sensitivity(&["-t", "1"]).environment("RAYON_NUM_THREADS", "1");
    for moment in 0..moments {
        // The first run is killed before any measurement, the others once that many losses are
        // stored.
        let wanted_now = all * moment / moments;
        let mut child = single().started_until(|| place.kept_losses().len() >= wanted_now);
        assert!(child.try_wait().expect("waiting").is_none(), "it ended before {wanted_now} losses");
        child.kill().expect("killed");
        child.wait().expect("waited");
        // All stored files are complete, except for a temporary one that was being written.
        if place.losses().is_dir() {
            for (path, bytes) in place.kept().iter().filter(|(path, _)| wanted.contains_key(*path)) {
                assert!(*bytes == wanted[path], "{}", path.display());
            }
        }
    }
    assert_eq!(single().succeeds(), table);
    let kept: BTreeMap<PathBuf, Vec<u8>> =
        place.kept().into_iter().filter(|(path, _)| wanted.contains_key(path)).collect();
    assert!(kept == wanted);
    // Some losses are removed. Only these are measured again, to the same values.
    let lost = whole.lose(5);
    let outcome = whole.sensitivity(&[]).outcome();
    assert_eq!(outcome.stdout, table);
    assert!(outcome.stderr.contains(&format!("{lost} losses were measured")), "{}", outcome.stderr);
    assert!(whole.kept() == wanted);
}

/// A plan reports which share of its loss is measured: none, a part, or all.
#[test]
fn plans_rest_on_what_is_measured() {
    let place = Place::new();
    let plan = || {
        let run = place.cache.run(["plan", CHECKPOINT, "--calibration-text"]).argument(&place.text);
        run.arguments(FORMATS)
    };
    let loss = || plan().json()["totals"]["loss"].clone();
    let before = loss();
    assert!(before["known"] == "expected" && before["measured"].is_null(), "{before}");
    let report = place.sensitivity(&["--minutes", "0"]).json();
    let (none, all) = measured(&report);
    assert!(none == 0 && all > 50, "{report}");
    let formats = report["formats"].as_array().expect("formats");
    assert!(formats.iter().all(|share| share["measured_micronats"] == 0.0), "{report}");
    let report = place.sensitivity(&[]).json();
    assert_eq!(measured(&report), (all, all));
    let losses = report["losses"].as_array().expect("losses");
    assert!(losses.iter().all(|row| row["provenance"] == "measured" && row["micronats"].is_number()));
    for what in ["mlp-input", "activations", "states", "embedding"] {
        assert!(losses.iter().any(|row| row["what"] == what), "no {what}: {report}");
    }
    let after = loss();
    assert!(after["known"] == "measured" && after["micronats"] != before["micronats"], "{after}");
    let text = plan().succeeds();
    assert!(text.contains("(the sum of measured losses)"), "{text}");

    place.lose(3);
    let part = loss();
    assert_eq!(part["known"], "expected", "{part}");
    let [measured, of] = ["measured", "micronats"].map(|name| part[name].as_u64().expect("a number"));
    assert!(0 < measured && measured < of, "{part}");
    let page = place.cache.home().join("plan.html").display().to_string();
    let text = plan().arguments(["--html", &page]).succeeds();
    let said = format!("{} % of it measured", measured * 100 / of);
    assert!(text.contains(&said), "no {said} in {text}");
    assert!(fs::read_to_string(&page).expect("a page").contains(&said));

    // Another rounding and another text are measured separately.
    let other = place.sensitivity(&["--rounding", "compensated", "--minutes", "0"]).json();
    assert_eq!(self::measured(&other), (0, all));
    let text = place.cache.home().join("other");
    fs::write(&text, TEXT.lines().next().expect("a line")).expect("written");
    let other = place.cache.run(["sensitivity", CHECKPOINT, "--minutes", "0", "--text"]).argument(text);
    assert_eq!(self::measured(&other.arguments(FORMATS).json()), (0, all));
    // A plan with a goal measures only the missing losses.
    plan().arguments(["--quality", "100000"]).succeeds();
    assert_eq!(loss(), after);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let place = Place::new();
    let refused = |arguments: &[&str], words: &str| {
        let (_, stderr) = place.cache.run(["sensitivity"]).arguments(arguments.iter().copied()).refuses();
        assert!(stderr.contains(words), "no `{words}` in {stderr}");
    };
    refused(&[CHECKPOINT, "--formats", "stored"], "all of these formats are lossless");
    refused(&[CHECKPOINT, "--text", "no/such/text"], "no/such/text");
    refused(&[CHECKPOINT, "--soc", "no-such-chip"], "no-such-chip");
    let nowhere = place.cache.home().join("nothing");
    fs::create_dir(&nowhere).expect("made");
    let shims = nowhere.display().to_string();
    // The program also searches its own folder of shims, so an empty folder is not an error.
    place.sensitivity(&["--shims", &shims, "--minutes", "0"]).succeeds();
}

/// There are no expected losses for an encoder, and a part of its losses is not shown as the whole.
#[test]
fn an_encoder_is_measured_as_a_whole() {
    let place = Place::new();
    let run = |more: &[&str]| {
        let run = place.cache.run(["sensitivity", EMBEDDING_FIXTURE, "--formats", "w4-block32/f32/f32"]);
        run.arguments(more.iter().copied())
    };
    let report = run(&["--minutes", "0"]).json();
    assert!(report["losses"][0]["micronats"].is_null() && report["formats"][0]["micronats"].is_null());
    assert!(run(&["--minutes", "0"]).succeeds().contains("everywhere: not known"));
    let plan = || place.cache.run(["plan", EMBEDDING_FIXTURE, "--formats", "w4-block32/f32/f32"]).json();
    assert_eq!(plan()["totals"]["loss"]["known"], "not-measured");
    let report = run(&[]).json();
    let (done, all) = measured(&report);
    assert!(report["text"].as_str().is_some_and(|text| text.contains("turns, code, numbers")), "{report}");
    assert!(done == all && report["formats"][0]["micronats"].as_f64() > Some(0.0), "{report}");
    assert_eq!(plan()["totals"]["loss"]["known"], "measured");
}
