//! Assigns an encoding to every tensor of an entry graph.
//!
//! The graph built by a model family is in f32. The plan chooses the formats of its activations and
//! states. Calibrated ranges determine the value of a stored integer. This pass combines the two.
//! It changes types but not operations, except that it inserts conversions where a port is encoded
//! differently from the shard's inside.

use std::collections::{BTreeMap, HashMap};

use half::f16;
use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{
    ActivationFormat, AttentionFormat, DType, Encoding, Error, FormatTuple, Result, ScaleBits, StateFormat,
};

use crate::{ComponentKind, EntryGraph, EntryNode, INVISIBLE, Op, Role, Segment, Tensor, TensorId, stream};

/// Distance of an invisible score below the lowest visible one. exp(−24) is 4e-11, far below the
/// step of a 16-bit probability.
const INVISIBLE_DISTANCE: f32 = 24.0;

/// The observed range of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// Smallest value, except masked ones.
    pub low: f32,
    /// Largest value.
    pub high: f32,
    /// Whether masked values (see [`INVISIBLE`]) were observed too. Then the encoding leaves room
    /// for them below `low`, as it always does if a mask is added.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub masked: bool,
}

impl Range {
    /// Returns whether a value is masked, and so excluded from ranges.
    pub fn is_masked(value: f32) -> bool {
        value <= INVISIBLE / 2.0
    }

    /// Returns the range that covers both.
    #[must_use]
    pub fn union(self, other: Range) -> Range {
        Range {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            masked: self.masked || other.masked,
        }
    }

    /// Returns both ends, with room for masked values if some were observed.
    pub fn ends(self) -> (f32, f32) {
        (if self.masked { self.low - INVISIBLE_DISTANCE } else { self.low }, self.high)
    }
}

/// Ranges by [`range_key`].
pub type Ranges = BTreeMap<String, Range>;

/// Returns the name of a tensor's range, such as `decoder/layer.3.q-projection`. It is equal in
/// every entry point and form of a model, and on both sides of a cut. For example, the residual
/// stream that enters layer n is `hidden@n` where it is produced and where it is read.
pub fn range_key(entry: &EntryGraph, tensor: TensorId) -> String {
    let role_in = |ports: &'_ [(TensorId, Role)]| {
        ports.iter().find(|(held, _)| *held == tensor).map(|(_, role)| role.clone())
    };
    let input = role_in(&entry.inputs);
    let is_input = input.is_some();
    match input.or_else(|| role_in(&entry.outputs)) {
        Some(Role::Hidden) if is_input => match entry.segments.0.first() {
            Some(Segment { component, .. }) if component.ends_stream() => LAST_HIDDEN.to_owned(),
            first => hidden_key(first.map_or(0, |segment| segment.layers.0)),
        },
        Some(Role::Hidden) => hidden_key(entry.segments.stream_leaves().unwrap_or(0)),
        Some(Role::PerLayer { .. }) => PER_LAYER.to_owned(),
        Some(Role::Gathered { asset } | Role::GatheredByGrid { asset, .. }) => {
            format!("gathered@{}", asset.0)
        }
        _ => match &entry.segments.0[..] {
            [segment] => format!("{}/{}", segment.component, entry.tensor(tensor).name),
            // Their names include the component. Where one segment passes a tensor to the next, the
            // name is itself a key.
            _ => entry.tensor(tensor).name.clone(),
        },
    }
}

/// Returns the [`range_key`] of the residual stream that enters a layer, or leaves the previous
/// one.
pub fn hidden_key(layer: u32) -> String {
    format!("{HIDDEN}{layer}")
}

/// Prefix of a [`hidden_key`].
pub(crate) const HIDDEN: &str = "hidden@";

/// [`range_key`] of the residual stream after the last layer, as a head or pooling reads it. The
/// decoder that produces it does not know that it is the last one. There it has the [`hidden_key`]
/// of the layer count.
pub const LAST_HIDDEN: &str = "hidden@last";

/// [`range_key`] of the per-layer inputs of all layers together.
pub const PER_LAYER: &str = "per-layer";

