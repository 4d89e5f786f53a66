//! The primitives on 16-bit integers, as they are defined: operands become values, the result is
//! rounded to f32 once and stored once; products of integers are summed exactly and multiplied by
//! their scales once; what only moves is not looked at.

use crate::affine::Affine;
use crate::step::Step;

/// What a step reads.
pub(crate) struct Operand<'a> {
    pub(crate) shape: &'a [usize],
    pub(crate) stored: Stored<'a>,
}

/// Stored values of an operand.
pub(crate) enum Stored<'a> {
    /// An activation, or a constant like one.
    Affine(&'a [u16], Affine),
    /// `[channels, values]` with a scale a channel; of products alone.
    Matrix(&'a [i8], &'a [f32]),
}

impl Operand<'_> {
    /// Stored values and encoding; matrices, which no step but a product reads, give none.
    fn affine(&self) -> (&[u16], Option<Affine>) {
        match self.stored {
            Stored::Affine(stored, affine) => (stored, Some(affine)),
            Stored::Matrix(..) => (&[], None),
        }
    }

    fn values(&self) -> Vec<f64> {
        let (stored, affine) = self.affine();
        let Some(affine) = affine else { return Vec::new() };
        stored.iter().map(|&stored| f64::from(affine.value(stored))).collect()
    }
}

