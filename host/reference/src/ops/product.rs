//! Matrix products.
//!
//! If both operands are integers, the products of `stored − zero point` are summed exactly and
//! multiplied once by both scales, in f64: `Σ · (s_a · s_b)`. If an operand has a scale per block,
//! each block's sum is multiplied by its scale, and the blocks are added in their order, in f64.
//! All other products use decoded values, in f64. There is one rounding to f32 at the end.

use rayon::prelude::*;

use crate::Array;
use crate::array::RowScales;
use crate::ops::elementwise::broadcast_offsets;

/// Computes `x [.., K] · wᵀ [N, K] (+ bias [N]) → [.., N]`.
pub(crate) fn linear(x: &Array, w: &Array, bias: Option<&Array>) -> Array {
    let (n, k) = (w.shape()[0], w.shape()[1]);
    let rows = x.elements() / k;
    let y = product(Operand::rows(x, 0, k), Operand::rows(w, 0, k), rows, n, k);
    finish(x.shape(), y, n, bias)
}

/// Adds the bias, rounds once, and sets the shape of the result.
fn finish(x_shape: &[usize], mut y: Vec<f64>, n: usize, bias: Option<&Array>) -> Array {
    if let Some(bias) = bias {
        let bias = bias.floats();
        for (index, y) in y.iter_mut().enumerate() {
            *y += f64::from(bias[index % n]);
        }
    }
    let mut shape = x_shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = n;
    }
    Array::made(&shape, y.into_iter().map(|y| y as f32).collect())
}

/// Lower bound of the magnitude by which [`dynamic_linear`] scales a row.
const LEAST_MAGNITUDE: f32 = 1e-30;

/// Like [`linear`], but with an integer weight, and each block of a row of x is quantised
/// separately: `s = max(max|x|, 1e-30) · (1/127)` and `q = round(x / s)`, ties to even, all in f32.
/// If `block` is 0, each row is one block, and the result is `Σ q·w · (s · s_w)`.
pub(crate) fn dynamic_linear(x: &Array, w: &Array, bias: Option<&Array>, block: usize) -> Array {
    let (n, k) = (w.shape()[0], w.shape()[1]);
    let values = x.floats();
    let rows = values.len() / k.max(1);
    let size = if block == 0 { k } else { block }.max(1);
    let scale =
        |block: &[f32]| block.iter().fold(LEAST_MAGNITUDE, |largest, x| largest.max(x.abs())) * (1.0 / 127.0);
    let step = |x: &f32, scale: f32| f64::from((x / scale).round_ties_even());
    let weight = Operand::rows(w, 0, k);
    let y = if block == 0 && w.row_scales().is_some() {
        let scales: Vec<f32> = values.chunks_exact(k).map(scale).collect();
        let steps = |row: usize, into: &mut [f64]| {
            into.iter_mut().zip(&values[row * k..]).for_each(|(to, x)| *to = step(x, scales[row]));
        };
        integer_product(steps, |row| f64::from(scales[row]), &weight, scales.len(), n, k)
    } else {
        let rounded = |row: usize, into: &mut [f64]| {
            for (to, x) in into.chunks_mut(size).zip(values[row * k..][..k].chunks(size)) {
                let scale = scale(x);
                to.iter_mut().zip(x).for_each(|(to, x)| *to = step(x, scale) * f64::from(scale));
            }
        };
        rounded_product(rounded, &weight, rows, n, k)
    };
    finish(x.shape(), y, n, bias)
}

/// Multiplies rows given as integers and scales. The sums within a block are exact in f64, and
/// blocks are added in f64. Weights that are not multiples of a scale are decoded.
fn rounded_product(
    a_row: impl Fn(usize, &mut [f64]),
    b: &Operand<'_>,
    m: usize,
    n: usize,
    k: usize,
) -> Vec<f64> {
    let Some(scales) = b.array.row_scales() else {
        let values = |row: usize, into: &mut [f64]| b.values(row, into);
        return vectors_times_vectors(m, n, k, a_row, values, |_, a, b| dot(a, b));
    };
    let size = if let RowScales::Blocks(_, size) = scales { size } else { k.max(1) };
    let scale = |row: usize, place: usize| match scales {
        RowScales::One(scale) => scale,
        RowScales::PerRow(weight) | RowScales::Blocks(weight, _) => {
            f64::from(weight.scale(b.row(row), place).unwrap_or(f32::NAN))
        }
    };
    let steps = |row: usize, into: &mut [f64]| b.steps(row, into);
    vectors_times_vectors(m, n, k, a_row, steps, |row, a, b| {
        let blocks = a.chunks(size).zip(b.chunks(size)).enumerate();
        blocks.fold(0.0, |sum, (block, (a, b))| sum + dot(a, b) * scale(row, block * size))
    })
}

