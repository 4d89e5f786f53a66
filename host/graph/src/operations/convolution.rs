//! Convolutions over the rows and columns of a plane, and along rows.

use super::infer::last;
use super::layout::elements;
use super::rewrite::Rewrite;
use crate::{Op, TensorId};

/// The window of a convolution over a plane.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    kernel: u64,
    stride: u64,
    padding: u64,
}

impl Window {
    pub(crate) fn new(kernel: u32, stride: u32, padding: u32) -> Self {
        Window { kernel: kernel.into(), stride: stride.into(), padding: padding.into() }
    }

    /// Returns whether the window is allowed. A kernel's places are concatenated, and operations
    /// have a bounded number of operands.
    pub(crate) fn is_possible(self) -> bool {
        (1..=7).contains(&self.kernel) && (1..=2).contains(&self.stride) && self.padding < self.kernel
    }

    /// Returns the number of results along an axis, or `None` for an invalid window.
    fn results(self, extent: u64) -> Option<u64> {
        if !self.is_possible() {
            return None;
        }
        let room = extent.checked_add(2 * self.padding)?.checked_sub(self.kernel)?;
        Some(room / self.stride + 1)
    }
}

pub(crate) fn shape(shapes: &[&[u64]], window: Window) -> Result<Vec<u64>, String> {
    let [x, weight] = [shapes[0], shapes[1]];
    let (&[height, width, channels], &[outputs, columns]) = (x, weight) else {
        return Err(format!("{x:?} and {weight:?} are not [H, W, C] and [O, C·kernel²]"));
    };
    let square = window.kernel.saturating_mul(window.kernel);
    if channels == 0 || channels.checked_mul(square) != Some(columns) {
        return Err(format!("a weight {weight:?} does not fit {channels} channels of {square} places"));
    }
    match (window.results(height), window.results(width)) {
        (Some(height), Some(width)) => Ok(vec![height, width, outputs]),
        _ => Err(format!("{x:?} is smaller than a kernel of {}", window.kernel)),
    }
}

pub(crate) fn multiply_adds(shapes: &[&[u64]], result: &[u64]) -> u64 {
    elements(result).unwrap_or(u64::MAX).saturating_mul(last(shapes[1]))
}

/// Concatenates the values read by each place of the kernel, in the order of the weight, and
/// multiplies them by the weight.
pub(crate) fn convolution(rewrite: &mut Rewrite, operands: &[TensorId], window: Window) {
    let [x, weight] = [operands[0], operands[1]];
    let shape = rewrite.shape(x);
    let padded = padded(rewrite, x, 0, window.padding);
    let padded = self::padded(rewrite, padded, 1, window.padding);
    let results = [0, 1].map(|axis| window.results(shape[axis]).unwrap_or(1));
    let mut places = Vec::new();
    for row in 0..window.kernel {
        let rows = every(rewrite, padded, 0, row, window.stride, results[0]);
        for column in 0..window.kernel {
            let place = every(rewrite, rows, 1, column, window.stride, results[1]);
            let one = vec![results[0], results[1], shape[2], 1];
            places.push(rewrite.step(Op::Reshape { shape: one }, &[place]));
        }
    }
    let joined = rewrite.step(Op::Concat { axis: 3 }, &places);
    let columns = vec![results[0], results[1], shape[2] * window.kernel * window.kernel];
    let columns = rewrite.step(Op::Reshape { shape: columns }, &[joined]);
    rewrite.step(Op::Linear, &[columns, weight]);
}

/// Adds this many zeros before and after an axis.
fn padded(rewrite: &mut Rewrite, x: TensorId, axis: usize, padding: u64) -> TensorId {
    if padding == 0 {
        return x;
    }
    let zeros = zeros(rewrite, x, axis, padding);
    rewrite.step(Op::Concat { axis: axis as u32 }, &[zeros, x, zeros])
}

