//! Computes gradients of an entry graph, as a graph.
//!
//! Uses reverse mode: from the last operation to the first, the derivative of a loss by each result
//! becomes derivatives by the operands. The new graph recomputes the values that the derivatives
//! need, and runs like any other graph, on any shim.

use std::collections::{BTreeSet, HashMap};

use shardwright_vocabulary::{DType, Error, Result};

use crate::operations::Rewrite;
use crate::{EntryGraph, EntryNode, Op, Role, TensorId, decompose_where};

/// Returns the name of the tap with the derivative of a loss by a tensor.
pub fn gradient_key(tensor: &str) -> String {
    format!("gradient.{tensor}")
}

/// Returns the name of the tap that passes in the derivative by an output of a graph.
pub fn given_gradient_key(tensor: &str) -> String {
    format!("given-gradient.{tensor}")
}

/// Returns the graph that computes the derivatives of a loss by the `wanted` tensors of a float
/// graph.
///
/// It has the inputs of `entry`. In addition, for every output of `entry` that depends on a wanted
/// tensor, it reads the derivative by this output. This input has [`Role::Tap`] and is named by
/// [`given_gradient_key`]. For a state it is the derivative by its rows in this run, which are in
/// the first slots. Its outputs are the taps and states of `entry`. In addition, for every wanted
/// tensor on which an output depends, it outputs the derivative as a tap named by [`gradient_key`].
///
/// # Errors
/// Returns an error if a step function is on the way, such as [`Op::Round`]. Float graphs do not
/// have such functions.
pub fn gradients(entry: &EntryGraph, wanted: &dyn Fn(TensorId) -> bool) -> Result<EntryGraph> {
    let name = |index: usize| entry.tensors[index].name.clone();
    let wanted: BTreeSet<String> =
        (0..entry.tensors.len()).filter(|&index| wanted(TensorId(index as u32))).map(name).collect();
    let mut flat = entry.clone();
    while flat.nodes.iter().any(is_decomposed) {
        flat = decompose_where(&flat, |_, node| is_decomposed(node));
    }
    let is_wanted: Vec<bool> = flat.tensors.iter().map(|tensor| wanted.contains(&tensor.name)).collect();
    let mut depends = is_wanted.clone();
    for node in &flat.nodes {
        let inputs = node.inputs.iter().any(|input| depends[input.0 as usize]);
        depends[node.output.0 as usize] |= inputs;
    }
    let mut rewrite = Rewrite::new(&flat);
    rewrite.graph.nodes.clone_from(&flat.nodes);
    let mut found = HashMap::new();
    for (tensor, role) in &flat.outputs {
        if depends[tensor.0 as usize] && !matches!(role, Role::Tap { .. }) {
            let key = given_gradient_key(&flat.tensor(*tensor).name);
            let shape = rewrite.shape(*tensor);
            found.insert(*tensor, rewrite.input(Role::Tap { name: key.clone() }, key, shape, DType::F32));
        }
    }
    let mut backward = Backward { rewrite, found, depends };
    for node in flat.nodes.iter().rev() {
        let Some(&gradient) = backward.found.get(&node.output) else { continue };
        backward.rewrite.replacing(&EntryNode { name: gradient_key(&node.name), ..node.clone() });
        backward.pass(node, gradient)?;
    }
    let Backward { mut rewrite, found, .. } = backward;
    let given = rewrite.graph.inputs.clone();
    rewrite.graph.outputs.retain(|(_, role)| matches!(role, Role::Tap { .. } | Role::State { .. }));
    for (index, tensor) in flat.tensors.iter().enumerate().filter(|(index, _)| is_wanted[*index]) {
        if let Some(&(mut gradient)) = found.get(&TensorId(index as u32)) {
            // A tensor cannot be both an input and an output.
            if given.iter().any(|(input, _)| *input == gradient) {
                gradient = rewrite.step(Op::MulScalar { value: 1.0 }, &[gradient]);
            }
            rewrite.graph.outputs.push((gradient, Role::Tap { name: gradient_key(&tensor.name) }));
        }
    }
    Ok(pruned(rewrite))
}

/// Returns whether to decompose a node. Products stay whole for their kernels. Softmax stays whole
/// for its derivative, because its maximum counts as a constant only inside it.
fn is_decomposed(node: &EntryNode) -> bool {
    node.op.is_semantic() && !matches!(node.op, Op::Linear | Op::Softmax | Op::StateUpdate)
}

/// Removes the operations whose results are not read.
fn pruned(mut rewrite: Rewrite) -> EntryGraph {
    let graph = &mut rewrite.graph;
    let mut read: BTreeSet<TensorId> = graph.outputs.iter().map(|(tensor, _)| *tensor).collect();
    let keep: Vec<bool> = graph
        .nodes
        .iter()
        .rev()
        .map(|node| {
            let is_read = read.contains(&node.output);
            if is_read {
                read.extend(&node.inputs);
            }
            is_read
        })
        .collect();
    let mut keep = keep.into_iter().rev();
    graph.nodes.retain(|_| keep.next().unwrap_or(true));
    rewrite.finish()
}

