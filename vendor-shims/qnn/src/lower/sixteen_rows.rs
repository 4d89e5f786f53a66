//! Computes two operations on 16 rows as ones on two blocks of eight.
//!
//! The compiler takes the 16 rows of a product for 4 by 4 pixels. Two operations beside such a
//! product then are wrong, on every processor tried and in all but one form of the product. No
//! other number of rows was seen to be wrong.
//!
//! * A Tanh of integers that follows it, whether the result leaves or is sliced, joined or
//!   reshaped: every second pair of rows is zero, or rows are exchanged, or the graph fails to run.
//!   A soft-cap of logits is such a case. The library's test `a_tanh_of_sixteen_rows_is_wrong`
//!   tells when that changes.
//! * A conversion of halves to integers that it reads, if an RmsNorm made the halves: rows are
//!   exchanged. `a_conversion_of_sixteen_rows_is_wrong` tells when that changes.

use shardwright_shim_npu::{Encoding as _, ValueId};

use super::draft::{Act, ActKind, Compute, Draft};
use super::encoding::Encoding;

/// The number of rows that is wrong, and the blocks that are right.
const ROWS: u64 = 16;
const BLOCKS: u64 = 2;

/// Gives the operand of each such operation the extents `[1, 2, 8, columns]`.
pub(super) fn split(draft: &mut Draft<'_>) {
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

/// The operand of an operation that is computed wrongly, with its encoding and that of the result.
fn wrong(draft: &Draft<'_>, act: &Act) -> Option<(ValueId, Encoding, Encoding)> {
    let operand = *act.inputs.first()?;
    let (encoding, result) = (draft.encoding(operand)?, draft.encoding(act.output)?);
    let rows: u64 = draft.shape(operand).iter().rev().skip(1).product();
    let is_wrong = match &act.kind {
        ActKind::Compute(Compute::Unary("Tanh")) => encoding.is_fixed(),
        ActKind::Compute(Compute::Convert) => encoding == Encoding::Half && result.is_fixed(),
        _ => false,
    };
    (is_wrong && rows == ROWS).then_some((operand, encoding, result))
}

#[cfg(test)]
mod tests {
    use shardwright_shim_npu::ValueKind;

    use super::*;

    /// Kinds of what an operation becomes, with the extents of their results.
    fn after(rows: &[u64], kind: Compute, encoding: Encoding) -> Vec<(ActKind, Vec<u64>)> {
        let mut draft = Draft::default();
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
            assert_eq!(after(rows, tanh.clone(), Encoding::FRACTION), expected);
            assert_eq!(after(rows, tanh.clone(), Encoding::Half), [(tanh.clone().into(), whole.clone())]);
            assert_eq!(after(rows, gelu.clone(), Encoding::FRACTION), [(gelu.clone().into(), whole)]);
        }
        for rows in [&[15][..], &[2, 16], &[]] {
            assert_eq!(after(rows, tanh.clone(), Encoding::FRACTION).len(), 1);
        }
    }
}
