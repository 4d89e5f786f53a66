//! `verify --repair`: a bundle that drifts on a chip which computes some operation wrongly is
//! repaired by one command, whatever the fault, and the bundle that comes of it verifies.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::Value;
use shardwright_test_checkpoints::Spec;
use shardwright_tests::chip::Chip;
use shardwright_tests::program::{Run, shardwright};
use shardwright_tests::tree;
use tempfile::TempDir;

/// What is offered, best first: integers; the same with a down projection in floats; floats.
const FORMATS: [&str; 3] = ["w8-per-channel", "w8-per-channel[mlp-output=f32]", "f32"];

/// A chip, a checkpoint and bundles.
struct Bench {
    chip: Chip,
    folder: TempDir,
}

/// Five sliding layers per full one, layers that read the keys of others, per-layer inputs,
/// feed-forwards of two widths: E2B, narrow.
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
    /// A checkpoint with one recorded prompt, compiled for a chip that works.
    fn new(spec: &Spec) -> Bench {
        let bench = Bench { chip: Chip::new(), folder: tempfile::tempdir().expect("a temporary folder") };
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

    /// The bundle, compiled by the chip as it is.
    fn compiled(&self, formats: &[&str]) -> PathBuf {
        let bundle = self.path("bundle");
        self.runs("compile", formats).argument("-o").argument(&bundle).succeeds();
        bundle
    }

    fn verifies(&self, bundle: &Path, formats: &[&str]) -> Run {
        // What rounding costs a model of random numbers says nothing.
        let few = ["--rows", "12", "--steps", "2", "--greedy", "1", "--threshold", "nll=9"];
        self.runs("verify", formats).arguments(few).argument("--bundle").argument(bundle)
    }

    fn repairs(&self, formats: &[&str]) -> Run {
        let bundle = self.path("bundle");
        self.verifies(&bundle, formats).argument("--repair").argument("-o").argument(self.path("repaired"))
    }
}

/// Layer, role, values and evidence of a fault, as `17 mlp-output activations own-error`.
fn place(fault: &Value) -> String {
    let word = |name: &str| match &fault[name] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    ["layer", "role", "values", "evidence"].map(word).join(" ")
}

/// The faults that were found in each attempt.
fn faults(report: &Value) -> Vec<Vec<String>> {
    let attempts = report["attempts"].as_array().expect("attempts").iter();
    attempts.map(|attempt| attempt["faults"].as_array().expect("faults").iter().map(place).collect()).collect()
}

/// Asserts that the repaired bundle verifies, by the program's own word and anew.
fn holds(bench: &Bench, formats: &[&str], report: &Value) {
    assert_eq!(report["verification"]["passed"], true, "{report}");
    let again = bench.verifies(&bench.path("repaired"), formats).outcome();
    assert_eq!(again.code, Some(0), "{}{}", again.stdout, again.stderr);
}

#[test]
fn an_operation_that_overflows_is_found_and_raised_alone() {
    let bench = Bench::new(&narrow());
    bench.compiled(&FORMATS);
    bench.chip.has_faults(&["overflow layer.17.down-projection 8 0.05"]);
    let bundle = bench.path("bundle");
    fs::remove_dir_all(&bundle).expect("removed");
    bench.compiled(&FORMATS);
    let drifts = bench.verifies(&bundle, &FORMATS).outcome();
    assert_eq!(drifts.code, Some(1), "{}{}", drifts.stdout, drifts.stderr);

    let report = bench.repairs(&FORMATS).json();
    assert_eq!(faults(&report), [["17 mlp-output activations own-error"]], "{report}");
    println!("compilations {}", report["compilations"]);
    println!("{}", shardwright(["inspect"]).argument(bench.path("repaired")).succeeds());
    for file in walk(&bench.path("repaired")) { let text = fs::read(&file).unwrap(); if text.starts_with(b"{\"shards\"") || String::from_utf8_lossy(&text[..text.len().min(4000)]).contains("\"reasons\"") { println!("{} {}", file.display(), String::from_utf8_lossy(&text).chars().take(9000).collect::<String>()); } }
    assert!(report["compilations"].as_u64() <= Some(3), "{report}");
    holds(&bench, &FORMATS, &report);
}

fn walk(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path).unwrap().flat_map(|entry| { let path = entry.unwrap().path(); if path.is_dir() { walk(&path) } else { vec![path] } }).collect()
}
