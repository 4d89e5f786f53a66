//! Decomposes semantic operations into lower ones, one level at a time.
//!
//! Here `Rope` and `Attention` stop depending on positions: their tables become the step inputs
//! `rotary-cos`, `rotary-sin` and `mask`. The rest of them is a `Rotate`, or primitives around a
//! `Softmax` and a `Softcap`. A further decomposition turns these into primitives. All other
//! operations become primitives at once. `StateUpdate` has no decomposition. `legalise` turns it
//! into rows for the runtime instead.
//!
//! A step is named after its operation and its position among the steps of its level. The last step
//! writes the tensor of the decomposed operation. So a tensor of an intermediate form keeps its
//! name at all lower levels, and ranges observed in primitives apply to every form.

use crate::operations::Rewrite;
use crate::{EntryGraph, EntryNode, Op};

/// Decomposes every semantic operation, except state updates, completely into primitives. The
/// primitives of an operation that is not [replaceable](Op::is_replaceable) do not round its
/// operands.
pub fn decompose_all(entry: &EntryGraph) -> EntryGraph {
    let mut graph = decompose_where(entry, |_, _| true);
    // This terminates because the steps of an operation are strictly lower than it.
    while graph.nodes.iter().any(|node| node.op.is_semantic() && node.op != Op::StateUpdate) {
        graph = decompose_where(&graph, |_, _| true);
    }
    graph
}

/// Decomposes the chosen semantic operations by one level. `StateUpdate` and primitives do not
/// change, even if chosen.
///
/// Inputs that no operation reads any more (usually the positions) are dropped. Steps are in f32.
/// So a graph is decomposed before it is encoded, and the steps of an encoded graph round
/// differently.
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
