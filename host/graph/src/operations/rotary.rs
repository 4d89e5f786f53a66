use shardwright_vocabulary::DType;

use super::infer::{expect, last};
use super::rewrite::Rewrite;
use crate::{AxialRope, Op, Role, Rope, TensorId};

pub(crate) fn turns(rope: &Rope) -> bool {
    let half = rope.head_dim / 2;
    rope.head_dim != 0
        && rope.head_dim.is_multiple_of(2)
        && rope.rotated_pairs <= half
        && (rope.divisors.is_empty() || rope.divisors.len() == half as usize)
}

pub(crate) fn why_it_does_not_turn(rope: &Rope) -> String {
    let Rope { head_dim, rotated_pairs, divisors, .. } = rope;
    format!(
        "{rotated_pairs} pairs of a head of {head_dim} cannot turn, or not by {} divisors",
        divisors.len()
    )
}

pub(crate) fn frequencies_are_numbers(rope: &Rope) -> bool {
    [rope.theta, rope.factor, rope.magnitude]
        .iter()
        .chain(&rope.divisors)
        .all(|number| number.is_finite() && *number > 0.0)
}

fn heads(x: &[u64], head: u64) -> Result<(), String> {
    if x.len() != 2 || head == 0 || !head.is_multiple_of(2) || !last(x).is_multiple_of(head) {
        return Err(format!("{x:?} is not [rows, heads · {head}] with an even head"));
    }
    Ok(())
}

pub(crate) fn rope_shape(shapes: &[&[u64]], rope: &Rope) -> Result<Vec<u64>, String> {
    let head = u64::from(rope.head_dim);
    heads(shapes[0], head)?;
    if u64::from(rope.rotated_pairs) > head / 2 {
        return Err(format!("{} rotated pairs exceed half of {head}", rope.rotated_pairs));
    }
    expect(shapes[1], &[shapes[0][0]], "positions")?;
    Ok(shapes[0].to_vec())
}

pub(crate) fn rotate_shape(shapes: &[&[u64]], head_dim: u32) -> Result<Vec<u64>, String> {
    let head = u64::from(head_dim);
    heads(shapes[0], head)?;
    expect(shapes[1], &[shapes[0][0], head / 2], "cosines")?;
    expect(shapes[2], &[shapes[0][0], head / 2], "sines")?;
    Ok(shapes[0].to_vec())
}

/// Turns the tables into step inputs.
pub(crate) fn rope(rewrite: &mut Rewrite, operands: &[TensorId], rope: &Rope) {
    let head = rope.head_dim;
    let table = vec![rewrite.shape(operands[0])[0], u64::from(head / 2)];
    let mut suffix = format!("{head}.{}.{}.{}", rope.theta, rope.rotated_pairs, rope.factor);
    if !rope.divisors.is_empty() {
        // All divisors would make a name of a thousand characters.
        let sum = rope.divisors.iter().fold(0_u32, |sum, divisor| sum.rotate_left(5) ^ divisor.to_bits());
        suffix += &format!(".{sum:08x}");
    }
    if rope.magnitude != 1.0 {
        suffix += &format!(".{}", rope.magnitude);
    }
    let mut input =
        |role, kind: &str| rewrite.input(role, format!("rotary-{kind}.{suffix}"), table.clone(), DType::F32);
    let cos = input(Role::RotaryCos(rope.clone()), "cos");
    let sin = input(Role::RotarySin(rope.clone()), "sin");
    rewrite.step(Op::Rotate { head_dim: rope.head_dim }, &[operands[0], cos, sin]);
}

pub(crate) fn rotate(rewrite: &mut Rewrite, operands: &[TensorId], head: u64) {
    let whole = rewrite.shape(operands[0]);
    let (rows, half) = (whole[0], head / 2);
    let per_head = vec![rows, 1, half];
    let cos = rewrite.step(Op::Reshape { shape: per_head.clone() }, &[operands[1]]);
    let sin = rewrite.step(Op::Reshape { shape: per_head }, &[operands[2]]);
    let heads = rewrite.step(Op::Reshape { shape: vec![rows, whole[1] / head, head] }, &[operands[0]]);
    let first = rewrite.step(Op::Slice { axis: 2, start: 0, end: half }, &[heads]);
    let second = rewrite.step(Op::Slice { axis: 2, start: half, end: head }, &[heads]);
    let first_cos = rewrite.step(Op::Mul, &[first, cos]);
    let second_sin = rewrite.step(Op::Mul, &[second, sin]);
    let turned_first = rewrite.step(Op::Sub, &[first_cos, second_sin]);
    let second_cos = rewrite.step(Op::Mul, &[second, cos]);
    let first_sin = rewrite.step(Op::Mul, &[first, sin]);
    let turned_second = rewrite.step(Op::Add, &[second_cos, first_sin]);
    let joined = rewrite.step(Op::Concat { axis: 2 }, &[turned_first, turned_second]);
    rewrite.step(Op::Reshape { shape: whole }, &[joined]);
}

pub(crate) fn axial_shape(shapes: &[&[u64]], rope: &AxialRope) -> Result<Vec<u64>, String> {
    let head = u64::from(rope.head_dim);
    heads(shapes[0], head)?;
    if !head.is_multiple_of(4) {
        return Err(format!("a head of {head} has no two halves that turn"));
    }
    expect(shapes[1], &[shapes[0][0]], "columns")?;
    expect(shapes[2], &[shapes[0][0]], "rows")?;
    Ok(shapes[0].to_vec())
}

/// Stacks the first halves of all heads on the second halves. Then one rotation of twice the rows
/// is enough, with tables that are step inputs.
pub(crate) fn axial(rewrite: &mut Rewrite, operands: &[TensorId], rope: &AxialRope) {
    let whole = rewrite.shape(operands[0]);
    let half = rope.head_dim / 2;
    let (rows, heads) = (whole[0], whole[1] / u64::from(rope.head_dim));
    let table = vec![2 * rows, u64::from(half / 2)];
    let suffix = format!("{}.{}", rope.head_dim, rope.theta);
    let cos = rewrite.input(Role::AxialCos(*rope), format!("axial-cos.{suffix}"), table.clone(), DType::F32);
    let sin = rewrite.input(Role::AxialSin(*rope), format!("axial-sin.{suffix}"), table, DType::F32);
    let width = u64::from(half);
    let halves = rewrite.step(Op::Reshape { shape: vec![rows, heads, 2, width] }, &[operands[0]]);
    let halves = rewrite.step(Op::Transpose { perm: vec![2, 0, 1, 3] }, &[halves]);
    let halves = rewrite.step(Op::Reshape { shape: vec![2 * rows, heads * width] }, &[halves]);
    let turned = rewrite.step(Op::Rotate { head_dim: half }, &[halves, cos, sin]);
    let turned = rewrite.step(Op::Reshape { shape: vec![2, rows, heads, width] }, &[turned]);
    let turned = rewrite.step(Op::Transpose { perm: vec![1, 2, 0, 3] }, &[turned]);
    rewrite.step(Op::Reshape { shape: whole }, &[turned]);
}
