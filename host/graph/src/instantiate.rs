//! Instantiates segments of a model with a symbolic row count as one static entry graph.

use std::collections::HashMap;
use std::ops::Range;

use shardwright_vocabulary::{DType, EntryKind, Error, Result};

use crate::operations::infer_shape;
use crate::{
    Component, ComponentKind, Dim, EntryGraph, EntryNode, EntryPoint, Graph, Op, PER_LAYER, Role, Segment,
    Segments, StateId, StatePort, Tensor, TensorId, ValueId, ValueSource, hidden_key,
};

const LIST_COMPONENTS: &str =
    "`shardwright show` lists the components in the order of a step, and their layers";

/// Additions to an entry graph that a run does not need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryOptions {
    /// Whether layer outputs (`layer.N`, except the last of the range, which is the residual
    /// stream) and the component's named taps become extra outputs. Taps are never shipped.
    pub taps: bool,
}

impl Graph {
    /// Calls [`Graph::entry_of`] with one component, or some of its layers. `layers` is ignored for
    /// a component without layers.
    pub fn entry(
        &self,
        kind: ComponentKind,
        layers: Range<u32>,
        point: EntryPoint,
        options: EntryOptions,
    ) -> Result<Option<EntryGraph>> {
        let layers = if self.component(kind)?.layers > 0 { (layers.start, layers.end) } else { (0, 0) };
        self.entry_of(&Segment { component: kind, layers }.into(), point, options)
    }

    /// Returns the static graph of adjacent segments of the pass under an entry point. Returns
    /// `None` if there is no work, as in a prefill of layers after which no state is written.
    ///
    /// Only nodes on which a required result depends are kept. A prefill requires the states of its
    /// layers. It requires the residual stream after them only if a later layer writes a state.
    /// Tensors passed from one segment to the next stay inside.
    ///
    /// Nodes and tensors of a single segment keep their names in the component. With several
    /// segments the component is prefixed, as in `decoder/layer.3.q`, and a tensor passed on inside
    /// has the name of its range ([`range_key`](crate::range_key)).
    pub fn entry_of(
        &self,
        segments: &Segments,
        point: EntryPoint,
        options: EntryOptions,
    ) -> Result<Option<EntryGraph>> {
        point.validate()?;
        if !segments.is_ordered() {
            let message = format!("segments `{segments}` do not form one shard");
            return Err(Error::argument(message).with_help(LIST_COMPONENTS));
        }
        let mut parts = Vec::with_capacity(segments.0.len());
        for segment in segments.iter() {
            let component = self.component(segment.component)?;
            let kind = component.kind;
            let (start, end) = segment.layers;
            let fits = match component.layers {
                0 => (start, end) == (0, 0),
                layers => start < end && end <= layers,
            };
            if !fits {
                let layers = component.layers;
                let message =
                    format!("expected a range of the {layers} layers of `{kind}`, got {start}..{end}");
                return Err(Error::argument(message).with_help(LIST_COMPONENTS));
            }
            let refuse = |reason: &str| {
                Error::internal(format!("`{kind}` has no {} entry point: {reason}", point.kind))
            };
            match point.kind {
                EntryKind::Encode if self.is_generative() => {
                    return Err(refuse("the model generates step by step"));
                }
                EntryKind::Prefill | EntryKind::Decode if !self.is_generative() => {
                    return Err(refuse("the model has no states"));
                }
                _ => {}
            }
            let multiple = component.rows_multiple();
            if !point.rows.is_multiple_of(multiple) {
                let rows = point.rows;
                return Err(Error::argument(format!("expected a multiple of {multiple} rows, got {rows}"))
                    .at(format!("component `{kind}`"))
                    .with_help("use the next multiple; rows beyond the valid ones do not change results"));
            }
            parts.push(Part { component, layers: start..end, wanted: Vec::new(), needed: Vec::new() });
        }
        self.require(&mut parts, point.kind, options);
        if parts.iter().all(|part| part.wanted.is_empty()) {
            return Ok(None);
        }
        let mut instantiation = Instantiation::new(self, segments.clone(), point);
        for part in &parts {
            instantiation.run(part)?;
        }
        Ok(Some(instantiation.entry))
    }

