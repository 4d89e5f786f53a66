use std::f64::consts::PI;

use super::infer::{expect, last};
use super::layout::with_last;
use super::rewrite::Rewrite;
use crate::{Op, TensorId};

pub(crate) fn gelu(rewrite: &mut Rewrite, operands: &[TensorId]) {
    let x = operands[0];
    let square = rewrite.step(Op::Mul, &[x, x]);
    let cube = rewrite.step(Op::Mul, &[square, x]);
    let cube = rewrite.step(Op::MulScalar { value: 0.044_715 }, &[cube]);
    let inner = rewrite.step(Op::Add, &[x, cube]);
    let inner = rewrite.step(Op::MulScalar { value: (2.0 / PI).sqrt() as f32 }, &[inner]);
    let tanh = rewrite.step(Op::Tanh, &[inner]);
    let one_plus = rewrite.step(Op::AddScalar { value: 1.0 }, &[tanh]);
    let half = rewrite.step(Op::MulScalar { value: 0.5 }, &[x]);
    rewrite.step(Op::Mul, &[half, one_plus]);
}

pub(crate) fn silu(rewrite: &mut Rewrite, operands: &[TensorId]) {
    sigmoid(rewrite, operands);
    if let Some(sigmoid) = rewrite.last() {
        rewrite.step(Op::Mul, &[operands[0], sigmoid]);
    }
}

/// Computes sigmoid through tanh. For x far below zero, e^−x is too large for 16-bit integers that
/// also represent 1.
pub(crate) fn sigmoid(rewrite: &mut Rewrite, operands: &[TensorId]) {
    let half = rewrite.step(Op::MulScalar { value: 0.5 }, &[operands[0]]);
    let tanh = rewrite.step(Op::Tanh, &[half]);
    let half = rewrite.step(Op::MulScalar { value: 0.5 }, &[tanh]);
    rewrite.step(Op::AddScalar { value: 0.5 }, &[half]);
}

pub(crate) fn glu_shape(shapes: &[&[u64]]) -> Result<Vec<u64>, String> {
    let width = last(shapes[0]);
    if width == 0 || !width.is_multiple_of(2) {
        return Err(format!("the last axis of {:?} has no halves", shapes[0]));
    }
    Ok(with_last(shapes[0], width / 2))
}

pub(crate) fn glu(rewrite: &mut Rewrite, operands: &[TensorId]) {
    let shape = rewrite.shape(operands[0]);
    let (axis, width) = (shape.len() as u32 - 1, last(&shape));
    let value = rewrite.step(Op::Slice { axis, start: 0, end: width / 2 }, operands);
    let gate = rewrite.step(Op::Slice { axis, start: width / 2, end: width }, operands);
    let gate = rewrite.step(Op::Sigmoid, &[gate]);
    rewrite.step(Op::Mul, &[value, gate]);
}

pub(crate) fn clamp_shape(shapes: &[&[u64]]) -> Result<Vec<u64>, String> {
    expect(shapes[1], &[1], "low")?;
    expect(shapes[2], &[1], "high")?;
    Ok(shapes[0].to_vec())
}

pub(crate) fn clamp(rewrite: &mut Rewrite, operands: &[TensorId]) {
    let above = rewrite.step(Op::Max, &operands[..2]);
    rewrite.step(Op::Min, &[above, operands[2]]);
}

pub(crate) fn softcap(rewrite: &mut Rewrite, operands: &[TensorId], cap: f32) {
    let inner = rewrite.step(Op::MulScalar { value: 1.0 / cap }, &[operands[0]]);
    let inner = rewrite.step(Op::Tanh, &[inner]);
    rewrite.step(Op::MulScalar { value: cap }, &[inner]);
}

pub(crate) fn softmax(rewrite: &mut Rewrite, operands: &[TensorId]) {
    let x = operands[0];
    let largest = rewrite.step(Op::ReduceMax, &[x]);
    let below = rewrite.step(Op::Sub, &[x, largest]);
    let exponential = rewrite.step(Op::Exp, &[below]);
    let sum = rewrite.step(Op::ReduceSum, &[exponential]);
    rewrite.step(Op::Div, &[exponential, sum]);
}
