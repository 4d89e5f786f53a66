//! Improves rounded values one by one.
//!
//! Rounding column after column, see [`Rows`], never revises a decision. A sweep visits every value
//! again. With all other values fixed, it picks the integer that minimises tr(G E H Eᵀ), so a sweep
//! never increases it. With M = G E H, value (r, c) should change by −M[r, c] ÷ (G[r, r] H[c, c]).
//!
//! Between sweeps the scales of all rows are fitted to their integers together, by least squares.
//! With E = W − diag(t) R, where R is the values as rounded, the best t solves (G ∘ R H Rᵀ) t =
//! diag(G W H Rᵀ).
//!
//! H and G come from the factors and include their damping. Only one block of columns of H = (I +
//! U) D (I + U)ᵀ is computed at a time, from F = E (I + U), which is updated with every change.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::factor::Factors;
use super::product::{Panel, add_products, add_times, panels, panels_of_columns, part_of};
use super::round::{BLOCK, Rows, WIDTH};
use crate::scale::{Steps, nearest};

/// Number of rows in one task.
const BAND: usize = 32;
/// Number of columns whose products are added at a time.
const DEPTH: usize = 256;
/// Number of iterations that fit the scales of all rows to each other.
const ROUNDS: usize = 20;
/// Largest relative change of a scale at once, since the integers were chosen for the current
/// scale.
const FARTHEST: f64 = 0.25;

/// Rounded rows. Rows and columns are in the orders of their factors.
///
/// Memory: 12 bytes per value, plus 12 while scales are fitted. With gradients, another 4 bytes for
/// each pair of rows, plus 8 while scales are fitted.
pub(crate) struct Sweeps<'f> {
    arch: Arch,
    columns: &'f Factors,
    /// Original position of each row.
    order: Vec<usize>,
    /// G, `[rows, rows]`, or `None` if rows are independent.
    gradients: Option<Vec<f32>>,
    codes: Vec<f32>,
    /// W (I + U), one row per matrix row.
    values: Vec<f32>,
    /// F = E (I + U), the errors.
    left: Vec<f32>,
}

impl<'f> Sweeps<'f> {
    /// Creates sweeps over `rows` and their stored integers `codes`, in matrix order. `step`
    /// returns the step size for a row and column. `gradients` are the factors of the output
    /// gradients, with one column per row.
    pub fn of(
        rows: &Rows<'f>,
        gradients: Option<&Factors>,
        codes: &[i32],
        step: impl Fn(usize, usize) -> f32,
    ) -> Self {
        let (columns, width) = (rows.factors, rows.factors.width().max(1));
        let order: Vec<usize> = match gradients {
            Some(factors) => factors.order.iter().map(|&row| row as usize).collect(),
            None => (0..rows.values.len() / width).collect(),
        };
        let of_row = |row: &usize| rows.values[row * width..][..width].iter().copied();
        let values: Vec<f32> = order.iter().flat_map(of_row).collect();
        let of_row = |row: &usize| {
            let codes = &codes[row * width..][..width];
            columns.order.iter().map(|&column| codes[column as usize] as f32)
        };
        let codes: Vec<f32> = order.iter().flat_map(of_row).collect();
        let mut errors = values.clone();
        for ((errors, codes), &row) in
            errors.chunks_exact_mut(width).zip(codes.chunks_exact(width)).zip(&order)
        {
            for ((error, &code), &column) in errors.iter_mut().zip(codes).zip(&columns.order) {
                *error = (-code).mul_add(step(row, column as usize), *error);
            }
        }
        let [values, left] = [values, errors].map(|values| times_factor(rows.arch, columns, &values));
        let gradients = gradients.map(|factors| product_of(rows.arch, factors));
        Sweeps { arch: rows.arch, columns, order, gradients, codes, values, left }
    }

