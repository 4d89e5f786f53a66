use std::collections::BTreeMap;

use shardwright_graph::{Encodings, EntryPoint, Graph, StateId};
use shardwright_vocabulary::{At, Encoding, Error, Result};

use crate::Array;

pub(crate) const STATES_HELP: &str =
    "states are made for one context and one largest row count, the same for all entries";

/// The key and value states (KV cache) of one sequence, each `[capacity, width]`, in their
/// encodings.
#[derive(Clone, Debug, Default)]
pub struct States {
    buffers: BTreeMap<StateId, Array>,
}

impl States {
    /// Returns no states, for encoders.
    pub fn none() -> Self {
        Self::default()
    }

    /// Creates zeroed states of a model in f32, with the capacities of an entry point.
    pub fn new(graph: &Graph, point: &EntryPoint) -> Self {
        let encodings = vec![Encoding::F32; graph.states.len()];
        Self::with_encodings(graph, point, &encodings)
    }

    /// Like [`States::new`], but in the encodings of a shard.
    pub fn encoded(graph: &Graph, point: &EntryPoint, encodings: &Encodings<'_>) -> Result<Self> {
        Ok(Self::with_encodings(graph, point, &state_encodings(graph, encodings)?))
    }

    /// Like [`States::new`], but with the encodings of the states in the order of their ids.
    pub(crate) fn with_encodings(graph: &Graph, point: &EntryPoint, encodings: &[Encoding]) -> Self {
        let buffers = graph.states.iter().zip(encodings).enumerate().map(|(index, (state, encoding))| {
            let capacity = state.capacity(point.context, point.largest_rows) as usize;
            (StateId(index as u32), Array::zeros(&[capacity, state.width as usize], *encoding))
        });
        States { buffers: buffers.collect() }
    }

    /// Returns the rows of one state.
    pub fn get(&self, state: StateId) -> Option<&Array> {
        self.buffers.get(&state)
    }

    /// Replaces a state, for example after an entry wrote it.
    pub fn set(&mut self, state: StateId, rows: Array) {
        self.buffers.insert(state, rows);
    }

    /// Copies new rows to their slots, in the encoding of the state. The runtime does this for
    /// states with `update: by-runtime`. Slot −1 is skipped.
    pub fn place(&mut self, state: StateId, rows: &Array, slots: &[i32]) -> Result<()> {
        let width = rows.shape().last().copied().unwrap_or(0);
        let existing = self.buffers.get_mut(&state);
        let fits = existing
            .as_ref()
            .is_some_and(|existing| existing.shape().len() == 2 && existing.shape()[1] == width);
        let (Some(existing), true) = (existing, fits && rows.shape() == [slots.len(), width]) else {
            return Err(unfit_state(state, &[slots.len() as u64, width as u64], self.get(state)));
        };
        crate::ops::state::check_slots(slots, existing.shape()[0])?;
        match existing.encoding().filter(|existing| rows.encoding() != Some(*existing)) {
            Some(encoding) => {
                crate::ops::state::write_rows(existing, &rows.clone().bound(encoding), slots);
            }
            None => crate::ops::state::write_rows(existing, rows, slots),
        }
        Ok(())
    }
}

/// Returns the encoding of each state, in the order of their ids.
pub(crate) fn state_encodings(graph: &Graph, encodings: &Encodings<'_>) -> Result<Vec<Encoding>> {
    let of = |name: &String| encodings.state(name).at(format!("state `{name}`"));
    graph.states.iter().map(|state| of(&state.name)).collect()
}

pub(crate) fn unfit_state(state: StateId, needed: &[u64], found: Option<&Array>) -> Error {
    let found = found.map_or_else(|| "no state".to_owned(), |found| format!("{:?}", found.shape()));
    Error::argument(format!("expected {needed:?}, got {found}"))
        .at(format!("state {}", state.0))
        .with_help(STATES_HELP)
}
