//! Rounds rows of a matrix and passes errors on to later columns.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::factor::Factors;
use super::product::{Panel, add_products, panels};
use crate::scale::{Steps, nearest};

/// Number of columns after which their errors are passed on to all later ones.
pub(super) const BLOCK: usize = 64;
/// Number of columns in a panel.
pub(super) const WIDTH: usize = 16;

/// Some rows of a matrix, with columns in rounding order.
pub(crate) struct Rows<'f> {
    pub(super) factors: &'f Factors,
    pub(super) arch: Arch,
    pub(super) values: Vec<f32>,
}

/// The result of rounding rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rounded {
    /// The stored integers, columns in matrix order.
    pub codes: Vec<i32>,
    /// The loss of each row: Σ D[k] (e[k] + Σ e[i] U[i, k])².
    pub losses: Vec<f64>,
}

/// Intermediate state of rounding.
struct Work {
    /// Each value plus the errors passed on so far.
    wanted: Vec<f32>,
    /// The errors of the columns of a block, row by row.
    errors: Vec<f32>,
    rounded: Rounded,
}

impl<'f> Rows<'f> {
    /// Creates rows from `values`, which are dense rows as wide as the factors.
    pub fn of(factors: &'f Factors, values: &[f32]) -> Self {
        let in_order =
            |row: &[f32]| -> Vec<f32> { factors.order.iter().map(|&column| row[column as usize]).collect() };
        let rows = values.chunks_exact(factors.width().max(1));
        Rows { factors, arch: Arch::new(), values: rows.flat_map(in_order).collect() }
    }

    /// Rounds every row to the integers of `steps`. `step` returns the step size for a row and
    /// column.
    pub fn round(&self, steps: Steps, step: impl Fn(usize, usize) -> f32) -> Rounded {
        let (width, factors) = (self.factors.width(), self.factors);
        let count = self.values.len() / width.max(1);
        let rounded = Rounded { codes: vec![0; self.values.len()], losses: vec![0.0; count] };
        let mut work = Work { wanted: self.values.clone(), errors: Vec::new(), rounded };
        for first in (0..width).step_by(BLOCK) {
            let block = first..(first + BLOCK).min(width);
            work.errors.resize(count * block.len(), 0.0);
            self.arch.dispatch(Block {
                rows: self,
                work: &mut work,
                block: block.clone(),
                steps,
                step: &step,
            });
            if block.end < width {
                let part = |k: usize, column: usize| factors.upper[(first + k) * width + block.end + column];
                let panels: Vec<Panel<f32, WIDTH>> = panels(width - block.end, block.len(), part);
                // The slice starts at a row's later columns. The next row's start `width` values
                // further.
                let later = &mut work.wanted[block.end..];
                add_products(self.arch, later, width, width - block.end, &work.errors, &panels);
            }
        }
        work.rounded
    }
}

/// The work on one block: its columns are rounded one after the other in every row. It is compiled
/// for each instruction set.
struct Block<'b, F> {
    rows: &'b Rows<'b>,
    work: &'b mut Work,
    block: Range<usize>,
    steps: Steps,
    step: &'b F,
}

