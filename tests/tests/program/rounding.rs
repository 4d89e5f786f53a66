//! `compile --rounding compensated` as a user runs it: its reports, that its bytes depend only on
//! the checkpoint, the text and the format, and that it is resumed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::contents;
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_tests::program::{self, shardwright};
use shardwright_tests::tree;

const CHECKPOINT: &str = TEXT_FIXTURES[1];
const FORMATS: [&str; 2] = ["--formats", "w4-block32/f32/f32"];
const COMPENSATED: [&str; 2] = ["--rounding", "compensated"];
const SAID: &str = "moments of what weights are multiplied with were taken";
const KEPT: &str = "moments of what weights are multiplied with are kept of";

/// A separate cache with a bundle.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    fn cache(&self) -> PathBuf {
        self.0.path().join("cache")
    }

    fn bundle(&self) -> PathBuf {
        self.0.path().join("bundle")
    }

    /// Compiles and returns the messages.
    fn compile(&self, more: &[&str]) -> String {
        self.compile_with(more, None)
    }

    /// Like [`compile`](Self::compile), with this number of threads for the host's computations.
    fn compile_with(&self, more: &[&str], threads: Option<&str>) -> String {
        let bundle = self.bundle().display().to_string();
        let run = shardwright(["compile", CHECKPOINT, "-o", &bundle]).arguments(FORMATS).arguments(more);
        let run = run.environment("XDG_CACHE_HOME", self.cache());
        let run = match threads {
            Some(threads) => run.environment("RAYON_NUM_THREADS", threads),
            None => run,
        };
        let outcome = run.outcome();
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        outcome.stdout + &outcome.stderr
    }

    /// Returns the files of the bundle.
    fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        contents(&self.bundle())
    }

    /// Counts files of moments in the cache.
    fn moments(&self) -> usize {
        files_below(&self.cache())
            .into_iter()
            .filter(|path| path.extension().is_some_and(|e| e == "moments"))
            .count()
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn weights_rounded_by_moments_depend_on_checkpoint_text_and_format_alone() {
    let first = Place::new();
    let said = first.compile(&COMPENSATED);
    assert!(said.contains(SAID) && said.contains("turns, code, numbers, languages, long"), "{said}");
    assert!(first.moments() > 10);
    let wanted = first.contents();
    // Moments are cached, and one thread sums and rounds to the same bytes as all threads.
    let said = first.compile(&COMPENSATED);
    assert!(said.contains(KEPT) && !said.contains(SAID), "{said}");
    assert!(first.contents() == wanted);
    let single = Place::new();
    single.compile_with(&COMPENSATED, Some("1"));
    assert!(single.contents() == wanted);
    let nearest = Place::new();
    assert!(!nearest.compile(&["--rounding", "nearest"]).contains(SAID));
    // The manifest contains the options of the user.
    let made = |mut contents: BTreeMap<PathBuf, Vec<u8>>| {
        contents.remove(Path::new("bundle.json")).expect("a manifest");
        contents
    };
    assert!(made(nearest.contents()) != made(wanted.clone()) && nearest.moments() == 0);
    first.compile(&[]);
    assert!(made(first.contents()) == made(wanted.clone()));
    // On the CPU, weights stay as stored unless other formats are offered.
    let place = Place::new();
    let bundle = place.bundle().display().to_string();
    let compile = shardwright(["compile", CHECKPOINT, "-o", &bundle]).arguments(COMPENSATED);
    let stored = compile.environment("XDG_CACHE_HOME", place.cache()).outcome();
    let stored = stored.stdout + &stored.stderr;
    assert!(stored.contains("has nothing to round") && !stored.contains(SAID), "{stored}");
    assert!(!said.contains("has nothing to round"), "{said}");
    // Another text gives other moments.
    let text = first.0.path().join("text");
    std::fs::write(&text, "What is a pot?\tA pot holds water.\n").expect("written");
    let text = text.display().to_string();
    let said = first.compile(&[&COMPENSATED[..], &["--calibration-text", &text]].concat());
    assert!(said.contains(SAID) && said.contains(&text), "{said}");
    assert!(first.contents() != wanted);
}

#[test]
fn killed_while_moments_are_taken_the_bytes_are_the_same() {
    let whole = Place::new();
    let start = Instant::now();
    whole.compile(&COMPENSATED);
    let took = start.elapsed();
    let wanted = whole.contents();
    let (place, moments) = (Place::new(), cases(6, 50) as u32);
    program::share_planner(&place.cache());
    let mut killed = 0;
    for moment in 1..=moments {
        let mut child = Command::new(program::executable())
            .current_dir(tree::root())
            .args(["compile", CHECKPOINT, "-o", &place.bundle().display().to_string()])
            .args(FORMATS)
            .args(COMPENSATED)
            .env("XDG_CACHE_HOME", place.cache())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(took * moment / (moments + 1));
        killed += u32::from(child.try_wait().expect("waiting").is_none());
        child.kill().expect("killed");
        child.wait().expect("waited");
    }
    assert!(killed >= moments / 3, "{killed} of {moments} were killed before they ended");
    place.compile(&COMPENSATED);
    assert!(place.contents() == wanted);
    assert_eq!(place.moments(), whole.moments());
}

#[test]
fn plans_are_run_and_lose_less_by_the_usual_rounding() {
    let place = Place::new();
    let run = |more: &[&str]| {
        let run = shardwright(["plan", CHECKPOINT]).arguments(FORMATS).arguments(more);
        run.environment("XDG_CACHE_HOME", place.cache())
    };
    let measured = |more: &[&str]| run(more).json()["measured"].clone();
    let (nearest, usual) = (measured(&["--rounding", "nearest"]), measured(&[]));
    assert!(place.moments() > 0);
    let micronats = |measured: &Value| measured["micronats"].as_u64().expect("a number");
    assert!(0 < micronats(&usual) && micronats(&usual) < micronats(&nearest), "{usual} {nearest}");
    assert!(usual["tokens"].as_u64() >= Some(200) && usual["error_micronats"].as_u64() > Some(0), "{usual}");
    // From the cache, and again without it.
    assert_eq!(measured(&["--measure"]), usual);
    fs::remove_dir_all(place.cache().join("shardwright/plan-losses")).expect("it was kept there");
    assert_eq!(measured(&[]), usual);
    assert_eq!(measured(&["--no-measure"]), Value::Null);
    let shown = run(&[]).succeeds();
    assert!(shown.contains("tokens of built-in text (unseen)") && shown.contains("before measuring"));
    // Stored formats have no loss, and a quality goal is compared with the measured loss.
    let stored = shardwright(["plan", CHECKPOINT]);
    assert_eq!(stored.environment("XDG_CACHE_HOME", place.cache()).json()["measured"], Value::Null);
    let goal = run(&["--quality", "100000"]).json();
    assert_eq!(goal["goals"][0]["predicted"], goal["measured"]["micronats"], "{goal}");
    assert_eq!(goal["goals"][0]["provenance"], "measured");
}
