use shardwright_vocabulary::{DType, Error, Result};

use crate::{
    Component, ComponentKind, Dim, Graph, Node, NodeId, Op, Role, State, StateId, Value, ValueId,
    ValueSource, WeightId,
};

/// Builds a [`Component`] node by node. Used to translate a model.
///
/// The caller declares the shape if an operation does not keep its first operand's shape.
/// [`EntryGraph`](crate::EntryGraph) instantiation checks every declared shape against
/// [`infer_shape`](crate::infer_shape).
pub struct ComponentBuilder<'g> {
    graph: &'g Graph,
    component: Component,
    layer: Option<u32>,
}

impl<'g> ComponentBuilder<'g> {
    /// Creates an empty component over the weights and states of `graph`.
    pub fn new(graph: &'g Graph, kind: ComponentKind) -> Self {
        ComponentBuilder {
            graph,
            component: Component {
                kind,
                layers: 0,
                values: Vec::new(),
                nodes: Vec::new(),
                cuts: Vec::new(),
                outputs: Vec::new(),
                taps: Vec::new(),
            },
            layer: None,
        }
    }

    /// Declares the residual stream at the start of layer `layer`. Nodes added from now on belong
    /// to this layer.
    pub fn begin_layer(&mut self, stream: ValueId) {
        self.layer = Some(self.component.layers);
        self.component.layers += 1;
        self.component.cuts.push(stream);
    }

    /// Declares the residual stream after the last layer.
    pub fn end_layers(&mut self, stream: ValueId) {
        self.layer = None;
        self.component.cuts.push(stream);
    }

    fn value(&mut self, name: String, shape: Vec<Dim>, dtype: DType, source: ValueSource) -> ValueId {
        // A node's result is always new. Only a tensor from outside can have been requested before.
        let known = match source {
            ValueSource::Node(_) => None,
            _ => self.component.values.iter().position(|value| value.source == source && value.name == name),
        };
        if let Some(index) = known {
            return ValueId(index as u32);
        }
        self.component.values.push(Value { name, shape, dtype, source });
        ValueId(self.component.values.len() as u32 - 1)
    }

    /// Adds an input from outside.
    pub fn input(&mut self, role: Role, shape: Vec<Dim>, dtype: DType) -> ValueId {
        // A component may read several of these inputs, but names are unique.
        let name = match &role {
            Role::Grid { axis } | Role::GatheredByGrid { axis, .. } => {
                format!("{}.{}", role.name(), axis.name())
            }
            Role::Valid { rate } => format!("{}.{rate}", role.name()),
            _ => role.name().to_owned(),
        };
        self.value(name, shape, dtype, ValueSource::Input(role))
    }

    /// Adds the positions of the rows as an input.
    pub fn positions(&mut self) -> ValueId {
        self.input(Role::Positions, vec![Dim::Rows], DType::I32)
    }

    /// Adds a constant of the checkpoint.
    pub fn constant(&mut self, id: WeightId) -> ValueId {
        let weight = self.graph.weight(id);
        let shape = weight.shape.iter().map(|&extent| Dim::Fixed(extent)).collect();
        self.value(weight.name.clone(), shape, weight.dtype, ValueSource::Constant(id))
    }

    /// Adds the current layer's slice of the per-layer inputs, `[R, P]`.
    pub fn per_layer_input(&mut self) -> ValueId {
        let layer = self.layer.unwrap_or(0);
        let shape = vec![Dim::Rows, Dim::Fixed(self.graph.per_layer_width)];
        self.value(format!("layer.{layer}.per-layer-input"), shape, DType::F32, ValueSource::PerLayer(layer))
    }

