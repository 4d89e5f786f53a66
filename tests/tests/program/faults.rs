//! System calls that fail. The command ends with a documented code and help, without a panic or a
//! signal, and leaves no part of its output.
//!
//! Other files test `run` under limits (`environment.rs`), bundles and signatures that cannot grow
//! (`interrupted_writes.rs`), and other files at the place of an output (`cli_hostile.rs`).

use std::fs;
use std::path::Path;

use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::program::share_planner;
use shardwright_tests::tree;

use crate::environment::{RUN, after, expect_answer};

/// A command of the shell that causes the fault, the words of the command that meets it, its exit
/// code, and a part of its output.
type Fault = (&'static str, &'static [&'static str], i32, &'static str);

/// Placeholders for a bundle of the demo model, for a new path, and for the whole path of the demo
/// model.
const BUNDLE: &str = "BUNDLE";
const NEW: &str = "NEW";
const DEMO: &str = "DEMO";

/// Standard output is on a full disk.
const FULL: &str = "exec >/dev/full";
const FREE: &str = "help: free space on the disk";

/// No file can have a byte.
const EMPTY: &str = "ulimit -f 0";
const RAISE: &str = "help: raise the limit of the size of files";

/// The system works, and the path is wrong: there is a file in the place of a folder.
const NONE: &str = "true";
const BELOW: &str = "README.md/new";

/// Standard input is a folder.
const FOLDER: &str = "exec <.";

/// The current folder was removed.
const REMOVED: &str = "cd \"$(mktemp -d)\"; rmdir \"$PWD\"";

/// Standard output is closed.
const CLOSED: &str = "exec >&-";
const LOST: &str = "standard output is closed, so the output would be lost";

const FAULTS: [Fault; 35] = [
    (FULL, &RUN, 13, FREE),
    (FULL, &["run", DEMO_MODEL, "-p", "a", "-n", "2", "--format", "json"], 13, "\"kind\":\"resource\""),
    (FULL, &["plan", DEMO_MODEL, "--no-measure"], 13, FREE),
    (FULL, &["show", DEMO_MODEL], 13, FREE),
    (FULL, &["doctor"], 13, FREE),
    (FULL, &["inspect", BUNDLE], 13, FREE),
    (FULL, &["explain", BUNDLE], 13, FREE),
    (FULL, &["completions", "bash"], 13, FREE),
    (FULL, &["--help"], 13, FREE),
    (EMPTY, &["plan", DEMO_MODEL, "--no-measure", "--html", NEW], 13, RAISE),
    (EMPTY, &["plan", DEMO_MODEL, "--no-measure", "--write-request", NEW], 13, RAISE),
    (EMPTY, &["calibration-text", DEMO_MODEL, "--tokens", "4", "--longest", "4", "-o", NEW], 13, RAISE),
    (EMPTY, &["doctor", "--report", NEW], 13, RAISE),
    (EMPTY, &["trust", "key", NEW], 13, RAISE),
    (EMPTY, &["shim", "new", "acme", "--within", NEW], 13, RAISE),
    (EMPTY, &["planner", "new", "acme", "--within", NEW], 13, RAISE),
    (NONE, &["compile", DEMO_MODEL, "-o", BELOW], 3, BELOW),
    (NONE, &["pack", BUNDLE, "-o", BELOW], 3, BELOW),
    (NONE, &["plan", DEMO_MODEL, "--no-measure", "--html", BELOW], 3, BELOW),
    (NONE, &["calibration-text", DEMO_MODEL, "-o", BELOW], 3, BELOW),
    (NONE, &["trust", "key", BELOW], 3, BELOW),
    (FOLDER, &["run", DEMO_MODEL, "--raw"], 3, "standard input: "),
    (FOLDER, &["run", DEMO_MODEL, "--chat"], 3, "standard input: "),
    (REMOVED, &["plan", DEMO, "--no-measure", "--html", "new"], 3, "new: "),
    (REMOVED, &["show", DEMO], 0, "demo-model"),
    // A standard output that is closed or cannot be written is refused.
    (CLOSED, &RUN, 13, LOST),
    (CLOSED, &["plan", DEMO_MODEL, "--no-measure"], 13, LOST),
    (CLOSED, &["run", DEMO_MODEL, "-p", "a", "-n", "2", "--format", "json"], 13, "\"kind\":\"resource\""),
    (CLOSED, &["--version"], 13, LOST),
    (CLOSED, &["trust", "key", NEW], 13, LOST),
    ("exec <&- >&-", &["show", DEMO_MODEL], 13, LOST),
    ("exec 1</dev/null", &["show", DEMO_MODEL], 13, "standard output is open for reading only"),
    // The other streams may be closed. No file can be written to the cache.
    ("exec <&- 2>&-", &RUN, 0, "Belief"),
    ("exec >/dev/null", &["show", DEMO_MODEL], 0, ""),
    ("export XDG_CACHE_HOME=\"$PWD/README.md\"", &RUN, 0, "Belief"),
];

/// Commands that open several files.
const OPENING: [&[&str]; 5] = [
    &["plan", DEMO_MODEL, "--no-measure"],
    &["compile", DEMO_MODEL, "-o", NEW],
    &["pack", BUNDLE, "-o", NEW],
    &["explain", BUNDLE],
    &["run", BUNDLE, "--prompt", "a", "-n", "2"],
];

#[test]
fn a_call_of_the_system_that_fails_ends_a_command_with_its_code() {
    let (bundle, demo) = (Compiled::of(DEMO_MODEL), tree::root().join(DEMO_MODEL));
    let (bundle, demo) = (bundle.path().display().to_string(), demo.display().to_string());
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("cache");
    share_planner(&cache);
    let start = |fault: &str, words: &[&str], new: &Path| {
        let new = new.display().to_string();
        let words = words.iter().map(|word| match *word {
            BUNDLE => &*bundle,
            NEW => &*new,
            DEMO => &*demo,
            word => word,
        });
        after(fault, &words.collect::<Vec<&str>>(), &cache)
    };
    for (index, (fault, words, expected, says)) in FAULTS.into_iter().enumerate() {
        let new = folder.path().join(format!("new-{index}"));
        let (code, stdout, stderr) = start(fault, words, &new);
        let shown = format!("{fault}: {words:?}: {code:?}: {stdout}{stderr}");
        assert!(code == Some(expected) && (stdout + &stderr).contains(says), "{shown}");
        assert!(!stderr.contains("panicked") && (expected == 0 || stderr.contains("help")), "{shown}");
        let is_left = match fs::read_dir(&new) {
            Ok(mut files) => files.next().is_some(),
            Err(_) => fs::metadata(&new).is_ok_and(|file| file.len() > 0),
        };
        assert!(!is_left, "{shown}");
    }
    // From some moment on, no file can be opened.
    let new = folder.path().join("new");
    for files in (4..=28).step_by(cases(12, 1)) {
        for words in OPENING {
            let limit = format!("ulimit -n {files}");
            expect_answer(&format!("{limit}: {words:?}"), "", start(&limit, words, &new));
            // It is a bundle or a file.
            let _ = fs::remove_dir_all(&new).or_else(|_| fs::remove_file(&new));
        }
    }
}