    /// Determines the values that each segment must produce and the nodes this needs. Proceeds from
    /// the last segment to the first, since a segment produces values that a later one reads.
    fn require(&self, parts: &mut [Part<'_>], kind: EntryKind, options: EntryOptions) {
        let (mut stream_is_read, mut per_layer_is_read) = (false, false);
        for index in (0..parts.len()).rev() {
            let (before, later) = parts.split_at_mut(index + 1);
            let Some(part) = before.last_mut() else { continue };
            for (value, role) in self.wanted(part.component, &part.layers, kind, options) {
                let (read, leaves) = match role {
                    Role::Hidden => {
                        (stream_is_read, !later.iter().any(|part| replaces_stream(part.component)))
                    }
                    Role::PerLayer { .. } => (per_layer_is_read, self.later_per_layer(later)),
                    _ => (false, true),
                };
                let passed_on = matches!(role, Role::Hidden | Role::PerLayer { .. }) && read && !leaves;
                if options.taps && passed_on {
                    let name = match part.layers.end.checked_sub(1) {
                        Some(layer) => format!("layer.{layer}"),
                        None => part.component.kind.to_string(),
                    };
                    part.wanted.push(Wanted { value, role: Role::Tap { name }, leaves: true });
                }
                if read || leaves {
                    part.wanted.push(Wanted { value, role, leaves });
                }
            }
            // A prefill does not pass the stream to layers that write no state, so it was not
            // required above.
            if stream_is_read && part.component.layers > 0 {
                let value = part.component.cuts[part.layers.end as usize];
                if !part.wanted.iter().any(|wanted| wanted.role == Role::Hidden) {
                    part.wanted.push(Wanted { value, role: Role::Hidden, leaves: false });
                }
            }
            part.needed = part.needed();
            let reads = part.reads();
            // The embedding begins the stream. Per-layer inputs only read it.
            let gives = part.component.kind != ComponentKind::PerLayerInput;
            stream_is_read = reads.stream || (stream_is_read && !gives);
            per_layer_is_read |= reads.per_layer;
        }
    }

    /// Returns whether layers outside of a shard read per-layer inputs produced by it. `later` are
    /// the shard's segments after the one that produces them.
    fn later_per_layer(&self, later: &[Part<'_>]) -> bool {
        let decoder = later.iter().find(|part| part.component.layers > 0);
        decoder.is_none_or(|part| part.layers.end < part.component.layers)
    }

    /// Returns the values that a segment produces under an entry point, with their roles outside.
    fn wanted(
        &self,
        component: &Component,
        layers: &Range<u32>,
        kind: EntryKind,
        options: EntryOptions,
    ) -> Vec<(ValueId, Role)> {
        let mut wanted = Vec::new();
        if component.layers > 0 {
            for node in
                component.nodes.iter().filter(|node| node.layer.is_some_and(|layer| layers.contains(&layer)))
            {
                if let Some(state) = node.writes {
                    wanted.push((node.output, Role::State { state }));
                }
            }
            let later_states = self.writes_states(layers.end..component.layers);
            if kind != EntryKind::Prefill || later_states {
                wanted.push((component.cuts[layers.end as usize], Role::Hidden));
                if options.taps {
                    // The last layer's output is already the residual stream, and a tensor must not
                    // be two outputs.
                    for layer in layers.start..layers.end - 1 {
                        let name = format!("layer.{layer}");
                        wanted.push((component.cuts[layer as usize + 1], Role::Tap { name }));
                    }
                }
            }
        } else {
            let skipped = kind == EntryKind::Prefill
                && matches!(component.kind, ComponentKind::Head | ComponentKind::Pooling);
            if !skipped {
                wanted.extend(component.outputs.iter().cloned());
            }
        }
        if options.taps && kind != EntryKind::Prefill {
            for (name, value) in &component.taps {
                let leaves = wanted.iter().any(|(existing, _)| existing == value);
                if !leaves && component.is_made_within(*value, layers) {
                    wanted.push((*value, Role::Tap { name: name.clone() }));
                }
            }
        }
        wanted
    }
}

/// Returns whether a component changes the residual stream that enters it.
fn replaces_stream(component: &Component) -> bool {
    component.kind != ComponentKind::PerLayerInput
}

/// A segment of the shard.
struct Part<'g> {
    component: &'g Component,
    layers: Range<u32>,
    wanted: Vec<Wanted>,
    /// Whether each of the component's nodes is kept.
    needed: Vec<bool>,
}

/// A value that a segment must produce.
struct Wanted {
    value: ValueId,
    role: Role,
    /// Whether the shard outputs it. Otherwise a later segment of the shard reads it.
    leaves: bool,
}

/// Values that a segment reads from earlier ones.
struct Reads {
    stream: bool,
    per_layer: bool,
}

impl Part<'_> {
    /// Returns which nodes of the segment a wanted value depends on.
    fn needed(&self) -> Vec<bool> {
        let mut needed = vec![false; self.component.nodes.len()];
        let mut stack: Vec<ValueId> = self.wanted.iter().map(|wanted| wanted.value).collect();
        while let Some(value) = stack.pop() {
            if self.is_entry_stream(value) {
                continue;
            }
            let ValueSource::Node(node) = self.component.values[value.0 as usize].source else { continue };
            let index = node.0 as usize;
            let node = &self.component.nodes[index];
            let inside = node.layer.is_none_or(|layer| self.layers.contains(&layer));
            if inside && !std::mem::replace(&mut needed[index], true) {
                stack.extend(&node.inputs);
            }
        }
        needed
    }

