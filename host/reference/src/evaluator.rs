use std::borrow::Cow;

use shardwright_graph::{EntryGraph, Role};

use crate::{Array, Bindings, ReferenceError, States, Weights, ops};

/// An entry graph ready to run: checked once, its constants found.
///
/// Constants are shared with the weights they came from and widened while they are read, so an evaluator costs no memory beyond
/// the tensors of a running step.
pub struct Evaluator {
    entry: EntryGraph,
    /// Per tensor: the constant it holds.
    constants: Vec<Option<Array>>,
    /// Per tensor: the last node that reads it; its memory is given back then.
    last_use: Vec<usize>,
}

impl Evaluator {
    /// Checks the graph and finds its constants.
    pub fn new(entry: EntryGraph, weights: Weights<'_>) -> Result<Self, ReferenceError> {
        entry.validate().map_err(|source| ReferenceError::Invalid { entry: entry.point.name(), source })?;
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

    /// The graph it runs.
    pub fn entry(&self) -> &EntryGraph {
        &self.entry
    }

    /// Runs the graph with `rows` valid rows and gives its outputs by role. States are written in place and are not among the outputs;
    /// nothing is changed when an error is returned.
    pub fn run(
        &self,
        bindings: &Bindings,
        states: &mut States,
        rows: u64,
    ) -> Result<Bindings, ReferenceError> {
        if rows == 0 || rows > self.entry.point.rows {
            return Err(ReferenceError::Rows { rows, limit: self.entry.point.rows });
        }
        let bound = self.bound(bindings, states)?;
        let mut held: Vec<Option<Cow<Array>>> = Vec::new();
        held.resize_with(self.entry.tensors.len(), || None);
        for ((tensor, _), array) in self.entry.inputs.iter().zip(bound) {
            held[tensor.0 as usize] = Some(Cow::Borrowed(array));
        }
        for (slot, constant) in held.iter_mut().zip(&self.constants) {
            if let Some(constant) = constant {
                *slot = Some(Cow::Borrowed(constant));
            }
        }
        for (index, node) in self.entry.nodes.iter().enumerate() {
            let shape: Vec<usize> =
                self.entry.tensor(node.output).shape.iter().map(|&extent| extent as usize).collect();
            let output = {
                let inputs: Vec<&Array> =
                    node.inputs.iter().filter_map(|input| held[input.0 as usize].as_deref()).collect();
                ops::apply(&node.op, &inputs, &shape, rows as usize)
            };
            debug_assert_eq!(output.shape(), shape, "{}", self.entry.describe_node(index));
            held[node.output.0 as usize] = Some(Cow::Owned(output));
            for tensor in node.inputs.iter().chain([&node.output]) {
                if self.last_use[tensor.0 as usize] == index {
                    held[tensor.0 as usize] = None;
                }
            }
        }
        let mut outputs = Bindings::new();
        let mut written = Vec::new();
        for (tensor, role) in &self.entry.outputs {
            let Some(array) = held[tensor.0 as usize].take().map(Cow::into_owned) else { continue };
            match role {
                Role::State { state } => written.push((*state, array)),
                _ => {
                    outputs.bind(role.clone(), array);
                }
            }
        }
        drop(held);
        for (state, array) in written {
            states.set(state, array);
        }
        Ok(outputs)
    }

    /// What is bound to each input, in their order, checked.
    fn bound<'a>(
        &self,
        bindings: &'a Bindings,
        states: &'a States,
    ) -> Result<Vec<&'a Array>, ReferenceError> {
        let mut bound = Vec::with_capacity(self.entry.inputs.len());
        for (tensor, role) in &self.entry.inputs {
            let tensor = self.entry.tensor(*tensor);
            let array = match role {
                Role::State { state } => {
                    let held = states.get(*state);
                    match held.filter(|held| same_shape(held, &tensor.shape)) {
                        Some(held) => held,
                        None => {
                            return Err(ReferenceError::State {
                                state: *state,
                                found: held.map(|held| held.shape().to_vec()).unwrap_or_default(),
                                capacity: tensor.shape[0],
                                width: tensor.shape[1],
                            });
                        }
                    }
                }
                _ => bindings.get(role).ok_or_else(|| ReferenceError::Unbound {
                    entry: self.entry.point.name(),
                    role: Box::new(role.clone()),
                })?,
            };
            if !same_shape(array, &tensor.shape) || array.dtype() != tensor.dtype {
                return Err(ReferenceError::BindingShape {
                    entry: self.entry.point.name(),
                    role: Box::new(role.clone()),
                    given: array.shape().to_vec(),
                    given_dtype: array.dtype(),
                    wanted: tensor.shape.clone(),
                    wanted_dtype: tensor.dtype,
                });
            }
            if let Role::Slots { capacity } = role {
                ops::state::check_slots(array.integers(), *capacity as usize)?;
            }
            bound.push(array);
        }
        Ok(bound)
    }
}

fn same_shape(array: &Array, shape: &[u64]) -> bool {
    array.shape().len() == shape.len()
        && array.shape().iter().zip(shape).all(|(&given, &wanted)| given as u64 == wanted)
}
