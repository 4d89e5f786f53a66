//! Random small models in random formats: what holds of a quantised graph in every form and cut.

mod random;
#[path = "../../graph/tests/support/mod.rs"]
mod support;

use proptest::prelude::*;
use random::{formats, ids, ranges, recipes};
use shardwright_graph::target::{ActivationFormat, StateFormat};
use shardwright_graph::{Encodings, Graph, Ranges};
use shardwright_reference::{Arrangement, Array, Form, ReferenceError, ReferenceModel, Trace};
use support::quantise::quantised;
use support::toy;

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

/// Largest difference relative to the largest value.
fn apart(a: &Array, b: &Array) -> f32 {
    assert_eq!(a.shape(), b.shape());
    let (a, b) = (a.floats(), b.floats());
    let difference = a.iter().zip(b.iter()).fold(0.0_f32, |worst, (a, b)| {
        let difference = (a - b).abs();
        if difference.is_nan() { f32::INFINITY } else { difference.max(worst) }
    });
    difference / largest(&a).max(1.0)
}

fn results(trace: &Trace) -> impl Iterator<Item = (&'static str, &Array)> {
    let last = trace.logits.iter().map(|array| ("logits", array));
    let vector = trace.embedding.iter().map(|array| ("embedding", array));
    trace.hidden.iter().map(|array| ("hidden", array)).chain(last).chain(vector)
}

fn run(
    graph: &Graph,
    arrangement: Arrangement,
    encodings: &Encodings<'_>,
    ids: &[u32],
) -> Result<Trace, ReferenceError> {
    ReferenceModel::new_encoded(graph, arrangement, encodings.clone())?.trace(ids)
}

#[test]
#[ignore]
fn measure() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = (recipes(), formats(), 1..20_usize, 1..8_u64);
    let mut worst: std::collections::BTreeMap<String, Vec<(f32, f32)>> = Default::default();
    for _ in 0..400 {
        let tree = strategy.new_tree(&mut runner).unwrap();
        let (recipe, formats, length, rows) = proptest::strategy::ValueTree::current(&tree);
        let graph = toy(&recipe);
        let ids = ids(recipe.seed, length);
        let graph = quantised(&graph, &formats);
        let ranges = ranges(&graph, &[ids.clone()]);
        let encodings = Encodings::of(&formats, &ranges);
        let rows = if recipe.encoder { length as u64 + rows } else { rows };
        let whole = |form| Arrangement { form, rows, ..Arrangement::whole(32) };
        let semantic = run(&graph, whole(Form::Semantic), &encodings, &ids).unwrap();
        let decomposed = run(&graph, whole(Form::Decomposed), &encodings, &ids).unwrap();
        let by_runtime = run(&graph, whole(Form::ByRuntime), &encodings, &ids).unwrap();
        let far = |a: &Trace, b: &Trace| results(a).zip(results(b)).fold(0.0_f32, |w, (a, b)| w.max(apart(a.1, b.1)));
        let (a, b) = (far(&semantic, &decomposed), far(&decomposed, &by_runtime));
        if a > 0.05 { println!("0 {a} {formats} {length} {:?}", results(&semantic).zip(results(&decomposed)).map(|(a,b)| (a.0, apart(a.1,b.1))).collect::<Vec<_>>()); }
        worst.entry(format!("{}/{}", formats.activations, formats.states)).or_default().push((a, b));
    }
    for (key, mut cases) in worst {
        let mut second: Vec<f32> = cases.iter().map(|c| c.1).collect();
        cases.sort_by(|a, b| a.0.total_cmp(&b.0));
        second.sort_by(f32::total_cmp);
        let n = cases.len();
        println!("{key}: {n} cases, semantic-decomposed median {:.1e} p90 {:.1e} worst {:.1e}; by-runtime median {:.1e} worst {:.1e}",
            cases[n/2].0, cases[n*9/10].0, cases[n-1].0, second[n/2], second[n-1]);
    }
}
