//! The ports that an entry point binds, separate from its computation. This part of a graph
//! outlives compilation.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use shardwright_graph::{EntryGraph, EntryPoint, Role, Segments, StateId, StatePort, TensorId};
use shardwright_vocabulary::{DType, Encoding, ScaleBits};

/// Use of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    Input,
    Output,
    /// A state, read and written in place.
    State,
    /// A state that a run only reads. Another shard or the runtime writes it.
    StateRead,
}

impl Direction {
    /// Returns whether a run writes it.
    pub const fn is_written(self) -> bool {
        matches!(self, Direction::Output | Direction::State)
    }
}

/// A tensor that a run binds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Name, unique within the entry: the state's name for a state, otherwise the tensor's.
    pub name: String,
    /// Use of the port.
    pub direction: Direction,
    pub role: Role,
    pub shape: Vec<u64>,
    /// Element type of the tensor in the graph.
    pub dtype: DType,
    /// Its quantisation. `None` for plain floats and indices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// Power of two by which decoded values are multiplied to get the real values. `None` means 1.
    /// Shims do not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<ScaleBits>,
}

impl Port {
    /// Returns the encoding of its memory with the unit included in the scale. Returns `None` for
    /// indices, and for integers without an encoding.
    pub fn values(&self) -> Option<Encoding> {
        let encoding = self.encoding.or_else(|| Encoding::of(self.dtype, None))?;
        Some(encoding.in_units(self.unit.unwrap_or(ScaleBits::ONE)))
    }
}

/// The interface of one entry point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryInterface {
    /// Name, such as `prefill_128@4096`.
    pub name: String,
    /// The parts of the model that it computes.
    pub segments: Segments,
    /// Kind, rows and context size.
    pub point: EntryPoint,
    /// Inputs and states, then outputs, in the graph's order.
    pub ports: Vec<Port>,
    /// States it reads or writes.
    pub states: Vec<StatePort>,
}

/// Returns the name of the port for a graph's input or output.
pub(crate) fn port_name(entry: &EntryGraph, tensor: TensorId, role: &Role) -> Option<String> {
    let state = |id: StateId| entry.states.iter().find(|port| port.id == id).map(|port| &port.state.name);
    match role {
        Role::State { state: id } => state(*id).cloned(),
        Role::StateRows { state: id } => state(*id).map(|name| format!("{name}.rows")),
        _ => entry.tensors.get(tensor.0 as usize).map(|tensor| tensor.name.clone()),
    }
}

impl EntryInterface {
    /// Creates the interface of a graph.
    pub fn of(entry: &EntryGraph) -> Result<EntryInterface, String> {
        let mut ports: Vec<Port> = Vec::with_capacity(entry.inputs.len() + entry.outputs.len());
        let written = |role: &Role| entry.outputs.iter().any(|(_, existing)| existing == role);
        let inputs = entry.inputs.iter().map(|port| (port, true));
        for ((tensor, role), is_input) in inputs.chain(entry.outputs.iter().map(|port| (port, false))) {
            let name = port_name(entry, *tensor, role)
                .ok_or_else(|| format!("a port of role `{}` has no tensor or state", role.name()))?;
            let direction = match (role, is_input) {
                (Role::State { .. }, true) if !written(role) => Direction::StateRead,
                (Role::State { .. }, true) => Direction::State,
                // Already bound as an input.
                (Role::State { .. }, false) if entry.input(role).is_some() => continue,
                (Role::State { .. }, false) => Direction::State,
                (_, true) => Direction::Input,
                (_, false) => Direction::Output,
            };
            let tensor = entry.tensor(*tensor);
            ports.push(Port {
                name,
                direction,
                role: role.clone(),
                shape: tensor.shape.clone(),
                dtype: tensor.dtype,
                encoding: tensor.affine.and_then(|_| tensor.encoding()),
                unit: tensor.unit,
            });
        }
        let mut seen = HashSet::new();
        if let Some(twice) = ports.iter().find(|port| !seen.insert(port.name.as_str())) {
            return Err(format!("two ports are named `{}`", twice.name));
        }
        Ok(EntryInterface {
            name: entry.point.name().to_string(),
            segments: entry.segments.clone(),
            point: entry.point,
            ports,
            states: entry.states.clone(),
        })
    }

    /// Returns the port with that name.
    pub fn port(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|port| port.name == name)
    }
}

#[cfg(test)]
mod tests {
    use shardwright_graph::{Segment, State, StateKind, Tensor};
    use shardwright_vocabulary::EntryKind;

    use super::*;

    /// Creates an entry with one state, bound by the given inputs and outputs.
    fn entry(inputs: &[Role], outputs: &[Role]) -> EntryGraph {
        let state = State { name: "layer.0.k".to_owned(), layer: 0, width: 2, kind: StateKind::Linear };
        let mut entry = EntryGraph {
            segments: Segment::decoder(1, 2).into(),
            point: EntryPoint { kind: EntryKind::Decode, rows: 1, context: 4, largest_rows: 1 },
            tensors: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            states: vec![StatePort { id: StateId(3), state, capacity: 4, written: false }],
        };
        for (index, role) in inputs.iter().chain(outputs).enumerate() {
            entry.tensors.push(Tensor::plain(format!("t{index}"), vec![4, 2], DType::F32));
            let list = if index < inputs.len() { &mut entry.inputs } else { &mut entry.outputs };
            list.push((TensorId(index as u32), role.clone()));
        }
        entry
    }

    #[test]
    fn a_state_is_one_port_in_the_right_direction() {
        let (state, rows) = (Role::State { state: StateId(3) }, Role::StateRows { state: StateId(3) });
        let [state, rows] = [&[state][..], &[rows][..]];
        type Expected<'a> = &'a [(&'a str, Direction)];
        let cases: [(&[Role], &[Role], Expected<'_>); 4] = [
            (state, state, &[("layer.0.k", Direction::State)]),
            (state, &[], &[("layer.0.k", Direction::StateRead)]),
            (&[], state, &[("layer.0.k", Direction::State)]),
            (state, rows, &[("layer.0.k", Direction::StateRead), ("layer.0.k.rows", Direction::Output)]),
        ];
        for (inputs, outputs, expected) in cases {
            let interface = EntryInterface::of(&entry(inputs, outputs)).unwrap();
            let found: Vec<_> =
                interface.ports.iter().map(|port| (port.name.as_str(), port.direction)).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn ports_are_named_after_tensors_and_must_differ() {
        let interface = EntryInterface::of(&entry(&[Role::Positions], &[Role::Hidden])).unwrap();
        assert_eq!(interface.port("t0").unwrap().role, Role::Positions);
        assert!(interface.port("t1").unwrap().direction.is_written());
        let unknown = entry(&[Role::State { state: StateId(0) }], &[]);
        assert!(EntryInterface::of(&unknown).is_err());
        let mut twice = entry(&[Role::Positions], &[Role::Hidden]);
        twice.tensors[1].name = "t0".to_owned();
        let error = EntryInterface::of(&twice).unwrap_err();
        assert!(error.contains("`t0`"), "{error}");
    }
}
