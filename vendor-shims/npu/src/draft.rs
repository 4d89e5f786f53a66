//! The graph between an entry and the compiler's graph. Its operations have one result each and can
//! be rewritten.

use std::collections::{HashMap, HashSet};

use crate::Encoding;

/// Index of a value within its [`GraphDraft`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub usize);

/// A graph under construction, with a vendor's encodings `E`, contents of constants `C` and
/// operations `K`. Nodes are in an order in which they can run.
#[derive(Debug)]
pub struct GraphDraft<E, C, K> {
    /// All values. Values that no node uses are not emitted.
    pub values: Vec<Value<E, C>>,
    /// All operations, in an order in which they can run.
    pub nodes: Vec<Act<K>>,
    /// The value of each input port.
    pub inputs: Vec<ValueId>,
    /// The value of each output port.
    pub outputs: Vec<ValueId>,
    constants: HashMap<(String, Vec<u64>), ValueId>,
}

#[derive(Debug)]
pub struct Value<E, C> {
    /// Name, which need not be unique yet.
    pub name: String,
    pub shape: Vec<u64>,
    pub kind: ValueKind<E, C>,
}

/// Origin of a value.
#[derive(Clone, Debug)]
pub enum ValueKind<E, C> {
    /// Bound before a run.
    Input(E),
    /// Computed by a node.
    Computed(E),
    /// Known before a run.
    Constant(Constant<C>),
}

/// A tensor known before a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant<C> {
    /// Identifies content and layout: equal names in one entry mean equal constants.
    pub name: String,
    pub dims: Vec<u64>,
    /// Type, scales and stored values, in the form the vendor's compiler expects.
    pub content: C,
}

/// An operation with one result.
#[derive(Clone, Debug, PartialEq)]
pub struct Act<K> {
    pub kind: Kind<K>,
    pub inputs: Vec<ValueId>,
    pub output: ValueId,
    /// The entry's node from which the operation was lowered.
    pub origin: Option<NodeRef>,
    /// Name, which need not be unique yet.
    pub name: String,
}

/// The node of an entry from which an operation was lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRef {
    /// Index of the node in the entry.
    pub node: u32,
    pub layer: Option<u32>,
}

/// Kind of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind<K> {
    /// Values that keep their order, with other extents.
    Reshape,
    /// A permutation of the axes.
    Transpose(Vec<u32>),
    /// A range of one axis.
    Slice {
        axis: usize,
        start: u64,
        /// One past the last index.
        end: u64,
    },
    /// Concatenation along an axis.
    Concat(usize),
    /// A computing operation of the vendor.
    Compute(K),
}

impl<K> From<K> for Kind<K> {
    fn from(kind: K) -> Kind<K> {
        Kind::Compute(kind)
    }
}

/// Returns whether a permutation keeps the order of all axes that are longer than 1.
pub fn moves_only_ones(perm: &[u32], shape: &[u64]) -> bool {
    let long: Vec<u32> = perm.iter().copied().filter(|axis| shape.get(*axis as usize) != Some(&1)).collect();
    long.windows(2).all(|pair| pair[0] < pair[1])
}

impl<E, C, K> Default for GraphDraft<E, C, K> {
    fn default() -> Self {
        GraphDraft {
            values: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            constants: HashMap::new(),
        }
    }
}

impl<E: Encoding, C, K> GraphDraft<E, C, K> {
    pub fn value(&mut self, name: impl Into<String>, shape: Vec<u64>, kind: ValueKind<E, C>) -> ValueId {
        self.values.push(Value { name: name.into(), shape, kind });
        ValueId(self.values.len() - 1)
    }

    /// Adds a constant and returns its value. Constants with equal names and extents are added only
    /// once.
    pub fn constant(&mut self, constant: Constant<C>) -> ValueId {
        let key = (constant.name.clone(), constant.dims.clone());
        if let Some(&known) = self.constants.get(&key) {
            return known;
        }
        let shape = constant.dims.clone();
        let id = self.value(constant.name.clone(), shape, ValueKind::Constant(constant));
        self.constants.insert(key, id);
        id
    }

    /// Adds an operation with a new value as result.
    pub fn act(
        &mut self,
        kind: impl Into<Kind<K>>,
        inputs: &[ValueId],
        (shape, encoding): (Vec<u64>, E),
        name: &str,
        origin: Option<NodeRef>,
    ) -> ValueId {
        let output = self.value(name, shape, ValueKind::Computed(encoding));
        let (kind, inputs) = (kind.into(), inputs.to_vec());
        self.nodes.push(Act { kind, inputs, output, origin, name: name.to_owned() });
        output
    }

    /// Returns the extents of a value.
    pub fn shape(&self, value: ValueId) -> &[u64] {
        &self.values[value.0].shape
    }

    /// Returns the encoding of an activation, or `None` for a constant.
    pub fn encoding(&self, value: ValueId) -> Option<E> {
        match self.values[value.0].kind {
            ValueKind::Input(encoding) | ValueKind::Computed(encoding) => Some(encoding),
            ValueKind::Constant(_) => None,
        }
    }

    /// Returns whether a value is computed by an operation.
    pub fn is_computed(&self, value: ValueId) -> bool {
        matches!(self.values[value.0].kind, ValueKind::Computed(_))
    }

    /// Gives every output port a value of its own that an operation computes, because compilers
    /// accept no other outputs. `copy` adds an operation that copies a value.
    pub fn part_outputs(&mut self, mut copy: impl FnMut(&mut Self, ValueId) -> ValueId) {
        let mut left: HashSet<ValueId> = HashSet::new();
        for port in 0..self.outputs.len() {
            let value = self.outputs[port];
            if self.is_computed(value) && left.insert(value) {
                continue;
            }
            let copied = copy(self, value);
            left.insert(copied);
            self.outputs[port] = copied;
        }
    }

    /// Removes operations whose results are never read.
    pub fn sweep(&mut self) {
        let mut used = vec![false; self.values.len()];
        self.outputs.iter().for_each(|output| used[output.0] = true);
        let mut keep = vec![false; self.nodes.len()];
        for (index, act) in self.nodes.iter().enumerate().rev() {
            if used[act.output.0] {
                keep[index] = true;
                act.inputs.iter().for_each(|input| used[input.0] = true);
            }
        }
        let mut keep = keep.into_iter();
        self.nodes.retain(|_| keep.next().unwrap_or(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_moves_only_ones_moves_nothing() {
        for (perm, shape, expected) in [
            (&[0u32, 2, 1, 3][..], &[1u64, 64, 8, 256][..], false),
            (&[0, 2, 1, 3], &[1, 1, 8, 256], true),
            (&[0, 2, 1, 3], &[1, 64, 1, 256], true),
            (&[1, 2, 0, 3], &[1, 1, 8, 256], true),
            (&[1, 2, 0, 3], &[64, 1, 8, 256], false),
            (&[1, 0], &[3, 4], false),
            (&[1, 0], &[1, 4], true),
        ] {
            assert_eq!(moves_only_ones(perm, shape), expected, "{perm:?} {shape:?}");
        }
    }
}
