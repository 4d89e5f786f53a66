//! `sensitivity` as a user runs it: its stored files, that it is resumed to the same result, and
//! that plans use the losses and report so.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::contents;
use shardwright_tests::checkpoints::{EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::tree;
use tempfile::TempDir;

const CHECKPOINT: &str = TEXT_FIXTURES[1];
const FORMATS: [&str; 4] = ["--formats", "w8-per-channel/a8-dynamic/f16", "--formats", "w4-block32/a16/a8"];

/// A short text, so that moments are computed quickly.
const TEXT: &str = "What is a pot?\tA pot holds water.\nAnd a lid?\tA lid covers a pot.\n\
                    Who walks there?\tThe king walks in the garden, and his men behind him.\n";

/// A separate cache, and a text.
struct Place {
    folder: TempDir,
    text: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let text = folder.path().join("text");
        fs::write(&text, TEXT).expect("written");
        Place { folder, text }
    }

    /// Creates another cache with the same text.
    fn beside(&self) -> Self {
        Place { text: self.text.clone(), ..Place::new() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Run {
        shardwright(arguments).environment("XDG_CACHE_HOME", self.path())
    }

    fn sensitivity(&self, more: &[&str]) -> Run {
        let run = self.run(["sensitivity", CHECKPOINT, "--text"]).argument(&self.text);
        run.arguments(FORMATS).arguments(more)
    }

    fn losses(&self) -> PathBuf {
        self.path().join("shardwright/sensitivities")
    }

    /// Returns the stored files.
    fn kept(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        contents(&self.losses())
    }
}

fn measured(report: &Value) -> (u64, u64) {
    let number = |name: &str| report[name].as_u64().expect("a number");
    (number("measured"), number("of"))
}

fn is_loss(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "loss")
}

#[test]
fn killed_while_losses_are_measured_files_and_tables_are_the_same() {
    let whole = Place::new();
    let table = whole.sensitivity(&[]).succeeds();
    let wanted = whole.kept();
    let all = wanted.keys().filter(|path| is_loss(path)).count();
    let (place, moments) = (whole.beside(), cases(6, 50));
    let kept = || match place.losses().is_dir() {
        true => fs::read_dir(place.losses()).map_or(0, |folders| {
            let below =
                folders.flatten().flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten());
            let files = below.flatten().filter(|entry| entry.path().is_dir());
            let files = files.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
            files.filter(|file| is_loss(&file.path())).count()
        }),
        false => 0,
    };
    for moment in 0..moments {
        let mut child = Command::new(program::executable())
            .current_dir(tree::root())
            .args(["sensitivity", CHECKPOINT, "--text"])
            .arg(&place.text)
            .args(FORMATS)
            .env("XDG_CACHE_HOME", place.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        // The first run is killed before any measurement, the others once that many losses are
        // stored.
        let wanted_now = all * moment / moments;
        let start = Instant::now();
        while kept() < wanted_now && start.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(1));
        }
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
    assert_eq!(place.sensitivity(&[]).succeeds(), table);
    let kept: BTreeMap<PathBuf, Vec<u8>> =
        place.kept().into_iter().filter(|(path, _)| wanted.contains_key(path)).collect();
    assert!(kept == wanted);
}

#[test]
fn neither_threads_nor_interruptions_change_a_loss() {
    let first = Place::new();
    let single = first.beside();
    let table = first.sensitivity(&["-t", "2"]).succeeds();
    let run = single.sensitivity(&["-t", "1"]).environment("RAYON_NUM_THREADS", "1");
    assert_eq!(run.succeeds(), table);
    // Some losses are removed. Only these are measured again, to the same values.
    let mut lost = 0;
    for path in first.kept().into_keys().filter(|path| is_loss(path)).step_by(5) {
        fs::remove_file(first.losses().join(path)).expect("removed");
        lost += 1;
    }
    let outcome = first.sensitivity(&[]).outcome();
    assert_eq!(outcome.stdout, table);
    assert!(outcome.stderr.contains(&format!("{lost} losses were measured")), "{}", outcome.stderr);
    assert!(first.kept() == single.kept());
}

/// A plan reports which share of its loss is measured: none, a part, or all.
#[test]
fn plans_rest_on_what_is_measured() {
    let place = Place::new();
    let plan = || {
        let run = place.run(["plan", CHECKPOINT, "--calibration-text"]).argument(&place.text);
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

    // Every third loss is removed.
    for path in place.kept().into_keys().filter(|path| is_loss(path)).step_by(3) {
        fs::remove_file(place.losses().join(path)).expect("removed");
    }
    let part = loss();
    assert_eq!(part["known"], "expected", "{part}");
    let [measured, of] = ["measured", "micronats"].map(|name| part[name].as_u64().expect("a number"));
    assert!(0 < measured && measured < of, "{part}");
    let text = plan().succeeds();
    let said = format!("{} % of it measured", measured * 100 / of);
    assert!(text.contains(&said), "no {said} in {text}");
    let page = place.path().join("plan.html").display().to_string();
    plan().arguments(["--html", &page]).succeeds();
    assert!(fs::read_to_string(&page).expect("a page").contains(&said));

    // Another rounding and another text are measured separately.
    let other = place.sensitivity(&["--rounding", "compensated", "--minutes", "0"]).json();
    assert_eq!(self::measured(&other), (0, all));
    let text = place.path().join("other");
    fs::write(&text, TEXT.lines().next().expect("a line")).expect("written");
    let other = place.run(["sensitivity", CHECKPOINT, "--minutes", "0", "--text"]).argument(text);
    assert_eq!(self::measured(&other.arguments(FORMATS).json()), (0, all));
    // A plan with a goal measures only the missing losses.
    let outcome = plan().arguments(["--quality", "100000"]).outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(loss(), after);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let place = Place::new();
    let refused = |arguments: &[&str], words: &str| {
        let (_, stderr) = place.run(["sensitivity"]).arguments(arguments.iter().copied()).refuses();
        assert!(stderr.contains(words), "no `{words}` in {stderr}");
    };
    refused(&[CHECKPOINT, "--formats", "stored"], "none of these formats loses anything");
    refused(&[CHECKPOINT, "--minutes", "-1"], "minutes");
    refused(&[CHECKPOINT, "--minutes", "NaN"], "minutes");
    refused(&[CHECKPOINT, "--text", "no/such/text"], "no/such/text");
    refused(&["no/such/checkpoint"], "no such file or directory");
    refused(&["README.md"], "not a checkpoint");
    refused(&[CHECKPOINT, "--soc", "no-such-chip"], "no-such-chip");
    let nowhere = place.path().join("nothing");
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
        let run = place.run(["sensitivity", EMBEDDING_FIXTURE, "--formats", "w4-block32/f32/f32"]);
        run.arguments(more.iter().copied())
    };
    let report = run(&["--minutes", "0"]).json();
    assert!(report["losses"][0]["micronats"].is_null() && report["formats"][0]["micronats"].is_null());
    assert!(run(&["--minutes", "0"]).succeeds().contains("everywhere: not known"));
    let plan = || place.run(["plan", EMBEDDING_FIXTURE, "--formats", "w4-block32/f32/f32"]).json();
    assert_eq!(plan()["totals"]["loss"]["known"], "not-measured");
    let report = run(&[]).json();
    let (done, all) = measured(&report);
    assert!(report["text"].as_str().is_some_and(|text| text.contains("turns, code, numbers")), "{report}");
    assert!(done == all && report["formats"][0]["micronats"].as_f64() > Some(0.0), "{report}");
    assert_eq!(plan()["totals"]["loss"]["known"], "measured");
}
