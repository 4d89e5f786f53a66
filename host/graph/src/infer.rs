use crate::{KeySource, Op};

/// Most axes a tensor may have: batch, heads, group, rows, values is the most a decomposition needs.
pub const RANK_LIMIT: usize = 6;

/// Most operands of an operation; only [`Op::Concat`] takes more than four.
pub const OPERAND_LIMIT: usize = 64;

/// The shape an operation gives for operand shapes, or what does not fit.
///
/// This is the definition of which shapes each operation takes; evaluators and shims may rely on it.
pub fn infer_shape(op: &Op, inputs: &[&[u64]]) -> Result<Vec<u64>, String> {
    let arity = |least: usize, most: usize| {
        if (least..=most).contains(&inputs.len()) {
            Ok(())
        } else if least == most {
            Err(format!("takes {least} inputs, got {}", inputs.len()))
        } else {
            Err(format!("takes {least} to {most} inputs, got {}", inputs.len()))
        }
    };
    if let Some(input) = inputs.iter().find(|shape| shape.len() > RANK_LIMIT || shape.is_empty()) {
        return Err(format!("rank {} is not within 1..={RANK_LIMIT}", input.len()));
    }
    let last = |shape: &[u64]| shape[shape.len() - 1];
    match op {
        Op::Linear | Op::DynamicLinear => {
            arity(2, 3)?;
            let (x, w) = (inputs[0], inputs[1]);
            if x.len() < 2 || w.len() != 2 || last(x) != w[1] {
                return Err(format!("{x:?} does not multiply a weight {w:?} stored as [out, in]"));
            }
            if inputs.get(2).is_some_and(|bias| **bias != [w[0]]) {
                return Err(format!("bias {:?} is not [{}]", inputs[2], w[0]));
            }
            Ok(with_last(x, w[0]))
        }
        Op::RmsNorm { width, .. } => {
            arity(1, 2)?;
            let width = u64::from(*width);
            if width == 0 || last(inputs[0]) % width != 0 {
                return Err(format!("groups of {width} do not divide the last axis of {:?}", inputs[0]));
            }
            if last(inputs[0]) != width && inputs[0].len() == RANK_LIMIT {
                return Err(format!("{:?} leaves no axis for its groups of {width}", inputs[0]));
            }
            if inputs.get(1).is_some_and(|weight| **weight != [width]) {
                return Err(format!("weight {:?} is not [{width}]", inputs[1]));
            }
            Ok(inputs[0].to_vec())
        }
        Op::Rope(rope) => {
            arity(2, 2)?;
            let head = u64::from(rope.head_dim);
            if inputs[0].len() != 2 || head == 0 || !head.is_multiple_of(2) || last(inputs[0]) % head != 0 {
                return Err(format!("{:?} is not [rows, heads · {head}] with an even head", inputs[0]));
            }
            if u64::from(rope.rotated_pairs) > head / 2 {
                return Err(format!("{} rotated pairs exceed half of {head}", rope.rotated_pairs));
            }
            expect(inputs[1], &[inputs[0][0]], "positions")?;
            Ok(inputs[0].to_vec())
        }
        Op::Rotate { head_dim } => {
            arity(3, 3)?;
            let head = u64::from(*head_dim);
            if inputs[0].len() != 2 || head == 0 || !head.is_multiple_of(2) || last(inputs[0]) % head != 0 {
                return Err(format!("{:?} is not [rows, heads · {head}] with an even head", inputs[0]));
            }
            expect(inputs[1], &[inputs[0][0], head / 2], "cosines")?;
            expect(inputs[2], &[inputs[0][0], head / 2], "sines")?;
            Ok(inputs[0].to_vec())
        }
        Op::Attention(attention) => {
            arity(4, 4)?;
            let (heads, kv, d) =
                (u64::from(attention.heads), u64::from(attention.kv_heads), u64::from(attention.head_dim));
            if heads == 0 || kv == 0 || d == 0 || heads % kv != 0 {
                return Err(format!("{heads} heads over {kv} key/value heads of {d}"));
            }
            let [q, k, v, positions] = [inputs[0], inputs[1], inputs[2], inputs[3]];
            if q.len() != 2 || q[1] != heads * d {
                return Err(format!("queries {q:?} are not [rows, {}]", heads * d));
            }
            if k.len() != 2 || k[1] != kv * d || k != v {
                return Err(format!("keys {k:?} and values {v:?} are not both [keys, {}]", kv * d));
            }
            if attention.keys == KeySource::Rows && k[0] != q[0] {
                return Err(format!("{} key rows for {} query rows", k[0], q[0]));
            }
            expect(positions, &[q[0]], "positions")?;
            Ok(q.to_vec())
        }
        Op::StateUpdate => {
            arity(3, 3)?;
            let [state, rows, slots] = [inputs[0], inputs[1], inputs[2]];
            if state.len() != 2 || rows.len() != 2 || state[1] != rows[1] {
                return Err(format!("rows {rows:?} do not fit a state {state:?}"));
            }
            expect(slots, &[rows[0]], "slots")?;
            Ok(state.to_vec())
        }
        Op::Add | Op::Sub | Op::Mul | Op::Div => {
            arity(2, 2)?;
            broadcast(inputs[0], inputs[1])
        }
        Op::Gelu
        | Op::Silu
        | Op::Softcap { .. }
        | Op::Softmax
        | Op::L2Normalize
        | Op::AddScalar { .. }
        | Op::MulScalar { .. }
        | Op::MaxScalar { .. }
        | Op::Neg
        | Op::Exp
        | Op::Tanh
        | Op::Sqrt
        | Op::Rsqrt
        | Op::Reciprocal
        | Op::Round
        | Op::Convert => {
            arity(1, 1)?;
            Ok(inputs[0].to_vec())
        }
        Op::ReduceSum | Op::ReduceMean | Op::ReduceMax => {
            arity(1, 1)?;
            Ok(with_last(inputs[0], 1))
        }
        Op::MatMul { transpose_b } => {
            arity(2, 2)?;
            let (a, b) = (inputs[0], inputs[1]);
            if a.len() < 2 || b.len() < 2 {
                return Err(format!("{a:?} · {b:?} needs two axes on both sides"));
            }
            let (a_batch, a_tail) = a.split_at(a.len() - 2);
            let (b_batch, b_tail) = b.split_at(b.len() - 2);
            let (inner, columns) = if *transpose_b { (b_tail[1], b_tail[0]) } else { (b_tail[0], b_tail[1]) };
            if a_tail[1] != inner {
                return Err(format!("{a:?} · {b:?}: inner extents {} and {inner} differ", a_tail[1]));
            }
            let mut shape = broadcast(a_batch, b_batch)?;
            shape.extend([a_tail[0], columns]);
            Ok(shape)
        }
        Op::Reshape { shape } => {
            arity(1, 1)?;
            let elements = product(inputs[0]);
            let fits = elements.is_some() && product(shape) == elements;
            if shape.is_empty() || shape.len() > RANK_LIMIT || !fits {
                return Err(format!("{:?} cannot take the shape {shape:?}", inputs[0]));
            }
            Ok(shape.clone())
        }
        Op::Transpose { perm } => {
            arity(1, 1)?;
            let mut seen = vec![false; inputs[0].len()];
            let valid = perm.len() == seen.len()
                && perm.iter().all(|&axis| {
                    seen.get_mut(axis as usize).is_some_and(|slot| !std::mem::replace(slot, true))
                });
            if !valid {
                return Err(format!("{perm:?} is not a permutation of the axes of {:?}", inputs[0]));
            }
            Ok(perm.iter().map(|&axis| inputs[0][axis as usize]).collect())
        }
        Op::Slice { axis, start, end } => {
            arity(1, 1)?;
            let extent = inputs[0].get(*axis as usize).copied().unwrap_or(0);
            if start >= end || *end > extent {
                return Err(format!("{start}..{end} is not a range of axis {axis} of {:?}", inputs[0]));
            }
            let mut shape = inputs[0].to_vec();
            shape[*axis as usize] = end - start;
            Ok(shape)
        }
        Op::Concat { axis } => {
            arity(1, OPERAND_LIMIT)?;
            let axis = *axis as usize;
            let first = inputs[0];
            if axis >= first.len() {
                return Err(format!("no axis {axis} in {first:?}"));
            }
            let mut total = 0_u64;
            for shape in inputs {
                let fits = shape.len() == first.len()
                    && shape.iter().zip(first).enumerate().all(|(index, (a, b))| index == axis || a == b);
                if !fits {
                    return Err(format!("{shape:?} does not join {first:?} along axis {axis}"));
                }
                total = total.checked_add(shape[axis]).ok_or("joined extent overflows")?;
            }
            let mut shape = first.to_vec();
            shape[axis] = total;
            Ok(shape)
        }
    }
}

