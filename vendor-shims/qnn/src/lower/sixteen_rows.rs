//! Computes two operations on 16 rows as operations on two blocks of eight.
//!
//! The compiler treats the 16 rows of a product as 4 by 4 pixels. Then two operations next to such
//! a product are wrong, on every processor tried and in all but one form of the product. All other
//! tried numbers of rows were correct.
//!
//! * A Tanh of integers after the product, whether its result is an output or is sliced, joined or
//!   reshaped: every second pair of rows is zero, or rows are exchanged, or the graph fails to run.
//!   A soft-cap of logits is such a case. The library's test `a_tanh_of_sixteen_rows_is_wrong`
//!   detects a fix.
//! * A conversion of halves to integers before the product, if an RmsNorm computed the halves: rows
//!   are exchanged. The test `a_conversion_of_sixteen_rows_is_wrong` detects a fix.

use shardwright_shim_npu::{Encoding as _, ValueId};

use super::draft::{Act, ActKind, Compute, GraphDraft};
use super::encoding::TensorEncoding;

/// The number of rows that is wrong, and the number of blocks that is correct.
const ROWS: u64 = 16;
const BLOCKS: u64 = 2;

/// Reshapes the operand of each such operation to `[1, 2, 8, columns]`.
pub(super) fn split(draft: &mut GraphDraft<'_>) {
    for act in std::mem::take(&mut draft.nodes) {
        let Some((operand, encoding, result)) = wrong(draft, &act) else {
            draft.nodes.push(act);
            continue;
        };
        let columns = draft.shape(operand).last().copied().unwrap_or(1);
        let shape = vec![1, BLOCKS, ROWS / BLOCKS, columns];
        let of = |what: &str| format!("{}.{what}", act.name);
        let blocks =
            draft.act(ActKind::Reshape, &[operand], (shape.clone(), encoding), &of("blocks"), act.origin);
        let computed = draft.act(act.kind.clone(), &[blocks], (shape, result), &of("whole"), act.origin);
        draft.nodes.push(Act { kind: ActKind::Reshape, inputs: vec![computed], ..act });
    }
}

/// Returns the operand of an operation that is computed wrongly, with its encoding and the encoding
/// of the result.
fn wrong(draft: &GraphDraft<'_>, act: &Act) -> Option<(ValueId, TensorEncoding, TensorEncoding)> {
    let operand = *act.inputs.first()?;
    let (encoding, result) = (draft.encoding(operand)?, draft.encoding(act.output)?);
    let rows: u64 = draft.shape(operand).iter().rev().skip(1).product();
    let is_wrong = match &act.kind {
        ActKind::Compute(Compute::Unary("Tanh")) => encoding.is_fixed(),
        ActKind::Compute(Compute::Convert) => encoding == TensorEncoding::Half && result.is_fixed(),
        _ => false,
    };
    (is_wrong && rows == ROWS).then_some((operand, encoding, result))
}

#[cfg(test)]
mod tests {
    use shardwright_shim_npu::ValueKind;

    use super::*;

    /// Splits an operation and returns the kinds of the resulting operations, with the extents of
    /// their results.
    fn after(rows: &[u64], kind: Compute, encoding: TensorEncoding) -> Vec<(ActKind, Vec<u64>)> {
        let mut draft = GraphDraft::default();
        let shape = [rows, &[600]].concat();
        let x = draft.value("in", shape.clone(), ValueKind::Input(encoding));
        let y = draft.act(kind, &[x], (shape, encoding), "y", None);
        (draft.inputs, draft.outputs) = (vec![x], vec![y]);
        split(&mut draft);
        assert_eq!(draft.nodes.last().unwrap().output, y);
        draft.nodes.iter().map(|act| (act.kind.clone(), draft.shape(act.output).to_vec())).collect()
    }

    #[test]
    fn sixteen_rows_are_two_blocks() {
        let (tanh, gelu) = (Compute::Unary("Tanh"), Compute::Unary("Gelu"));
        for rows in [&[16][..], &[1, 16], &[4, 4]] {
            let (whole, blocks) = ([rows, &[600]].concat(), vec![1, 2, 8, 600]);
            let expected = [
                (ActKind::Reshape, blocks.clone()),
                (tanh.clone().into(), blocks),
                (ActKind::Reshape, whole.clone()),
            ];
            assert_eq!(after(rows, tanh.clone(), TensorEncoding::FRACTION), expected);
            assert_eq!(
                after(rows, tanh.clone(), TensorEncoding::Half),
                [(tanh.clone().into(), whole.clone())]
            );
            assert_eq!(after(rows, gelu.clone(), TensorEncoding::FRACTION), [(gelu.clone().into(), whole)]);
        }
        for rows in [&[15][..], &[2, 16], &[]] {
            assert_eq!(after(rows, tanh.clone(), TensorEncoding::FRACTION).len(), 1);
        }
    }
}
