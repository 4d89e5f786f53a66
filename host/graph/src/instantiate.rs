//! Instantiates a component with a symbolic row count as a static entry graph of a layer range.

use std::collections::HashMap;
use std::ops::Range;

use shardwright_vocabulary::{DType, EntryKind};

use crate::operations::infer_shape;
use crate::{
    Component, ComponentKind, Dim, EntryGraph, EntryNode, EntryPoint, Graph, GraphError, Op, Role, StateId,
    StatePort, Tensor, TensorId, ValueId, ValueSource,
};

/// What to add to an entry graph beyond what a run needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryOptions {
    /// Whether layer outputs (`layer.N`, all but the last of the range, which is the residual
    /// stream) and the component's named taps become extra outputs. Taps never ship.
    pub taps: bool,
}

impl Graph {
    /// The static graph of `layers` of a component under an entry point; `None` if there is nothing
    /// to do (a prefill of layers after which no state is written).
    ///
    /// Only nodes that a required result depends on are kept: a prefill requires the states of its
    /// layers, and the residual stream after them only if a later layer writes a state.
    pub fn entry(
        &self,
        kind: ComponentKind,
        layers: Range<u32>,
        point: EntryPoint,
        options: EntryOptions,
    ) -> Result<Option<EntryGraph>, GraphError> {
        point.validate()?;
        let component = self.component(kind)?;
        let layered = component.layers > 0;
        if layered && (layers.start >= layers.end || layers.end > component.layers) {
            return Err(GraphError::LayerRange {
                component: kind,
                start: layers.start,
                end: layers.end,
                layers: component.layers,
            });
        }
        let refuse = |reason| GraphError::EntryKind { component: kind, entry: point.kind, reason };
        match point.kind {
            EntryKind::Encode if self.is_generative() => {
                return Err(refuse("the model generates step by step"));
            }
            EntryKind::Prefill | EntryKind::Decode if !self.is_generative() => {
                return Err(refuse("the model has no states"));
            }
            _ => {}
        }
        let layers = if layered { layers } else { 0..0 };
        let wanted = self.wanted(component, &layers, point.kind, options);
        if wanted.is_empty() {
            return Ok(None);
        }
        Instantiation::new(self, component, layers, point).run(&wanted).map(Some)
    }

    /// The values an entry point must produce, with the roles they leave under.
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
                    // The last layer's output leaves as the residual stream itself; one tensor
                    // never leaves twice.
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

struct Instantiation<'g> {
    graph: &'g Graph,
    component: &'g Component,
    layers: Range<u32>,
    entry: EntryGraph,
    made: HashMap<ValueId, TensorId>,
    per_layer: Option<TensorId>,
}

impl<'g> Instantiation<'g> {
    fn new(graph: &'g Graph, component: &'g Component, layers: Range<u32>, point: EntryPoint) -> Self {
        let entry = EntryGraph {
            component: component.kind,
            layers: (layers.start, layers.end),
            point,
            tensors: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            states: Vec::new(),
        };
        Instantiation { graph, component, layers, entry, made: HashMap::new(), per_layer: None }
    }

    fn run(mut self, wanted: &[(ValueId, Role)]) -> Result<EntryGraph, GraphError> {
        let needed = self.needed(wanted);
        for (index, node) in self.component.nodes.iter().enumerate() {
            if !needed[index] {
                continue;
            }
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for &input in &node.inputs {
                inputs.push(self.tensor_of(input)?);
            }
            let op = match &node.reshape {
                Some(shape) => Op::Reshape { shape: self.shape(shape) },
                None => node.op.clone(),
            };
            let output = self.emit(node.name.clone(), op, inputs, node.layer)?;
            let declared = self.shape(&self.component.values[node.output.0 as usize].shape);
            if declared != self.entry.tensor(output).shape {
                return Err(GraphError::Shape {
                    node: node.name.clone(),
                    op: node.op.name(),
                    reason: format!("declared {declared:?}, gives {:?}", self.entry.tensor(output).shape),
                });
            }
            if let Some(state) = node.writes {
                self.state_port(state).written = true;
            }
            self.made.insert(node.output, output);
        }
        for (value, role) in wanted {
            let tensor = self.tensor_of(*value)?;
            self.entry.outputs.push((tensor, role.clone()));
        }
        Ok(self.entry)
    }

