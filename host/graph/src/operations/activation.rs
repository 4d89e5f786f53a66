use std::f64::consts::PI;

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

/// Not through e^−x, which no 16-bit integer holds beside 1 once x is far below zero.
pub(crate) fn silu(rewrite: &mut Rewrite, operands: &[TensorId]) {
    let x = operands[0];
    let half = rewrite.step(Op::MulScalar { value: 0.5 }, &[x]);
    let tanh = rewrite.step(Op::Tanh, &[half]);
    let half = rewrite.step(Op::MulScalar { value: 0.5 }, &[tanh]);
    let sigmoid = rewrite.step(Op::AddScalar { value: 0.5 }, &[half]);
    rewrite.step(Op::Mul, &[x, sigmoid]);
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
