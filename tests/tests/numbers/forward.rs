//! Forward passes, one layer at a time: they give the reference's results whichever values are
//! observed.

use std::collections::BTreeMap;

use shardwright_forward::{Engine, Looked, Pass};
use shardwright_graph::{EntryGraph, Graph, Op};
use shardwright_quantisation::{MatrixInputs, Recipe, TableFormats, quantise};
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_test_checkpoints::Spec;
use shardwright_tests::chain;
use shardwright_vocabulary::{ErrorKind, Watch};

fn engine(threads: u32) -> Engine {
    let options = [("threads".to_owned(), threads.to_string())];
    let cpu = chain::shims().open("cpu", "forward", &options).expect("the CPU shim opens");
    Engine::new(cpu, "cpu")
}

/// Returns sequences of several lengths. All but the longest are padded.
fn sequences(graph: &Graph) -> Vec<Vec<u32>> {
    [5, 23, 1, 40].map(|length| chain::tokens(graph, length)).into()
}

/// Everything that a pass shows: the results by sequence, and the inputs of matrices by sequence
/// and key.
type Shown = (Vec<Vec<f32>>, BTreeMap<(usize, String), Vec<f32>>);

fn passed(graph: &Graph, engine: &Engine, sequences: &[Vec<u32>]) -> Shown {
    let mut pass = Pass::new(graph, engine, sequences).expect("sequences");
    let (mut results, mut inputs) = (vec![Vec::new(); sequences.len()], BTreeMap::new());
    for part in pass.parts() {
        let look = |entry: &EntryGraph, tensor| {
            entry.nodes.iter().any(|node| node.op == Op::Linear && node.inputs[0] == tensor)
        };
        pass.run(
            &part,
            graph,
            &look,
            &mut |seen| match seen.key() {
                Some(key) => {
                    assert!([1, sequences[seen.sequence].len()].contains(&seen.rows().count()), "{key}");
                    inputs.insert((seen.sequence, key.to_owned()), seen.values.to_vec());
                }
                None => results[seen.sequence] = seen.values.to_vec(),
            },
            &mut (),
        )
        .expect("a part runs");
    }
    (results, inputs)
}

fn near(found: &[f32], wanted: &[f32], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    let size = wanted.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() <= 1e-4 * (1.0 + size), "{what}: {found} for {wanted}");
    }
}

#[test]
fn every_family_gives_what_the_reference_gives() {
    let engine = engine(2);
    for spec in [Spec::gemma3(), Spec::gemma4(), Spec::qwen3(), Spec::embeddinggemma()] {
        let graph = chain::made(&spec);
        let sequences = sequences(&graph);
        let (results, inputs) = passed(&graph, &engine, &sequences);
        let model = ReferenceModel::new(&graph, Arrangement::whole(64)).expect("a model");
        let matrices = MatrixInputs::new(&graph).expect("matrices");
        for (index, ids) in sequences.iter().enumerate() {
            let wanted = match graph.is_generative() {
                true => model.logits(ids).expect("logits").into_floats(),
                false => model.embedding(ids).expect("an embedding"),
            };
            near(&results[index], &wanted, &format!("{:?} {index}", spec.family));
            let mut looked = 0;
            model
                .observe(ids, &mut |key, values| {
                    if let Some(found) = inputs.get(&(index, key.to_owned())) {
                        assert!(matrices.widths.contains_key(key), "{key}");
                        near(found, values, key);
                        looked += 1;
                    }
                })
                .expect("it runs");
            let shown = inputs.keys().filter(|(of, _)| *of == index).count();
            assert!(looked == shown && shown == matrices.widths.len(), "{looked} of {shown}");
        }
    }
}

#[test]
fn neither_threads_nor_the_sequences_beside_one_change_a_bit() {
    let graph = chain::made(&Spec::gemma4());
    let sequences = sequences(&graph);
    let all = passed(&graph, &engine(2), &sequences);
    assert!(passed(&graph, &engine(1), &sequences) == all);
    let (alone, _) = passed(&graph, &engine(2), &sequences[1..2]);
    assert!(alone[0] == all.0[1]);
}

#[test]
fn a_part_takes_weights_in_other_formats() {
    let graph = chain::made(&Spec::gemma4());
    let formats = "w4-block32/f32/f32".parse().expect("formats");
    let recipe = Recipe::new(&graph, &formats, TableFormats::default());
    let narrow = quantise(&graph, &recipe, &mut (), &mut Vec::new()).expect("it is made");
    let (engine, sequences) = (engine(2), sequences(&graph));
    // Only the last layer is quantised. The parts before and after it are as stored.
    let last = (graph.layers() - 1, graph.layers());
    let mut pass = Pass::new(&graph, &engine, &sequences).expect("sequences");
    let mut results = vec![Vec::new(); sequences.len()];
    for part in pass.parts() {
        let weights = if part.layers == last { &narrow } else { &graph };
        let show = &mut |seen: Looked<'_>| {
            assert!(seen.is_logits());
            results[seen.sequence] = seen.values.to_vec();
        };
        pass.run(&part, weights, &|_, _| false, show, &mut ()).expect("a part runs");
    }
    let mut mixed = graph.clone();
    let suffix = format!("layers.{}.", last.0);
    for (weight, made) in mixed.weights.iter_mut().zip(&narrow.weights) {
        if weight.name.contains(&suffix) {
            *weight = made.clone();
        }
    }
    let model = ReferenceModel::new(&mixed, Arrangement::whole(64)).expect("a model");
    for (ids, found) in sequences.iter().zip(&results) {
        near(found, &model.logits(ids).expect("logits").into_floats(), "the last layer in 4 bits");
    }
}

#[test]
fn no_sequence_too_long_a_one_and_a_stopped_pass_are_said() {
    let graph = chain::made(&Spec::qwen3());
    let engine = engine(1);
    let long = vec![24; graph.context as usize + 1];
    for sequences in [vec![], vec![vec![]], vec![vec![24], long]] {
        let error = Pass::new(&graph, &engine, &sequences).err().expect("refused");
        assert!(error.kind() == ErrorKind::Argument && error.help().is_some(), "{error}");
    }
    struct Stopped;
    impl Watch for Stopped {
        fn cancelled(&self) -> bool {
            true
        }
    }
    let sequences = sequences(&graph);
    let mut pass = Pass::new(&graph, &engine, &sequences).expect("sequences");
    let part = pass.parts()[0];
    let error = pass.run(&part, &graph, &|_, _| false, &mut |_| (), &mut Stopped).expect_err("stopped");
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
}
