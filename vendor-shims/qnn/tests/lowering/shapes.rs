//! Tests of graphs without the library: operations, extents, encodings, names.

use std::borrow::Cow;

use super::layers::Layer;
use super::tables::{Tables, over};
use shardwright_shim_abi::Verdict;
use shardwright_shim_abi::raw::*;
use shardwright_shim_qnn::graph::{DataType, QnnGraph, QnnNode, QnnTensor, StaticData, TensorKind};
use shardwright_shim_qnn::lower::{
    Heads, KeyRows, Leaving, Lowered, MAX_PARTS, MOST_REPEATED_BYTES, Product, Rotary, SharedMask, Variants,
    check, lower,
};

pub use crate::chips::soc;

/// Lowers fully supported tables.
pub fn lowered(tables: &Tables, variants: &Variants) -> Lowered<'static> {
    let entry = tables.view();
    for (verdict, node) in check(entry, &soc("sm8850")).iter().zip(&tables.nodes) {
        assert_eq!(*verdict, Verdict::Taken, "{:?}", node.name);
    }
    lower(entry, &soc("sm8850"), variants).expect("it is taken whole")
}

/// Counts the occurrences of an operation.
pub fn count(graph: &QnnGraph<'_>, op: &str) -> usize {
    graph.nodes.iter().filter(|node| node.op == op).count()
}

/// Checks that names are unique, operands are defined before they are read, every tensor is written
/// once or bound, and no form is used that is known to be incorrect.
pub fn sound(graph: &QnnGraph<'_>) {
    let mut names = std::collections::HashSet::new();
    for tensor in &graph.tensors {
        assert!(names.insert(&tensor.name), "two tensors are called {}", tensor.name);
    }
    let mut names = std::collections::HashSet::new();
    let mut there: Vec<bool> = graph
        .tensors
        .iter()
        .map(|tensor| matches!(tensor.kind, TensorKind::Input | TensorKind::Static(_)))
        .collect();
    for node in &graph.nodes {
        assert!(names.insert(&node.name), "two nodes are called {}", node.name);
        for input in &node.inputs {
            assert!(there[input.0 as usize], "{} reads what is not there", node.name);
        }
        for output in &node.outputs {
            assert!(!std::mem::replace(&mut there[output.0 as usize], true), "{} writes twice", node.name);
        }
        let result = &graph.tensors[node.outputs[0].0 as usize];
        if node.op == "RmsNorm" && result.dtype == DataType::Float16 {
            assert_eq!(result.dims.len(), 2, "{} has more than rows: {:?}", node.name, result.dims);
        }
    }
    assert!(there.iter().all(|there| *there));
}

#[test]
fn a_layer_of_one_row_moves_nothing() {
    let tables = Layer::sliding(1, shardwright_shim_abi::raw::SW_DTYPE_I4).tables(true);
    let variants =
        Variants { heads: Heads::Never, rotary: Rotary::Fused, turned: false, ..Variants::default() };
    let lowered = lowered(&tables, &variants);
    let graph = &lowered.graph;
    sound(graph);
    assert_eq!(count(graph, "Transpose"), 0);
    assert_eq!(count(graph, "FullyConnected"), 9);
    assert_eq!(count(graph, "MatMul"), 2);
    assert_eq!(count(graph, "RotaryEmbedding"), 2);
    assert_eq!(count(graph, "RmsNorm"), 8);
    assert_eq!(lowered.ports.len(), 10);
}

#[test]
fn every_variant_of_a_layer_is_sound() {
    for (rows, kv_heads) in [(1, 1), (5, 1), (1, 2), (5, 2), (5, 4)] {
        let tables = Layer::small(rows, kv_heads).tables(false);
        for rotary in [Rotary::Fused, Rotary::Pairs, Rotary::Exchanged, Rotary::Negated] {
            let all = crate::candidates::candidates(tables.view());
            let split = all.iter().map(|variants| Variants { keys: KeyRows::Split, ..*variants });
            for variants in all.iter().copied().chain(split) {
                let lowered = lowered(&tables, &Variants { rotary, ..variants });
                sound(&lowered.graph);
                assert_eq!(lowered.stand_ins, 0);
                let products = if variants.keys == KeyRows::Split { 4 } else { 2 };
                let per_key = if variants.heads == Heads::Never { kv_heads as usize } else { 1 };
                assert_eq!(count(&lowered.graph, "MatMul"), products * per_key, "{variants:?}");
            }
        }
    }
}

/// The vendor's library accepts norms of floats with rows and heads as separate axes, but computes
/// them wrongly.
#[test]
fn norms_of_floats_have_rows_alone_in_every_variant() {
    for (rows, kv_heads) in [(1, 1), (12, 1), (12, 2)] {
        let tables = Layer::small(rows, kv_heads).tables(false).halved();
        for variants in crate::candidates::candidates(tables.view()) {
            let lowered = lowered(&tables, &variants);
            sound(&lowered.graph);
            assert_eq!(count(&lowered.graph, "RmsNorm"), 8, "{variants:?}");
        }
    }
}