/// Returns zeros in the shape of x, with `count` along an axis.
fn zeros(rewrite: &mut Rewrite, x: TensorId, axis: usize, count: u64) -> TensorId {
    let extent = rewrite.shape(x)[axis];
    let axis = axis as u32;
    let one = rewrite.step(Op::Slice { axis, start: 0, end: count.min(extent) }, &[x]);
    let zeros = rewrite.step(Op::MulScalar { value: 0.0 }, &[one]);
    if count <= extent {
        return zeros;
    }
    let copies = vec![zeros; count.div_ceil(extent) as usize];
    let many = rewrite.step(Op::Concat { axis }, &copies);
    rewrite.step(Op::Slice { axis, start: 0, end: count }, &[many])
}

/// Selects `count` values along an axis, every `stride`-th from `first`. If the axis ends with the
/// last of them, zeros fill the last group and are dropped again.
fn every(rewrite: &mut Rewrite, x: TensorId, axis: usize, first: u64, stride: u64, count: u64) -> TensorId {
    let shape = rewrite.shape(x);
    let end = first + count * stride;
    let mut run = x;
    if end > shape[axis] {
        let more = zeros(rewrite, x, axis, end - shape[axis]);
        run = rewrite.step(Op::Concat { axis: axis as u32 }, &[x, more]);
    }
    if (first, end) != (0, rewrite.shape(run)[axis]) {
        run = rewrite.step(Op::Slice { axis: axis as u32, start: first, end }, &[run]);
    }
    if stride == 1 {
        return run;
    }
    let mut taken = shape.clone();
    taken[axis] = count;
    let mut apart = taken.clone();
    apart.insert(axis + 1, stride);
    let apart = rewrite.step(Op::Reshape { shape: apart }, &[run]);
    let first = rewrite.step(Op::Slice { axis: axis as u32 + 1, start: 0, end: 1 }, &[apart]);
    rewrite.step(Op::Reshape { shape: taken }, &[first])
}

pub(crate) fn depthwise_shape(shapes: &[&[u64]]) -> Result<Vec<u64>, String> {
    match (shapes[0], shapes[1]) {
        (&[_, channels], &[of, kernel]) if channels == of && (1..=32).contains(&kernel) => {
            Ok(shapes[0].to_vec())
        }
        (x, weight) => Err(format!("{x:?} and {weight:?} are not [R, C] and [C, 1 to 32]")),
    }
}

pub(crate) fn depthwise_multiply_adds(shapes: &[&[u64]], result: &[u64]) -> u64 {
    elements(result).unwrap_or(u64::MAX).saturating_mul(last(shapes[1]))
}

/// Concatenates the values read by each place of the kernel, in the order of the weight, multiplies
/// them by the weight and sums. So no part of the weight is sliced, which compilers of neural
/// processors do not support.
pub(crate) fn depthwise(rewrite: &mut Rewrite, operands: &[TensorId]) {
    let [x, weight] = [operands[0], operands[1]];
    let (rows, channels) = (rewrite.shape(x)[0], rewrite.shape(x)[1]);
    let kernel = rewrite.shape(weight)[1];
    let one = Op::Reshape { shape: vec![rows, channels, 1] };
    let joined = match kernel {
        1 => rewrite.step(one, &[x]),
        _ => {
            let zeros = zeros(rewrite, x, 0, kernel - 1);
            let moved = rewrite.step(Op::Concat { axis: 0 }, &[zeros, x]);
            let mut places = Vec::new();
            for place in 0..kernel {
                let run = rewrite.step(Op::Slice { axis: 0, start: place, end: place + rows }, &[moved]);
                places.push(rewrite.step(one.clone(), &[run]));
            }
            rewrite.step(Op::Concat { axis: 2 }, &places)
        }
    };
    let products = rewrite.step(Op::Mul, &[joined, weight]);
    let sum = rewrite.step(Op::ReduceSum, &[products]);
    rewrite.step(Op::Reshape { shape: vec![rows, channels] }, &[sum]);
}
