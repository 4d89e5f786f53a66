//! The program under limits of the system: closed streams, no further threads, small files and
//! small stacks.

use std::process::{Command, Stdio};

use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::program::executable;
use shardwright_tests::tree;

/// Runs the program from a shell that has set a limit, in a cache folder of its own. Returns its
/// exit code, standard output and standard error.
#[cfg(unix)]
fn limited(limit: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let cache = tempfile::tempdir().expect("a folder");
    let shown = arguments.iter().map(|argument| format!("'{argument}'")).collect::<Vec<_>>().join(" ");
    let script = format!("{limit}; exec '{}' {shown}", executable().display());
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(tree::root())
        .env("XDG_CACHE_HOME", cache.path())
        .stdin(Stdio::null())
        .output()
        .expect("bash");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const RUN: [&str; 6] = ["run", DEMO_MODEL, "--prompt", "What is faith?", "-n", "8"];

/// Asserts a reply, or an error of the program: no panic and no signal.
#[cfg(unix)]
fn answers(limit: &str) {
    let (code, reply, says) = limited(limit, &RUN);
    assert!(!says.contains("panicked") && !says.contains("RUST_BACKTRACE"), "{limit}: {says}");
    match code {
        Some(0) => assert!(reply.starts_with("Belief"), "{limit}: {reply}"),
        Some(code) => assert!(code < 100 && says.contains("help:"), "{limit}: {code}: {says}"),
        None => panic!("{limit}: ended by a signal: {says}"),
    }
}

#[test]
#[cfg(unix)]
fn limits_of_the_system_end_in_a_reply_or_an_error() {
    for limit in [
        // Standard error is closed, full or broken.
        "exec 2>&-",
        "exec 2>/dev/full",
        "exec 2> >(true); sleep 0.3",
        // No file may grow, so caches are left out.
        "ulimit -f 0",
        "ulimit -s 256",
        "ulimit -n 12",
    ] {
        answers(limit);
    }
    // Messages and logs that cannot be written do not change the reply.
    let logging = [&RUN[..], &["-vv"]].concat();
    for limit in ["exec 2>&-", "exec 2>/dev/full", "exec 2> >(true); sleep 0.3"] {
        for arguments in [&RUN[..], &logging] {
            let (code, reply, _) = limited(limit, arguments);
            assert!(code == Some(0) && reply.starts_with("Belief"), "{limit}: {code:?}: {reply}");
        }
    }
    let (code, reply, says) = limited("ulimit -s 256", &RUN);
    assert_eq!(code, Some(0), "{reply}{says}");
    // A failed allocation ends a process without an error message, so too small an address space is
    // refused.
    let (code, _, says) = limited("ulimit -v 125000", &RUN);
    assert!(code == Some(11) && says.contains("address space is limited to 122 MiB"), "{code:?}: {says}");
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
    let (code, _, says) = limited("exec >/dev/full", &["shim", "list"]);
    assert!(code == Some(13) && says.contains("help: free space on the disk"), "{code:?}: {says}");
    let (code, plan, says) = limited("ulimit -f 0", &["plan", DEMO_MODEL, "--soc", "mt6989", "--no-measure"]);
    assert_eq!(code, Some(0), "{plan}{says}");
}
