//! The graph between an entry and the compiler's: operations as the processor has them, free to be rewritten.

use std::collections::HashMap;

use super::encoding::Encoding;
use crate::graph::{DataType, QnnEncoding, StaticData};

/// Index of a value within its [`Draft`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ValueId(pub usize);

/// A graph in the making. Nodes are in an order in which they can run.
#[derive(Debug, Default)]
pub(super) struct Draft<'w> {
    /// All values; those no node mentions are not emitted.
    pub values: Vec<Value<'w>>,
    /// All operations.
    pub nodes: Vec<Act>,
    /// Per input port its value.
    pub inputs: Vec<ValueId>,
    /// Per output port its value.
    pub outputs: Vec<ValueId>,
    constants: HashMap<(String, Vec<u64>), ValueId>,
}

/// A tensor.
#[derive(Debug)]
pub(super) struct Value<'w> {
    /// Not yet unique.
    pub name: String,
    /// Extents.
    pub shape: Vec<u64>,
    /// Where it comes from.
    pub kind: ValueKind<'w>,
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub(super) enum ValueKind<'w> {
    /// Bound before a run.
    Input(Encoding),
    /// Made by a node.
    Computed(Encoding),
    /// Known before a run.
    Constant(Constant<'w>),
}

/// A tensor known before a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Constant<'w> {
    /// Says content and layout: equal names in one entry mean equal constants.
    pub name: String,
    /// Extents.
    pub dims: Vec<u64>,
    /// Element type.
    pub dtype: DataType,
    /// What stored values stand for.
    pub encoding: QnnEncoding,
    /// The stored values.
    pub data: StaticData<'w>,
}

/// An operation with one result.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Act {
    /// What it does.
    pub kind: ActKind,
    /// Operands.
    pub inputs: Vec<ValueId>,
    /// Result.
    pub output: ValueId,
    /// The entry's node it comes from.
    pub origin: Option<u32>,
    /// Not yet unique.
    pub name: String,
}

/// Operations that the processor has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ActKind {
    /// x `[.., K]`, constant `[N, K]` → `[rows, N]`.
    FullyConnected,
    /// x `[1, 1, R, K]`, constant `[1, 1, K, N]` → `[1, 1, R, N]`.
    Pixel,
    /// Of the two innermost axes, the others broadcast.
    MatMul {
        /// The second operand is `[.., N, K]`.
        transpose_second: bool,
    },
    /// Over the last axis, with a scale. Bits of the epsilon.
    RmsNorm(u32),
    /// x `[1, H, R, D]`, cos and sin `[1, R, D/2]`.
    Rotary,
    /// Value by value, one operand; the library's name.
    Unary(&'static str),
    /// Value by value with NumPy broadcasting; the library's name.
    Binary(&'static str),
    /// Over the last axis.
    Softmax,
    /// Over the last axis.
    L2Norm,
    /// Over the last axis, kept as 1; the library's name.
    Reduce(&'static str),
    /// Same values, other extents.
    Reshape,
    /// Axes in another order.
    Transpose(Vec<u32>),
    /// A range of one axis.
    Slice {
        /// Which axis.
        axis: usize,
        /// First index.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// Joined along an axis.
    Concat(usize),
    /// The same values in the encoding of the result.
    Convert,
}

impl ActKind {
    /// Whether it works on each value by itself and has one operand.
    pub fn is_pointwise(&self) -> bool {
        matches!(self, ActKind::Unary(_) | ActKind::Convert)
    }

    /// Whether all it needs of a shape is the last extent.
    pub fn is_along_last(&self) -> bool {
        matches!(self, ActKind::RmsNorm(_) | ActKind::Softmax | ActKind::L2Norm)
    }
}

/// Whether an order of axes leaves every axis longer than 1 where it was among those.
pub(super) fn moves_only_ones(perm: &[u32], shape: &[u64]) -> bool {
    let long: Vec<u32> = perm.iter().copied().filter(|axis| shape.get(*axis as usize) != Some(&1)).collect();
    long.windows(2).all(|pair| pair[0] < pair[1])
}

impl<'w> Draft<'w> {
    /// Adds a value.
    pub fn value(&mut self, name: impl Into<String>, shape: Vec<u64>, kind: ValueKind<'w>) -> ValueId {
        self.values.push(Value { name: name.into(), shape, kind });
        ValueId(self.values.len() - 1)
    }

    /// The value of a constant, added once per name and extents.
    pub fn constant(&mut self, constant: Constant<'w>) -> ValueId {
        let key = (constant.name.clone(), constant.dims.clone());
        if let Some(&known) = self.constants.get(&key) {
            return known;
        }
        let shape = constant.dims.clone();
        let id = self.value(constant.name.clone(), shape, ValueKind::Constant(constant));
        self.constants.insert(key, id);
        id
    }

    /// Adds an operation with a fresh result.
    pub fn act(
        &mut self,
        kind: ActKind,
        inputs: &[ValueId],
        (shape, encoding): (Vec<u64>, Encoding),
        name: &str,
        origin: Option<u32>,
    ) -> ValueId {
        let output = self.value(name, shape, ValueKind::Computed(encoding));
        self.nodes.push(Act { kind, inputs: inputs.to_vec(), output, origin, name: name.to_owned() });
        output
    }

    /// Extents of a value.
    pub fn shape(&self, value: ValueId) -> &[u64] {
        &self.values[value.0].shape
    }

    /// Encoding of an activation; none of a constant.
    pub fn encoding(&self, value: ValueId) -> Option<Encoding> {
        match self.values[value.0].kind {
            ValueKind::Input(encoding) | ValueKind::Computed(encoding) => Some(encoding),
            ValueKind::Constant(_) => None,
        }
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