/// Encodings of a shard's tensors.
#[derive(Clone, Debug)]
pub struct Encodings<'a> {
    /// Format of activations inside the shard.
    pub activations: ActivationFormat,
    /// Format of states.
    pub states: StateFormat,
    /// Format of the products of attention.
    pub attention: AttentionFormat,
    /// The calibrated ranges. Needed only for static integers.
    pub ranges: &'a Ranges,
    /// Range assumed for tensors without a known range. Graphs that are counted and checked before
    /// calibration then have the types and operations of the calibrated ones, but other scales.
    pub assumed: Option<Range>,
    /// Encodings of ports fixed by the plan. Other ports have the encoding of the inside.
    pub ports: Vec<(PortSide, Role, Encoding)>,
}

/// A side of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortSide {
    /// The ports it reads.
    Input,
    /// The ports it writes.
    Output,
}

impl<'a> Encodings<'a> {
    /// Returns the encodings of a format tuple, with ports encoded like the inside.
    pub fn of(formats: &FormatTuple, ranges: &'a Ranges) -> Self {
        Encodings {
            activations: formats.activations,
            states: formats.states,
            attention: formats.attention,
            ranges,
            assumed: None,
            ports: Vec::new(),
        }
    }

    /// Returns the encodings of a format tuple for counting, with every range assumed.
    pub fn counting(formats: &FormatTuple) -> Encodings<'static> {
        static NONE: Ranges = Ranges::new();
        let assumed = Some(Range { low: -1.0, high: 1.0, masked: false });
        Encodings { assumed, ..Encodings::of(formats, &NONE) }
    }

    /// Returns the encoding of the state with that name. It follows from the state format and the
    /// state's own range, since not every shard that reads the state sees the values written to it.
    pub fn state(&self, name: &str) -> Result<Encoding> {
        let bits = match self.states {
            StateFormat::F32 => return Ok(Encoding::F32),
            StateFormat::F16 => return Ok(Encoding::F16),
            StateFormat::A16 => 16,
            StateFormat::A8 => 8,
        };
        let (low, high) = self.range(&state_key(name))?.ends();
        // Hardware with signed integers joins new rows to existing ones in their stored form.
        if bits == 16 && self.activations.is_symmetric() {
            return Ok(Encoding::symmetric_over(low, high, bits));
        }
        // Hardware multiplies activations as integers around their midpoint. With another zero
        // point it first shifts them there, which rounds 8 bits a second time.
        Ok(Encoding::centred_over(low, high, bits))
    }

    /// Looks up the calibrated range of a key.
    fn calibrated(&self, key: &str) -> Option<Range> {
        self.ranges.get(key.strip_suffix(stream::UNSCALED).unwrap_or(key)).copied()
    }

    fn range(&self, key: &str) -> Result<Range> {
        self.calibrated(key).or(self.assumed).ok_or_else(|| no_range(key))
    }

    fn port(&self, side: PortSide, role: &Role) -> Option<Encoding> {
        let same = |port: &Role| port == role;
        self.ports.iter().find(|(at, port, _)| *at == side && same(port)).map(|(_, _, encoding)| *encoding)
    }
}

/// Returns the error for a [`range_key`] that calibration did not see.
fn no_range(key: &str) -> Error {
    Error::invalid(format!("no range of `{key}` is known, which 16-bit and 8-bit integers need"))
        .with_help("calibrate this checkpoint again, on text that uses the whole model")
}

/// Returns the graph with the operations that the formats require, before it is legalised and
/// encoded.
///
/// With dynamic activations, linear operations over integer weights quantise their rows at run
/// time. A residual stream in 16-bit floats is divided by a power of two, so that massive
/// activations stay finite in it. Attention multiplies in the chosen format.
pub fn prepared(entry: &EntryGraph, encodings: &Encodings<'_>) -> EntryGraph {
    let mut graph = match stream::unit(encodings).filter(|_| stream::is_additive(entry)) {
        Some(unit) => stream::in_units(entry, unit),
        None => dynamic_activations(entry, encodings.activations),
    };
    multiply_attention_in(&mut graph, encodings.attention);
    graph
}

