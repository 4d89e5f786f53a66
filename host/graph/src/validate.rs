//! Checks an entry graph that comes from outside, such as a work order read from disk or a replayed
//! case.
//!
//! After [`EntryGraph::validate`] every index is in range, nodes are in an order in which they can
//! run, shapes agree with [`infer_shape`], and states are safely written in place. So the graph can
//! be indexed freely. The reader of the graph has bounded its bytes, and the check needs time and
//! memory linear in them. It never panics or allocates by a number from the file.

use std::collections::{HashMap, HashSet};

use shardwright_vocabulary::{DType, Error, Result};

use crate::operations::rules;
use crate::operations::{OPERAND_LIMIT, RANK_LIMIT, infer_shape};
use crate::{
    AttributeValue, ComponentKind, EntryGraph, EntryNode, EntryPoint, GridAxis, KeySource, Keys, Op, Role,
    StateId, TensorId,
};

/// Maximum number of operations of one entry graph. The largest planned model has about 10 000 in
/// primitives, uncut.
pub const NODE_LIMIT: usize = 1 << 17;
/// Maximum number of tensors of one entry graph: one per operation, and as many constants and
/// inputs.
pub const TENSOR_LIMIT: usize = 2 * NODE_LIMIT;
/// Maximum number of inputs, and of outputs: two per state, and taps of every layer.
pub const PORT_LIMIT: usize = 1 << 12;
/// Maximum number of states: two per layer.
pub const STATE_LIMIT: usize = 2 * LAYER_LIMIT as usize;
/// Maximum number of layers of a component.
pub const LAYER_LIMIT: u32 = 1 << 10;
/// Maximum length of a name in bytes. Names in checkpoints have fewer than 100.
pub const NAME_LIMIT: usize = 256;
/// Largest extent of an axis, since positions and slots are `i32`.
pub const EXTENT_LIMIT: u64 = i32::MAX as u64;
/// Maximum number of elements of one tensor. 4 TiB of f32 is larger than any machine this runs on,
/// and products of it do not overflow.
pub const ELEMENT_LIMIT: u64 = 1 << 40;

impl EntryGraph {
    /// Checks a graph from outside.
    ///
    /// Graphs from [`Graph::entry`](crate::Graph::entry), decomposition and legalisation are valid.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](shardwright_vocabulary::ErrorKind::Invalid). The place is the node,
    /// tensor, port or state at fault.
    pub fn validate(&self) -> Result<()> {
        let checked = Check::new(self).and_then(Check::run);
        checked.map_err(|error| {
            error.or_help("the file was altered or written by another version; build it again")
        })
    }
}

/// Source of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maker {
    Nothing,
    Constant,
    Input(usize),
    Node(usize),
}

struct Check<'g> {
    graph: &'g EntryGraph,
    maker: Vec<Maker>,
}

impl<'g> Check<'g> {
    /// Creates the check. Limits the counts before allocating anything by them.
    fn new(graph: &'g EntryGraph) -> Result<Self> {
        let counts = [
            ("nodes", graph.nodes.len(), NODE_LIMIT),
            ("tensors", graph.tensors.len(), TENSOR_LIMIT),
            ("inputs", graph.inputs.len(), PORT_LIMIT),
            ("outputs", graph.outputs.len(), PORT_LIMIT),
            ("states", graph.states.len(), STATE_LIMIT),
        ];
        for (what, found, limit) in counts {
            limited(what, found as u64, limit as u64)?;
        }
        Ok(Check { graph, maker: vec![Maker::Nothing; graph.tensors.len()] })
    }

    fn run(mut self) -> Result<()> {
        self.entry_point()?;
        self.tensors()?;
        self.states()?;
        self.inputs()?;
        self.nodes()?;
        self.outputs()?;
        self.state_use()
    }

    fn entry_point(&self) -> Result<()> {
        let point = &self.graph.point;
        limited("context rows", point.context, EXTENT_LIMIT)?;
        limited("rows of the largest entry point", point.largest_rows, EXTENT_LIMIT)?;
        if !point.is_possible() {
            let EntryPoint { rows, context, largest_rows, .. } = point;
            let message = format!(
                "an entry point of {rows} rows, at most {largest_rows}, in a context of {context} is not possible"
            );
            return Err(Error::invalid(message).with_help(
                "rows must be positive, at most the context and at most the largest row count; build the file again",
            ));
        }
        let segments = &self.graph.segments;
        let (_, end) = segments.layers();
        limited("layers", u64::from(end), u64::from(LAYER_LIMIT))?;
        limited("segments", segments.0.len() as u64, ComponentKind::ALL.len() as u64)?;
        if !segments.is_consistent() {
            return Err(Error::invalid(format!("segments `{segments}` do not form one shard")));
        }
        Ok(())
    }

