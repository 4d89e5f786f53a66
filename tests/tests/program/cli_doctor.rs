//! `shardwright doctor` reports the parts of an installation, survives every shim, and predicts how
//! a bundle would run.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use shardwright_bundle::{Bundle, TextFile};
use shardwright_tests::bundles::{Compiled, damage};
use shardwright_tests::checkpoints::{DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::program::{self, Outcome, shardwright};
use shardwright_tests::rust_source::test_part;
use shardwright_tests::{plans, skipped, tree};
use tempfile::TempDir;

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no list `{name}` in {value}"))
}

fn named<'v>(value: &'v Value, list_name: &str, name: &str) -> &'v Value {
    let found = list(value, list_name).iter().find(|entry| entry["name"] == name);
    found.unwrap_or_else(|| panic!("no `{name}` among `{list_name}`: {value}"))
}

/// The program alone in a folder, without shims, planners or profiles.
struct Alone(TempDir);

impl Alone {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let copy = folder.path().join("shardwright");
        // Copy it if the two are on different disks.
        if fs::hard_link(program::executable(), &copy).is_err() {
            fs::copy(program::executable(), &copy).expect("copied");
        }
        Alone(folder)
    }

    fn runs(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new(self.0.path().join("shardwright"));
        command.args(arguments);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SHARDWRIGHT_") {
                command.env_remove(name);
            }
        }
        let output = command.output().expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Compiles a library from C source, with a manifest named `name`.
fn shim(folder: &Path, name: &str, source: &str) {
    let file = folder.join(format!("{name}.c"));
    fs::write(&file, source).expect("written");
    let library = folder.join(format!("{name}.so"));
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&file).status();
    assert!(compiled.expect("a C compiler").success());
    manifest(folder, name);
}

fn manifest(folder: &Path, name: &str) {
    let manifest = format!(
        r#"{{"manifest": 1, "name": "{name}", "vendor": "Nobody", "abi": {{"min": "0.1", "max": "0.1"}}, "library": "{name}.so"}}"#
    );
    fs::write(folder.join(format!("{name}.shim.json")), manifest).expect("written");
}

#[test]
fn it_says_what_there_is() {
    let report = shardwright(["doctor"]).json();
    assert_eq!(report["can_run"], true, "{report}");
    let machine = &report["machine"];
    assert!(machine["cores"].as_u64() >= Some(1), "{machine}");
    assert!(machine["system"].as_str().is_some_and(|system| system.contains(std::env::consts::ARCH)));

    let cpu = named(&report["shims"], "shims", "cpu");
    assert!(list(cpu, "devices").iter().any(|device| device["kind"] == "present"), "{cpu}");
    let worker = program::folder().join("shardwright-worker");
    assert_eq!(
        report["worker"]["path"].as_str().map(Path::new),
        worker.is_file().then_some(worker.as_path())
    );
    let asked = if worker.is_file() { "in a worker" } else { "in this process" };
    assert_eq!(cpu["asked"], asked, "{cpu}");

    for profile in ["generic", "mt6989", "sm8850"] {
        named(&report, "profiles", profile);
    }
    assert_eq!(named(&report, "profiles", "generic")["shim_found"], true, "{report}");
    assert_eq!(named(&report, "planners", "generic")["kind"], "built-in", "{report}");
    let shims = list(&report, "places").iter().find(|place| place["what"] == "shims").expect("a place");
    assert_eq!(shims["exists"], true, "{report}");
    assert!(report["bundle"].is_null());
}

#[test]
fn it_survives_shims_that_crash_lie_or_are_none() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let crash = "#include <stdlib.h>\n__attribute__((constructor)) static void begin(void) { abort(); }\n";
    shim(folder.path(), "crashing", crash);
    shim(folder.path(), "leaving", &crash.replace("abort()", "exit(0)"));
    shim(folder.path(), "empty", "int nothing;\n");
    manifest(folder.path(), "garbage");
    fs::write(folder.path().join("garbage.so"), b"\x7fELF and nothing more").expect("written");
    manifest(folder.path(), "absent");
    fs::write(folder.path().join("torn.shim.json"), b"{\"manifest\": 1").expect("written");

    let worker = program::folder().join("shardwright-worker");
    assert!(worker.is_file(), "without a worker a crash would be this program's");
    let report = shardwright(["doctor", "--shims"]).argument(folder.path()).json();
    assert_eq!(report["can_run"], true, "{report}");
    named(&report["shims"], "shims", "cpu");
    let skipped = list(&report["shims"], "skipped");
    for name in ["crashing", "leaving", "empty", "garbage", "absent", "torn"] {
        let mine = |entry: &&Value| entry["path"].as_str().is_some_and(|path| path.contains(name));
        let entry = skipped.iter().find(mine).unwrap_or_else(|| panic!("no word of {name}: {report}"));
        assert!(entry["reason"].as_str().is_some_and(|reason| reason.len() > 10), "{entry}");
    }
}

