//! `verify --repair`: one command repairs a bundle that drifts on a chip with a faulty operation,
//! whatever the fault, and the repaired bundle verifies.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::Value;
use shardwright_bundle::Bundle;
use shardwright_test_checkpoints::{Spec, cases};
use shardwright_tests::chip::TestChip;
use shardwright_tests::program::{Run, shardwright};
use shardwright_tests::tree;
use tempfile::TempDir;

/// Formats that are offered, best first: integers, integers with a down projection in floats, and
/// floats.
const FORMATS: [&str; 3] = ["w8-per-channel", "w8-per-channel[mlp-output=f32]", "f32"];

/// A chip, a checkpoint and bundles.
struct Bench {
    chip: TestChip,
    folder: TempDir,
    /// Tokens of the prompt that a verification uses.
    tokens: usize,
}

/// Describes a narrow E2B: five sliding layers per full one, layers that read the keys of others,
/// per-layer inputs, and feed-forwards of two widths.
fn narrow() -> Spec {
    Spec {
        layers: "SSSSF".repeat(7),
        vocabulary: 768,
        hidden: 32,
        intermediate: 48,
        heads: 8,
        kv_heads: 1,
        head_dim: 8,
        global_head_dim: 16,
        window: 16,
        per_layer: 8,
        kv_shared: 20,
        double_wide: true,
        ..Spec::gemma4()
    }
}

impl Bench {
    /// Creates a checkpoint with one recorded prompt, compiled for a chip that works.
    fn new(spec: &Spec) -> Bench {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let bench = Bench { chip: TestChip::new(), folder, tokens: 12 };
        let fixture = tree::root().join("tests/fixtures/gemma4_text");
        fs::create_dir(bench.checkpoint()).expect("made");
        for file in
            ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]
        {
            fs::copy(fixture.join(file), bench.checkpoint().join(file)).expect("copied");
        }
        spec.write(&bench.checkpoint()).expect("written");
        let ids: Vec<u8> = (0..12_i64).flat_map(|token| (2 + 37 * token).to_le_bytes()).collect();
        let view = TensorView::new(Dtype::I64, vec![12], &ids).expect("a tensor");
        let goldens = bench.checkpoint().join("goldens.safetensors");
        serialize_to_file(HashMap::from([("p0.input_ids".to_owned(), view)]), None, &goldens)
            .expect("written");
        bench
    }

    fn checkpoint(&self) -> PathBuf {
        self.folder.path().join("checkpoint")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn runs(&self, command: &str, formats: &[&str]) -> Run {
        let run = self.chip.planned_by(shardwright([command]).argument(self.checkpoint()));
        let run = run.arguments(["--context", "64"]).environment("XDG_CACHE_HOME", self.path("cache"));
        formats.iter().fold(run, |run, formats| run.arguments(["--formats", formats]))
    }

    /// Compiles the bundle with the chip in its current state.
    fn compile(&self, formats: &[&str]) {
        self.runs("compile", formats).argument("-o").argument(self.path("bundle")).succeeds();
    }

    fn verifies(&self, bundle: &Path, formats: &[&str]) -> Run {
        // The rounding loss of a model with random weights is meaningless.
        let few = ["--steps", "2", "--greedy", "1", "--threshold", "nll=9", "--rows"];
        let run = self.runs("verify", formats).arguments(few).argument(self.tokens.to_string());
        run.argument("--bundle").argument(bundle)
    }

    fn repairs(&self, formats: &[&str]) -> Run {
        self.repairs_to("repaired", formats)
    }

    fn repairs_to(&self, name: &str, formats: &[&str]) -> Run {
        let run = self.verifies(&self.path("bundle"), formats).argument("--repair");
        run.argument("-o").argument(self.path(name))
    }
}

