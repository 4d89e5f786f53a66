//! Normalisations.

use crate::Array;

/// Computes `x / sqrt(mean(x²) + eps) ⊙ (weight + offset)` over each consecutive `width` values.
pub(crate) fn rms_norm(x: &Array, weight: Option<&Array>, width: usize, eps: f32, offset: f32) -> Array {
    let weight = weight.map(|weight| weight.floats());
    let factor = |index: usize| match &weight {
        Some(weight) => f64::from(weight[index]) + f64::from(offset),
        None => 1.0,
    };
    let mut y = Vec::with_capacity(x.elements());
    for group in x.floats().chunks_exact(width) {
        let squares: f64 = group.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let scale = 1.0 / (squares / width as f64 + f64::from(eps)).sqrt();
        y.extend(group.iter().enumerate().map(|(index, &x)| (f64::from(x) * scale * factor(index)) as f32));
    }
    Array::made(x.shape(), y)
}

/// Computes `(x − mean(x)) / sqrt(variance(x) + eps) ⊙ weight + bias` over the last axis.
pub(crate) fn layer_norm(x: &Array, weight: Option<&Array>, bias: Option<&Array>, eps: f32) -> Array {
    let width = x.shape()[x.shape().len() - 1];
    let (weight, bias) = (weight.map(Array::floats), bias.map(Array::floats));
    let mut y = Vec::with_capacity(x.elements());
    for vector in x.floats().chunks_exact(width) {
        let mean = vector.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
        let variance = vector.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / width as f64;
        let scale = 1.0 / (variance + f64::from(eps)).sqrt();
        y.extend(vector.iter().enumerate().map(|(index, &x)| {
            let factor = weight.as_ref().map_or(1.0, |weight| f64::from(weight[index]));
            let addend = bias.as_ref().map_or(0.0, |bias| f64::from(bias[index]));
            ((f64::from(x) - mean) * scale * factor + addend) as f32
        }));
    }
    Array::made(x.shape(), y)
}

/// Smallest norm that [`l2_normalize`] divides by.
const LEAST_NORM: f64 = 1e-12;

/// Computes `x / max(‖x‖₂, 1e-12)` over the last axis.
pub(crate) fn l2_normalize(x: &Array) -> Array {
    let width = x.shape()[x.shape().len() - 1];
    let mut y = Vec::with_capacity(x.elements());
    for vector in x.floats().chunks_exact(width) {
        let norm = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt().max(LEAST_NORM);
        y.extend(vector.iter().map(|&x| (f64::from(x) / norm) as f32));
    }
    Array::made(x.shape(), y)
}
