//! Rewrites that preserve every value: they remove operations without effect and compute equal
//! expressions once.

use std::collections::HashMap;

use shardwright_shim_npu::draft::moves_only_ones;
use shardwright_shim_npu::{ValueId, ValueKind};

use super::draft::{Act, ActKind, Compute, GraphDraft};
use super::encoding::TensorEncoding;

/// Maximum number of rounds of rewriting. Each round moves a reshape past at least one operation or
/// removes it, and chains are short.
const MAX_ROUNDS: usize = 64;

/// Key of equal results: operation and operands, with extents and encoding of the result.
type Same = (ActKind, Vec<ValueId>, Vec<u64>, (u8, u32, i32));

fn key(encoding: Option<TensorEncoding>) -> (u8, u32, i32) {
    match encoding {
        None => (0, 0, 0),
        Some(TensorEncoding::Single) => (1, 0, 0),
        Some(TensorEncoding::Half) => (2, 0, 0),
        Some(TensorEncoding::Index) => (3, 0, 0),
        Some(TensorEncoding::Fixed16(affine)) => (4, affine.scale.to_bits(), affine.zero),
        Some(TensorEncoding::Fixed8(affine)) => (5, affine.scale.to_bits(), affine.zero),
    }
}

/// Rewrites until the draft does not change any more, then drops unread results.
pub(super) fn tidy(draft: &mut GraphDraft<'_>) {
    for _ in 0..MAX_ROUNDS {
        if !round(draft) {
            break;
        }
    }
    draft.sweep();
}

struct Round {
    alias: Vec<ValueId>,
    maker: Vec<Option<usize>>,
    nodes: Vec<Act>,
    seen: HashMap<Same, ValueId>,
    changed: bool,
}

impl Round {
    /// Returns the operand of the reshape that computes a value, if there is one.
    fn reshaped(&self, value: ValueId) -> Option<ValueId> {
        let maker = self.maker.get(value.0).copied().flatten()?;
        (self.nodes[maker].kind == ActKind::Reshape).then(|| self.nodes[maker].inputs[0])
    }

    fn push(&mut self, act: Act) {
        if self.maker.len() <= act.output.0 {
            self.maker.resize(act.output.0 + 1, None);
        }
        self.maker[act.output.0] = Some(self.nodes.len());
        self.nodes.push(act);
    }

    fn replace(&mut self, value: ValueId, by: ValueId) {
        self.alias[value.0] = by;
        self.changed = true;
    }
}

fn round(draft: &mut GraphDraft<'_>) -> bool {
    let count = draft.values.len();
    let mut round = Round {
        alias: (0..count).map(ValueId).collect(),
        maker: vec![None; count],
        nodes: Vec::with_capacity(draft.nodes.len()),
        seen: HashMap::new(),
        changed: false,
    };
    for mut act in std::mem::take(&mut draft.nodes) {
        act.inputs.iter_mut().for_each(|input| *input = round.alias[input.0]);
        if let ActKind::Transpose(perm) = &act.kind
            && moves_only_ones(perm, draft.shape(act.inputs[0]))
        {
            act.kind = ActKind::Reshape;
            round.changed = true;
        }
        match act.kind.clone() {
            ActKind::Reshape => {
                if let Some(source) = round.reshaped(act.inputs[0]) {
                    act.inputs[0] = source;
                    round.changed = true;
                }
                if draft.shape(act.inputs[0]) == draft.shape(act.output) {
                    round.replace(act.output, act.inputs[0]);
                    continue;
                }
            }
            ActKind::Transpose(perm) => {
                let maker = round.maker.get(act.inputs[0].0).copied().flatten();
                if let Some(Act { kind: ActKind::Transpose(first), inputs, .. }) =
                    maker.map(|maker| &round.nodes[maker])
                {
                    let perm: Vec<u32> = perm.iter().map(|axis| first[*axis as usize]).collect();
                    act.inputs[0] = inputs[0];
                    let is_identity = perm.iter().enumerate().all(|(place, axis)| place == *axis as usize);
                    act.kind = ActKind::Transpose(perm);
                    round.changed = true;
                    if is_identity {
                        round.replace(act.output, act.inputs[0]);
                        continue;
                    }
                }
            }
            ActKind::Compute(Compute::Convert)
                if draft.encoding(act.inputs[0]) == draft.encoding(act.output) =>
            {
                round.replace(act.output, act.inputs[0]);
                continue;
            }
            _ => {
                if let Some(inputs) = before_reshape(draft, &round, &act) {
                    sink(draft, &mut round, act, &inputs);
                    continue;
                }
            }
        }
        let encoding = draft.encoding(act.output);
        let same: Same =
            (act.kind.clone(), act.inputs.clone(), draft.shape(act.output).to_vec(), key(encoding));
        match round.seen.get(&same).copied() {
            Some(first) => round.replace(act.output, first),
            None => {
                round.seen.insert(same, act.output);
                round.push(act);
            }
        }
    }
    draft.nodes = round.nodes;
    draft.outputs.iter_mut().for_each(|output| *output = round.alias[output.0]);
    round.changed
}

