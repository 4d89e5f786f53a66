use shardwright_graph::Role;

use crate::Array;

/// Tensors by what they mean: what a run is given, and what it gives.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    held: Vec<(Role, Array)>,
}

impl Bindings {
    /// Nothing bound.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds a tensor, replacing what was bound to that role.
    pub fn bind(&mut self, role: Role, array: Array) -> &mut Self {
        match self.held.iter_mut().find(|(held, _)| *held == role) {
            Some(slot) => slot.1 = array,
            None => self.held.push((role, array)),
        }
        self
    }

    /// The tensor bound to that role.
    pub fn get(&self, role: &Role) -> Option<&Array> {
        self.held.iter().find(|(held, _)| held == role).map(|(_, array)| array)
    }

    /// The tensor bound to that role, moved out.
    pub fn take(&mut self, role: &Role) -> Option<Array> {
        let index = self.held.iter().position(|(held, _)| held == role)?;
        Some(self.held.swap_remove(index).1)
    }

    /// Everything bound.
    pub fn iter(&self) -> impl Iterator<Item = (&Role, &Array)> {
        self.held.iter().map(|(role, array)| (role, array))
    }
}
