use std::borrow::Cow;

use shardwright_graph::{EntryGraph, LAST_HIDDEN, Role, Tensor, TensorId, range_key, state_key};
use shardwright_vocabulary::{At, Error, Result};

use crate::states::{STATES_HELP, unfit_state};
use crate::step::unfit_rows;
use crate::{Array, Bindings, States, Weights, ops};

/// An entry graph that is ready to run: checked once, with its constants found.
///
/// Constants are shared with the weights they come from and decoded while they are read. So an
/// evaluator needs no memory beyond the tensors of a running step.
pub struct Evaluator {
    entry: EntryGraph,
    /// For each tensor: its array, if it is a constant.
    constants: Vec<Option<Array>>,
    /// For each tensor: the last node that reads it, after which its memory is freed.
    last_use: Vec<usize>,
}

impl Evaluator {
    /// Checks the graph and finds its constants.
    pub fn new(entry: EntryGraph, weights: Weights<'_>) -> Result<Self> {
        entry.validate().at(place_of(&entry))?;
        let mut constants = Vec::with_capacity(entry.tensors.len());
        for tensor in &entry.tensors {
            constants.push(tensor.weight.map(|id| weights.constant(tensor, id)).transpose()?);
        }
        let mut last_use = vec![0; entry.tensors.len()];
        for (index, node) in entry.nodes.iter().enumerate() {
            last_use[node.output.0 as usize] = index;
            node.inputs.iter().for_each(|input| last_use[input.0 as usize] = index);
        }
        for (tensor, _) in &entry.outputs {
            last_use[tensor.0 as usize] = usize::MAX;
        }
        Ok(Evaluator { entry, constants, last_use })
    }

    /// Returns the graph that the evaluator runs.
    pub fn entry(&self) -> &EntryGraph {
        &self.entry
    }

    /// Runs the graph with `rows` valid rows and returns its outputs by role, in their encodings.
    ///
    /// If a port has a unit, its bound, returned and observed values are multiplied by the unit.
    /// Bindings in another encoding than their port are converted. States must have the encoding
    /// that the entry declares. They are written in place and are not among the outputs. An error
    /// changes no state.
    pub fn run(&self, bindings: &Bindings, states: &mut States, rows: u64) -> Result<Bindings> {
        self.run_with(bindings, states, rows, &mut |_, _| Ok(None))
    }

    /// Like [`Evaluator::run`], but passes the result of every node to `correct`, as soon as it is
    /// computed. `correct` may replace it by other values of the same shape, in the encoding of the
    /// tensor. Later nodes are computed from these values.
    ///
    /// So the results of a device can be compared operation by operation: if the device's own
    /// values replace the computed ones, each operation is computed from the inputs that the device
    /// read.
    pub fn run_corrected(
        &self,
        bindings: &Bindings,
        states: &mut States,
        rows: u64,
        correct: &mut dyn FnMut(TensorId, &Array) -> Option<Array>,
    ) -> Result<Bindings> {
        let mut made = vec![false; self.entry.tensors.len()];
        for node in &self.entry.nodes {
            made[node.output.0 as usize] = true;
        }
        self.run_with(bindings, states, rows, &mut |tensor, array| {
            Ok(if made[tensor.0 as usize] { correct(tensor, array) } else { None })
        })
    }

    /// Like [`Evaluator::run`] with all rows valid, but also passes tensors to the observer. These
    /// are all tensors except constants and indices, decoded, under their [`range_key`]. An updated
    /// state is passed under its [`state_key`] too. States before the run are not passed.
    ///
    /// Of boundaries (`hidden`, `per-layer`) only outputs are passed, since the inputs are outputs
    /// of the previous entry. But the last residual stream is passed again under its own name if it
    /// is the input of a head or pooling. An error of the observer ends the run.
    pub fn run_observed(
        &self,
        bindings: &Bindings,
        states: &mut States,
        observe: &mut dyn FnMut(&str, &[f32]) -> Result<()>,
    ) -> Result<Bindings> {
        let state_of = |tensor: TensorId| {
            self.entry.outputs.iter().find_map(|(output, role)| match role {
                Role::State { state } if *output == tensor => {
                    self.entry.states.iter().find(|port| port.id == *state)
                }
                _ => None,
            })
        };
        let mut shown = |tensor: TensorId, array: &Array| {
            let role = self.entry.inputs.iter().find(|(input, _)| *input == tensor).map(|(_, role)| role);
            let key = range_key(&self.entry, tensor);
            let is_shown = match role {
                Some(Role::State { .. } | Role::PerLayer { .. }) => false,
                Some(Role::Hidden) => key == LAST_HIDDEN,
                _ => true,
            };
            if !is_shown || self.entry.tensor(tensor).is_index() {
                return Ok(None);
            }
            let values = array.floats();
            observe(&key, &values)?;
            if let Some(port) = state_of(tensor) {
                observe(&state_key(&port.state.name), &values)?;
            }
            Ok(None)
        };
        self.run_with(bindings, states, self.entry.point.rows, &mut shown)
    }

