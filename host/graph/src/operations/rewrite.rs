//! Copies a graph node by node, for writing decompositions.

use shardwright_vocabulary::DType;

use super::infer::infer_shape;
use super::rules;
use crate::{EntryGraph, EntryNode, Op, Role, Tensor, TensorId};

/// Copies a graph node by node. New tensors are appended, so existing ids stay valid until
/// [`Rewrite::finish`].
pub(crate) struct Rewrite {
    pub(crate) graph: EntryGraph,
    /// Name and layer of the node being replaced.
    name: String,
    layer: Option<u32>,
    steps: usize,
}

impl Rewrite {
    pub(crate) fn new(entry: &EntryGraph) -> Self {
        let mut graph = entry.clone();
        graph.nodes.clear();
        Rewrite { graph, name: String::new(), layer: None, steps: 0 }
    }

    /// Drops unread inputs and tensors, and renumbers the rest.
    pub(crate) fn finish(mut self) -> EntryGraph {
        let graph = &mut self.graph;
        let mut used = vec![false; graph.tensors.len()];
        for node in &graph.nodes {
            used[node.output.0 as usize] = true;
            node.inputs.iter().for_each(|input| used[input.0 as usize] = true);
        }
        graph.outputs.iter().for_each(|(tensor, _)| used[tensor.0 as usize] = true);
        graph.inputs.retain(|(tensor, _)| used[tensor.0 as usize]);
        let mut number = vec![TensorId(u32::MAX); used.len()];
        let mut next = 0;
        for (index, used) in used.iter().enumerate() {
            if *used {
                number[index] = TensorId(next);
                next += 1;
            }
        }
        let mut keep = used.iter();
        graph.tensors.retain(|_| keep.next().copied().unwrap_or(false));
        let renumber = |tensor: &mut TensorId| *tensor = number[tensor.0 as usize];
        for node in &mut graph.nodes {
            node.inputs.iter_mut().for_each(renumber);
            renumber(&mut node.output);
        }
        graph.inputs.iter_mut().for_each(|(tensor, _)| renumber(tensor));
        graph.outputs.iter_mut().for_each(|(tensor, _)| renumber(tensor));
        self.graph
    }

    /// Makes new nodes replace `node` from now on.
    pub(crate) fn replacing(&mut self, node: &EntryNode) {
        self.name.clone_from(&node.name);
        self.layer = node.layer;
        self.steps = 0;
    }

    pub(crate) fn input(&mut self, role: Role, name: String, shape: Vec<u64>, dtype: DType) -> TensorId {
        if let Some(tensor) = self.graph.input(&role) {
            return tensor;
        }
        self.graph.tensors.push(Tensor::plain(name, shape, dtype));
        let tensor = TensorId(self.graph.tensors.len() as u32 - 1);
        self.graph.inputs.push((tensor, role));
        tensor
    }

    pub(crate) fn shape(&self, tensor: TensorId) -> Vec<u64> {
        self.graph.tensor(tensor).shape.clone()
    }

    /// Adds a node with a new output. Operands come from valid nodes, so their shapes always fit.
    pub(crate) fn step(&mut self, op: Op, inputs: &[TensorId]) -> TensorId {
        self.steps += 1;
        let name = format!("{}.{}-{}", self.name, op.name(), self.steps);
        let shapes: Vec<&[u64]> =
            inputs.iter().map(|&input| self.graph.tensor(input).shape.as_slice()).collect();
        let shape =
            infer_shape(&op, &shapes).unwrap_or_else(|reason| panic!("decomposition of {name}: {reason}"));
        let mut tensor = Tensor::plain(name.clone(), shape, DType::F32);
        if op.is_movement() {
            let moved = self.graph.tensor(inputs[0]);
            (tensor.dtype, tensor.affine) = (moved.dtype, moved.affine);
        }
        self.graph.tensors.push(tensor);
        let output = TensorId(self.graph.tensors.len() as u32 - 1);
        self.graph.nodes.push(EntryNode { name, op, inputs: inputs.to_vec(), output, layer: self.layer });
        output
    }

    /// Returns the result of the last step.
    pub(crate) fn last(&self) -> Option<TensorId> {
        self.graph.nodes.last().map(|node| node.output)
    }

    /// Returns the tensor in f32, for a step that joins it to an f32 tensor.
    pub(crate) fn plain(&mut self, tensor: TensorId) -> TensorId {
        match self.graph.tensor(tensor).dtype {
            DType::F32 => tensor,
            _ => self.step(Op::Convert, &[tensor]),
        }
    }

    /// Returns `[state ‖ new rows]`. It is named after the state and does not count as a step. So
    /// the steps of an attention have the same names whoever writes its states, and its known
    /// ranges apply to every form.
    pub(crate) fn joined(&mut self, before: TensorId, rows: TensorId) -> TensorId {
        let steps = self.steps;
        let joined = self.step(Op::Concat { axis: 0 }, &[before, rows]);
        self.steps = steps;
        let name = format!("{}.joined", self.graph.tensor(before).name);
        if let Some(node) = self.graph.nodes.last_mut() {
            node.name.clone_from(&name);
        }
        self.graph.tensors[joined.0 as usize].name = name;
        joined
    }

    /// Makes the last step write the replaced node's output. If the last step moves its operand and
    /// the two have different encodings, inserts a conversion.
    pub(crate) fn deliver(&mut self, output: TensorId) {
        let last = self.graph.nodes.last().filter(|last| last.op.is_movement()).map(|last| last.output);
        if let Some(made) = last
            && self.graph.tensor(made).encoding() != self.graph.tensor(output).encoding()
        {
            self.step(Op::Convert, &[made]);
        }
        if let Some(last) = self.graph.nodes.last_mut() {
            last.output = output;
        }
    }

    pub(crate) fn decompose(&mut self, node: &EntryNode) {
        self.replacing(node);
        match &rules(&node.op).decompose {
            Some(decompose) => decompose(self, &node.inputs),
            None => {
                self.graph.nodes.push(node.clone());
                return;
            }
        }
        self.deliver(node.output);
    }
}