fn multiply_attention_in(graph: &mut EntryGraph, format: AttentionFormat) {
    for node in &mut graph.nodes {
        if let Op::Attention(attention) = &mut node.op {
            attention.products = format;
        }
    }
}

/// Makes linear operations over integer weights quantise their rows at run time, if the activation
/// format requires it.
fn dynamic_activations(entry: &EntryGraph, activations: ActivationFormat) -> EntryGraph {
    let mut graph = entry.clone();
    if let Some(block) = activations.dynamic_block() {
        for node in graph.nodes.iter_mut().filter(|node| node.op == Op::Linear) {
            let weight = &entry.tensors[node.inputs[1].0 as usize];
            if weight.weight.is_some() && weight.dtype.raw_range().is_some() {
                node.op = Op::DynamicLinear { block };
            }
        }
    }
    graph
}

/// Returns the graph with the same operations and constants, but with activations and states in
/// f32. It computes the values without rounding to steps. Constants that are encoded like
/// activations stay encoded.
pub fn unrounded(encoded: &EntryGraph) -> EntryGraph {
    let mut graph = encoded.clone();
    for node in graph.nodes.iter_mut().filter(|node| matches!(node.op, Op::DynamicLinear { .. })) {
        node.op = Op::Linear;
    }
    multiply_attention_in(&mut graph, AttentionFormat::F32);
    for tensor in graph.tensors.iter_mut().filter(|tensor| tensor.weight.is_none() && !tensor.is_index()) {
        (tensor.dtype, tensor.affine) = (DType::F32, None);
    }
    graph
}

/// Returns the graph with every activation and state encoded.
///
/// Tensors that only move into each other ([`Op::is_movement`]) share one encoding. Tensors moved
/// into a state have the state's encoding.
///
/// # Errors
/// Returns an error if a range is missing, if the graph is already encoded, or if two states with
/// different encodings share their rows.
pub fn encode(entry: &EntryGraph, encodings: &Encodings<'_>) -> Result<EntryGraph> {
    if let Some(tensor) = entry.tensors.iter().find(|tensor| tensor.affine.is_some()) {
        return Err(Error::internal(format!("already encoded as {}", tensor.dtype))
            .at(format!("tensor `{}`", tensor.name))
            .with_help("encode the unencoded graph, once"));
    }
    let in_floats = match encodings.activations.has_float_stream() {
        true => stream::around(entry),
        false => vec![false; entry.tensors.len()],
    };
    let classes = Classes::of(entry);
    let masked = masked_tensors(entry);
    let makers = entry.nodes.iter().enumerate().map(|(index, node)| (node.output, index)).collect();
    let inside = Inside { entry, encodings, classes: &classes, masked: &masked, makers: &makers };
    let mut graph = entry.clone();
    let mut known: BTreeMap<usize, Encoding> = BTreeMap::new();
    for (index, tensor) in entry.tensors.iter().enumerate() {
        if tensor.weight.is_some() || tensor.is_index() {
            continue;
        }
        let class = classes.class(index);
        let encoding = match known.get(&class) {
            _ if in_floats[index] => Encoding::F16,
            Some(encoding) => *encoding,
            None => *known.entry(class).or_insert(inside.encoding(class)?),
        };
        graph.tensors[index].dtype = encoding.element;
        graph.tensors[index].affine = encoding.affine();
    }
    let integers = |tensor: TensorId| inside.encoding(classes.class(tensor.0 as usize));
    stream::join_products(&mut graph, &in_floats, &integers)?;
    keep_added_scalars(&mut graph);
    convert_ports(&mut graph, encodings);
    Ok(graph)
}

