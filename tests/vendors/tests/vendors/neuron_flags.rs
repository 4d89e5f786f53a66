//! Common causes of slow bundles on MediaTek's chips: compiled with one flag instead of twenty, or
//! with twenty that had no effect. The compiler's flags are read from the file, compared with the
//! chip's profile, and reported. Code of another major version of the library is refused before it
//! runs.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use shardwright_planning::profile::ProfileRegistry;
use shardwright_tests::program::{self, Run, shardwright};
use tempfile::TempDir;

const CHECKPOINT: &str = "tests/fixtures/gemma4_text";
/// Files written by a generator in the crate of the readers.
const CORPUS: &str = "vendor-shims/neuron/containers/fuzz/corpus";
/// The flags of the public tools.
const BARE: &str = "relax-fp32";

/// Returns the flags that the profile of a chip recommends.
fn worth_setting(soc: &str) -> Vec<String> {
    let profile = ProfileRegistry::new().find(soc).expect("a profile").profile;
    profile.flags.into_iter().map(|flag| flag.name).collect()
}

/// A simulator of the library and its compilations.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new(configuration: &Value) -> Bench {
        let bench = Bench { folder: tempfile::tempdir().expect("a temporary folder") };
        fs::write(bench.file("text"), "hello world\nthe quick brown fox\n").expect("written");
        bench.configure(configuration);
        bench
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Sets the behaviour of the simulator for later runs.
    fn configure(&self, configuration: &Value) {
        fs::write(self.file("simulator.json"), configuration.to_string()).expect("written");
    }

    fn runs(&self, command: &str) -> Run {
        shardwright([command])
            .environment("XDG_CACHE_HOME", self.file("cache"))
            .environment("SHARDWRIGHT_NEURON_SIMULATOR", self.file("simulator.json"))
            .environment("SHARDWRIGHT_NEURON_LIB", program::folder().join("libneuron_adapter.so"))
    }

    /// Compiles for a chip, with further arguments, and returns the manifest.
    fn compile(&self, soc: &str, further: &[String]) -> Value {
        let run = self.runs("compile").argument(CHECKPOINT).argument("-o").argument(self.file("bundle"));
        let run = run.arguments(["--soc", soc, "--on", "simulator", "--context", "64"]);
        let run = run.arguments(["--formats", "w8-per-channel/a16-symmetric/a16", "--strict"]);
        run.argument("--calibration-text").argument(self.file("text")).arguments(further).succeeds();
        let bytes = fs::read(self.file("bundle/bundle.json")).expect("a manifest");
        serde_json::from_slice::<Value>(&bytes).expect("JSON")["manifest"]["variants"][0].clone()
    }

    fn inspected(&self) -> Value {
        self.runs("inspect").argument(self.file("bundle")).json()
    }

    fn doctor(&self) -> Value {
        self.runs("doctor").argument(self.file("bundle")).json()
    }
}

/// Returns the flags of shards that the chip's compiler made, with their verdicts.
fn verdicts(manifest: &Value) -> Vec<(String, String, String)> {
    let chains = manifest["chains"].as_array().expect("chains").iter();
    let shards = chains.flat_map(|chain| chain["shards"].as_array().expect("shards"));
    let flags = shards
        .filter(|shard| shard["compiled_by"]["shim"] == "neuron")
        .flat_map(|shard| shard["flags"].as_array().expect("flags"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    flags
        .map(|entry| {
            (
                text(&entry["flag"]["name"]),
                text(&entry["verdict"]["verdict"]),
                text(&entry["reason"]) + &text(&entry["verdict"]["evidence"]),
            )
        })
        .collect()
}

fn list<'v>(value: &'v Value, member: &str) -> Vec<&'v Value> {
    value[member].as_array().unwrap_or_else(|| panic!("{member} of {value}")).iter().collect()
}

fn names(advised: &Value) -> Vec<&str> {
    let advised = advised.as_array().expect("a list").iter();
    advised.map(|advised| advised["flag"]["name"].as_str().expect("a name")).collect()
}