    /// Returns the stored integers, rows and columns in matrix order.
    pub fn codes(&self) -> Vec<i32> {
        let width = self.width();
        let mut codes = vec![0; self.codes.len()];
        for (of_row, &row) in self.codes.chunks_exact(width).zip(&self.order) {
            for (&code, &column) in of_row.iter().zip(&self.columns.order) {
                codes[row * width + column as usize] = code as i32;
            }
        }
        codes
    }

    /// Visits every value once. `step` returns the step size for a row and column. Returns the
    /// number of changed values.
    pub fn sweep(&mut self, steps: Steps, step: impl Fn(usize, usize) -> f32 + Sync) -> usize {
        let (width, count) = (self.width(), self.order.len());
        let mut changed = 0;
        for first in (0..width).step_by(BLOCK) {
            let block = first..(first + BLOCK).min(width);
            let size = block.len();
            let (products, square) = self.columns_of(block.clone());
            let mut columns = vec![0.0_f32; count * size];
            match &self.gradients {
                Some(gradients) => {
                    transpose(&multiply(self.arch, gradients, count, &products, size), size, &mut columns);
                }
                None => transpose(&products, size, &mut columns),
            }
            let mut changes = vec![0.0_f32; count * size];
            changed += self.arch.dispatch(Block {
                factors: self.columns,
                order: &self.order,
                gradients: self.gradients.as_deref(),
                codes: &mut self.codes,
                columns,
                changes: &mut changes,
                square: &square,
                block: block.clone(),
                steps,
                step: &step,
            });
            let (arch, factors) = (self.arch, self.columns);
            let rows = self.left.par_chunks_exact_mut(width).zip(changes.par_chunks_exact(size));
            rows.for_each(|(left, changes)| arch.dispatch(Follow { factors, left, changes, first }));
        }
        changed
    }

    /// Returns the best factor for the scales of each row, rows in matrix order.
    pub fn fitted(&self) -> Vec<f32> {
        let (width, count, diagonal) = (self.width(), self.order.len(), &self.columns.diagonal);
        let left = &self.left;
        let rounded: Vec<f32> = self.values.iter().zip(left).map(|(value, left)| value - left).collect();
        let weighed = |a: &[f32], b: &[f32]| -> f64 {
            let terms = a.iter().zip(b).zip(diagonal);
            terms.map(|((&a, &b), &part)| f64::from(a) * f64::from(b) * f64::from(part)).sum()
        };
        let changes = match &self.gradients {
            None => {
                let rows = rounded.par_chunks_exact(width).zip(left.par_chunks_exact(width));
                rows.map(|(rounded, left)| allowed(weighed(rounded, left) / weighed(rounded, rounded)))
                    .collect()
            }
            Some(gradients) => {
                let of_left = multiply(self.arch, gradients, count, left, width);
                let mut columns = vec![0.0; rounded.len()];
                transpose(&rounded, width, &mut columns);
                columns.par_chunks_exact_mut(count).zip(diagonal).for_each(|(column, part)| {
                    column.iter_mut().for_each(|value| *value *= part);
                });
                let both = multiply(self.arch, &rounded, width, &columns, count);
                let lines = both.par_chunks_exact(count).zip(gradients.par_chunks_exact(count));
                let rows = rounded.par_chunks_exact(width).zip(of_left.par_chunks_exact(width));
                let lines: Vec<(Vec<f64>, f64)> = lines
                    .zip(rows)
                    .map(|((both, gradients), (rounded, left))| {
                        let line = both.iter().zip(gradients).map(|(&a, &b)| f64::from(a) * f64::from(b));
                        (line.collect(), weighed(rounded, left))
                    })
                    .collect();
                solved(&lines)
            }
        };
        let mut by = vec![1.0; count];
        for (&row, change) in self.order.iter().zip(changes) {
            by[row] += change as f32;
        }
        by
    }