    fn tensors(&mut self) -> Result<()> {
        let mut names = HashSet::new();
        for (tensor, maker) in self.graph.tensors.iter().zip(&mut self.maker) {
            name_is_good("tensor", &tensor.name, &mut names)?;
            let fault = |reason: String| of_tensor(&tensor.name, &reason);
            if tensor.shape.is_empty() || tensor.shape.len() > RANK_LIMIT {
                return Err(fault(format!("{} axes are not within 1..={RANK_LIMIT}", tensor.shape.len())));
            }
            if let Some(extent) = tensor.shape.iter().find(|extent| !(1..=EXTENT_LIMIT).contains(extent)) {
                return Err(fault(format!("extent {extent} is not within 1..={EXTENT_LIMIT}")));
            }
            if tensor.elements() > ELEMENT_LIMIT {
                return Err(fault(format!("more than {ELEMENT_LIMIT} elements in {:?}", tensor.shape)));
            }
            if tensor.unit.is_some_and(|unit| !unit.is_power_of_two() || tensor.is_index()) {
                return Err(fault("the unit of an index, or not a power of two".to_owned()));
            }
            if tensor.weight.is_some() {
                let possible = tensor.dtype.is_float() || tensor.dtype.raw_range().is_some();
                if !possible || tensor.affine.is_some() {
                    return Err(fault(format!("a constant of type {} is not supported", tensor.dtype)));
                }
                *maker = Maker::Constant;
            } else if tensor.encoding().is_none() && !tensor.is_index() {
                return Err(fault(format!("{} with {:?} is not an encoding", tensor.dtype, tensor.affine)));
            }
        }
        Ok(())
    }

    fn states(&self) -> Result<()> {
        let mut ids = HashSet::new();
        let mut names = HashSet::new();
        for port in &self.graph.states {
            let fault = |reason: String| of_state(port.id, &reason);
            name_is_good("state", &port.state.name, &mut names)?;
            if !ids.insert(port.id) {
                return Err(fault("declared twice".to_owned()));
            }
            let possible = 1..=EXTENT_LIMIT;
            if !possible.contains(&port.capacity) || !possible.contains(&port.state.width) {
                return Err(fault(format!("[{}, {}] is not possible", port.capacity, port.state.width)));
            }
            let point = &self.graph.point;
            let follows = port.state.capacity(point.context, point.largest_rows);
            if port.capacity != follows {
                return Err(fault(format!("expected {follows} rows by its kind, got {}", port.capacity)));
            }
        }
        Ok(())
    }

    fn inputs(&mut self) -> Result<()> {
        let mut roles = HashSet::new();
        for (index, (tensor, role)) in self.graph.inputs.iter().enumerate() {
            let fault = |reason: String| of_port("input", role, &reason);
            let as_input = role.is_step_input()
                || matches!(role, Role::Hidden | Role::PerLayer { .. } | Role::State { .. });
            if !as_input {
                return Err(fault("cannot be an input".to_owned()));
            }
            let name = self.port_fits(*tensor, role, fault)?;
            if !roles.insert(identity(role)) {
                return Err(fault("the role is used twice".to_owned()));
            }
            self.make(*tensor, name, Maker::Input(index))?;
        }
        Ok(())
    }

    fn nodes(&mut self) -> Result<()> {
        let mut names = HashSet::new();
        let (start, end) = self.graph.segments.layers();
        for (index, node) in self.graph.nodes.iter().enumerate() {
            name_is_good("node", &node.name, &mut names)?;
            let fault = |reason: String| of_node(node, &reason);
            if node.layer.is_some_and(|layer| !(start..end).contains(&layer)) {
                return Err(fault(format!("layer {:?} is not within {start}..{end}", node.layer)));
            }
            if node.inputs.len() > OPERAND_LIMIT {
                return Err(fault(format!("{} operands exceed {OPERAND_LIMIT}", node.inputs.len())));
            }
            attributes_are_possible(&node.op).map_err(fault)?;
            for input in &node.inputs {
                self.known(*input, || format!("node `{}`", node.name))?;
                if self.maker[input.0 as usize] == Maker::Nothing {
                    return Err(of_tensor(&self.graph.tensor(*input).name, "used before it is produced"));
                }
            }
            self.known(node.output, || format!("node `{}`", node.name))?;
            let shapes: Vec<&[u64]> =
                node.inputs.iter().map(|&input| self.graph.tensor(input).shape.as_slice()).collect();
            let gives = infer_shape(&node.op, &shapes).map_err(fault)?;
            let output = self.graph.tensor(node.output);
            if gives != output.shape {
                return Err(fault(format!("declared {:?}, gives {gives:?}", output.shape)));
            }
            if output.encoding().is_none() {
                return Err(fault(format!("declared {}, gives values", output.dtype)));
            }
            self.operands_fit(node).map_err(fault)?;
            self.make(node.output, &output.name, Maker::Node(index))?;
        }
        Ok(())
    }