/// Raises positive scalars that f16 would round to zero to the smallest positive value of f16.
///
/// Such a scalar is the epsilon of a norm, often divided by the square of the stream's unit. It
/// keeps the root of a row of zeros finite: a filled-up row would become `0 / 0`, and attention
/// would carry the NaN into all other rows.
fn keep_added_scalars(graph: &mut EntryGraph) {
    for node in &mut graph.nodes {
        let Some(encoding) = graph.tensors[node.output.0 as usize].encoding() else { continue };
        if let Op::AddScalar { value } = &mut node.op
            && encoding.element == DType::F16
            && *value > 0.0
        {
            *value = value.max(f16::MIN_POSITIVE_SUBNORMAL.to_f32() * encoding.scale.get());
        }
    }
}

/// Classes of tensors that must share an encoding.
struct Classes {
    /// Class of each tensor: the index of one of the class's members.
    of: Vec<usize>,
    /// Members of each class.
    members: BTreeMap<usize, Vec<usize>>,
}

impl Classes {
    fn of(entry: &EntryGraph) -> Classes {
        let mut parent: Vec<usize> = (0..entry.tensors.len()).collect();
        fn root(parent: &mut [usize], mut at: usize) -> usize {
            while parent[at] != at {
                parent[at] = parent[parent[at]];
                at = parent[at];
            }
            at
        }
        for node in entry.nodes.iter().filter(|node| node.op.is_movement()) {
            for input in &node.inputs {
                let tensor = entry.tensor(*input);
                if tensor.weight.is_none() && !tensor.is_index() {
                    let (a, b) =
                        (root(&mut parent, input.0 as usize), root(&mut parent, node.output.0 as usize));
                    parent[a.max(b)] = a.min(b);
                }
            }
        }
        let of: Vec<usize> = (0..parent.len()).map(|index| root(&mut parent, index)).collect();
        let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, &class) in of.iter().enumerate() {
            members.entry(class).or_default().push(index);
        }
        Classes { of, members }
    }

    fn class(&self, tensor: usize) -> usize {
        self.of[tensor]
    }
}

/// Returns which tensors contain masked scores, whether or not calibration observed a masked value
/// under the key. These are the sums with a mask and everything computed from them, up to the
/// softmax's exponential.
fn masked_tensors(entry: &EntryGraph) -> Vec<bool> {
    let mut masked = vec![false; entry.tensors.len()];
    for (tensor, role) in &entry.inputs {
        masked[tensor.0 as usize] = matches!(role, Role::Mask(_));
    }
    for node in &entry.nodes {
        let passes_on = matches!(node.op, Op::Add | Op::Sub) || node.op.is_movement();
        masked[node.output.0 as usize] =
            passes_on && node.inputs.iter().any(|input| masked[input.0 as usize]);
    }
    masked
}

struct Inside<'a> {
    entry: &'a EntryGraph,
    encodings: &'a Encodings<'a>,
    classes: &'a Classes,
    /// For each tensor, see [`masked_tensors`].
    masked: &'a [bool],
    /// The node that produces each tensor, if one does.
    makers: &'a HashMap<TensorId, usize>,
}

