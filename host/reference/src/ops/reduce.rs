//! Reductions over the last axis, which remains with extent 1.

use crate::Array;

pub(crate) fn sum(x: &Array) -> Array {
    reduce(x, |row| row.iter().map(|&x| f64::from(x)).sum())
}

pub(crate) fn mean(x: &Array) -> Array {
    reduce(x, |row| row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64)
}

/// Returns the largest element.
pub(crate) fn max(x: &Array) -> Array {
    reduce(x, |row| row.iter().map(|&x| f64::from(x)).fold(f64::NEG_INFINITY, f64::max))
}

fn reduce(x: &Array, of_row: impl Fn(&[f32]) -> f64) -> Array {
    let mut shape = x.shape().to_vec();
    let width = shape.last_mut().map_or(1, |last| std::mem::replace(last, 1));
    Array::made(&shape, x.floats().chunks_exact(width).map(|row| of_row(row) as f32).collect())
}

/// Computes the mean of every `rows` consecutive rows.
pub(crate) fn mean_rows(x: &Array, rows: usize) -> Array {
    let width = x.shape()[1];
    let mean = |group: &[f32]| {
        let of = |column: usize| {
            let sum: f64 = group.iter().skip(column).step_by(width).map(|&x| f64::from(x)).sum();
            (sum / rows as f64) as f32
        };
        (0..width).map(of).collect::<Vec<f32>>()
    };
    let values = x.floats().chunks_exact(rows * width).flat_map(mean).collect();
    Array::made(&[x.shape()[0] / rows, width], values)
}
