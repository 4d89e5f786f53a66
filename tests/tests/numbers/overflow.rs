//! Results beyond the range of 16-bit floats are infinite on the CPU shim and in the oracle, as on
//! chips, so an emulated plan shows what the chip would compute.

use shardwright_graph::{Encodings, Graph, Ranges, WeightData};
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_test_checkpoints::Spec;
use shardwright_tests::chain::{Bench, Cut, made, menu, tokens};
use shardwright_vocabulary::{ActivationFormat, FormatTuple, StateFormat, WeightFormat};

/// The layer that adds large values to the residual stream.
const LAYER: usize = 1;

/// Returns a model with massive activations: one layer adds values far beyond 16-bit floats.
fn massive() -> Graph {
    let mut graph = made(&Spec { dtype: "F32", ..Spec::qwen3() });
    let is_last = |name: &str| name.contains(&format!("layers.{LAYER}.")) && name.contains("down_proj");
    let mut changed = 0;
    for weight in graph.weights.iter_mut().filter(|weight| is_last(&weight.name)) {
        let values = weight.data.bytes().as_chunks::<4>().0.iter();
        let larger = values.flat_map(|bytes| (f32::from_le_bytes(*bytes) * 1e10).to_le_bytes());
        weight.data = WeightData::from_vec(larger.collect());
        changed += 1;
    }
    assert_eq!(changed, 1);
    graph
}

#[test]
fn results_beyond_16_bit_floats_are_infinite() {
    let graph = massive();
    let ids = tokens(&graph, 20);
    let none = Ranges::new();
    for (activations, is_finite) in [(ActivationFormat::F32, true), (ActivationFormat::F16, false)] {
        let formats = FormatTuple::uniform(WeightFormat::F32, activations, StateFormat::F32);
        let tuples = std::slice::from_ref(&formats);
        let bench = Bench::cpu_in_formats(&graph, &menu(64, &[8], &[1]), 1, tuples);
        let chain = bench.chain(&Cut::default());
        let mut session = chain.session().expect("a session");
        session.append(&ids).unwrap_or_else(|error| panic!("{error}"));
        let logits = session.logits().expect("logits follow an append");
        assert_eq!(logits.iter().all(|logit| logit.is_finite()), is_finite, "{formats}");
        assert_eq!(logits.iter().any(|logit| logit.is_finite()), is_finite, "{formats}");

        let encodings = Encodings::of(&formats, &none);
        let model = ReferenceModel::new_encoded(&graph, Arrangement::whole(64), encodings);
        let trace = model.and_then(|model| model.trace(&ids)).expect("a trace");
        // The first residual stream is the input of the first layer.
        let finite: Vec<bool> =
            trace.hidden.iter().map(|hidden| hidden.floats().iter().all(|x| x.is_finite())).collect();
        let first = finite.iter().position(|finite| !finite);
        assert_eq!(first, (!is_finite).then_some(LAYER + 1), "{formats}: {finite:?}");
        let logits = trace.logits.expect("logits").into_floats();
        assert_eq!(logits.iter().any(|logit| logit.is_finite()), is_finite, "{formats}");
    }
}
