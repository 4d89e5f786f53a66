//! The program under limits of the system: closed streams, no further threads, small files and
//! small stacks. `faults.rs` covers other commands than `run` and `plan`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(target_os = "linux")]
use shardwright_test_checkpoints::cases;
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::program::{executable, share_planner};
#[cfg(target_os = "linux")]
use shardwright_tests::skipped;
use shardwright_tests::tree;

/// An exit code, standard output and standard error.
#[cfg(unix)]
pub(crate) type Found = (Option<i32>, String, String);

/// Runs a command to its end with this cache folder.
#[cfg(unix)]
fn run(command: &mut Command, cache: &Path) -> std::io::Result<Found> {
    let command = command.current_dir(tree::root()).env("XDG_CACHE_HOME", cache).stdin(Stdio::null());
    let output = command.output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((output.status.code(), text(output.stdout), text(output.stderr)))
}

/// Runs the program from a shell that has set a limit, in a cache folder of its own.
#[cfg(unix)]
fn limited(limit: &str, arguments: &[&str]) -> Found {
    let cache = tempfile::tempdir().expect("a folder");
    // Under limits of the system, the built-in planner must compile too.
    if !limit.contains("ulimit") {
        share_planner(cache.path());
    }
    after(limit, arguments, cache.path())
}

/// Runs the program from a shell that has run a command, with this cache folder.
#[cfg(unix)]
pub(crate) fn after(command: &str, arguments: &[&str], cache: &Path) -> Found {
    let shown = arguments.iter().map(|argument| format!("'{argument}'")).collect::<Vec<_>>().join(" ");
    let script = format!("{command}; exec '{}' {shown}", executable().display());
    run(Command::new("bash").args(["-c", &script]), cache).expect("bash")
}

pub(crate) const RUN: [&str; 6] = ["run", DEMO_MODEL, "--prompt", "What is faith?", "-n", "8"];

/// Runs the program as a user of its own, who may have only so many threads in all processes. Each
/// run has another user, because the threads of an ended process may still be counted. Returns
/// `None` if users cannot be changed.
#[cfg(target_os = "linux")]
fn limited_to(threads: u32, arguments: &[&str]) -> Option<Found> {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let user = 20_000 + std::process::id() % 600 * 64 + RUNS.fetch_add(1, Ordering::Relaxed);
    let cache = tempfile::tempdir().expect("a folder");
    share_planner(cache.path());
    let owned = Command::new("chown").args(["-R", &format!("{user}:{user}")]).arg(cache.path()).output();
    if !owned.ok()?.status.success() {
        return None;
    }
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", &format!("--reuid={user}"), &format!("--regid={user}")]);
    command.args(["prlimit", &format!("--nproc={threads}")]).arg(executable()).args(arguments);
    run(&mut command, cache.path()).ok()
}

/// Asserts a reply, or an error of the program: no panic and no signal. Returns the exit code.
#[cfg(unix)]
fn answers(limit: &str, arguments: &[&str]) -> i32 {
    expect_answer(limit, "Belief", limited(limit, arguments))
}

/// Asserts that a run printed something with this beginning, or ended in an error of the program.
/// Returns its exit code.
#[cfg(unix)]
pub(crate) fn expect_answer(limit: &str, begin: &str, (code, reply, says): Found) -> i32 {
    assert!(!says.contains("panicked") && !says.contains("RUST_BACKTRACE"), "{limit}: {says}");
    match code {
        Some(0) => assert!(reply.starts_with(begin), "{limit}: {reply}"),
        Some(code) => {
            assert!(documented().contains(&code) && says.contains("help:"), "{limit}: {code}: {says}");
        }
        None => panic!("{limit}: ended by a signal: {says}"),
    }
    code.unwrap_or_default()
}

/// Returns the exit codes that the page about the program explains.
#[cfg(unix)]
fn documented() -> BTreeSet<i32> {
    let page = tree::read(Path::new("docs/using.md"));
    let section = page.split("\n## Exit codes\n").nth(1).expect("a section");
    let rows = section.split("\n## ").next().unwrap_or_default().lines();
    rows.filter_map(|row| row.strip_prefix("| ")?.split(' ').next()?.parse().ok()).collect()
}