    /// Returns whether the value is the residual stream at the start of the range.
    fn is_entry_stream(&self, value: ValueId) -> bool {
        self.component.layers > 0 && self.component.cuts[self.layers.start as usize] == value
    }

    fn reads(&self) -> Reads {
        let kept = self.component.nodes.iter().zip(&self.needed).filter(|(_, needed)| **needed);
        let inputs = kept.flat_map(|(node, _)| node.inputs.iter().copied());
        let wanted = self.wanted.iter().map(|wanted| wanted.value);
        let mut reads = Reads { stream: false, per_layer: false };
        for value in inputs.chain(wanted) {
            let source = &self.component.values[value.0 as usize].source;
            reads.stream |= self.is_entry_stream(value) || matches!(source, ValueSource::Input(Role::Hidden));
            reads.per_layer |= matches!(source, ValueSource::PerLayer(_));
        }
        reads
    }
}

struct Instantiation<'g> {
    graph: &'g Graph,
    entry: EntryGraph,
    /// The residual stream, if a segment of the shard produced it.
    stream: Option<TensorId>,
    /// The per-layer inputs, and their first layer.
    per_layer: Option<(TensorId, u32)>,
}

impl<'g> Instantiation<'g> {
    fn new(graph: &'g Graph, segments: Segments, point: EntryPoint) -> Self {
        let entry = EntryGraph {
            segments,
            point,
            tensors: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            states: Vec::new(),
        };
        Instantiation { graph, entry, stream: None, per_layer: None }
    }

