//! The residual stream in 16-bit floats: divided by a power of two, and beside integers.
//!
//! Some models have *massive activations* (Sun et al. 2024): one channel of a few tokens is
//! thousands of times as large as the others, beyond the 65,504 of a 16-bit float. Static integers
//! over such a range leave hardly a step for ordinary values. Floats do not mind, and the norms
//! that read the stream do not depend on its scale. So the stream is kept divided by a power of
//! two, which rounds nothing but values near zero, and products alone are in integers.

use std::collections::HashMap;

use shardwright_vocabulary::{ActivationFormat, Encoding, ScaleBits};

use crate::encode::{HIDDEN, range_key};
use crate::{ComponentKind, EncodeError, Encodings, EntryGraph, EntryNode, Op, Role, Tensor, TensorId};

/// Exponent of the least unit: values up to a million are finite, and those from 0.001 on have all
/// bits of a 16-bit float.
const EXPONENT: i8 = 4;
/// Largest calibrated value in units: an eighth of the largest 16-bit float, since other text may
/// have larger ones.
const LARGEST: f32 = 8192.0;

/// End of the name of what the stream stands for; its range is that of the name before.
pub(crate) const UNSCALED: &str = ".unscaled";

/// What the stream is divided by under these encodings; `None` where it is not.
pub(crate) fn unit(encodings: &Encodings<'_>) -> Option<ScaleBits> {
    let activations = encodings.activations;
    if activations != ActivationFormat::F16 && !activations.has_float_stream() {
        return None;
    }
    let streams = encodings.ranges.iter().filter(|(key, _)| key.starts_with(HIDDEN));
    let largest = streams.map(|(_, range)| range.low.abs().max(range.high.abs())).fold(0.0, f32::max);
    let exponent = (largest / LARGEST).log2().ceil();
    Some(ScaleBits::power_of_two(EXPONENT.max(exponent as i8)))
}

/// Whether every layer adds to the residual stream. In towers a layer may end with a norm, and then
/// a value of the stream depends on where the graph was cut; none of theirs is known to be massive.
pub(crate) fn is_additive(entry: &EntryGraph) -> bool {
    use ComponentKind::{Decoder, Embed, Head, PerLayerInput, Pooling};
    let adds = |kind: ComponentKind| matches!(kind, Embed | PerLayerInput | Decoder | Head | Pooling);
    entry.segments.0.iter().all(|segment| adds(segment.component))
}

/// Whether rows are multiplied with a matrix or with each other.
pub(crate) fn is_product(op: &Op) -> bool {
    matches!(
        op,
        Op::Linear
            | Op::DynamicLinear
            | Op::MatMul { .. }
            | Op::Attention(_)
            | Op::RelativeAttention(_)
            | Op::Convolution { .. }
            | Op::DepthwiseConvolution
    )
}

/// Spreads `marked` over operations other than products: from any of their values to all. Each
/// operation is its values, constants left out.
pub(crate) fn spread(marked: &mut [bool], operations: &[Vec<usize>]) {
    loop {
        let mut grown = false;
        for values in operations {
            if values.iter().any(|&value| marked[value]) {
                for &value in values {
                    grown |= !std::mem::replace(&mut marked[value], true);
                }
            }
        }
        if !grown {
            return;
        }
    }
}

/// Which tensors are the residual stream or computed with it, up to the next product, by number.
pub(crate) fn around(entry: &EntryGraph) -> Vec<bool> {
    let mut marked = seeds(entry);
    let is_value = |id: &TensorId| {
        let tensor = entry.tensor(*id);
        tensor.weight.is_none() && !tensor.is_index()
    };
    let values = |node: &EntryNode| {
        let all = node.inputs.iter().chain([&node.output]);
        all.filter(|id| is_value(id)).map(|id| id.0 as usize).collect()
    };
    let operations: Vec<Vec<usize>> =
        entry.nodes.iter().filter(|node| !is_product(&node.op)).map(values).collect();
    spread(&mut marked, &operations);
    marked
}

/// The residual stream where it enters and leaves, and between two segments.
fn seeds(entry: &EntryGraph) -> Vec<bool> {
    let mut seeds: Vec<bool> = entry.tensors.iter().map(|tensor| tensor.name.starts_with(HIDDEN)).collect();
    for (tensor, role) in entry.inputs.iter().chain(&entry.outputs) {
        seeds[tensor.0 as usize] |= *role == Role::Hidden;
    }
    seeds
}

/// The tensors that scale with the residual stream.
fn scaling(entry: &EntryGraph) -> Vec<bool> {
    let mut scales = seeds(entry);
    for node in &entry.nodes {
        let is_constant = |id: &TensorId| entry.tensor(*id).weight.is_some();
        let passes_on = match &node.op {
            Op::Add | Op::Sub | Op::MulScalar { .. } | Op::Convert => true,
            Op::Mul => node.inputs.iter().any(is_constant),
            op => op.is_movement(),
        };
        scales[node.output.0 as usize] |=
            passes_on && node.inputs.iter().any(|input| scales[input.0 as usize]);
    }
    scales
}