/// A file in a planner directory must have the name of its planner.
#[test]
fn a_planner_that_is_listed_can_be_named() {
    let report = shardwright(["doctor"]).json();
    let names = list(&report, "planners").iter().map(|planner| planner["name"].as_str().expect("a name"));
    let names: Vec<&str> = names.collect();
    assert!(names.contains(&"example-policy") && names.contains(&"even"), "{names:?}");
    for name in names {
        let plan = shardwright(["plan", "--no-measure", TEXT_FIXTURES[0], "--planner", name]).json();
        assert_eq!(plan["planner"]["name"], name, "{plan}");
    }
}

/// Environment variables for builds, tests and recording calls, which users of the program do not
/// need.
const NOT_A_USERS: [&str; 4] = [
    "SHARDWRIGHT_HOST_TARGET",
    "SHARDWRIGHT_NEURON_RECORDER",
    "SHARDWRIGHT_NEURON_RECORDER_PADDING",
    "SHARDWRIGHT_NEURON_RECORDER_VERSION",
];

/// Without a worker, shims run in this process.
#[test]
fn a_missing_worker_and_every_variable_that_is_read_are_reported() {
    let doctor = shardwright(["doctor"]).environment("SHARDWRIGHT_NEURON_LIB", "no/such.so");
    let report = doctor.environment("SHARDWRIGHT_WORKER", "/nowhere/worker").json();
    assert!(report["worker"]["path"].is_null(), "{report}");
    assert_eq!(named(&report["shims"], "shims", "cpu")["asked"], "in this process", "{report}");
    let said =
        list(&report, "problems").iter().any(|problem| problem.to_string().contains("/nowhere/worker"));
    assert!(said, "{report}");
    for (name, value) in [("SHARDWRIGHT_WORKER", "/nowhere/worker"), ("SHARDWRIGHT_NEURON_LIB", "no/such.so")]
    {
        assert_eq!(named(&report, "environment", name)["value"], value, "{report}");
    }
    let Some(files) = tree::rust_files() else {
        skipped("variables: no git repository to list the project's files");
        return;
    };
    let sources = files.iter().filter(|path| {
        let path = path.to_string_lossy();
        let program = path.starts_with("host/") || path.starts_with("vendor-shims/");
        program && path.contains("/src/") && !path.contains("test")
    });
    let mut read = 0;
    for path in sources {
        let source = tree::read(path);
        let source = &source[..source.len() - test_part(&source).len()];
        for (at, _) in source.match_indices("\"SHARDWRIGHT_") {
            let name = source[at + 1..].split('"').next().unwrap_or_default();
            let is_name = name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            if is_name && !NOT_A_USERS.contains(&name) {
                named(&report, "environment", name);
                read += 1;
            }
        }
    }
    assert!(read >= 10, "{read} variables were found in the sources");
}

#[test]
fn where_nothing_can_run_it_says_so_and_what_would_help() {
    let alone = Alone::new();
    let outcome = alone.runs(&["doctor", "--format", "json"]);
    assert_eq!(outcome.code, Some(3), "{}{}", outcome.stdout, outcome.stderr);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("the report comes all the same");
    assert_eq!(report["can_run"], false, "{report}");
    let text = alone.runs(&["doctor"]);
    assert!(
        text.stderr.contains("error: no shim was found") && text.stderr.contains("help:"),
        "{}",
        text.stderr
    );

    let folder = tempfile::tempdir().expect("a temporary folder");
    manifest(folder.path(), "absent");
    let shims = folder.path().display().to_string();
    let text = alone.runs(&["doctor", "--shims", &shims]);
    assert_eq!(text.code, Some(3), "{}", text.stderr);
    assert!(text.stderr.contains("1 skipped"), "{}", text.stderr);
    assert!(text.stdout.contains("absent.so"), "{}", text.stdout);
}