    fn run(&mut self, part: &Part<'g>) -> Result<()> {
        let mut made = HashMap::new();
        for (index, node) in part.component.nodes.iter().enumerate() {
            if !part.needed[index] {
                continue;
            }
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for &input in &node.inputs {
                inputs.push(self.tensor_of(part, &mut made, input)?);
            }
            let op = match &node.reshape {
                Some(shape) => Op::Reshape { shape: self.shape(shape) },
                None => node.op.clone(),
            };
            let output = self.emit(self.name(part, &node.name), op, inputs, node.layer)?;
            let declared = self.shape(&part.component.values[node.output.0 as usize].shape);
            if declared != self.entry.tensor(output).shape {
                let found = &self.entry.tensor(output).shape;
                let reason = format!("declared {declared:?}, gives {found:?}");
                return Err(Error::internal(reason).at(node.op.place(&node.name)));
            }
            if let Some(state) = node.writes {
                self.state_port(state).written = true;
            }
            made.insert(node.output, output);
        }
        for Wanted { value, role, leaves } in &part.wanted {
            let tensor = self.tensor_of(part, &mut made, *value)?;
            if *leaves {
                self.entry.outputs.push((tensor, role.clone()));
            }
            let inside = match role {
                Role::Hidden => {
                    self.stream = Some(tensor);
                    hidden_key(part.layers.end)
                }
                Role::PerLayer { first, .. } => {
                    self.per_layer = Some((tensor, *first));
                    PER_LAYER.to_owned()
                }
                _ => continue,
            };
            if self.is_joined() {
                self.entry.tensors[tensor.0 as usize].name = inside;
            }
        }
        Ok(())
    }

    /// Returns whether the shard has several segments.
    fn is_joined(&self) -> bool {
        self.entry.segments.0.len() > 1
    }

    /// Returns the name of a node or tensor within a segment.
    fn name(&self, part: &Part<'_>, name: &str) -> String {
        match self.is_joined() {
            true => format!("{}/{name}", part.component.kind),
            false => name.to_owned(),
        }
    }

    fn shape(&self, shape: &[Dim]) -> Vec<u64> {
        shape
            .iter()
            .map(|dim| match dim {
                Dim::Fixed(extent) => *extent,
                Dim::Rows => self.entry.point.rows,
                Dim::RowsTimes(factor) => self.entry.point.rows.saturating_mul((*factor).into()),
                Dim::RowsOver(divisor) => self.entry.point.rows / u64::from(*divisor).max(1),
                Dim::Capacity(state) => self.capacity(*state),
            })
            .collect()
    }

    fn capacity(&self, state: StateId) -> u64 {
        self.graph.states[state.0 as usize].capacity(self.entry.point.context, self.entry.point.largest_rows)
    }

    fn state_port(&mut self, id: StateId) -> &mut StatePort {
        let index = match self.entry.states.iter().position(|port| port.id == id) {
            Some(index) => index,
            None => {
                let capacity = self.capacity(id);
                let state = self.graph.states[id.0 as usize].clone();
                self.entry.states.push(StatePort { id, state, capacity, written: false });
                self.entry.states.len() - 1
            }
        };
        &mut self.entry.states[index]
    }

    fn add_tensor(&mut self, name: String, shape: Vec<u64>, dtype: DType) -> TensorId {
        self.entry.tensors.push(Tensor::plain(name, shape, dtype));
        TensorId(self.entry.tensors.len() as u32 - 1)
    }

    fn add_input(&mut self, name: String, shape: Vec<u64>, dtype: DType, role: Role) -> TensorId {
        if let Some(tensor) = self.entry.input(&role) {
            return tensor;
        }
        let tensor = self.add_tensor(name, shape, dtype);
        self.entry.inputs.push((tensor, role));
        tensor
    }

    fn emit(&mut self, name: String, op: Op, inputs: Vec<TensorId>, layer: Option<u32>) -> Result<TensorId> {
        let shapes: Vec<&[u64]> =
            inputs.iter().map(|&input| self.entry.tensor(input).shape.as_slice()).collect();
        let shape =
            infer_shape(&op, &shapes).map_err(|reason| Error::internal(reason).at(op.place(&name)))?;
        let output = self.add_tensor(name.clone(), shape, DType::F32);
        self.entry.nodes.push(EntryNode { name, op, inputs, output, layer });
        Ok(output)
    }