/// A graph during the backward pass.
struct Backward {
    rewrite: Rewrite,
    /// The sum of the known parts of each tensor's derivative.
    found: HashMap<TensorId, TensorId>,
    /// Whether a tensor depends on a wanted one. Later tensors are derivatives and do not.
    depends: Vec<bool>,
}

impl Backward {
    fn depends(&self, tensor: TensorId) -> bool {
        self.depends.get(tensor.0 as usize).copied().unwrap_or(false)
    }

    fn step(&mut self, op: Op, inputs: &[TensorId]) -> TensorId {
        self.rewrite.step(op, inputs)
    }

    /// Adds the contribution of one use of a tensor to its derivative, summed over the axes along
    /// which the use repeated it.
    fn add(&mut self, to: TensorId, gradient: TensorId) {
        if !self.depends(to) {
            return;
        }
        let gradient = self.summed_to(self.rewrite.shape(to), gradient);
        let sum = match self.found.get(&to) {
            Some(&before) => self.step(Op::Add, &[before, gradient]),
            None => gradient,
        };
        self.found.insert(to, sum);
    }

    fn summed_to(&mut self, wanted: Vec<u64>, gradient: TensorId) -> TensorId {
        let shape = self.rewrite.shape(gradient);
        if shape == wanted {
            return gradient;
        }
        let missing = shape.len() - wanted.len();
        let is_repeated = |axis: usize| axis < missing || (wanted[axis - missing] == 1 && shape[axis] != 1);
        let (summed, kept): (Vec<usize>, Vec<usize>) = (0..shape.len()).partition(|&axis| is_repeated(axis));
        let extent = |axes: &[usize]| axes.iter().map(|&axis| shape[axis]).product::<u64>();
        let mut sum = gradient;
        if !summed.is_empty() {
            let perm: Vec<u32> = kept.iter().chain(&summed).map(|&axis| axis as u32).collect();
            if !perm.is_sorted() {
                sum = self.step(Op::Transpose { perm }, &[sum]);
            }
            sum = self.step(Op::Reshape { shape: vec![extent(&kept), extent(&summed)] }, &[sum]);
            sum = self.step(Op::ReduceSum, &[sum]);
        }
        self.step(Op::Reshape { shape: wanted }, &[sum])
    }

    /// Swaps the last two axes.
    fn transposed(&mut self, tensor: TensorId) -> TensorId {
        let mut perm: Vec<u32> = (0..self.rewrite.shape(tensor).len() as u32).collect();
        let rank = perm.len();
        perm.swap(rank - 2, rank - 1);
        self.step(Op::Transpose { perm }, &[tensor])
    }

    /// Returns zeros in the shape of a tensor whose values are finite.
    fn zeros(&mut self, like: TensorId) -> TensorId {
        self.step(Op::MulScalar { value: 0.0 }, &[like])
    }

