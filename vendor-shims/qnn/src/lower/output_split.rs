//! Splits the last operation before an output into blocks.
//!
//! The compiler writes an output from its computed layout with one or two threads, while all other
//! threads wait. For 64 rows of 1536 values this costs 50 thousand cycles. Blocks are written by as
//! many threads as there are blocks, each as soon as it is computed.

use shardwright_shim_npu::{ValueId, ValueKind};

use super::draft::{Act, ActKind, Compute, GraphDraft};
use super::parts::MAX_PARTS;
use super::variants::Leaving;

/// Number of values of a row in one block.
const BLOCK_COLUMNS: u64 = 256;

/// Splits the last operation of every output if it is elementwise. The result does not change. An
/// operation stays whole if all outputs together would have more than [`MAX_PARTS`] blocks.
pub(super) fn leave(draft: &mut GraphDraft<'_>, form: Leaving) {
    let back = match form {
        Leaving::Whole => return,
        Leaving::Rows => 2,
        Leaving::Columns => 1,
    };
    let mut leaving = draft.outputs.clone();
    leaving.sort_unstable();
    leaving.dedup();
    let mut room = MAX_PARTS;
    for act in std::mem::take(&mut draft.nodes) {
        let blocks = leaving.binary_search(&act.output).ok().and_then(|_| blocks(draft, &act, back));
        match blocks.and_then(|blocks| Some((room.checked_sub(blocks.count)?, blocks))) {
            Some((left, blocks)) => {
                room = left;
                cut(draft, &act, blocks);
            }
            None => draft.nodes.push(act),
        }
    }
}

/// The split of an operation into blocks.
struct Blocks {
    /// Axis of the result.
    axis: usize,
    /// Size of each block except the last.
    step: u64,
    count: u64,
    /// For each operand the axis along which it is split, or `None` if all blocks read the whole
    /// operand.
    operands: Vec<Option<usize>>,
}

/// Determines how to split an operation along the axis `back` axes before the end. Returns `None`
/// if a split is impossible or useless.
fn blocks(draft: &GraphDraft<'_>, act: &Act, back: usize) -> Option<Blocks> {
    if !matches!(act.kind, ActKind::Compute(Compute::Unary(_) | Compute::Binary(_))) {
        return None;
    }
    let shape = draft.shape(act.output);
    // A single row is written at once without a split.
    let rows = *shape.get(shape.len().checked_sub(2)?)?;
    let axis = shape.len() - back;
    let step = match back {
        1 => BLOCK_COLUMNS,
        _ => shape[axis].div_ceil(2),
    };
    (rows > 1 && step < shape[axis]).then_some(())?;
    let operand = |input: &ValueId| -> Option<Option<usize>> {
        let own = draft.shape(*input);
        match own.len().checked_sub(back) {
            Some(place) if own[place] == shape[axis] => {
                let is_constant = matches!(draft.values[input.0].kind, ValueKind::Constant(_));
                (!is_constant).then_some(Some(place))
            }
            // The operand is broadcast.
            _ => Some(None),
        }
    };
    let operands = act.inputs.iter().map(operand).collect::<Option<Vec<_>>>()?;
    Some(Blocks { axis, step, count: shape[axis].div_ceil(step), operands })
}

fn cut(draft: &mut GraphDraft<'_>, act: &Act, blocks: Blocks) {
    let whole = draft.shape(act.output).to_vec();
    let mut parts = Vec::new();
    let mut start = 0;
    while start < whole[blocks.axis] {
        let end = whole[blocks.axis].min(start + blocks.step);
        let inputs: Vec<ValueId> = act
            .inputs
            .iter()
            .zip(&blocks.operands)
            .map(|(input, axis)| match axis {
                Some(axis) => block_of(draft, act, *input, (*axis, start, end)),
                None => *input,
            })
            .collect();
        let mut shape = whole.clone();
        shape[blocks.axis] = end - start;
        let name = format!("{}.{start}-{end}", draft.values[act.output.0].name);
        let kind = draft.values[act.output.0].kind.clone();
        let output = draft.value(name.clone(), shape, kind);
        draft.nodes.push(Act { inputs, output, name, ..act.clone() });
        parts.push(output);
        start = end;
    }
    draft.nodes.push(Act { kind: ActKind::Concat(blocks.axis), inputs: parts, ..act.clone() });
}

