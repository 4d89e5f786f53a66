//! `perplexity` as a user runs it: its report, its refusals, and that an interrupted run resumes to
//! the same figures.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::tree;
use tempfile::TempDir;

/// A text of some thousand tokens.
const TEXT: &str = "docs/using.md";
/// Exit code that a shell reports for an interrupted program.
const INTERRUPTED: i32 = 130;

/// A separate cache.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    fn run(&self, more: &[&str]) -> Run {
        let run = shardwright(["perplexity", DEMO_MODEL, "--text", TEXT]).arguments(more);
        run.environment("XDG_CACHE_HOME", self.0.path())
    }

    /// Starts the command and waits until `windows` windows are stored.
    fn begin(&self, more: &[&str], windows: usize) -> Child {
        let child = Command::new(program::executable())
            .current_dir(tree::root())
            .args(["perplexity", DEMO_MODEL, "--text", TEXT])
            .args(more)
            .env("XDG_CACHE_HOME", self.0.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let start = Instant::now();
        while self.kept().len() < windows && start.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }

    /// Returns the files of finished windows.
    fn kept(&self) -> Vec<PathBuf> {
        let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
        let folder = self.0.path().join("shardwright/perplexities");
        let files = entries(&folder).flat_map(|folder| entries(&folder).collect::<Vec<_>>());
        files.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect()
    }
}

/// Removes the number of resumed windows from the report and returns it.
fn take_resumed(report: &mut Value) -> u64 {
    let resumed = report["text"]["resumed"].take();
    resumed.as_u64().expect("a number")
}