#[test]
fn entries_share_their_constants() {
    let [one, many] = [1, 5].map(|rows| Layer::small(rows, 2).tables(false));
    let variants = Variants::default();
    let [one, many] = [lowered(&one, &variants), lowered(&many, &variants)];
    let constants = |graph: &QnnGraph<'static>| -> Vec<QnnTensor<'static>> {
        let mut found: Vec<QnnTensor<'static>> = graph
            .tensors
            .iter()
            .filter(|tensor| matches!(tensor.kind, TensorKind::Static(_)))
            .cloned()
            .collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    };
    let (one, many) = (constants(&one.graph), constants(&many.graph));
    assert!(one.len() > 15);
    let names =
        |list: &[QnnTensor<'static>]| list.iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&one), names(&many));
    for (one, many) in one.iter().zip(&many) {
        assert_eq!(
            (one.dtype, &one.dims, &one.encoding),
            (many.dtype, &many.dims, &many.encoding),
            "{}",
            one.name
        );
        // The bytes must be equal, wherever they are stored.
        assert_eq!(one.kind, many.kind, "{}", one.name);
    }
}

#[test]
fn matrices_are_borrowed() {
    for product in [Product::FullyConnected, Product::Convolution, Product::MatMul] {
        let tables = Layer::small(5, 1).tables(false);
        let lowered = lowered(&tables, &Variants { product, ..Variants::default() });
        let mut matrices = 0;
        for tensor in &lowered.graph.tensors {
            let TensorKind::Static(data) = &tensor.kind else { continue };
            if tensor.dtype == DataType::Sfixed8 {
                matrices += 1;
                let is_borrowed = match data {
                    StaticData::Bytes(bytes) => matches!(bytes, Cow::Borrowed(_)),
                    StaticData::Packed { .. } | StaticData::Transposed(_) => true,
                    StaticData::Stand { .. } => false,
                };
                assert!(is_borrowed, "{} is copied", tensor.name);
            }
        }
        assert_eq!(matrices, 9);
    }
}

#[test]
fn wide_products_are_cut_and_joined() {
    let tables = Layer::small(5, 1).tables(false);
    let whole = lowered(&tables, &Variants::default());
    let cut = lowered(&tables, &Variants { widest: 40, ..Variants::default() });
    sound(&cut.graph);
    // q 128, k 32, v 32, o 64, gate 96, up 96, down 64, per-layer 32 and 64 outputs.
    assert_eq!(count(&whole.graph, "FullyConnected"), 9);
    assert_eq!(count(&cut.graph, "FullyConnected"), 4 + 1 + 1 + 2 + 3 + 3 + 2 + 1 + 2);
}

#[test]
fn the_rules_move_no_queries() {
    for (layer, rotations, joined) in [
        // Halves of queries and keys, keys and values with their states, the mask for every head,
        // blocks of outputs.
        (Layer::sliding as fn(u64, u32) -> Layer, 0, 2 + 2 + 1 + 1),
        // Halves exchanged, cosines and sines twice, the mask, blocks of outputs.
        (Layer::full, 1, 3 + 1 + 1),
    ] {
        let tables = layer(64, shardwright_shim_abi::raw::SW_DTYPE_I4).tables(true);
        let graph = lowered(&tables, &Variants::rules(tables.view())).graph;
        // Only the keys are transposed.
        assert_eq!(count(&graph, "Transpose"), 1);
        assert_eq!(count(&graph, "ElementWiseNeg"), rotations);
        assert_eq!(count(&graph, "Concat"), joined);
        // The scalar of the layer in blocks of 256 of 1536 values.
        let scaled = graph
            .nodes
            .iter()
            .filter(|node| node.name.starts_with("hidden.out") || node.name.starts_with("layer-scale"));
        assert!(scaled.count() >= 6);
    }
}

/// Returns the size in bytes of the largest tensor that is concatenated from copies of one part.
fn largest_repeated(graph: &QnnGraph<'_>) -> u64 {
    let repeats =
        |node: &&QnnNode| node.op == "Concat" && node.inputs.iter().all(|one| *one == node.inputs[0]);
    let bytes = |node: &QnnNode| {
        let made = &graph.tensors[node.outputs[0].0 as usize];
        made.dims.iter().map(|extent| u64::from(*extent)).product::<u64>() * made.dtype.bytes()
    };
    graph.nodes.iter().filter(repeats).map(bytes).max().unwrap_or(0)
}

/// Phones were reported to add a mask above one mebibyte to other rows.
#[test]
fn a_mask_is_written_out_for_its_heads_up_to_a_mebibyte_in_every_variant() {
    // The slots are the state's and 64 new ones. 64 rows of 8 heads have 1,024 bytes per slot.
    for (context, halved, whole) in
        [(960, false, Some(1 << 20)), (961, false, None), (960, true, Some(1 << 20)), (992, true, None)]
    {
        let layer = Layer { context, heads: 8, ..Layer::small(64, 2) };
        let tables = if halved { layer.tables(false).halved() } else { layer.tables(false) };
        let mut most = 0;
        for variants in crate::candidates::candidates(tables.view()) {
            for variants in [variants, Variants { mask: SharedMask::Repeated, ..variants }] {
                let lowered = lowered(&tables, &variants);
                sound(&lowered.graph);
                let repeated = largest_repeated(&lowered.graph);
                assert!(repeated <= MOST_REPEATED_BYTES, "{repeated} bytes, context {context}: {variants:?}");
                most = most.max(repeated);
                if variants.heads != Heads::Never && variants.mask == SharedMask::Repeated {
                    let larger = 1024 * (context + 64);
                    let expected = (larger > MOST_REPEATED_BYTES).then_some(larger);
                    assert_eq!(lowered.broadcast_mask, expected, "context {context}: {variants:?}");
                }
            }
        }
        // The heads of one key need half of it, which is small enough in every case.
        assert_eq!(most, whole.unwrap_or(512 * (context + 64)), "context {context}");
    }
}

/// Gemma 4 E2B's usual prefill has 128 rows and a window of 512.
#[test]
fn a_prefill_of_128_rows_broadcasts_its_mask() {
    let tables = Layer::sliding(128, shardwright_shim_abi::raw::SW_DTYPE_I4).tables(true);
    let lowered = lowered(&tables, &Variants::rules(tables.view()));
    assert_eq!(lowered.broadcast_mask, Some(128 * 8 * 640 * 2));
    assert_eq!(largest_repeated(&lowered.graph), 0);
}

/// Builds an attention of two rows with `kv` heads of two values. Its keys are concatenated from
/// `parts` parts of one row.
fn attention(kv: u64, parts: u64) -> Tables {
    let (rows, width) = (2, 2);
    let a = over(-4.0, 4.0);
    let mut tables = Tables::new("attention", rows);
    let query = tables.input("query", SW_ROLE_HIDDEN, &[rows, kv * width], a);
    let part = tables.input("part", SW_ROLE_HIDDEN, &[1, kv * width], a);
    let mask = tables.input("mask", SW_ROLE_MASK, &[rows, parts], a);
    let joined = |tables: &mut Tables, name: &str| match parts {
        1 => part,
        parts => tables.concat(name, &vec![part; parts as usize], 0),
    };
    let heads = |tables: &mut Tables, name: &str, rows: u32| {
        let apart = tables.reshape(&format!("{name}.apart"), rows, &[parts, kv, width]);
        let turned = tables.transpose(&format!("{name}.turned"), apart, &[1, 0, 2]);
        tables.reshape(&format!("{name}.heads"), turned, &[kv, 1, parts, width])
    };
    let query = tables.reshape("query.apart", query, &[rows, kv, 1, width]);
    let query = tables.transpose("query.heads", query, &[1, 2, 0, 3]);
    let keys = joined(&mut tables, "keys");
    let keys = heads(&mut tables, "keys", keys);
    let values = joined(&mut tables, "values");
    let values = heads(&mut tables, "values", values);
    let scores = tables.mat_mul("scores", query, keys, true, a);
    let masked = tables.binary("masked", SW_OP_ADD, scores, mask, a);
    let weights = tables.unary("weights", SW_OP_SOFTMAX, masked, over(0.0, 1.0), vec![]);
    let mixed = tables.mat_mul("mixed", weights, values, false, a);
    let mixed = tables.transpose("mixed.rows", mixed, &[2, 0, 1, 3]);
    let out = tables.reshape("out", mixed, &[rows, kv * width]);
    tables.output("out", SW_ROLE_HIDDEN, out);
    tables
}

#[test]
fn attentions_with_too_many_parts_are_written_in_fewer() {
    for (kv, parts, heads, keys, products) in [
        (3, 1, Heads::Never, KeyRows::Joined, 3 * 2),
        (MAX_PARTS + 1, 1, Heads::Never, KeyRows::Joined, 2),
        // The parts are equal, so their scores are computed once.
        (2, 3, Heads::Never, KeyRows::Split, 2 * (1 + 3)),
        (2, MAX_PARTS / 2 + 1, Heads::Never, KeyRows::Split, 2 * 2),
        (2, MAX_PARTS + 1, Heads::AfterNorm, KeyRows::Split, 2),
        (MAX_PARTS + 1, 3, Heads::Never, KeyRows::Split, 2),
    ] {
        let lowered = lowered(&attention(kv, parts), &Variants { heads, keys, ..Variants::default() });
        sound(&lowered.graph);
        let found = count(&lowered.graph, "MatMul");
        assert_eq!(found, products, "{kv} heads of {parts} parts, {heads:?}, {keys:?}");
    }
}

#[test]
fn one_row_leaves_whole() {
    let tables = Layer::sliding(1, shardwright_shim_abi::raw::SW_DTYPE_I4).tables(true);
    let whole = lowered(&tables, &Variants { leaving: Leaving::Whole, ..Variants::default() });
    for leaving in [Leaving::Rows, Leaving::Columns] {
        let lowered = lowered(&tables, &Variants { leaving, ..Variants::default() });
        assert_eq!(lowered.graph.nodes.len(), whole.graph.nodes.len(), "{leaving:?}");
    }
}
