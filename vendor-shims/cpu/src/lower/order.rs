use std::collections::HashMap;

use shardwright_shim_abi::raw::SW_OP_DYNAMIC_LINEAR;

use super::graph::{Graph, Source};
use crate::program::MAX_MAPS;

impl<'a> Graph<'a> {
    /// Returns the graph with maps of the same quantised rows next to each other, so that they
    /// become one step. Also returns the previous index of each node.
    pub fn grouped(&self) -> (Graph<'a>, Vec<usize>) {
        let mut maps: HashMap<u32, Vec<usize>> = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            if let Some(x) = node.optional_input(0).filter(|_| self.moves(index)) {
                maps.entry(x).or_default().push(index);
            }
        }
        let mut taken = vec![false; self.nodes.len()];
        let mut order = Vec::with_capacity(self.nodes.len());
        for (index, node) in self.nodes.iter().enumerate() {
            if std::mem::replace(&mut taken[index], true) {
                continue;
            }
            order.push(index);
            let same = node.optional_input(0).filter(|_| self.moves(index)).and_then(|x| maps.get(&x));
            let later = same.into_iter().flatten().copied().filter(|other| !taken[*other]);
            let others: Vec<usize> = later.take(MAX_MAPS - 1).collect();
            for other in others {
                taken[other] = true;
                order.push(other);
            }
        }
        let mut place = vec![0; order.len()];
        for (at, &number) in order.iter().enumerate() {
            place[number] = at;
        }
        let mut tensors = self.tensors.clone();
        for tensor in &mut tensors {
            if let Source::Node(number) = &mut tensor.source {
                *number = place[*number];
            }
        }
        let nodes = order.iter().map(|number| self.nodes[*number]).collect();
        (Graph { entry: self.entry, nodes, tensors }, order)
    }

    /// Checks whether the node may run as soon as its first operand is computed. This is true for a
    /// map whose other operands are weights.
    fn moves(&self, index: usize) -> bool {
        let node = self.nodes[index];
        let constant = |tensor: Option<u32>| {
            tensor.is_none_or(|tensor| matches!(self.tensors[tensor as usize].source, Source::Constant(_)))
        };
        node.op() == SW_OP_DYNAMIC_LINEAR && node.inputs().skip(1).all(constant)
    }
}
