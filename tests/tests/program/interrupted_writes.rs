//! Writers that die at any moment, or cannot write any further byte. A file is either complete or
//! not used, and the next run completes it.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use shardwright_bundle::{Bundle, pack};
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::{Compiled, contents};
use shardwright_tests::checkpoints::{DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_vocabulary::ErrorKind;

use crate::trust::refused;

fn compile(into: &Path) -> Run {
    shardwright(["compile", TEXT_FIXTURES[0], "--context", "64", "-o"]).argument(into)
}

/// Asserts that there is no bundle, or a complete one.
fn expect_nothing_or_all(path: &Path, what: &str) {
    match Bundle::open(path) {
        Ok(bundle) => bundle.verify_all(|_| ()).unwrap_or_else(|error| panic!("{what}: {error}")),
        Err(error) => {
            let is_absent = error.kind() == ErrorKind::Missing && !error.message().starts_with("incomplete");
            assert!(is_absent, "{what}: {error}");
        }
    }
}

#[test]
fn killed_at_any_moment_a_compilation_leaves_nothing_half_written_and_goes_on() {
    killed_at_any_moment(&compile, cases(10, 200));
}

#[test]
fn killed_at_any_moment_compilations_for_two_chips_leave_nothing_half_written_and_go_on() {
    let two = ["--soc", "mt6989,generic", "--on", "cpu", "--jobs", "2"];
    killed_at_any_moment(&|into| compile(into).arguments(two), cases(5, 100));
}

#[test]
fn killed_at_any_moment_a_long_compilation_goes_on_or_leaves_the_bundle_that_it_replaces() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let compile = |into: &Path| {
        let run = shardwright(["compile", DEMO_MODEL, "--soc", "mt6989", "--limit", "ops=400"]);
        let run = run.arguments(["--formats", "w4-block32[head=w8-per-channel]", "--rounding", "nearest"]);
        let run = run.arguments(["--on", "cpu"]);
        run.environment("TMPDIR", scratch.path()).argument("-o").argument(into)
    };
    let took = killed_at_any_moment(&compile, cases(5, 50));
    for moment in &[5_u32, 2, 8][..cases(1, 3)] {
        let bundle = Compiled::of(TEXT_FIXTURES[3]);
        compile(&bundle.path()).killed_after(took * *moment / 9);
        let intact = Bundle::open(bundle.path()).and_then(|bundle| bundle.verify_all(|_| ()));
        intact.unwrap_or_else(|error| panic!("{moment}: {error}"));
    }
    let left = contents(scratch.path());
    assert!(left.is_empty(), "what was killed left something: {:?}", left.keys());
}

/// Returns the time that an undisturbed compilation takes.
fn killed_at_any_moment(compile: &dyn Fn(&Path) -> Run, moments: u32) -> Duration {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = folder.path().join("whole");
    // Fill the caches, so that every compilation needs the same time.
    compile(&folder.path().join("first")).succeeds();
    let start = Instant::now();
    compile(&whole).succeeds();
    let took = start.elapsed();
    let expected = contents(&whole);
    let (mut killed, mut refusals) = (0, 0);
    for moment in 0..moments {
        // Every fifth compilation starts from the beginning. The others continue where the previous
        // one was killed.
        let into = folder.path().join(format!("bundle-{}", moment / 5));
        let at = took.mul_f64(f64::from(moment + 1) / f64::from(moments + 1));
        killed += u32::from(!compile(&into).killed_after(at));
        expect_nothing_or_all(&into, &format!("killed after {at:?}"));
        if refusals == 0 && into.join(".unfinished").is_file() && !into.join("bundle.json").exists() {
            refused(shardwright(["run", "--prompt", "a"]).argument(&into), 3, &["not finished"]);
            refused(shardwright(["inspect"]).argument(&into), 4, &["an unfinished bundle"]);
            refusals += 1;
        }
        if moment % 5 == 4 {
            compile(&into).succeeds();
            assert!(contents(&into) == expected, "killed after {at:?}");
            fs::remove_dir_all(&into).expect("removed");
        }
    }
    assert!(killed >= moments / 4, "{killed} of {moments} were killed before they ended");
    took
}

/// Runs the program with a limit of `blocks` blocks of 512 bytes on its files. Writing fails at the
/// byte after.
fn bounded(blocks: u64, arguments: &[&str]) -> (Option<i32>, String) {
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(program::executable()).args(arguments);
    command.current_dir(shardwright_tests::tree::root()).stdin(Stdio::null());
    let outcome = program::finished(command);
    (outcome.code, outcome.stderr)
}

