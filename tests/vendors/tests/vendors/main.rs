//! Whole models through vendors' libraries and their simulators.

mod delivery;
mod far_chip;
mod jobs;
mod neuron;
mod neuron_flags;
mod neuron_limits;
mod qnn;
mod record;
mod speculation;
mod variants;

use std::fmt::Debug;

use serde_json::Value;
use shardwright_test_checkpoints::cases;
use shardwright_tests::SIMULATED_CONTEXT;
use shardwright_tests::qnn::{COSINE, Finding, ROW_P95, ROW_WORST};

/// Returns a short context, because a simulator computes every masked position.
fn context() -> Option<u32> {
    cases(Some(SIMULATED_CONTEXT), None)
}

fn assert_close(finding: &Finding, case: &dyn Debug) {
    assert!(finding.row_p95 <= ROW_P95 && finding.row_worst <= ROW_WORST, "{case:?}: {finding:?}");
    assert!(finding.cosine >= COSINE && finding.rows > 0, "{case:?}: {finding:?}");
}

/// Returns the first member of that name, at any depth.
fn find<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    match value {
        Value::Object(members) => {
            members.get(name).or_else(|| members.values().find_map(|value| find(value, name)))
        }
        Value::Array(values) => values.iter().find_map(|value| find(value, name)),
        _ => None,
    }
}

/// Returns the sentence vector in a document of `embed`.
fn vector(document: &Value) -> Vec<f64> {
    let values = find(document, "embedding").or(find(document, "vector")).expect("a vector");
    values.as_array().expect("numbers").iter().map(|value| value.as_f64().expect("a number")).collect()
}

/// Computes the cosine of two vectors of the length 1.
fn cosine(wanted: &[f64], found: &[f64]) -> f64 {
    assert_eq!(wanted.len(), found.len());
    wanted.iter().zip(found).map(|(a, b)| a * b).sum()
}