    fn outputs(&self) -> Result<()> {
        let mut roles = HashSet::new();
        let mut tensors = HashSet::new();
        for (tensor, role) in &self.graph.outputs {
            let fault = |reason: String| of_port("output", role, &reason);
            if role.is_step_input() {
                return Err(fault("cannot be an output".to_owned()));
            }
            self.port_fits(*tensor, role, fault)?;
            if !roles.insert(identity(role)) {
                return Err(fault("the role is used twice".to_owned()));
            }
            if !tensors.insert(*tensor) {
                return Err(fault("the tensor is already another output".to_owned()));
            }
            if !matches!(self.maker[tensor.0 as usize], Maker::Node(_)) {
                return Err(fault("not the result of a node".to_owned()));
            }
        }
        Ok(())
    }

    /// Checks that states are safely written in place: only the write may read the state before it.
    fn state_use(&self) -> Result<()> {
        let mut written = HashSet::new();
        // Maps the state before a write in this graph to the node that writes.
        let mut before: HashMap<TensorId, usize> = HashMap::new();
        for (tensor, role) in &self.graph.outputs {
            let (Role::State { state } | Role::StateRows { state }) = role else { continue };
            let fault = |reason: &str| of_state(*state, reason);
            if !written.insert(*state) {
                return Err(fault("written twice"));
            }
            if let Role::State { .. } = role {
                let Maker::Node(index) = self.maker[tensor.0 as usize] else {
                    return Err(fault("the output is not the result of a state update"));
                };
                let node = &self.graph.nodes[index];
                let own = self.graph.input(role);
                if node.op != Op::StateUpdate || own.is_none_or(|own| node.inputs[0] != own) {
                    return Err(fault("the output is not the result of an update of the same state"));
                }
                before.insert(node.inputs[0], index);
            }
        }
        for (index, node) in self.graph.nodes.iter().enumerate() {
            if node.op == Op::StateUpdate && before.get(&node.inputs[0]) != Some(&index) {
                return Err(of_node(node, "the result is not an output with the role of that state"));
            }
            for input in &node.inputs {
                if before.get(input).is_some_and(|&writer| writer != index) {
                    let name = &self.graph.tensor(*input).name;
                    return Err(of_tensor(name, "a state that is written in place is also read elsewhere"));
                }
            }
        }
        for port in &self.graph.states {
            if port.written != written.contains(&port.id) {
                let reason = match port.written {
                    true => "declared as written, but not written",
                    false => "written, but not declared as written",
                };
                return Err(of_state(port.id, reason));
            }
        }
        Ok(())
    }

    fn known(&self, tensor: TensorId, user: impl FnOnce() -> String) -> Result<()> {
        if (tensor.0 as usize) < self.graph.tensors.len() {
            return Ok(());
        }
        let message =
            format!("expected one of {} tensors, got tensor {}", self.graph.tensors.len(), tensor.0);
        Err(Error::invalid(message).at(user()))
    }

    fn make(&mut self, tensor: TensorId, name: &str, maker: Maker) -> Result<()> {
        let slot = &mut self.maker[tensor.0 as usize];
        if *slot != Maker::Nothing {
            return Err(of_tensor(name, "produced twice"));
        }
        *slot = maker;
        Ok(())
    }

