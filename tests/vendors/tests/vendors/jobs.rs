//! Several chips of one bundle compiled at once: results that do not depend on the number of jobs,
//! and conditions that make compilations wait.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use shardwright::{ErrorKind, OpenOptions};
use shardwright_bundle::Bundle;
use shardwright_tests::bundles::contents;
use shardwright_tests::chip::TestChip;
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::tree;
use tempfile::TempDir;

const CHECKPOINT: &str = "tests/fixtures/gemma3_text";

/// Two chips, each with a shim of its own, and a file of notes where both log their compilations.
struct Bench {
    chips: [TestChip; 2],
    folder: TempDir,
}

const CHIPS: [&str; 2] = ["alpha", "beta"];

impl Bench {
    fn new() -> Self {
        let chips = CHIPS.map(|name| TestChip::named(name, &json!({})));
        Bench { chips, folder: tempfile::tempdir().expect("a temporary folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes each compilation of these chips wait until `count` compilations have begun.
    fn meet(&self, count: usize) {
        let _ = fs::remove_file(self.path("notes"));
        let fault = format!("meets {} {count} 0", self.path("notes").display());
        self.chips.iter().for_each(|chip| chip.has_faults(&[&fault]));
    }

    /// Returns the notes, such as `begin alpha` and `end alpha`.
    fn notes(&self) -> Vec<String> {
        let notes = fs::read_to_string(self.path("notes")).unwrap_or_default();
        notes.lines().map(str::to_owned).collect()
    }

    fn compiles(&self, socs: &str, name: &str) -> Run {
        let run = shardwright(["compile", CHECKPOINT, "--context", "64", "--formats", "stored"]);
        let run = run.arguments(["--soc", socs, "-o"]).argument(self.path(name));
        self.chips.iter().fold(run, |run, chip| chip.found_by(run))
    }

    fn alone(&self, index: usize, change: impl FnOnce(&mut Value)) {
        let path = self.chips[index].shims().join("chip.shim.json");
        let mut manifest: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        change(&mut manifest);
        fs::write(path, manifest.to_string()).expect("written");
    }
}

/// Notes of compilations that run one after another.
const APART: [&str; 4] = ["begin alpha", "end alpha", "begin beta", "end beta"];

#[test]
fn the_bundle_and_what_is_said_are_the_same_for_any_number_and_order() {
    let bench = Bench::new();
    let socs = "alpha,generic,beta";
    // Fill the caches.
    bench.compiles(socs, "first").succeeds();
    let run = |socs: &str, jobs: &str| {
        let outcome = bench.compiles(socs, jobs).arguments(["--format", "json", "--jobs", jobs]).outcome();
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let mut report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        report["directory"].take();
        (contents(&bench.path(jobs)), report, outcome.stderr)
    };
    let (expected, report, said) = run(socs, "1");
    assert!(report["artefacts_reused"].as_u64() > Some(0), "the CPU's are made once: {report}");
    let at_once = run(socs, "4");
    assert!(at_once.0 == expected, "four jobs");
    assert_eq!((at_once.1, at_once.2), (report, said));
    assert!(run("generic,beta,alpha", "2").0 == expected, "two jobs");
}

#[test]
fn what_is_measured_of_a_checkpoint_is_measured_once_and_said_by_the_first() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let integers = ["--formats", "w8-per-channel/a16-symmetric/a16", "--context", "64", "--on", "cpu"];
    for jobs in ["1", "2"] {
        let run = shardwright(["compile", CHECKPOINT, "--soc", "mt6993,mt6989", "--jobs", jobs]);
        let run = run.arguments(integers).argument("-o").argument(folder.path().join(jobs));
        // This cache is still empty.
        let report = run.environment("XDG_CACHE_HOME", folder.path().join("caches").join(jobs)).json();
        let calibrated = |index: usize| {
            let notices = report["variants"][index]["plan"]["notices"].to_string();
            notices.matches("ranges of integers were calibrated").count()
        };
        assert_eq!((calibrated(0), calibrated(1)), (1, 0), "{jobs} jobs");
    }
    assert!(contents(&folder.path().join("1")) == contents(&folder.path().join("2")));
}

#[test]
fn chips_are_compiled_for_at_once_unless_memory_or_their_compiler_forbids_it() {
    let bench = Bench::new();
    let notes = |more: &[&str]| {
        bench.compiles("alpha,beta", "bundle").arguments(more).succeeds();
        let notes = bench.notes();
        fs::remove_dir_all(bench.path("bundle")).expect("removed");
        bench.meet(1);
        notes
    };
    // Each compilation waits until the other has begun. One after the other, they would wait for
    // ever.
    bench.meet(2);
    let together = notes(&["--jobs", "2"]);
    assert!(
        together.len() == 4 && together[..2].iter().all(|note| note.starts_with("begin")),
        "{together:?}"
    );
    assert_eq!(notes(&[]), APART);
    assert_eq!(notes(&["--jobs", "2", "--jobs-memory", "1MB"]), APART);
    bench.meet(2);
    assert_eq!(notes(&["--jobs", "2", "--jobs-memory", "600MB"]).len(), 4, "twice 256 MiB fit");

    // Shims in this process compile for one chip at a time, which is said.
    let run = bench.compiles("alpha,generic", "inside").arguments(["--jobs", "2", "--isolation", "off"]);
    let outcome = run.outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let said = "shim `alpha` compiles in this process: its chips are compiled one after another";
    assert!(outcome.stderr.contains(said), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("shim `cpu` compiles"), "{}", outcome.stderr);
    bench.meet(1);

    // Exclusive resources, of a machine or shared by two shims.
    for index in [0, 1] {
        bench.alone(index, |manifest| manifest["exclusive"] = json!(["dsp"]));
    }
    assert_eq!(notes(&["--jobs", "2"]), APART);
    bench.alone(0, |manifest| manifest["exclusive"] = json!(["another"]));
    bench.meet(2);
    assert_eq!(notes(&["--jobs", "2"]).len(), 4);
}

#[test]
fn a_chip_that_fails_loses_no_other() {
    let bench = Bench::new();
    bench.chips[0].behaves_as("broken");
    let run = bench.compiles("alpha,unknown,beta,generic", "bundle").arguments(["--jobs", "4"]);
    let outcome = run.arguments(["--format", "json"]).outcome();
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let failed: Vec<_> = report["failed"].as_array().expect("failed").iter().map(|one| &one["soc"]).collect();
    assert_eq!(failed, ["alpha", "unknown"], "{}", report["failed"]);
    assert!(outcome.stderr.contains("not compiled for unknown") && outcome.stderr.contains("help: "));
    let bundle = Bundle::open(bench.path("bundle")).expect("a bundle");
    bundle.verify_all(|_| ()).expect("intact");
    let socs: Vec<&str> = bundle.manifest().variants.iter().map(|variant| variant.soc.as_str()).collect();
    assert_eq!(socs, ["beta", "generic"]);
    // One chip named twice, and only unknown chips.
    bench.compiles("alpha,beta,alpha", "twice").refuses_with(2, &["which was already named"]);
    assert!(!bench.path("twice").exists(), "refused before anything is compiled");
    bench.compiles("unknown,nobodys", "none").refuses_with(3, &["unknown"]);
    assert!(Bundle::open(bench.path("none")).is_err());
    // With several variants, commands that work on one require `--soc`.
    let verify = || shardwright(["verify", CHECKPOINT, "--bundle"]).argument(bench.path("bundle"));
    verify().refuses_with(2, &["several variants", "--soc"]);
    verify().arguments(["--soc", "sm8750"]).refuses_with(2, &["no variant for `sm8750`"]);
}

/// Waits for a line of the notes. Panics if the program ends first.
fn await_note(bench: &Bench, child: &mut Child, note: &str) {
    for _ in 0..6000 {
        if bench.notes().iter().any(|known| known == note) {
            return;
        }
        assert!(
            child.try_wait().expect("waiting").is_none(),
            "it ended before `{note}`: {:?}",
            bench.notes()
        );
        thread::sleep(Duration::from_millis(20));
    }
    panic!("no `{note}` in {:?}", bench.notes());
}

fn spawned(run: &Bench, name: &str) -> Child {
    let mut command = Command::new(program::executable());
    command.current_dir(tree::root()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.args(["compile", CHECKPOINT, "--context", "64", "--formats", "stored", "--jobs", "2"]);
    command.args(["--soc", "alpha,beta", "-o"]).arg(run.path(name));
    for chip in &run.chips {
        command.arg("--shims").arg(chip.shims());
        command.arg("--profiles").arg(chip.shims().with_file_name("profiles"));
    }
    command.spawn().expect("the program starts")
}

#[test]
fn an_interrupt_ends_all_of_them_and_what_was_compiled_is_used_again() {
    let bench = Bench::new();
    bench.compiles("alpha,beta", "whole").succeeds();
    let expected = contents(&bench.path("whole"));
    for signal in ["-INT", "-KILL"] {
        // The first compilation ends at once. The second one waits for a third that never begins.
        let waits = format!("meets {} 3 0", bench.path("notes").display());
        bench.meet(1);
        bench.chips[1].has_faults(&[&waits]);
        let mut child = spawned(&bench, "bundle");
        await_note(&bench, &mut child, "end alpha");
        await_note(&bench, &mut child, "begin beta");
        // A compiled artefact is stored a moment later.
        while !fs::read_to_string(bench.path("bundle/.unfinished")).unwrap_or_default().contains("by alpha") {
            assert!(child.try_wait().expect("waiting").is_none(), "it ended by itself");
            thread::sleep(Duration::from_millis(20));
        }
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill");
        assert!(sent.success());
        let output = child.wait_with_output().expect("ended");
        if signal == "-INT" {
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(130), "{said}");
        }
        assert!(Bundle::open(bench.path("bundle")).is_err(), "{signal}");
        bench.meet(1);
        let report = bench.compiles("alpha,beta", "bundle").arguments(["--jobs", "2"]).json();
        assert!(!bench.notes().contains(&"begin alpha".to_owned()), "{signal}: {:?}", bench.notes());
        assert!(bench.notes().contains(&"begin beta".to_owned()), "{signal}: {:?}", bench.notes());
        assert!(report["artefacts_reused"].as_u64() > Some(0), "{report}");
        assert!(contents(&bench.path("bundle")) == expected, "{signal}");
        fs::remove_dir_all(bench.path("bundle")).expect("removed");
    }
}

#[test]
fn no_jobs_are_refused() {
    let bench = Bench::new();
    let options = OpenOptions::new().search_path(program::search_path()).jobs(0);
    let into = bench.path("bundle");
    let error = options
        .compile_for(&["generic".to_owned()], tree::root().join(CHECKPOINT), &into, &mut ())
        .expect_err("nothing would be compiled");
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.help().is_some() && !into.exists());
    for (arguments, word) in [
        (&["--jobs", "0"][..], "1.."),
        (&["--jobs-memory", "1GB"], "--jobs"),
        (&["--jobs", "2", "--dry-run"], "--dry-run"),
    ] {
        let outcome = bench.compiles("alpha,beta", "bundle").arguments(arguments).outcome();
        assert!(
            outcome.code == Some(2) && outcome.stderr.contains(word),
            "{arguments:?}: {}",
            outcome.stderr
        );
    }
    bench.compiles("alpha", "bundle").arguments(["--jobs", "2"]).refuses_with(2, &["--jobs"]);
}
