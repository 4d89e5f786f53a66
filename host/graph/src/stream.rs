//! Divides a residual stream in 16-bit floats by a power of two, and joins it to products of
//! integers.
//!
//! Some models have *massive activations* (Sun et al. 2024): one channel of a few tokens is
//! thousands of times as large as the others, beyond the 65,504 of a 16-bit float. Static integers
//! over such a range leave few steps for ordinary values. Floats keep their relative precision, and
//! the norms that read the stream do not depend on its scale. So the stream is kept divided by a
//! power of two, which rounds only values near zero, and only products are in integers.

use std::collections::HashMap;

use shardwright_vocabulary::{ActivationFormat, Encoding, Result, ScaleBits};

use crate::encode::{HIDDEN, range_key};
use crate::{ComponentKind, Encodings, EntryGraph, EntryNode, Op, Role, Tensor, TensorId};

/// Exponent of the smallest unit. Values up to a million are finite, and values from 0.001 on have
/// all bits of a 16-bit float.
const EXPONENT: i8 = 4;
/// Largest calibrated value in units. It is an eighth of the largest 16-bit float, since other text
/// may have larger values.
const LARGEST: f32 = 8192.0;

/// Suffix of a tensor that contains the stream multiplied back. Its range is the range of the
/// tensor without the suffix.
pub(crate) const UNSCALED: &str = ".unscaled";

/// Returns the power of two by which the stream is divided, or `None` for other formats.
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

/// Returns whether every layer adds to the residual stream. In towers a layer may end with a norm,
/// so the set of stream tensors would depend on the cut. No tower is known to have massive
/// activations.
pub(crate) fn is_additive(entry: &EntryGraph) -> bool {
    use ComponentKind::{Decoder, Embed, Head, PerLayerInput, Pooling};
    let adds = |kind: ComponentKind| matches!(kind, Embed | PerLayerInput | Decoder | Head | Pooling);
    entry.segments.0.iter().all(|segment| adds(segment.component))
}

/// Returns whether an operation multiplies rows with a matrix or with each other.
pub(crate) fn is_product(op: &Op) -> bool {
    matches!(
        op,
        Op::Linear
            | Op::DynamicLinear { .. }
            | Op::MatMul { .. }
            | Op::Attention(_)
            | Op::RelativeAttention(_)
            | Op::Convolution { .. }
            | Op::DepthwiseConvolution
    )
}

/// Marks all values of each operation with at least one marked value, until no operation changes.
/// An operation is a list of its values' numbers, without constants.
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

/// Returns, for each tensor, whether it is the residual stream or connected to it by operations
/// other than products.
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

/// Returns, for each tensor, whether it is the residual stream at a port or between two segments.
fn seeds(entry: &EntryGraph) -> Vec<bool> {
    let mut seeds: Vec<bool> = entry.tensors.iter().map(|tensor| tensor.name.starts_with(HIDDEN)).collect();
    for (tensor, role) in entry.inputs.iter().chain(&entry.outputs) {
        seeds[tensor.0 as usize] |= *role == Role::Hidden;
    }
    seeds
}

/// Returns whether the result of an operation scales with the stream that it reads, provided that
/// all its summands do.
fn passes_on(entry: &EntryGraph, node: &EntryNode) -> bool {
    match &node.op {
        Op::Add | Op::Sub | Op::MulScalar { .. } | Op::Convert => true,
        Op::Mul => node.inputs.iter().any(|id| entry.tensor(*id).weight.is_some()),
        op => op.is_movement(),
    }
}

/// Returns, for each tensor, whether it scales with the residual stream.
fn scaling(entry: &EntryGraph) -> Vec<bool> {
    let mut scales = seeds(entry);
    for node in &entry.nodes {
        scales[node.output.0 as usize] |=
            passes_on(entry, node) && node.inputs.iter().any(|input| scales[input.0 as usize]);
    }
    scales
}

/// Divides the residual stream of a graph by `unit`. Summands are divided too, norms that read the
/// stream get a smaller epsilon, and other readers get the stream multiplied back. Ports record the
/// unit ([`Tensor::unit`]).
pub(crate) fn in_units(entry: &EntryGraph, unit: ScaleBits) -> EntryGraph {
    let scales = scaling(entry);
    let mut units = Units { graph: entry.clone(), unit: unit.get(), scaled: HashMap::new() };
    units.graph.nodes.clear();
    for node in &entry.nodes {
        let scales = |tensor: TensorId| scales[tensor.0 as usize];
        units.push(node.clone(), passes_on(entry, node), &scales);
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
    /// Scaled copies by tensor and bits of the factor.
    scaled: HashMap<(TensorId, u32), TensorId>,
}

impl Units {
    fn push(&mut self, mut node: EntryNode, passes_on: bool, scales: &dyn Fn(TensorId) -> bool) {
        let reads = node.inputs.iter().any(|input| scales(*input));
        let is_scaled = scales(node.output);
        match &mut node.op {
            Op::Add | Op::Sub if reads => {
                for input in node.inputs.iter_mut().filter(|input| !scales(**input)) {
                    *input = self.multiplied(*input, self.unit.recip(), node.layer);
                }
            }
            Op::RmsNorm { eps, .. } | Op::LayerNorm { eps } if reads => *eps /= self.unit * self.unit,
            _ if reads && !passes_on => {
                for input in node.inputs.iter_mut().filter(|input| scales(**input)) {
                    *input = self.multiplied(*input, self.unit, node.layer);
                }
            }
            Op::MulScalar { value } if is_scaled && !reads => *value /= self.unit,
            _ => {}
        }
        let scales_itself = reads && passes_on || matches!(node.op, Op::MulScalar { .. });
        if !is_scaled || scales_itself {
            return self.graph.nodes.push(node);
        }
        let (output, layer) = (node.output, node.layer);
        node.output = self.twin(output, UNSCALED);
        let inside = node.output;
        self.graph.nodes.push(node);
        self.scaled.insert((output, self.unit.to_bits()), inside);
        self.multiply(inside, self.unit.recip(), output, layer);
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

    /// Adds a tensor with the shape of `of`. Its name ends with `suffix`, and the rest of the name
    /// is the key to the range of `of`.
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

/// Inserts conversions so that products read and write integers. `around` marks the tensors in
/// floats. `integers` returns the encoding of such a tensor next to a product.
pub(crate) fn join_products(
    graph: &mut EntryGraph,
    around: &[bool],
    integers: &dyn Fn(TensorId) -> Result<Encoding>,
) -> Result<()> {
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
