//! MediaTek's shim over the simulator of its library, from a checkpoint to text: numbers beside the reference's, in both lowerings.
//!
//! A simulator proves what the shim sends and how it reads what comes back, not what a chip makes of it.

use serde_json::Value;
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE};
use shardwright_tests::formats::{Effort, Recorded};
use shardwright_tests::neuron::{A16W8, Case, Shim};
use shardwright_tests::program::shardwright;
use shardwright_tests::qnn::{COSINE, Finding, LOSS, ROW_P95, ROW_WORST, float_nll};

const EFFORT: Effort = Effort { rows: 32, steps: 2, greedy: 8 };

fn assert_close(finding: &Finding, case: &Case) {
    assert!(finding.row_p95 <= ROW_P95 && finding.row_worst <= ROW_WORST, "{case:?}: {finding:?}");
    assert!(finding.cosine >= COSINE && finding.rows > 0, "{case:?}: {finding:?}");
}

fn fixture(checkpoint: &'static str, lowering: &'static str) {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let case = Case { checkpoint, pieces: 2, lowering, soc: "mt6989" };
    let finding = Finding::of(&case.verify(None, EFFORT, cache.path()));
    println!("{case:?} {finding:#?}");
    assert_close(&finding, &case);
}

#[test]
fn gemma3_gives_the_reference_s_numbers() {
    fixture("tests/fixtures/gemma3_text", "lean");
}

#[test]
fn gemma4_gives_the_reference_s_numbers() {
    fixture("tests/fixtures/gemma4_text", "lean");
}

#[test]
fn gemma4_without_fused_operations_gives_the_reference_s_numbers() {
    fixture("tests/fixtures/gemma4_text", "plain");
}

#[test]
fn qwen3_gives_the_reference_s_numbers() {
    fixture("tests/fixtures/qwen3", "lean");
}

#[test]
fn the_demo_model_keeps_its_likelihood() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let case = Case { checkpoint: DEMO_MODEL, pieces: 2, lowering: "lean", soc: "mt6991" };
    // One prompt, and the beginnings of some held-out rows.
    let part = Recorded::some(1, 24, 48);
    assert!(part.rows().len() >= 4, "{}", part.rows().len());
    let report = case.verify(Some(&part), Effort { greedy: 32, ..EFFORT }, cache.path());
    let finding = Finding::of(&report).against(float_nll(DEMO_MODEL, &part, cache.path()));
    println!("{finding:#?}");
    assert_close(&finding, &case);
    assert!(finding.nll.1.abs() <= LOSS, "{finding:?}");
    assert_eq!(finding.greedy.1, 32, "{finding:?}");
}

#[test]
fn a_sentence_vector_is_that_of_the_model_in_float() {
    let shim = Shim::with("lean");
    let vector = |arguments: &[&str]| -> Vec<f64> {
        let run = shardwright(["embed", EMBEDDING_FIXTURE, "a text", "--context", "32"]);
        let document = run.argument("--shims").argument(shim.folder()).arguments(arguments).json();
        let values = find(&document, "embedding").or(find(&document, "vector")).expect("a vector");
        let values = values.as_array().expect("numbers").iter();
        values.map(|value| value.as_f64().expect("a number")).collect()
    };
    let wanted = vector(&[]);
    let found = vector(&["--soc", "mt6989", "--on", "simulator", "--formats", A16W8, "--planner", "even"]);
    let dot: f64 = wanted.iter().zip(&found).map(|(a, b)| a * b).sum();
    assert_eq!(wanted.len(), found.len());
    println!("cosine {dot}");
    assert!(dot >= 0.999, "cosine {dot}");
}

/// The first member of that name, wherever it is.
fn find<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    match value {
        Value::Object(members) => {
            members.get(name).or_else(|| members.values().find_map(|value| find(value, name)))
        }
        Value::Array(values) => values.iter().find_map(|value| find(value, name)),
        _ => None,
    }
}
