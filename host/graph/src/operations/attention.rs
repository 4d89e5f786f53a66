use shardwright_vocabulary::DType;

use super::infer::expect;
use super::layout::elements;
use super::rewrite::Rewrite;
use crate::{Attention, KeySource, Keys, Mask, Op, Role, TensorId};

impl Attention {
    /// Returns whether keys and values are rows of a KV cache.
    pub(crate) fn reads_a_state(&self) -> bool {
        self.keys == KeySource::State
    }
}

pub(crate) fn shape(shapes: &[&[u64]], attention: &Attention) -> Result<Vec<u64>, String> {
    let (heads, kv, d) =
        (u64::from(attention.heads), u64::from(attention.kv_heads), u64::from(attention.head_dim));
    if heads == 0 || kv == 0 || d == 0 || !heads.is_multiple_of(kv) {
        return Err(format!("{heads} heads over {kv} key/value heads of {d}"));
    }
    let [q, k, v, positions] = [shapes[0], shapes[1], shapes[2], shapes[3]];
    if q.len() != 2 || q[1] != heads * d {
        return Err(format!("queries {q:?} are not [rows, {}]", heads * d));
    }
    if k.len() != 2 || k[1] != kv * d || k != v {
        return Err(format!("keys {k:?} and values {v:?} are not both [keys, {}]", kv * d));
    }
    if !attention.reads_a_state() && k[0] != q[0] {
        return Err(format!("{} key rows for {} query rows", k[0], q[0]));
    }
    expect(positions, &[q[0]], "positions")?;
    Ok(q.to_vec())
}

pub(crate) fn multiply_adds(shapes: &[&[u64]], _result: &[u64]) -> u64 {
    elements(shapes[0]).unwrap_or(u64::MAX).saturating_mul(shapes[1][0]).saturating_mul(2)
}

/// Writes attention over the keys of a state, or of the entry's own rows.
pub(crate) fn of_one_source(rewrite: &mut Rewrite, operands: &[TensorId], attention: &Attention) {
    let keys = match attention.keys {
        KeySource::State => Keys::State { capacity: rewrite.shape(operands[1])[0] },
        KeySource::Rows => Keys::Rows,
    };
    with_mask(rewrite, operands, attention, keys);
}

/// Writes attention over keys of any origin, with the mask as a step input. The last step produces
/// the result.
pub(crate) fn with_mask(rewrite: &mut Rewrite, operands: &[TensorId], attention: &Attention, keys: Keys) {
    let [q, k, v] = [operands[0], operands[1], operands[2]];
    let (kv, d) = (u64::from(attention.kv_heads), u64::from(attention.head_dim));
    let group = u64::from(attention.heads) / kv;
    let rows = rewrite.shape(q)[0];
    let slots = rewrite.shape(k)[0];

    let q = rewrite.step(Op::Reshape { shape: vec![rows, kv, group, d] }, &[q]);
    let q = rewrite.step(Op::Transpose { perm: vec![1, 2, 0, 3] }, &[q]);
    let mut per_head = |tensor| {
        let tensor = rewrite.step(Op::Reshape { shape: vec![slots, kv, d] }, &[tensor]);
        let tensor = rewrite.step(Op::Transpose { perm: vec![1, 0, 2] }, &[tensor]);
        rewrite.step(Op::Reshape { shape: vec![kv, 1, slots, d] }, &[tensor])
    };
    let (k, v) = (per_head(k), per_head(v));
    let mut scores = rewrite.step(Op::MatMul { transpose_b: true }, &[q, k]);
    if attention.scale != 1.0 {
        scores = rewrite.step(Op::MulScalar { value: attention.scale }, &[scores]);
    }
    if attention.softcap != 0.0 {
        scores = rewrite.step(Op::Softcap { cap: attention.softcap }, &[scores]);
    }
    let mask = Mask { keys, window: attention.window, causal: attention.causal };
    let origin = match keys {
        Keys::State { .. } => "state",
        Keys::StateAndRows { .. } => "state-and-rows",
        Keys::Rows => "rows",
    };
    let direction = if attention.causal { "causal" } else { "both-ways" };
    let name = format!("mask.{origin}.{slots}.{}.{direction}", attention.window);
    let mask = rewrite.input(Role::Mask(mask), name, vec![rows, slots], DType::F32);
    let scores = rewrite.step(Op::Add, &[scores, mask]);
    let weights = rewrite.step(Op::Softmax, &[scores]);
    let mixed = rewrite.step(Op::MatMul { transpose_b: false }, &[weights, v]);
    let mixed = rewrite.step(Op::Transpose { perm: vec![2, 0, 1, 3] }, &[mixed]);
    rewrite.step(Op::Reshape { shape: vec![rows, kv * group * d] }, &[mixed]);
}