/// Checks whether a problem of a doctor's report contains all these words.
fn has_problem(report: &Value, words: &[&str]) -> bool {
    let matches = |problem: &&Value| words.iter().all(|word| problem.to_string().contains(word));
    list(report, "problems").iter().any(matches)
}

#[test]
fn a_published_file_says_what_it_lacks_without_any_library() {
    let inspect = |file: &str| {
        shardwright(["inspect"])
            .argument(format!("{CORPUS}/{file}"))
            .environment("SHARDWRIGHT_NEURON_LIB", "no/such.so")
    };
    let report = inspect("tflite/relax-only.tflite").json();
    assert_eq!(
        (&report["kind"], &report["shim"], &report["format"]),
        (&json!("foreign"), &json!("neuron"), &json!("tflite"))
    );
    let worth = worth_setting("mt6989");
    let expected: Vec<&str> = worth.iter().map(String::as_str).filter(|name| *name != BARE).collect();
    let advice = list(&report, "advice");
    assert_eq!(advice.len(), 2, "a partition each: {report}");
    for advice in advice {
        assert_eq!((&advice["soc"], &advice["profile"]), (&json!("mt6989"), &json!("mt6989")));
        assert_eq!(names(&advice["missing"]), expected);
        assert!(advice["cost"].as_str().expect("a cost").contains("153 times slower"), "{advice}");
    }
    let text = inspect("tflite/relax-only.tflite").succeeds();
    let words = [
        "11 of 12 flags worth setting on mt6989 are not in effect",
        "num-mdla=4",
        "cost elsewhere: about 153 times slower",
        "2900 ms a token",
        // A path in a compiled file is shown unchanged.
        "--dla-file /build/dir/a.dla",
        "adapter",
        "8.2.28",
    ];
    for word in words {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
    // As published: with all flags, and for the newest chip.
    let report = inspect("tflite/published.tflite").json();
    for advice in list(&report, "advice") {
        assert_eq!(
            (&advice["advised"], &advice["missing"], &advice["different"]),
            (&json!(20), &json!([]), &json!([]))
        );
    }
    // Every other container is recognised. If a file names no chip, the user may.
    for (file, format) in [
        ("litertlm/bundle.litertlm", "litertlm"),
        ("neuron_schema/two-partitions.bin", "neuron-container"),
        ("blob/adapter-cache.bin", "neuron-adapter-cache"),
        ("blob/dla.bin", "neuron-dla"),
        ("blob/simulator.bin", "shardwright-neuron-simulator"),
        ("executorch/payload.bin", "executorch-neuron-payload"),
    ] {
        assert_eq!(inspect(file).json()["format"], format, "{file}");
    }
    let alone = || inspect("blob/dla.bin");
    assert!(alone().succeeds().contains("flags were not compared: the file does not name its chip"));
    let text = alone().arguments(["--soc", "Dimensity 9500"]).succeeds();
    assert!(text.contains("19 of 20 flags worth setting on mt6993"), "{text}");
    // A known but damaged file is an error, not an unknown file.
    let refused = inspect("tflite/no-code.tflite").outcome();
    assert_ne!(refused.code, Some(0));
    assert!(
        refused.stderr.contains("compiled code") && refused.stderr.contains("no bytes"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_bundle_with_one_flag_lacks_the_others_and_one_through_the_profile_lacks_none() {
    let bench = Bench::new(&json!({"version": [8, 2, 28], "soc": "mt6989"}));
    let worth = worth_setting("mt6989");
    let left_out = worth.iter().filter(|name| *name != BARE);
    let without: Vec<String> =
        left_out.flat_map(|name| ["--without-flag".to_owned(), name.clone()]).collect();
    let manifest = bench.compile("mt6989", &without);
    let flags = verdicts(&manifest);
    assert!(!flags.is_empty() && flags.iter().all(|(name, ..)| name == BARE), "{flags:?}");

    let report = bench.inspected();
    let advice = list(&report, "advice");
    assert!(!advice.is_empty(), "{report}");
    for advice in advice {
        assert_eq!(names(&advice["missing"]).len(), worth.len() - 1, "{advice}");
        assert!(advice["cost"].as_str().is_some_and(|cost| cost.contains("153 times slower")));
    }
    // The artefacts themselves confirm that.
    for advice in list(&report, "artefacts").iter().flat_map(|shard| shard["advice"].as_array()).flatten() {
        assert_eq!(names(&advice["missing"]).len(), worth.len() - 1, "{advice}");
    }
    let doctor = bench.doctor();
    let count = format!("{} of {} flags worth setting on mt6989", worth.len() - 1, worth.len());
    assert!(has_problem(&doctor, &[&count, "num-mdla=4", "153 times slower"]), "{:#}", doctor["problems"]);

    fs::remove_dir_all(bench.file("bundle")).expect("removed");
    let manifest = bench.compile("mt6989", &["--flag".to_owned(), "opt-bw=true".to_owned()]);
    let flags = verdicts(&manifest);
    for name in worth.iter().map(String::as_str).chain(["opt-bw"]) {
        assert!(flags.iter().any(|(flag, ..)| flag == name), "{name} is not among {flags:?}");
    }
    let opt: Vec<_> = flags.iter().filter(|(name, ..)| name == "opt").collect();
    assert!(
        opt.iter()
            .all(|(_, verdict, evidence)| verdict == "applied" && evidence.contains("bytes of code differ")),
        "{opt:?}"
    );
    let report = bench.inspected();
    for advice in list(&report, "advice") {
        assert_eq!((&advice["missing"], &advice["different"]), (&json!([]), &json!([])), "{advice}");
    }
    let doctor = bench.doctor();
    assert!(!has_problem(&doctor, &["flags worth setting", "missing"]), "{:#}", doctor["problems"]);
}

#[test]
fn a_compiler_that_repeats_twenty_flags_and_uses_none_is_found_out() {
    let bench = Bench::new(&json!({"version": [9, 0, 3], "soc": "mt6993", "honoured": "none"}));
    let worth = worth_setting("mt6993");
    assert_eq!(worth.len(), 20);
    let manifest = bench.compile("mt6993", &[]);
    let flags = verdicts(&manifest);
    for name in &worth {
        let of: Vec<_> = flags.iter().filter(|(flag, ..)| flag == name).collect();
        assert!(!of.is_empty(), "{name} is not among {flags:?}");
        for (_, verdict, evidence) in of {
            assert_eq!(verdict, "inert", "{name}: {evidence}");
            assert!(
                evidence.contains("the same code") && evidence.contains("which shows nothing"),
                "{evidence}"
            );
        }
    }
    // The artefacts echo all of them.
    let report = bench.inspected();
    let all_advice: Vec<&Value> = list(&report, "artefacts")
        .into_iter()
        .flat_map(|shard| shard["advice"].as_array())
        .flatten()
        .collect();
    assert!(!all_advice.is_empty());
    for advice in all_advice {
        assert_eq!((&advice["missing"], &advice["profile"]), (&json!([]), &json!("mt6993")), "{advice}");
    }
    let doctor = bench.doctor();
    let words = [
        "20 of 20 flags worth setting on mt6993",
        "without effect",
        "num-mdla=4 (inert)",
        "153 times slower",
    ];
    assert!(has_problem(&doctor, &words), "{:#}", doctor["problems"]);
}

/// The chip's profile names the library version that the simulator imitates, and the flags follow
/// from it. A plan reports the same flags as the compilation.
#[test]
fn a_simulator_plays_the_library_of_the_chip_and_the_plan_has_the_flags_of_the_compilation() {
    for (soc, adapter) in [("mt6993", "9.2.0"), ("mt6989", "8.2.28")] {
        let bench = Bench::new(&json!({}));
        let worth = worth_setting(soc);
        let manifest = bench.compile(soc, &[]);
        let flags = verdicts(&manifest);
        for name in &worth {
            let of: Vec<_> = flags.iter().filter(|(flag, ..)| flag == name).collect();
            assert!(!of.is_empty(), "{soc}: {name} is not among {flags:?}");
            let taken = |(_, verdict, _): &&(String, String, String)| {
                matches!(verdict.as_str(), "applied" | "recorded" | "inert")
            };
            assert!(of.iter().all(taken), "{soc}: {of:?}");
        }
        // The plan has the same flags with the simulator and without any library.
        for on in [&["--on", "simulator"][..], &[]] {
            let run = bench.runs("plan").argument(CHECKPOINT).arguments(["--soc", soc, "--context", "64"]);
            let run = run.arguments(on.iter().copied()).environment("SHARDWRIGHT_NEURON_LIB", "");
            let run = run.arguments(["--formats", "w8-per-channel/a16-symmetric/a16"]);
            let report = run.argument("--calibration-text").argument(bench.file("text")).json();
            let mut planned: Vec<&str> = list(&report["shards"][0], "flags")
                .into_iter()
                .map(|flag| flag["name"].as_str().expect("a name"))
                .collect();
            let mut compiled: Vec<&str> = flags.iter().map(|(name, ..)| name.as_str()).collect();
            for names in [&mut planned, &mut compiled] {
                names.sort_unstable();
                names.dedup();
            }
            assert_eq!(planned, compiled, "{soc} {on:?}: {}", report["notices"]);
            assert!(!report["notices"].to_string().contains("is left out"), "{}", report["notices"]);
        }
        let inspected = bench.inspected().to_string();
        assert!(inspected.contains(adapter), "{soc}: {inspected}");
    }
    // A configuration that names a version overrides the profile.
    let bench = Bench::new(&json!({"version": [8, 2, 28]}));
    let run = bench.runs("plan").argument(CHECKPOINT).arguments(["--soc", "mt6993", "--on", "simulator"]);
    let text = run.argument("--calibration-text").argument(bench.file("text")).outcome();
    assert!(
        text.stderr.contains("mem-opt=3 of profile mt6993 is left out")
            || text.stdout.contains("mem-opt=3 of profile mt6993 is left out"),
        "{}",
        text.stderr
    );
}

#[test]
fn code_of_another_major_is_refused_before_it_runs() {
    let bench = Bench::new(&json!({"version": [8, 2, 28], "soc": "mt6989"}));
    bench.compile("mt6989", &[]);
    let trace = bench.file("trace");
    bench.configure(&json!({"version": [9, 0, 3], "soc": "mt6989", "trace": trace}));
    let outcome =
        bench.runs("doctor").argument(bench.file("bundle")).arguments(["--format", "json"]).outcome();
    assert_ne!(outcome.code, Some(0), "no chain runs: {}", outcome.stdout);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("a report all the same");
    let shards: Vec<&Value> = list(&report["bundle"]["variants"][0], "chains")
        .iter()
        .flat_map(|chain| list(chain, "shards"))
        .collect();
    let refused =
        shards.iter().find(|shard| shard["state"] == "unsupported").expect("a shard that is refused");
    let reason = refused["reason"].as_str().expect("a reason");
    assert!(reason.contains("8.2.28") && reason.contains("9.0.3"), "{reason}");

    let run = bench.runs("run").argument(bench.file("bundle"));
    let outcome = run.arguments(["--prompt", "hello", "--max-tokens", "1", "--greedy", "--strict"]).outcome();
    assert_ne!(outcome.code, Some(0), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("8.2.28") && outcome.stderr.contains("9.0.3"), "{}", outcome.stderr);
    let calls = fs::read_to_string(&trace).unwrap_or_default();
    assert!(!calls.contains("NeuronExecution") && !calls.contains("restore"), "{calls}");
}

#[test]
fn power_is_what_the_plan_says_unless_a_session_says_otherwise() {
    let bench = Bench::new(&json!({"version": [8, 2, 28], "soc": "mt6989"}));
    bench.compile("mt6989", &[]);
    let trace = bench.file("trace");
    bench.configure(&json!({"version": [8, 2, 28], "soc": "mt6989", "trace": trace}));
    let run = |flag: &str| {
        let run = bench.runs("run").argument(bench.file("bundle")).arguments(["--flag", flag]);
        run.arguments(["--prompt", "hello", "--max-tokens", "1", "--greedy"]).outcome()
    };
    let saving = run("power=saver");
    assert_eq!(saving.code, Some(0), "{}", saving.stderr);
    assert!(saving.stderr.contains("flag power=saver is inert"), "{}", saving.stderr);
    let calls = fs::read_to_string(&trace).expect("a trace");
    let boosts: Vec<_> = calls.lines().filter(|line| line.contains("NeuronExecution_setBoostHint")).collect();
    assert!(!boosts.is_empty() && boosts.iter().all(|line| line.contains("20")), "{boosts:?}");
    for (flag, words) in [
        ("power=mad", "it takes one of burst, sustained, balanced, saver"),
        ("nonsense=1", "no loaded shim supports it"),
        ("opt=2", "it is fixed in the bundle"),
    ] {
        let refused = run(flag);
        assert_ne!(refused.code, Some(0), "{flag}: {}", refused.stdout);
        assert!(refused.stderr.contains(words), "{flag}: {}", refused.stderr);
    }
    let compile = |name: &str, flags: &[&str]| {
        let run = bench.runs("compile").argument(CHECKPOINT).argument("-o").argument(bench.file(name));
        let run = run.arguments(["--soc", "mt6989", "--on", "simulator"]).arguments(flags.iter().copied());
        run.argument("--calibration-text").argument(bench.file("text")).succeeds();
    };
    compile("plain", &[]);
    compile("other", &["--flag", "power=balanced"]);
    let manifest = |name: &str| {
        let text = fs::read_to_string(bench.file(name).join("bundle.json")).expect("a manifest");
        serde_json::from_str::<Value>(&text).expect("JSON")["manifest"]["variants"][0]["chains"][0]["shards"]
            .clone()
    };
    let (plain, planned) = (manifest("plain"), manifest("other"));
    assert_eq!(planned[0]["load_flags"], json!([{"name": "power", "value": "balanced"}]), "{planned}");
    assert_eq!(planned[0]["work_order"], plain[0]["work_order"], "no artefact depends on it");
    let shown = bench.runs("inspect").argument(bench.file("other")).succeeds();
    assert!(shown.contains("power=balanced at loading"), "{shown}");
    for (flags, hint) in [(&[][..], "50"), (&["--flag", "power=saver"], "20")] {
        fs::remove_file(&trace).expect("an older trace");
        let run = bench.runs("run").argument(bench.file("other")).arguments(flags.iter().copied());
        let outcome = run.arguments(["--prompt", "hello", "--max-tokens", "1", "--greedy"]).outcome();
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let calls = fs::read_to_string(&trace).expect("a trace");
        let boosts = calls.lines().filter(|line| line.contains("NeuronExecution_setBoostHint"));
        let boosts: Vec<&str> = boosts.collect();
        assert!(!boosts.is_empty() && boosts.iter().all(|line| line.contains(hint)), "{flags:?}: {boosts:?}");
    }
}

#[test]
fn priority_reaches_the_compilation_and_unasked_it_is_what_clients_on_phones_set() {
    let bench = Bench::new(&json!({"version": [8, 2, 28], "soc": "mt6989"}));
    let trace = bench.file("trace");
    bench.configure(&json!({"version": [8, 2, 28], "soc": "mt6989", "trace": trace}));
    for (flags, set) in [(&[][..], "priority=110"), (&["--flag", "priority=low"], "priority=90")] {
        let run = bench.runs("compile").argument(CHECKPOINT).argument("-o").argument(bench.file("bundle"));
        let run = run.arguments(["--soc", "mt6989", "--on", "simulator"]).arguments(flags.iter().copied());
        let outcome = run.argument("--calibration-text").argument(bench.file("text")).outcome();
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let calls = fs::read_to_string(&trace).expect("a trace");
        let all: Vec<&str> = calls.lines().filter(|line| line.contains("_setPriority")).collect();
        assert!(!all.is_empty() && all.iter().all(|line| line.contains(set)), "{flags:?}: {all:?}");
        if !flags.is_empty() {
            let said = format!("{}{}", outcome.stdout, outcome.stderr);
            assert!(said.contains("flag priority=low, which you set, is inert"), "{said}");
        }
        fs::remove_file(&trace).expect("a trace");
        fs::remove_dir_all(bench.file("bundle")).expect("a bundle");
    }
}

#[test]
fn flags_of_a_user_join_the_profile_s_and_what_no_schema_knows_is_refused() {
    let bench = Bench::new(&json!({"version": [8, 2, 28], "soc": "mt6989"}));
    let plan = |further: &[&str]| {
        let run = bench.runs("plan").argument(CHECKPOINT).arguments(["--soc", "mt6989", "--on", "simulator"]);
        let run = run.arguments(["--formats", "w8-per-channel/a16-symmetric/a16", "--strict"]);
        run.argument("--calibration-text").argument(bench.file("text")).arguments(further)
    };
    let text = plan(&["--flag", "opt=2", "--flag", "opt-bw=true", "--without-flag", "gno", "-v"]).outcome();
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    let said = format!("{}{}", text.stdout, text.stderr);
    for words in [
        "flag opt=2, as you ask, in place of opt=3 of profile mt6989",
        "flag gno=LTS,Inception of profile mt6989 is left out, as you ask",
        "flag opt-bw=true, as you ask, beside those of profile mt6989",
        "num-mdla=4",
        "set for the target, by its profile or by whoever asks",
    ] {
        assert!(said.contains(words), "{words} is not in\n{said}");
    }
    assert!(!said.contains("profile recommends"), "{said}");
    for (further, words) in [
        (["--flag", "warp=9"], "has no flag `warp`"),
        (["--flag", "opt=9"], "an integer from 0 to 3"),
        // This flag is supported only by the next major version.
        (["--flag", "mem-opt=3"], "has no flag `mem-opt`"),
        (["--without-flag", "warp"], "does not set it"),
    ] {
        let (_, refused) = plan(&further).refuses();
        assert!(refused.contains(words), "{further:?}: {refused}");
    }
    // Unknown options may be passed through.
    let forced = plan(&["--flag", "options=--warp 9"]).succeeds();
    assert!(forced.contains("options=--warp 9"), "{forced}");
}

#[test]
fn a_flag_that_a_user_sets_and_that_does_nothing_is_a_fallback() {
    let bench = Bench::new(&json!({"version": [9, 0, 3], "soc": "mt6993", "honoured": "none"}));
    let compile = |further: &[&str]| {
        let run = bench.runs("compile").argument(CHECKPOINT).argument("-o").argument(bench.file("bundle"));
        let run = run.arguments(["--soc", "mt6993", "--on", "simulator", "--context", "64"]);
        let run = run.arguments(["--formats", "w8-per-channel/a16-symmetric/a16"]);
        run.argument("--calibration-text").argument(bench.file("text")).arguments(further)
    };
    let (code, stderr) = compile(&["--flag", "opt-bw=true", "--strict"]).refuses();
    assert_eq!(code, 9, "{stderr}");
    assert!(stderr.contains("flag opt-bw=true, which you set, is inert"), "{stderr}");
    // Flags of the profile may have no effect, because the user did not request them.
    compile(&["--strict"]).succeeds();
}
