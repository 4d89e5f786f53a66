//! Follows the page for vendors: create a shim in either language outside this tree, build it, see
//! it listed, and run a model on it. Then the C template by hand: copy it, compile it with the
//! system's C compiler, and put the library next to its manifest.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use shardwright_test_checkpoints::cases;
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_tests::program::{self, shardwright};
use shardwright_tests::{plans, tree};

/// Compiles a copy of the template under another name into `folder`.
fn copied_shim(name: &str, folder: &Path) {
    let template = tree::root().join("vendor-shims/template/c");
    let source = tempfile::tempdir().expect("a temporary folder");
    for entry in fs::read_dir(&template).expect("the template") {
        let path = entry.expect("a file of the template").path();
        let text = fs::read_to_string(&path).expect("text");
        let file = path.file_name().expect("files have names");
        fs::write(source.path().join(file), text.replace("template-c", name)).expect("written");
    }
    let status = Command::new("cc")
        .current_dir(source.path())
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I"])
        .arg(tree::root().join("vendor-shims/abi/include"))
        .arg("-o")
        .arg(folder.join(format!("{name}.so")))
        .args(files(source.path(), "c"))
        .arg("-lm")
        .status()
        .expect("a C compiler");
    assert!(status.success(), "the copied template does not compile");

    let manifest = files(source.path(), "json").pop().expect("the template has a manifest");
    let mut manifest: Value = serde_json::from_slice(&fs::read(manifest).expect("read")).expect("JSON");
    manifest["library"] = format!("{name}.so").into();
    fs::write(folder.join(format!("{name}.shim.json")), manifest.to_string()).expect("written");
}

fn files(folder: &Path, extension: &str) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

fn listed(folder: &Path) -> (Vec<String>, String) {
    let report = shardwright(["shim", "list", "--shims"]).argument(folder).json();
    let shims = report["shims"].as_array().expect("a list of shims");
    let names = shims.iter().filter_map(|shim| shim["name"].as_str().map(str::to_owned)).collect();
    (names, report.to_string())
}

/// The chip is fictional. The copied shim serves it, and its results are right. Once its library
/// has changed or is gone, the shim is not loaded.
#[test]
fn a_copied_template_with_a_profile_runs_a_model_until_it_is_taken_away() {
    let (shims, profiles) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    copied_shim("acme", shims.path());
    let is_listed = |names: &[String]| names.iter().any(|name| name == "acme");
    let (library, manifest) = (shims.path().join("acme.so"), shims.path().join("acme.shim.json"));
    let hash = || shardwright(["shim", "hash"]).argument(&manifest);
    let hashed = hash().json();
    assert!(hashed["library"].as_str().is_some_and(|library| library.ends_with("acme.so")), "{hashed}");
    let (names, report) = listed(shims.path());
    assert!(is_listed(&names), "it is the library that was hashed: {report}");

    let profile = r#"{
        "schema": 1, "name": "acme-one", "title": "Acme One", "vendor": "Acme", "shim": "acme", "kind": "cpu",
        "limits": [{"name": "ops", "value": 60, "provenance": "declared", "note": ""}]
    }"#;
    fs::write(profiles.path().join("acme-one.json"), profile).expect("written");
    let verify = || {
        let run = shardwright(["verify", TEXT_FIXTURES[3], "--soc", "acme-one", "--strict", "--shims"]);
        run.argument(shims.path()).argument("--profiles").argument(profiles.path())
    };
    let report = verify().json();
    assert_eq!(report["passed"], true, "{report}");
    assert!(report["emulated_on"].is_null(), "it runs on the copied shim itself: {report}");

    let bytes = fs::read(&library).expect("read");
    fs::write(&library, [bytes.as_slice(), b"changed"].concat()).expect("written");
    let (names, report) = listed(shims.path());
    let is_hash_error = report.contains("hash") || report.contains("sha256");
    assert!(!is_listed(&names) && is_hash_error, "{report}");
    fs::remove_file(&library).expect("removed");
    hash().refuses_with(3, &["acme.so"]);
    let (names, report) = listed(shims.path());
    assert!(!is_listed(&names), "{report}");
    assert!(report.contains("acme.so"), "a manifest without its library is reported: {report}");
    let (_, stderr) = verify().refuses();
    assert!(stderr.contains("acme"), "{stderr}");
}

