//! Semantic operations in terms of lower ones, a level at a time.
//!
//! `Rope` and `Attention` stop depending on positions here: their tables become the step inputs
//! `rotary-cos`, `rotary-sin` and `mask`. What is left of them is a `Rotate`, and primitives around
//! a `Softmax` and a `Softcap`, which fall into primitives when they are decomposed in turn; all
//! others do so at once. `StateUpdate` has no decomposition; `legalise` turns it into rows for the
//! runtime instead.
//!
//! A step is named after its operation and its place among the steps of its level, and the last one
//! writes the tensor of what it replaces. So a tensor that a half-way form has keeps its name all
//! the way down, and ranges seen in primitives serve every form.

use crate::operations::Rewrite;
use crate::{EntryGraph, EntryNode, Op};

/// The graph with every semantic operation but state updates in primitives, all the way down.
pub fn decompose_all(entry: &EntryGraph) -> EntryGraph {
    let mut graph = decompose_where(entry, |_, _| true);
    // Ends: what an operation falls into is strictly lower.
    while graph.nodes.iter().any(|node| node.op.is_semantic() && node.op != Op::StateUpdate) {
        graph = decompose_where(&graph, |_, _| true);
    }
    graph
}

/// The graph with the chosen semantic operations one level down; `StateUpdate` and primitives stay,
/// chosen or not.
///
/// Inputs that nothing reads any more (positions, as a rule) are dropped. Steps are in f32: a graph
/// is decomposed before it is encoded, and one that was encoded before gets steps of another
/// rounding.
pub fn decompose_where(entry: &EntryGraph, mut chosen: impl FnMut(usize, &EntryNode) -> bool) -> EntryGraph {
    let mut rewrite = Rewrite::new(entry);
    for (index, node) in entry.nodes.iter().enumerate() {
        if node.op.is_semantic() && node.op != Op::StateUpdate && chosen(index, node) {
            rewrite.decompose(node);
        } else {
            rewrite.graph.nodes.push(node.clone());
        }
    }
    rewrite.finish()
}
