//! Second moments of a matrix's inputs.

use pulp::Arch;
use rayon::prelude::*;

use super::product::{Panel, add_products, panels};

/// Number of rows added at a time, so that their panels stay in the L2 cache.
const ROWS: usize = 256;
/// Number of rows of the sums that one task computes.
const BAND: usize = 32;
/// Number of columns in a panel.
const WIDTH: usize = 8;

/// A running sum Σ x · xᵀ over the input rows x of a matrix.
///
/// Sums are in f64, where a product of two f32 is exact, in the order of the rows. The grouping of
/// rows and the number of threads change no bit. Memory: 8 bytes for each pair of columns, 1.2 GB
/// at 12,288 columns.
pub struct MomentSums {
    width: usize,
    rows: u64,
    /// `[width, width]`, only the lower triangle is used.
    sums: Vec<f64>,
    /// Rows that are not added yet.
    waiting: Vec<f32>,
}

/// Second moments of a matrix's inputs, Σ x · xᵀ, as stored in memory and in files.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondMoments {
    pub(super) width: usize,
    pub(super) rows: u64,
    /// The lower triangle, row by row: row i has i + 1 values.
    pub(super) triangle: Vec<f32>,
}

impl MomentSums {
    /// Creates sums for a matrix with `width` columns.
    pub fn new(width: usize) -> Self {
        let sums = vec![0.0; width.saturating_mul(width)];
        MomentSums { width, rows: 0, sums, waiting: Vec::new() }
    }

    /// Adds rows, `[rows, width]` dense. Ignores an incomplete row at the end.
    pub fn add(&mut self, rows: &[f32]) {
        let width = self.width.max(1);
        for some in rows[..rows.len() / width * width].chunks(ROWS * width) {
            self.waiting.extend_from_slice(some);
            self.rows += (some.len() / width) as u64;
            if self.waiting.len() >= ROWS * width {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        let (width, arch) = (self.width, Arch::new());
        let rows = std::mem::take(&mut self.waiting);
        let count = rows.len() / width.max(1);
        if count == 0 {
            return;
        }
        let panels = panels::<f64, WIDTH>(width, count, |row, column| f64::from(rows[row * width + column]));
        self.sums.par_chunks_mut(BAND * width).enumerate().for_each(|(band, sums)| {
            let first = band * BAND;
            let last = (first + sums.len() / width).min(width);
            let factors: Vec<f64> = (first..last)
                .flat_map(|column| rows.chunks_exact(width).map(move |row| f64::from(row[column])))
                .collect();
            // Values right of the diagonal are not read.
            let panels: &[Panel<f64, WIDTH>] = &panels[..last.div_ceil(WIDTH)];
            add_products(arch, sums, width, width.min(last.next_multiple_of(WIDTH)), &factors, panels);
        });
    }

    /// Returns the moments of all rows.
    pub fn finish(mut self) -> SecondMoments {
        self.flush();
        let width = self.width;
        let of_row = |row: usize| self.sums[row * width..row * width + row + 1].iter().map(|&sum| sum as f32);
        SecondMoments { width, rows: self.rows, triangle: (0..width).flat_map(of_row).collect() }
    }
}

impl SecondMoments {
    /// Returns the number of columns of the matrix.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of rows summed.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the sum of two columns' products.
    pub fn at(&self, row: usize, column: usize) -> f32 {
        let (row, column) = (row.max(column), row.min(column));
        self.triangle[row * (row + 1) / 2 + column]
    }

    /// Computes Σ e · H · eᵀ over rows e, `[rows, width]` dense. The number of threads changes no
    /// bit.
    pub(crate) fn of_errors(&self, rows: &[f32]) -> f64 {
        let width = self.width.max(1);
        let band = |first: usize| -> f64 {
            let columns = first..(first + BAND).min(self.width);
            let of_column = |column: usize| -> f64 {
                let start = column * (column + 1) / 2;
                let moments = &self.triangle[start..start + column];
                let own = f64::from(self.triangle[start + column]);
                let of_row = |row: &[f32]| {
                    let before: f64 =
                        moments.iter().zip(row).map(|(&h, &e)| f64::from(h) * f64::from(e)).sum();
                    let error = f64::from(row[column]);
                    error * (2.0 * before + own * error)
                };
                rows.chunks_exact(width).map(of_row).sum()
            };
            columns.map(of_column).sum()
        };
        let starts: Vec<usize> = (0..self.width).step_by(BAND).collect();
        let bands: Vec<f64> = starts.par_iter().map(|&first| band(first)).collect();
        bands.into_iter().sum()
    }

    /// Returns the mean of the diagonal.
    pub(crate) fn mean_square(&self) -> f64 {
        let sum: f64 = (0..self.width).map(|column| f64::from(self.at(column, column))).sum();
        sum / self.width.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize, width: usize) -> Vec<f32> {
        (0..count * width).map(|index| ((index * 7919 % 1013) as f32 / 500.0 - 1.0).powi(3)).collect()
    }

    #[test]
    fn sums_are_those_of_the_definition_however_rows_are_grouped() {
        for width in [1, 5, 40, 67] {
            let rows = rows(600, width);
            let mut all = MomentSums::new(width);
            all.add(&rows);
            let all = all.finish();
            let mut parts = MomentSums::new(width);
            for part in rows.chunks(37 * width) {
                parts.add(part);
            }
            assert_eq!(all, parts.finish());
            assert_eq!((all.rows(), all.width()), (600, width));
            for (i, j) in [(0, 0), (width - 1, 0), (width / 2, width - 1)] {
                let wanted: f64 = rows.chunks(width).map(|row| f64::from(row[i]) * f64::from(row[j])).sum();
                assert!((f64::from(all.at(i, j)) - wanted).abs() <= 1e-6 * (1.0 + wanted.abs()), "{i} {j}");
            }
        }
    }

    #[test]
    fn errors_count_as_the_definition_says() {
        for width in [1, 5, 67] {
            let mut sums = MomentSums::new(width);
            sums.add(&rows(100, width));
            let (moments, errors) = (sums.finish(), rows(3, width));
            let of_row = |e: &[f32]| -> f64 {
                let pairs = (0..width).flat_map(|i| (0..width).map(move |j| (i, j)));
                let term = |(i, j): (usize, usize)| f64::from(e[i] * e[j]) * f64::from(moments.at(i, j));
                pairs.map(term).sum()
            };
            let wanted: f64 = errors.chunks(width).map(of_row).sum();
            let found = moments.of_errors(&errors);
            assert!((found - wanted).abs() <= 1e-5 * (1.0 + wanted.abs()), "{width}: {found} {wanted}");
        }
    }

    #[test]
    fn sums_are_the_same_bits_whatever_the_number_of_threads() {
        let rows = rows(300, 70);
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut sums = MomentSums::new(70);
                sums.add(&rows);
                sums.finish()
            })
        };
        assert_eq!(with(1), with(3));
    }
}