/// Slices a block of an operand.
fn block_of(
    draft: &mut GraphDraft<'_>,
    act: &Act,
    value: ValueId,
    (axis, start, end): (usize, u64, u64),
) -> ValueId {
    let Some(encoding) = draft.encoding(value) else { return value };
    let mut shape = draft.shape(value).to_vec();
    shape[axis] = end - start;
    let name = format!("{}.{start}-{end}", draft.values[value.0].name);
    draft.act(ActKind::Slice { axis, start, end }, &[value], (shape, encoding), &name, act.origin)
}

#[cfg(test)]
mod tests {
    use super::super::encoding::TensorEncoding;
    use super::*;

    fn draft(kind: impl Into<ActKind>, shapes: &[&[u64]]) -> GraphDraft<'static> {
        let mut draft = GraphDraft::default();
        let inputs: Vec<ValueId> = shapes
            .iter()
            .map(|shape| draft.value("in", shape.to_vec(), ValueKind::Input(TensorEncoding::Half)))
            .collect();
        draft.inputs = inputs.clone();
        let out = draft.act(kind, &inputs, (shapes[0].to_vec(), TensorEncoding::Half), "out", None);
        draft.outputs = vec![out, out];
        draft
    }

    fn kinds(draft: &GraphDraft<'_>) -> Vec<ActKind> {
        draft.nodes.iter().map(|act| act.kind.clone()).collect()
    }

    #[test]
    fn a_sum_is_split_in_two_blocks_of_rows_or_in_blocks_of_columns() {
        let add: ActKind = Compute::Binary("ElementWiseAdd").into();
        let slice = |axis, start, end| ActKind::Slice { axis, start, end };
        let mut rows = draft(add.clone(), &[&[5, 600], &[1, 600]]);
        let out = rows.outputs[0];
        leave(&mut rows, Leaving::Rows);
        let wanted = [slice(0, 0, 3), add.clone(), slice(0, 3, 5), add.clone(), ActKind::Concat(0)];
        assert_eq!(kinds(&rows), wanted);
        assert_eq!(rows.nodes[4].output, out);
        assert_eq!(rows.shape(rows.nodes[3].output), [2, 600]);
        let mut columns = draft(add, &[&[5, 600], &[5, 600]]);
        leave(&mut columns, Leaving::Columns);
        assert_eq!(columns.nodes.len(), 3 * 3 + 1);
        let widths: Vec<u64> = columns.nodes[9].inputs.iter().map(|part| columns.shape(*part)[1]).collect();
        assert_eq!(widths, [256, 256, 88]);
    }

    #[test]
    fn operations_that_are_not_elementwise_or_fit_one_block_stay_whole() {
        for (kind, shape) in [
            (Compute::Softmax, &[5u64, 600][..]),
            (Compute::Unary("Gelu"), &[1, 600]),
            (Compute::Unary("Gelu"), &[600]),
            (Compute::Unary("Gelu"), &[5, 256]),
        ] {
            let mut draft = draft(kind.clone(), &[shape]);
            leave(&mut draft, Leaving::Columns);
            assert_eq!(kinds(&draft), [kind.into()], "{shape:?}");
        }
    }

    /// The first output has 40,000 blocks, with which the second one would exceed the limit.
    #[test]
    fn outputs_with_too_many_blocks_stay_whole() {
        let gelu: ActKind = Compute::Unary("Gelu").into();
        let shape = [2, BLOCK_COLUMNS * 40_000];
        let mut draft = draft(gelu.clone(), &[&shape]);
        let input = draft.inputs[0];
        let second =
            draft.act(gelu.clone(), &[input], (shape.to_vec(), TensorEncoding::Half), "second", None);
        draft.outputs[1] = second;
        leave(&mut draft, Leaving::Columns);
        assert_eq!(draft.nodes.len(), 2 * 40_000 + 2);
        let [.., first, last] = &draft.nodes[..] else { panic!("no operations") };
        assert_eq!((&first.kind, &last.kind), (&ActKind::Concat(1), &gelu));
        assert_eq!(last.output, second);
    }

    #[test]
    fn an_operation_whose_constant_would_be_split_stays_whole() {
        let mut draft = draft(Compute::Binary("ElementWiseMultiply"), &[&[5, 600]]);
        let number = super::super::weights::scalar(2.0, 600, TensorEncoding::Half);
        let constant = draft.constant(number);
        draft.nodes[0].inputs.push(constant);
        leave(&mut draft, Leaving::Columns);
        assert_eq!(draft.nodes.len(), 1);
        leave(&mut draft, Leaving::Rows);
        assert_eq!(draft.nodes.len(), 5);
    }
}