    fn run_with(
        &self,
        bindings: &Bindings,
        states: &mut States,
        rows: u64,
        show: &mut dyn FnMut(TensorId, &Array) -> Result<Option<Array>>,
    ) -> Result<Bindings> {
        if rows == 0 || rows > self.entry.point.rows {
            return Err(unfit_rows(rows, self.entry.point.rows));
        }
        let bound = self.bound(bindings, states)?;
        let mut arrays: Vec<Option<Cow<Array>>> = Vec::new();
        arrays.resize_with(self.entry.tensors.len(), || None);
        for ((tensor, _), array) in self.entry.inputs.iter().zip(bound) {
            show(*tensor, &stands_for(&array, self.entry.tensor(*tensor)))?;
            arrays[tensor.0 as usize] = Some(array);
        }
        for (slot, constant) in arrays.iter_mut().zip(&self.constants) {
            if let Some(constant) = constant {
                *slot = Some(Cow::Borrowed(constant));
            }
        }
        for (index, node) in self.entry.nodes.iter().enumerate() {
            let tensor = self.entry.tensor(node.output);
            let shape: Vec<usize> = tensor.shape.iter().map(|&extent| extent as usize).collect();
            let output = {
                let inputs: Vec<&Array> =
                    node.inputs.iter().filter_map(|input| arrays[input.0 as usize].as_deref()).collect();
                ops::apply(&node.op, &inputs, &shape, rows as usize)
            };
            debug_assert_eq!(output.shape(), shape, "{}", self.entry.describe_node(index));
            debug_assert!(!node.op.is_movement() || output.encoding() == tensor.encoding());
            let output = match tensor.encoding() {
                Some(encoding) => output.encoded(encoding),
                None => output,
            };
            let output = match show(node.output, &stands_for(&output, tensor))? {
                Some(other) if other.shape() == output.shape() => in_unit_of(other, tensor),
                _ => output,
            };
            arrays[node.output.0 as usize] = Some(Cow::Owned(output));
            for tensor in node.inputs.iter().chain([&node.output]) {
                if self.last_use[tensor.0 as usize] == index {
                    arrays[tensor.0 as usize] = None;
                }
            }
        }
        let mut outputs = Bindings::new();
        let mut written = Vec::new();
        for (tensor, role) in &self.entry.outputs {
            let Some(array) = arrays[tensor.0 as usize].take().map(Cow::into_owned) else { continue };
            match role {
                Role::State { state } => written.push((*state, array)),
                _ => {
                    let array = stands_for(&array, self.entry.tensor(*tensor)).into_owned();
                    outputs.bind(role.clone(), array);
                }
            }
        }
        drop(arrays);
        for (state, array) in written {
            states.set(state, array);
        }
        Ok(outputs)
    }

    /// Returns the array bound to each input, in their order, checked and in the encoding of the
    /// port.
    fn bound<'a>(&self, bindings: &'a Bindings, states: &'a States) -> Result<Vec<Cow<'a, Array>>> {
        let mut bound = Vec::with_capacity(self.entry.inputs.len());
        for (tensor, role) in &self.entry.inputs {
            let tensor = self.entry.tensor(*tensor);
            let array = match role {
                Role::State { state } => {
                    let existing = states.get(*state);
                    existing
                        .filter(|existing| same_shape(existing, &tensor.shape))
                        .ok_or_else(|| unfit_state(*state, &tensor.shape, existing))?
                }
                _ => bindings.get(role).ok_or_else(|| unbound(&self.entry, role))?,
            };
            let is_kind = tensor.is_index() == array.encoding().is_none();
            if !same_shape(array, &tensor.shape) || !is_kind {
                let message = format!(
                    "expected {} {:?} for {}, got {} {:?}",
                    tensor.dtype,
                    tensor.shape,
                    describe(role),
                    array.dtype(),
                    array.shape()
                );
                return Err(Error::argument(message).at(place_of(&self.entry)));
            }
            if let Role::Slots { capacity } = role {
                ops::state::check_slots(array.integers(), *capacity as usize)?;
            }
            if tensor.unit.is_some() {
                bound.push(Cow::Owned(in_unit_of(array.clone(), tensor)));
                continue;
            }
            let Some(encoding) = tensor.encoding().filter(|wanted| array.encoding() != Some(*wanted)) else {
                bound.push(Cow::Borrowed(array));
                continue;
            };
            if let (Role::State { state }, Some(found)) = (role, array.encoding()) {
                return Err(Error::argument(format!("expected the encoding {encoding}, got {found}"))
                    .at(format!("state {}", state.0))
                    .with_help(STATES_HELP));
            }
            bound.push(Cow::Owned(array.clone().bound(encoding)));
        }
        Ok(bound)
    }
}

/// Returns the place of an error in an entry graph.
pub(crate) fn place_of(entry: &EntryGraph) -> String {
    format!("entry `{}`", entry.point.name())
}

fn unbound(entry: &EntryGraph, role: &Role) -> Error {
    let help = "`step::step_input` computes every step input; boundaries come from the entry before";
    Error::argument(format!("no tensor is bound to {}", describe(role))).at(place_of(entry)).with_help(help)
}

fn describe(role: &Role) -> String {
    match role {
        Role::Tap { name } => format!("tap `{name}`"),
        Role::Slots { capacity } => format!("slots of {capacity}"),
        Role::Gathered { asset } => format!("gathered rows of asset {}", asset.0),
        Role::State { state } | Role::StateRows { state } => format!("{} {}", role.name(), state.0),
        _ => role.name().to_owned(),
    }
}

/// Multiplies the values of a tensor by its unit.
fn stands_for<'a>(array: &'a Array, tensor: &Tensor) -> Cow<'a, Array> {
    match tensor.unit {
        Some(unit) => Cow::Owned(array.clone().times(unit.get())),
        None => Cow::Borrowed(array),
    }
}

/// Divides values from outside the graph by the unit of a tensor, and encodes them like the host.
fn in_unit_of(values: Array, tensor: &Tensor) -> Array {
    let values = match tensor.unit {
        Some(unit) => values.times(unit.get().recip()),
        None => values,
    };
    match tensor.encoding() {
        Some(encoding) => values.bound(encoding),
        None => values,
    }
}

fn same_shape(array: &Array, shape: &[u64]) -> bool {
    array.shape().len() == shape.len()
        && array.shape().iter().zip(shape).all(|(&actual, &wanted)| actual as u64 == wanted)
}