/// Asserts that `doctor` found no chain that would run. Returns the first variant of the bundle.
fn does_not_run(outcome: Outcome, code: i32) -> Value {
    assert_eq!(outcome.code, Some(code), "{}{}", outcome.stdout, outcome.stderr);
    let mut report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert!(report["bundle"]["would_run"].is_null(), "{report}");
    report["bundle"]["variants"][0].take()
}

/// Another chain is not promised if the artefact of the first one is damaged.
#[test]
fn a_bundle_is_checked_for_how_it_would_run() {
    let whole = Compiled::from(TEXT_FIXTURES[3], ["--soc", "mt6989", "--on", "cpu", "--limit", "ops=200"]);
    let doctor = |bundle: &Compiled| shardwright(["doctor"]).argument(bundle.path());
    let report = doctor(&whole).json();
    let bundle_report = &report["bundle"];
    let expected = serde_json::json!({ "soc": "mt6989", "chain": "primary" });
    assert_eq!(bundle_report["would_run"], expected, "{bundle_report}");
    let primary = named(&bundle_report["variants"][0], "chains", "primary");
    assert_eq!((&primary["runs"], &primary["emulated_on"]), (&true.into(), &"cpu".into()), "{primary}");
    assert!(list(primary, "shards").len() >= 2, "{primary}");
    for shard in list(primary, "shards") {
        assert_eq!((&shard["state"], &shard["device"]), (&"optimal".into(), &"cpu".into()), "{shard}");
    }

    // On a machine without the shim of the bundle.
    let path = whole.path().display().to_string();
    let variant = does_not_run(Alone::new().runs(&["doctor", &path, "--format", "json"]), 3);
    for chain in list(&variant, "chains") {
        for shard in list(chain, "shards") {
            assert_eq!((&shard["state"], &shard["shim_here"]), (&"no-shim".into(), &Value::Null), "{shard}");
        }
    }

    let made = whole.variant_json();
    let shards = list(named(&made, "chains", "primary"), "shards");
    let decoder = shards.iter().find(|shard| plans::holds(shard, "decoder")).expect("a decoder shard");
    let damaged = whole.copied();
    damage(&damaged.file(&decoder["artefact"]));
    let variant = does_not_run(doctor(&damaged).arguments(["--format", "json"]).outcome(), 4);
    let primary = named(&variant, "chains", "primary");
    let shard = list(primary, "shards").iter().find(|shard| shard["name"] == decoder["name"]).expect("it");
    assert_eq!(shard["state"], "damaged", "{shard}");
    shardwright(["run", "--prompt", "a"]).argument(damaged.path()).refuses_with(4, &[]);

    let damaged = whole.copied();
    let table = &list(&made, "assets")[0]["table"];
    damage(&damaged.file(table));
    let variant = does_not_run(doctor(&damaged).arguments(["--format", "json"]).outcome(), 4);
    let reason = variant["damaged_table"].as_str().expect("a reason");
    assert!(reason.contains(table["sha256"].as_str().expect("a hash")), "{reason}");

    // Files that no chain names are hashed too.
    let damaged = Compiled::of(DEMO_MODEL);
    let opened = Bundle::open(damaged.path()).expect("a bundle");
    let tokenizer = opened.place(&opened.manifest().texts[&TextFile::Tokenizer]).expect("its place").path;
    damage(&tokenizer);
    let outcome = doctor(&damaged).outcome();
    assert_eq!(outcome.code, Some(4), "{}{}", outcome.stdout, outcome.stderr);
    assert!(outcome.stdout.ends_with("the bundle is damaged\n"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains(&tokenizer.display().to_string()), "{}", outcome.stderr);

    // A folder, a checkpoint and a damaged manifest are not bundles.
    let folder = tempfile::tempdir().expect("a temporary folder");
    shardwright(["doctor"]).argument(folder.path()).refuses();
    shardwright(["doctor", TEXT_FIXTURES[3]]).refuses();
    damage(&damaged.manifest());
    let (_, stderr) = doctor(&damaged).refuses();
    assert!(stderr.contains("bundle.json"), "{stderr}");
}
