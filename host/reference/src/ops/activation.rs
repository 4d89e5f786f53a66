//! Functions of one element, named by model families.

use std::f64::consts::PI;

use crate::Array;
use crate::ops::elementwise::unary;

/// Computes `0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))`.
pub(crate) fn gelu(x: &Array) -> Array {
    let slope = (2.0 / PI).sqrt();
    unary(x, |x| {
        let x = f64::from(x);
        (0.5 * x * (1.0 + (slope * (x + 0.044_715 * x * x * x)).tanh())) as f32
    })
}

/// Computes `x / (1 + exp(−x))`.
pub(crate) fn silu(x: &Array) -> Array {
    unary(x, |x| {
        let x = f64::from(x);
        (x / (1.0 + (-x).exp())) as f32
    })
}

/// Computes `cap · tanh(x / cap)`.
pub(crate) fn softcap(x: &Array, cap: f32) -> Array {
    let cap = f64::from(cap);
    unary(x, |x| (cap * (f64::from(x) / cap).tanh()) as f32)
}

/// Computes `1 / (1 + exp(−x))`.
pub(crate) fn sigmoid(x: &Array) -> Array {
    unary(x, |x| (1.0 / (1.0 + (-f64::from(x)).exp())) as f32)
}

/// Computes `a · sigmoid(b)` of the halves of the last axis.
pub(crate) fn glu(x: &Array, shape: &[usize]) -> Array {
    let width = shape[shape.len() - 1];
    let gated = |pair: &[f32]| {
        let (values, gates) = pair.split_at(width);
        let of = |(&value, &gate): (&f32, &f32)| (f64::from(value) / (1.0 + (-f64::from(gate)).exp())) as f32;
        values.iter().zip(gates).map(of).collect::<Vec<f32>>()
    };
    Array::made(shape, x.floats().chunks_exact(2 * width).flat_map(gated).collect())
}

/// Computes `min(max(x, low), high)`.
pub(crate) fn clamp(x: &Array, low: &Array, high: &Array) -> Array {
    let (low, high) = (low.floats()[0], high.floats()[0]);
    unary(x, |x| x.max(low).min(high))
}
