//! Semantic operations in terms of lower ones, a level at a time.
//!
//! `Rope` and `Attention` stop depending on positions here: their tables become the step inputs `rotary-cos`,
//! `rotary-sin` and `mask`. What is left of them is a `Rotate`, and primitives around a `Softmax` and a `Softcap`, which fall into primitives
//! when they are decomposed in turn; all others do so at once. `StateUpdate` has no decomposition; `legalise` turns it into rows for the
//! runtime instead.
//!
//! A step is named after its operation and its place among the steps of its level, and the last one writes the tensor of what it
//! replaces. So a tensor that a half-way form has keeps its name all the way down, and ranges seen in primitives serve every form.

use crate::infer::infer_shape;
use crate::{
    Attention, DType, EntryGraph, EntryNode, KeySource, Keys, Mask, Op, Role, Rope, Tensor, TensorId,
};

/// The graph with every semantic operation but state updates in primitives, all the way down.
pub fn decompose_all(entry: &EntryGraph) -> EntryGraph {
    let mut graph = decompose_where(entry, |_, _| true);
    // Ends: what an operation falls into is strictly lower.
    while graph.nodes.iter().any(|node| node.op.is_semantic() && node.op != Op::StateUpdate) {
        graph = decompose_where(&graph, |_, _| true);
    }
    graph
}

/// The graph with the chosen semantic operations one level down; `StateUpdate` and primitives stay, chosen or not.
///
/// Inputs that nothing reads any more (positions, as a rule) are dropped. Steps are in f32: a graph is decomposed before it is encoded, and
/// one that was encoded before gets steps of another rounding.
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

