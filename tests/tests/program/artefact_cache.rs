//! Artefacts compiled for a chip are cached for the next start, and trusted only if other users
//! cannot have changed them.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use shardwright::{BundleOptions, Executor, OpenOptions};
use shardwright_build::PlanOptions;
use shardwright_checkpoints::{checkpoint_moments, open_checkpoint};
use shardwright_files::{eviction, private_files};
use shardwright_shims::ShimRegistry;
use shardwright_test_checkpoints::{real_shape, write_real};
use shardwright_tests::bundles::{Compiled, damage};
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_tests::chip::TestChip;
use shardwright_tests::program::{self, Outcome, Run, shardwright};
use shardwright_tests::tree;

const SAID: &str = ", cached for the next start in ";

/// The emulated chip.
const EMULATED: [&str; 4] = ["--soc", "mt6989", "--on", "cpu"];

/// Prepares a run of the model.
fn run() -> Run {
    shardwright(["run", TEXT_FIXTURES[3], "--prompt", "a b", "-n", "8", "--greedy"])
}

/// Runs the model with its own cache. Returns its output, and whether artefacts were compiled and
/// cached.
fn ran(run: Run, cache: &Path) -> (String, bool) {
    let Outcome { code, stdout, stderr } = run.environment("XDG_CACHE_HOME", cache).outcome();
    assert_eq!(code, Some(0), "{stderr}");
    (stdout, stderr.contains(SAID))
}

/// Returns the artefacts in a cache.
fn artefacts(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache.join("shardwright/artefacts")).expect("kept");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "swa")).collect()
}

#[test]
fn a_second_start_for_a_chip_takes_what_the_first_compiled() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = folder.path();
    // A small model on the CPU is prepared quickly, so it is not cached.
    assert!(!ran(run(), cache).1);
    assert!(!cache.join("shardwright/artefacts").exists());

    let chip = || run().arguments(EMULATED);
    let (text, kept) = ran(chip(), cache);
    assert!(kept && !artefacts(cache).is_empty());
    assert_eq!(ran(chip(), cache), (text.clone(), false));

    // Another context gives another work order.
    assert!(ran(chip().arguments(["--context", "64"]), cache).1);
    // Any incomplete file is compiled again.
    artefacts(cache).iter().for_each(|path| damage(path));
    assert_eq!(ran(chip(), cache), (text.clone(), true));

    // A folder that other users may write to is not used as a cache.
    let folder = cache.join("shardwright/artefacts");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("changed");
    let Outcome { stdout, stderr, .. } = chip().environment("XDG_CACHE_HOME", cache).outcome();
    assert!(stdout == text && !stderr.contains(SAID), "{stderr}");
    for words in ["artefacts cannot be cached in", "written by others"] {
        assert!(stderr.contains(words), "no `{words}` in {stderr}");
    }
}

/// Makes it look as if a file was last used nine days ago.
fn age(path: &Path) {
    let ago = SystemTime::now() - Duration::from_secs(9 * 86_400);
    let times = FileTimes::new().set_modified(ago).set_accessed(ago);
    File::options().write(true).open(path).and_then(|file| file.set_times(times)).expect("changed");
}

/// Writes an old file of `bytes` bytes, which takes no space, into a cache.
fn old_file(cache: &Path, bytes: u64) -> PathBuf {
    let path = cache.join("weights/old");
    private_files::create_folder(&cache.join("weights")).expect("a folder");
    File::create(&path).and_then(|file| file.set_len(bytes)).expect("written");
    age(&path);
    path
}

