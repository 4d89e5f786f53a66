//! Infers the shapes of results.

use super::rules;
use crate::Op;

/// Maximum number of axes of a tensor. Decompositions need at most batch, heads, group, rows and
/// values.
pub const RANK_LIMIT: usize = 6;

/// Maximum number of operands of an operation. Only [`Op::Concat`] has more than four.
pub const OPERAND_LIMIT: usize = 64;

/// Returns the shape of an operation's result for its operands' shapes, or the mismatch.
///
/// This defines which shapes each operation accepts. Evaluators and shims may rely on it.
pub fn infer_shape(op: &Op, inputs: &[&[u64]]) -> Result<Vec<u64>, String> {
    let rules = rules(op);
    let (least, most) = rules.operands.clone().into_inner();
    if !rules.operands.contains(&inputs.len()) {
        let wanted = if least == most { format!("{least}") } else { format!("{least} to {most}") };
        return Err(format!("expected {wanted} inputs, got {}", inputs.len()));
    }
    if let Some(input) = inputs.iter().find(|shape| shape.len() > RANK_LIMIT || shape.is_empty()) {
        return Err(format!("rank {} is not within 1..={RANK_LIMIT}", input.len()));
    }
    (rules.shape)(inputs)
}

/// Returns the last extent. A checked shape has one.
pub(crate) fn last(shape: &[u64]) -> u64 {
    shape[shape.len() - 1]
}