/// Formats layer, role, values and evidence of a fault, such as
/// `17 mlp-output activations own-error`.
fn place(fault: &Value) -> String {
    let word = |name: &str| match &fault[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    ["layer", "role", "values", "evidence"].map(word).join(" ")
}

/// Returns the faults that were found in each attempt.
fn faults(report: &Value) -> Vec<Vec<String>> {
    let attempts = report["attempts"].as_array().expect("attempts").iter();
    attempts
        .map(|attempt| attempt["faults"].as_array().expect("faults").iter().map(place).collect())
        .collect()
}

/// Asserts that `verify` alone ends with this status for a bundle.
fn verify_ends_with(code: i32, bench: &Bench, bundle: &str, formats: &[&str]) {
    let outcome = bench.verifies(&bench.path(bundle), formats).outcome();
    assert_eq!(outcome.code, Some(code), "{}{}", outcome.stdout, outcome.stderr);
}

/// Asserts that the repaired bundle verifies: by the report of the repair and, in thorough runs, by
/// a command of its own.
fn holds(bench: &Bench, bundle: &str, formats: &[&str], report: &Value) {
    assert_eq!(report["verification"]["passed"], true, "{report}");
    if cases(false, true) {
        verify_ends_with(0, bench, bundle, formats);
    }
}

/// Compiles the bundle of a chip with these faults. The bundle drifts, which a repair finds.
/// Thorough runs check it before.
fn drifting(faults: &[&str], formats: &[&str]) -> Bench {
    let bench = Bench::new(&narrow());
    bench.chip.has_faults(faults);
    bench.compile(formats);
    if cases(false, true) {
        verify_ends_with(1, &bench, "bundle", formats);
    }
    bench
}

/// Repairs the bundle of a chip with these faults within so many compilations. Returns the faults
/// that were found in each attempt.
fn repaired(faulty: &[&str], formats: &[&str], most: u64) -> Vec<Vec<String>> {
    let bench = drifting(faulty, formats);
    let report = bench.repairs(formats).json();
    assert!(compilations(&report) <= most, "{report}");
    holds(&bench, "repaired", formats, &report);
    faults(&report)
}

/// Asserts that a repair is refused with these words, and leaves no bundle.
fn refuses(bench: &Bench, run: Run, bundle: &str, words: &[&str]) {
    let (code, stderr) = run.refuses();
    assert!(words.iter().all(|word| stderr.contains(word)), "{words:?}: {code} {stderr}");
    assert!(Bundle::open(bench.path(bundle)).is_err(), "half a bundle");
}

fn compilations(report: &Value) -> u64 {
    report["compilations"].as_u64().expect("a count")
}

/// Uses the widths of E2B, except for its vocabulary.
#[test]
#[ignore = "takes minutes and 10 GB; `cargo test -p shardwright-tests --test program widths_of_e2b -- --ignored`"]
fn an_operation_that_overflows_is_found_at_the_widths_of_e2b() {
    let spec = Spec {
        hidden: 1536,
        intermediate: 6144,
        head_dim: 256,
        global_head_dim: 512,
        window: 512,
        per_layer: 256,
        ..narrow()
    };
    let bench = Bench { tokens: 3, ..Bench::new(&spec) };
    bench.chip.has_faults(&["overflow layer.17.down-projection 8 0.05"]);
    bench.compile(&FORMATS);
    let report = bench.repairs(&FORMATS).json();
    assert_eq!(faults(&report), [["17 mlp-output activations own-error"]], "{report}");
    assert!(compilations(&report) <= 3, "{report}");
    assert_eq!(report["verification"]["passed"], true, "{report}");
}

/// One compilation with further outputs shows layer and role, and a second one compiles the
/// repaired shard. A repair that is stopped or killed leaves no half-written bundle, and the next
/// one goes on.
#[test]
fn an_operation_that_overflows_is_found_and_raised_alone() {
    let bench = drifting(&["overflow layer.17.down-projection 8 0.05"], &FORMATS);
    // Each repair below has a cache of its own, as it is after the compilation.
    let cache = |name: &str| bench.path(&format!("{name}.cache"));
    for name in ["stopped", "killed"] {
        let copied = Command::new("cp").arg("-a").args([bench.path("cache"), cache(name)]).status();
        assert!(copied.is_ok_and(|status| status.success()), "not copied");
    }
    verify_ends_with(1, &bench, "bundle", &FORMATS);
    let report = bench.repairs(&FORMATS).json();
    assert_eq!(faults(&report), [["17 mlp-output activations own-error"]], "{report}");
    assert_eq!(compilations(&report), 2, "{report}");
    // The CPU chain comes from the original bundle.
    assert_eq!(report["compiled"]["artefacts_reused"], 2, "{report}");
    holds(&bench, "repaired", &FORMATS, &report);
    verify_ends_with(0, &bench, "repaired", &FORMATS);
    let shown = shardwright(["inspect", "--verify"]).argument(bench.path("repaired")).succeeds();
    assert!(shown.contains("decoder.17-18 w8-per-channel[mlp-output=f32]/f32/f32"), "{shown}");
    assert!(shown.contains("decoder.18-35 w8-per-channel/f32/f32"), "{shown}");

    let repairs = |name: &str| bench.repairs_to(name, &FORMATS).environment("XDG_CACHE_HOME", cache(name));
    let limited = repairs("stopped").arguments(["--compilations", "1"]);
    refuses(&bench, limited, "stopped", &["within 1 compilations", "--compilations"]);
    // Shards compiled by the stopped repair are used.
    let report = repairs("stopped").json();
    assert_eq!(compilations(&report), 1, "{report}");
    holds(&bench, "stopped", &FORMATS, &report);

    for &milliseconds in &[900, 300, 1500, 2100][..cases(1, 4)] {
        repairs("killed").killed_after(Duration::from_millis(milliseconds));
        // The original bundle is not changed.
        shardwright(["inspect", "--verify"]).argument(bench.path("bundle")).succeeds();
        if Bundle::open(bench.path("killed")).is_ok() {
            shardwright(["inspect", "--verify"]).argument(bench.path("killed")).succeeds();
        }
    }
    holds(&bench, "killed", &FORMATS, &repairs("killed").json());
}

#[test]
fn two_faulty_places_are_both_found() {
    let both = ["overflow layer.6.o-projection 8 0.02", "overflow layer.22.up-projection 8 0.1"];
    let mut found = repaired(&both, &FORMATS, 4).concat();
    found.sort_unstable();
    assert_eq!(found, ["22 mlp-input activations own-error", "6 attention-output activations own-error"]);
}

#[test]
fn a_fault_in_a_kv_cache_raises_the_format_of_states() {
    let formats = ["w8-per-channel/f32/f16", "w8-per-channel/f32/f32"];
    assert_eq!(repaired(&["state layer.3.v-update 16 0.05"], &formats, 8)[0], ["3 - states own-error"]);
}

/// The layers before the fault write no states that would show its place.
#[test]
fn drift_that_disappears_with_further_outputs_is_found_in_shorter_shards() {
    let found = repaired(&["fused layer.17.down-projection 8 0.05"], &FORMATS, 8);
    assert_eq!(found, [["17 - - range"]]);
}

#[test]
fn a_shim_that_takes_no_further_outputs_gets_shorter_shards() {
    let faulty = ["overflow layer.25.gate-projection 8 0.1", "no-taps - 0 0"];
    assert_eq!(repaired(&faulty, &FORMATS, 8), [["25 - - range"]]);
}

#[test]
fn a_bundle_that_holds_is_copied() {
    let bench = Bench::new(&narrow());
    bench.compile(&FORMATS);
    let report = bench.repairs(&FORMATS).json();
    assert_eq!((compilations(&report), faults(&report)), (0, vec![]), "{report}");
    holds(&bench, "repaired", &FORMATS, &report);
    let text = bench.repairs(&FORMATS).succeeds();
    assert!(text.contains("no repair needed"), "{text}");
}

#[test]
fn where_no_plan_verifies_the_reason_is_given_and_no_bundle_is_left() {
    // Floats overflow there too, and the decoder must stay on the chip.
    let bench = drifting(&["overflow layer.17.down-projection 32 0.05"], &FORMATS);
    let tied = bench.repairs(&FORMATS).arguments(["--planner-option", "place.decoder=testchip"]);
    refuses(&bench, tied, "repaired", &["layer 17", "--formats"]);
    let onto_itself = bench.repairs_to("bundle", &FORMATS);
    refuses(&bench, onto_itself, "repaired", &["is the bundle to repair", "--output"]);
    // If the planner may choose, it moves the faulty work to the CPU.
    let report = bench.repairs(&FORMATS).json();
    holds(&bench, "repaired", &FORMATS, &report);
}

/// The goal is shorter than a single run of the chip. With measured times, no plan for the chip
/// meets it.
#[test]
fn measured_times_reach_the_planner() {
    let bench = Bench::new(&Spec { layers: "SSSSF".repeat(2), kv_shared: 5, ..narrow() });
    bench.compile(&FORMATS);
    // Work moved to the CPU needs some milliseconds if other programs run, so the goal is far off.
    bench.chip.has_faults(&["slow - 50000 0"]);
    let fast = ["--tokens-per-second", "40"];
    let report = bench.repairs(&FORMATS).arguments(fast).json();
    let reasons = report["attempts"][0]["reasons"].to_string();
    assert!(reasons.contains("(measured), above the goal of 25000 µs"), "{report}");
    let shown = shardwright(["inspect"]).argument(bench.path("repaired")).succeeds();
    let primary = shown.split("chain testchip").next().expect("text").to_owned();
    assert!(!primary.contains(" testchip  testchip"), "{shown}");
}
