use std::collections::HashSet;

use shardwright_shim_abi::raw::SW_ROLE_LOGITS;
use shardwright_shim_abi::{Error, WeightView};

use super::fuse::{Fusion, Taken, pairs};
use super::graph::{Graph, Source};
use super::recognise::{Operation, Refusal, Rounding, recognise};
use super::rows::{Rows, analyse};
use super::storage::{Storage, TableKey};
use super::weights::Weights;
use crate::error::unsupported;
use crate::kernels::elementwise::{Broadcast, Unary};
use crate::kernels::norm::{LayerNorm, RmsNorm};
use crate::kernels::rotary::inverse_frequencies;
use crate::kernels::shape::Strided;
use crate::program::{AttentionKeys, DynamicMap, Entry, Extent, MAX_MAPS, Operand, Place, Step};

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
    let rows = analyse(graph, &operations);
    let fused = pairs(graph, &operations, &rows, |weight| weights.splits(weight))?;
    let storage = Storage::choose(graph, &operations, &rows, &fused)?;
    let mut emit =
        Emit { graph, rows: &rows, storage: &storage, weights, steps: Vec::new(), cleaned: HashSet::new() };
    for &(port, copy) in &storage.copies {
        let whole = storage.whole(copy);
        let source = Operand { place: Place::Bound(port as u32), ..whole };
        let count = Extent::PerRow(whole.elements / graph.rows() as u64);
        emit.steps.push(Step::Unary {
            kind: Unary::Copy,
            x: Operand { offset: 0, ..source },
            count,
            out: whole,
        });
        emit.steps.push(Step::ZeroTail { target: whole, valid: count });
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
                emit.table(key)?;
            }
        }
        emit.decode(index, &crossed_roots);
        if fused.taken[index].is_some() {
            continue;
        }
        match fused.takes[index] {
            Some(taken) => emit.pair(index, taken, &operations)?,
            None => emit.node(index, operation)?,
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
            emit.steps.push(Step::ZeroTail { target, valid });
        }
    }
    emit.decode(operations.len(), &crossed_roots);
    for &(tensor, port) in &storage.finals {
        if let Some(x) = storage.operand(graph, tensor) {
            let target = Operand { place: Place::Bound(port as u32), offset: 0, elements: x.elements };
            emit.steps.push(if storage.ports[port].encoding.is_direct() {
                Step::Unary { kind: Unary::Copy, x, count: Extent::Fixed(x.elements), out: target }
            } else {
                Step::Encode { x, count: emit.extent(tensor, x.elements as usize), target }
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
        let operation = recognise(graph, index).map_err(|refusal| match refusal {
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

struct Emit<'e, 'a> {
    graph: &'e Graph<'a>,
    rows: &'e Rows,
    storage: &'e Storage,
    weights: &'e mut Weights<'a>,
    steps: Vec<Step>,
    cleaned: HashSet<usize>,
}

/// Operations on the sums of a linear map, and the place of the results.
struct Finished {
    bias: Option<Operand>,
    bounds: Option<[f32; 2]>,
    out: Operand,
}

impl<'a> Emit<'_, 'a> {
    /// Returns the operand with a tensor's values. A weight is widened to f32.
    fn operand(&mut self, tensor: u32) -> Result<Operand, Error> {
        if let Some(operand) = self.storage.operand(self.graph, tensor) {
            return Ok(operand);
        }
        match self.graph.tensors[tensor as usize].source {
            Source::Constant(weight) => self.weights.wide(weight),
            _ => {
                Err(self
                    .missing(format!("tensor `{}` has no place", self.graph.tensors[tensor as usize].name)))
            }
        }
    }

    fn missing(&self, reason: String) -> Error {
        Error::invalid_graph(self.graph.entry.name(), reason)
    }

    fn input(&mut self, node: usize, place: usize) -> Result<Operand, Error> {
        match self.graph.nodes[node].optional_input(place) {
            Some(tensor) => self.operand(tensor),
            None => {
                Err(self.missing(format!("node `{}` has no input {place}", self.graph.nodes[node].name())))
            }
        }
    }

    fn optional(&mut self, node: usize, place: usize) -> Result<Option<Operand>, Error> {
        self.graph.nodes[node].optional_input(place).map(|tensor| self.operand(tensor)).transpose()
    }

    /// Returns `units`. If the tensor follows rows, limits them to the valid rows.
    fn extent(&self, tensor: u32, units: usize) -> Extent {
        match self.rows.follows[tensor as usize] {
            true => self.following(tensor, units),
            false => Extent::Fixed(units as u64),
        }
    }

    /// Returns as many of `units` as the valid rows of a tensor need.
    fn following(&self, tensor: u32, units: usize) -> Extent {
        let (rows, shape) = (self.graph.rows(), &self.graph.tensors[tensor as usize].shape);
        let first = shape.first().copied().unwrap_or(1);
        match first.is_multiple_of(rows) {
            true => Extent::PerRow((units / rows) as u64),
            false => Extent::PerRows { rows: (rows / first) as u64, count: (units / first) as u64 },
        }
    }

    /// Decodes the encoded tensors whose values this node reads first.
    fn decode(&mut self, node: usize, crossed_roots: &HashSet<usize>) {
        for &(reader, tensor, root) in &self.storage.decodes {
            let Some(source) = self.storage.stored(self.graph, tensor).filter(|_| reader == node) else {
                continue;
            };
            let out = self.storage.whole(root);
            let count = self.extent(tensor, out.elements as usize);
            self.steps.push(Step::Decode { source, count, out });
            if !matches!(count, Extent::Fixed(_)) && crossed_roots.contains(&root) {
                self.cleaned.insert(root);
                self.steps.push(Step::ZeroTail { target: out, valid: count });
            }
        }
    }

    /// Rounds a computed tensor to the values that its encoding can represent.
    fn nearest(&mut self, tensor: u32) {
        let encoding = self.graph.tensors[tensor as usize].encoding.filter(|encoding| !encoding.is_direct());
        if let (Some(encoding), Some(values)) = (encoding, self.storage.operand(self.graph, tensor)) {
            let count = self.extent(tensor, values.elements as usize);
            self.steps.push(Step::Nearest { encoding, count, values });
        }
    }

    /// Returns an operand that its step reads in the stored encoding.
    fn stored(&mut self, node: usize, place: usize) -> Result<Operand, Error> {
        let tensor = self.graph.nodes[node].optional_input(place);
        match tensor.and_then(|tensor| self.storage.stored(self.graph, tensor)) {
            Some(operand) => Ok(operand),
            None => self.input(node, place),
        }
    }

    fn table(&mut self, key: TableKey) -> Result<(), Error> {
        let TableKey { head_dim, theta, pairs, factor, .. } = key;
        let values = inverse_frequencies(head_dim, f32::from_bits(theta), pairs, f32::from_bits(factor));
        let inverse = self.weights.literal(values)?;
        let positions = self.operand(key.positions)?;
        let [cos, sin] = self.storage.tables[&key].map(|root| self.storage.whole(root));
        let rows = match key.follows {
            true => self.following(key.positions, positions.elements as usize),
            false => Extent::Fixed(positions.elements),
        };
        self.steps.push(Step::RotaryTable { positions, inverse, rows, cos, sin });
        Ok(())
    }

    /// Emits two nodes as one step, at the position of the second node.
    fn pair(&mut self, index: usize, taken: Taken, operations: &[Option<Operation>]) -> Result<(), Error> {
        let node = self.graph.nodes[index];
        let Some(&output) = node.outputs().first() else {
            return Err(self.missing(format!("node `{}` has no result", node.name())));
        };
        let (x, out) = (self.input(taken.node, 0)?, self.operand(output)?);
        let other = taken.other.map(|other| self.operand(other)).transpose()?;
        let elements = self.graph.tensors[output as usize].elements();
        let step = match (taken.what, &operations[taken.node], other) {
            (Fusion::Residual, &Some(Operation::RmsNorm { width, eps, offset }), Some(residual)) => {
                Step::RmsNorm {
                    norm: RmsNorm { width, eps, offset },
                    x,
                    weight: self.optional(taken.node, 1)?,
                    residual: Some(residual),
                    groups: self.extent(output, elements / width),
                    out,
                }
            }
            (Fusion::Gated(kind), _, Some(up)) => {
                Step::Gated { kind, gate: x, up, count: self.extent(output, elements), out }
            }
            (Fusion::Clamped, &Some(Operation::Linear { rounding }), _) => {
                let last = self.graph.tensors[output as usize].shape.last().copied().unwrap_or(1);
                let rows = self.extent(output, elements / last);
                let (weight, bias) = (self.weight(taken.node)?, self.optional(taken.node, 2)?);
                let bounds = Some(self.bounds(index)?);
                return self.linear(rounding, weight, x, rows, Finished { bias, bounds, out });
            }
            (Fusion::Capped(cap), ..) if self.is_logits(output, out) => {
                let last = self.graph.tensors[output as usize].shape.last().copied().unwrap_or(1);
                let rows = self.extent(output, elements / last.max(1));
                match self.weights.split(self.weight(taken.node)?)? {
                    Some(weights) => Step::SplitLinear { x, rows, weights, cap: Some(cap), out },
                    None => return Err(self.missing(format!("node `{}` caps no head in parts", node.name()))),
                }
            }
            _ => {
                return Err(
                    self.missing(format!("node `{}` does not form a pair with its input", node.name()))
                );
            }
        };
        self.steps.push(step);
        Ok(())
    }

    /// Returns the weights of a linear map.
    fn weight(&self, node: usize) -> Result<WeightView<'a>, Error> {
        match self.graph.input(node, 1).map(|tensor| tensor.source) {
            Some(Source::Constant(weight)) => Ok(weight),
            _ => Err(self.missing(format!("node `{}` has no weights", self.graph.nodes[node].name()))),
        }
    }

    /// Checks whether a tensor is only used as logits: not encoded, and not read by any other node.
    /// A run may then omit results.
    fn is_logits(&self, tensor: u32, out: Operand) -> bool {
        let leaves = matches!(out.place, Place::Bound(port) if self.storage.ports[port as usize].role == SW_ROLE_LOGITS);
        let read = self.graph.nodes.iter().any(|node| node.inputs().flatten().any(|input| input == tensor));
        leaves && !read && self.graph.entry.outputs().filter(|port| port.tensor() == tensor).count() == 1
    }

    /// Emits a linear map. A map of quantised rows is merged with the previous step if that maps
    /// the same rows.
    fn linear(
        &mut self,
        rounding: Rounding,
        weight: WeightView<'a>,
        x: Operand,
        rows: Extent,
        Finished { bias, bounds, out }: Finished,
    ) -> Result<(), Error> {
        let block = match rounding {
            Rounding::None => {
                let weights = self.weights.panels(weight, false)?;
                self.steps.push(Step::Linear { x, rows, weights, bias, bounds, out });
                return Ok(());
            }
            Rounding::Rows => None,
            Rounding::Blocks(size) => Some(size),
        };
        let map = DynamicMap { weights: self.weights.tiles(weight)?, bias, bounds, out };
        if let Some(Step::DynamicLinear { x: before, rows: of, block: cut, maps }) = self.steps.last_mut()
            && (*before, *of, *cut) == (x, rows, block)
            && maps.len() < MAX_MAPS
            && maps[0].weights.rows(block) == map.weights.rows(block)
        {
            maps.push(map);
        } else {
            self.steps.push(Step::DynamicLinear { x, rows, block, maps: vec![map] });
        }
        Ok(())
    }

    fn node(&mut self, index: usize, operation: &Operation) -> Result<(), Error> {
        let graph = self.graph;
        let node = graph.nodes[index];
        let (Some(x_tensor), Some(&out_tensor)) = (node.optional_input(0), node.outputs().first()) else {
            return Err(self.missing(format!("node `{}` has no operand or result", node.name())));
        };
        let x_shape = &graph.tensors[x_tensor as usize].shape;
        let out_shape = &graph.tensors[out_tensor as usize].shape;
        let last = x_shape.last().copied().unwrap_or(1);
        let groups = x_shape.iter().product::<usize>() / last.max(1);
        let result = match operation {
            Operation::StateUpdate => self.storage.stored(graph, out_tensor),
            _ => None,
        };
        let result = result.or_else(|| self.storage.operand(graph, out_tensor));
        let out = result
            .ok_or_else(|| self.missing(format!("node `{}` has no place for its result", node.name())))?;
        let step = match operation {
            &Operation::Linear { rounding } => {
                let weight = self.weight(index)?;
                let (x, bias) = (self.input(index, 0)?, self.optional(index, 2)?);
                let rows = self.extent(out_tensor, groups);
                if rounding == Rounding::Rows
                    && bias.is_none()
                    && self.is_logits(out_tensor, out)
                    && let Some(weights) = self.weights.split(weight)?
                {
                    self.steps.push(Step::SplitLinear { x, rows, weights, cap: None, out });
                    return Ok(());
                }
                return self.linear(rounding, weight, x, rows, Finished { bias, bounds: None, out });
            }
            Operation::MatMul { transpose_b } => self.mat_mul(index, *transpose_b, out)?,
            &Operation::RmsNorm { width, eps, offset } => Step::RmsNorm {
                norm: RmsNorm { width, eps, offset },
                x: self.input(index, 0)?,
                weight: self.optional(index, 1)?,
                residual: None,
                groups: self.extent(out_tensor, groups * (last / width)),
                out,
            },
            Operation::L2Normalize => Step::L2Normalize {
                x: self.input(index, 0)?,
                width: last as u64,
                groups: self.extent(out_tensor, groups),
                out,
            },
            Operation::Softmax => Step::Softmax {
                x: self.input(index, 0)?,
                width: last as u64,
                groups: self.extent(out_tensor, groups),
                out,
            },
            &Operation::Reduce(kind) => Step::Reduce {
                kind,
                x: self.input(index, 0)?,
                width: last as u64,
                groups: self.extent(out_tensor, groups),
                out,
            },
            &Operation::Rope { head_dim, pairs, .. } => {
                let [[cos, sin]] = self.tables(index, operation)?;
                Step::Rope {
                    x: self.input(index, 0)?,
                    cos,
                    sin,
                    sizes: [head_dim as u64, (last / head_dim) as u64, pairs as u64],
                    rows: self.extent(out_tensor, x_shape[0]),
                    out,
                }
            }
            &Operation::Rotate { head_dim } => Step::Rope {
                x: self.input(index, 0)?,
                cos: self.input(index, 1)?,
                sin: self.input(index, 2)?,
                sizes: [head_dim as u64, (last / head_dim) as u64, head_dim as u64 / 2],
                rows: self.extent(out_tensor, x_shape[0]),
                out,
            },
            &Operation::LayerNorm { eps } => Step::LayerNorm {
                norm: LayerNorm { width: last, eps },
                x: self.input(index, 0)?,
                weight: self.optional(index, 1)?,
                bias: self.optional(index, 2)?,
                groups: self.extent(out_tensor, groups),
                out,
            },
            &Operation::AxialRope { head_dim, .. } => {
                let [first, second] = self.tables(index, operation)?;
                Step::AxialRope {
                    x: self.input(index, 0)?,
                    cos: [first[0], second[0]],
                    sin: [first[1], second[1]],
                    sizes: [head_dim as u64, (last / head_dim) as u64],
                    rows: self.extent(out_tensor, x_shape[0]),
                    out,
                }
            }
            &Operation::RelativeAttention(relative) => Step::RelativeAttention {
                relative,
                q: self.input(index, 0)?,
                k: self.input(index, 1)?,
                v: self.input(index, 2)?,
                by_distance: self.input(index, 3)?,
                rows: self.extent(out_tensor, x_shape[0]),
                out,
            },
            &Operation::Convolution(plane) => Step::Convolution {
                plane,
                x: self.input(index, 0)?,
                weights: self.weights.panels(self.weight(index)?, false)?,
                height: match self.rows.follows[out_tensor as usize] {
                    true => self.extent(x_tensor, x_shape[0]),
                    false => Extent::Fixed(x_shape[0] as u64),
                },
                rows: self.extent(out_tensor, out_shape[0]),
                out,
            },
            &Operation::Depthwise { kernel } => Step::Depthwise {
                x: self.input(index, 0)?,
                weight: self.input(index, 1)?,
                sizes: [last as u64, kernel as u64],
                rows: self.extent(out_tensor, x_shape[0]),
                out,
            },
            Operation::Clamp => {
                let [low, high] = self.bounds(index)?;
                Step::Unary {
                    kind: Unary::Clamp(low, high),
                    x: self.input(index, 0)?,
                    count: self.extent(out_tensor, groups * last),
                    out,
                }
            }
            Operation::Glu => Step::Glu {
                x: self.input(index, 0)?,
                width: last as u64 / 2,
                groups: self.extent(out_tensor, groups),
                out,
            },
            &Operation::MeanRows { rows } => Step::MeanRows {
                x: self.input(index, 0)?,
                sizes: [last as u64, rows as u64],
                valid: match self.rows.follows[out_tensor as usize] {
                    true => self.extent(x_tensor, x_shape[0]),
                    false => Extent::Fixed(x_shape[0] as u64),
                },
                groups: self.extent(out_tensor, out_shape[0]),
                out,
            },
            &Operation::Attention { heads, window, causal, state } => Step::Attention {
                heads,
                window,
                keys: if state {
                    let capacity = graph.input(index, 1).map_or(0, |keys| keys.shape[0]) as u64;
                    AttentionKeys::State { capacity }
                } else {
                    AttentionKeys::Rows { causal }
                },
                q: self.input(index, 0)?,
                k: if state { self.stored(index, 1)? } else { self.input(index, 1)? },
                v: if state { self.stored(index, 2)? } else { self.input(index, 2)? },
                positions: self.input(index, 3)?,
                rows: self.extent(out_tensor, x_shape[0]),
                out,
            },
            Operation::StateUpdate => Step::StateUpdate {
                state: out,
                width: last as u64,
                new: self.input(index, 1)?,
                slots: self.input(index, 2)?,
                // Rows beyond the valid ones are never written, regardless of their slots.
                rows: Extent::PerRow(1),
            },
            &Operation::Unary(kind) => Step::Unary {
                kind,
                x: self.input(index, 0)?,
                count: self.extent(out_tensor, groups * last),
                out,
            },
            &Operation::Binary(kind) => {
                let b_shape = graph.input(index, 1).map_or(&[][..], |tensor| &tensor.shape);
                let Some(broadcast) = Broadcast::of(x_shape, b_shape) else {
                    return Err(self.missing(format!("node `{}` does not broadcast", node.name())));
                };
                let flat = broadcast.merged(0);
                let whole = !self.rows.follows[out_tensor as usize] || flat.shape.len() == 1;
                let broadcast = if whole { flat } else { broadcast.merged(1) };
                let outer = self.extent(out_tensor, broadcast.shape[0]);
                Step::Binary {
                    kind,
                    broadcast,
                    outer,
                    a: self.input(index, 0)?,
                    b: self.input(index, 1)?,
                    out,
                }
            }
            Operation::Transpose(perm) => {
                let from = dense(x_shape);
                Step::Copy {
                    copy: Strided {
                        shape: out_shape.clone(),
                        source: perm.iter().map(|axis| from[*axis]).collect(),
                        target: dense(out_shape),
                    },
                    source: self.input(index, 0)?,
                    target: out,
                }
            }
            // An alias of a bound or computed tensor. Only a weight must be copied out.
            Operation::Reshape => {
                if self.storage.operand(graph, x_tensor).is_some() {
                    return Ok(());
                }
                let x = self.input(index, 0)?;
                Step::Unary { kind: Unary::Copy, x, count: Extent::Fixed(x.elements), out }
            }
            &Operation::Slice { axis, start } => {
                if axis == 0 && self.storage.operand(graph, x_tensor).is_some() {
                    return Ok(());
                }
                let strides = dense(x_shape);
                let mut source = self.input(index, 0)?;
                let skip = (start * strides[axis]) as u64;
                source.offset += skip;
                source.elements -= skip;
                Step::Copy {
                    copy: Strided { shape: out_shape.clone(), source: strides, target: dense(out_shape) },
                    source,
                    target: out,
                }
            }
            &Operation::Concat { axis } => {
                let strides = dense(out_shape);
                let mut at = 0;
                for place in 0..node.inputs().len() {
                    let Some(part) = graph.input(index, place) else { continue };
                    let skip = (at * strides[axis]) as u64;
                    self.steps_push_part(index, place, &part.shape, &strides, skip, out)?;
                    at += part.shape[axis];
                }
                return Ok(());
            }
        };
        self.steps.push(step);
        Ok(())
    }

    /// Returns the cosines and sines of a rotary node, by operand with positions.
    fn tables<const COUNT: usize>(
        &self,
        index: usize,
        operation: &Operation,
    ) -> Result<[[Operand; 2]; COUNT], Error> {
        let keys = TableKey::of(self.graph, index, operation, self.rows);
        let roots = keys.iter().filter_map(|key| self.storage.tables.get(key));
        let tables = roots.map(|roots| roots.map(|root| self.storage.whole(root))).collect::<Vec<_>>();
        let name = self.graph.nodes[index].name();
        tables.try_into().map_err(|_| self.missing(format!("node `{name}` has no rotary table")))
    }

    /// Returns the bounds of a clamp.
    fn bounds(&mut self, node: usize) -> Result<[f32; 2], Error> {
        let bounds = [1, 2].map(|place| self.graph.input(node, place).map(|tensor| tensor.source));
        let [Some(Source::Constant(low)), Some(Source::Constant(high))] = bounds else {
            return Err(self.missing(format!("node `{}` has no bounds", self.graph.nodes[node].name())));
        };
        Ok([self.weights.scalar(low)?, self.weights.scalar(high)?])
    }

    fn steps_push_part(
        &mut self,
        index: usize,
        place: usize,
        shape: &[usize],
        strides: &[usize],
        skip: u64,
        out: Operand,
    ) -> Result<(), Error> {
        let source = self.input(index, place)?;
        let target = Operand { offset: out.offset + skip, elements: out.elements - skip, ..out };
        let copy = Strided { shape: shape.to_vec(), source: dense(shape), target: strides.to_vec() };
        self.steps.push(Step::Copy { copy, source, target });
        Ok(())
    }

    fn mat_mul(&mut self, index: usize, transpose_b: bool, out: Operand) -> Result<Step, Error> {
        let graph = self.graph;
        let (Some(a), Some(b)) = (graph.input(index, 0), graph.input(index, 1)) else {
            return Err(self.missing(format!("node `{}` has no operands", graph.nodes[index].name())));
        };
        let output = graph.nodes[index].outputs()[0];
        let (rank_a, rank_b) = (a.shape.len(), b.shape.len());
        let (m, k) = (a.shape[rank_a - 2], a.shape[rank_a - 1]);
        let n = if transpose_b { b.shape[rank_b - 2] } else { b.shape[rank_b - 1] };
        // A constant matrix is packed once, during compilation.
        if let (Source::Constant(weight), 2) = (b.source, rank_b) {
            let rows = a.elements() / k.max(1);
            return Ok(Step::Linear {
                x: self.input(index, 0)?,
                rows: self.extent(output, rows),
                weights: self.weights.panels(weight, !transpose_b)?,
                bias: None,
                bounds: None,
                out,
            });
        }
        let Some(batch) = Broadcast::of(&a.shape[..rank_a - 2], &b.shape[..rank_b - 2]) else {
            return Err(self.missing(format!("node `{}` does not broadcast", graph.nodes[index].name())));
        };
        Ok(Step::MatMul {
            a: self.input(index, 0)?,
            b: self.input(index, 1)?,
            out,
            sizes: [m as u64, k as u64, n as u64],
            transpose_b,
            batch,
        })
    }
}

/// Returns the strides of a dense tensor.
fn dense(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1];
    }
    strides
}
