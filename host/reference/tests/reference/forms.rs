//! Random small models: every form, cut and chunking of a model computes the same.

use crate::random::{ids, recipes};
use crate::support::toy;
use proptest::prelude::*;
use shardwright_graph::Graph;
use shardwright_reference::{Arrangement, Array, Form, ReferenceModel};

/// Largest difference between forms of one graph, relative to the largest value. A form rounds to
/// f32 between primitives.
const FORM_BOUND: f32 = 2e-5;

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

fn close(what: &str, a: &Array, b: &Array) -> Result<(), TestCaseError> {
    prop_assert_eq!(a.shape(), b.shape(), "{}", what);
    let (a, b) = (a.floats(), b.floats());
    let difference = a.iter().zip(b.iter()).fold(0.0_f32, |d, (a, b)| d.max((a - b).abs()));
    let bound = FORM_BOUND * largest(&a).max(1.0);
    prop_assert!(difference <= bound, "{}: {} > {}", what, difference, bound);
    Ok(())
}

fn model<'g>(
    graph: &'g Graph,
    rows: u64,
    context: u64,
    cuts: &[u32],
    form: Form,
) -> Result<ReferenceModel<'g>, TestCaseError> {
    ReferenceModel::new(graph, Arrangement { rows, context, cuts: cuts.to_vec(), form })
        .map_err(|error| TestCaseError::fail(error.to_string()))
}

fn ok<T>(result: shardwright_vocabulary::Result<T>) -> Result<T, TestCaseError> {
    result.map_err(|error| TestCaseError::fail(error.to_string()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_form_agrees(recipe in recipes(), length in 1..20_usize, rows in 1..8_u64, cut in any::<u8>()) {
        let graph = toy(&recipe);
        let ids = ids(recipe.seed, length);
        let layers = graph.layers();
        let cuts: Vec<u32> = if layers > 1 { vec![1 + u32::from(cut) % (layers - 1)] } else { Vec::new() };
        if recipe.encoder {
            // Padded, so that there are rows beyond the valid ones.
            let rows = length as u64 + rows - 1;
            let plain = ok(model(&graph, length as u64, 1, &[], Form::Semantic)?.trace(&ids))?;
            for form in [Form::Semantic, Form::Decomposed, Form::HalfWay, Form::ByRuntime] {
                let trace = ok(model(&graph, rows, 1, &cuts, form)?.trace(&ids))?;
                prop_assert_eq!(trace.hidden.len(), plain.hidden.len());
                for (a, b) in plain.hidden.iter().zip(&trace.hidden) {
                    close("hidden", a, b)?;
                }
                let (a, b) = (plain.embedding.as_ref().unwrap(), trace.embedding.as_ref().unwrap());
                close("embedding", a, b)?;
            }
            return Ok(());
        }
        let whole = model(&graph, length as u64, 32, &[], Form::Semantic)?;
        let plain = ok(whole.trace(&ids))?;
        let logits = plain.logits.as_ref().unwrap();
        for form in [Form::Semantic, Form::Decomposed, Form::HalfWay, Form::ByRuntime] {
            let cut = model(&graph, rows, 32, &cuts, form)?;
            let trace = ok(cut.trace(&ids))?;
            prop_assert_eq!(trace.hidden.len(), plain.hidden.len());
            for (a, b) in plain.hidden.iter().zip(&trace.hidden) {
                close("hidden", a, b)?;
            }
            close("logits", logits, trace.logits.as_ref().unwrap())?;

            // Prefill over all rows except the last, then one row. The logits must be the same as
            // with all rows through every layer.
            let mut sequence = cut.start();
            ok(cut.prefill(&mut sequence, &ids[..length - 1]))?;
            let last = ok(cut.decode(&mut sequence, &ids[length - 1..], false))?.logits.unwrap();
            let wanted = Array::floats_of(&[1, 24], logits.row(length - 1)).unwrap();
            close("last logits", &wanted, &last)?;
            if form == Form::Semantic {
                prop_assert_eq!(wanted.floats(), last.floats(), "cuts and chunks agree bit for bit");
            }
        }
    }
}