pub(crate) fn expect(shape: &[u64], wanted: &[u64], what: &str) -> Result<(), String> {
    if shape == wanted { Ok(()) } else { Err(format!("{what} {shape:?} are not {wanted:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attention, AxialRope, KeySource, RelativeAttention, Rope};
    use shardwright_vocabulary::AttentionFormat;

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
            products: AttentionFormat::F32,
        };
        let rope = Rope {
            head_dim: 8,
            theta: 1e4,
            rotated_pairs: 4,
            factor: 1.0,
            divisors: Vec::new(),
            magnitude: 1.0,
        };
        let axial = AxialRope { head_dim: 8, theta: 1e2 };
        let relative = RelativeAttention { heads: 2, head_dim: 4, softcap: 0.0 };
        let convolution = Op::Convolution { kernel: 3, stride: 2, padding: 1 };
        type Case<'a> = (Op, Vec<&'a [u64]>, Result<Vec<u64>, &'a str>);
        let cases: Vec<Case> = vec![
            (Op::Linear, vec![&[3, 4], &[5, 4]], Ok(vec![3, 5])),
            (Op::Linear, vec![&[3, 4], &[5, 4], &[5]], Ok(vec![3, 5])),
            (Op::Linear, vec![&[3, 4], &[4, 5]], Err("does not multiply")),
            (Op::Linear, vec![&[3, 4], &[5, 4], &[4]], Err("bias")),
            (Op::Linear, vec![&[3, 4]], Err("expected 2 to 3 inputs")),
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
            (Op::LayerNorm { eps: 0.0 }, vec![&[3, 4], &[4], &[4]], Ok(vec![3, 4])),
            (Op::LayerNorm { eps: 0.0 }, vec![&[3, 4], &[3]], Err("weight")),
            (Op::LayerNorm { eps: 0.0 }, vec![&[3, 4], &[4], &[3]], Err("bias")),
            (Op::LayerNorm { eps: 0.0 }, vec![&[3, 0]], Err("no values")),
            (Op::Rope(rope.clone()), vec![&[3, 16], &[3]], Ok(vec![3, 16])),
            (Op::Rope(rope.clone()), vec![&[3, 16], &[4]], Err("positions")),
            (Op::Rope(Rope { head_dim: 3, ..rope.clone() }), vec![&[3, 15], &[3]], Err("even head")),
            (Op::Rope(Rope { rotated_pairs: 5, ..rope }), vec![&[3, 16], &[3]], Err("rotated pairs")),
            (Op::Rotate { head_dim: 8 }, vec![&[3, 16], &[3, 4], &[3, 4]], Ok(vec![3, 16])),
            (Op::Rotate { head_dim: 8 }, vec![&[3, 16], &[3, 8], &[3, 4]], Err("cosines")),
            (Op::Rotate { head_dim: 8 }, vec![&[3, 16], &[3, 4], &[2, 4]], Err("sines")),
            (Op::Rotate { head_dim: 8 }, vec![&[3, 16], &[3, 4]], Err("expected 3 inputs")),
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
            (Op::Reshape { shape: vec![7] }, vec![&[3, 4]], Err("cannot reshape")),
            // Two products that overflow must not count as equal.
            (Op::Reshape { shape: vec![u64::MAX, 2] }, vec![&[2, u64::MAX]], Err("cannot reshape")),
            (Op::Transpose { perm: vec![0] }, vec![&[3, 4]], Err("permutation")),
            (Op::Slice { axis: 0, start: 2, end: 2 }, vec![&[3, 4]], Err("not a range")),
            (Op::Concat { axis: 0 }, vec![&[u64::MAX], &[1]], Err("overflows")),
            (Op::Concat { axis: 0 }, vec![], Err("expected 1 to 64 inputs")),
            (Op::Transpose { perm: vec![1, 0] }, vec![&[3, 4]], Ok(vec![4, 3])),
            (Op::Transpose { perm: vec![1, 1] }, vec![&[3, 4]], Err("permutation")),
            (Op::Slice { axis: 0, start: 1, end: 3 }, vec![&[3, 4]], Ok(vec![2, 4])),
            (Op::Slice { axis: 2, start: 0, end: 1 }, vec![&[3, 4]], Err("not a range")),
            (Op::Concat { axis: 1 }, vec![&[3, 4], &[3, 1]], Ok(vec![3, 5])),
            (Op::Concat { axis: 1 }, vec![&[3, 4], &[2, 1]], Err("does not join")),
            (Op::AxialRope(axial), vec![&[3, 16], &[3], &[3]], Ok(vec![3, 16])),
            (Op::AxialRope(axial), vec![&[3, 16], &[3], &[4]], Err("rows")),
            (
                Op::AxialRope(AxialRope { head_dim: 6, ..axial }),
                vec![&[3, 12], &[3], &[3]],
                Err("two halves"),
            ),
            (Op::RelativeAttention(relative), vec![&[3, 8], &[3, 8], &[3, 8], &[3, 10]], Ok(vec![3, 8])),
            (Op::RelativeAttention(relative), vec![&[3, 8], &[2, 8], &[3, 8], &[3, 10]], Err("keys")),
            (Op::RelativeAttention(relative), vec![&[3, 8], &[3, 8], &[3, 8], &[3, 9]], Err("by distance")),
            (Op::RelativeAttention(relative), vec![&[3, 9], &[3, 9], &[3, 9], &[5, 9]], Err("queries")),
            (convolution.clone(), vec![&[5, 8, 2], &[7, 18]], Ok(vec![3, 4, 7])),
            (convolution.clone(), vec![&[5, 8, 2], &[7, 9]], Err("does not fit")),
            (convolution.clone(), vec![&[5, 16], &[7, 9]], Err("are not [H, W, C]")),
            (Op::Convolution { kernel: 3, stride: 1, padding: 0 }, vec![&[2, 8, 1], &[7, 9]], Err("smaller")),
            (Op::Convolution { kernel: 3, stride: 0, padding: 0 }, vec![&[4, 8, 1], &[7, 9]], Err("smaller")),
            (Op::DepthwiseConvolution, vec![&[3, 4], &[4, 5]], Ok(vec![3, 4])),
            (Op::DepthwiseConvolution, vec![&[3, 4], &[3, 5]], Err("are not [R, C]")),
            (Op::DepthwiseConvolution, vec![&[3, 4], &[4, 33]], Err("are not [R, C]")),
            (Op::Clamp, vec![&[3, 4], &[1], &[1]], Ok(vec![3, 4])),
            (Op::Clamp, vec![&[3, 4], &[1], &[4]], Err("high")),
            (Op::Glu, vec![&[3, 4]], Ok(vec![3, 2])),
            (Op::Glu, vec![&[3, 5]], Err("no halves")),
            (Op::MeanRows { rows: 3 }, vec![&[6, 4]], Ok(vec![2, 4])),
            (Op::MeanRows { rows: 3 }, vec![&[7, 4]], Err("is not [R")),
            (Op::MeanRows { rows: 0 }, vec![&[6, 4]], Err("is not [R")),
            (Op::Max, vec![&[3, 1], &[4]], Ok(vec![3, 4])),
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
