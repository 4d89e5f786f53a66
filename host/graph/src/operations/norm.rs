use super::infer::{RANK_LIMIT, last};
use super::rewrite::Rewrite;
use crate::{Op, TensorId};

pub(crate) fn rms_norm_shape(shapes: &[&[u64]], width: u64) -> Result<Vec<u64>, String> {
    let x = shapes[0];
    if width == 0 || !last(x).is_multiple_of(width) {
        return Err(format!("groups of {width} do not divide the last axis of {x:?}"));
    }
    if last(x) != width && x.len() == RANK_LIMIT {
        return Err(format!("{x:?} leaves no axis for its groups of {width}"));
    }
    if shapes.get(1).is_some_and(|weight| **weight != [width]) {
        return Err(format!("weight {:?} is not [{width}]", shapes[1]));
    }
    Ok(x.to_vec())
}

pub(crate) fn rms_norm(
    rewrite: &mut Rewrite,
    operands: &[TensorId],
    width: u64,
    eps: f32,
    weight_offset: f32,
) {
    let whole = rewrite.shape(operands[0]);
    let groups = last(&whole) / width;
    let x = if groups == 1 {
        operands[0]
    } else {
        let mut shape = whole.clone();
        shape.pop();
        shape.extend([groups, width]);
        rewrite.step(Op::Reshape { shape }, &[operands[0]])
    };
    let scale = inverse_root_of_mean_square(rewrite, x, eps);
    let mut y = rewrite.step(Op::Mul, &[x, scale]);
    if let Some(&(mut weight)) = operands.get(1) {
        if weight_offset != 0.0 {
            weight = rewrite.step(Op::AddScalar { value: weight_offset }, &[weight]);
        }
        y = rewrite.step(Op::Mul, &[y, weight]);
    }
    if groups != 1 {
        rewrite.step(Op::Reshape { shape: whole }, &[y]);
    }
}

pub(crate) fn layer_norm_shape(shapes: &[&[u64]]) -> Result<Vec<u64>, String> {
    let width = last(shapes[0]);
    if width == 0 {
        return Err(format!("{:?} has no values to normalise", shapes[0]));
    }
    for (shape, what) in shapes[1..].iter().zip(["weight", "bias"]) {
        if **shape != [width] {
            return Err(format!("{what} {shape:?} is not [{width}]"));
        }
    }
    Ok(shapes[0].to_vec())
}

/// Subtracts the mean and applies the root-mean-square norm. Compilers without a norm that
/// subtracts the mean support this one. Computed separately in 16-bit integers, the squares of
/// small rows would be lost.
pub(crate) fn layer_norm(rewrite: &mut Rewrite, operands: &[TensorId], eps: f32) {
    let width = last(&rewrite.shape(operands[0])) as u32;
    let mean = rewrite.step(Op::ReduceMean, &[operands[0]]);
    let mut inputs = vec![rewrite.step(Op::Sub, &[operands[0], mean])];
    inputs.extend(operands.get(1));
    let y = rewrite.step(Op::RmsNorm { width, eps, weight_offset: 0.0 }, &inputs);
    if let Some(&bias) = operands.get(2) {
        rewrite.step(Op::Add, &[y, bias]);
    }
}

fn inverse_root_of_mean_square(rewrite: &mut Rewrite, x: TensorId, eps: f32) -> TensorId {
    let square = rewrite.step(Op::Mul, &[x, x]);
    let mean = rewrite.step(Op::ReduceMean, &[square]);
    let mean = rewrite.step(Op::AddScalar { value: eps }, &[mean]);
    rewrite.step(Op::Rsqrt, &[mean])
}

pub(crate) fn l2_normalize(rewrite: &mut Rewrite, operands: &[TensorId]) {
    let x = operands[0];
    let square = rewrite.step(Op::Mul, &[x, x]);
    let sum = rewrite.step(Op::ReduceSum, &[square]);
    let norm = rewrite.step(Op::Sqrt, &[sum]);
    let norm = rewrite.step(Op::MaxScalar { value: 1e-12 }, &[norm]);
    rewrite.step(Op::Div, &[x, norm]);
}
