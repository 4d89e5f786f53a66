//! `perplexity` as a user runs it: its report, its refusals, and that an interrupted run resumes to
//! the same figures.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};

use serde_json::{Value, json};
use shardwright_tests::bundles::Compiled;
use shardwright_tests::cache::Cache;
use shardwright_tests::checkpoints::{DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::program::{self, Run};

/// A text of some thousand tokens.
const TEXT: &str = "docs/using.md";
/// Exit code that a shell reports for an interrupted program.
const INTERRUPTED: i32 = 130;

/// Prepares a measurement of the demo model.
fn run(cache: &Cache, more: &[&str]) -> Run {
    cache.run(["perplexity", DEMO_MODEL, "--text", TEXT]).arguments(more)
}

/// Returns the files of finished windows.
fn kept(cache: &Cache) -> Vec<PathBuf> {
    cache.files("perplexities", "json")
}

/// Starts the command and waits until `windows` windows are stored. It has not ended by then.
fn begin(cache: &Cache, more: &[&str], windows: usize) -> Child {
    let mut child = run(cache, more).started_until(|| kept(cache).len() >= windows);
    assert!(child.try_wait().expect("waiting").is_none(), "it ended too soon");
    child
}

/// Kills the command once five windows are stored, and returns how many are.
fn killed(cache: &Cache, more: &[&str]) -> usize {
    let mut child = begin(cache, more, 5);
    child.kill().expect("killed");
    child.wait().expect("waited");
    let kept = kept(cache).len();
    assert!(kept >= 5);
    kept
}

/// Removes the number of resumed windows from the report and returns it.
fn take_resumed(report: &mut Value) -> u64 {
    let resumed = report["text"]["resumed"].take();
    resumed.as_u64().expect("a number")
}

#[test]
fn interrupted_and_damaged_it_resumes_to_the_same_figures() {
    let whole = Cache::empty();
    let more = "--window 64 --chunks 30 --formats w4-block32/a8-dynamic --rounding nearest --against";
    let more: Vec<&str> = more.split(' ').chain([DEMO_MODEL]).collect();
    let mut wanted = run(&whole, &more).json();
    assert_eq!(take_resumed(&mut wanted), 0);
    assert!(kept(&whole).is_empty(), "kept only until all are measured");
    let cache = Cache::empty();
    let before = killed(&cache, &more);
    // An interrupt from the terminal ends it too.
    let mut interrupted = begin(&cache, &more, before + 5);
    let sent = Command::new("kill").args(["-INT", &interrupted.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    assert_eq!(interrupted.wait().expect("waited").code(), Some(INTERRUPTED));
    let windows = kept(&cache);
    assert!(windows.len() >= before + 5, "{} of {before}", windows.len());
    let damaged = fs::read(&windows[0]).expect("read");
    fs::write(&windows[0], &damaged[..damaged.len() / 2]).expect("written");
    let outcome = run(&cache, &more).arguments(["--format", "json"]).outcome();
    assert!(outcome.stderr.contains("damaged. Measuring it again"), "{}", outcome.stderr);
    let mut report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(take_resumed(&mut report), windows.len() as u64 - 1);
    assert_eq!(report, wanted);
    assert!(kept(&cache).is_empty());
    // The next call measures again. Other steps and threads give the same figures.
    let other = ["-t", "1", "--planner-option", "speculation=none"];
    let mut again = run(&cache, &more).arguments(other).json();
    assert_eq!(take_resumed(&mut again), 0);
    for part in ["likelihood", "text"] {
        assert_eq!(again[part], wanted[part]);
    }
    assert_eq!(again["against"]["kl"], wanted["against"]["kl"]);
}

/// A library of the same version may contain other code.
#[test]
fn windows_of_another_library_are_measured_again() {
    let cache = Cache::empty();
    let shims = cache.home().join("shims");
    fs::create_dir(&shims).expect("a folder");
    let library = format!("{DLL_PREFIX}shardwright_shim_cpu{DLL_SUFFIX}");
    for file in [&library, &format!("{DLL_PREFIX}shardwright_shim_cpu.shim.json")] {
        fs::copy(program::folder().join("shims").join(file), shims.join(file)).expect("copied");
    }
    let more = ["--window", "64", "--chunks", "30", "--shims", shims.to_str().expect("UTF-8")];
    let before = killed(&cache, &more);
    // Loaders ignore bytes after the last section.
    let changed = [fs::read(shims.join(&library)).expect("read"), vec![0]].concat();
    fs::write(shims.join(&library), changed).expect("written");
    assert_eq!(take_resumed(&mut run(&cache, &more).json()), 0);
    assert_eq!(kept(&cache).len(), before);
}

#[test]
fn the_report_has_what_was_run_and_every_figure_with_its_error() {
    let cache = Cache::empty();
    let more = ["--chunks", "3", "--soc", "generic", "--against", DEMO_MODEL];
    let report = run(&cache, &more).json();
    let text = &report["text"];
    assert_eq!(text["path"], TEXT);
    for (name, value) in [("window", 512), ("windows", 3), ("scored", 3 * 255), ("resumed", 0)] {
        assert_eq!(text[name], value, "{name}");
    }
    assert_eq!(text["tokens"], text["left"].as_u64().expect("a number") + 3 * 512);
    assert_eq!((&text["bos"], &text["stride"]), (&json!(true), &Value::Null));
    assert_eq!(text["sha256"].as_str().map(str::len), Some(64));
    assert_eq!(
        (&report["model"]["name"], &report["model"]["soc"]),
        (&json!("demo-model"), &json!("generic"))
    );
    assert_eq!(report["errors"], json!({ "unit": "windows", "resamples": 1000, "seed": 0 }));
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {report}"));
    for likelihood in [&report["likelihood"], &report["against"]["likelihood"]] {
        assert!(
            (number(&likelihood["nll"]["value"]).exp() / number(&likelihood["perplexity"]) - 1.0).abs()
                < 1e-9
        );
        assert!(number(&likelihood["nll"]["error"]) > 0.0 && number(&likelihood["perplexity_error"]) > 0.0);
    }
    // Both models are planned as stored.
    let against = &report["against"];
    assert_eq!((&against["kl"]["max"], &against["same_top"]["value"]), (&json!(0.0), &json!(1.0)));
    for name in ["mean", "median", "p95", "p99"] {
        assert_eq!(against["kl"][name], json!({ "value": 0.0, "error": 0.0 }));
    }
    // The text report shows it too.
    let shown = run(&cache, &more).succeeds();
    for words in
        ["3 of 512 tokens, without overlap", "765 tokens, 255 of each", "± ", "top token", "1000 resamples"]
    {
        assert!(shown.contains(words), "no `{words}` in {shown}");
    }
}

#[test]
fn a_bundle_is_measured_as_the_checkpoint_that_it_was_compiled_from() {
    let cache = Cache::empty();
    let more = ["--window", "32", "--stride", "20", "--chunks", "6"];
    let bundle = Compiled::from(DEMO_MODEL, ["--context", "64", "--formats", "w8-per-channel/f32"]);
    let bundle = bundle.path();
    let path = bundle.to_str().expect("UTF-8");
    let of_bundle = cache.run(["perplexity", path, "--text", TEXT]).arguments(more).json();
    let formats = ["--formats", "w8-per-channel/f32", "--context", "64", "--against", path];
    let report = run(&cache, &more).arguments(formats).json();
    assert_eq!(report["likelihood"], of_bundle["likelihood"]);
    assert!(of_bundle["model"]["bundle"].is_string());
    assert_eq!(report["against"]["model"]["bundle"], of_bundle["model"]["bundle"]);
    assert_eq!(report["against"]["kl"]["max"], 0.0);
    assert_eq!((&report["text"]["stride"], &report["text"]["scored"]), (&json!(20), &json!(120)));
}

#[test]
fn what_cannot_be_measured_ends_with_the_code_of_its_kind() {
    let cache = Cache::empty();
    let run = |more: &[&str]| run(&cache, more);
    let other = "has a different vocabulary than `demo-model`: id 0 is";
    run(&["--against", TEXT_FIXTURES[3]]).refuses_with(6, &[other]);
    run(&["--window", "1025"]).refuses_with(10, &["a context of 1024"]);
    run(&["--window", "0"]).refuses_with(2, &["--window"]);
    run(&["--against", "no-such-model"]).refuses_with(3, &["no-such-model"]);
    let empty = cache.home().join("text");
    fs::write(&empty, "").expect("written");
    let empty = cache.run(["perplexity", DEMO_MODEL, "--text"]).argument(&empty);
    empty.refuses_with(4, &["the text is empty"]);
    // Steps are not larger than a small context.
    let small = run(&["--context", "8", "--chunks", "2"]).json();
    assert_eq!((&small["text"]["window"], &small["text"]["scored"]), (&json!(8), &json!(6)));
}