    /// Adds an operation whose result has the shape of its first operand.
    pub fn op(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> ValueId {
        let shape = self.component.values[inputs[0].0 as usize].shape.clone();
        self.op_shaped(name, op, inputs, shape)
    }

    /// Adds an operation with a result of this shape.
    pub fn op_shaped(&mut self, name: &str, op: Op, inputs: &[ValueId], shape: Vec<Dim>) -> ValueId {
        self.push(name, op, None, inputs, shape, None)
    }

    /// Adds `x · wᵀ`.
    pub fn linear(&mut self, name: &str, x: ValueId, weight: WeightId) -> ValueId {
        self.linear_with_bias(name, x, weight, None)
    }

    /// Adds `x · wᵀ + bias`. The bias has one value per output.
    pub fn linear_with_bias(
        &mut self,
        name: &str,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> ValueId {
        let mut shape = self.component.values[x.0 as usize].shape.clone();
        let out = self.graph.weight(weight).shape[0];
        if let Some(last) = shape.last_mut() {
            *last = Dim::Fixed(out);
        }
        let mut inputs = vec![x, self.constant(weight)];
        inputs.extend(bias.map(|bias| self.constant(bias)));
        self.op_shaped(name, Op::Linear, &inputs, shape)
    }

    /// Adds a root-mean-square normalisation, with or without a weight.
    pub fn rms_norm(
        &mut self,
        name: &str,
        x: ValueId,
        weight: Option<WeightId>,
        width: u32,
        eps: f32,
        weight_offset: f32,
    ) -> ValueId {
        let mut inputs = vec![x];
        if let Some(weight) = weight {
            inputs.push(self.constant(weight));
        }
        self.op(name, Op::RmsNorm { width, eps, weight_offset }, &inputs)
    }

    /// Adds a reshape, whose target may have symbolic extents.
    pub fn reshape(&mut self, name: &str, x: ValueId, shape: Vec<Dim>) -> ValueId {
        self.push(name, Op::Reshape { shape: Vec::new() }, Some(shape.clone()), &[x], shape, None)
    }

    /// Writes new rows to a state and returns the state after the write.
    pub fn state_update(&mut self, name: &str, id: StateId, rows: ValueId) -> ValueId {
        let state: &State = &self.graph.states[id.0 as usize];
        let shape = vec![Dim::Capacity(id), Dim::Fixed(state.width)];
        let before = self.value(state.name.clone(), shape.clone(), DType::F32, ValueSource::State(id));
        // The capacity is set at instantiation. Until then the state's identity represents it.
        let slots = self.value(
            format!("slots.{}", state.name),
            vec![Dim::Rows],
            DType::I32,
            ValueSource::Input(Role::Slots { capacity: u64::from(id.0) }),
        );
        self.push(name, Op::StateUpdate, None, &[before, rows, slots], shape, Some(id))
    }

    fn push(
        &mut self,
        name: &str,
        op: Op,
        reshape: Option<Vec<Dim>>,
        inputs: &[ValueId],
        shape: Vec<Dim>,
        writes: Option<StateId>,
    ) -> ValueId {
        let name = match self.layer {
            Some(layer) => format!("layer.{layer}.{name}"),
            None => name.to_owned(),
        };
        let node = NodeId(self.component.nodes.len() as u32);
        let output = self.value(name.clone(), shape, DType::F32, ValueSource::Node(node));
        self.component.nodes.push(Node {
            name,
            op,
            reshape,
            inputs: inputs.to_vec(),
            output,
            layer: self.layer,
            writes,
        });
        output
    }

    pub fn output(&mut self, value: ValueId, role: Role) {
        self.component.outputs.push((value, role));
    }

    /// Names a value that verification may request.
    pub fn tap(&mut self, name: &str, value: ValueId) {
        self.component.taps.push((name.to_owned(), value));
    }

    /// Returns the finished component. Checks that names are unique and every operand is produced
    /// before its use.
    pub fn finish(self) -> Result<Component> {
        let mut made = vec![false; self.component.values.len()];
        for (index, value) in self.component.values.iter().enumerate() {
            made[index] = !matches!(value.source, ValueSource::Node(_));
        }
        let mut names = std::collections::HashSet::new();
        for node in &self.component.nodes {
            if !names.insert(&node.name) {
                return Err(Error::internal("a second node with this name").at(node.op.place(&node.name)));
            }
            if let Some(input) = node.inputs.iter().find(|input| !made[input.0 as usize]) {
                let reason = format!("operand {} is used before it is produced", input.0);
                return Err(Error::internal(reason).at(node.op.place(&node.name)));
            }
            made[node.output.0 as usize] = true;
        }
        Ok(self.component)
    }
}