#[test]
fn whatever_fills_the_cache_keeps_its_limit() {
    const OLD: u64 = 1 << 30;
    let checkpoint = tree::root().join(TEXT_FIXTURES[1]);
    let bundle = Compiled::from(TEXT_FIXTURES[1], ["--context", "64"]);
    let options = |cache: &Path, limit: u64| {
        let options = OpenOptions::new().search_path(program::search_path()).threads(2).context(64);
        options.cache_directory(cache).cache_limit(limit)
    };
    let index = |cache: &Path, limit: u64| {
        let model = options(cache, limit).open(&checkpoint).expect("a model");
        model.tokenizer().expect("a tokenizer");
    };
    let artefacts = |cache: &Path, limit: u64| {
        let options = options(cache, limit).soc("mt6989").on(Executor::Cpu).tokenizer_when_asked(true);
        options.open(&checkpoint).expect("a model");
    };
    let proofs = |cache: &Path, limit: u64| {
        let options = BundleOptions::new().search_path(program::search_path()).threads(2);
        options.cache_directory(cache).cache_limit(limit).open(bundle.path()).expect("a model");
    };
    let moments = |cache: &Path, limit: u64| {
        let shims = ShimRegistry::builder().directory(program::folder().join("shims"));
        let (cache, cache_limit) = (Some(cache.to_owned()), Some(limit));
        let options = PlanOptions { shims, cache, cache_limit, ..PlanOptions::default() };
        let checkpoint = open_checkpoint(&checkpoint).expect("a checkpoint");
        checkpoint_moments(&checkpoint, &options, &mut ()).expect("moments");
    };
    type Fill<'f> = (&'f str, &'f dyn Fn(&Path, u64));
    let fills: [Fill<'_>; 4] =
        [("tokenizers", &index), ("artefacts", &artefacts), ("proofs", &proofs), ("moments", &moments)];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = folder.path().join("cache");
    for (what, fill) in fills {
        for (limit, stays) in [(2 * OLD, true), (OLD / 2, false)] {
            // The compiled planner stays.
            for (what, _) in fills {
                let _ = fs::remove_dir_all(cache.join(what));
            }
            let old = old_file(&cache, OLD);
            fill(&cache, limit);
            assert_eq!(old.exists(), stays, "{what} with a limit of {limit} bytes");
            // Proofs need files that were not written just now, and not every file system has them.
            assert!(what == "proofs" || cache.join(what).exists(), "{what} are kept");
        }
    }

    // Moments that are used count as new.
    let within = |folder: PathBuf| {
        let entries = fs::read_dir(folder).expect("a folder");
        entries.map(|entry| entry.expect("an entry").path())
    };
    let kept: Vec<PathBuf> = within(cache.join("moments")).flat_map(within).collect();
    assert!(!kept.is_empty());
    kept.iter().for_each(|path| age(path));
    moments(&cache, eviction::CACHE_BYTES_MAX);
    for path in kept {
        let used = fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("a time");
        assert!(used.elapsed().expect("the past") < Duration::from_secs(86_400), "{}", path.display());
    }

    // The program has the usual limit.
    let cache = folder.path().join("shardwright");
    for (bytes, stays) in [(eviction::CACHE_BYTES_MAX / 2, true), (eviction::CACHE_BYTES_MAX, false)] {
        let old = old_file(&cache, bytes);
        let _ = ran(run().arguments(EMULATED), folder.path());
        assert_eq!(old.exists(), stays, "{bytes} bytes");
    }
}

/// A rebuilt shim may produce other artefacts under the same version.
#[test]
fn another_library_of_a_shim_compiles_anew() {
    let chip = TestChip::new();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let start = || ran(chip.planned_by(run()), folder.path());
    let (text, kept) = start();
    assert!(kept);
    assert_eq!(start(), (text.clone(), false));
    let library = chip.shims().join("chip.so");
    let bytes = fs::read(&library).expect("read");
    fs::write(&library, [bytes.as_slice(), b"more"].concat()).expect("written");
    assert_eq!(start(), (text, true));
}

/// Uses the shapes of Gemma 3 270M, in 8 bits on the CPU.
#[test]
#[ignore = "writes a gigabyte; the command in CONTRIBUTING.md runs it"]
fn a_large_model_is_quick_the_second_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoint = folder.path().join("large");
    let spec = real_shape("gemma3-270m").expect("its shapes");
    fs::create_dir(&checkpoint).expect("a folder");
    write_real(&spec, &checkpoint).expect("written");
    let start = || {
        let run = shardwright(["run", "--prompt", "a", "-n", "2", "--greedy"]).argument(&checkpoint);
        let run = run.arguments(["--planner-option", "format=w8-per-channel/a8-dynamic", "--context", "64"]);
        let begun = Instant::now();
        let outcome = run.environment("XDG_CACHE_HOME", folder.path()).outcome();
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        println!("{:.1} s: {}", begun.elapsed().as_secs_f64(), outcome.stderr);
        (outcome.stdout, outcome.stderr.contains(SAID))
    };
    let (text, kept) = start();
    assert!(kept);
    assert_eq!(start(), (text, false));
}
