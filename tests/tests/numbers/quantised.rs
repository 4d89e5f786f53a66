//! Checkpoints that come quantised run on the CPU shim as stored and give the results of the same
//! model in floats.

use shardwright_build::stored_formats;
use shardwright_graph::{Graph, Weight, WeightData};
use shardwright_models::Checkpoint;
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_tests::chain::{Bench, Cut, menu, tokens};
use shardwright_tests::tree::root;
use shardwright_vocabulary::{DType, Granularity};

/// Largest allowed difference from the reference, relative to its largest value.
const BOUND: f64 = 3e-4;

/// Folders of `tests/fixtures/quantised`, with the formats they are stored in.
const FOLDERS: [(&str, &str); 9] = [
    ("gguf_q4_0", "w4-block32[head=f16]/f32/f32"),
    ("gguf_q4_0_gemma3", "w4-block32[head=bf16]/f32/f32"),
    ("gguf_q8_0", "w8-block32/f32/f32"),
    ("compressed_pack4_channel", "w4-per-channel[head=bf16]/f32/f32"),
    ("compressed_int8_channel", "w8-per-channel[head=bf16]/f32/f32"),
    ("compressed_int8_tensor", "w8-per-tensor[head=bf16]/f32/f32"),
    ("gptq4_group128", "as-stored/f32/f32"),
    ("awq_group32", "w8-per-channel[mlp-output=w8-block32][head=bf16]/f32/f32"),
    ("gptq8_group32", "w8-per-channel[mlp-output=w8-block32][head=bf16]/f32/f32"),
];

/// Returns the graph with the values of its weights as floats.
fn widened(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    for weight in &mut graph.weights {
        let mut row = vec![0.0; weight.row_width()];
        let mut bytes = Vec::new();
        for index in 0..weight.rows() {
            assert!(weight.decode_row(index, &mut row), "{}", weight.name);
            bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
        }
        (weight.dtype, weight.data, weight.quantisation) = (DType::F32, WeightData::from_vec(bytes), None);
    }
    graph
}

fn logits(graph: &Graph, ids: &[u32]) -> Vec<f32> {
    let chain = Bench::cpu(graph, &menu(64, &[8], &[1]), 1).chain(&Cut::default());
    let mut session = chain.session().expect("a session");
    session.append(ids).unwrap_or_else(|error| panic!("{error}"));
    session.logits().expect("logits follow an append").to_vec()
}

#[test]
fn integers_and_scales_as_stored_give_the_results_of_their_values() {
    for (folder, formats) in FOLDERS {
        let path = root().join("tests/fixtures/quantised").join(folder);
        let graph = Checkpoint::open(path).unwrap_or_else(|error| panic!("{folder}: {error}")).into_graph();
        assert_eq!(stored_formats(&graph).to_string(), formats, "{folder}");
        let ids = tokens(&graph, 20);
        let found = logits(&graph, &ids);
        let wide = logits(&widened(&graph), &ids);
        let whole = |weight: &Weight| {
            let scales = weight.quantisation.as_ref();
            scales.is_some_and(|scales| !matches!(scales.granularity, Granularity::PerBlock { .. }))
        };
        // Block scales multiply weights, which needs no rounding. Other scales multiply sums.
        match graph.weights.iter().any(whole) {
            false => assert!(found == wide, "{folder}"),
            true => assert_ne!(found, wide, "{folder}"),
        }
        let model = ReferenceModel::new(&graph, Arrangement::whole(32)).expect("a reference");
        let trace = model.trace(&ids).expect("a trace");
        let all = trace.logits.expect("logits").into_floats();
        let expected = &all[all.len() - found.len()..];
        let largest = expected.iter().fold(1.0_f64, |largest, value| largest.max(f64::from(value.abs())));
        for (found, expected) in found.iter().zip(expected) {
            let difference = (f64::from(*found) - f64::from(*expected)).abs() / largest;
            assert!(difference <= BOUND, "{folder}: {found} for {expected}");
        }
    }
}
