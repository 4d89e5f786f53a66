//! Matrix products.

use rayon::prelude::*;

use crate::Array;
use crate::ops::elementwise::broadcast_offsets;

/// `x [.., K] · wᵀ [N, K] (+ bias [N]) → [.., N]`.
pub(crate) fn linear(x: &Array, w: &Array, bias: Option<&Array>) -> Array {
    let (n, k) = (w.shape()[0], w.shape()[1]);
    let rows = x.elements() / k;
    let mut y = rows_times_rows(
        rows,
        n,
        k,
        |row, into| x.gather_f64(row * k, 1, into),
        |row, into| w.gather_f64(row * k, 1, into),
    );
    if let Some(bias) = bias {
        let bias = bias.floats();
        for (index, y) in y.iter_mut().enumerate() {
            *y += f64::from(bias[index % n]);
        }
    }
    let mut shape = x.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = n;
    }
    Array::made(&shape, y.into_iter().map(|y| y as f32).collect())
}

/// Every row as `s · q`, where `s = max(max|x|, 1e-30) · (1/127)` and `q = round(x / s)`, ties to even, all in f32.
pub(crate) fn quantised_rows(x: &Array) -> Array {
    let width = x.shape().last().copied().unwrap_or(1).max(1);
    let mut values = x.floats().into_owned();
    for row in values.chunks_mut(width) {
        let largest = row.iter().fold(1e-30_f32, |largest, value| largest.max(value.abs()));
        let scale = largest * (1.0 / 127.0);
        row.iter_mut().for_each(|value| *value = (*value / scale).round_ties_even() * scale);
    }
    Array::made(x.shape(), values)
}

/// `a [.., M, K] · b [.., K, N]`, or `b [.., N, K]` with `transpose_b`; leading axes broadcast.
pub(crate) fn mat_mul(a: &Array, b: &Array, transpose_b: bool, shape: &[usize]) -> Array {
    let (batch, tail) = shape.split_at(shape.len() - 2);
    let (m, n) = (tail[0], tail[1]);
    let k = a.shape()[a.shape().len() - 1];
    let leading = |array: &Array| array.shape()[..array.shape().len() - 2].to_vec();
    let a_matrices = broadcast_offsets(&leading(a), batch);
    let b_matrices = broadcast_offsets(&leading(b), batch);
    let mut y = Vec::with_capacity(shape.iter().product());
    for (a_matrix, b_matrix) in a_matrices.into_iter().zip(b_matrices) {
        let (a_start, b_start) = (a_matrix * m * k, b_matrix * k * n);
        let product = rows_times_rows(
            m,
            n,
            k,
            |row, into| a.gather_f64(a_start + row * k, 1, into),
            |row, into| {
                if transpose_b {
                    b.gather_f64(b_start + row * k, 1, into);
                } else {
                    b.gather_f64(b_start + row, n, into);
                }
            },
        );
        y.extend(product.into_iter().map(|y| y as f32));
    }
    Array::made(shape, y)
}

/// Products below this many multiply-adds are not worth a second thread.
const PARALLEL_FROM: usize = 1 << 16;

/// Vectors b that are widened together and stay in the cache while all of a passes by.
const BLOCK: usize = 16;

/// `y[i, j] = a_i · b_j` for `m` vectors a and `n` vectors b of `k` values, which the closures fill in.
///
/// Each b is read once for all rows: the weights are what is large.
fn rows_times_rows(
    m: usize,
    n: usize,
    k: usize,
    a_row: impl Fn(usize, &mut [f64]),
    b_row: impl Fn(usize, &mut [f64]) + Sync,
) -> Vec<f64> {
    let mut a = vec![0.0; m * k];
    for (row, into) in a.chunks_exact_mut(k).enumerate() {
        a_row(row, into);
    }
    // Transposed, so that a thread writes one run of memory: [n, m].
    let mut transposed = vec![0.0; n * m];
    let block = |scratch: &mut Vec<f64>, (index, into): (usize, &mut [f64])| {
        let columns = into.len() / m;
        for (column, b) in scratch.chunks_exact_mut(k).take(columns).enumerate() {
            b_row(index * BLOCK + column, b);
        }
        for (row, a) in a.chunks_exact(k).enumerate() {
            for (column, b) in scratch.chunks_exact(k).take(columns).enumerate() {
                into[column * m + row] = dot(a, b);
            }
        }
    };
    let scratch = || vec![0.0; BLOCK * k];
    if m * n * k < PARALLEL_FROM {
        let mut scratch = scratch();
        transposed.chunks_mut(BLOCK * m).enumerate().for_each(|item| block(&mut scratch, item));
    } else {
        transposed.par_chunks_mut(BLOCK * m).enumerate().for_each_init(scratch, block);
    }
    if m == 1 {
        return transposed;
    }
    let mut y = vec![0.0; m * n];
    for (j, column) in transposed.chunks_exact(m).enumerate() {
        for (i, value) in column.iter().enumerate() {
            y[i * n + j] = *value;
        }
    }
    y
}

/// Partial sums that a dot product keeps apart, so that the compiler may use vectors.
const LANES: usize = 8;

/// `Σ aᵢ bᵢ`; products of two f32 are exact in f64. The order of the sum depends on the length alone.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[lane] += a * b;
    }
    sums.iter().sum()
}