    /// Updates the errors after the steps of each row were multiplied by `by`, rows in matrix
    /// order.
    pub fn rescale(&mut self, by: &[f32]) {
        let width = self.width();
        let rows = self.left.par_chunks_exact_mut(width).zip(self.values.par_chunks_exact(width));
        rows.zip(&self.order).for_each(|((left, values), &row)| {
            for (left, &value) in left.iter_mut().zip(values) {
                *left = (-by[row]).mul_add(value - *left, value);
            }
        });
    }

    fn width(&self) -> usize {
        self.columns.width().max(1)
    }

    /// Computes the given columns of E H, `[rows, columns]`, and the part of H in these columns and
    /// the same rows.
    fn columns_of(&self, block: Range<usize>) -> (Vec<f32>, Vec<f32>) {
        let (width, size, arch) = (self.width(), block.len(), self.arch);
        let (upper, diagonal) = (&self.columns.upper, &self.columns.diagonal);
        let mut products = vec![0.0_f32; self.order.len() * size];
        let mut square = vec![0.0_f32; size * size];
        for start in (block.start..width).step_by(DEPTH) {
            let depth = start..(start + DEPTH).min(width);
            // Columns of I + U here, and below the same columns times D.
            let mut part = part_of(&upper[block.start * width..block.end * width], width, depth.clone());
            for (k, row) in block.clone().zip(part.chunks_exact_mut(depth.len())) {
                if depth.contains(&k) {
                    row[k - start] = 1.0;
                }
            }
            let mut weighed = part.clone();
            for row in weighed.chunks_exact_mut(depth.len()) {
                row.iter_mut().zip(&diagonal[depth.clone()]).for_each(|(value, part)| *value *= part);
            }
            let column = |column: usize| &weighed[column * depth.len()..][..depth.len()];
            let panels: Vec<Panel<f32, WIDTH>> = panels_of_columns(size, depth.len(), column);
            let bands = products.par_chunks_mut(BAND * size).zip(self.left.par_chunks(BAND * width));
            bands.for_each(|(products, left)| {
                add_products(arch, products, size, size, &part_of(left, width, depth.clone()), &panels);
            });
            add_products(arch, &mut square, size, size, &part, &panels);
        }
        (products, square)
    }
}

/// The work on one block: its columns are visited one after the other in all rows. It is compiled
/// for each instruction set.
struct Block<'b, F> {
    factors: &'b Factors,
    order: &'b [usize],
    gradients: Option<&'b [f32]>,
    codes: &'b mut [f32],
    /// Columns of M, one after the other.
    columns: Vec<f32>,
    /// Output: changes of E, `[rows, columns of the block]`.
    changes: &'b mut [f32],
    square: &'b [f32],
    block: Range<usize>,
    steps: Steps,
    step: &'b F,
}

impl<F: Fn(usize, usize) -> f32> WithSimd for Block<'_, F> {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        let Block { factors, order, gradients, codes, mut columns, changes, square, block, steps, step } =
            self;
        let (width, count, size) = (factors.width(), order.len(), block.len());
        // Changes of this column times G.
        let mut passed_on = vec![0.0_f32; count];
        let mut changed = 0;
        for (index, k) in block.enumerate() {
            let column = factors.order[k] as usize;
            let own = square[index * size + index];
            let (before, later) = columns.split_at_mut((index + 1) * count);
            let slopes = &before[index * count..];
            passed_on.fill(0.0);
            for (place, &row) in order.iter().enumerate() {
                let step = step(row, column);
                let of_row = gradients.map_or(1.0, |gradients| gradients[place * count + place]);
                let slope = own.mul_add(passed_on[place], slopes[place]);
                let code = &mut codes[place * width + k];
                let wanted = nearest(*code + slope / (of_row * own * step), steps);
                // Ignore values that are not numbers.
                if wanted == *code || !slope.is_finite() || wanted.is_nan() {
                    continue;
                }
                let change = (*code - wanted) * step;
                *code = wanted;
                changes[place * size + index] = change;
                changed += 1;
                match gradients {
                    Some(gradients) => {
                        add_times(simd, &mut passed_on, change, &gradients[place * count..][..count]);
                    }
                    None => passed_on[place] = change,
                }
            }
            for (later, &part) in later.chunks_exact_mut(count).zip(&square[index * size + index + 1..]) {
                add_times(simd, later, part, &passed_on);
            }
        }
        changed
    }
}

