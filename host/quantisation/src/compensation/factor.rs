//! The factors of a matrix of second moments, which determine how rounding errors are passed on.
//!
//! With P the order of columns, H + λ = P (I + U) D (I + U)ᵀ Pᵀ, where U is strictly upper
//! triangular and D diagonal. For an error e of a row, e (H + λ) eᵀ = Σ D[k] (e[k] + Σ e[i] U[i,
//! k])², with the inner sum over i < k. Columns are rounded in the order P. Each is rounded to the
//! nearest value after adding the errors of earlier columns, which minimises every term (Frantar et
//! al. 2022; in this form Chee et al. 2023, "QuIP"). P starts with the columns with the largest
//! moments.

use std::sync::Arc;

use pulp::Arch;
use rayon::prelude::*;

use super::moments::SecondMoments;
use super::product::{Panel, add_products, panels_of_columns, part_of};

/// Number of columns factored at a time.
const BLOCK: usize = 64;
/// Number of earlier columns whose products are subtracted at a time, so that their panels stay in
/// the L2 cache.
const DEPTH: usize = 256;
/// Number of rows in one task.
const BAND: usize = 32;
/// Number of columns in a panel.
const WIDTH: usize = 8;

/// λ as a share of the mean square of a column. It limits the influence of sampling errors in
/// moments from little text.
pub const DAMPING: f64 = 0.1;
/// λ for gradients. It is larger than [`DAMPING`] because gradients are noisier: one drawn token
/// represents the whole distribution.
pub const GRADIENT_DAMPING: f64 = 0.3;
/// Factor to increase λ by if a matrix is not positive definite with it.
const MORE: f64 = 10.0;
/// Largest λ. With it, every finite matrix of moments is positive definite.
const MOST: f64 = 1e6;

/// Factors of the second moments of a matrix's inputs.
///
/// Memory: 4 bytes for each pair of columns, plus 8 during the computation: 1.8 GB in total at
/// 12,288 columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Factors {
    /// The columns in rounding order.
    pub(super) order: Vec<u32>,
    /// D, in rounding order.
    pub(super) diagonal: Vec<f32>,
    /// U, `[width, width]`, with 0 on and below the diagonal.
    pub(super) upper: Vec<f32>,
    /// Mean square of each column, by column, scaled to a mean of 1.
    pub(super) importance: Vec<f32>,
    damping: f64,
    usual: f64,
}

/// The weights of one matrix's errors: tr(G E H Eᵀ), where H is the second moments of its inputs
/// and G the second moments of the gradients of its outputs. G is the identity if these are
/// unknown.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixFactors {
    /// Factors of H.
    pub columns: Arc<Factors>,
    /// Factors of G.
    pub rows: Option<Arc<Factors>>,
}

impl Factors {
    /// Computes the factors of second moments. Returns `None` without rows, if all values are zero,
    /// or if one is not finite.
    pub fn of(moments: &SecondMoments) -> Option<Factors> {
        Self::damped(moments, DAMPING)
    }

    /// Like [`Factors::of`], for second moments of the gradients of a matrix's outputs. Their
    /// columns correspond to rows of the matrix.
    pub fn of_gradients(moments: &SecondMoments) -> Option<Factors> {
        Self::damped(moments, GRADIENT_DAMPING)
    }

    fn damped(moments: &SecondMoments, usual: f64) -> Option<Factors> {
        let width = moments.width();
        let mean = moments.mean_square();
        if moments.rows() == 0 || !(mean > 0.0 && mean.is_finite()) {
            return None;
        }
        let mut order: Vec<u32> = (0..width as u32).collect();
        let square = |column: u32| moments.at(column as usize, column as usize);
        order.sort_by(|&a, &b| square(b).total_cmp(&square(a)).then(a.cmp(&b)));
        let mut damping = usual;
        let lower = loop {
            match cholesky(moments, &order, damping * mean) {
                Some(lower) => break lower,
                None if damping >= MOST => return None,
                None => damping *= MORE,
            }
        };
        // Row r of the factor of the reversed matrix is column width − 1 − r of this one.
        let mut upper = vec![0.0; width * width];
        upper.par_chunks_mut(width.max(1)).enumerate().for_each(|(k, row)| {
            for (j, value) in row.iter_mut().enumerate().skip(k + 1) {
                let (r, s) = (width - 1 - k, width - 1 - j);
                *value = (lower[r * width + s] / lower[s * width + s]) as f32;
            }
        });
        let of_diagonal = |k: usize| {
            let r = width - 1 - k;
            (lower[r * width + r] * lower[r * width + r] / mean) as f32
        };
        let diagonal = (0..width).map(of_diagonal).collect();
        let importance = (0..width as u32).map(|column| (f64::from(square(column)) / mean + damping) as f32);
        Some(Factors { importance: importance.collect(), order, diagonal, upper, damping, usual })
    }

    /// Returns λ as a share of the mean square of a column: [`DAMPING`] or [`GRADIENT_DAMPING`], or
    /// a larger value if the matrix is not positive definite with that.
    pub fn damping(&self) -> f64 {
        self.damping
    }

    /// Returns whether λ is larger than usual.
    pub(crate) fn is_damped_more(&self) -> bool {
        self.damping > self.usual
    }

    /// Returns the weight of an error in each column if no other column has an error.
    pub(crate) fn importance(&self) -> &[f32] {
        &self.importance
    }

    /// Returns the number of columns of the matrix.
    pub fn width(&self) -> usize {
        self.order.len()
    }
}