impl Inside<'_> {
    fn encoding(&self, class: usize) -> Result<Encoding> {
        let mut states = self.states(class);
        if let Some(first) = states.next() {
            let encoding = self.encodings.state(first)?;
            for other in states {
                if self.encodings.state(other)? != encoding {
                    let message = format!(
                        "the same rows are written to the states `{first}` and `{other}`, whose ranges differ"
                    );
                    return Err(Error::unsupported(message).with_help("use f16 or f32 states"));
                }
            }
            return Ok(encoding);
        }
        let activations = self.encodings.activations;
        match activations {
            ActivationFormat::F32 | ActivationFormat::A8Dynamic | ActivationFormat::A8DynamicBlock32 => {
                return Ok(Encoding::F32);
            }
            ActivationFormat::F16 => return Ok(Encoding::F16),
            ActivationFormat::A16
            | ActivationFormat::A16Symmetric
            | ActivationFormat::A16F16Stream
            | ActivationFormat::A16SymmetricF16Stream => {}
        }
        let (low, high) = self.ends(class)?;
        Ok(match activations.is_symmetric() {
            true => Encoding::symmetric_over(low, high, 16),
            false => Encoding::affine_over(low, high, 16),
        })
    }

    fn members(&self, class: usize) -> impl Iterator<Item = TensorId> + '_ {
        self.classes.members.get(&class).into_iter().flatten().map(|&index| TensorId(index as u32))
    }

    /// Returns the names of the states that move into or out of a class. There is at most one in
    /// most cases.
    fn states(&self, class: usize) -> impl Iterator<Item = &str> {
        let ports = self.entry.inputs.iter().chain(&self.entry.outputs);
        ports.filter(move |(tensor, _)| self.classes.class(tensor.0 as usize) == class).filter_map(
            |(_, role)| {
                let (Role::State { state } | Role::StateRows { state }) = role else { return None };
                let port = self.entry.states.iter().find(|port| port.id == *state)?;
                Some(port.state.name.as_str())
            },
        )
    }

    /// Returns the range that a class must cover. For a step input it is fixed, otherwise it is the
    /// calibrated range of the members.
    fn ends(&self, class: usize) -> Result<(f32, f32)> {
        for (tensor, role) in self.entry.inputs.iter().chain(&self.entry.outputs) {
            if self.classes.class(tensor.0 as usize) != class {
                continue;
            }
            match role {
                Role::RotaryCos(rope) | Role::RotarySin(rope) => {
                    // Pairs that are not rotated have a cosine of 1.
                    let largest = rope.magnitude.max(1.0);
                    return Ok((-largest, largest));
                }
                Role::AxialCos(_) | Role::AxialSin(_) => return Ok((-1.0, 1.0)),
                Role::Pooling | Role::Valid { .. } => return Ok((0.0, 1.0)),
                Role::Mask(_) => return self.mask_ends(*tensor),
                // One key determines the range on both sides of a cut, whatever else the class
                // contains.
                Role::Hidden | Role::PerLayer { .. } => {
                    return self.encodings.range(&range_key(self.entry, *tensor)).map(Range::ends);
                }
                _ => {}
            }
        }
        if self.is_probability(class) {
            return Ok((0.0, 1.0));
        }
        // As at a cut, one segment of the shard passes such a tensor to the next.
        let joined = |tensor: TensorId| {
            let name = &self.entry.tensor(tensor).name;
            let is_key = name.starts_with(HIDDEN) || name == PER_LAYER;
            let is_unscaled = name.ends_with(stream::UNSCALED);
            (is_key && (is_unscaled || self.entry.segments.0.len() > 1)).then_some(name)
        };
        if let Some(key) = self.members(class).find_map(joined) {
            return self.encodings.range(key).map(Range::ends);
        }
        let seen = self
            .members(class)
            .filter_map(|tensor| self.encodings.calibrated(&range_key(self.entry, tensor)))
            .reduce(Range::union);
        match seen.or(self.encodings.assumed) {
            Some(range) => {
                let masked = self.members(class).any(|tensor| self.masked[tensor.0 as usize]);
                Ok(Range { masked: range.masked || masked, ..range }.ends())
            }
            None => Err(no_range(&range_key(self.entry, TensorId(class as u32)))),
        }
    }

    /// Returns whether every value of a class is the result of a softmax, either whole or in
    /// primitives. Then its range is known without calibration.
    fn is_probability(&self, class: usize) -> bool {
        let maker = |tensor: TensorId| self.makers.get(&tensor).map(|&index| &self.entry.nodes[index]);
        let is_softmax = |node: &EntryNode| match (&node.op, node.inputs.as_slice()) {
            (Op::Softmax, _) => true,
            // Exponentials divided by their sum.
            (Op::Div, &[exponentials, sum]) => {
                maker(exponentials).is_some_and(|maker| maker.op == Op::Exp)
                    && maker(sum).is_some_and(|sum| sum.op == Op::ReduceSum && sum.inputs == [exponentials])
            }
            _ => false,
        };
        self.members(class)
            .all(|tensor| maker(tensor).is_some_and(|node| node.op.is_movement() || is_softmax(node)))
    }

    /// Returns the range of a mask, which is low enough to push any score below the lowest visible
    /// one.
    fn mask_ends(&self, mask: TensorId) -> Result<(f32, f32)> {
        let mut width = 0.0_f32;
        let class = self.classes.class(mask.0 as usize);
        // An operation that only moves a mask passes it on.
        let is_mask = |tensor: &TensorId| self.classes.class(tensor.0 as usize) == class;
        let reads = |node: &&EntryNode| !node.op.is_movement() && node.inputs.iter().any(is_mask);
        for node in self.entry.nodes.iter().filter(reads) {
            for other in node.inputs.iter().filter(|input| !is_mask(input)) {
                let scores = self
                    .members(self.classes.class(other.0 as usize))
                    .filter_map(|tensor| self.encodings.ranges.get(&range_key(self.entry, tensor)).copied())
                    .reduce(Range::union)
                    .or(self.encodings.assumed)
                    .ok_or_else(|| no_range(&range_key(self.entry, *other)))?;
                width = width.max(scores.high - scores.low);
            }
        }
        Ok((-width - INVISIBLE_DISTANCE, 0.0))
    }
}