/// Copies a graph node by node; new tensors are appended, so existing ids stay valid until [`Rewrite::finish`].
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

    /// Drops inputs and tensors that nothing reads, and renumbers.
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

    /// From now on new nodes replace `node`.
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

    fn shape(&self, tensor: TensorId) -> Vec<u64> {
        self.graph.tensor(tensor).shape.clone()
    }

    /// Adds a node with a fresh output. Operands come from valid nodes, so their shapes fit by construction.
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

    /// The tensor in f32, for a step that joins it to one.
    fn plain(&mut self, tensor: TensorId) -> TensorId {
        match self.graph.tensor(tensor).dtype {
            DType::F32 => tensor,
            _ => self.step(Op::Convert, &[tensor]),
        }
    }

    /// `[state ‖ new rows]`, named after the state and not counted as a step: the steps of an attention have one name each, whoever
    /// writes its states, so what is known of them (ranges) serves every form.
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

    /// Makes the last step write the replaced node's output; a step that moves its operand does so through a conversion where the two are
    /// encoded differently.
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

    fn decompose(&mut self, node: &EntryNode) {
        self.replacing(node);
        let x = node.inputs[0];
        match &node.op {
            Op::Linear => {
                let product = self.step(Op::MatMul { transpose_b: true }, &node.inputs[..2]);
                if let Some(&bias) = node.inputs.get(2) {
                    self.step(Op::Add, &[product, bias]);
                }
            }
            Op::DynamicLinear => {
                let x = self.plain(x);
                let negative = self.step(Op::Neg, &[x]);
                let axis = self.shape(x).len() as u32 - 1;
                let both = self.step(Op::Concat { axis }, &[x, negative]);
                let largest = self.step(Op::ReduceMax, &[both]);
                let largest = self.step(Op::MaxScalar { value: 1e-30 }, &[largest]);
                let scale = self.step(Op::MulScalar { value: 1.0 / 127.0 }, &[largest]);
                let steps = self.step(Op::Div, &[x, scale]);
                let steps = self.step(Op::Round, &[steps]);
                let product = self.step(Op::MatMul { transpose_b: true }, &[steps, node.inputs[1]]);
                let product = self.step(Op::Mul, &[product, scale]);
                if let Some(&bias) = node.inputs.get(2) {
                    self.step(Op::Add, &[product, bias]);
                }
            }
            Op::RmsNorm { width, eps, weight_offset } => {
                self.rms_norm(x, node.inputs.get(1).copied(), u64::from(*width), *eps, *weight_offset);
            }
            Op::Rope(rope) => {
                let [cos, sin] = self.rotary_tables(x, rope);
                self.step(Op::Rotate { head_dim: rope.head_dim }, &[x, cos, sin]);
            }
            Op::Rotate { head_dim } => self.rotate(x, node.inputs[1], node.inputs[2], u64::from(*head_dim)),
            Op::Attention(attention) => {
                let keys = self.shape(node.inputs[1])[0];
                let keys = match attention.keys {
                    KeySource::State => Keys::State { capacity: keys },
                    KeySource::Rows => Keys::Rows,
                };
                self.attention(&node.inputs, attention, keys);
            }
            Op::Gelu => {
                let square = self.step(Op::Mul, &[x, x]);
                let cube = self.step(Op::Mul, &[square, x]);
                let cube = self.step(Op::MulScalar { value: 0.044_715 }, &[cube]);
                let inner = self.step(Op::Add, &[x, cube]);
                let inner =
                    self.step(Op::MulScalar { value: (2.0 / std::f64::consts::PI).sqrt() as f32 }, &[inner]);
                let tanh = self.step(Op::Tanh, &[inner]);
                let one_plus = self.step(Op::AddScalar { value: 1.0 }, &[tanh]);
                let half = self.step(Op::MulScalar { value: 0.5 }, &[x]);
                self.step(Op::Mul, &[half, one_plus]);
            }
            // Not through e^−x, which no 16-bit integer holds beside 1 once x is far below zero.
            Op::Silu => {
                let half = self.step(Op::MulScalar { value: 0.5 }, &[x]);
                let tanh = self.step(Op::Tanh, &[half]);
                let half = self.step(Op::MulScalar { value: 0.5 }, &[tanh]);
                let sigmoid = self.step(Op::AddScalar { value: 0.5 }, &[half]);
                self.step(Op::Mul, &[x, sigmoid]);
            }
            Op::Softcap { cap } => {
                let inner = self.step(Op::MulScalar { value: 1.0 / cap }, &[x]);
                let inner = self.step(Op::Tanh, &[inner]);
                self.step(Op::MulScalar { value: *cap }, &[inner]);
            }
            Op::Softmax => {
                let largest = self.step(Op::ReduceMax, &[x]);
                let below = self.step(Op::Sub, &[x, largest]);
                let exponential = self.step(Op::Exp, &[below]);
                let sum = self.step(Op::ReduceSum, &[exponential]);
                self.step(Op::Div, &[exponential, sum]);
            }
            Op::L2Normalize => {
                let square = self.step(Op::Mul, &[x, x]);
                let sum = self.step(Op::ReduceSum, &[square]);
                let norm = self.step(Op::Sqrt, &[sum]);
                let norm = self.step(Op::MaxScalar { value: 1e-12 }, &[norm]);
                self.step(Op::Div, &[x, norm]);
            }
            _ => {
                self.graph.nodes.push(node.clone());
                return;
            }
        }
        self.deliver(node.output);
    }

    fn rms_norm(&mut self, x: TensorId, weight: Option<TensorId>, width: u64, eps: f32, weight_offset: f32) {
        let whole = self.shape(x);
        let last = whole[whole.len() - 1];
        let grouped = last != width;
        let x = if grouped {
            let mut shape = whole.clone();
            shape.pop();
            shape.extend([last / width, width]);
            self.step(Op::Reshape { shape }, &[x])
        } else {
            x
        };
        let square = self.step(Op::Mul, &[x, x]);
        let mean = self.step(Op::ReduceMean, &[square]);
        let mean = self.step(Op::AddScalar { value: eps }, &[mean]);
        let scale = self.step(Op::Rsqrt, &[mean]);
        let mut y = self.step(Op::Mul, &[x, scale]);
        if let Some(mut weight) = weight {
            if weight_offset != 0.0 {
                weight = self.step(Op::AddScalar { value: weight_offset }, &[weight]);
            }
            y = self.step(Op::Mul, &[y, weight]);
        }
        if grouped {
            self.step(Op::Reshape { shape: whole }, &[y]);
        }
    }

    fn rotary_tables(&mut self, x: TensorId, rope: &Rope) -> [TensorId; 2] {
        let head = rope.head_dim;
        let table = vec![self.shape(x)[0], u64::from(head / 2)];
        let suffix = format!("{head}.{}.{}.{}", rope.theta, rope.rotated_pairs, rope.factor);
        let cos =
            self.input(Role::RotaryCos(*rope), format!("rotary-cos.{suffix}"), table.clone(), DType::F32);
        let sin = self.input(Role::RotarySin(*rope), format!("rotary-sin.{suffix}"), table, DType::F32);
        [cos, sin]
    }

    fn rotate(&mut self, x: TensorId, cos: TensorId, sin: TensorId, head: u64) {
        let whole = self.shape(x);
        let (rows, half) = (whole[0], head / 2);
        let per_head = vec![rows, 1, half];
        let cos = self.step(Op::Reshape { shape: per_head.clone() }, &[cos]);
        let sin = self.step(Op::Reshape { shape: per_head }, &[sin]);
        let heads = self.step(Op::Reshape { shape: vec![rows, whole[1] / head, head] }, &[x]);
        let first = self.step(Op::Slice { axis: 2, start: 0, end: half }, &[heads]);
        let second = self.step(Op::Slice { axis: 2, start: half, end: head }, &[heads]);
        let first_cos = self.step(Op::Mul, &[first, cos]);
        let second_sin = self.step(Op::Mul, &[second, sin]);
        let turned_first = self.step(Op::Sub, &[first_cos, second_sin]);
        let second_cos = self.step(Op::Mul, &[second, cos]);
        let first_sin = self.step(Op::Mul, &[first, sin]);
        let turned_second = self.step(Op::Add, &[second_cos, first_sin]);
        let joined = self.step(Op::Concat { axis: 2 }, &[turned_first, turned_second]);
        self.step(Op::Reshape { shape: whole }, &[joined]);
    }

    /// Attention over keys of any origin, with the mask as a step input. Leaves the result in the last step.
    pub(crate) fn attention(&mut self, inputs: &[TensorId], attention: &Attention, keys: Keys) {
        let [q, k, v] = [inputs[0], inputs[1], inputs[2]];
        let (kv, d) = (u64::from(attention.kv_heads), u64::from(attention.head_dim));
        let group = u64::from(attention.heads) / kv;
        let rows = self.shape(q)[0];
        let slots = self.shape(k)[0];

        let q = self.step(Op::Reshape { shape: vec![rows, kv, group, d] }, &[q]);
        let q = self.step(Op::Transpose { perm: vec![1, 2, 0, 3] }, &[q]);
        let mut per_head = |tensor| {
            let tensor = self.step(Op::Reshape { shape: vec![slots, kv, d] }, &[tensor]);
            let tensor = self.step(Op::Transpose { perm: vec![1, 0, 2] }, &[tensor]);
            self.step(Op::Reshape { shape: vec![kv, 1, slots, d] }, &[tensor])
        };
        let (k, v) = (per_head(k), per_head(v));
        let mut scores = self.step(Op::MatMul { transpose_b: true }, &[q, k]);
        if attention.scale != 1.0 {
            scores = self.step(Op::MulScalar { value: attention.scale }, &[scores]);
        }
        if attention.softcap != 0.0 {
            scores = self.step(Op::Softcap { cap: attention.softcap }, &[scores]);
        }
        let mask = Mask { keys, window: attention.window, causal: attention.causal };
        let origin = match keys {
            Keys::State { .. } => "state",
            Keys::StateAndRows { .. } => "state-and-rows",
            Keys::Rows => "rows",
        };
        let direction = if attention.causal { "causal" } else { "both-ways" };
        let name = format!("mask.{origin}.{slots}.{}.{direction}", attention.window);
        let mask = self.input(Role::Mask(mask), name, vec![rows, slots], DType::F32);
        let scores = self.step(Op::Add, &[scores, mask]);
        let weights = self.step(Op::Softmax, &[scores]);
        let mixed = self.step(Op::MatMul { transpose_b: false }, &[weights, v]);
        let mixed = self.step(Op::Transpose { perm: vec![2, 0, 1, 3] }, &[mixed]);
        self.step(Op::Reshape { shape: vec![rows, kv * group * d] }, &[mixed]);
    }
}
