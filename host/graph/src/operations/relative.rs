//! Attention to the preceding rows, with scores for each distance.

use super::infer::expect;
use super::layout::elements;
use super::rewrite::Rewrite;
use crate::{Keys, Mask, Op, RelativeAttention, Role, TensorId};
use shardwright_vocabulary::DType;

pub(crate) fn shape(shapes: &[&[u64]], attention: &RelativeAttention) -> Result<Vec<u64>, String> {
    let [q, k, v, by_distance] = [shapes[0], shapes[1], shapes[2], shapes[3]];
    let heads = u64::from(attention.heads);
    let width = heads * u64::from(attention.head_dim);
    if q.len() != 2 || width == 0 || q[1] != width {
        return Err(format!("queries {q:?} are not [rows, {width}]"));
    }
    expect(k, q, "keys")?;
    expect(v, q, "values")?;
    let is_window =
        |values: u64| values > 0 && values.is_multiple_of(heads) && u32::try_from(values / heads).is_ok();
    match *by_distance {
        [rows, values] if rows == q[0] && is_window(values) => Ok(q.to_vec()),
        _ => Err(format!("scores by distance {by_distance:?} are not [{}, {heads} times a window]", q[0])),
    }
}

/// Counts the products with keys and values within the window.
pub(crate) fn multiply_adds(shapes: &[&[u64]], result: &[u64], attention: &RelativeAttention) -> u64 {
    let window = shapes[3][1] / u64::from(attention.heads.max(1));
    elements(result).unwrap_or(u64::MAX).saturating_mul(window.min(result[0])).saturating_mul(2)
}

/// Block size in rows that suits the vector units of neural processors and leaves few of a block's
/// scores masked.
const BLOCK: u64 = 64;

/// Returns the number of equal blocks into which the rows are split, so that a block needs only its
/// own rows and the last rows of the previous block. Returns 1 if that has no advantage.
fn blocks(rows: u64, window: u64) -> u64 {
    let fits = |&count: &u64| {
        rows.is_multiple_of(count) && rows / count + 1 >= window && rows / count + window < rows
    };
    let counts = (2..=super::OPERAND_LIMIT as u64).filter(fits);
    counts.min_by_key(|count| (rows / count).abs_diff(BLOCK)).unwrap_or(1)
}

