//! Pairs of nodes that become one step: a function and the product that alone reads it, a norm and
//! the sum that alone reads it, a head in two parts and the cap of its logits.

use shardwright_shim_abi::WeightView;
use shardwright_shim_abi::raw::SW_ROLE_LOGITS;

use super::graph::{Graph, Source};
use super::recognise::Operation;
use super::rows::Rows;
use crate::error::CpuError;
use crate::kernels::elementwise::{Binary, Gate, Unary};
use crate::kernels::encoding::Encoding;

/// What a node takes over from another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    /// The node that is computed with it.
    pub node: usize,
    /// The operand of the taking node that the other one does not give; of [`Fusion::Capped`] there
    /// is none.
    pub other: Option<u32>,
    /// What it is.
    pub what: Fusion,
}

/// What two nodes are together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fusion {
    /// `f(gate) · up`
    Gated(Gate),
    /// `residual + norm(x)`
    Residual,
    /// `cap · tanh(logits / cap)`
    Capped(f32),
}

/// The pairs of an entry.
#[derive(Debug)]
pub struct Fused {
    /// By the node that takes over.
    pub takes: Vec<Option<Taken>>,
    /// By the node that is taken over: who takes it.
    pub taken: Vec<Option<usize>>,
}

/// Finds the pairs among live operations. Of a node's weights `splits` says whether they come in
/// two parts.
pub fn pairs<'a>(
    graph: &Graph<'a>,
    operations: &[Option<Operation>],
    rows: &Rows,
    mut splits: impl FnMut(WeightView<'a>) -> Result<bool, CpuError>,
) -> Result<Fused, CpuError> {
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
        let node = graph.nodes[index];
        if let Some(Operation::Unary(Unary::Softcap(cap))) = operation
            && let (Some(inner), Some(&output)) = (node.optional_input(0), node.outputs().first())
            && let Source::Node(number) = graph.tensors[inner as usize].source
            && matches!(operations[number], Some(Operation::Linear { dynamic: true }))
            && graph.nodes[number].optional_input(2).is_none()
            && readers[inner as usize] == 1
            && graph.tensors[inner as usize].encoding.is_some_and(|encoding: Encoding| encoding.is_direct())
            && leaves_as_logits(graph, output, readers[output as usize])
            && let Some(Source::Constant(weight)) = graph.input(number, 1).map(|tensor| tensor.source)
            && splits(weight)?
        {
            fused.takes[index] = Some(Taken { node: number, other: None, what: Fusion::Capped(*cap) });
            fused.taken[number] = Some(index);
        }
        let Some(Operation::Binary(kind)) = operation else { continue };
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
            // What is between the two is nowhere: it may be read by nobody else, and not stored in
            // another encoding.
            let hidden = readers[inner as usize] == 1
                && !rows.crossed[inner as usize]
                && inner_of.encoding.is_some_and(|encoding: Encoding| encoding.is_direct());
            let unchanged = updates[number] == updates[index];
            if alike && same_rows && hidden && unchanged && other != inner {
                fused.takes[index] = Some(Taken { node: number, other: Some(other), what });
                fused.taken[number] = Some(index);
                break;
            }
        }
    }
    Ok(fused)
}

/// Whether a tensor with so many readers is logits and nothing else: they leave as they are, and
/// nobody reads what a run may leave out.
fn leaves_as_logits(graph: &Graph<'_>, tensor: u32, readers: usize) -> bool {
    let mut ports = graph.entry.outputs().filter(|port| port.tensor() == tensor);
    let leaves = ports.next().is_some_and(|port| port.role() == SW_ROLE_LOGITS);
    leaves
        && readers == 1
        && graph.tensors[tensor as usize].encoding.is_some_and(|encoding| encoding.is_direct())
}
