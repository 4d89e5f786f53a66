//! Pairs of nodes that become one step: a function and the product that alone reads it, a norm and the sum that alone reads it.

use super::graph::{Graph, Source};
use super::recognise::Operation;
use super::rows::Rows;
use crate::kernels::elementwise::{Binary, Gate, Unary};
use crate::kernels::encoding::Encoding;

/// What a node takes over from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The node that is computed with it.
    pub node: usize,
    /// The operand of the taking node that the other one does not give.
    pub other: u32,
    /// What it is.
    pub what: Fusion,
}

/// What two nodes are together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusion {
    /// `f(gate) · up`
    Gated(Gate),
    /// `residual + norm(x)`
    Residual,
}

/// The pairs of an entry.
#[derive(Debug)]
pub struct Fused {
    /// By the node that takes over.
    pub takes: Vec<Option<Taken>>,
    /// By the node that is taken over: who takes it.
    pub taken: Vec<Option<usize>>,
}

/// Finds the pairs among live operations.
pub fn pairs(graph: &Graph<'_>, operations: &[Option<Operation>], rows: &Rows) -> Fused {
    let mut readers = vec![0usize; graph.tensors.len()];
    for (node, _) in graph.nodes.iter().zip(operations).filter(|(_, operation)| operation.is_some()) {
        node.inputs().flatten().for_each(|input| readers[input as usize] += 1);
    }
    graph.entry.outputs().for_each(|port| readers[port.tensor() as usize] += 1);
    // A state changes in place: nobody may read what it was at a later node.
    let mut updates = Vec::with_capacity(operations.len());
    let mut count = 0usize;
    for operation in operations {
        updates.push(count);
        count += usize::from(matches!(operation, Some(Operation::StateUpdate)));
    }
    let mut fused = Fused { takes: vec![None; operations.len()], taken: vec![None; operations.len()] };
    for (index, operation) in operations.iter().enumerate() {
        let Some(Operation::Binary(kind)) = operation else { continue };
        let node = graph.nodes[index];
        let (Some(a), Some(b), Some(&output)) =
            (node.optional_input(0), node.optional_input(1), node.outputs().first())
        else {
            continue;
        };
        for (inner, other) in [(a, b), (b, a)] {
            let [inner_of, other_of, result] =
                [inner, other, output].map(|tensor| &graph.tensors[tensor as usize]);
            let Source::Node(number) = inner_of.source else { continue };
            let what = match (kind, &operations[number]) {
                (Binary::Mul, Some(Operation::Unary(Unary::Gelu))) => Fusion::Gated(Gate::Gelu),
                (Binary::Mul, Some(Operation::Unary(Unary::Silu))) => Fusion::Gated(Gate::Silu),
                (Binary::Add, Some(Operation::RmsNorm { .. })) => Fusion::Residual,
                _ => continue,
            };
            let alike = inner_of.shape == result.shape && other_of.shape == result.shape;
            let follow = rows.follows[output as usize];
            let same_rows = [inner, other].iter().all(|tensor| rows.follows[*tensor as usize] == follow);
            // What is between the two is nowhere: it may be read by nobody else, and not stored in another encoding.
            let hidden = readers[inner as usize] == 1
                && !rows.crossed[inner as usize]
                && inner_of.encoding.is_some_and(|encoding: Encoding| encoding.is_direct());
            let unchanged = updates[number] == updates[index];
            if alike && same_rows && hidden && unchanged && other != inner {
                fused.takes[index] = Some(Taken { node: number, other, what });
                fused.taken[number] = Some(index);
                break;
            }
        }
    }
    fused
}