#[test]
fn interrupted_and_damaged_it_resumes_to_the_same_figures() {
    let whole = Place::new();
    let more = "--window 64 --chunks 30 --formats w4-block32/a8-dynamic --rounding nearest --against";
    let more: Vec<&str> = more.split(' ').chain([DEMO_MODEL]).collect();
    let mut wanted = whole.run(&more).json();
    assert_eq!(take_resumed(&mut wanted), 0);
    assert!(whole.kept().is_empty(), "kept only until all are measured");
    let place = Place::new();
    let mut killed = place.begin(&more, 5);
    assert!(killed.try_wait().expect("waiting").is_none(), "it ended before it was killed");
    killed.kill().expect("killed");
    killed.wait().expect("waited");
    let before = place.kept().len();
    assert!(before >= 5);
    // An interrupt from the terminal ends it too.
    let mut interrupted = place.begin(&more, before + 5);
    let sent = Command::new("kill").args(["-INT", &interrupted.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    assert_eq!(interrupted.wait().expect("waited").code(), Some(INTERRUPTED));
    let kept = place.kept();
    assert!(kept.len() >= before + 5, "{} of {before}", kept.len());
    let damaged = fs::read(&kept[0]).expect("read");
    fs::write(&kept[0], &damaged[..damaged.len() / 2]).expect("written");
    let outcome = place.run(&more).arguments(["--format", "json"]).outcome();
    assert!(outcome.stderr.contains("damaged. Measuring it again"), "{}", outcome.stderr);
    let mut report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(take_resumed(&mut report), kept.len() as u64 - 1);
    assert_eq!(report, wanted);
    assert!(place.kept().is_empty());
    // The next call measures again. Other steps and threads give the same figures.
    let mut again = place.run(&more).arguments(["-t", "1", "--planner-option", "speculation=none"]).json();
    assert_eq!(take_resumed(&mut again), 0);
    for part in ["likelihood", "text"] {
        assert_eq!(again[part], wanted[part]);
    }
    assert_eq!(again["against"]["kl"], wanted["against"]["kl"]);
}

/// A library of the same version may contain other code.
#[test]
fn windows_of_another_library_are_measured_again() {
    let place = Place::new();
    let shims = place.0.path().join("shims");
    fs::create_dir(&shims).expect("a folder");
    let library = format!("{DLL_PREFIX}shardwright_shim_cpu{DLL_SUFFIX}");
    for file in [&library, &format!("{DLL_PREFIX}shardwright_shim_cpu.shim.json")] {
        fs::copy(program::folder().join("shims").join(file), shims.join(file)).expect("copied");
    }
    let more = ["--window", "64", "--chunks", "30", "--shims", shims.to_str().expect("UTF-8")];
    let mut killed = place.begin(&more, 5);
    assert!(killed.try_wait().expect("waiting").is_none(), "it ended before it was killed");
    killed.kill().expect("killed");
    killed.wait().expect("waited");
    let kept = place.kept().len();
    assert!(kept >= 5);
    // Loaders ignore bytes after the last section.
    let changed = [fs::read(shims.join(&library)).expect("read"), vec![0]].concat();
    fs::write(shims.join(&library), changed).expect("written");
    assert_eq!(take_resumed(&mut place.run(&more).json()), 0);
    assert_eq!(place.kept().len(), kept);
}

#[test]
fn the_report_has_what_was_run_and_every_figure_with_its_error() {
    let place = Place::new();
    let more = ["--chunks", "3", "--soc", "generic", "--against", DEMO_MODEL];
    let report = place.run(&more).json();
    let text = &report["text"];
    let bytes = tree::read(TEXT.as_ref());
    assert_eq!(text["path"], TEXT);
    for (name, value) in [("window", 512), ("windows", 3), ("scored", 3 * 255), ("resumed", 0)] {
        assert_eq!(text[name], value, "{name}");
    }
    assert_eq!(text["tokens"], text["left"].as_u64().expect("a number") + 3 * 512);
    assert_eq!((&text["bos"], &text["stride"]), (&json!(true), &Value::Null));
    assert_eq!(text["sha256"].as_str().map(str::len), Some(64));
    assert!(bytes.ends_with('\n'));
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
    let shown = place.run(&more).succeeds();
    for words in
        ["3 of 512 tokens, without overlap", "765 tokens, 255 of each", "± ", "top token", "1000 resamples"]
    {
        assert!(shown.contains(words), "no `{words}` in {shown}");
    }
}

#[test]
fn a_bundle_is_measured_as_the_checkpoint_that_it_was_compiled_from() {
    let place = Place::new();
    let more = ["--window", "32", "--stride", "20", "--chunks", "6"];
    let bundle = Compiled::from(DEMO_MODEL, ["--context", "64", "--formats", "w8-per-channel/f32"]);
    let bundle = bundle.path();
    let path = bundle.to_str().expect("UTF-8");
    let run = shardwright(["perplexity", path, "--text", TEXT]).arguments(more);
    let of_bundle = run.environment("XDG_CACHE_HOME", place.0.path()).json();
    let formats = ["--formats", "w8-per-channel/f32", "--context", "64", "--against", path];
    let report = place.run(&more).arguments(formats).json();
    assert_eq!(report["likelihood"], of_bundle["likelihood"]);
    assert!(of_bundle["model"]["bundle"].is_string());
    assert_eq!(report["against"]["model"]["bundle"], of_bundle["model"]["bundle"]);
    assert_eq!(report["against"]["kl"]["max"], 0.0);
    assert_eq!((&report["text"]["stride"], &report["text"]["scored"]), (&json!(20), &json!(120)));
}

#[test]
fn what_cannot_be_measured_ends_with_the_code_of_its_kind() {
    let place = Place::new();
    let refuses = |more: &[&str], code: i32, words: &str| {
        let (found, stderr) = place.run(more).refuses();
        assert!(found == code && stderr.contains(words), "{found}: {stderr}");
    };
    refuses(&["--against", TEXT_FIXTURES[3]], 6, "has a different vocabulary than `demo-model`: id 0 is");
    refuses(&["--window", "1025"], 10, "a context of 1024");
    refuses(&["--window", "2"], 2, "nothing to score");
    refuses(&["--window", "0"], 2, "--window");
    refuses(&["--window", "16", "--stride", "16"], 2, "less than the window");
    refuses(&["--against", "no-such-model"], 3, "no-such-model");
    let text = place.0.path().join("text");
    for (content, code, words) in [
        (&b""[..], 4, "the text is empty"),
        (b"too short", 2, "`--window` of at most"),
        (b"not \xff UTF-8", 4, "offset 4"),
    ] {
        fs::write(&text, content).expect("written");
        let (found, stderr) = shardwright(["perplexity", DEMO_MODEL, "--text"]).argument(&text).refuses();
        assert!(found == code && stderr.contains(words), "{found}: {stderr}");
    }
    // Steps are not larger than a small context.
    let small = place.run(&["--context", "8", "--chunks", "2"]).json();
    assert_eq!((&small["text"]["window"], &small["text"]["scored"]), (&json!(8), &json!(6)));
}