impl<F: Fn(usize, usize) -> f32> WithSimd for Block<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Block { rows, work, block, steps, step } = self;
        let (width, factors) = (rows.factors.width(), rows.factors);
        for (row, errors) in work.errors.chunks_exact_mut(block.len()).enumerate() {
            let start = row * width;
            let wanted = &mut work.wanted[start..start + width];
            let mut loss = 0.0;
            for (error, k) in errors.iter_mut().zip(block.clone()) {
                let column = factors.order[k] as usize;
                let step = step(row, column);
                let code = nearest(wanted[k] / step, steps);
                work.rounded.codes[start + column] = code as i32;
                let rest = f64::from(wanted[k]) - f64::from(code) * f64::from(step);
                loss += f64::from(factors.diagonal[k]) * rest * rest;
                *error = (-code).mul_add(step, rows.values[start + k]);
                let passed_on = &factors.upper[k * width + k + 1..k * width + block.end];
                for (wanted, &part) in wanted[k + 1..block.end].iter_mut().zip(passed_on) {
                    *wanted = error.mul_add(part, *wanted);
                }
            }
            work.rounded.losses[row] += loss;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::factor::tests::moments;
    use shardwright_vocabulary::DType;

    use super::super::moments::SecondMoments;
    use super::*;

    const STEPS: Steps = Steps::of(DType::I4, DType::F32);

    fn values(rows: usize, width: usize) -> Vec<f32> {
        (0..rows * width).map(|index| (index * 7919 % 1013) as f32 / 500.0 - 1.0).collect()
    }

    /// Rounds by definition, one value at a time, in f64.
    fn plainly(factors: &Factors, row: &[f32], step: f32) -> Vec<i32> {
        let width = row.len();
        let mut errors = vec![0.0_f64; width];
        let mut codes = vec![0; width];
        for k in 0..width {
            let column = factors.order[k] as usize;
            let left: f64 = (0..k).map(|i| errors[i] * f64::from(factors.upper[i * width + k])).sum();
            let wanted = (f64::from(row[column]) + left) / f64::from(step);
            let code = wanted.round_ties_even().clamp(f64::from(STEPS.lowest), f64::from(STEPS.limit));
            codes[column] = code as i32;
            errors[k] = f64::from(row[column]) - code * f64::from(step);
        }
        codes
    }

    /// Computes e · H · eᵀ relative to a mean square of 1.
    fn loss(moments: &SecondMoments, row: &[f32], codes: &[i32], step: f32) -> f64 {
        let error = |column: usize| f64::from(row[column]) - f64::from(codes[column]) * f64::from(step);
        let width = row.len();
        let pairs = (0..width).flat_map(|i| (0..width).map(move |j| (i, j)));
        let sum: f64 = pairs.map(|(i, j)| error(i) * f64::from(moments.at(i, j)) * error(j)).sum();
        sum / moments.mean_square()
    }

    #[test]
    fn rows_come_out_as_the_definition_says() {
        for (rows, width) in [(1, 1), (3, 7), (5, 64), (6, 65), (9, 200)] {
            let factors = Factors::of(&moments(width, 3 * width)).unwrap();
            let values = values(rows, width);
            let rounded = Rows::of(&factors, &values).round(STEPS, |row, _| 0.1 + 0.01 * row as f32);
            let plain = values.chunks(width).enumerate();
            let plain: Vec<i32> =
                plain.flat_map(|(row, values)| plainly(&factors, values, 0.1 + 0.01 * row as f32)).collect();
            let differing = plain.iter().zip(&rounded.codes).filter(|(a, b)| a != b).count();
            // f32 may round a value near the middle the other way, which affects later values.
            assert!(differing * 50 <= plain.len(), "{differing} of {}", plain.len());
        }
    }

    #[test]
    fn less_is_lost_than_by_rounding_to_nearest() {
        let (rows, width, step) = (8, 96, 0.15);
        let moments = moments(width, 400);
        let factors = Factors::of(&moments).unwrap();
        let values = values(rows, width);
        let rounded = Rows::of(&factors, &values).round(STEPS, |_, _| step);
        let nearest: Vec<i32> = values.iter().map(|value| nearest(value / step, STEPS) as i32).collect();
        let all = |codes: &[i32]| -> f64 {
            let rows = values.chunks(width).zip(codes.chunks(width));
            rows.map(|(row, codes)| loss(&moments, row, codes, step)).sum()
        };
        let (ours, theirs) = (all(&rounded.codes), all(&nearest));
        assert!(ours < 0.75 * theirs, "{ours} of {theirs}");
        // The reported loss includes the damping.
        let said: f64 = rounded.losses.iter().sum();
        assert!(said > ours && said < 2.0 * ours, "{said} of {ours}");
    }

    #[test]
    fn columns_of_no_moments_are_rounded_to_the_nearest() {
        let mut sums = super::super::moments::MomentSums::new(4);
        for row in [[1.0, 0.0, 1.0, 0.0], [-1.0, 0.0, 0.5, 0.0]] {
            sums.add(&row);
        }
        let factors = Factors::of(&sums.finish()).unwrap();
        let values = [0.33, 0.41, 0.12, -0.87];
        let rounded = Rows::of(&factors, &values).round(STEPS, |_, _| 0.1);
        assert_eq!((rounded.codes[1], rounded.codes[3]), (4, -8));
    }

    #[test]
    fn rows_do_not_depend_on_the_rows_beside_them() {
        let width = 130;
        let factors = Factors::of(&moments(width, 300)).unwrap();
        let values = values(11, width);
        let together = Rows::of(&factors, &values).round(STEPS, |_, _| 0.13);
        for (row, values) in values.chunks(width).enumerate() {
            let alone = Rows::of(&factors, values).round(STEPS, |_, _| 0.13);
            assert_eq!(alone.codes, together.codes[row * width..(row + 1) * width]);
            assert_eq!(alone.losses[0].to_bits(), together.losses[row].to_bits());
        }
    }
}