    /// Passes the derivative by a node's result on to its operands.
    fn pass(&mut self, node: &EntryNode, gradient: TensorId) -> Result<()> {
        let (y, x) = (node.output, node.inputs.as_slice());
        let product = |this: &mut Self, factor: TensorId| this.step(Op::Mul, &[gradient, factor]);
        match &node.op {
            Op::Linear => {
                let of_x = self.step(Op::MatMul { transpose_b: false }, &[gradient, x[1]]);
                self.add(x[0], of_x);
            }
            Op::MatMul { transpose_b } => {
                if self.depends(x[0]) {
                    let of_a = self.step(Op::MatMul { transpose_b: !transpose_b }, &[gradient, x[1]]);
                    self.add(x[0], of_a);
                }
                if self.depends(x[1]) {
                    let (left, right) = if *transpose_b { (gradient, x[0]) } else { (x[0], gradient) };
                    let left = self.transposed(left);
                    let of_b = self.step(Op::MatMul { transpose_b: false }, &[left, right]);
                    self.add(x[1], of_b);
                }
            }
            Op::Add => {
                self.add(x[0], gradient);
                self.add(x[1], gradient);
            }
            Op::Sub => {
                self.add(x[0], gradient);
                let negative = self.step(Op::Neg, &[gradient]);
                self.add(x[1], negative);
            }
            Op::Mul => {
                for (own, other) in [(x[0], x[1]), (x[1], x[0])] {
                    let of_own = product(self, other);
                    self.add(own, of_own);
                }
            }
            Op::Div => {
                let of_dividend = self.step(Op::Div, &[gradient, x[1]]);
                self.add(x[0], of_dividend);
                let of_divisor = self.step(Op::Mul, &[of_dividend, y]);
                let of_divisor = self.step(Op::Neg, &[of_divisor]);
                self.add(x[1], of_divisor);
            }
            Op::AddScalar { .. } | Op::Convert => self.add(x[0], gradient),
            Op::MulScalar { value } => {
                let of_x = self.step(Op::MulScalar { value: *value }, &[gradient]);
                self.add(x[0], of_x);
            }
            Op::Neg => {
                let of_x = self.step(Op::Neg, &[gradient]);
                self.add(x[0], of_x);
            }
            Op::Exp => {
                let of_x = product(self, y);
                self.add(x[0], of_x);
            }
            Op::Tanh => {
                let square = self.step(Op::Mul, &[y, y]);
                let less = product(self, square);
                let of_x = self.step(Op::Sub, &[gradient, less]);
                self.add(x[0], of_x);
            }
            Op::Sqrt => {
                let of_x = self.step(Op::Div, &[gradient, y]);
                let of_x = self.step(Op::MulScalar { value: 0.5 }, &[of_x]);
                self.add(x[0], of_x);
            }
            Op::Rsqrt => {
                let square = self.step(Op::Mul, &[y, y]);
                let cube = self.step(Op::Mul, &[square, y]);
                let of_x = product(self, cube);
                let of_x = self.step(Op::MulScalar { value: -0.5 }, &[of_x]);
                self.add(x[0], of_x);
            }
            Op::Reciprocal => {
                let square = self.step(Op::Mul, &[y, y]);
                let of_x = product(self, square);
                let of_x = self.step(Op::Neg, &[of_x]);
                self.add(x[0], of_x);
            }
            // y ⊙ (gradient − Σ gradient ⊙ y)
            Op::Softmax => {
                let weighted = product(self, y);
                let sum = self.step(Op::ReduceSum, &[weighted]);
                let centred = self.step(Op::Sub, &[gradient, sum]);
                let of_x = self.step(Op::Mul, &[centred, y]);
                self.add(x[0], of_x);
            }
            Op::ReduceSum | Op::ReduceMean => {
                let extent = self.rewrite.shape(x[0]).last().copied().unwrap_or(1);
                let zeros = self.zeros(x[0]);
                let mut of_x = self.step(Op::Add, &[zeros, gradient]);
                if node.op == Op::ReduceMean {
                    of_x = self.step(Op::MulScalar { value: 1.0 / extent as f32 }, &[of_x]);
                }
                self.add(x[0], of_x);
            }
            Op::Reshape { .. } => {
                let shape = self.rewrite.shape(x[0]);
                let of_x = self.step(Op::Reshape { shape }, &[gradient]);
                self.add(x[0], of_x);
            }
            Op::Transpose { perm } => {
                let mut back = vec![0; perm.len()];
                for (to, &from) in perm.iter().enumerate() {
                    back[from as usize] = to as u32;
                }
                let of_x = self.step(Op::Transpose { perm: back }, &[gradient]);
                self.add(x[0], of_x);
            }
            Op::Slice { axis, start, end } => {
                let of_x = self.placed(x[0], *axis, *start..*end, gradient);
                self.add(x[0], of_x);
            }
            Op::Concat { axis } => {
                let mut start = 0;
                for &part in x {
                    let end = start + self.rewrite.shape(part)[*axis as usize];
                    if self.depends(part) {
                        let of_part = self.step(Op::Slice { axis: *axis, start, end }, &[gradient]);
                        self.add(part, of_part);
                    }
                    start = end;
                }
            }
            // The rows of a run from its beginning are in the first slots.
            Op::StateUpdate => {
                let rows = self.rewrite.shape(x[1])[0];
                let of_rows = match self.rewrite.shape(gradient)[0] == rows {
                    true => gradient,
                    false => self.step(Op::Slice { axis: 0, start: 0, end: rows }, &[gradient]),
                };
                self.add(x[1], of_rows);
            }
            op => {
                return Err(Error::unsupported("the operation has no derivative")
                    .at(op.place(&node.name))
                    .with_help("report this"));
            }
        }
        Ok(())
    }

    /// Returns the derivative of a part of a tensor along an axis, with zeros around it.
    fn placed(
        &mut self,
        whole: TensorId,
        axis: u32,
        part: std::ops::Range<u64>,
        gradient: TensorId,
    ) -> TensorId {
        let extent = self.rewrite.shape(whole)[axis as usize];
        if part == (0..extent) {
            return gradient;
        }
        let zeros = self.zeros(whole);
        let mut parts = Vec::new();
        if part.start > 0 {
            parts.push(self.step(Op::Slice { axis, start: 0, end: part.start }, &[zeros]));
        }
        parts.push(gradient);
        if part.end < extent {
            parts.push(self.step(Op::Slice { axis, start: part.end, end: extent }, &[zeros]));
        }
        self.step(Op::Concat { axis }, &parts)
    }
}
