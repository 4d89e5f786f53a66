//! Common causes of slow bundles on MediaTek's chips: compiled with one flag instead of twenty, or
//! with twenty that had no effect. The compiler's flags are read from the file, compared with the
//! chip's profile, and reported. Code of another major version of the library is refused before it
//! runs.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use shardwright_planning::profile::ProfileRegistry;
use shardwright_tests::neuron::A16W8;
use shardwright_tests::program::{self, Run, shardwright};
use tempfile::TempDir;

const CHECKPOINT: &str = "tests/fixtures/gemma4_text";
/// Files written by a generator in the crate of the readers.
const CORPUS: &str = "vendor-shims/neuron/files/fuzz/corpus";
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

    /// Prepares a compilation for a chip.
    fn compiles(&self, name: &str, soc: &str) -> Run {
        let run = self.runs("compile").argument(CHECKPOINT).argument("-o").argument(self.file(name));
        let run = run.arguments(["--soc", soc, "--on", "simulator", "--context", "64"]);
        run.arguments(["--formats", A16W8, "--calibration-text"]).argument(self.file("text"))
    }

    /// Compiles for a chip, with further arguments, and returns the variant in the manifest.
    fn compile(&self, soc: &str, further: &[String]) -> Value {
        self.compiles("bundle", soc).argument("--strict").arguments(further).succeeds();
        self.variant("bundle")
    }

    fn variant(&self, name: &str) -> Value {
        let bytes = fs::read(self.file(name).join("bundle.json")).expect("a manifest");
        serde_json::from_slice::<Value>(&bytes).expect("JSON")["manifest"]["variants"][0].clone()
    }

    /// Makes a simulator of a version write down its calls from now on.
    fn traced(&self, version: [u8; 3]) {
        let _ = fs::remove_file(self.file("trace"));
        self.configure(&json!({"version": version, "soc": "mt6989", "trace": self.file("trace")}));
    }

    /// Checks that a function was called, each time with this text.
    fn assert_called(&self, function: &str, text: &str) {
        let trace = fs::read_to_string(self.file("trace")).expect("a trace");
        let calls: Vec<&str> = trace.lines().filter(|line| line.contains(function)).collect();
        assert!(!calls.is_empty() && calls.iter().all(|line| line.contains(text)), "{text}: {calls:?}");
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
        "2900 ms per token",
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
    assert!(refused.stderr.contains("compiled code at offset 828 is empty"), "{}", refused.stderr);
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
    // Flags of the profile may have no effect, because the user did not request them.
    let manifest = bench.compile("mt6993", &[]);
    let flags = verdicts(&manifest);
    for name in &worth {
        let of: Vec<_> = flags.iter().filter(|(flag, ..)| flag == name).collect();
        assert!(!of.is_empty(), "{name} is not among {flags:?}");
        for (_, verdict, evidence) in of {
            assert_eq!(verdict, "inert", "{name}: {evidence}");
            assert!(
                evidence.contains("the same code") && evidence.contains("which does not prove an effect"),
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
    // One that a user sets is a fallback.
    let set = bench.compiles("other", "mt6993").arguments(["--flag", "opt-bw=true", "--strict"]);
    set.refuses_with(9, &["flag opt-bw=true, which you set, is inert"]);
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
            let run = run.arguments(["--formats", A16W8]);
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
fn power_and_priority_reach_the_library_and_code_of_another_major_does_not() {
    let bench = Bench::new(&json!({}));
    bench.traced([8, 2, 28]);
    let plain = bench.compile("mt6989", &[]);
    // Unasked the priority is what clients on phones set.
    bench.assert_called("_setPriority", "priority=110");
    bench.traced([8, 2, 28]);
    let low = bench.compiles("low", "mt6989").arguments(["--flag", "priority=low"]).outcome();
    assert_eq!(low.code, Some(0), "{}", low.stderr);
    let said = format!("{}{}", low.stdout, low.stderr);
    assert!(said.contains("flag priority=low, which you set, is inert"), "{said}");
    bench.assert_called("_setPriority", "priority=90");

    // A session's power overrides the plan's.
    bench.compiles("planned", "mt6989").arguments(["--flag", "power=balanced"]).succeeds();
    let planned = bench.variant("planned");
    let shard = |variant: &Value| variant["chains"][0]["shards"][0].clone();
    assert_eq!(shard(&planned)["load_flags"], json!([{"name": "power", "value": "balanced"}]), "{planned}");
    assert_eq!(shard(&planned)["work_order"], shard(&plain)["work_order"], "no artefact depends on it");
    let shown = bench.runs("inspect").argument(bench.file("planned")).succeeds();
    assert!(shown.contains("power=balanced at loading"), "{shown}");
    let run = |name: &str, flags: &[&str]| {
        let run = bench.runs("run").argument(bench.file(name)).arguments(flags);
        run.arguments(["--prompt", "hello", "--max-tokens", "1", "--greedy"])
    };
    let saver = ["--flag", "power=saver"];
    for (name, flags, hint) in
        [("bundle", &saver[..], "20"), ("planned", &[], "50"), ("planned", &saver, "20")]
    {
        bench.traced([8, 2, 28]);
        let outcome = run(name, flags).outcome();
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let is_said = outcome.stderr.contains("flag power=saver is inert");
        assert!(is_said || name != "bundle", "{}", outcome.stderr);
        bench.assert_called("NeuronExecution_setBoostHint", hint);
    }
    for (flag, words) in [
        ("power=mad", "it takes one of burst, sustained, balanced, saver"),
        ("nonsense=1", "no loaded shim supports it"),
        ("opt=2", "it is fixed in the bundle"),
    ] {
        let refused = run("bundle", &["--flag", flag]).outcome();
        assert_ne!(refused.code, Some(0), "{flag}: {}", refused.stdout);
        assert!(refused.stderr.contains(words), "{flag}: {}", refused.stderr);
    }

    // Code of another major is refused before it runs.
    bench.traced([9, 0, 3]);
    let outcome =
        bench.runs("doctor").argument(bench.file("bundle")).arguments(["--format", "json"]).outcome();
    assert_ne!(outcome.code, Some(0), "no chain runs: {}", outcome.stdout);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("a report all the same");
    let chains = list(&report["bundle"]["variants"][0], "chains");
    let mut shards = chains.iter().flat_map(|chain| list(chain, "shards"));
    let refused = shards.find(|shard| shard["state"] == "unsupported").expect("a shard that is refused");
    let reason = refused["reason"].as_str().expect("a reason");
    assert!(reason.contains("8.2.28") && reason.contains("9.0.3"), "{reason}");
    let outcome = run("bundle", &["--strict"]).outcome();
    assert_ne!(outcome.code, Some(0), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("8.2.28") && outcome.stderr.contains("9.0.3"), "{}", outcome.stderr);
    let calls = fs::read_to_string(bench.file("trace")).unwrap_or_default();
    assert!(!calls.contains("NeuronExecution") && !calls.contains("restore"), "{calls}");
}

#[test]
fn flags_of_a_user_join_the_profile_s_and_what_no_schema_knows_is_refused() {
    let bench = Bench::new(&json!({"version": [8, 2, 28], "soc": "mt6989"}));
    let plan = |further: &[&str]| {
        let run = bench.runs("plan").argument(CHECKPOINT).arguments(["--soc", "mt6989", "--on", "simulator"]);
        let run = run.arguments(["--formats", A16W8, "--strict"]);
        run.argument("--calibration-text").argument(bench.file("text")).arguments(further)
    };
    let text = plan(&["--flag", "opt=2", "--flag", "opt-bw=true", "--without-flag", "gno", "-v"]).outcome();
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    let said = format!("{}{}", text.stdout, text.stderr);
    for words in [
        "flag opt=2 replaces opt=3 of profile mt6989, as requested",
        "flag gno=LTS,Inception of profile mt6989 is left out, as requested",
        "flag opt-bw=true is added to the flags of profile mt6989, as requested",
        "num-mdla=4",
        "set for the target by its profile or by the user",
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