/// Returns the [`range_key`] of a state.
pub fn state_key(state: &str) -> String {
    format!("{}/state.{state}", ComponentKind::Decoder)
}

/// Inserts a conversion at each port that is encoded differently from the inside.
fn convert_ports(graph: &mut EntryGraph, encodings: &Encodings<'_>) {
    let mut first = Vec::new();
    for index in 0..graph.inputs.len() {
        let (port, role) = graph.inputs[index].clone();
        let Some(wanted) = encodings.port(PortSide::Input, &role) else { continue };
        if is_stored_as(graph.tensor(port), wanted) {
            continue;
        }
        let inside = converted(graph, port);
        for node in &mut graph.nodes {
            node.inputs.iter_mut().filter(|input| **input == port).for_each(|input| *input = inside);
        }
        let entered = graph.segments.0.first().filter(|segment| segment.component.is_layered());
        let layer = entered.map(|segment| segment.layers.0);
        first.push(EntryNode {
            name: graph.tensor(inside).name.clone(),
            op: Op::Convert,
            inputs: vec![port],
            output: inside,
            layer,
        });
        set(&mut graph.tensors[port.0 as usize], wanted);
    }
    graph.nodes.splice(0..0, first);
    for index in 0..graph.outputs.len() {
        let (inside, role) = graph.outputs[index].clone();
        let Some(wanted) = encodings.port(PortSide::Output, &role) else { continue };
        if is_stored_as(graph.tensor(inside), wanted) {
            continue;
        }
        let port = converted(graph, inside);
        let last = graph.segments.0.last().filter(|segment| segment.component.is_layered());
        let layer = last.map(|segment| segment.layers.1.saturating_sub(1));
        graph.nodes.push(EntryNode {
            name: graph.tensor(port).name.clone(),
            op: Op::Convert,
            inputs: vec![inside],
            output: port,
            layer,
        });
        set(&mut graph.tensors[port.0 as usize], wanted);
        graph.outputs[index].0 = port;
    }
}

/// Returns whether a port has that encoding. Floats may have any unit.
fn is_stored_as(port: &Tensor, wanted: Encoding) -> bool {
    match wanted.element.is_float() {
        true => port.dtype == wanted.element,
        false => port.encoding().map(|own| own.in_units(port.unit.unwrap_or(ScaleBits::ONE))) == Some(wanted),
    }
}

/// Sets the encoding of a port, whose raw values are in its unit.
fn set(tensor: &mut Tensor, encoding: Encoding) {
    let unit = tensor.unit.and_then(|unit| ScaleBits::new(unit.get().recip())).unwrap_or(ScaleBits::ONE);
    tensor.dtype = encoding.element;
    tensor.affine = encoding.in_units(unit).affine();
}

/// Adds a tensor with the shape and encoding of `like`.
fn converted(graph: &mut EntryGraph, like: TensorId) -> TensorId {
    let mut tensor = graph.tensor(like).clone();
    tensor.name.push_str(".converted");
    graph.tensors.push(tensor);
    TensorId(graph.tensors.len() as u32 - 1)
}
