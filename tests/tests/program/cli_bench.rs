//! `shardwright bench` as a user meets it: rows, JSON, memory and phases; in turns with a peer that
//! is a script here; refusals. Nothing is held about times.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use shardwright_tests::checkpoints::{Copy, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::{Run, shardwright};

const FIXTURE: &str = TEXT_FIXTURES[0];

/// Small sizes on two threads.
fn bench(checkpoint: &str) -> Run {
    shardwright(["bench", checkpoint, "-p", "8", "-n", "4", "-r", "2", "-t", "2"])
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

#[test]
fn a_bench_tells_speeds_phases_memory_and_the_plan() {
    let report = bench(FIXTURE).arguments(["-d", "0,3", "--probe", "--probe-mebibytes", "2"]).json();
    let results = report["results"].as_array().expect("results");
    let tests: Vec<&str> = results.iter().filter_map(|result| result["test"].as_str()).collect();
    assert_eq!(tests, ["pp8", "tg4", "pp8 @ d3", "tg4 @ d3"]);
    for result in results {
        let speeds = &result["tokens_per_second"];
        let samples = numbers(&speeds["samples"]);
        assert_eq!((samples.len(), numbers(&result["seconds"]).len()), (2, 2), "{result}");
        let value = |name: &str| speeds[name].as_f64().expect(name);
        assert!(samples.iter().all(|&speed| speed > 0.0));
        assert!((value("mean") - (samples[0] + samples[1]) / 2.0).abs() <= 1e-9 * value("mean"), "{speeds}");
        assert_eq!(value("median"), value("mean"), "of two");
        assert!(value("worst") <= value("median") && value("median") <= value("best"), "{speeds}");
        assert!(value("deviation") >= 0.0);

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
    // Two repetitions of four tokens, every one through the head.
    let head = |result: &Value| {
        let shards = result["shards"].as_array().expect("shards").iter();
        let mut heads =
            shards.filter(|shard| shard["shard"].as_str().is_some_and(|name| name.contains("head")));
        heads.next().expect("a head")["runs"].as_u64()
    };
    assert_eq!((head(&results[0]), head(&results[1])), (Some(2), Some(8)));

    assert_eq!(report["threads"], 2);
    assert_eq!(report["probes"].as_array().map(Vec::len), Some(1 + 2 * 4));
    assert!(report["pairs"].is_null() && report["bundle"].is_null());
    for name in ["weight_bytes", "table_bytes", "state_bytes"] {
        assert!(report["memory"][name].as_u64().is_some_and(|bytes| bytes > 0), "{name}: {report}");
    }
    if cfg!(target_os = "linux") {
        let of = |name: &str| report["memory"][name].as_u64().expect(name);
        assert!(of("resident_bytes") > 1 << 20 && of("resident_bytes") <= of("peak_resident_bytes"));
    }
    let opening = &report["opening"];
    let parts = ["reading", "planning", "quantising", "compiling", "loading"];
    let parts: f64 = parts.iter().filter_map(|part| opening[format!("{part}_seconds")].as_f64()).sum();
    assert!(parts > 0.0 && parts <= opening["total_seconds"].as_f64().expect("a number"), "{opening}");
    let first = &report["first_token"];
    assert_eq!(first["tokens"], 16);
    assert!(first["run_seconds"].as_f64() < first["since_start_seconds"].as_f64(), "{first}");
    assert!(first["tokenizer_since_start_seconds"].is_null(), "nobody asked for a tokenizer: {first}");
}

#[test]
fn ids_need_no_tokenizer_and_text_tells_when_there_was_one() {
    let copy = Copy::of(FIXTURE).with("tokenizer.json", "{");
    let damaged = copy.path().to_str().expect("UTF-8");
    bench(damaged).json();
    let (code, said) = bench(damaged).argument("--text").refuses();
    assert!(code == 4 && said.contains("tokenizer.json"), "{said}");
    let first = &bench(FIXTURE).argument("--text").json()["first_token"];
    assert!(
        first["tokenizer_since_start_seconds"].as_f64() >= first["since_start_seconds"].as_f64(),
        "{first}"
    );
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    let bundle = bundle.to_str().expect("UTF-8");
    shardwright(["compile", FIXTURE, "--output", bundle]).succeeds();
    assert!(bench(bundle).json()["first_token"]["tokenizer_since_start_seconds"].is_null());
    assert!(bench(bundle).argument("--text").json()["first_token"]["tokenizer_since_start_seconds"].is_f64());
}

#[test]
fn a_bundle_runs_by_the_plan_of_its_checkpoint() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    let bundle = bundle.to_str().expect("UTF-8");
    let format = ["--planner-option", "format=w8-per-channel/a8-dynamic"];
    shardwright(["compile", FIXTURE, "--output", bundle]).arguments(format).succeeds();
    let (compiled, opened) = (bench(bundle).json(), bench(FIXTURE).arguments(format).json());
    assert_eq!(compiled["plan_id"], opened["plan_id"]);
    assert_eq!(compiled["formats"], opened["formats"]);
    assert_eq!(opened["formats"], serde_json::json!(["w8-per-channel/a8-dynamic/f16"]));
    assert!(compiled["bundle"].is_string());
    assert_eq!(compiled["opening"]["compiling_seconds"], 0.0);
    assert_ne!(bench(FIXTURE).json()["plan_id"], opened["plan_id"], "another format is another plan");
}

#[test]
fn a_bench_tells_which_logits_every_step_was_asked_for() {
    let logits = |run: Run| {
        let report = run.json();
        let results = report["results"].as_array().expect("results").iter();
        results.map(|result| result["logits"].as_str().expect("a word").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(logits(bench(FIXTURE)), ["all", "largest"]);
    assert_eq!(logits(bench(FIXTURE).argument("--all-logits")), ["all", "all"]);
    // Whose logits the runtime caps.
    let capped =
        |place: &str| bench(TEXT_FIXTURES[1]).arguments(["--planner-option", &format!("softcap={place}")]);
    assert_eq!(logits(capped("graph")), ["all", "largest"]);
    assert_eq!(logits(capped("runtime")), ["all", "all"]);
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

/// A script that answers as `llama-bench -o json` does, and what it is called with.
fn peer(folder: &Path, body: &str) -> (PathBuf, PathBuf) {
    let (program, model) = (folder.join("llama-bench"), folder.join("model.gguf"));
    fs::write(&model, "weights").expect("written");
    fs::write(&program, format!("#!/bin/sh\n{body}")).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a program");
    (program, model)
}

/// Without flash attention the prompt is quicker, with it generation is.
const ANSWER: &str = r#"
echo "$@" >> "$(dirname "$0")/calls"
while [ $# -gt 0 ]; do
  case "$1" in -p) p=$2 ;; -n) n=$2 ;; -d) d=$2 ;; esac
  shift
done
row() {
  printf '{"build_commit": "abc123", "backends": "CPU", "cpu_info": "a processor", "model_type": "gemma3 toy", "model_size": 7,'
  printf '"n_prompt": %s, "n_gen": %s, "n_depth": %s, "flash_attn": %s, "samples_ns": [1], "samples_ts": [%s]}' $p $n $d $1 $2
}
echo "["; row false $((1 + p)); echo ","; row true $((3 + n)); echo "]"
"#;

fn paired(checkpoint: &str, program: &Path, model: &Path) -> Run {
    bench(checkpoint)
        .arguments(["--probe-mebibytes", "2"])
        .argument("--peer-llama-bench")
        .argument(program)
        .argument("--peer-model")
        .argument(model)
}

#[test]
fn a_peer_is_measured_in_turns_at_its_better_setting() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (program, model) = peer(folder.path(), ANSWER);
    // Whatever the memory here does, no pair is between the bounds.
    let sure = |run: Run| run.arguments(["--slow-below", "1e9", "--fast-above", "1e9"]);
    let report = sure(paired(FIXTURE, &program, &model)).json();
    let pairs = &report["pairs"];
    assert_eq!(pairs["peer"]["model_type"], "gemma3 toy");
    assert_eq!(
        (&pairs["peer"]["build"], &pairs["peer"]["threads"]),
        (&Value::from("abc123"), &Value::from(2))
    );
    for (index, (test, flash, speed)) in [("pp8", false, 9.0), ("tg4", true, 7.0)].into_iter().enumerate() {
        let work = &pairs["works"][index];
        assert_eq!((&work["test"], &work["flash_attention"]), (&Value::from(test), &Value::from(flash)));
        assert_eq!(work["discarded"], 0);
        assert!(work["fast"].is_null());
        let slow = &work["slow"];
        assert_eq!((slow["pairs"].as_u64(), slow["peer"].as_f64()), (Some(2), Some(speed)));
        let (ours, ratio) = (slow["ours"].as_f64().expect("ours"), slow["ratio"].as_f64().expect("a ratio"));
        assert!((ratio - ours / speed).abs() <= 1e-9 * ratio, "{slow}");
        assert!(slow["of_probe"].is_null(), "for the largest logit weights may stay unread");
        // The samples of the pairs are those of the results.
        let of_pairs: Vec<f64> = work["pairs"]
            .as_array()
            .expect("pairs")
            .iter()
            .filter_map(|pair| pair["ours"].as_f64())
            .collect();
        assert_eq!(of_pairs, numbers(&report["results"][index]["tokens_per_second"]["samples"]));
    }
    let calls = fs::read_to_string(folder.path().join("calls")).expect("calls");
    let calls: Vec<&str> = calls.lines().collect();
    assert_eq!(calls.len(), 4, "{calls:?}");
    assert!(calls[0].contains("-t 2 -p 8 -n 0 -d 0 -r 1 -fa 0,1 -o json"), "{calls:?}");
    assert!(calls[1].contains("-p 0 -n 4"), "{calls:?}");

    let text = sure(paired(FIXTURE, &program, &model)).succeeds();
    assert!(text.contains("gemma3 toy") && text.contains("ratio") && text.contains("(fa)"), "{text}");

    // No memory is that fast, and none slower than nothing: every pair is discarded and counted.
    let report =
        paired(FIXTURE, &program, &model).arguments(["--slow-below", "1e-9", "--fast-above", "1e9"]).json();
    let work = &report["pairs"]["works"][0];
    assert_eq!(
        (&work["discarded"], work["slow"].is_null(), work["fast"].is_null()),
        (&Value::from(2), true, true)
    );
    let whole = sure(paired(FIXTURE, &program, &model)).argument("--all-logits").json();
    for (index, of_probe) in [(0, false), (1, true)] {
        let slow = &whole["pairs"]["works"][index]["slow"];
        assert_eq!(slow["of_probe"].is_f64(), of_probe, "a prompt reads weights once for many tokens");
    }
}

#[test]
fn a_peer_that_fails_is_told_with_what_it_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (body, says) in [
        ("echo no such model >&2; exit 3", "no such model"),
        ("echo '[]'", "no row"),
        ("echo '{'", "-o json"),
        (r#"echo '[{"n_prompt": 8, "n_gen": 0, "flash_attn": 0, "samples_ts": []}]'"#, "no speed"),
        ("exec sleep 600", "--peer-timeout"),
    ] {
        let (program, model) = peer(folder.path(), body);
        let seconds = if body.contains("sleep") { "1" } else { "200" };
        let (code, said) = paired(FIXTURE, &program, &model).arguments(["--peer-timeout", seconds]).refuses();
        assert_eq!(code, 4, "{said}");
        assert!(said.contains(says) && said.contains("llama-bench"), "{body}: {said}");
    }
}

const PEER: &str = "--peer-llama-bench";
const MODEL: &str = "--peer-model";

#[test]
fn what_cannot_be_measured_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (program, model) = peer(folder.path(), ANSWER);
    let (program, model) = (program.to_str().expect("UTF-8"), model.to_str().expect("UTF-8"));
    let cases: &[(&[&str], i32, &str)] = &[
        (&["-p", "0"], 2, "-p"),
        (&["-p", "8,0"], 2, "-p"),
        (&["-n", "0"], 2, "-n"),
        (&["-r", "0"], 2, "-r"),
        (&["--first-tokens", "0"], 2, "--first-tokens"),
        (&["--probe", "--probe-mebibytes", "0"], 2, "--probe-mebibytes"),
        (&[PEER, program, MODEL, model, "--slow-below", "80", "--fast-above", "65"], 2, "--slow-below"),
        (&["--context", "32", "-p", "33"], 10, "pp33 needs 33 positions, and the context has 32"),
        (&["--context", "32", "-n", "30", "-d", "3"], 10, "tg30 @ d3 needs 33"),
        (&["--context", "8", "-p", "8"], 10, "first step"),
        (&[PEER, "no-such-program", MODEL, model], 3, "no-such-program"),
        (&[PEER, program, MODEL, "no-such-model"], 3, "no-such-model"),
    ];
    for (arguments, code, says) in cases {
        let (ended, said) = shardwright(["bench", FIXTURE]).arguments(*arguments).refuses();
        assert_eq!(ended, *code, "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    let (code, said) = bench(EMBEDDING_FIXTURE).refuses();
    assert!(code == 5 && said.contains("embeds"), "{said}");
    // One of the two alone is for clap to refuse.
    let alone = shardwright(["bench", FIXTURE, "--peer-model", model]).outcome();
    assert!(alone.code == Some(2) && alone.stderr.contains("--peer-llama-bench"), "{}", alone.stderr);
}
