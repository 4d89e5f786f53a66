//! FULLY_CONNECTED, BATCH_MATMUL and CONV_2D: sums of products.
//!
//! Integer arithmetic restates
//! `tensorflow/lite/kernels/internal/reference/integer_ops/{fully_connected,conv}.h` and
//! `reference/batch_matmul.h`. Each output is Σ (x − zₓ)(w − z_w) + bias in an exact accumulator,
//! times sₓ·s_w/s_out as a fixed-point multiplier, plus the output's zero point, clamped. The
//! multiplier has 32 bits. BATCH_MATMUL with 16-bit elements and sums beyond 32 bits use the form
//! for 64-bit accumulators instead.

use std::borrow::Cow;

use half::f16;

use super::fixed::Multiplier;
use super::tensor::{Class, Elements, Layout, Tensor, from_reals, from_stored, fused, fused_range};

/// Number of products below which one thread computes all of them.
const WORTH_A_THREAD: usize = 1 << 21;

/// A matrix of integers, with rows of `depth` elements.
enum Integers<'a> {
    I8(Cow<'a, [i8]>),
    U8(Cow<'a, [u8]>),
    I16(Cow<'a, [i16]>),
    U16(Cow<'a, [u16]>),
}

fn integers<'a>(elements: &'a Elements<'a>) -> Option<Integers<'a>> {
    match elements {
        Elements::I8(found) => Some(Integers::I8(Cow::Borrowed(found))),
        Elements::U8(found) => Some(Integers::U8(Cow::Borrowed(found))),
        Elements::I16(found) => Some(Integers::I16(Cow::Borrowed(found))),
        Elements::U16(found) => Some(Integers::U16(Cow::Borrowed(found))),
        _ => None,
    }
}

/// An integer of at most 16 bits. `BITS` is the number of magnitude bits, which determines how many
/// products fit into 32 bits.
trait Narrow: Copy + Into<i32> + Sync {
    const BITS: u32;
}
impl Narrow for i8 {
    const BITS: u32 = 7;
}
impl Narrow for u8 {
    const BITS: u32 = 8;
}
impl Narrow for i16 {
    const BITS: u32 = 15;
}
impl Narrow for u16 {
    const BITS: u32 = 16;
}

#[inline(always)]
fn dot<A: Narrow, B: Narrow>(a: &[A], b: &[B]) -> i64 {
    let spare = 30i32 - (A::BITS + B::BITS) as i32;
    if spare < 4 {
        return a.iter().zip(b).map(|(a, b)| i64::from((*a).into()) * i64::from((*b).into())).sum();
    }
    let block = 1usize << spare.min(12);
    let mut sum = 0i64;
    for (a, b) in a.chunks(block).zip(b.chunks(block)) {
        // Sums cannot overflow in a block of this length. Without checks the loop is vectorised.
        let part =
            a.iter().zip(b).fold(0i32, |sum, (a, b)| sum.wrapping_add((*a).into().wrapping_mul((*b).into())));
        sum += i64::from(part);
    }
    sum
}

fn row_sum<A: Narrow>(row: &[A]) -> i64 {
    row.iter().map(|x| i64::from((*x).into())).sum()
}

/// Splits `columns` over threads, calls `one` with each range and returns the parts in order.
fn over_threads<T: Send>(
    columns: usize,
    products: usize,
    one: impl Fn(std::ops::Range<usize>) -> T + Sync,
) -> Vec<T> {
    let threads = if products < WORTH_A_THREAD {
        1
    } else {
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(columns.max(1))
    };
    if threads == 1 {
        return vec![one(0..columns)];
    }
    let bound = |part: usize| columns * part / threads;
    std::thread::scope(|scope| {
        let handles: Vec<_> = (1..threads)
            .map(|part| {
                let one = &one;
                scope.spawn(move || one(bound(part)..bound(part + 1)))
            })
            .collect();
        let mut parts = vec![one(0..bound(1))];
        for handle in handles {
            match handle.join() {
                Ok(part) => parts.push(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        parts
    })
}

/// A matrix product of `x` [rows, depth] and the transpose of `w` [columns, depth].
struct Product<'a> {
    rows: usize,
    columns: usize,
    depth: usize,
    x_zero: i64,
    /// Zero point of the weight, by column.
    w_zero: &'a (dyn Fn(usize) -> i64 + Sync),
    /// Addend of the accumulators, by column.
    bias: &'a [i32],
    /// Multiplier of the accumulators, by column.
    multiplier: &'a (dyn Fn(usize) -> Multiplier + Sync),
    /// Whether accumulators are scaled in the form for 64 bits.
    wide: bool,
    zero_point: i32,
    range: (i32, i32),
}

impl Product<'_> {
    fn run<A: Narrow, B: Narrow>(&self, x: &[A], w: &[B]) -> Vec<i32> {
        let (rows, depth) = (self.rows, self.depth);
        let x_sums: Vec<i64> = if (0..self.columns).any(|column| (self.w_zero)(column) != 0) {
            (0..rows).map(|row| row_sum(&x[row * depth..][..depth])).collect()
        } else {
            vec![0; rows]
        };
        let parts = over_threads(self.columns, rows * self.columns * depth, |columns| {
            let mut out = Vec::with_capacity(columns.len() * rows);
            for column in columns {
                let weights = &w[column * depth..][..depth];
                let multiplier = (self.multiplier)(column);
                let w_zero = (self.w_zero)(column);
                let mut constant = self.bias.get(column).map_or(0, |bias| i64::from(*bias));
                if self.x_zero != 0 {
                    constant += self.x_zero * (w_zero * depth as i64 - row_sum(weights));
                }
                for row in 0..rows {
                    let mut sum = dot(&x[row * depth..][..depth], weights) + constant;
                    if w_zero != 0 {
                        sum -= w_zero * x_sums[row];
                    }
                    // A sum beyond 32 bits can only be scaled in the wide form.
                    let scaled = match i32::try_from(sum) {
                        Ok(sum) if !self.wide => i64::from(multiplier.apply(sum)),
                        _ => multiplier.apply_wide(sum),
                    };
                    let shifted = scaled.saturating_add(i64::from(self.zero_point));
                    out.push(shifted.clamp(i64::from(self.range.0), i64::from(self.range.1)) as i32);
                }
            }
            out
        });
        transposed_parts(&parts, rows, self.columns)
    }
}

/// Joins parts, each [columns of the part, rows], to one matrix [rows, columns].
fn transposed_parts<T: Copy + Default>(parts: &[Vec<T>], rows: usize, columns: usize) -> Vec<T> {
    let mut out = vec![T::default(); rows * columns];
    let mut first = 0;
    for part in parts {
        for (column, values) in part.chunks_exact(rows.max(1)).enumerate() {
            for (row, value) in values.iter().enumerate() {
                out[row * columns + first + column] = *value;
            }
        }
        first += part.len() / rows.max(1);
    }
    out
}

fn dispatch(product: &Product<'_>, x: &Integers<'_>, w: &Integers<'_>) -> Vec<i32> {
    match (x, w) {
        (Integers::I8(x), Integers::I8(w)) => product.run(x, w),
        (Integers::I8(x), Integers::U8(w)) => product.run(x, w),
        (Integers::I8(x), Integers::I16(w)) => product.run(x, w),
        (Integers::I8(x), Integers::U16(w)) => product.run(x, w),
        (Integers::U8(x), Integers::I8(w)) => product.run(x, w),
        (Integers::U8(x), Integers::U8(w)) => product.run(x, w),
        (Integers::U8(x), Integers::I16(w)) => product.run(x, w),
        (Integers::U8(x), Integers::U16(w)) => product.run(x, w),
        (Integers::I16(x), Integers::I8(w)) => product.run(x, w),
        (Integers::I16(x), Integers::U8(w)) => product.run(x, w),
        (Integers::I16(x), Integers::I16(w)) => product.run(x, w),
        (Integers::I16(x), Integers::U16(w)) => product.run(x, w),
        (Integers::U16(x), Integers::I8(w)) => product.run(x, w),
        (Integers::U16(x), Integers::U8(w)) => product.run(x, w),
        (Integers::U16(x), Integers::I16(w)) => product.run(x, w),
        (Integers::U16(x), Integers::U16(w)) => product.run(x, w),
    }
}

/// Computes products of real numbers in 32 bits. Each row of weights is widened or rounded once.
fn real_product(
    x: &[f32],
    w: &Elements<'_>,
    bias: Option<&[f32]>,
    (rows, columns, depth): (usize, usize, usize),
    relaxed: bool,
) -> Vec<f32> {
    let parts = over_threads(columns, rows * columns * depth, |columns| {
        let mut out = Vec::with_capacity(columns.len() * rows);
        let mut widened = vec![0f32; depth];
        for column in columns {
            let place = column * depth..(column + 1) * depth;
            let weights: &[f32] = match w {
                Elements::F32(w) if !relaxed => &w[place],
                Elements::F32(w) => {
                    for (wide, x) in widened.iter_mut().zip(&w[place]) {
                        *wide = f16::from_f32(*x).to_f32();
                    }
                    &widened
                }
                Elements::F16(w) => {
                    for (wide, x) in widened.iter_mut().zip(&w[place]) {
                        *wide = x.to_f32();
                    }
                    &widened
                }
                _ => &widened,
            };
            let start = bias.and_then(|bias| bias.get(column)).copied().unwrap_or(0.0);
            for row in 0..rows {
                out.push(real_dot(&x[row * depth..][..depth], weights) + start);
            }
        }
        out
    });
    transposed_parts(&parts, rows, columns)
}

fn real_dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 16];
    let (a_chunks, b_chunks) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..16 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Computes x [rows, depth] by w [columns, depth] plus a bias [columns]. FULLY_CONNECTED uses it,
/// and CONV_2D does after laying out its windows.
fn weighted(
    x: (&Elements<'_>, &Layout),
    w: &Tensor<'_>,
    bias: Option<&Tensor<'_>>,
    shape: (usize, usize, usize),
    fuse: i32,
    out: &Layout,
    relaxed: bool,
) -> Elements<'static> {
    let (rows, columns, depth) = shape;
    if out.class() == Class::Real {
        let tensor = Tensor { layout: x.1, elements: x.0.clone() };
        let bias = bias.map(|bias| bias.reals(relaxed).into_owned());
        let product = real_product(&tensor.reals(relaxed), &w.elements, bias.as_deref(), shape, relaxed);
        let (low, high) = fused(fuse);
        return from_reals(out, product.into_iter().map(|x| x.clamp(low as f32, high as f32)), relaxed);
    }
    let channels = w.layout.channels.as_ref();
    let scale = |column: usize| channels.map_or(w.layout.scale, |channels| channels.scales[column]);
    let multipliers: Vec<_> = (0..if channels.is_some() { columns } else { 1 })
        .map(|column| Multiplier::new(f64::from(x.1.scale) * f64::from(scale(column)) / f64::from(out.scale)))
        .collect();
    let bias = bias.map(Tensor::stored).unwrap_or_default();
    let product = Product {
        rows,
        columns,
        depth,
        x_zero: i64::from(x.1.zero_point),
        w_zero: &|column| {
            i64::from(channels.map_or(w.layout.zero_point, |channels| channels.zero_points[column]))
        },
        bias: &bias,
        multiplier: &|column| multipliers[if channels.is_some() { column } else { 0 }],
        // The bias has 32 bits, and so has the sum with it.
        wide: false,
        zero_point: out.zero_point,
        range: fused_range(out, fuse),
    };
    let stored = match (integers(x.0), integers(&w.elements)) {
        (Some(x), Some(w)) => dispatch(&product, &x, &w),
        // The step has checked that both are quantised.
        _ => vec![out.zero_point; rows * columns],
    };
    from_stored(out, stored.into_iter())
}

/// Computes FULLY_CONNECTED. The last dimension of the weight is the depth. The elements of x form
/// rows of that length.
pub fn fully_connected(
    x: &Tensor<'_>,
    w: &Tensor<'_>,
    bias: &Tensor<'_>,
    fuse: i32,
    out: &Layout,
    relaxed: bool,
) -> Elements<'static> {
    let (columns, depth) = (w.layout.dimensions[0], w.layout.dimensions[1]);
    let rows = x.layout.elements() / depth;
    weighted((&x.elements, x.layout), w, Some(bias), (rows, columns, depth), fuse, out, relaxed)
}

/// Copies a matrix [rows, columns] into [columns, rows].
fn transposed<T: Copy>(matrix: &[T], rows: usize, columns: usize) -> Vec<T> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| matrix[row * columns + column])).collect()
}