/// The update of one row of F after changes in some columns. Most changes are zero.
struct Follow<'b> {
    factors: &'b Factors,
    left: &'b mut [f32],
    changes: &'b [f32],
    /// The first of the columns.
    first: usize,
}

impl WithSimd for Follow<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let width = self.factors.width();
        for (k, &change) in (self.first..).zip(self.changes) {
            if change != 0.0 {
                self.left[k] += change;
                add_times(
                    simd,
                    &mut self.left[k + 1..],
                    change,
                    &self.factors.upper[k * width + k + 1..][..width - k - 1],
                );
            }
        }
    }
}

/// Computes `values` times I + U.
fn times_factor(arch: Arch, factors: &Factors, values: &[f32]) -> Vec<f32> {
    let (width, upper) = (factors.width().max(1), &factors.upper);
    let mut products = values.to_vec();
    for first in (0..width).step_by(DEPTH) {
        let depth = first..(first + DEPTH).min(width);
        let element = |k: usize, column: usize| upper[(first + k) * width + first + column];
        let panels: Vec<Panel<f32, WIDTH>> = panels(width - first, depth.len(), element);
        let bands = products.par_chunks_mut(BAND * width).zip(values.par_chunks(BAND * width));
        bands.for_each(|(products, values)| {
            let part = part_of(values, width, depth.clone());
            add_products(arch, &mut products[first..], width, width - first, &part, &panels);
        });
    }
    products
}

/// Limits a relative change of a scale.
fn allowed(change: f64) -> f64 {
    if change.is_finite() { change.clamp(-FARTHEST, FARTHEST) } else { 0.0 }
}

/// Approximately solves a linear system with a positive semidefinite matrix, given as rows with
/// their right-hand sides. Each step reduces the quadratic form.
fn solved(lines: &[(Vec<f64>, f64)]) -> Vec<f64> {
    let mut solution = vec![0.0_f64; lines.len()];
    for _ in 0..ROUNDS {
        for (place, (line, wanted)) in lines.iter().enumerate() {
            let sum: f64 = line.iter().zip(&solution).map(|(a, b)| a * b).sum();
            let others = sum - line[place] * solution[place];
            solution[place] = allowed((wanted - others) / line[place]);
        }
    }
    solution
}

/// Computes (I + U) D (I + U)ᵀ, in the order of the factors.
fn product_of(arch: Arch, factors: &Factors) -> Vec<f32> {
    let width = factors.width();
    let one_plus = |k: usize, j: usize| match j.cmp(&k) {
        std::cmp::Ordering::Less => 0.0,
        std::cmp::Ordering::Equal => 1.0,
        std::cmp::Ordering::Greater => factors.upper[k * width + j],
    };
    let rows: Vec<f32> = (0..width).flat_map(|k| (0..width).map(move |j| one_plus(k, j))).collect();
    let mut columns = vec![0.0; rows.len()];
    transpose(&rows, width, &mut columns);
    for (column, part) in columns.chunks_exact_mut(width).zip(&factors.diagonal) {
        column.iter_mut().for_each(|value| *value *= part);
    }
    multiply(arch, &rows, width, &columns, width)
}

