//! Softmax over the last axis.

use crate::Array;

/// Computes `exp(x − max) / Σ exp(x − max)` over the last axis.
pub(crate) fn softmax(x: &Array) -> Array {
    let width = x.shape()[x.shape().len() - 1];
    let mut y = Vec::with_capacity(x.elements());
    for row in x.floats().chunks_exact(width) {
        let mut weights: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
        softmax_in_place(&mut weights);
        y.extend(weights.iter().map(|&weight| weight as f32));
    }
    Array::made(x.shape(), y)
}

/// Computes the softmax of one row in f64, in place.
pub(crate) fn softmax_in_place(row: &mut [f64]) {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}