/// Follows the instructions of a newly created folder, outside this tree.
fn follow(name: &str, language: &str) -> tempfile::TempDir {
    let outside = tempfile::tempdir().expect("a temporary folder");
    let begun = shardwright(["shim", "new", name, "--language", language, "--within"]);
    let report = begun.argument(outside.path()).json();
    let folder = outside.path().join(name);
    assert_eq!(report["folder"], folder.display().to_string(), "{report}");
    // Uses the versions of this tree's lock file, so that cargo downloads no crates.
    fs::copy(tree::root().join("Cargo.lock"), folder.join("Cargo.lock")).expect("copied");
    let mut build = Command::new("sh");
    build.arg(folder.join("build.sh")).env("PROFILE", cases("dev", "release"));
    if cases(true, false) {
        // Dependencies that this workspace has compiled are not compiled again.
        let target = program::folder().parent().expect("the target folder");
        symlink(target, folder.join("target")).expect("a link");
        build.envs([("CARGO_PROFILE_DEV_DEBUG", "false"), ("CARGO_PROFILE_DEV_INCREMENTAL", "false")]);
    }
    let built = build.output().expect("a shell");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let (names, report) = listed(&folder.join("shims"));
    assert!(names.iter().any(|listed| listed == name), "{report}");
    outside
}

/// Builds a shim in C with another text in one of its files.
fn rebuilt(folder: &Path, file: &str, from: &str, to: &str) {
    let source = folder.join(file);
    let text = fs::read_to_string(&source).expect("read");
    assert!(text.contains(from), "the template has no `{from}`");
    fs::write(&source, text.replacen(from, to, 1)).expect("written");
    let built = Command::new("sh").arg(folder.join("build.sh")).status().expect("a shell");
    assert!(built.success());
    fs::write(&source, text).expect("written");
}

#[test]
fn a_shim_begun_in_c_runs_a_model() {
    let outside = follow("acme-npu", "c");
    let folder = outside.path().join("acme-npu");
    let on_it = |command: &str| {
        let run = shardwright([command, TEXT_FIXTURES[3], "--soc", "acme-npu-1", "--shims"]);
        run.argument(folder.join("shims")).argument("--profiles").argument(folder.join("profiles"))
    };
    let report = on_it("verify").argument("--strict").json();
    assert_eq!(report["passed"], true, "{report}");

    let again = shardwright(["shim", "new", "acme-npu", "--within"]).argument(outside.path());
    again.refuses_with(2, &["already exists"]);
    shardwright(["shim", "new", "Acme NPU"]).refuses_with(2, &["invalid name `Acme NPU`"]);

    // Bindings that contradict the graph are found when it is compiled, and not only on the phone
    // that first opens the bundle.
    rebuilt(&folder, "shim.c", ".bytes = t->elements * 4", ".bytes = 1");
    let compile = on_it("compile").argument("-o").argument(outside.path().join("bundle"));
    compile.refuses_with(8, &["binding `", " has 1 bytes, expected at least "]);
    // A compiler that crashes is reported as a crash, and not as a limit that does not exist.
    let begins = "sw_error *program_compile(const sw_work_order *order, const sw_compile_output *output) {\n";
    let crashes = format!("#include <stdlib.h>\n{begins}    abort();\n");
    rebuilt(&folder, "program.c", begins, &crashes);
    let outcome = on_it("run").arguments(["--prompt", "a", "-n", "2"]).outcome();
    let stderr = &outcome.stderr;
    assert_eq!(outcome.code, Some(0), "{stderr}");
    assert!(stderr.contains("killed by signal 6 (SIGABRT)"), "{stderr}");
    assert!(!stderr.contains("ops ≤ 0") && !stderr.contains("the limit is 0"), "{stderr}");
}

#[test]
fn a_shim_begun_in_rust_runs_what_it_takes() {
    let outside = follow("acme-rust", "rust");
    let folder = outside.path().join("acme-rust");
    let plan = shardwright(["plan", TEXT_FIXTURES[3], "--soc", "acme-rust-1", "--shims"])
        .argument(folder.join("shims"))
        .argument("--profiles")
        .argument(folder.join("profiles"))
        .json();
    let shards = plan["shards"].as_array().expect("shards");
    let target = |component: &str| {
        let shard = shards.iter().find(|shard| plans::holds(shard, component)).expect("the component");
        shard["target"].as_str().map(str::to_owned)
    };
    assert_eq!(target("embed").as_deref(), Some("acme-rust-1"), "{plan}");
    assert_eq!(target("decoder").as_deref(), Some("cpu"), "{plan}");
}