fn transposed_integers<'a>(matrix: Integers<'a>, rows: usize, columns: usize, needed: bool) -> Integers<'a> {
    if !needed {
        return matrix;
    }
    match matrix {
        Integers::I8(x) => Integers::I8(Cow::Owned(transposed(&x, rows, columns))),
        Integers::U8(x) => Integers::U8(Cow::Owned(transposed(&x, rows, columns))),
        Integers::I16(x) => Integers::I16(Cow::Owned(transposed(&x, rows, columns))),
        Integers::U16(x) => Integers::U16(Cow::Owned(transposed(&x, rows, columns))),
    }
}

fn part<'a>(matrices: &'a Integers<'_>, at: usize, length: usize) -> Integers<'a> {
    match matrices {
        Integers::I8(x) => Integers::I8(Cow::Borrowed(&x[at * length..][..length])),
        Integers::U8(x) => Integers::U8(Cow::Borrowed(&x[at * length..][..length])),
        Integers::I16(x) => Integers::I16(Cow::Borrowed(&x[at * length..][..length])),
        Integers::U16(x) => Integers::U16(Cow::Borrowed(&x[at * length..][..length])),
    }
}

/// Returns the index of the operand's matrix for position `at` of the batch dimensions `batch`.
/// `own` are the operand's own batch dimensions.
fn matrix_at(mut at: usize, batch: &[usize], own: &[usize]) -> usize {
    let (mut index, mut stride) = (0, 1);
    for (place, length) in batch.iter().enumerate().rev() {
        let here = at % length;
        at /= length;
        if let Some(own) = (place + own.len()).checked_sub(batch.len()).map(|place| own[place]) {
            index += if own == 1 { 0 } else { here * stride };
            stride *= own;
        }
    }
    index
}