#[test]
#[cfg(unix)]
fn limits_of_the_system_end_in_a_reply_or_an_error() {
    // Standard error is closed, full or broken. Messages and logs that cannot be written do not
    // change the reply.
    let logging = [&RUN[..], &["-vv"]].concat();
    for limit in ["exec 2>&-", "exec 2>/dev/full", "exec 2> >(true); sleep 0.3"] {
        assert_eq!(answers(limit, &logging), 0, "{limit}");
    }
    // No file may grow, so caches are left out.
    answers("ulimit -f 0", &RUN);
    assert_eq!(answers("ulimit -s 256", &RUN), 0);
    // A failed allocation ends a process without an error message, so too small an address space is
    // refused.
    for (kibibytes, mebibytes) in [(125_000, 122), (140_000, 136), (200_000, 195), (300_000, 292)] {
        let limit = format!("ulimit -v {kibibytes}");
        let (code, _, says) = limited(&limit, &RUN);
        let words = format!("address space is limited to {mebibytes} MiB, and the program needs at least ");
        assert!(code == Some(11) && says.contains(&words), "{limit}: {code:?}: {says}");
        assert!(says.contains("help: raise the limit: `ulimit -v unlimited`"), "{says}");
        // Commands that do not run a model need less.
        expect_answer(&limit, "shardwright", limited(&limit, &["--version"]));
    }
    expect_answer("300 MB", "shim", limited("ulimit -v 300000", &["shim", "list"]));
    // With more, files may not be mapped. They are not at fault.
    let few_threads = [&RUN[..], &["--threads", "2"]].concat();
    for kibibytes in [380_000, 390_000, 400_000] {
        let limit = format!("export RAYON_NUM_THREADS=2; ulimit -v {kibibytes}");
        let (code, reply, says) = limited(&limit, &few_threads);
        match code {
            Some(0) => assert!(reply.starts_with("Belief"), "{limit}: {reply}"),
            code => {
                assert_eq!(code, Some(11), "{limit}: {says}");
                assert!(says.contains("help: ") && says.contains("ulimit -v"), "{limit}: {says}");
                // The path of a temporary file means nothing to a user.
                assert!(!says.contains(".swo") && !says.contains(".swa"), "{limit}: {says}");
            }
        }
    }
    // The limit is named, and not the shim that could not be opened because of it.
    for limit in ["ulimit -n 12", "ulimit -n 16"] {
        let (code, _, says) = limited(limit, &RUN);
        assert!(code == Some(13) && says.contains("Too many open files"), "{limit}: {code:?}: {says}");
        assert!(says.contains("help: raise the limit of open files: `ulimit -n"), "{limit}: {says}");
        assert!(!says.contains("builds the CPU shim") && !says.contains("no shim is named"), "{says}");
    }
    // The folder for temporary files is missing, or a file.
    for folder in ["/no/such/folder", "README.md"] {
        let limit = format!("export TMPDIR={folder}");
        let (code, _, says) = limited(&limit, &RUN);
        assert_eq!(code, Some(3), "{limit}: {says}");
        assert!(says.contains(&format!("{folder}: no temporary file can be created")), "{says}");
        assert!(says.contains("help: set the variable `TMPDIR` to a writable folder"), "{says}");
    }
    let (code, _, says) = limited("exec >/dev/full", &["shim", "list"]);
    assert!(code == Some(13) && says.contains("help: free space on the disk"), "{code:?}: {says}");
    let (code, plan, says) = limited("ulimit -f 0", &["plan", DEMO_MODEL, "--soc", "mt6989", "--no-measure"]);
    assert_eq!(code, Some(0), "{plan}{says}");
}

/// Threads of this program and of its workers may be refused at any point.
#[test]
#[cfg(target_os = "linux")]
fn a_user_with_few_threads_gets_an_answer_or_an_error() {
    let version = limited_to(4096, &["--version"]);
    if version.is_none_or(|(code, ..)| code != Some(0)) {
        return skipped("few threads: `setpriv` and `prlimit` cannot run the program as another user");
    }
    for (begin, arguments) in [("Belief", &RUN[..]), ("demo-model (gemma4)", &["plan", DEMO_MODEL][..])] {
        let answer = |threads: u32| {
            let found = limited_to(threads, arguments).expect("another user");
            expect_answer(&format!("{arguments:?} with {threads} threads"), begin, found)
        };
        // Whether the last threads of a pool start depends on chance.
        for threads in (1..=10).chain([5, 6, 7].repeat(cases(1, 3))) {
            answer(threads);
        }
        assert_eq!(answer(4096), 0);
    }
}