#[test]
fn a_writer_that_fails_at_any_byte_says_where_and_the_next_run_completes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let compiled = Compiled::from(TEXT_FIXTURES[0], ["--context", "64"]);
    let whole = compiled.path();
    let expected = contents(&whole);
    let shown = |path: &Path| path.display().to_string();
    let packed = folder.path().join("whole.swb");
    let bundle = Bundle::open(&whole).expect("a bundle");
    pack(&bundle, &packed, |_| ControlFlow::Continue(())).expect("packed");
    let packed_bytes = fs::read(&packed).expect("packed");
    let key = folder.path().join("key");
    shardwright(["trust", "key"]).argument(&key).succeeds();

    let (into, file) = (folder.path().join("torn"), folder.path().join("torn.swb"));
    let mut failed = 0;
    let largest = packed_bytes.len() as u64 / 512;
    let steps = cases(5, 40);
    for step in 0..steps as u64 {
        let blocks = step * largest / steps as u64;
        // A missing cache entry is not an error. A missing file of the bundle is.
        let (code, said) =
            bounded(blocks, &["compile", TEXT_FIXTURES[0], "--context", "64", "-o", &shown(&into)]);
        expect_nothing_or_all(&into, &format!("{blocks} blocks"));
        match code {
            Some(0) => assert!(contents(&into) == expected, "{blocks} blocks"),
            _ => {
                assert!(said.contains("help:"), "{blocks} blocks: {said}");
                failed += 1;
            }
        }
        let (code, said) = bounded(blocks, &["pack", &shown(&whole), "-o", &shown(&file)]);
        assert!(code != Some(0) && said.contains("help:") && said.contains("torn.swb"), "{blocks}: {said}");
        assert!(!file.exists(), "{blocks} blocks");
        failed += 1;
    }
    assert!(failed > steps, "{failed} of {} failed", 2 * steps);
    compile(&into).succeeds();
    assert!(contents(&into) == expected);
    shardwright(["pack"]).argument(&whole).argument("-o").argument(&file).succeeds();
    assert!(fs::read(&file).expect("packed") == packed_bytes);

    // A signature that cannot be written leaves the bundle as it was, packed or not.
    for path in [&whole, &packed] {
        let arguments = ["trust", "sign", &shown(path), "--name", "demo", "--key", &shown(&key)];
        let (code, said) = bounded(0, &arguments);
        assert!(code != Some(0) && said.contains("help:"), "{said}");
        Bundle::open(path).expect("as it was");
    }
    assert!(fs::read(&packed).expect("packed") == packed_bytes);
    assert!(contents(&whole) == expected);
}

/// Replies to a prompt, and saves the session.
fn save(bundle: &Path, prompt: &str, into: &Path) -> Run {
    let run = shardwright(["run", "--greedy", "-n", "4", "--quiet", "--prompt", prompt, "--save"]);
    run.argument(into).argument(bundle)
}

#[test]
fn killed_while_saving_a_session_the_old_file_or_the_new_one_is_left() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let compiled = Compiled::from(DEMO_MODEL, ["--context", "256"]);
    let (bundle, path) = (compiled.path(), folder.path().join("session"));
    let [old, new] = ["What is politics?", "Define happiness."].map(|prompt| {
        save(&bundle, prompt, &path).succeeds();
        fs::read(&path).expect("saved")
    });
    assert_ne!(old, new);
    let start = Instant::now();
    save(&bundle, "Define happiness.", &path).succeeds();
    let took = start.elapsed();
    let (mut killed, moments) = (0, cases(12, 120));
    for moment in 0..moments {
        fs::write(&path, &old).expect("written");
        // Saving is the end of the run.
        let at = took.mul_f64(0.5 + 0.6 * f64::from(moment) / f64::from(moments));
        killed += u32::from(!save(&bundle, "Define happiness.", &path).killed_after(at));
        let found = fs::read(&path).expect("a file");
        assert!(found == old || found == new, "killed after {at:?}: {} bytes", found.len());
    }
    assert!(killed > 0, "every run ended before it was killed");
    // A disk that is full at any byte leaves the old file, too.
    fs::write(&path, &old).expect("written");
    let shown = |path: &Path| path.display().to_string();
    let steps = cases(4, 40) as u64;
    for step in 0..steps {
        let blocks = step * (new.len() as u64 / 512) / steps;
        let words =
            ["run", "--isolation", "off", "--greedy", "-n", "4", "--prompt", "Define happiness.", "--save"];
        let (bundle, path) = (shown(&bundle), shown(&path));
        let (code, said) = bounded(blocks, &[&words[..], &[&path, &bundle]].concat());
        assert!(code != Some(0) && said.contains("help:") && said.contains("session"), "{blocks}: {said}");
        assert!(fs::read(&path).expect("a file") == old, "{blocks} blocks");
    }
    let restored = shardwright(["run", "--prompt", "And?", "-n", "2", "--strict", "--restore"]);
    restored.argument(&path).argument(&bundle).succeeds();
}