    /// Checks that shape and type of the tensor match the role. Returns the tensor's name.
    fn port_fits(&self, tensor: TensorId, role: &Role, fault: impl Fn(String) -> Error) -> Result<&'g str> {
        self.known(tensor, || format!("port `{}`", role.name()))?;
        let tensor = self.graph.tensor(tensor);
        let (wanted, is_index) = self.role_shape(role).map_err(&fault)?;
        let fits = match &wanted {
            Some(wanted) => {
                wanted.len() == tensor.shape.len()
                    && wanted
                        .iter()
                        .zip(&tensor.shape)
                        .all(|(wanted, actual)| wanted.is_none_or(|w| w == *actual))
            }
            None => true,
        };
        if !fits {
            let wanted: Vec<String> = wanted
                .unwrap_or_default()
                .iter()
                .map(|extent| extent.map_or("_".to_owned(), |extent| extent.to_string()))
                .collect();
            return Err(fault(format!("expected [{}], got {:?}", wanted.join(", "), tensor.shape)));
        }
        if is_index != (tensor.dtype == DType::I32) {
            let wanted = if is_index { "i32" } else { "values" };
            return Err(fault(format!("expected {wanted}, got {}", tensor.dtype)));
        }
        Ok(&tensor.name)
    }

    /// Returns the shape that a role prescribes, and whether it contains indices. `None` allows any
    /// shape or any extent.
    #[expect(clippy::type_complexity, reason = "read in one place, three lines above")]
    fn role_shape(&self, role: &Role) -> Result<(Option<Vec<Option<u64>>>, bool), String> {
        let rows = Some(self.graph.point.rows);
        let shape = match role {
            Role::Positions => return Ok((Some(vec![rows]), true)),
            Role::Slots { capacity } => {
                if !(1..=EXTENT_LIMIT).contains(capacity) {
                    return Err(format!("a state of {capacity} rows is not possible"));
                }
                return Ok((Some(vec![rows]), true));
            }
            Role::RotaryCos(rope) | Role::RotarySin(rope) => {
                rules(&Op::Rope(rope.clone())).attributes?;
                vec![rows, Some(u64::from(rope.head_dim / 2))]
            }
            Role::Mask(mask) => {
                let keys = match mask.keys {
                    Keys::Rows => self.graph.point.rows,
                    Keys::State { capacity } => capacity,
                    Keys::StateAndRows { capacity } => capacity.saturating_add(self.graph.point.rows),
                };
                if !(1..=EXTENT_LIMIT).contains(&keys) {
                    return Err(format!("{keys} keys are not possible"));
                }
                vec![rows, Some(keys)]
            }
            Role::Pooling => vec![Some(1), rows],
            Role::Gathered { .. } | Role::GatheredByGrid { .. } | Role::Hidden | Role::Logits => {
                vec![rows, None]
            }
            // The graph determines their number per row.
            Role::Features | Role::SoftRows => vec![None, None],
            Role::Grid { .. } => return Ok((Some(vec![rows]), true)),
            Role::Valid { rate } => {
                let rows = self.graph.point.rows.saturating_mul(u64::from(*rate));
                if !(1..=EXTENT_LIMIT).contains(&rows) {
                    return Err(format!("{rate} rows to each are not possible"));
                }
                vec![Some(rows), Some(1)]
            }
            Role::AxialCos(rope) | Role::AxialSin(rope) => {
                rules(&Op::AxialRope(*rope)).attributes?;
                vec![rows.map(|rows| rows.saturating_mul(2)), Some(u64::from(rope.head_dim / 4))]
            }
            Role::PerLayer { first, layers } => {
                let (start, end) = self.graph.segments.layers();
                // A shard that produces them produces all layers'.
                let makes = self.graph.segments.has(ComponentKind::PerLayerInput);
                if end > 0 && !makes && (*first, first.saturating_add(*layers)) != (start, end) {
                    return Err(format!(
                        "expected the layers {start}..{end} of the graph, got {layers} layers from {first}"
                    ));
                }
                vec![Some(u64::from(*layers)), rows, None]
            }
            Role::Embedding => vec![None],
            Role::Tap { name } => {
                name_is_good("tap", name, &mut HashSet::new()).map_err(|error| error.to_string())?;
                return Ok((None, false));
            }
            Role::State { state } | Role::StateRows { state } => {
                let port = self.graph.states.iter().find(|port| port.id == *state);
                let port = port.ok_or_else(|| format!("state {} is not declared", state.0))?;
                let whole = matches!(role, Role::State { .. });
                vec![if whole { Some(port.capacity) } else { rows }, Some(port.state.width)]
            }
        };
        Ok((Some(shape), false))
    }

    fn role_of(&self, tensor: TensorId) -> Option<&'g Role> {
        match self.maker[tensor.0 as usize] {
            Maker::Input(index) => Some(&self.graph.inputs[index].1),
            _ => None,
        }
    }

    /// Checks conditions other than shapes: integer operands are the correct step inputs, states
    /// are states, all others are floating-point.
    fn operands_fit(&self, node: &EntryNode) -> Result<(), String> {
        let indices = rules(&node.op).indices;
        let (floats, integers) = node.inputs.split_at(node.inputs.len() - indices);
        let result = self.graph.tensor(node.output);
        for (index, input) in floats.iter().enumerate() {
            let tensor = self.graph.tensor(*input);
            if tensor.is_index() {
                return Err(format!("operand `{}` is {}", tensor.name, tensor.dtype));
            }
            // A constant's scale is stored with the weight, so only plain constants can be
            // compared.
            let plain = tensor.weight.is_none() || tensor.dtype.is_float();
            if node.op.is_movement()
                && !(plain && (tensor.dtype, tensor.affine) == (result.dtype, result.affine))
            {
                return Err(format!("cannot move `{}` into another encoding", tensor.name));
            }
            if matches!(node.op, Op::DynamicLinear { .. })
                && index == 1
                && (tensor.weight.is_none() || tensor.dtype.is_float())
            {
                return Err(format!("weight `{}` is not an integer constant", tensor.name));
            }
        }
        let is_positions = |tensor: &TensorId| self.role_of(*tensor) == Some(&Role::Positions);
        match &node.op {
            Op::Rope(_) | Op::Attention(_) if !integers.iter().all(is_positions) => {
                return Err("the last operand is not the input `positions`".to_owned());
            }
            Op::AxialRope(_) => {
                let wanted = [GridAxis::Column, GridAxis::Row].map(|axis| Role::Grid { axis });
                if !integers.iter().zip(&wanted).all(|(tensor, role)| self.role_of(*tensor) == Some(role)) {
                    return Err("the last operands are not the inputs `grid`, column and row".to_owned());
                }
            }
            Op::Attention(attention) if attention.keys == KeySource::State => {
                for input in &node.inputs[1..3] {
                    let written = match self.maker[input.0 as usize] {
                        Maker::Node(index) => self.graph.nodes[index].op == Op::StateUpdate,
                        _ => matches!(self.role_of(*input), Some(Role::State { .. })),
                    };
                    if !written {
                        return Err(format!("operand `{}` is not a state", self.graph.tensor(*input).name));
                    }
                }
            }
            Op::StateUpdate => {
                let capacity = self.graph.tensor(node.inputs[0]).shape[0];
                if !matches!(self.role_of(node.inputs[0]), Some(Role::State { .. })) {
                    return Err("the first operand is not a state before this run".to_owned());
                }
                if self.role_of(node.inputs[2]) != Some(&Role::Slots { capacity }) {
                    return Err(format!("the last operand is not the input `slots` of {capacity} rows"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn limited(what: &'static str, found: u64, limit: u64) -> Result<()> {
    if found <= limit {
        return Ok(());
    }
    Err(Error::invalid(format!("{found} {what} exceed the limit of {limit}"))
        .with_help("cut the model into more shards, or into fewer rows per run"))
}

fn of_node(node: &EntryNode, reason: &str) -> Error {
    Error::invalid(reason).at(node.op.place(&node.name))
}

fn of_tensor(name: &str, reason: &str) -> Error {
    Error::invalid(reason).at(format!("tensor `{name}`"))
}

fn of_port(direction: &str, role: &Role, reason: &str) -> Error {
    Error::invalid(reason).at(format!("{direction} `{}`", role.name()))
}

fn of_state(state: StateId, reason: &str) -> Error {
    Error::invalid(reason).at(format!("state {}", state.0))
}

fn name_is_good<'n>(what: &str, name: &'n str, names: &mut HashSet<&'n str>) -> Result<()> {
    let reason = if name.is_empty() {
        "the name is empty"
    } else if name.len() > NAME_LIMIT {
        "the name is too long"
    } else if name.chars().any(char::is_control) {
        "the name contains control characters"
    } else if !names.insert(name) {
        "the name is used twice"
    } else {
        return Ok(());
    };
    let name: String = name.chars().take(NAME_LIMIT / 4).flat_map(char::escape_default).collect();
    Err(Error::invalid(reason).at(format!("{what} `{name}`")))
}

/// Returns a text that is equal for ports with the same meaning.
fn identity(role: &Role) -> String {
    format!("{role:?}")
}

fn attributes_are_possible(op: &Op) -> Result<(), String> {
    for attribute in op.attributes() {
        if matches!(attribute.value, AttributeValue::Float(value) if !value.is_finite()) {
            return Err(format!("`{}` is not a finite number", attribute.name));
        }
    }
    rules(op).attributes
}
