//! Rounds all rows of a matrix together and passes errors on to later columns and later rows.
//!
//! Columns have H + λ = (I + U) D (I + U)ᵀ and rows G + λ = (I + V) C (I + V)ᵀ, both in their
//! orders. Then tr(G E H Eᵀ) = Σ C[i] D[k] (F[i, k] + Σ V[j, i] F[j, k])², with the inner sum over
//! j < i. F = E (I + U) is the error of a row after its columns, see [`Rows`]. So column by column,
//! and row by row within a column, each value is rounded to the nearest integer that minimises its
//! term.

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::factor::Factors;
use super::product::{Panel, add_products, add_times, panels};
use super::round::{BLOCK, Rows, WIDTH};
use crate::scale::{Steps, nearest};

/// Number of rows in one task that passes errors on to later columns.
const BAND: usize = 32;

impl Rows<'_> {
    /// Computes the stored integers of every row, columns and rows in matrix order. `rows` are the
    /// factors of the output gradients, with one column per row. Returns `None` if `rows` has
    /// another size, or if a passed-on error is not finite.
    pub fn round_together(
        &self,
        rows: &Factors,
        steps: Steps,
        step: impl Fn(usize, usize) -> f32 + Sync,
    ) -> Option<Vec<i32>> {
        let (width, count, arch) = (self.factors.width(), rows.width(), self.arch);
        if count * width != self.values.len() {
            return None;
        }
        // Each value plus the errors passed on so far, in the order of the row factors.
        let row = |place: usize| &self.values[rows.order[place] as usize * width..][..width];
        let mut wanted: Vec<f32> = (0..count).flat_map(|place| row(place).iter().copied()).collect();
        let mut codes = vec![0; self.values.len()];
        for first in (0..width).step_by(BLOCK) {
            let block = first..(first + BLOCK).min(width);
            let mut errors = vec![0.0_f32; count * block.len()];
            let finite = arch.dispatch(Block {
                all: self,
                rows,
                wanted: &wanted,
                errors: &mut errors,
                codes: &mut codes,
                block: block.clone(),
                steps,
                step: &step,
            });
            if !finite {
                return None;
            }
            if block.end < width {
                let part =
                    |k: usize, column: usize| self.factors.upper[(first + k) * width + block.end + column];
                let panels: Vec<Panel<f32, WIDTH>> = panels(width - block.end, block.len(), part);
                let bands = wanted.par_chunks_mut(BAND * width);
                bands.zip(errors.par_chunks(BAND * block.len())).for_each(|(wanted, errors)| {
                    add_products(arch, &mut wanted[block.end..], width, width - block.end, errors, &panels);
                });
            }
        }
        Some(codes)
    }
}

/// The work on one block: its columns are rounded one after the other in all rows. It is compiled
/// for each instruction set.
struct Block<'b, F> {
    all: &'b Rows<'b>,
    rows: &'b Factors,
    wanted: &'b [f32],
    /// Output, `[rows, columns of the block]`.
    errors: &'b mut [f32],
    codes: &'b mut [i32],
    block: Range<usize>,
    steps: Steps,
    step: &'b F,
}