/// Returns the operands of a shape-independent operation as they would be if the reshapes before it
/// were moved after it.
fn before_reshape(draft: &GraphDraft<'_>, round: &Round, act: &Act) -> Option<Vec<ValueId>> {
    let first = act.inputs[0];
    let last = |value: ValueId| draft.shape(value).last().copied();
    let ActKind::Compute(kind) = &act.kind else { return None };
    match kind {
        kind if kind.is_pointwise() => Some(vec![round.reshaped(first)?]),
        kind if kind.is_along_last() => {
            let source = round.reshaped(first)?;
            // An f16 norm keeps its operand as rows, even with one row: see the import.
            let is_half = draft.encoding(act.output) == Some(TensorEncoding::Half);
            let ranks = if is_half && matches!(kind, Compute::RmsNorm(_)) { 2..=2 } else { 1..=4 };
            let fits = last(source) == last(first) && ranks.contains(&draft.shape(source).len());
            fits.then(|| [&[source], &act.inputs[1..]].concat())
        }
        Compute::Binary(_) => {
            let second = *act.inputs.get(1)?;
            let is_number = |value: ValueId| {
                matches!(draft.values[value.0].kind, ValueKind::Constant(_))
                    && draft.shape(value).iter().product::<u64>() == 1
            };
            match (round.reshaped(first), round.reshaped(second)) {
                (Some(a), Some(b)) => {
                    let fits = draft.shape(a) == draft.shape(b) && draft.shape(first) == draft.shape(second);
                    fits.then_some(vec![a, b])
                }
                (Some(a), None) if is_number(second) => Some(vec![a, second]),
                (None, Some(b)) if is_number(first) => Some(vec![first, b]),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Applies the operation to the operands of its reshapes, then reshapes the result.
fn sink(draft: &mut GraphDraft<'_>, round: &mut Round, act: Act, inputs: &[ValueId]) {
    let computed = |value: &&ValueId| !matches!(draft.values[value.0].kind, ValueKind::Constant(_));
    let Some(shape) = inputs.iter().find(computed).map(|value| draft.shape(*value).to_vec()) else {
        return round.push(act);
    };
    let encoding = draft.encoding(act.output).unwrap_or(TensorEncoding::Half);
    let name = draft.values[act.output.0].name.clone();
    let inner = draft.value(name, shape, ValueKind::Computed(encoding));
    round.alias.push(inner);
    round.push(Act {
        kind: act.kind,
        inputs: inputs.to_vec(),
        output: inner,
        origin: act.origin,
        name: act.name.clone(),
    });
    round.push(Act { kind: ActKind::Reshape, inputs: vec![inner], ..act });
    round.changed = true;
}

#[cfg(test)]
mod tests {
    use shardwright_shim_npu::Encoding as _;

    use super::*;

    fn input(draft: &mut GraphDraft<'_>, shape: &[u64]) -> ValueId {
        let value = draft.value("in", shape.to_vec(), ValueKind::Input(TensorEncoding::Half));
        draft.inputs.push(value);
        value
    }

    fn act(
        draft: &mut GraphDraft<'_>,
        kind: impl Into<ActKind>,
        inputs: &[ValueId],
        shape: &[u64],
    ) -> ValueId {
        draft.act(kind, inputs, (shape.to_vec(), TensorEncoding::Half), "act", None)
    }

    fn kinds(draft: &GraphDraft<'_>) -> Vec<ActKind> {
        draft.nodes.iter().map(|act| act.kind.clone()).collect()
    }

    #[test]
    fn operations_that_move_nothing_are_removed() {
        let mut draft = GraphDraft::default();
        let x = input(&mut draft, &[6, 4]);
        let a = act(&mut draft, ActKind::Reshape, &[x], &[1, 6, 2, 2]);
        let b = act(&mut draft, ActKind::Transpose(vec![0, 2, 1, 3]), &[a], &[1, 2, 6, 2]);
        let c = act(&mut draft, ActKind::Transpose(vec![0, 2, 1, 3]), &[b], &[1, 6, 2, 2]);
        let d = act(&mut draft, ActKind::Reshape, &[c], &[6, 4]);
        let out = act(&mut draft, Compute::Unary("Gelu"), &[d], &[6, 4]);
        draft.outputs.push(out);
        tidy(&mut draft);
        assert_eq!(kinds(&draft), [Compute::Unary("Gelu").into()]);
        assert_eq!(draft.nodes[0].inputs, [x]);
    }

    #[test]
    fn moving_the_axis_of_one_row_is_a_reshape() {
        let mut draft = GraphDraft::default();
        let x = input(&mut draft, &[1, 1, 8, 4]);
        let a = act(&mut draft, ActKind::Transpose(vec![0, 2, 1, 3]), &[x], &[1, 8, 1, 4]);
        draft.outputs.push(a);
        tidy(&mut draft);
        assert_eq!(kinds(&draft), [ActKind::Reshape]);
    }

    #[test]
    fn reshapes_sink_past_shape_independent_operations_and_merge() {
        let mut draft = GraphDraft::default();
        let x = input(&mut draft, &[6, 4]);
        let y = input(&mut draft, &[6, 4]);
        let [a, b] = [x, y].map(|x| act(&mut draft, ActKind::Reshape, &[x], &[1, 6, 4]));
        let sum = act(&mut draft, Compute::Binary("ElementWiseAdd"), &[a, b], &[1, 6, 4]);
        let gelu = act(&mut draft, Compute::Unary("Gelu"), &[sum], &[1, 6, 4]);
        let soft = act(&mut draft, Compute::Softmax, &[gelu], &[1, 6, 4]);
        let out = act(&mut draft, ActKind::Reshape, &[soft], &[6, 4]);
        draft.outputs.push(out);
        tidy(&mut draft);
        let wanted: [ActKind; 3] = [
            Compute::Binary("ElementWiseAdd").into(),
            Compute::Unary("Gelu").into(),
            Compute::Softmax.into(),
        ];
        assert_eq!(kinds(&draft), wanted);
        assert_eq!(draft.outputs[0], draft.nodes[2].output);
    }

    #[test]
    fn a_softmax_over_other_groups_stays_where_it_is() {
        let mut draft = GraphDraft::default();
        let x = input(&mut draft, &[6, 4]);
        let a = act(&mut draft, ActKind::Reshape, &[x], &[12, 2]);
        let out = act(&mut draft, Compute::Softmax, &[a], &[12, 2]);
        draft.outputs.push(out);
        tidy(&mut draft);
        assert_eq!(kinds(&draft), [ActKind::Reshape, Compute::Softmax.into()]);
    }

    #[test]
    fn a_norm_of_floats_keeps_its_rows() {
        let norm = Compute::RmsNorm(0);
        for (encoding, wanted) in [
            (TensorEncoding::Half, vec![ActKind::Reshape, norm.clone().into()]),
            (TensorEncoding::FRACTION, vec![norm.clone().into(), ActKind::Reshape]),
        ] {
            let mut draft = GraphDraft::default();
            let x = draft.value("in", vec![1, 12, 4, 8], ValueKind::Input(encoding));
            draft.inputs.push(x);
            let rows = draft.act(ActKind::Reshape, &[x], (vec![48, 8], encoding), "rows", None);
            let out = draft.act(norm.clone(), &[rows], (vec![48, 8], encoding), "norm", None);
            draft.outputs.push(out);
            tidy(&mut draft);
            assert_eq!(kinds(&draft), wanted, "{encoding:?}");
        }
    }

    #[test]
    fn equal_operations_run_once_and_unread_ones_not_at_all() {
        let mut draft = GraphDraft::default();
        let x = input(&mut draft, &[6, 4]);
        let a = act(&mut draft, Compute::Unary("Gelu"), &[x], &[6, 4]);
        let b = act(&mut draft, Compute::Unary("Gelu"), &[x], &[6, 4]);
        act(&mut draft, Compute::Unary("Tanh"), &[x], &[6, 4]);
        let out = act(&mut draft, Compute::Binary("ElementWiseAdd"), &[a, b], &[6, 4]);
        draft.outputs.push(out);
        tidy(&mut draft);
        assert_eq!(kinds(&draft), [Compute::Unary("Gelu").into(), Compute::Binary("ElementWiseAdd").into()]);
        assert_eq!(draft.nodes[1].inputs, [a, a]);
    }
}