    /// Nodes of the layer range on which a wanted value depends.
    fn needed(&self, wanted: &[(ValueId, Role)]) -> Vec<bool> {
        let mut needed = vec![false; self.component.nodes.len()];
        let mut stack: Vec<ValueId> = wanted.iter().map(|(value, _)| *value).collect();
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

    /// Whether the value is the residual stream at the start of the range.
    fn is_entry_stream(&self, value: ValueId) -> bool {
        self.component.layers > 0 && self.component.cuts[self.layers.start as usize] == value
    }

    fn shape(&self, shape: &[Dim]) -> Vec<u64> {
        shape
            .iter()
            .map(|dim| match dim {
                Dim::Fixed(extent) => *extent,
                Dim::Rows => self.entry.point.rows,
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

    fn add_input(&mut self, name: &str, shape: Vec<u64>, dtype: DType, role: Role) -> TensorId {
        if let Some(tensor) = self.entry.input(&role) {
            return tensor;
        }
        let tensor = self.add_tensor(name.to_owned(), shape, dtype);
        self.entry.inputs.push((tensor, role));
        tensor
    }

    fn emit(
        &mut self,
        name: String,
        op: Op,
        inputs: Vec<TensorId>,
        layer: Option<u32>,
    ) -> Result<TensorId, GraphError> {
        let shapes: Vec<&[u64]> =
            inputs.iter().map(|&input| self.entry.tensor(input).shape.as_slice()).collect();
        let shape = infer_shape(&op, &shapes).map_err(|reason| GraphError::Shape {
            node: name.clone(),
            op: op.name(),
            reason,
        })?;
        let output = self.add_tensor(name.clone(), shape, DType::F32);
        self.entry.nodes.push(EntryNode { name, op, inputs, output, layer });
        Ok(output)
    }

    fn tensor_of(&mut self, id: ValueId) -> Result<TensorId, GraphError> {
        if let Some(&tensor) = self.made.get(&id) {
            return Ok(tensor);
        }
        let component = self.component;
        let value = &component.values[id.0 as usize];
        let shape = self.shape(&value.shape);
        let tensor = if self.is_entry_stream(id) {
            self.add_input("hidden", shape, value.dtype, Role::Hidden)
        } else {
            match &value.source {
                ValueSource::Input(Role::Slots { capacity: state }) => {
                    let capacity = self.capacity(StateId(*state as u32));
                    self.add_input(&format!("slots.{capacity}"), shape, value.dtype, Role::Slots { capacity })
                }
                ValueSource::Input(role) => self.add_input(&value.name, shape, value.dtype, role.clone()),
                ValueSource::Constant(weight) => {
                    // The weight's own type: it may have been changed since the component was
                    // built.
                    let dtype = self.graph.weight(*weight).dtype;
                    let tensor = self.add_tensor(value.name.clone(), shape, dtype);
                    self.entry.tensors[tensor.0 as usize].weight = Some(*weight);
                    tensor
                }
                ValueSource::State(state) => self.state_input(*state),
                ValueSource::PerLayer(layer) => self.per_layer_slice(*layer)?,
                ValueSource::Node(node) => {
                    let node = &component.nodes[node.0 as usize];
                    let Some(state) = node.writes else {
                        return Err(GraphError::CrossesCut {
                            value: value.name.clone(),
                            layer: node.layer.unwrap_or(0),
                        });
                    };
                    // The writer is in an earlier shard, which has already run: its state is
                    // complete.
                    self.state_input(state)
                }
            }
        };
        self.made.insert(id, tensor);
        Ok(tensor)
    }

    fn state_input(&mut self, id: StateId) -> TensorId {
        let port = self.state_port(id);
        // A state often has the name of the node that produces its rows; tensor names are unique.
        let name = format!("state.{}", port.state.name);
        let shape = vec![port.capacity, port.state.width];
        self.add_input(&name, shape, DType::F32, Role::State { state: id })
    }

    fn per_layer_slice(&mut self, layer: u32) -> Result<TensorId, GraphError> {
        let (rows, width) = (self.entry.point.rows, self.graph.per_layer_width);
        let (first, layers) = (self.layers.start, self.layers.end - self.layers.start);
        let whole = match self.per_layer {
            Some(tensor) => tensor,
            None => {
                let shape = vec![u64::from(layers), rows, width];
                self.add_input("per-layer", shape, DType::F32, Role::PerLayer { first, layers })
            }
        };
        self.per_layer = Some(whole);
        let start = u64::from(layer - first);
        let name = format!("layer.{layer}.per-layer-slice");
        let slice = Op::Slice { axis: 0, start, end: start + 1 };
        let slice = self.emit(name, slice, vec![whole], Some(layer))?;
        let name = format!("layer.{layer}.per-layer-input");
        self.emit(name, Op::Reshape { shape: vec![rows, width] }, vec![slice], Some(layer))
    }
}
