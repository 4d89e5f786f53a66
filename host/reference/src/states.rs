use std::collections::BTreeMap;

use shardwright_graph::{EntryPoint, Graph, StateId};

use crate::{Array, ReferenceError};

/// The key and value states of one sequence, each `[capacity, width]`.
#[derive(Clone, Debug, Default)]
pub struct States {
    buffers: BTreeMap<StateId, Array>,
}

impl States {
    /// No states, for encoders.
    pub fn none() -> Self {
        Self::default()
    }

    /// Zeroed states of a model, with the capacities an entry point fixes.
    pub fn new(graph: &Graph, point: &EntryPoint) -> Self {
        let buffers = graph.states.iter().enumerate().map(|(index, state)| {
            let capacity = state.capacity(point.context, point.largest_rows) as usize;
            (StateId(index as u32), Array::zeros(&[capacity, state.width as usize]))
        });
        States { buffers: buffers.collect() }
    }

    /// The rows of one state.
    pub fn get(&self, state: StateId) -> Option<&Array> {
        self.buffers.get(&state)
    }

    /// Puts a state in place, as after an entry wrote it.
    pub fn set(&mut self, state: StateId, rows: Array) {
        self.buffers.insert(state, rows);
    }

    /// Copies new rows to their slots: what the runtime does for states with `update: by-runtime`. Slot −1 is skipped.
    pub fn place(&mut self, state: StateId, rows: &Array, slots: &[i32]) -> Result<(), ReferenceError> {
        let width = rows.shape().last().copied().unwrap_or(0);
        let held = self.buffers.get_mut(&state);
        let fits = held.as_ref().is_some_and(|held| held.shape().len() == 2 && held.shape()[1] == width);
        let (Some(held), true) = (held, fits && rows.shape() == [slots.len(), width]) else {
            let found = self.buffers.get(&state).map(|held| held.shape().to_vec()).unwrap_or_default();
            return Err(ReferenceError::State {
                state,
                found,
                capacity: slots.len() as u64,
                width: width as u64,
            });
        };
        crate::ops::state::check_slots(slots, held.shape()[0])?;
        crate::ops::state::write_rows(held, rows, slots);
        Ok(())
    }
}
