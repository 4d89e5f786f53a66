//! Derivatives: the gradient from a backward pass predicts the effect of a small change of a
//! weight.

use std::collections::BTreeMap;

use shardwright_forward::{Backward, BackwardLook, Engine, LogitRows, Pass, Shown};
use shardwright_graph::{EntryGraph, EntryNode, Graph, Op, Weight, WeightData, gradient_key};
use shardwright_quantisation::{Recipe, TableFormats, quantise};
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_test_checkpoints::Spec;
use shardwright_tests::chain;
use shardwright_vocabulary::{DType, ErrorKind};

fn engine() -> Engine {
    let options = [("threads".to_owned(), "2".to_owned())];
    let cpu = chain::shims().open("cpu", "gradient", &options).expect("the CPU shim opens");
    Engine::new(cpu, "cpu")
}

/// Returns a number between −1 and 1 that looks random.
fn number(index: usize) -> f32 {
    (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20) as u16 as f32 / 32768.0 - 1.0
}

/// Returns the factor of a logit. The loss is the sum of all logits times their factors.
fn factor(sequence: usize, row: usize, column: usize) -> f32 {
    number(column * 31 + row * 7919 + sequence * 104_729)
}

fn loss(graph: &Graph, sequences: &[Vec<u32>]) -> f64 {
    let model = ReferenceModel::new(graph, Arrangement::whole(64)).expect("a model");
    let of = |(sequence, ids): (usize, &Vec<u32>)| -> f64 {
        let logits = model.logits(ids).expect("logits").into_floats();
        let width = logits.len() / ids.len();
        let term = |(index, value): (usize, &f32)| {
            f64::from(*value) * f64::from(factor(sequence, index / width, index % width))
        };
        logits.iter().enumerate().map(term).sum()
    };
    sequences.iter().enumerate().map(of).sum()
}

fn is_product(node: &EntryNode) -> bool {
    node.op == Op::Linear
}

/// Computes the derivative of the loss by each weight, `[N, K]`.
fn derivatives(graph: &Graph, sequences: &[Vec<u32>]) -> BTreeMap<String, Vec<f64>> {
    let engine = engine();
    let mut pass = Pass::recorded(graph, &engine, sequences).expect("sequences");
    for part in pass.parts() {
        pass.run(&part, graph, &|_, _| false, &mut |_| (), &mut ()).expect("a part runs");
    }
    let mut back = Backward::of(pass).expect("it was recorded");
    let mut found: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    // By name of the product's result: the names of the weight and of the other factor.
    let products = std::cell::RefCell::new(BTreeMap::new());
    let values = |entry: &EntryGraph, tensor| {
        let mut readers = entry.nodes.iter().filter(|node| is_product(node) && node.inputs[0] == tensor);
        for node in readers.by_ref() {
            let weight = entry.tensor(node.inputs[1]).weight.expect("a constant");
            let names = (graph.weight(weight).name.clone(), entry.tensor(tensor).name.clone());
            products.borrow_mut().insert(entry.tensor(node.output).name.clone(), names);
        }
        entry.nodes.iter().any(|node| is_product(node) && node.inputs[0] == tensor)
    };
    let gradients =
        |entry: &EntryGraph, tensor| entry.nodes.iter().any(|node| is_product(node) && node.output == tensor);
    let loss = |rows: LogitRows<'_>| -> Vec<f32> {
        let of = |index: usize| factor(rows.sequence, rows.first + index / rows.width, index % rows.width);
        (0..rows.values.len()).map(of).collect()
    };
    for part in back.parts() {
        products.borrow_mut().clear();
        let look = BackwardLook { values: &values, gradients: &gradients, loss: &loss };
        let mut show = |_: usize, shown: &Shown| {
            for (result, (weight, input)) in products.borrow().iter() {
                let Some(x) = shown.get(input) else { panic!("`{input}` is not shown of {part}") };
                let Some(gradient) = shown.get(&gradient_key(result)) else { continue };
                let weight = graph.weights.iter().find(|known| known.name == *weight).expect("a weight");
                let (rows, width) = (weight.rows(), weight.row_width());
                let sum = found.entry(weight.name.clone()).or_insert_with(|| vec![0.0; rows * width]);
                assert_eq!(x.len() / width, gradient.len() / rows, "{result}");
                for (x, gradient) in x.chunks(width).zip(gradient.chunks(rows)) {
                    for (row, &g) in sum.chunks_mut(width).zip(gradient) {
                        for (sum, &x) in row.iter_mut().zip(x) {
                            *sum += f64::from(g) * f64::from(x);
                        }
                    }
                }
            }
        };
        back.run(&part, graph, &look, &mut show, &mut ()).expect("a part runs back");
    }
    found
}