/// Computes BATCH_MATMUL. The last two dimensions are matrices, and the dimensions before are
/// broadcast.
pub fn batch_matmul(
    a: &Tensor<'_>,
    b: &Tensor<'_>,
    transpose_a: bool,
    transpose_b: bool,
    out: &Layout,
    relaxed: bool,
) -> Elements<'static> {
    let last_two = |layout: &Layout| {
        let rank = layout.dimensions.len();
        (layout.dimensions[rank - 2], layout.dimensions[rank - 1])
    };
    let batch_of = |layout: &Layout| layout.dimensions[..layout.dimensions.len() - 2].to_vec();
    let ((a_rows, a_columns), (b_rows, b_columns), (rows, columns)) =
        (last_two(a.layout), last_two(b.layout), last_two(out));
    let depth = if transpose_a { a_rows } else { a_columns };
    let (a_batch, b_batch, batch) = (batch_of(a.layout), batch_of(b.layout), batch_of(out));
    let places: usize = batch.iter().product();
    if out.class() == Class::Real {
        let (a_reals, b_reals) = (a.reals(relaxed), b.reals(relaxed));
        let mut result = Vec::with_capacity(out.elements());
        for place in 0..places {
            let left = &a_reals[matrix_at(place, &batch, &a_batch) * rows * depth..][..rows * depth];
            let right = &b_reals[matrix_at(place, &batch, &b_batch) * columns * depth..][..columns * depth];
            let left = if transpose_a {
                Cow::Owned(transposed(left, a_rows, a_columns))
            } else {
                Cow::Borrowed(left)
            };
            let right = if transpose_b {
                Cow::Borrowed(right)
            } else {
                Cow::Owned(transposed(right, b_rows, b_columns))
            };
            result.extend(real_product(&left, &Elements::F32(right), None, (rows, columns, depth), false));
        }
        return from_reals(out, result.into_iter(), relaxed);
    }
    let multiplier =
        Multiplier::new(f64::from(a.layout.scale) * f64::from(b.layout.scale) / f64::from(out.scale));
    let product = Product {
        rows,
        columns,
        depth,
        x_zero: i64::from(a.layout.zero_point),
        w_zero: &|_| i64::from(b.layout.zero_point),
        bias: &[],
        multiplier: &|_| multiplier,
        wide: a.layout.element_bytes() == 2,
        zero_point: out.zero_point,
        range: out.range(),
    };
    let mut result = Vec::with_capacity(out.elements());
    if let (Some(a), Some(b)) = (integers(&a.elements), integers(&b.elements)) {
        for place in 0..places {
            let left = part(&a, matrix_at(place, &batch, &a_batch), rows * depth);
            let right = part(&b, matrix_at(place, &batch, &b_batch), columns * depth);
            let left = transposed_integers(left, a_rows, a_columns, transpose_a);
            let right = transposed_integers(right, b_rows, b_columns, !transpose_b);
            result.extend(dispatch(&product, &left, &right));
        }
    }
    from_stored(out, result.into_iter())
}