/// Computes `a [.., M, K] · b [.., K, N]`, or with `b [.., N, K]` if `transpose_b`. Leading axes
/// broadcast.
pub(crate) fn mat_mul(a: &Array, b: &Array, transpose_b: bool, shape: &[usize]) -> Array {
    let (batch, tail) = shape.split_at(shape.len() - 2);
    let (m, n) = (tail[0], tail[1]);
    let k = a.shape()[a.shape().len() - 1];
    let leading = |array: &Array| array.shape()[..array.shape().len() - 2].to_vec();
    let a_matrices = broadcast_offsets(&leading(a), batch);
    let b_matrices = broadcast_offsets(&leading(b), batch);
    // The elements of a constant's column are not adjacent.
    let existing = if transpose_b { std::borrow::Cow::Borrowed(b) } else { b.in_memory() };
    let mut y = Vec::with_capacity(shape.iter().product());
    for (a_matrix, b_matrix) in a_matrices.into_iter().zip(b_matrices) {
        let b = match transpose_b {
            true => Operand::rows(&existing, b_matrix * k * n, k),
            false => Operand::columns(&existing, b_matrix * k * n, n),
        };
        let product = product(Operand::rows(a, a_matrix * m * k, k), b, m, n, k);
        y.extend(product.into_iter().map(|y| y as f32));
    }
    Array::made(shape, y)
}

/// A matrix as vectors along the summed axis.
struct Operand<'a> {
    array: &'a Array,
    start: usize,
    /// Distance from one vector to the next.
    step: usize,
    /// Distance from one element of a vector to the next.
    stride: usize,
}

impl<'a> Operand<'a> {
    fn rows(array: &'a Array, start: usize, width: usize) -> Self {
        Operand { array, start, step: width, stride: 1 }
    }

    fn columns(array: &'a Array, start: usize, width: usize) -> Self {
        Operand { array, start, step: 1, stride: width }
    }

    fn values(&self, index: usize, into: &mut [f64]) {
        self.array.gather_values(self.start + index * self.step, self.stride, into);
    }

    fn steps(&self, index: usize, into: &mut [f64]) {
        self.array.gather_steps(self.start + index * self.step, self.stride, into);
    }

    /// Returns the row of the whole array that contains a vector. Only for vectors along rows.
    fn row(&self, index: usize) -> usize {
        self.start / self.step.max(1) + index
    }
}

/// Computes `y[i, j] = a_i · b_j` for `m` vectors a and `n` vectors b of `k` values.
fn product(a: Operand<'_>, b: Operand<'_>, m: usize, n: usize, k: usize) -> Vec<f64> {
    let fill = |row: usize, into: &mut [f64]| a.steps(row, into);
    if b.array.row_scales().is_some() {
        match a.array.row_scales() {
            Some(RowScales::One(scale)) => return integer_product(fill, |_| scale, &b, m, n, k),
            Some(RowScales::PerRow(weight)) => {
                let scale = |row: usize| f64::from(weight.scale(a.row(row), 0).unwrap_or(f32::NAN));
                return integer_product(fill, scale, &b, m, n, k);
            }
            // Only a constant has blocks, and no graph multiplies two constants.
            Some(RowScales::Blocks(..)) | None => {}
        }
    }
    let values = |row: usize, into: &mut [f64]| a.values(row, into);
    vectors_times_vectors(m, n, k, values, |row, into| b.values(row, into), |_, a, b| dot(a, b))
}

