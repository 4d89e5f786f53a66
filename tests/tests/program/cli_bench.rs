//! `shardwright bench` as a user runs it: rows, JSON, memory and phases, and refusals. Times are
//! not checked.

use serde_json::Value;
use shardwright_tests::bundles::Compiled;
use shardwright_tests::cache::Cache;
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::{Run, shardwright};

const FIXTURE: &str = TEXT_FIXTURES[0];

/// Prepares a bench of small sizes on two threads.
fn bench(checkpoint: &str) -> Run {
    shardwright(["bench", checkpoint, "-p", "8", "-n", "4", "-r", "2", "-t", "2"])
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

/// Returns the kind of logits that each step requested.
fn logits(report: &Value) -> Vec<&str> {
    let results = report["results"].as_array().expect("results").iter();
    results.map(|result| result["logits"].as_str().expect("a word")).collect()
}

/// The CPU shim's fastest method for single rows is cached, reported by `doctor`, used by the next
/// process, and overridden by a flag.
#[test]
fn what_was_measured_is_kept_and_told() {
    let cache = Cache::empty();
    let bench = |more: &[&str]| {
        let bench = cache.run(["bench", DEMO_MODEL, "-n", "240", "-r", "3", "-t", "1", "--context", "256"]);
        let format = ["--planner-option", "format=w8-per-channel/a8-dynamic"];
        bench.arguments(format).arguments(more).json()
    };
    let found = |report: &Value| {
        let measured = report["measured"].as_array().expect("a list");
        let flags = measured.iter().flat_map(|place| place["flags"].as_array().expect("flags"));
        let of = |flag: &Value| (flag["flag"]["value"].as_str().map(str::to_owned), flag["kept"] == true);
        flags.filter(|flag| flag["flag"]["name"] == "streams").map(of).collect::<Vec<_>>()
    };
    let forced = bench(&["--flag", "streams=1"]);
    assert_eq!(found(&forced), [], "a forced way is not measured");
    let [(Some(value), false)] = &found(&bench(&[]))[..] else { panic!("it was measured") };
    assert_eq!(found(&bench(&[])), [(Some(value.clone()), true)], "it was kept");
    let forced = bench(&["--flag", "streams=1"]);
    assert_eq!(found(&forced), [], "what is kept is not used where a flag decides");
    // A worker uses the same cache, and `measured` requests a new measurement.
    let worker = bench(&["--isolation", "process", "--flag", "products=scalar"]);
    assert_eq!(found(&worker), [(Some(value.clone()), true)]);
    std::fs::remove_dir_all(cache.path().join("measured")).expect("it is there");
    let worker = found(&bench(&["--isolation", "process"]));
    let [(Some(_), false)] = &worker[..] else { panic!("{worker:?}") };
    let anew = found(&bench(&["--flag", "streams=measured"]));
    let [(Some(value), false)] = &anew[..] else { panic!("{anew:?}") };
    let doctor = cache.run(["doctor", "--verbose"]).succeeds();
    assert!(doctor.contains(&format!("cpu: measured as fastest: streams={value}")), "{doctor}");
}

#[test]
fn a_bench_tells_speeds_phases_memory_and_the_plan() {
    let report = bench(FIXTURE).arguments(["-d", "0,3", "--probe", "--probe-mebibytes", "2"]).json();
    let results = report["results"].as_array().expect("results");
    let tests: Vec<&str> = results.iter().filter_map(|result| result["test"].as_str()).collect();
    assert_eq!(tests, ["pp8", "tg4", "pp8 @ d3", "tg4 @ d3"]);
    assert_eq!(logits(&report), ["all", "largest", "all", "largest"]);
    for result in results {
        let speeds = &result["tokens_per_second"];
        let samples = numbers(&speeds["samples"]);
        assert_eq!((samples.len(), numbers(&result["seconds"]).len()), (2, 2), "{result}");
        let value = |name: &str| speeds[name].as_f64().expect(name);
        assert!(samples.iter().all(|&speed| speed > 0.0) && value("deviation") >= 0.0, "{speeds}");
        assert!(value("worst") <= value("median") && value("median") <= value("best"), "{speeds}");
        assert_eq!(value("median"), value("mean"), "of two");

        let shards = result["shards"].as_array().expect("shards");
        assert!(
            shards.iter().any(|shard| shard["shard"].as_str().is_some_and(|name| name.contains("decoder")))
        );
        let inside: f64 = shards.iter().filter_map(|shard| shard["seconds"].as_f64()).sum();
        let all: f64 = numbers(&result["seconds"]).iter().sum();
        let outside = result["outside_seconds"].as_f64().expect("a number");
        assert!(inside <= all && (inside + outside - all).abs() < 1e-6, "{result}");
        assert_eq!(
            result["steps"].is_object(),
            result["test"].as_str().is_some_and(|test| test.starts_with("tg"))
        );
    }
    // Two repetitions: a prompt runs a prefill and the step of its last token, and four tokens run
    // one step each.
    let head = |result: &Value| {
        let shards = result["shards"].as_array().expect("shards").iter();
        let mut heads =
            shards.filter(|shard| shard["shard"].as_str().is_some_and(|name| name.contains("head")));
        heads.next().expect("a head")["runs"].as_u64()
    };
    assert_eq!((head(&results[0]), head(&results[1])), (Some(4), Some(8)));

    assert_eq!(report["threads"], 2);
    assert_eq!(report["probes"].as_array().map(Vec::len), Some(1 + 2 * 4));
    assert!(report["bundle"].is_null());
    for name in ["weight_bytes", "artefact_bytes", "table_bytes", "state_bytes"] {
        assert!(report["memory"][name].as_u64().is_some_and(|bytes| bytes > 0), "{name}: {report}");
    }
    if cfg!(target_os = "linux") {
        let of = |name: &str| report["memory"][name].as_u64().expect(name);
        assert!(of("resident_bytes") > 1 << 20 && of("resident_bytes") <= of("peak_resident_bytes"));
        assert!(of("huge_bytes") <= of("artefact_resident_bytes"), "{report}");
        let read = 1..=of("artefact_bytes");
        assert!(read.contains(&of("artefact_resident_bytes")), "the weights were read: {report}");
    }
    let opening = &report["opening"];
    let parts = ["reading", "planning", "quantising", "compiling", "loading"];
    let parts: f64 = parts.iter().filter_map(|part| opening[format!("{part}_seconds")].as_f64()).sum();
    assert!(parts > 0.0 && parts <= opening["total_seconds"].as_f64().expect("a number"), "{opening}");
    let first = &report["first_token"];
    assert_eq!(first["tokens"], 16);
    assert!(first["run_seconds"].as_f64() < first["since_start_seconds"].as_f64(), "{first}");
    assert!(first["tokenizer_since_start_seconds"].is_null(), "no tokenizer was requested: {first}");
}

#[test]
fn a_bundle_runs_by_the_plan_of_its_checkpoint() {
    let format = ["--planner-option", "format=w8-per-channel/a8-dynamic"];
    let bundle = Compiled::from(FIXTURE, format);
    let bundle = bundle.path().display().to_string();
    let (compiled, opened) = (bench(&bundle).json(), bench(FIXTURE).arguments(format).json());
    assert_eq!(compiled["plan_id"], opened["plan_id"]);
    assert_eq!(compiled["formats"], opened["formats"]);
    assert_eq!(opened["formats"], serde_json::json!(["w8-per-channel/a8-dynamic/f16"]));
    assert!(compiled["bundle"].is_string());
    assert_eq!(compiled["opening"]["compiling_seconds"], 0.0);
    let plain = bench(FIXTURE).arguments(["--text", "--all-logits"]).json();
    assert_ne!(plain["plan_id"], opened["plan_id"], "another format is another plan");
    assert_eq!(logits(&plain), ["all", "all"]);

    // With a text, the time of loading the tokenizer is reported.
    let first = &plain["first_token"];
    let (ready, since_start) = (&first["tokenizer_since_start_seconds"], &first["since_start_seconds"]);
    assert!(ready.as_f64() >= since_start.as_f64(), "{first}");
    assert!(compiled["first_token"]["tokenizer_since_start_seconds"].is_null());
    let with_text = bench(&bundle).argument("--text").json();
    assert!(with_text["first_token"]["tokenizer_since_start_seconds"].is_f64());
    let copy = Copy::of(FIXTURE).with("tokenizer.json", "{");
    let damaged = copy.path().to_str().expect("UTF-8");
    for further in [&[][..], &["--text"]] {
        bench(damaged).arguments(further).refuses_with(4, &["tokenizer.json"]);
    }
}

/// The runtime caps its logits itself, so it needs all of them.
#[test]
fn a_bench_tells_which_logits_every_step_was_asked_for() {
    for (place, steps) in [("graph", "largest"), ("runtime", "all")] {
        let capped = bench(TEXT_FIXTURES[1]).arguments(["--planner-option", &format!("softcap={place}")]);
        assert_eq!(logits(&capped.json()), ["all", steps]);
    }
}

#[test]
fn a_bench_is_a_table_for_people() {
    let text = bench(FIXTURE).succeeds();
    for word in
        ["pp8", "tg4", "the largest", " ± ", "between shards", "planning", "first token", "memory:", "plan "]
    {
        assert!(text.contains(word), "{word}:\n{text}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--first-tokens", "0"], 2, "--first-tokens"),
        (&["--probe", "--probe-mebibytes", "0"], 2, "--probe-mebibytes"),
        (&["--context", "32", "-p", "33"], 10, "pp33 needs 33 positions, and the context has 32"),
        (&["--context", "32", "-n", "30", "-d", "3"], 10, "tg30 @ d3 needs 33"),
        (&["--context", "8", "-p", "8"], 10, "first step"),
    ];
    for (arguments, code, says) in cases {
        shardwright(["bench", FIXTURE]).arguments(*arguments).refuses_with(*code, &[*says]);
    }
    bench(EMBEDDING_FIXTURE).refuses_with(5, &["computes embeddings"]);
}
