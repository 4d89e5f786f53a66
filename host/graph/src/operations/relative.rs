//! Attention to the rows just before, with scores for each distance.

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

/// Products with keys and values within the window.
pub(crate) fn multiply_adds(shapes: &[&[u64]], result: &[u64], attention: &RelativeAttention) -> u64 {
    let window = shapes[3][1] / u64::from(attention.heads.max(1));
    elements(result).unwrap_or(u64::MAX).saturating_mul(window.min(result[0])).saturating_mul(2)
}

/// Scores over all rows, with the mask of the window as a step input.
///
/// The scores by distance come as `[heads, R, window]`, the farthest key first. Followed by R zeros,
/// `R + window` to a row, they read as rows of one less: row i moves right by i, so that the column
/// of a key is its row and a constant.
pub(crate) fn attention(rewrite: &mut Rewrite, operands: &[TensorId], attention: &RelativeAttention) {
    let [q, k, v, by_distance] = [operands[0], operands[1], operands[2], operands[3]];
    let (heads, d) = (u64::from(attention.heads), u64::from(attention.head_dim));
    let rows = rewrite.shape(q)[0];
    let window = rewrite.shape(by_distance)[1] / heads;
    let mut per_head = |tensor, width| {
        let tensor = rewrite.step(Op::Reshape { shape: vec![rows, heads, width] }, &[tensor]);
        rewrite.step(Op::Transpose { perm: vec![1, 0, 2] }, &[tensor])
    };
    let (q, k, v) = (per_head(q, d), per_head(k, d), per_head(v, d));
    let by_distance = per_head(by_distance, window);
    let by_key = rewrite.step(Op::MatMul { transpose_b: true }, &[q, k]);
    let zeros = rewrite.step(Op::MulScalar { value: 0.0 }, &[by_key]);
    let wide = rewrite.step(Op::Concat { axis: 2 }, &[by_distance, zeros]);
    let flat = rewrite.step(Op::Reshape { shape: vec![heads, rows * (rows + window)] }, &[wide]);
    let less = Op::Slice { axis: 1, start: 0, end: rows * (rows + window - 1) };
    let flat = rewrite.step(less, &[flat]);
    let moved = rewrite.step(Op::Reshape { shape: vec![heads, rows, rows + window - 1] }, &[flat]);
    let own = Op::Slice { axis: 2, start: window - 1, end: window - 1 + rows };
    let by_distance = rewrite.step(own, &[moved]);
    let mut scores = rewrite.step(Op::Add, &[by_key, by_distance]);
    if attention.softcap != 0.0 {
        scores = rewrite.step(Op::Softcap { cap: attention.softcap }, &[scores]);
    }
    let mask = Mask { keys: Keys::Rows, window: window as u32, causal: true };
    let name = format!("mask.rows.{rows}.{window}.causal");
    let mask = rewrite.input(Role::Mask(mask), name, vec![rows, rows], DType::F32);
    let scores = rewrite.step(Op::Add, &[scores, mask]);
    let weights = rewrite.step(Op::Softmax, &[scores]);
    let mixed = rewrite.step(Op::MatMul { transpose_b: false }, &[weights, v]);
    let mixed = rewrite.step(Op::Transpose { perm: vec![1, 0, 2] }, &[mixed]);
    rewrite.step(Op::Reshape { shape: vec![rows, heads * d] }, &[mixed]);
}
