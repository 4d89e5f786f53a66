use crate::operations::rules;
use crate::{EntryGraph, EntryNode, Role};

impl EntryGraph {
    /// Counts the multiply-adds of one run over all rows. Matrix products and attention are
    /// counted, because they are most of the work. Elementwise operations are not counted.
    ///
    /// Attention over a state counts every slot, visible or not.
    pub fn multiply_adds(&self) -> u64 {
        self.nodes.iter().map(|node| self.node_multiply_adds(node)).fold(0, u64::saturating_add)
    }

    fn node_multiply_adds(&self, node: &EntryNode) -> u64 {
        let shapes: Vec<&[u64]> =
            node.inputs.iter().map(|input| self.tensor(*input).shape.as_slice()).collect();
        (rules(&node.op).multiply_adds)(&shapes, &self.tensor(node.output).shape)
    }

    /// Returns the stored bytes of the constants that it reads. Each constant counts once, without
    /// its scales.
    pub fn weight_bytes(&self) -> u64 {
        let mut seen = std::collections::HashSet::new();
        self.constants()
            .filter(|(_, weight)| seen.insert(*weight))
            .map(|(tensor, _)| self.tensor(tensor).bytes())
            .fold(0, u64::saturating_add)
    }

    /// Returns the bytes of the states that it writes, in the graph or through the runtime.
    pub fn written_state_bytes(&self) -> u64 {
        self.states
            .iter()
            .filter(|port| port.written)
            .map(|port| {
                let role = Role::State { state: port.id };
                let element = self.input(&role).map_or(4, |tensor| self.tensor(tensor).dtype.bytes());
                port.capacity.saturating_mul(port.state.width).saturating_mul(element)
            })
            .fold(0, u64::saturating_add)
    }
}
