//! Adds taps at operations, to find the one that a device computes wrongly.

use crate::{Graph, Op, ValueId, ValueSource};

impl Graph {
    /// Returns the graph with taps at the input and the output of every linear operation, named
    /// like the values. With [`EntryOptions::taps`](crate::EntryOptions::taps) its entry points
    /// output them, except entry points that only fill states. Data are shared.
    ///
    /// With taps, a device cannot fuse a linear operation with the following operations, and so may
    /// compute it differently.
    #[must_use]
    pub fn with_operation_taps(&self) -> Graph {
        let mut graph = self.clone();
        for component in &mut graph.components {
            let linear = component.nodes.iter().filter(|node| matches!(node.op, Op::Linear));
            let ends = linear.flat_map(|node| node.inputs.first().copied().into_iter().chain([node.output]));
            let mut tapped: Vec<ValueId> = component.taps.iter().map(|(_, value)| *value).collect();
            let mut taps = Vec::new();
            for value in ends {
                let made = &component.values[value.0 as usize];
                if matches!(made.source, ValueSource::Node(_)) && !tapped.contains(&value) {
                    tapped.push(value);
                    taps.push((made.name.clone(), value));
                }
            }
            component.taps.extend(taps);
        }
        graph
    }
}