/// The graph with its residual stream divided by `unit`: what is added to it is, the norms that
/// read it have another epsilon, and what depends on its scale reads it multiplied again. Ports say
/// so ([`Tensor::unit`]).
pub(crate) fn in_units(entry: &EntryGraph, unit: ScaleBits) -> EntryGraph {
    let scales = scaling(entry);
    let mut units = Units { graph: entry.clone(), unit: unit.get(), scaled: HashMap::new() };
    units.graph.nodes.clear();
    for node in &entry.nodes {
        let scales = |tensor: TensorId| scales[tensor.0 as usize];
        units.push(node.clone(), &scales);
    }
    let mut graph = units.graph;
    for (tensor, role) in graph.inputs.iter().chain(&graph.outputs) {
        let is_own = scales.get(tensor.0 as usize).is_some_and(|scales| *scales);
        if is_own && !matches!(role, Role::State { .. } | Role::StateRows { .. }) {
            graph.tensors[tensor.0 as usize].unit = Some(unit);
        }
    }
    graph
}

struct Units {
    graph: EntryGraph,
    unit: f32,
    /// By tensor and factor, the product.
    scaled: HashMap<(TensorId, u32), TensorId>,
}

impl Units {
    fn push(&mut self, mut node: EntryNode, scales: &dyn Fn(TensorId) -> bool) {
        let reads = node.inputs.iter().any(|input| scales(*input));
        match (scales(node.output), reads, &mut node.op) {
            (true, true, Op::Add | Op::Sub) => {
                for input in node.inputs.iter_mut().filter(|input| !scales(**input)) {
                    *input = self.multiplied(*input, self.unit.recip(), node.layer);
                }
            }
            (true, false, Op::MulScalar { value }) => *value /= self.unit,
            (true, false, _) => {
                let output = node.output;
                node.output = self.twin(output, UNSCALED);
                let (inside, layer) = (node.output, node.layer);
                self.graph.nodes.push(node);
                return self.multiply(inside, self.unit.recip(), output, layer);
            }
            (false, true, Op::RmsNorm { eps, .. } | Op::LayerNorm { eps }) => *eps /= self.unit * self.unit,
            (false, true, _) => {
                for input in node.inputs.iter_mut().filter(|input| scales(**input)) {
                    *input = self.multiplied(*input, self.unit, node.layer);
                }
            }
            _ => {}
        }
        self.graph.nodes.push(node);
    }

    fn multiplied(&mut self, tensor: TensorId, factor: f32, layer: Option<u32>) -> TensorId {
        if let Some(&known) = self.scaled.get(&(tensor, factor.to_bits())) {
            return known;
        }
        let output = self.twin(tensor, if factor < 1.0 { ".scaled" } else { UNSCALED });
        self.multiply(tensor, factor, output, layer);
        self.scaled.insert((tensor, factor.to_bits()), output);
        output
    }

    fn multiply(&mut self, from: TensorId, value: f32, output: TensorId, layer: Option<u32>) {
        let name = format!("{}.units", self.graph.tensor(output).name);
        self.graph.nodes.push(EntryNode {
            name,
            op: Op::MulScalar { value },
            inputs: vec![from],
            output,
            layer,
        });
    }

    /// A tensor of the same shape, whose name says what it is of, for its range.
    fn twin(&mut self, of: TensorId, suffix: &str) -> TensorId {
        let tensor = self.graph.tensor(of);
        let mut ports = self.graph.inputs.iter().chain(&self.graph.outputs);
        let name = match ports.any(|(port, role)| (*port, role) == (of, &Role::Hidden)) {
            true => range_key(&self.graph, of),
            false => tensor.name.clone(),
        };
        let twin = Tensor::plain(name + suffix, tensor.shape.clone(), tensor.dtype);
        push_tensor(&mut self.graph, twin)
    }
}

/// Makes products read and write integers where the other side of a tensor is in floats. `around`
/// are the tensors in floats; `integers` says how a product has such a tensor.
pub(crate) fn join_products(
    graph: &mut EntryGraph,
    around: &[bool],
    integers: &dyn Fn(TensorId) -> Result<Encoding, EncodeError>,
) -> Result<(), EncodeError> {
    let is_float = |id: TensorId| around.get(id.0 as usize).is_some_and(|around| *around);
    let mut read: HashMap<TensorId, TensorId> = HashMap::new();
    for mut node in std::mem::take(&mut graph.nodes) {
        if !is_product(&node.op) {
            graph.nodes.push(node);
            continue;
        }
        for input in node.inputs.iter_mut().filter(|input| is_float(**input)) {
            let inside = match read.get(input) {
                Some(known) => *known,
                None => {
                    let inside = integer_twin(graph, *input, integers(*input)?);
                    convert(graph, *input, inside, node.layer);
                    read.insert(*input, inside);
                    inside
                }
            };
            *input = inside;
        }
        let (output, layer) = (node.output, node.layer);
        if is_float(output) {
            node.output = integer_twin(graph, output, integers(output)?);
            let inside = node.output;
            graph.nodes.push(node);
            convert(graph, inside, output, layer);
        } else {
            graph.nodes.push(node);
        }
    }
    Ok(())
}

fn convert(graph: &mut EntryGraph, from: TensorId, to: TensorId, layer: Option<u32>) {
    let name = format!("{}.conversion", graph.tensor(from).name);
    graph.nodes.push(EntryNode { name, op: Op::Convert, inputs: vec![from], output: to, layer });
}

fn integer_twin(graph: &mut EntryGraph, of: TensorId, encoding: Encoding) -> TensorId {
    let mut twin = graph.tensor(of).clone();
    twin.name.push_str(".integers");
    (twin.dtype, twin.affine, twin.unit) = (encoding.element, encoding.affine(), None);
    push_tensor(graph, twin)
}

fn push_tensor(graph: &mut EntryGraph, tensor: Tensor) -> TensorId {
    graph.tensors.push(tensor);
    TensorId(graph.tensors.len() as u32 - 1)
}