/// Computes scores in blocks of rows, against the rows of the block and the last rows of the
/// previous one. The mask of the window is a step input, of which each block reads its part.
///
/// The scores by distance are `[heads · blocks, B, window]`, the farthest key first. B zeros are
/// appended to each row, which then has `B + window` values. Read as rows with one value less, row
/// i is shifted right by i. So a key's column is its row plus a constant.
pub(crate) fn attention(rewrite: &mut Rewrite, operands: &[TensorId], attention: &RelativeAttention) {
    let [q, k, v, by_distance] = [operands[0], operands[1], operands[2], operands[3]];
    let (heads, d) = (u64::from(attention.heads), u64::from(attention.head_dim));
    let rows = rewrite.shape(q)[0];
    let window = rewrite.shape(by_distance)[1] / heads;
    let count = blocks(rows, window);
    let (block, before) = (rows / count, if count == 1 { 0 } else { window - 1 });
    let seen = block + before;
    let mut in_blocks = |tensor, width| {
        let tensor = rewrite.step(Op::Reshape { shape: vec![rows, heads, width] }, &[tensor]);
        let tensor = rewrite.step(Op::Transpose { perm: vec![1, 0, 2] }, &[tensor]);
        rewrite.step(Op::Reshape { shape: vec![heads, count, block, width] }, &[tensor])
    };
    let (q, k, v) = (in_blocks(q, d), in_blocks(k, d), in_blocks(v, d));
    let by_distance = in_blocks(by_distance, window);
    let [k, v] = [k, v].map(|tensor| with_rows_before(rewrite, tensor, before));
    let by_key = rewrite.step(Op::MatMul { transpose_b: true }, &[q, k]);

    let all = heads * count;
    let square = rewrite.step(Op::Slice { axis: 3, start: 0, end: block }, &[by_key]);
    let zeros = rewrite.step(Op::MulScalar { value: 0.0 }, &[square]);
    let wide = rewrite.step(Op::Concat { axis: 3 }, &[by_distance, zeros]);
    let flat = rewrite.step(Op::Reshape { shape: vec![all, block * (block + window)] }, &[wide]);
    let less = Op::Slice { axis: 1, start: 0, end: block * (block + window - 1) };
    let flat = rewrite.step(less, &[flat]);
    let moved = vec![heads, count, block, block + window - 1];
    let mut by_distance = rewrite.step(Op::Reshape { shape: moved }, &[flat]);
    if count == 1 && window > 1 {
        let own = Op::Slice { axis: 3, start: window - 1, end: window - 1 + block };
        by_distance = rewrite.step(own, &[by_distance]);
    }

    let mut scores = rewrite.step(Op::Add, &[by_key, by_distance]);
    if attention.softcap != 0.0 {
        scores = rewrite.step(Op::Softcap { cap: attention.softcap }, &[scores]);
    }
    let mask = Mask { keys: Keys::Rows, window: window as u32, causal: true };
    let name = format!("mask.rows.{rows}.{window}.causal");
    let mut mask = rewrite.input(Role::Mask(mask), name, vec![rows, rows], DType::F32);
    if count > 1 {
        let parts: Vec<TensorId> = (0..count)
            .map(|at| {
                let part = block_of_mask(rewrite, mask, at * block, block, before);
                rewrite.step(Op::Reshape { shape: vec![1, block, seen] }, &[part])
            })
            .collect();
        mask = rewrite.step(Op::Concat { axis: 0 }, &parts);
    }
    let scores = rewrite.step(Op::Add, &[scores, mask]);
    let weights = rewrite.step(Op::Softmax, &[scores]);
    let mixed = rewrite.step(Op::MatMul { transpose_b: false }, &[weights, v]);
    let mixed = rewrite.step(Op::Reshape { shape: vec![heads, rows, d] }, &[mixed]);
    let mixed = rewrite.step(Op::Transpose { perm: vec![1, 0, 2] }, &[mixed]);
    rewrite.step(Op::Reshape { shape: vec![rows, heads * d] }, &[mixed]);
}

/// Returns `[heads, blocks, B, d]` with the last rows of the previous block before each block. The
/// first block has zeros there, which the mask hides.
fn with_rows_before(rewrite: &mut Rewrite, x: TensorId, before: u64) -> TensorId {
    if before == 0 {
        return x;
    }
    let (count, block) = (rewrite.shape(x)[1], rewrite.shape(x)[2]);
    let last = rewrite.step(Op::Slice { axis: 2, start: block - before, end: block }, &[x]);
    let first = rewrite.step(Op::Slice { axis: 1, start: 0, end: 1 }, &[last]);
    let zeros = rewrite.step(Op::MulScalar { value: 0.0 }, &[first]);
    let others = rewrite.step(Op::Slice { axis: 1, start: 0, end: count - 1 }, &[last]);
    let before = rewrite.step(Op::Concat { axis: 1 }, &[zeros, others]);
    rewrite.step(Op::Concat { axis: 2 }, &[before, x])
}

/// Returns the part of the mask for the rows from `first` on: their own columns and the preceding
/// ones. Before row 0 there are no rows, so the mask's last columns are used. They belong to later
/// rows and are invisible too.
fn block_of_mask(rewrite: &mut Rewrite, mask: TensorId, first: u64, block: u64, before: u64) -> TensorId {
    let rows = rewrite.shape(mask)[0];
    let own = rewrite.step(Op::Slice { axis: 0, start: first, end: first + block }, &[mask]);
    if let Some(start) = first.checked_sub(before) {
        return rewrite.step(Op::Slice { axis: 1, start, end: first + block }, &[own]);
    }
    let hidden = rewrite.step(Op::Slice { axis: 1, start: rows - before, end: rows }, &[own]);
    let seen = rewrite.step(Op::Slice { axis: 1, start: 0, end: block }, &[own]);
    rewrite.step(Op::Concat { axis: 1 }, &[hidden, seen])
}
