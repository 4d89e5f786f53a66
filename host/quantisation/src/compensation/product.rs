//! Sums of products, the arithmetic of everything in this folder.
//!
//! Every result is `c + Σ a[k] · b[k]` with one fused multiply-add per k, in ascending k, in its
//! own accumulator. Blocks and threads only choose which results are computed when, and vectors
//! hold different results, so all of them give the same bits on every machine.

use pulp::{Arch, Simd, WithSimd};

/// A type of accumulators.
pub(super) trait Real: Copy + Send + Sync {
    const ZERO: Self;
    /// `self · b + c`, rounded once.
    fn times_plus(self, b: Self, c: Self) -> Self;
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    #[inline(always)]
    fn times_plus(self, b: f32, c: f32) -> f32 {
        self.mul_add(b, c)
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    #[inline(always)]
    fn times_plus(self, b: f64, c: f64) -> f64 {
        self.mul_add(b, c)
    }
}

/// Rows of a tile: with vectors of 32 bytes their accumulators fill half the registers.
const ROWS: usize = 4;

/// Columns of the second factor side by side: `panels[k]` holds element k of each.
pub(super) type Panel<T, const W: usize> = Vec<[T; W]>;

/// Packs `depth` steps of `columns` columns into panels of `W`; `element` gives step k of a column.
/// What is missing in the last is zero.
pub(super) fn panels<T: Real, const W: usize>(
    columns: usize,
    depth: usize,
    element: impl Fn(usize, usize) -> T,
) -> Vec<Panel<T, W>> {
    let of = |first: usize| -> Panel<T, W> {
        let step = |k| {
            std::array::from_fn(
                |lane| if first + lane < columns { element(k, first + lane) } else { T::ZERO },
            )
        };
        (0..depth).map(step).collect()
    };
    (0..columns).step_by(W).map(of).collect()
}

/// Adds to each row of `results` the products of its row of factors with the panels: column j of
/// row i gets `Σ factors[i][k] · panels[j / W][k][j % W]`. Rows of `results` are `stride` long, of
/// which `columns` are written, and rows of `factors` as long as a panel.
pub(super) fn add_products<T: Real, const W: usize>(
    arch: Arch,
    results: &mut [T],
    stride: usize,
    columns: usize,
    factors: &[T],
    panels: &[Panel<T, W>],
) {
    let depth = panels.first().map_or(0, Vec::len);
    if depth > 0 && stride > 0 {
        arch.dispatch(Tiles { results, stride, columns, factors, panels, depth });
    }
}

/// The arguments of [`add_products`]; its body is compiled for each set of instructions.
struct Tiles<'a, T: Real, const W: usize> {
    results: &'a mut [T],
    stride: usize,
    columns: usize,
    factors: &'a [T],
    panels: &'a [Panel<T, W>],
    depth: usize,
}

impl<T: Real, const W: usize> WithSimd for Tiles<'_, T, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Tiles { results, stride, columns, factors, panels, depth } = self;
        for (results, factors) in results.chunks_mut(ROWS * stride).zip(factors.chunks(ROWS * depth)) {
            for (index, panel) in panels.iter().enumerate() {
                let first = index * W;
                let width = W.min(columns.saturating_sub(first));
                tile(results, stride, first, width, factors, panel);
            }
        }
    }
}

/// One tile: at most [`ROWS`] rows and W columns.
#[inline(always)]
fn tile<T: Real, const W: usize>(
    results: &mut [T],
    stride: usize,
    first: usize,
    width: usize,
    factors: &[T],
    panel: &[[T; W]],
) {
    let depth = panel.len();
    let mut sums = [[T::ZERO; W]; ROWS];
    for (sums, row) in sums.iter_mut().zip(results.chunks(stride)) {
        sums[..width].copy_from_slice(&row[first..first + width]);
    }
    match factors.len() == ROWS * depth {
        true => {
            let [a, b, c, d] = std::array::from_fn(|row| &factors[row * depth..(row + 1) * depth]);
            for ((((step, &a), &b), &c), &d) in panel.iter().zip(a).zip(b).zip(c).zip(d) {
                for lane in 0..W {
                    sums[0][lane] = a.times_plus(step[lane], sums[0][lane]);
                    sums[1][lane] = b.times_plus(step[lane], sums[1][lane]);
                    sums[2][lane] = c.times_plus(step[lane], sums[2][lane]);
                    sums[3][lane] = d.times_plus(step[lane], sums[3][lane]);
                }
            }
        }
        false => {
            for (sums, row) in sums.iter_mut().zip(factors.chunks(depth)) {
                for (step, &a) in panel.iter().zip(row) {
                    for lane in 0..W {
                        sums[lane] = a.times_plus(step[lane], sums[lane]);
                    }
                }
            }
        }
    }
    for (sums, row) in sums.iter().zip(results.chunks_mut(stride)) {
        row[first..first + width].copy_from_slice(&sums[..width]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(seed: usize) -> f64 {
        ((seed * 2_654_435_761 % 1_000_003) as f64 / 500_000.0 - 1.0) * 1.1
    }

    /// The definition, one result at a time.
    fn plainly<T: Real, const W: usize>(
        results: &mut [T],
        stride: usize,
        columns: usize,
        factors: &[T],
        panels: &[Panel<T, W>],
    ) {
        let depth = panels[0].len();
        for (row, factors) in results.chunks_mut(stride).zip(factors.chunks(depth)) {
            for (column, result) in row[..columns].iter_mut().enumerate() {
                for (k, &a) in factors.iter().enumerate() {
                    *result = a.times_plus(panels[column / W][k][column % W], *result);
                }
            }
        }
    }

    #[test]
    fn products_are_the_same_bits_on_every_machine() {
        for (rows, columns, depth) in [(1, 1, 1), (4, 8, 3), (5, 17, 64), (9, 40, 7), (3, 16, 1)] {
            let stride = columns + 3;
            let panels = panels::<f64, 8>(columns, depth, |k, column| number(k * 31 + column));
            let factors: Vec<f64> = (0..rows * depth).map(|index| number(index + 7)).collect();
            let start: Vec<f64> = (0..rows * stride).map(|index| number(index + 99)).collect();
            let mut wanted = start.clone();
            plainly(&mut wanted, stride, columns, &factors, &panels);
            for arch in [Arch::Scalar, Arch::new()] {
                let mut results = start.clone();
                add_products(arch, &mut results, stride, columns, &factors, &panels);
                assert_eq!(results, wanted, "{rows} {columns} {depth}");
            }
        }
    }
}