fn product(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent))
}

fn with_last(shape: &[u64], last: u64) -> Vec<u64> {
    let mut shape = shape.to_vec();
    if let Some(extent) = shape.last_mut() {
        *extent = last;
    }
    shape
}

fn expect(shape: &[u64], wanted: &[u64], what: &str) -> Result<(), String> {
    if shape == wanted { Ok(()) } else { Err(format!("{what} {shape:?} are not {wanted:?}")) }
}

fn broadcast(a: &[u64], b: &[u64]) -> Result<Vec<u64>, String> {
    let rank = a.len().max(b.len());
    let extent = |shape: &[u64], index: usize| {
        (index + shape.len()).checked_sub(rank).map_or(1, |position| shape[position])
    };
    (0..rank)
        .map(|index| match (extent(a, index), extent(b, index)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(format!("{a:?} and {b:?} do not broadcast")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attention, Rope};

    #[test]
    fn shapes_follow_the_definitions() {
        let attention = Attention {
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            scale: 1.0,
            softcap: 0.0,
            window: 0,
            causal: true,
            keys: KeySource::State,
        };
        let rope = Rope { head_dim: 8, theta: 1e4, rotated_pairs: 4, factor: 1.0 };
        type Case<'a> = (Op, Vec<&'a [u64]>, Result<Vec<u64>, &'a str>);
        let cases: Vec<Case> = vec![
            (Op::Linear, vec![&[3, 4], &[5, 4]], Ok(vec![3, 5])),
            (Op::Linear, vec![&[3, 4], &[5, 4], &[5]], Ok(vec![3, 5])),
            (Op::Linear, vec![&[3, 4], &[4, 5]], Err("does not multiply")),
            (Op::Linear, vec![&[3, 4], &[5, 4], &[4]], Err("bias")),
            (Op::Linear, vec![&[3, 4]], Err("takes 2 to 3 inputs")),
            (Op::Linear, vec![&[4], &[5, 4]], Err("does not multiply")),
            (Op::RmsNorm { width: 2, eps: 0.0, weight_offset: 0.0 }, vec![&[3, 4], &[2]], Ok(vec![3, 4])),
            (Op::RmsNorm { width: 3, eps: 0.0, weight_offset: 0.0 }, vec![&[3, 4]], Err("do not divide")),
            (
                Op::RmsNorm { width: 2, eps: 0.0, weight_offset: 0.0 },
                vec![&[1, 1, 1, 1, 1, 4]],
                Err("no axis"),
            ),
            (Op::RmsNorm { width: 0, eps: 0.0, weight_offset: 0.0 }, vec![&[3, 4]], Err("do not divide")),
            (Op::RmsNorm { width: 2, eps: 0.0, weight_offset: 0.0 }, vec![&[3, 4], &[4]], Err("weight")),
            (Op::Rope(rope), vec![&[3, 16], &[3]], Ok(vec![3, 16])),
            (Op::Rope(rope), vec![&[3, 16], &[4]], Err("positions")),
            (Op::Rope(Rope { head_dim: 3, ..rope }), vec![&[3, 15], &[3]], Err("even head")),
            (Op::Rope(Rope { rotated_pairs: 5, ..rope }), vec![&[3, 16], &[3]], Err("rotated pairs")),
            (Op::Rotate { head_dim: 8 }, vec![&[3, 16], &[3, 4], &[3, 4]], Ok(vec![3, 16])),
            (Op::Rotate { head_dim: 8 }, vec![&[3, 16], &[3, 8], &[3, 4]], Err("cosines")),
            (Op::Rotate { head_dim: 8 }, vec![&[3, 16], &[3, 4], &[2, 4]], Err("sines")),
            (Op::Rotate { head_dim: 8 }, vec![&[3, 16], &[3, 4]], Err("takes 3 inputs")),
            (Op::Rotate { head_dim: 8 }, vec![&[3, 12], &[3, 4], &[3, 4]], Err("even head")),
            (Op::Rotate { head_dim: 5 }, vec![&[3, 15], &[3, 2], &[3, 2]], Err("even head")),
            (Op::Rotate { head_dim: 0 }, vec![&[3, 15], &[3, 0], &[3, 0]], Err("even head")),
            (Op::Attention(attention), vec![&[3, 32], &[9, 16], &[9, 16], &[3]], Ok(vec![3, 32])),
            (Op::Attention(attention), vec![&[3, 32], &[9, 16], &[8, 16], &[3]], Err("keys")),
            (Op::Attention(Attention { kv_heads: 3, ..attention }), vec![&[3, 32]; 4], Err("heads")),
            (Op::StateUpdate, vec![&[9, 16], &[3, 16], &[3]], Ok(vec![9, 16])),
            (Op::StateUpdate, vec![&[9, 16], &[3, 8], &[3]], Err("do not fit")),
            (Op::Add, vec![&[3, 1, 4], &[2, 1]], Ok(vec![3, 2, 4])),
            (Op::Add, vec![&[3], &[2]], Err("do not broadcast")),
            (Op::MatMul { transpose_b: true }, vec![&[2, 4, 3, 8], &[2, 1, 9, 8]], Ok(vec![2, 4, 3, 9])),
            (Op::MatMul { transpose_b: false }, vec![&[3, 8], &[9, 8]], Err("inner extents")),
            (Op::Reshape { shape: vec![6, 2] }, vec![&[3, 4]], Ok(vec![6, 2])),
            (Op::Reshape { shape: vec![7] }, vec![&[3, 4]], Err("cannot take")),
            // Two products that overflow are not equal for it.
            (Op::Reshape { shape: vec![u64::MAX, 2] }, vec![&[2, u64::MAX]], Err("cannot take")),
            (Op::Transpose { perm: vec![0] }, vec![&[3, 4]], Err("permutation")),
            (Op::Slice { axis: 0, start: 2, end: 2 }, vec![&[3, 4]], Err("not a range")),
            (Op::Concat { axis: 0 }, vec![&[u64::MAX], &[1]], Err("overflows")),
            (Op::Concat { axis: 0 }, vec![], Err("takes 1 to 64 inputs")),
            (Op::Transpose { perm: vec![1, 0] }, vec![&[3, 4]], Ok(vec![4, 3])),
            (Op::Transpose { perm: vec![1, 1] }, vec![&[3, 4]], Err("permutation")),
            (Op::Slice { axis: 0, start: 1, end: 3 }, vec![&[3, 4]], Ok(vec![2, 4])),
            (Op::Slice { axis: 2, start: 0, end: 1 }, vec![&[3, 4]], Err("not a range")),
            (Op::Concat { axis: 1 }, vec![&[3, 4], &[3, 1]], Ok(vec![3, 5])),
            (Op::Concat { axis: 1 }, vec![&[3, 4], &[2, 1]], Err("does not join")),
            (Op::ReduceMax, vec![&[3, 4]], Ok(vec![3, 1])),
            (Op::Neg, vec![&[1, 1, 1, 1, 1, 1, 1]], Err("rank")),
        ];
        for (op, inputs, wanted) in cases {
            match (infer_shape(&op, &inputs), wanted) {
                (Ok(got), Ok(wanted)) => assert_eq!(got, wanted, "{op:?} {inputs:?}"),
                (Err(got), Err(wanted)) => assert!(got.contains(wanted), "{op:?} {inputs:?}: {got}"),
                (got, wanted) => panic!("{op:?} {inputs:?}: {got:?} instead of {wanted:?}"),
            }
        }
    }
}