/// Multiplies two matrices, `[rows, depth]` and `[depth, columns]`.
fn multiply(arch: Arch, left: &[f32], depth: usize, right: &[f32], columns: usize) -> Vec<f32> {
    let mut products = vec![0.0_f32; left.len() / depth.max(1) * columns];
    for first in (0..depth).step_by(DEPTH) {
        let part = first..(first + DEPTH).min(depth);
        let element = |k: usize, column: usize| right[(first + k) * columns + column];
        let panels: Vec<Panel<f32, WIDTH>> = panels(columns, part.len(), element);
        let bands = products.par_chunks_mut(BAND * columns).zip(left.par_chunks(BAND * depth));
        bands.for_each(|(products, left)| {
            let left = part_of(left, depth, part.clone());
            add_products(arch, products, columns, columns, &left, &panels);
        });
    }
    products
}

/// Transposes `[rows, width]` to `[width, rows]`.
fn transpose(rows: &[f32], width: usize, columns: &mut [f32]) {
    let count = rows.len() / width.max(1);
    columns.par_chunks_exact_mut(count.max(1)).enumerate().for_each(|(column, values)| {
        for (value, row) in values.iter_mut().zip(rows.chunks_exact(width)) {
            *value = row[column];
        }
    });
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

    /// Returns the matrix that the factors represent, in matrix order.
    fn matrix(factors: &Factors) -> Vec<f64> {
        let (width, in_order) = (factors.width(), product_of(Arch::new(), factors));
        let mut matrix = vec![0.0; in_order.len()];
        for (i, &row) in factors.order.iter().enumerate() {
            for (j, &column) in factors.order.iter().enumerate() {
                matrix[row as usize * width + column as usize] = f64::from(in_order[i * width + j]);
            }
        }
        matrix
    }

    struct Rounding {
        rows: Vec<f64>,
        columns: Vec<f64>,
        values: Vec<f32>,
    }

    impl Rounding {
        /// Computes tr(G E H Eᵀ) with one step size per row.
        fn loss(&self, codes: &[i32], steps: &[f32]) -> f64 {
            let (count, width) = (self.rows.len().isqrt(), self.columns.len().isqrt());
            let error = |row: usize, column: usize| {
                let at = row * width + column;
                f64::from(self.values[at]) - f64::from(codes[at]) * f64::from(steps[row])
            };
            let mut sum = 0.0;
            for (i, j) in (0..count).flat_map(|i| (0..count).map(move |j| (i, j))) {
                for k in 0..width {
                    let product: f64 = (0..width).map(|l| self.columns[k * width + l] * error(j, l)).sum();
                    sum += self.rows[i * count + j] * error(i, k) * product;
                }
            }
            sum
        }
    }

    #[test]
    fn factors_multiply_to_what_they_are_of() {
        let of = moments(70, 300);
        let factors = Factors::of(&of).unwrap();
        let matrix = matrix(&factors);
        for (i, j) in [(0, 0), (3, 3), (3, 40), (69, 5)] {
            let damped = if i == j { factors.damping() } else { 0.0 };
            let wanted = f64::from(of.at(i, j)) / of.mean_square() + damped;
            assert!((matrix[i * 70 + j] - wanted).abs() < 1e-4, "{} {wanted}", matrix[i * 70 + j]);
        }
    }

    #[test]
    fn sweeps_end_where_no_value_should_change_and_scales_fit() {
        let (count, width) = (12, 70);
        let (of_rows, of_columns) = (moments(count, 200), moments(width, 400));
        let (gradients, factors) =
            (Factors::of_gradients(&of_rows).unwrap(), Factors::of(&of_columns).unwrap());
        let values = values(count, width);
        let rows = Rows::of(&factors, &values);
        let all = Rounding { rows: matrix(&gradients), columns: matrix(&factors), values: values.clone() };
        let mut steps = vec![0.23_f32; count];
        let codes: Vec<i32> = values.iter().map(|value| nearest(value / 0.23, STEPS) as i32).collect();
        let mut sweeps = Sweeps::of(&rows, Some(&gradients), &codes, |_, _| 0.23);
        assert_eq!(sweeps.codes(), codes);
        let mut losses = vec![all.loss(&codes, &steps)];
        for _ in 0..2 {
            assert!(sweeps.sweep(STEPS, |row, _| steps[row]) > 0);
            losses.push(all.loss(&sweeps.codes(), &steps));
            let by = sweeps.fitted();
            steps.iter_mut().zip(&by).for_each(|(step, by)| *step *= by);
            sweeps.rescale(&by);
            losses.push(all.loss(&sweeps.codes(), &steps));
            // No other scale of a row is better.
            for row in 0..count {
                for by in [0.999, 1.001] {
                    let mut other = steps.clone();
                    other[row] *= by;
                    assert!(all.loss(&sweeps.codes(), &other) > losses[losses.len() - 1], "{row}");
                }
            }
        }
        assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{losses:?}");
        assert!(losses[4] < 0.8 * losses[0], "{losses:?}");
        let ends = (0..50).find(|_| sweeps.sweep(STEPS, |row, _| steps[row]) == 0);
        assert!(ends.is_some());
        // No other integer is better.
        let codes = sweeps.codes();
        let least = all.loss(&codes, &steps);
        for at in (0..codes.len()).step_by(7) {
            for change in [-1, 1] {
                let mut other = codes.clone();
                other[at] = (other[at] + change).clamp(-8, 7);
                assert!(all.loss(&other, &steps) >= least * (1.0 - 1e-6), "{at}");
            }
        }
    }

    #[test]
    fn rows_without_derivatives_are_as_those_whose_derivatives_are_their_own() {
        let (count, width) = (9, 130);
        let factors = Factors::of(&moments(width, 300)).unwrap();
        let mut triangle = vec![0.0; count * (count + 1) / 2];
        (0..count).for_each(|row| triangle[row * (row + 1) / 2 + row] = 1.0);
        let gradients = Factors::of_gradients(&SecondMoments { width: count, rows: 50, triangle }).unwrap();
        let values = values(count, width);
        let rows = Rows::of(&factors, &values);
        let codes = rows.round(STEPS, |_, _| 0.2).codes;
        let [alone, together] = [None, Some(&gradients)].map(|gradients| {
            let mut sweeps = Sweeps::of(&rows, gradients, &codes, |_, _| 0.2);
            sweeps.sweep(STEPS, |_, _| 0.2);
            (sweeps.codes(), sweeps.fitted())
        });
        assert_ne!(alone.0, codes);
        assert_eq!(alone.0, together.0);
        let both = alone.1.iter().zip(&together.1);
        assert!(both.clone().all(|(a, b)| (a - b).abs() < 1e-5 && *a != 1.0), "{alone:?} {together:?}");
        // No row depends on its neighbours.
        let mut one = Sweeps::of(&Rows::of(&factors, &values[..width]), None, &codes[..width], |_, _| 0.2);
        one.sweep(STEPS, |_, _| 0.2);
        assert_eq!(one.codes(), alone.0[..width]);
    }

    #[test]
    fn no_thread_changes_a_bit_and_what_overflows_stays() {
        let (count, width) = (70, 150);
        let factors = Factors::of(&moments(width, 300)).unwrap();
        let gradients = Factors::of_gradients(&moments(count, 200)).unwrap();
        let improved = |values: &[f32], codes: &[i32]| {
            let mut sweeps = Sweeps::of(&Rows::of(&factors, values), Some(&gradients), codes, |_, _| 0.2);
            let changed = sweeps.sweep(STEPS, |_, _| 0.2);
            (changed, sweeps.codes(), sweeps.fitted())
        };
        let values = values(count, width);
        let codes = Rows::of(&factors, &values).round(STEPS, |_, _| 0.2).codes;
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| improved(&values, &codes))
        };
        assert!(with(1).0 > 0 && with(1) == with(3));
        let large = vec![f32::MAX; count * width];
        let codes = vec![7; count * width];
        assert_eq!(improved(&large, &codes), (0, codes, vec![1.0; count]));
    }
}