/// Like [`product`], but for integers on both sides: `a_steps` fills in the integers of row i, and
/// `a_scale` returns their scale.
fn integer_product(
    a_steps: impl Fn(usize, &mut [f64]),
    a_scale: impl Fn(usize) -> f64,
    b: &Operand<'_>,
    m: usize,
    n: usize,
    k: usize,
) -> Vec<f64> {
    let fill = |row: usize, into: &mut [f64]| b.steps(row, into);
    let scales: Vec<f64> = match b.array.row_scales() {
        Some(RowScales::Blocks(weight, size)) => {
            let sum = |row: usize, a: &[f64], steps: &[f64]| {
                let blocks = a.chunks(size).zip(steps.chunks(size)).enumerate();
                blocks.fold(0.0, |sum, (block, (a, steps))| {
                    let scale = weight.scale(b.row(row), block * size).unwrap_or(f32::NAN);
                    sum + exact_dot(a, steps) as f64 * f64::from(scale)
                })
            };
            let mut y = vectors_times_vectors(m, n, k, a_steps, fill, sum);
            for (row, y) in y.chunks_exact_mut(n).enumerate() {
                y.iter_mut().for_each(|y| *y *= a_scale(row));
            }
            return y;
        }
        Some(RowScales::PerRow(weight)) => {
            (0..n).map(|row| f64::from(weight.scale(b.row(row), 0).unwrap_or(f32::NAN))).collect()
        }
        Some(RowScales::One(scale)) => vec![scale; n],
        None => vec![1.0; n],
    };
    let mut y = vectors_times_vectors(m, n, k, a_steps, fill, |_, a, b| exact_dot(a, b) as f64);
    for (row, y) in y.chunks_exact_mut(n).enumerate() {
        let a_scale = a_scale(row);
        y.iter_mut().zip(&scales).for_each(|(y, scale)| *y *= a_scale * scale);
    }
    y
}

/// Products below this many multiply-adds are not worth a second thread.
const PARALLEL_FROM: usize = 1 << 16;

/// Number of b vectors that are widened together. They stay in cache while all of a is read.
const BLOCK: usize = 16;

/// Computes `y[i, j] = multiply(j, a_i, b_j)` for `m` vectors a and `n` vectors b of `k` values,
/// which the closures fill in.
///
/// Each b is read once for all of a, because the weights are the large operand.
fn vectors_times_vectors(
    m: usize,
    n: usize,
    k: usize,
    a_row: impl Fn(usize, &mut [f64]),
    b_row: impl Fn(usize, &mut [f64]) + Sync,
    multiply: impl Fn(usize, &[f64], &[f64]) -> f64 + Sync,
) -> Vec<f64> {
    let mut a = vec![0.0; m * k];
    for (row, into) in a.chunks_exact_mut(k).enumerate() {
        a_row(row, into);
    }
    // The result is transposed, [n, m], so that each thread writes contiguous memory.
    let mut transposed = vec![0.0; n * m];
    let block = |scratch: &mut Vec<f64>, (index, into): (usize, &mut [f64])| {
        let columns = into.len() / m;
        for (column, b) in scratch.chunks_exact_mut(k).take(columns).enumerate() {
            b_row(index * BLOCK + column, b);
        }
        for (row, a) in a.chunks_exact(k).enumerate() {
            for (column, b) in scratch.chunks_exact(k).take(columns).enumerate() {
                into[column * m + row] = multiply(index * BLOCK + column, a, b);
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

/// Number of separate partial sums of a dot product, which allow the compiler to vectorise.
const LANES: usize = 8;

/// Computes `Σ aᵢ bᵢ`. Products of two f32 are exact in f64. The order of summation depends only on
/// the length.
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

/// Number of terms in an exact sum. Products of two `stored − zero point` are at most 2³², so f64
/// represents the sum of this many exactly, in any order.
const EXACT_TERMS: usize = 1 << 20;

/// Computes `Σ aᵢ bᵢ` of integers, exactly.
fn exact_dot(a: &[f64], b: &[f64]) -> i64 {
    a.chunks(EXACT_TERMS).zip(b.chunks(EXACT_TERMS)).map(|(a, b)| dot(a, b) as i64).sum()
}
