//! Attention with a vector for each distance.

use super::infer::expect;
use super::layout::elements;
use super::rewrite::Rewrite;
use crate::{Keys, Mask, Op, RelativeAttention, Role, TensorId};
use shardwright_vocabulary::DType;

pub(crate) fn shape(shapes: &[&[u64]], attention: &RelativeAttention) -> Result<Vec<u64>, String> {
    let [q, k, v, distances] = [shapes[0], shapes[1], shapes[2], shapes[3]];
    let width = u64::from(attention.heads) * u64::from(attention.head_dim);
    if q.len() != 2 || width == 0 || q[1] != width {
        return Err(format!("queries {q:?} are not [rows, {width}]"));
    }
    expect(k, q, "keys")?;
    expect(v, q, "values")?;
    match *distances {
        [window, values] if values == width && (1..=u64::from(u32::MAX)).contains(&window) => Ok(q.to_vec()),
        _ => Err(format!("distances {distances:?} are not [window, {width}]")),
    }
}

/// Products with keys, distances and values within the window.
pub(crate) fn multiply_adds(shapes: &[&[u64]], result: &[u64]) -> u64 {
    let window = shapes[3][0].min(result[0]);
    elements(result).unwrap_or(u64::MAX).saturating_mul(window).saturating_mul(3)
}

/// Scores over all rows, with the mask of the window as a step input.
///
/// The products with distances come as `[heads, R, window]`, by how far a key lies back. Reversed
/// distances followed by R zeros, `R + window` to a row, read as rows of one less: row i moves
/// right by i, so that the column of a key is its row and a constant.
pub(crate) fn attention(rewrite: &mut Rewrite, operands: &[TensorId], attention: &RelativeAttention) {
    let [q, k, v, distances] = [operands[0], operands[1], operands[2], operands[3]];
    let (heads, d) = (u64::from(attention.heads), u64::from(attention.head_dim));
    let rows = rewrite.shape(q)[0];
    let window = rewrite.shape(distances)[0];
    let mut per_head = |tensor, rows| {
        let tensor = rewrite.step(Op::Reshape { shape: vec![rows, heads, d] }, &[tensor]);
        rewrite.step(Op::Transpose { perm: vec![1, 0, 2] }, &[tensor])
    };
    let (q, k, v) = (per_head(q, rows), per_head(k, rows), per_head(v, rows));
    let distances = per_head(distances, window);
    let by_key = rewrite.step(Op::MatMul { transpose_b: true }, &[q, k]);
    let mut backwards = Vec::new();
    for distance in (0..window).rev() {
        let slice = Op::Slice { axis: 1, start: distance, end: distance + 1 };
        backwards.push(rewrite.step(slice, &[distances]));
    }
    let backwards = joined(rewrite, backwards);
    let by_distance = rewrite.step(Op::MatMul { transpose_b: true }, &[q, backwards]);
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

/// All of them along the second axis, however many an operation may join.
fn joined(rewrite: &mut Rewrite, mut parts: Vec<TensorId>) -> TensorId {
    while parts.len() > 1 {
        let groups: Vec<Vec<TensorId>> =
            parts.chunks(super::OPERAND_LIMIT).map(<[TensorId]>::to_vec).collect();
        parts = groups.iter().map(|group| rewrite.step(Op::Concat { axis: 1 }, group)).collect();
    }
    parts[0]
}
