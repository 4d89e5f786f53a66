//! Fusion of node pairs to one step:
//! * a function and the product that is its only reader
//! * a norm and the sum that is its only reader
//! * a linear map and the clamp that is its only reader
//! * a split head and the cap of its logits

use shardwright_shim_abi::raw::SW_ROLE_LOGITS;
use shardwright_shim_abi::{Error, WeightView};

use super::graph::{Graph, Source};
use super::rows::Rows;
use crate::kernels::elementwise::{Binary, Gate, Unary};
use crate::kernels::encoding::ElementEncoding;
use crate::ops::operation::{Operation, Rounding};

/// A node that is fused into another node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    pub node: usize,
    /// The operand of the fusing node that the fused one does not produce, or `None` for
    /// [`Fusion::Capped`] and [`Fusion::Clamped`].
    pub other: Option<u32>,
    pub what: Fusion,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fusion {
    /// `f(gate) · up`
    Gated(Gate),
    /// `residual + norm(x)`
    Residual,
    /// `cap · tanh(logits / cap)`
    Capped(f32),
    /// `min(max(map(x), low), high)`
    Clamped,
}

/// The pairs of an entry.
#[derive(Debug)]
pub struct Fused {
    /// The fused node of each fusing node.
    pub takes: Vec<Option<Taken>>,
    /// The fusing node of each fused node.
    pub taken: Vec<Option<usize>>,
}

/// Finds the pairs among live operations. `splits` returns whether a node's weights are split.
pub fn pairs<'a>(
    graph: &Graph<'a>,
    operations: &[Option<Operation>],
    rows: &Rows,
    mut splits: impl FnMut(WeightView<'a>) -> Result<bool, Error>,
) -> Result<Fused, Error> {
    let mut readers = vec![0usize; graph.tensors.len()];
    for (node, _) in graph.nodes.iter().zip(operations).filter(|(_, operation)| operation.is_some()) {
        node.inputs().flatten().for_each(|input| readers[input as usize] += 1);
    }
    graph.entry.outputs().for_each(|port| readers[port.tensor() as usize] += 1);
    // A state changes in place, so no later node may read its old contents.
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
            && matches!(operations[number], Some(Operation::Linear { rounding: Rounding::Rows }))
            && graph.nodes[number].optional_input(2).is_none()
            && readers[inner as usize] == 1
            && rows.follows[inner as usize] == rows.follows[output as usize]
            && graph.tensors[inner as usize]
                .encoding
                .is_some_and(|encoding: ElementEncoding| encoding.is_direct())
            && leaves_as_logits(graph, output, readers[output as usize])
            && let Some(Source::Constant(weight)) = graph.input(number, 1).map(|tensor| tensor.source)
            && splits(weight)?
        {
            fused.takes[index] = Some(Taken { node: number, other: None, what: Fusion::Capped(*cap) });
            fused.taken[number] = Some(index);
        }
        // The intermediate result is never stored, so it must have no other reader and must not be
        // stored in another encoding.
        let hidden = |inner: u32| {
            let direct = |encoding: ElementEncoding| encoding.is_direct();
            readers[inner as usize] == 1
                && !rows.crossed[inner as usize]
                && graph.tensors[inner as usize].encoding.is_some_and(direct)
        };
        if matches!(operation, Some(Operation::Clamp))
            && let (Some(inner), Some(&output)) = (node.optional_input(0), node.outputs().first())
            && let Source::Node(number) = graph.tensors[inner as usize].source
            && matches!(operations[number], Some(Operation::Linear { .. }))
            && hidden(inner)
            && rows.follows[inner as usize] == rows.follows[output as usize]
            && updates[number] == updates[index]
        {
            fused.takes[index] = Some(Taken { node: number, other: None, what: Fusion::Clamped });
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
                (Binary::Mul, Some(Operation::Unary(Unary::Sigmoid))) => Fusion::Gated(Gate::Sigmoid),
                (Binary::Add, Some(Operation::RmsNorm(_))) => Fusion::Residual,
                _ => continue,
            };
            let alike = inner_of.shape == result.shape && other_of.shape == result.shape;
            let follow = rows.follows[output as usize];
            let same_rows = [inner, other].iter().all(|tensor| rows.follows[*tensor as usize] == follow);
            let unchanged = updates[number] == updates[index];
            if alike && same_rows && hidden(inner) && unchanged && other != inner {
                fused.takes[index] = Some(Taken { node: number, other: Some(other), what });
                fused.taken[number] = Some(index);
                break;
            }
        }
    }
    Ok(fused)
}

/// Checks whether a tensor with `readers` readers is only used as logits: not encoded, and not read
/// by any other node. A run may then omit results.
fn leaves_as_logits(graph: &Graph<'_>, tensor: u32, readers: usize) -> bool {
    let mut ports = graph.entry.outputs().filter(|port| port.tensor() == tensor);
    let leaves = ports.next().is_some_and(|port| port.role() == SW_ROLE_LOGITS);
    leaves
        && readers == 1
        && graph.tensors[tensor as usize].encoding.is_some_and(|encoding| encoding.is_direct())
}