/// The windows of a CONV_2D over channels-last tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Windows {
    /// Batches, height, width and channels of the input.
    pub input: [usize; 4],
    /// Height and width of a window.
    pub window: [usize; 2],
    /// Steps from window to window, down and right.
    pub stride: [usize; 2],
    /// Distances of neighbouring elements within a window, down and right.
    pub dilation: [usize; 2],
    /// Rows of padding above and columns of padding on the left.
    pub padding: [usize; 2],
    /// Height and width of the output.
    pub output: [usize; 2],
}

/// Computes CONV_2D over channels-last input and weights [out, h, w, in]. Windows are laid out as
/// rows and multiplied as in FULLY_CONNECTED. Padding is the zero point.
pub fn convolution(
    x: &Tensor<'_>,
    w: &Tensor<'_>,
    bias: &Tensor<'_>,
    windows: &Windows,
    fuse: i32,
    out: &Layout,
    relaxed: bool,
) -> Elements<'static> {
    fn laid_out<T: Copy>(x: &[T], windows: &Windows, nothing: T) -> Vec<T> {
        let [batches, height, width, channels] = windows.input;
        let mut rows = Vec::new();
        for (batch, down, right) in (0..batches).flat_map(|b| {
            (0..windows.output[0]).flat_map(move |y| (0..windows.output[1]).map(move |x| (b, y, x)))
        }) {
            for (y, z) in (0..windows.window[0]).flat_map(|y| (0..windows.window[1]).map(move |z| (y, z))) {
                let row =
                    (down * windows.stride[0] + y * windows.dilation[0]).checked_sub(windows.padding[0]);
                let column =
                    (right * windows.stride[1] + z * windows.dilation[1]).checked_sub(windows.padding[1]);
                match (row.filter(|row| *row < height), column.filter(|column| *column < width)) {
                    (Some(row), Some(column)) => {
                        rows.extend_from_slice(
                            &x[((batch * height + row) * width + column) * channels..][..channels],
                        );
                    }
                    _ => rows.resize(rows.len() + channels, nothing),
                }
            }
        }
        rows
    }
    let zero = x.layout.zero_point;
    let rows = match &x.elements {
        Elements::I8(x) => Elements::I8(laid_out(x, windows, zero as i8).into()),
        Elements::U8(x) => Elements::U8(laid_out(x, windows, zero as u8).into()),
        Elements::I16(x) => Elements::I16(laid_out(x, windows, zero as i16).into()),
        Elements::U16(x) => Elements::U16(laid_out(x, windows, zero as u16).into()),
        Elements::I32(x) => Elements::I32(laid_out(x, windows, zero).into()),
        Elements::F32(x) => Elements::F32(laid_out(x, windows, 0.0).into()),
        Elements::F16(x) => Elements::F16(laid_out(x, windows, f16::ZERO).into()),
    };
    let depth = windows.window[0] * windows.window[1] * windows.input[3];
    let shape = (windows.input[0] * windows.output[0] * windows.output[1], w.layout.dimensions[0], depth);
    weighted((&rows, x.layout), w, Some(bias), shape, fuse, out, relaxed)
}