    fn tensor_of(
        &mut self,
        part: &Part<'g>,
        made: &mut HashMap<ValueId, TensorId>,
        id: ValueId,
    ) -> Result<TensorId> {
        if let Some(&tensor) = made.get(&id) {
            return Ok(tensor);
        }
        let component = part.component;
        let value = &component.values[id.0 as usize];
        let shape = self.shape(&value.shape);
        let tensor = if part.is_entry_stream(id) {
            self.stream_input("hidden", shape, value.dtype)
        } else {
            match &value.source {
                ValueSource::Input(Role::Hidden) => self.stream_input(&value.name, shape, value.dtype),
                ValueSource::Input(Role::Slots { capacity: state }) => {
                    let capacity = self.capacity(StateId(*state as u32));
                    let name = self.name(part, &format!("slots.{capacity}"));
                    self.add_input(name, shape, value.dtype, Role::Slots { capacity })
                }
                ValueSource::Input(role) => {
                    self.add_input(self.name(part, &value.name), shape, value.dtype, role.clone())
                }
                ValueSource::Constant(weight) => {
                    // The weight's type may have been changed since the component was built.
                    let dtype = self.graph.weight(*weight).dtype;
                    let tensor = self.add_tensor(self.name(part, &value.name), shape, dtype);
                    self.entry.tensors[tensor.0 as usize].weight = Some(*weight);
                    tensor
                }
                ValueSource::State(state) => self.state_input(part, *state),
                ValueSource::PerLayer(layer) => self.per_layer_slice(part, *layer)?,
                ValueSource::Node(node) => {
                    let node = &component.nodes[node.0 as usize];
                    let Some(state) = node.writes else {
                        let layer = node.layer.unwrap_or(0);
                        return Err(Error::internal(
                            "needed beyond the cut, which only the residual stream and states may cross",
                        )
                        .at(format!("value `{}` of layer {layer}", value.name)));
                    };
                    // The writer is in an earlier shard, which has already run, so its state is
                    // complete.
                    self.state_input(part, state)
                }
            }
        };
        made.insert(id, tensor);
        Ok(tensor)
    }

    /// Returns the residual stream from an earlier segment, or an input.
    fn stream_input(&mut self, name: &str, shape: Vec<u64>, dtype: DType) -> TensorId {
        match self.stream {
            Some(tensor) => tensor,
            None => self.add_input(name.to_owned(), shape, dtype, Role::Hidden),
        }
    }

    fn state_input(&mut self, part: &Part<'_>, id: StateId) -> TensorId {
        let port = self.state_port(id);
        let shape = vec![port.capacity, port.state.width];
        // A state often has the name of the node that produces its rows, but tensor names are
        // unique.
        let name = format!("state.{}", port.state.name);
        let name = self.name(part, &name);
        self.add_input(name, shape, DType::F32, Role::State { state: id })
    }

    fn per_layer_slice(&mut self, part: &Part<'_>, layer: u32) -> Result<TensorId> {
        let (rows, width) = (self.entry.point.rows, self.graph.per_layer_width);
        let (first, layers) = (part.layers.start, part.layers.end - part.layers.start);
        let (whole, first) = *self.per_layer.get_or_insert_with(|| {
            let shape = vec![u64::from(layers), rows, width];
            let entry = &mut self.entry;
            entry.tensors.push(Tensor::plain("per-layer".to_owned(), shape, DType::F32));
            let tensor = TensorId(entry.tensors.len() as u32 - 1);
            entry.inputs.push((tensor, Role::PerLayer { first, layers }));
            (tensor, first)
        });
        let start = u64::from(layer - first);
        let name = self.name(part, &format!("layer.{layer}.per-layer-slice"));
        let slice = Op::Slice { axis: 0, start, end: start + 1 };
        let slice = self.emit(name, slice, vec![whole], Some(layer))?;
        let name = self.name(part, &format!("layer.{layer}.per-layer-input"));
        self.emit(name, Op::Reshape { shape: vec![rows, width] }, vec![slice], Some(layer))
    }
}