/// Computes a step whose shapes were found to fit.
pub(crate) fn compute(
    step: &Step,
    operands: &[Operand<'_>],
    shape: &[usize],
    affine: Affine,
    result: &mut [u16],
) {
    let [x, others @ ..] = operands else { return };
    let given = |bits: u32| f64::from(f32::from_bits(bits));
    let mut each = |of: &dyn Fn(f64) -> f64| {
        for (result, x) in result.iter_mut().zip(x.values()) {
            *result = affine.store(of(x) as f32);
        }
    };
    match step {
        Step::AddScalar { bits } => each(&|x| x + given(*bits)),
        Step::MulScalar { bits } => each(&|x| x * given(*bits)),
        Step::MaxScalar { bits } => each(&|x| x.max(given(*bits))),
        Step::Neg => each(&|x| -x),
        Step::Exp => each(&f64::exp),
        Step::Tanh => each(&f64::tanh),
        Step::Sqrt => each(&f64::sqrt),
        Step::Rsqrt => each(&|x| 1.0 / x.sqrt()),
        Step::Reciprocal => each(&|x| 1.0 / x),
        Step::Round => each(&f64::round_ties_even),
        Step::Convert => each(&|x| x),
        Step::Add | Step::Sub | Step::Mul | Step::Div => {
            let [y] = others else { return };
            let (x_values, y_values) = (x.values(), y.values());
            for (index, result) in result.iter_mut().enumerate() {
                let (a, b) =
                    (x_values[source(index, shape, x.shape)], y_values[source(index, shape, y.shape)]);
                let value = match step {
                    Step::Add => a + b,
                    Step::Sub => a - b,
                    Step::Mul => a * b,
                    _ => a / b,
                };
                *result = affine.store(value as f32);
            }
        }
        Step::ReduceSum | Step::ReduceMean | Step::ReduceMax => {
            let width = x.shape.last().copied().unwrap_or(1);
            for (result, row) in result.iter_mut().zip(x.values().chunks_exact(width)) {
                let value = match step {
                    Step::ReduceSum => row.iter().sum(),
                    Step::ReduceMean => row.iter().sum::<f64>() / width as f64,
                    _ => row.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                };
                *result = affine.store(value as f32);
            }
        }
        Step::MatMul { transpose_b } => {
            if let [y] = others {
                product(x, y, *transpose_b, shape, affine, result);
            }
        }
        Step::Reshape => result.copy_from_slice(x.affine().0),
        Step::Transpose { perm } => {
            let strides = strides(x.shape);
            moved(x, shape, result, |axis| strides[perm[axis]], 0);
        }
        Step::Slice { axis, start, .. } => {
            let strides = strides(x.shape);
            moved(x, shape, result, |axis| strides[axis], start * strides[*axis]);
        }
        Step::Concat { axis } => {
            let strides = strides(shape);
            let mut start = 0;
            for operand in operands {
                for (index, &stored) in operand.affine().0.iter().enumerate() {
                    let mut place = start * strides[*axis];
                    coordinates(index, operand.shape, |axis, at| place += at * strides[axis]);
                    result[place] = stored;
                }
                start += operand.shape[*axis];
            }
        }
    }
}

/// Elements from one index of each axis to the next, row-major.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// Tells the index along each axis of an element, last axis first.
fn coordinates(mut index: usize, shape: &[usize], mut tell: impl FnMut(usize, usize)) {
    for axis in (0..shape.len()).rev() {
        tell(axis, index % shape[axis]);
        index /= shape[axis];
    }
}

/// The element of an operand that broadcasting puts at `index` of a result of `shape`.
fn source(index: usize, shape: &[usize], operand: &[usize]) -> usize {
    if shape == operand {
        return index;
    }
    let missing = shape.len() - operand.len();
    let (mut place, mut stride) = (0, 1);
    coordinates(index, shape, |axis, at| {
        if axis >= missing {
            let extent = operand[axis - missing];
            place += if extent == 1 { 0 } else { at * stride };
            stride *= extent;
        }
    });
    place
}

/// Fills a result whose element at each index lies `stride` of the axes further in the operand,
/// from `start`.
fn moved(
    x: &Operand<'_>,
    shape: &[usize],
    result: &mut [u16],
    stride: impl Fn(usize) -> usize,
    start: usize,
) {
    let stored = x.affine().0;
    for (index, result) in result.iter_mut().enumerate() {
        let mut place = start;
        coordinates(index, shape, |axis, at| place += at * stride(axis));
        *result = stored[place];
    }
}

/// Sums of products of steps from zero are exact in 64 bits: 2³² each, and no axis has 2³¹ values.
fn product(
    a: &Operand<'_>,
    b: &Operand<'_>,
    transpose_b: bool,
    shape: &[usize],
    affine: Affine,
    result: &mut [u16],
) {
    let (Stored::Affine(a_stored, a_affine), [outer @ .., m, n]) = (&a.stored, shape) else { return };
    let k = a.shape.last().copied().unwrap_or(1);
    // Row `j` of b is what column `j` of the result is made with.
    let (rows, scales): (Vec<i32>, Option<&[f32]>) = match b.stored {
        Stored::Matrix(stored, scales) => {
            (stored.iter().map(|&stored| i32::from(stored)).collect(), Some(scales))
        }
        Stored::Affine(stored, affine) => {
            let centred = |place: usize| affine.centred(stored[place]);
            let at = |index: usize| match transpose_b {
                true => index,
                // [matrix, j, i] of what is stored as [matrix, i, j].
                false => (index / (k * n)) * (k * n) + (index % k) * n + (index / k) % n,
            };
            ((0..stored.len()).map(|index| centred(at(index))).collect(), None)
        }
    };
    let scale = |column: usize| {
        let of_b = match (&b.stored, scales) {
            (_, Some(scales)) => scales[column],
            (Stored::Affine(_, affine), None) => affine.scale(),
            (Stored::Matrix(..), None) => f32::NAN,
        };
        f64::from(a_affine.scale()) * f64::from(of_b)
    };
    let a_rows: Vec<i32> = a_stored.iter().map(|&stored| a_affine.centred(stored)).collect();
    let (a_outer, b_outer) = (&a.shape[..a.shape.len() - 2], &b.shape[..b.shape.len() - 2]);
    for (matrix, result) in result.chunks_exact_mut(m * n).enumerate() {
        let a_rows = &a_rows[source(matrix, outer, a_outer) * m * k..][..m * k];
        let b_rows = &rows[source(matrix, outer, b_outer) * n * k..][..n * k];
        for (a_row, result) in a_rows.chunks_exact(k).zip(result.chunks_exact_mut(*n)) {
            for (column, (b_row, result)) in b_rows.chunks_exact(k).zip(result).enumerate() {
                let sum: i64 = a_row.iter().zip(b_row).map(|(&a, &b)| i64::from(a) * i64::from(b)).sum();
                *result = affine.store((sum as f64 * scale(column)) as f32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affine(scale: f32, zero_point: i32) -> Affine {
        Affine::new(scale, zero_point).unwrap()
    }

    fn plain<'a>(shape: &'a [usize], stored: &'a [u16], affine: Affine) -> Operand<'a> {
        Operand { shape, stored: Stored::Affine(stored, affine) }
    }

    fn run(step: Step, operands: &[Operand<'_>], shape: &[usize], encoding: Affine) -> Vec<u16> {
        let shapes: Vec<&[usize]> = operands.iter().map(|operand| operand.shape).collect();
        assert!(step.fits(&shapes, shape), "{step:?}");
        let mut result = vec![7; shape.iter().product()];
        compute(&step, operands, shape, encoding, &mut result);
        result
    }

    #[test]
    fn values_are_stored_once() {
        let half = affine(0.5, 10);
        let x = [10, 12, 7, 30];
        // 0, 1, −1.5, 10
        let table = [
            (Step::AddScalar { bits: 1.25_f32.to_bits() }, [12, 14, 10, 32]),
            (Step::MulScalar { bits: 2.0_f32.to_bits() }, [10, 14, 4, 50]),
            (Step::MaxScalar { bits: 0.0_f32.to_bits() }, [10, 12, 10, 30]),
            (Step::Neg, [10, 8, 13, 0]),
            (Step::Exp, [12, 15, 10, 44063]),
            (Step::Tanh, [10, 12, 8, 12]),
            (Step::Round, [10, 12, 6, 30]),
            (Step::Convert, x),
            // 1/0 saturates, and the root of what is below zero is stored as 0.
            (Step::Reciprocal, [65535, 12, 9, 10]),
            (Step::Sqrt, [10, 12, 0, 16]),
            (Step::Rsqrt, [65535, 12, 0, 11]),
        ];
        for (step, expected) in table {
            let name = format!("{step:?}");
            assert_eq!(run(step, &[plain(&[4], &x, half)], &[4], half), expected, "{name}");
        }
    }

    #[test]
    fn conversion_changes_the_steps_and_not_the_values() {
        let x = plain(&[3], &[0, 100, 200], affine(0.5, 100));
        assert_eq!(run(Step::Convert, &[x], &[3], affine(0.25, 1000)), [800, 1000, 1200]);
    }

    #[test]
    fn pairs_are_broadcast() {
        let (one, two) = (affine(1.0, 0), affine(2.0, 1));
        let (x, y) = ([1, 2, 3, 4, 5, 6], [1, 2, 3]);
        let of = |step, shape: &[usize]| {
            run(
                step,
                &[plain(&[2, 3], &x, one), plain(shape, &y[..shape.iter().product()], two)],
                &[2, 3],
                affine(1.0, 100),
            )
        };
        // y = 0, 2, 4
        assert_eq!(of(Step::Add, &[3]), [101, 104, 107, 104, 107, 110]);
        assert_eq!(of(Step::Sub, &[1, 3]), [101, 100, 99, 104, 103, 102]);
        assert_eq!(of(Step::Mul, &[2, 1]), [100, 100, 100, 108, 110, 112]);
        assert_eq!(of(Step::Div, &[3]), [65535, 101, 101, 65535, 102, 102]);
    }

    #[test]
    fn reductions_keep_the_axis() {
        let x = [1, 2, 6, 4, 5, 3];
        let of = |step| run(step, &[plain(&[2, 3], &x, affine(1.0, 0))], &[2, 1], affine(0.5, 0));
        assert_eq!(of(Step::ReduceSum), [18, 24]);
        assert_eq!(of(Step::ReduceMean), [6, 8]);
        assert_eq!(of(Step::ReduceMax), [12, 10]);
    }

    #[test]
    fn movement_moves_what_is_stored() {
        let one = affine(1.0, 9);
        let x: Vec<u16> = (0..24).collect();
        let of = |step, shape: &[usize]| run(step, &[plain(&[2, 3, 4], &x, one)], shape, one);
        assert_eq!(of(Step::Reshape, &[4, 6]), x);
        let turned = of(Step::Transpose { perm: vec![2, 0, 1] }, &[4, 2, 3]);
        assert_eq!(turned[..7], [0, 4, 8, 12, 16, 20, 1]);
        assert_eq!(of(Step::Slice { axis: 1, start: 1, end: 2 }, &[2, 1, 4]), [4, 5, 6, 7, 16, 17, 18, 19]);
        let (a, b) = (plain(&[2, 2], &x[..4], one), plain(&[2, 1], &x[4..6], one));
        assert_eq!(run(Step::Concat { axis: 1 }, &[a, b], &[2, 3], one), [0, 1, 4, 2, 3, 5]);
        let (a, b) = (plain(&[1, 2], &x[..2], one), plain(&[2, 2], &x[4..8], one));
        assert_eq!(run(Step::Concat { axis: 0 }, &[a, b], &[3, 2], one), [0, 1, 4, 5, 6, 7]);
    }

    #[test]
    fn products_are_exact_and_scaled_once() {
        // x = 1, −1, 2 | 0, 3, −3
        let x = plain(&[2, 3], &[11, 9, 12, 10, 13, 7], affine(1.0, 10));
        let matrix =
            Operand { shape: &[2, 3], stored: Stored::Matrix(&[1, 2, 3, -128, 0, 127], &[0.5, 2.0]) };
        let transposed = Step::MatMul { transpose_b: true };
        let sums = [5.0 * 0.5, 126.0 * 2.0, -3.0 * 0.5, -381.0 * 2.0];
        let expected: Vec<u16> = sums.iter().map(|sum| affine(0.5, 2000).store(*sum)).collect();
        assert_eq!(run(transposed.clone(), &[x, matrix], &[2, 2], affine(0.5, 2000)), expected);

        // Two activations, over axes that broadcast: [1, 2, 2, 2] · [2, 1, 2, 2].
        let a = [1, 2, 3, 4, 5, 6, 7, 8];
        let b = [1, 0, 0, 1, 2, 1, 1, 2];
        let of = |step| {
            let operands =
                [plain(&[1, 2, 2, 2], &a, affine(1.0, 0)), plain(&[2, 1, 2, 2], &b, affine(1.0, 0))];
            run(step, &operands, &[2, 2, 2, 2], affine(1.0, 0))
        };
        let plain_product = [1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 10, 11, 16, 17, 22, 23];
        assert_eq!(of(Step::MatMul { transpose_b: false }), plain_product);
        // Both matrices are symmetric.
        assert_eq!(of(transposed), plain_product);
        let skew =
            [plain(&[1, 2], &[1, 10], affine(1.0, 0)), plain(&[2, 3], &[1, 2, 3, 4, 5, 6], affine(1.0, 0))];
        assert_eq!(run(Step::MatMul { transpose_b: false }, &skew, &[1, 3], affine(1.0, 0)), [41, 52, 63]);

        // Beyond what f32 or a 32-bit sum holds: 65535² twice, less one step.
        let wide = [65535, 65535, 1];
        let product = [
            plain(&[1, 3], &wide, affine(1.0, 0)),
            plain(&[1, 3], &[65535, 65535, 0], affine(1.0 / 131_072.0, 0)),
        ];
        assert_eq!(run(Step::MatMul { transpose_b: true }, &product, &[1, 1], affine(1.0, 0)), [65534]);
    }
}