/// Computes C with C · Cᵀ = the moments plus `added` on the diagonal, columns in the reverse of
/// `order`. The result is `[width, width]`, only the lower triangle is valid. Returns `None` if the
/// sum is not positive definite.
fn cholesky(moments: &SecondMoments, order: &[u32], added: f64) -> Option<Vec<f64>> {
    let (width, arch) = (order.len(), Arch::new());
    let column = |reversed: usize| order[width - 1 - reversed] as usize;
    let mut matrix = vec![0.0_f64; width * width];
    matrix.par_chunks_mut(width).enumerate().for_each(|(row, values)| {
        for (other, value) in values.iter_mut().enumerate().take(row + 1) {
            *value = f64::from(moments.at(column(row), column(other)));
        }
        values[row] += added;
    });
    for first in (0..width).step_by(BLOCK) {
        let block = first..(first + BLOCK).min(width);
        for start in (0..first).step_by(DEPTH) {
            let depth = start..(start + DEPTH).min(first);
            let earlier = |row: usize| &matrix[(first + row) * width..][depth.clone()];
            let panels: Vec<Panel<f64, WIDTH>> = panels_of_columns(block.len(), depth.len(), earlier);
            matrix[first * width..].par_chunks_mut(BAND * width).for_each(|band| {
                let mut factors = part_of(band, width, depth.clone());
                factors.iter_mut().for_each(|value| *value = -*value);
                // Only the columns of this block change in a row.
                let stride = block.len();
                let mut results = part_of(band, width, block.clone());
                add_products(arch, &mut results, stride, stride, &factors, &panels);
                for (row, made) in band.chunks_mut(width).zip(results.chunks(stride)) {
                    row[block.clone()].copy_from_slice(made);
                }
            });
        }
        let (above, below) = matrix.split_at_mut(block.end * width);
        let square = &mut above[first * width..];
        for row in 0..block.len() {
            for other in 0..=row {
                let products =
                    (0..other).map(|k| square[row * width + first + k] * square[other * width + first + k]);
                let value = square[row * width + first + other] - products.sum::<f64>();
                if row == other {
                    if !(value > 0.0 && value.is_finite()) {
                        return None;
                    }
                    square[row * width + first + row] = value.sqrt();
                } else {
                    square[row * width + first + other] = value / square[other * width + first + other];
                }
            }
        }
        let square = &*square;
        below.par_chunks_mut(width).for_each(|row| {
            for other in 0..block.len() {
                let done = &square[other * width + first..];
                let products = (0..other).map(|k| row[first + k] * done[k]);
                let value = row[first + other] - products.sum::<f64>();
                row[first + other] = value / done[other];
            }
        });
    }
    Some(matrix)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::moments::MomentSums;
    use super::*;

    /// Returns moments of rows with correlated columns.
    pub(in super::super) fn moments(width: usize, rows: usize) -> SecondMoments {
        let mut sums = MomentSums::new(width);
        let mut state = 12345_u64;
        let mut draw = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        for _ in 0..rows {
            let common = draw();
            let row: Vec<f32> =
                (0..width).map(|column| (common + draw()) * (1.0 + (column % 5) as f32)).collect();
            sums.add(&row);
        }
        sums.finish()
    }

    #[test]
    fn factors_multiply_to_the_moments() {
        for width in [1, 3, 64, 65, 150] {
            let moments = moments(width, 2 * width + 5);
            let factors = Factors::of(&moments).unwrap();
            assert_eq!(factors.damping(), DAMPING);
            let mean = moments.mean_square();
            let unit = |i: usize, k: usize| match i == k {
                true => 1.0,
                false => f64::from(factors.upper[i * width + k]),
            };
            for (i, j) in (0..width).flat_map(|i| (0..=i).map(move |j| (i, j))) {
                let products = (i.max(j)..width)
                    .map(|k| unit(i, k) * f64::from(factors.diagonal[k]) * mean * unit(j, k));
                let (a, b) = (factors.order[i] as usize, factors.order[j] as usize);
                let damped = if i == j { DAMPING * mean } else { 0.0 };
                let wanted = f64::from(moments.at(a, b)) + damped;
                let found: f64 = products.sum();
                assert!((found - wanted).abs() <= 1e-5 * mean, "{width} {i} {j}: {found}, {wanted}");
            }
            for pair in factors.order.windows(2) {
                let square = |column: u32| moments.at(column as usize, column as usize);
                assert!(square(pair[0]) >= square(pair[1]));
            }
        }
    }

    #[test]
    fn factors_are_the_same_bits_whatever_the_number_of_threads() {
        let moments = moments(200, 300);
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| Factors::of(&moments).unwrap())
        };
        assert_eq!(with(1), with(3));
    }

    #[test]
    fn what_was_not_seen_or_is_no_number_has_no_factors() {
        assert_eq!(Factors::of(&MomentSums::new(4).finish()), None);
        let of = |row: &[f32]| {
            let mut sums = MomentSums::new(row.len());
            sums.add(row);
            Factors::of(&sums.finish())
        };
        assert_eq!(of(&[0.0, 0.0]), None);
        assert_eq!(of(&[1.0, f32::NAN]), None);
        assert_eq!(of(&[1.0, f32::INFINITY]), None);
        // One row of many columns is far from positive definite. With damping it is.
        assert_eq!(of(&[1.0, 2.0, -3.0]).unwrap().damping(), DAMPING);
    }

    #[test]
    fn what_is_not_definite_is_damped_until_it_is() {
        // Not moments of real rows: one negative eigenvalue of twice the mean square.
        let triangle = vec![1.0, 3.0, 1.0];
        let moments = SecondMoments { width: 2, rows: 9, triangle };
        let damping = Factors::of(&moments).unwrap().damping();
        assert!((damping - 10.0).abs() < 1e-9, "{damping}");
    }
}
