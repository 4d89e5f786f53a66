//! The graph between an entry and the adapter's graph: operations of the adapter, and the only
//! rewriting step.

use shardwright_shim_npu as npu;
use shardwright_shim_npu::ValueId;

use super::encoding::OperandEncoding;
use crate::graph::{Channels, Value};

/// A graph under construction.
pub(super) type GraphDraft<'w> = npu::GraphDraft<OperandEncoding, Content<'w>, Compute>;
/// An operation of the draft.
pub(super) type Act = npu::Act<Compute>;
/// Kind of an operation.
pub(super) type ActKind = npu::Kind<Compute>;
/// A tensor whose values are known before a run.
pub(super) type Constant<'w> = npu::Constant<Content<'w>>;
/// An entry that is being lowered to a draft.
pub(super) type Work<'s, 'w> = npu::Work<'s, 'w, OperandEncoding, Content<'w>, Compute>;
/// The entry to lower.
pub(super) type Source<'w> = npu::Source<'w, OperandEncoding>;

/// Content of a constant.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Content<'w> {
    pub kind: i32,
    /// Scale of types that are quantised per tensor, 0 for other types.
    pub scale: f32,
    /// Scales of types that are quantised per channel.
    pub channels: Option<Channels>,
    pub value: Value<'w>,
}

/// Computing operations of the adapter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Compute {
    /// x `[R, K]` and constant `[N, K]` → `[R, N]`.
    FullyConnected,
    /// Product over the two innermost axes.
    BatchMatMul {
        /// Whether the second operand is `[.., N, K]`.
        transpose_second: bool,
    },
    /// Elementwise operation with broadcasting that has a parameter for a fused activation, set to
    /// none.
    Fused(i32),
    /// Elementwise operation with broadcasting.
    Binary(i32),
    /// Elementwise operation or conversion with one operand.
    Unary(i32),
    /// GELU in the tanh form.
    Gelu,
    /// Softmax over the last axis.
    Softmax,
    /// The extension's RMS norm over the last axis, with a scale. The number has the bits of the
    /// epsilon.
    RmsNorm(u32),
    /// Reduction of the last axis, which is kept with extent 1.
    Reduce(i32),
}

/// Copies outputs that are not an operation's own result, by a slice of the whole value.
pub(super) fn leave(draft: &mut GraphDraft<'_>) {
    draft.part_outputs(|draft, value| {
        let encoding = draft.encoding(value).unwrap_or(OperandEncoding::Half);
        let (shape, name) = (draft.shape(value).to_vec(), format!("{}.out", draft.values[value.0].name));
        let all = ActKind::Slice { axis: 0, start: 0, end: shape[0] };
        draft.act(all, &[value], (shape, encoding), &name, None)
    });
}

/// Removes movements without an effect: reshapes of reshapes within a layer, reshapes to the same
/// shape, and operations whose results are then unused. Values do not change. The result for a
/// layer does not depend on other layers, so the number of operations of a shard is the sum over
/// its layers.
pub(super) fn tidy(draft: &mut GraphDraft<'_>) {
    let mut alias: Vec<ValueId> = (0..draft.values.len()).map(ValueId).collect();
    let mut maker: Vec<Option<usize>> = vec![None; draft.values.len()];
    let mut nodes: Vec<Act> = Vec::with_capacity(draft.nodes.len());
    for mut act in std::mem::take(&mut draft.nodes) {
        act.inputs.iter_mut().for_each(|input| *input = alias[input.0]);
        if act.kind == ActKind::Reshape {
            let before = maker[act.inputs[0].0].map(|index| &nodes[index]);
            if let Some(before) = before
                && before.kind == ActKind::Reshape
                && layer(before) == layer(&act)
            {
                act.inputs[0] = before.inputs[0];
            }
            if draft.shape(act.inputs[0]) == draft.shape(act.output) {
                alias[act.output.0] = act.inputs[0];
                continue;
            }
        }
        maker[act.output.0] = Some(nodes.len());
        nodes.push(act);
    }
    draft.nodes = nodes;
    draft.outputs.iter_mut().for_each(|output| *output = alias[output.0]);
    draft.sweep();
}

/// Returns the layer of an operation's node. Rewriting stays within one layer, so that the
/// operations of layers add up.
fn layer(act: &Act) -> Option<u32> {
    act.origin.and_then(|origin| origin.layer)
}

#[cfg(test)]
mod tests {
    use shardwright_shim_npu::{NodeRef, ValueKind};

    use super::*;

    fn act(
        draft: &mut GraphDraft<'_>,
        kind: impl Into<ActKind>,
        input: ValueId,
        shape: &[u64],
        layer: u32,
    ) -> ValueId {
        let origin = NodeRef { node: 0, layer: Some(layer) };
        draft.act(kind, &[input], (shape.to_vec(), OperandEncoding::Half), "act", Some(origin))
    }

    #[test]
    fn what_moves_nothing_goes_inside_a_layer_alone() {
        let mut draft = GraphDraft::default();
        let x = draft.value("in", vec![6, 4], ValueKind::Input(OperandEncoding::Half));
        draft.inputs.push(x);
        let a = act(&mut draft, ActKind::Reshape, x, &[1, 6, 2, 2], 0);
        let b = act(&mut draft, ActKind::Reshape, a, &[6, 4], 0);
        let c = act(&mut draft, ActKind::Reshape, b, &[24], 0);
        let d = act(&mut draft, ActKind::Reshape, c, &[4, 6], 1);
        let unread = act(&mut draft, Compute::Gelu, d, &[4, 6], 1);
        assert_ne!(unread, d);
        draft.outputs.push(d);
        tidy(&mut draft);
        let kinds: Vec<_> = draft.nodes.iter().map(|act| (act.inputs[0], act.output)).collect();
        assert_eq!(kinds, [(x, c), (c, d)], "the first layer's are one, the second's stays");
    }
}
