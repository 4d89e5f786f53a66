//! Lowering of one entry, from its nodes to steps over planned memory.

use std::collections::HashSet;

use shardwright_shim_abi::Error;

use super::emit::Emit;
use super::fuse::pairs;
use super::graph::Graph;
use super::recognise::Refusal;
use super::rows::analyse;
use super::storage::{Storage, TableKey};
use super::weights::Weights;
use crate::error::unsupported;
use crate::kernels::elementwise::Unary;
use crate::ops::{self, Operation};
use crate::program::{Entry, Extent, Operand, OperandPlace, Step, step};

/// Lowers one entry to a program and adds the required data to `weights`. The second result lists
/// nodes that no output depends on, which the program skips.
pub fn entry<'a>(graph: &Graph<'a>, weights: &mut Weights<'a>) -> Result<(Entry, Vec<usize>), Error> {
    let (graph, numbers) = &graph.grouped();
    let operations = live_operations(graph)?;
    let removed = numbers
        .iter()
        .zip(&operations)
        .filter(|(_, live)| live.is_none())
        .map(|(number, _)| *number)
        .collect();
    let rows = analyse(graph, &operations, ops::follows_rows);
    let fused = pairs(graph, &operations, &rows, |weight| weights.splits(weight))?;
    let storage = Storage::choose(graph, &operations, &rows, &fused)?;
    let mut emit =
        Emit { graph, rows: &rows, storage: &storage, weights, steps: Vec::new(), cleaned: HashSet::new() };
    for &(port, copy) in &storage.copies {
        let whole = storage.whole(copy);
        let source = Operand { place: OperandPlace::Bound(port as u32), ..whole };
        let count = Extent::PerRow(whole.elements / graph.rows() as u64);
        let x = Operand { offset: 0, ..source };
        emit.steps.push(Step::Unary(step::Unary { kind: Unary::Copy, x, count, out: whole }));
        emit.steps.push(Step::ZeroTail(step::ZeroTail { target: whole, valid: count }));
    }
    let crossed_roots: HashSet<usize> = (0..graph.tensors.len() as u32)
        .filter(|tensor| rows.crossed[*tensor as usize])
        .filter_map(|tensor| storage.root_of(tensor))
        .collect();
    let mut tables = HashSet::new();
    for (index, operation) in operations.iter().enumerate() {
        let Some(operation) = operation else { continue };
        for key in TableKey::of(graph, index, operation, &rows) {
            if tables.insert(key) {
                ops::rotary_table(&mut emit, key)?;
            }
        }
        emit.decode(index, &crossed_roots);
        if fused.taken[index].is_some() {
            continue;
        }
        match fused.takes[index] {
            Some(taken) => ops::lower_pair(&mut emit, index, taken, &operations)?,
            None => ops::lower(&mut emit, index, operation)?,
        }
        if let Some(&output) = graph.nodes[index].outputs().first()
            && !operation.moves()
        {
            emit.nearest(output);
        }
        // A tensor that is read across rows is padded with zeros once, immediately after it is
        // computed.
        if let Some(&output) = graph.nodes[index].outputs().first()
            && rows.follows[output as usize]
            && let Some(root) = storage.root_of(output)
            && crossed_roots.contains(&root)
            && !storage.copies.iter().any(|(_, copy)| *copy == root)
            && emit.cleaned.insert(root)
        {
            let target = storage.whole(root);
            let valid = emit.extent(output, target.elements as usize);
            emit.steps.push(Step::ZeroTail(step::ZeroTail { target, valid }));
        }
    }
    emit.decode(operations.len(), &crossed_roots);
    for &(tensor, port) in &storage.finals {
        if let Some(x) = storage.operand(graph, tensor) {
            let target = Operand { place: OperandPlace::Bound(port as u32), offset: 0, elements: x.elements };
            emit.steps.push(if storage.ports[port].encoding.is_direct() {
                let count = Extent::Fixed(x.elements);
                Step::Unary(step::Unary { kind: Unary::Copy, x, count, out: target })
            } else {
                Step::Encode(step::Encode { x, count: emit.extent(tensor, x.elements as usize), target })
            });
        }
    }
    let steps = emit.steps;
    let entry = Entry {
        name: graph.entry.name().to_owned(),
        rows: graph.entry.rows(),
        context: graph.entry.context(),
        arena: storage.arena,
        ports: storage.ports,
        steps,
    };
    Ok((entry, removed))
}

/// Returns the operations that an output or a state depends on.
fn live_operations(graph: &Graph<'_>) -> Result<Vec<Option<Operation>>, Error> {
    let mut wanted = vec![false; graph.tensors.len()];
    for port in graph.entry.outputs() {
        wanted[port.tensor() as usize] = true;
    }
    let mut operations = vec![None; graph.nodes.len()];
    for index in (0..graph.nodes.len()).rev() {
        let node = graph.nodes[index];
        if !node.outputs().iter().any(|output| wanted[*output as usize]) {
            continue;
        }
        let operation = ops::recognise(graph, index).map_err(|refusal| match refusal {
            Refusal::Unsupported(reason) => {
                let error = unsupported("node", node.name(), reason);
                match node.layer() {
                    Some(layer) => error.detail("layer", layer),
                    None => error,
                }
            }
            Refusal::Invalid(reason) => {
                Error::invalid_graph(graph.entry.name(), format!("node `{}`: {reason}", node.name()))
            }
        })?;
        for input in node.inputs().flatten() {
            wanted[input as usize] = true;
        }
        operations[index] = Some(operation);
    }
    Ok(operations)
}
