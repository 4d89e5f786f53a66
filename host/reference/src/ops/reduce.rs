//! Reductions over the last axis, which remains with extent 1.

use crate::Array;

/// Sum.
pub(crate) fn sum(x: &Array) -> Array {
    reduce(x, |row| row.iter().map(|&x| f64::from(x)).sum())
}

/// Mean.
pub(crate) fn mean(x: &Array) -> Array {
    reduce(x, |row| row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64)
}

/// Largest.
pub(crate) fn max(x: &Array) -> Array {
    reduce(x, |row| row.iter().map(|&x| f64::from(x)).fold(f64::NEG_INFINITY, f64::max))
}

fn reduce(x: &Array, of_row: impl Fn(&[f32]) -> f64) -> Array {
    let mut shape = x.shape().to_vec();
    let width = shape.last_mut().map_or(1, |last| std::mem::replace(last, 1));
    Array::made(&shape, x.floats().chunks_exact(width).map(|row| of_row(row) as f32).collect())
}