/// Returns the graph with `by` times [`number`] added to each value of a weight, in f32.
fn changed(graph: &Graph, index: usize, by: f32) -> Graph {
    let mut graph = graph.clone();
    let weight = &graph.weights[index];
    let values = values(weight);
    let bytes = values.iter().enumerate().flat_map(|(at, value)| (value + by * number(at)).to_le_bytes());
    let data = WeightData::from_vec(bytes.collect());
    graph.weights[index] = Weight { dtype: DType::F32, data, quantisation: None, ..weight.clone() };
    graph
}

fn values(weight: &Weight) -> Vec<f32> {
    let (rows, width) = (weight.rows(), weight.row_width());
    let mut values = vec![0.0; rows * width];
    for (row, values) in values.chunks_mut(width).enumerate() {
        weight.decode_row(row, values);
    }
    values
}

#[test]
fn a_change_of_a_weight_changes_the_loss_by_its_derivative() {
    for spec in [Spec::gemma3(), Spec::gemma4(), Spec::qwen3()] {
        let graph = chain::made(&spec);
        let sequences: Vec<Vec<u32>> = [9, 33].map(|length| chain::tokens(&graph, length)).into();
        let derivatives = derivatives(&graph, &sequences);
        let matrices = shardwright_quantisation::MatrixInputs::new(&graph).expect("matrices").of;
        assert_eq!(derivatives.keys().collect::<Vec<_>>(), matrices.keys().collect::<Vec<_>>());
        for (name, derivative) in &derivatives {
            let index = graph.weights.iter().position(|weight| weight.name == *name).expect("a weight");
            let weight = &graph.weights[index];
            let size = values(weight).iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let step = 0.001 * size;
            let expected: f64 =
                derivative.iter().enumerate().map(|(at, value)| value * f64::from(number(at))).sum();
            let ends = [step, -step].map(|by| loss(&changed(&graph, index, by), &sequences));
            let found = (ends[0] - ends[1]) / (2.0 * f64::from(step));
            // The norm of the derivative, as the scale of the tolerance.
            let most = derivative.iter().map(|value| value * value).sum::<f64>().sqrt();
            assert!(
                (found - expected).abs() <= 0.02 * expected.abs() + 0.02 * most,
                "{:?} {name}: {found} found, {expected} expected, {most}",
                spec.family
            );
        }
    }
}

/// Stored blocks of integers give the same derivatives as the floats they represent.
#[test]
fn stored_blocks_go_back_as_their_values() {
    let made = chain::made(&Spec::qwen3());
    let formats = "w8-block32/f32/f32".parse().expect("formats");
    let recipe = Recipe::new(&made, &formats, TableFormats::default());
    let blocks = quantise(&made, &recipe, &mut (), &mut Vec::new()).expect("it is quantised");
    let stored = blocks.weights.iter().enumerate().filter(|(_, weight)| weight.quantisation.is_some());
    let floats = stored.fold(blocks.clone(), |graph, (index, _)| changed(&graph, index, 0.0));
    assert!(floats.weights.iter().zip(&blocks.weights).filter(|(a, b)| a.dtype != b.dtype).count() > 7);
    let sequences = vec![chain::tokens(&made, 9)];
    let (found, wanted) = (derivatives(&blocks, &sequences), derivatives(&floats, &sequences));
    assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    for (name, wanted) in &wanted {
        let size = wanted.iter().map(|value| value * value).sum::<f64>();
        let off = found[name].iter().zip(wanted).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        assert!(size > 0.0 && off <= 1e-8 * size, "{name}: {off:e} of {size:e}");
    }
}

#[test]
fn a_pass_that_was_not_recorded_to_its_end_is_refused() {
    let graph = chain::made(&Spec::qwen3());
    let (engine, sequences) = (engine(), vec![chain::tokens(&graph, 3)]);
    let unrecorded = Pass::new(&graph, &engine, &sequences).expect("sequences");
    let begun = Pass::recorded(&graph, &engine, &sequences).expect("sequences");
    for pass in [unrecorded, begun] {
        let error = Backward::of(pass).err().expect("refused");
        assert!(error.kind() == ErrorKind::Argument && error.help().is_some(), "{error}");
    }
}
