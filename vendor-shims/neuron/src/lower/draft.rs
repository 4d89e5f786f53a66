//! The graph between an entry and the adapter's: operations with one result each, free to be rewritten.

use std::collections::HashMap;

use super::encoding::Encoding;
use crate::graph::{Channels, Value as Bytes};

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
#[derive(Debug)]
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
    /// Operand type.
    pub kind: i32,
    /// Of types quantised per tensor; 0 for others.
    pub scale: f32,
    /// Of types quantised per channel.
    pub channels: Option<Channels>,
    /// The stored values.
    pub value: Bytes<'w>,
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
    /// That node's layer: rewriting stays inside one, so that the operations of layers add up.
    pub layer: Option<u32>,
    /// For errors.
    pub name: String,
}

/// Operations that the adapter has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ActKind {
    /// x `[R, K]`, constant `[N, K]` → `[R, N]`.
    FullyConnected,
    /// Of the two innermost axes.
    BatchMatMul {
        /// The second operand is `[.., N, K]`.
        transpose_second: bool,
    },
    /// Value by value with broadcasting, and a fused activation of none.
    Fused(i32),
    /// Value by value with broadcasting.
    Binary(i32),
    /// Value by value, or from one type to another.
    Unary(i32),
    /// The hyperbolic form.
    Gelu,
    /// Over the last axis.
    Softmax,
    /// Over the last axis, with a scale: the extension's. Bits of the epsilon.
    RmsNorm(u32),
    /// Over the last axis, kept as 1.
    Reduce(i32),
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

    /// Takes out what moves nothing: reshapes of reshapes of one layer, those to the shape that is there, and whatever nothing reads then. No value
    /// changes, and nothing of one layer depends on another: the operations of a shard are those of its layers together.
    pub fn tidy(&mut self) {
        let mut alias: Vec<ValueId> = (0..self.values.len()).map(ValueId).collect();
        let mut maker: Vec<Option<usize>> = vec![None; self.values.len()];
        let mut nodes: Vec<Act> = Vec::with_capacity(self.nodes.len());
        for mut act in std::mem::take(&mut self.nodes) {
            act.inputs.iter_mut().for_each(|input| *input = alias[input.0]);
            if act.kind == ActKind::Reshape {
                let before = maker[act.inputs[0].0].map(|index| &nodes[index]);
                if let Some(before) = before
                    && before.kind == ActKind::Reshape
                    && before.layer == act.layer
                {
                    act.inputs[0] = before.inputs[0];
                }
                if self.shape(act.inputs[0]) == self.shape(act.output) {
                    alias[act.output.0] = act.inputs[0];
                    continue;
                }
            }
            maker[act.output.0] = Some(nodes.len());
            nodes.push(act);
        }
        self.nodes = nodes;
        self.outputs.iter_mut().for_each(|output| *output = alias[output.0]);
        self.sweep();
    }

    /// Drops operations that nothing reads.
    fn sweep(&mut self) {
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

    fn act(draft: &mut Draft<'_>, kind: ActKind, input: ValueId, shape: &[u64], layer: u32) -> ValueId {
        let output = draft.value("x", shape.to_vec(), ValueKind::Computed(Encoding::Half));
        draft.nodes.push(Act {
            kind,
            inputs: vec![input],
            output,
            origin: None,
            layer: Some(layer),
            name: "act".to_owned(),
        });
        output
    }

    #[test]
    fn what_moves_nothing_goes_inside_a_layer_alone() {
        let mut draft = Draft::default();
        let x = draft.value("in", vec![6, 4], ValueKind::Input(Encoding::Half));
        draft.inputs.push(x);
        let a = act(&mut draft, ActKind::Reshape, x, &[1, 6, 2, 2], 0);
        let b = act(&mut draft, ActKind::Reshape, a, &[6, 4], 0);
        let c = act(&mut draft, ActKind::Reshape, b, &[24], 0);
        let d = act(&mut draft, ActKind::Reshape, c, &[4, 6], 1);
        let unread = act(&mut draft, ActKind::Gelu, d, &[4, 6], 1);
        assert_ne!(unread, d);
        draft.outputs.push(d);
        draft.tidy();
        let kinds: Vec<_> = draft.nodes.iter().map(|act| (act.inputs[0], act.output)).collect();
        assert_eq!(kinds, [(x, c), (c, d)], "the first layer's are one, the second's stays");
    }

    #[test]
    fn an_order_that_moves_only_ones_moves_nothing() {
        for (perm, shape, expected) in [
            (&[0u32, 2, 1, 3][..], &[1u64, 64, 8, 256][..], false),
            (&[0, 2, 1, 3], &[1, 1, 8, 256], true),
            (&[0, 2, 1, 3], &[1, 64, 1, 256], true),
            (&[1, 0], &[3, 4], false),
            (&[1, 0], &[1, 4], true),
        ] {
            assert_eq!(moves_only_ones(perm, shape), expected, "{perm:?} {shape:?}");
        }
    }
}
