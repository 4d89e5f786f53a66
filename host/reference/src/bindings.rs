use shardwright_graph::Role;

use crate::Array;

/// Tensors by role: the inputs and outputs of a run.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    bound: Vec<(Role, Array)>,
}

impl Bindings {
    /// Creates empty bindings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds a tensor to a role, replacing an earlier tensor of that role.
    pub fn bind(&mut self, role: Role, array: Array) -> &mut Self {
        match self.bound.iter_mut().find(|(existing, _)| *existing == role) {
            Some(slot) => slot.1 = array,
            None => self.bound.push((role, array)),
        }
        self
    }

    /// Returns the tensor bound to that role.
    pub fn get(&self, role: &Role) -> Option<&Array> {
        self.bound.iter().find(|(existing, _)| existing == role).map(|(_, array)| array)
    }

    /// Removes and returns the tensor bound to that role.
    pub fn take(&mut self, role: &Role) -> Option<Array> {
        let index = self.bound.iter().position(|(existing, _)| existing == role)?;
        Some(self.bound.swap_remove(index).1)
    }

    /// Iterates over all roles and tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&Role, &Array)> {
        self.bound.iter().map(|(role, array)| (role, array))
    }
}
