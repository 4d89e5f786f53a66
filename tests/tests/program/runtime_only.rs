//! The runtime on a phone must stay small. The runtime feature of the public crate includes no
//! compiler, no checkpoint reader and no builder, and still runs bundles.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::program::{self, shardwright};
use shardwright_tests::tree;

/// Returns the names of all packages below `package`, without packages that only run at build time
/// or in tests.
fn packages_below(package: &str, flags: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(tree::root())
        .args([
            "tree",
            "--package",
            package,
            "--edges",
            "normal,no-proc-macro",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .args(flags)
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listing = String::from_utf8(output.stdout).expect("names of packages");
    listing.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Packages that must not be in a program that only runs models.
const TOO_MUCH: &[&str] = &[
    "cranelift-codegen",
    "cranelift-frontend",
    "wasmtime-internal-cranelift",
    "wit-component",
    "safetensors",
    "shardwright-models",
    "shardwright-build",
    "shardwright-checkpoints",
    "shardwright-quantisation",
    "shardwright-reference",
    "shardwright-planner-build",
    "shardwright-constraint",
    "llguidance",
];

fn assert_small(packages: &BTreeSet<String>) {
    let too_much: Vec<_> = TOO_MUCH.iter().filter(|name| packages.contains(**name)).collect();
    assert!(too_much.is_empty(), "the runtime pulls in {too_much:?}");
}

#[test]
fn the_default_build_of_the_public_crate_is_the_runtime_alone() {
    let packages = packages_below("shardwright", &[]);
    assert!(packages.contains("shardwright-runtime"), "{packages:?}");
    assert_small(&packages);
    let of_cranelift: Vec<_> = packages.iter().filter(|name| name.starts_with("cranelift")).collect();
    assert!(of_cranelift.is_empty(), "{of_cranelift:?}");
    for more in ["wasmtime", "shardwright-planning"] {
        assert!(!packages.contains(more), "{more}");
    }
    assert_eq!(packages, packages_below("shardwright", &["--no-default-features", "--features", "runtime"]));
    let with_shim = packages_below("shardwright", &["--features", "static-cpu"]);
    assert!(with_shim.contains("shardwright-shim-cpu"), "{with_shim:?}");
    assert_small(&with_shim);
}

/// Planning and building on a device need no checkpoint reader either.
#[test]
fn a_device_plans_and_builds_without_checkpoints() {
    let packages = packages_below("shardwright", &["--no-default-features", "--features", "planning"]);
    assert!(packages.contains("wasmtime") && packages.contains("shardwright-build"), "{packages:?}");
    let other = packages.iter().filter(|name| *name != "shardwright-build").cloned().collect();
    assert_small(&other);
}

/// The interpreter shares some containers with the compiler (`cranelift-entity` and the like), but
/// not its code.
#[test]
fn planning_without_its_compiler_has_no_compiler() {
    let packages = packages_below("shardwright-planning", &["--no-default-features"]);
    assert!(packages.contains("wasmtime"), "packs are run by an interpreter: {packages:?}");
    assert_small(&packages);
}

/// A first build of the demo stays short.
#[test]
fn the_demo_is_built_without_grammars_a_server_and_a_compiler() {
    let flags = ["--package", "shardwright-worker", "--package", "shardwright-test-features"];
    let demo = packages_below("shardwright-cli", &[&flags[..], &["--no-default-features"]].concat());
    assert!(demo.contains("shardwright-build") && demo.contains("shardwright-worker"), "{demo:?}");
    for more in ["llguidance", "toktrie", "axum", "hyper", "tokio", "rustls", "cranelift-codegen"] {
        assert!(!demo.contains(more), "{more}");
    }
    let whole = packages_below("shardwright-cli", &[]);
    for part in ["llguidance", "hyper", "rustls", "cranelift-codegen"] {
        assert!(whole.contains(part), "{part}");
    }
}

/// Returns the path of a program that only runs bundles, with the default features and the CPU shim
/// linked in. It comes from `SHARDWRIGHT_RUNTIME_ONLY_DIR` (`cargo xtask test` sets it), or is
/// built now. It is copied, because the workspace's own example replaces the built one.
fn example(name: &str, folder: &Path) -> PathBuf {
    let copy = folder.join(name);
    let built = match std::env::var_os("SHARDWRIGHT_RUNTIME_ONLY_DIR") {
        Some(built) => PathBuf::from(built),
        None => {
            let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            build.current_dir(tree::root()).arg("runtime-only").arg("--target-dir").arg(target_folder());
            assert!(build.status().expect("cargo starts").success(), "the example does not build");
            target_folder().join("debug/examples")
        }
    };
    std::fs::copy(built.join(name), &copy).expect("copied");
    copy
}

/// Returns the target folder: this program is `<target>/<profile>/deps/<this>`.
fn target_folder() -> PathBuf {
    let this = std::env::current_exe().expect("the test program's own path");
    this.ancestors().nth(3).expect("deps lies in the profile's folder").to_owned()
}

#[test]
fn a_program_without_a_compiler_runs_a_bundle_to_the_same_text() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let example = example("run_bundle", folder.path());
    let bytes = std::fs::read(&example).expect("the example was built");
    // Panic messages contain the source file names of all code in a program.
    let names = |name: &str| bytes.windows(name.len()).any(|window| window == name.as_bytes());
    assert!(
        names("host/runtime/src") || names("runtime/src/session"),
        "this test sees no names of source files"
    );
    for absent in ["wasmtime", "cranelift", "host/build/src", "host/models/src", "host/planning/src"] {
        assert!(!names(absent), "`{absent}` is part of a program that only runs bundles");
    }

    let bundle = Compiled::from(DEMO_MODEL, ["--soc", "mt6989", "--limit", "ops=400", "--on", "cpu"]);
    let prompt = "And it came to pass";
    let directory = bundle.path().display().to_string();
    let expected =
        shardwright(["run", &directory, "--raw", "--prompt", prompt, "--greedy", "-n", "64"]).succeeds();
    let run = |directory: &Path, shims: &Path| {
        let mut command = Command::new(&example);
        command.arg(directory).arg(prompt).env("SHARDWRIGHT_SHIM_PATH", shims).output().expect("it runs")
    };
    // The built-in shim, alone and with the other shims in a folder. Neither case gives a message.
    for shims in [PathBuf::new(), program::folder().join("shims")] {
        let output = run(&bundle.path(), &shims);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{stderr}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }

    // It cannot run a checkpoint.
    let output = run(&tree::root().join(DEMO_MODEL), Path::new(""));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{stderr}");
    assert!(stderr.contains("error:") && stderr.contains("help:"), "{stderr}");
}

/// The program of `docs/how-to/integrate.md` reports hashing and memory, and answers like a session
/// that is never released.
#[test]
fn the_example_of_an_app_keeps_its_budget_and_its_answers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let example = example("in_an_app", folder.path());
    let bundle = Compiled::from(DEMO_MODEL, ["--context", "256"]);
    let turns = ["What is politics?", "Define happiness."];
    let run = |megabytes: &str| {
        let mut command = Command::new(&example);
        command.arg(bundle.path()).arg(megabytes).arg(folder.path().join("proofs"));
        let mut child = command
            .env("SHARDWRIGHT_SHIM_PATH", "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        // It may have refused the budget by then.
        let _ = child.stdin.take().expect("an input").write_all((turns.join("\n") + "\n").as_bytes());
        let output = child.wait_with_output().expect("it ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let options = shardwright::BundleOptions::new().search_path(program::search_path());
    let model = options.open(bundle.path()).expect("opened");
    let mut session = model.session().expect("a session");
    (session.options.sampling.do_sample, session.options.max_tokens) = (false, Some(48));
    let mut expected = String::new();
    for turn in turns {
        expected += &session.chat(turn).expect("a reply").text().expect("text");
        expected.push('\n');
    }
    let (code, stdout, stderr) = run("100");
    assert_eq!((code, &stdout), (Some(0), &expected), "{stderr}");
    for words in ["% hashing", "were hashed in", "bytes of weights", "warm after", "tokens were run again"] {
        assert!(stderr.contains(words), "no `{words}` in {stderr}");
    }
    let weights = model.memory().weights;
    assert!(stderr.contains(&format!("; {weights} bytes are in use now")), "{stderr}");
    let (code, stdout, stderr) = run("1");
    assert_eq!((code, stdout.as_str()), (Some(11), ""), "{stderr}");
    assert!(stderr.contains("the memory budget is 1000000 bytes") && stderr.contains("help: "), "{stderr}");
}
