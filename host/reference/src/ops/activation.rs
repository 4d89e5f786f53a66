//! Functions of one element that families name.

use std::f64::consts::PI;

use crate::Array;
use crate::ops::elementwise::unary;

/// `0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))`.
pub(crate) fn gelu(x: &Array) -> Array {
    let slope = (2.0 / PI).sqrt();
    unary(x, |x| {
        let x = f64::from(x);
        (0.5 * x * (1.0 + (slope * (x + 0.044_715 * x * x * x)).tanh())) as f32
    })
}

/// `x / (1 + exp(−x))`.
pub(crate) fn silu(x: &Array) -> Array {
    unary(x, |x| {
        let x = f64::from(x);
        (x / (1.0 + (-x).exp())) as f32
    })
}

/// `cap · tanh(x / cap)`.
pub(crate) fn softcap(x: &Array, cap: f32) -> Array {
    let cap = f64::from(cap);
    unary(x, |x| (cap * (f64::from(x) / cap).tanh()) as f32)
}
