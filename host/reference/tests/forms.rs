//! Random small models: every form, cut and chunking of one model computes the same.

#[path = "../../graph/tests/support/mod.rs"]
mod support;

use proptest::prelude::*;
use shardwright_graph::{DType, Graph};
use shardwright_reference::{Arrangement, Array, Form, ReferenceModel};
use support::{LayerRecipe, Noise, Recipe, toy};

/// Largest difference between forms of one graph, relative to the largest value: a form rounds to f32 between primitives.
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

fn recipes() -> impl Strategy<Value = Recipe> {
    let layer = (0..3_u32, 1..3_u32, 0..3_u32, 0..4_u32, any::<[bool; 4]>()).prop_map(
        |(kv, group, dims, window, [gelu, bias, capped, partial])| {
            let head_dim = [2, 4, 8][dims as usize];
            let kv_heads = [1, 1, 2][kv as usize];
            LayerRecipe {
                heads: kv_heads * group,
                kv_heads,
                head_dim,
                rotated_pairs: if partial { head_dim / 4 } else { head_dim / 2 },
                theta: if gelu { 1e4 } else { 50.0 },
                factor: if capped { 8.0 } else { 1.0 },
                window: [0, 1, 3, 6][window as usize],
                softcap: if capped { 4.0 } else { 0.0 },
                donor: None,
                inner: 10,
                gelu,
                bias,
            }
        },
    );
    let shares = proptest::collection::vec(proptest::option::weighted(0.3, any::<u8>()), 5);
    (proptest::collection::vec(layer, 1..6), shares, any::<u64>(), 0..3_usize, any::<[bool; 4]>()).prop_map(
        |(mut layers, shares, seed, dtype, [per_layer, offset, softcap, encoder])| {
            for (index, share) in shares.iter().enumerate().take(layers.len()).skip(1) {
                let Some(share) = share else { continue };
                let donor = usize::from(*share) % index;
                // Only a layer with keys of its own lends them, and only to one that reads them the same way.
                if layers[donor].donor.is_none() && !encoder {
                    layers[index] = LayerRecipe { gelu: layers[index].gelu, ..layers[donor].clone() };
                    layers[index].donor = Some(donor as u32);
                }
            }
            Recipe {
                seed,
                hidden: 8,
                vocabulary: 24,
                per_layer_width: if per_layer && !encoder { 4 } else { 0 },
                dtype: [DType::F32, DType::F16, DType::Bf16][dtype],
                weight_offset: if offset { 1.0 } else { 0.0 },
                softcap: if softcap { 30.0 } else { 0.0 },
                encoder,
                layers,
            }
        },
    )
}

fn ids(seed: u64, count: usize) -> Vec<u32> {
    let mut noise = Noise(seed ^ 0x5eed);
    (0..count).map(|_| ((noise.next() + 1.0) * 11.9) as u32).collect()
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

fn ok<T>(result: Result<T, shardwright_reference::ReferenceError>) -> Result<T, TestCaseError> {
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
            // Padded, so that rows beyond the valid ones are there.
            let rows = length as u64 + rows - 1;
            let plain = ok(model(&graph, length as u64, 1, &[], Form::Semantic)?.trace(&ids))?;
            for form in [Form::Semantic, Form::Decomposed, Form::ByRuntime] {
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
        for form in [Form::Semantic, Form::Decomposed, Form::ByRuntime] {
            let cut = model(&graph, rows, 32, &cuts, form)?;
            let trace = ok(cut.trace(&ids))?;
            prop_assert_eq!(trace.hidden.len(), plain.hidden.len());
            for (a, b) in plain.hidden.iter().zip(&trace.hidden) {
                close("hidden", a, b)?;
            }
            close("logits", logits, trace.logits.as_ref().unwrap())?;

            // Prefill over all but the last row, then one row: the same logits as all rows through every layer.
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