impl<F: Fn(usize, usize) -> f32> WithSimd for Block<'_, F> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> bool {
        let Block { all, rows, wanted, errors, codes, block, steps, step } = self;
        let (width, count, factors) = (all.factors.width(), rows.width(), all.factors);
        // Column by column, so that the later rows of a column are contiguous.
        let mut columns: Vec<f32> =
            block.clone().flat_map(|k| (0..count).map(move |place| wanted[place * width + k])).collect();
        let (mut passed_on, mut error) = (vec![0.0_f32; count], vec![0.0_f32; count]);
        let mut is_finite = true;
        for (index, k) in block.clone().enumerate() {
            let column = factors.order[k] as usize;
            let (before, later) = columns.split_at_mut((index + 1) * count);
            let wanted = &before[index * count..];
            passed_on.fill(0.0);
            for place in 0..count {
                let row = rows.order[place] as usize;
                let step = step(row, column);
                let code = nearest((wanted[place] + passed_on[place]) / step, steps);
                codes[row * width + column] = code as i32;
                let left = (-code).mul_add(step, wanted[place]);
                is_finite &= left.is_finite();
                let upper = &rows.upper[place * count + place + 1..(place + 1) * count];
                add_times(simd, &mut passed_on[place + 1..], left, upper);
                error[place] = (-code).mul_add(step, all.values[row * width + k]);
                errors[place * block.len() + index] = error[place];
            }
            for (later, &part) in
                later.chunks_exact_mut(count).zip(&factors.upper[k * width + k + 1..k * width + block.end])
            {
                add_times(simd, later, part, &error);
            }
        }
        is_finite
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::DType;

    use super::super::factor::tests::moments;
    use super::super::moments::SecondMoments;
    use super::*;

    const STEPS: Steps = Steps::of(DType::I4, DType::F32);

    fn values(rows: usize, width: usize) -> Vec<f32> {
        (0..rows * width).map(|index| (index * 7919 % 1013) as f32 / 500.0 - 1.0).collect()
    }

    /// Computes tr(G E H Eᵀ).
    fn loss(rows: &SecondMoments, columns: &SecondMoments, values: &[f32], codes: &[i32], step: f32) -> f64 {
        let width = columns.width();
        let error = |at: usize| f64::from(values[at]) - f64::from(codes[at]) * f64::from(step);
        let mut sum = 0.0;
        for (i, j) in (0..rows.width()).flat_map(|i| (0..rows.width()).map(move |j| (i, j))) {
            for (k, l) in (0..width).flat_map(|k| (0..width).map(move |l| (k, l))) {
                sum += f64::from(rows.at(i, j))
                    * error(i * width + k)
                    * f64::from(columns.at(k, l))
                    * error(j * width + l);
            }
        }
        sum
    }

    #[test]
    fn less_is_lost_than_by_rows_on_their_own() {
        let (rows, width, step) = (20, 70, 0.2);
        let (of_rows, of_columns) = (moments(rows, 300), moments(width, 400));
        let (gradients, factors) =
            (Factors::of_gradients(&of_rows).unwrap(), Factors::of(&of_columns).unwrap());
        let values = values(rows, width);
        let all = Rows::of(&factors, &values);
        let together = all.round_together(&gradients, STEPS, |_, _| step).unwrap();
        let alone = all.round(STEPS, |_, _| step).codes;
        let [ours, theirs] =
            [&together, &alone].map(|codes| loss(&of_rows, &of_columns, &values, codes, step));
        assert!(ours < 0.8 * theirs, "{ours} of {theirs}");
    }

    #[test]
    fn without_a_common_loss_rows_are_as_on_their_own() {
        let (rows, width) = (9, 130);
        let factors = Factors::of(&moments(width, 300)).unwrap();
        // The gradients of rows are independent.
        let mut triangle = vec![0.0; rows * (rows + 1) / 2];
        (0..rows).for_each(|row| triangle[row * (row + 1) / 2 + row] = 1.0 + row as f32);
        let gradients = Factors::of_gradients(&SecondMoments { width: rows, rows: 50, triangle }).unwrap();
        let values = values(rows, width);
        let all = Rows::of(&factors, &values);
        let step = |row: usize, _| 0.13 + 0.01 * row as f32;
        assert_eq!(all.round_together(&gradients, STEPS, step).unwrap(), all.round(STEPS, step).codes);
    }

    #[test]
    fn no_thread_changes_a_bit_and_what_overflows_is_none() {
        let (rows, width) = (70, 150);
        let factors = Factors::of(&moments(width, 300)).unwrap();
        let gradients = Factors::of_gradients(&moments(rows, 200)).unwrap();
        let values = values(rows, width);
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| Rows::of(&factors, &values).round_together(&gradients, STEPS, |_, _| 0.2))
        };
        assert!(with(1).is_some() && with(1) == with(3));
        let large = vec![f32::MAX; rows * width];
        assert_eq!(Rows::of(&factors, &large).round_together(&gradients, STEPS, |_, _| 0.2), None);
        // Factors for another number of rows.
        assert_eq!(Rows::of(&factors, &values[width..]).round_together(&gradients, STEPS, |_, _| 0.2), None);
    }
}
