//! Sums of products, the arithmetic of everything in this folder.
//!
//! Every result is `c + Σ a[k] · b[k]` with one fused multiply-add per k, in ascending k, in its
//! own accumulator. Blocks and threads only determine which results are computed when. The lanes of
//! a vector belong to different results. Therefore the bits are the same on every machine.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

/// A number type for accumulators.
pub(super) trait Real: Copy + Send + Sync + 'static {
    const ZERO: Self;
    /// A vector register of this type.
    type Vector<S: Simd>: Copy;
    fn lanes<S: Simd>() -> usize;
    fn vectors<S: Simd>(values: &[Self]) -> &[Self::Vector<S>];
    fn vectors_mut<S: Simd>(values: &mut [Self]) -> &mut [Self::Vector<S>];
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;
    /// Returns `a · b + c`, rounded once.
    fn times_plus<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
}

macro_rules! real {
    ($type:ty, $vector:ident, $lanes:ident, $view:ident, $view_mut:ident, $splat:ident, $fused:ident) => {
        impl Real for $type {
            const ZERO: $type = 0.0;
            type Vector<S: Simd> = S::$vector;
            #[inline(always)]
            fn lanes<S: Simd>() -> usize {
                S::$lanes
            }
            #[inline(always)]
            fn vectors<S: Simd>(values: &[$type]) -> &[S::$vector] {
                S::$view(values).0
            }
            #[inline(always)]
            fn vectors_mut<S: Simd>(values: &mut [$type]) -> &mut [S::$vector] {
                S::$view_mut(values).0
            }
            #[inline(always)]
            fn splat<S: Simd>(simd: S, value: $type) -> S::$vector {
                simd.$splat(value)
            }
            #[inline(always)]
            fn times_plus<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
                simd.$fused(a, b, c)
            }
        }
    };
}

real!(f32, f32s, F32_LANES, as_simd_f32s, as_mut_simd_f32s, splat_f32s, mul_add_f32s);
real!(f64, f64s, F64_LANES, as_simd_f64s, as_mut_simd_f64s, splat_f64s, mul_add_f64s);

/// Computes `sums[i] += factor · values[i]`, each with one fused multiply-add.
#[inline(always)]
pub(super) fn add_times<S: Simd>(simd: S, sums: &mut [f32], factor: f32, values: &[f32]) {
    let both = sums.len().min(values.len());
    let (whole, rest) = S::as_mut_simd_f32s(&mut sums[..both]);
    let (of_whole, of_rest) = S::as_simd_f32s(&values[..both]);
    let by = simd.splat_f32s(factor);
    for (sum, &value) in whole.iter_mut().zip(of_whole) {
        *sum = simd.mul_add_f32s(by, value, *sum);
    }
    for (sum, &value) in rest.iter_mut().zip(of_rest) {
        *sum = factor.mul_add(value, *sum);
    }
}

/// Number of rows of a tile. With 32-byte vectors, two per row, the registers are filled by the
/// accumulators, the vectors of a step and one factor.
const ROWS: usize = 6;

/// Adjacent columns of the second factor: `panels[k]` contains element k of each.
pub(super) type Panel<T, const W: usize> = Vec<[T; W]>;

/// Packs `depth` steps of `columns` columns into panels of `W`. `element` returns step k of a
/// column. The last panel is padded with zeros.
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

/// Like [`panels`], but for columns that are contiguous in memory: `column` returns all steps of
/// one. It is several times faster than reading one step of every column, as elements at the same
/// position of a wide matrix's rows compete for the same few cache lines.
pub(super) fn panels_of_columns<'c, T: Real, const W: usize>(
    columns: usize,
    depth: usize,
    column: impl Fn(usize) -> &'c [T],
) -> Vec<Panel<T, W>> {
    let of = |first: usize| -> Panel<T, W> {
        let mut panel = vec![[T::ZERO; W]; depth];
        for lane in 0..W.min(columns - first) {
            for (step, &value) in panel.iter_mut().zip(column(first + lane)) {
                step[lane] = value;
            }
        }
        panel
    };
    (0..columns).step_by(W).map(of).collect()
}

/// Copies a range of columns from dense rows.
pub(super) fn part_of<T: Real>(rows: &[T], width: usize, columns: Range<usize>) -> Vec<T> {
    let width = width.max(1);
    let mut part = Vec::with_capacity(rows.len() / width * columns.len());
    rows.chunks_exact(width).for_each(|row| part.extend_from_slice(&row[columns.clone()]));
    part
}

/// Adds to each row of `results` the products of its row of factors with the panels: column j of
/// row i gets `Σ factors[i][k] · panels[j / W][k][j % W]`. Rows of `results` are `stride` long, but
/// only `columns` of them are written. Rows of `factors` are as long as a panel.
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

/// The arguments of [`add_products`], whose body is compiled for each instruction set.
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
    fn with_simd<S: Simd>(self, simd: S) {
        // Number of vectors in one step of a panel.
        match W / T::lanes::<S>() {
            1 => self.of::<S, 1>(simd),
            2 => self.of::<S, 2>(simd),
            4 => self.of::<S, 4>(simd),
            8 => self.of::<S, 8>(simd),
            _ => self.of::<S, W>(simd),
        }
    }
}

impl<T: Real, const W: usize> Tiles<'_, T, W> {
    #[inline(always)]
    fn of<S: Simd, const V: usize>(self, simd: S) {
        let Tiles { results, stride, columns, factors, panels, depth } = self;
        for (results, factors) in results.chunks_mut(ROWS * stride).zip(factors.chunks(ROWS * depth)) {
            for (index, panel) in panels.iter().enumerate() {
                let first = index * W;
                let columns = first..(first + W).min(columns.max(first));
                if factors.len() == ROWS * depth {
                    tile::<T, S, W, V, ROWS>(simd, results, stride, columns, factors, panel);
                    continue;
                }
                for (results, factors) in results.chunks_mut(stride).zip(factors.chunks(depth)) {
                    tile::<T, S, W, V, 1>(simd, results, stride, columns.clone(), factors, panel);
                }
            }
        }
    }
}

/// Computes one tile: R rows and at most W columns, in V vectors.
#[inline(always)]
fn tile<T: Real, S: Simd, const W: usize, const V: usize, const R: usize>(
    simd: S,
    results: &mut [T],
    stride: usize,
    columns: Range<usize>,
    factors: &[T],
    panel: &[[T; W]],
) {
    let depth = panel.len();
    let mut edge = [[T::ZERO; W]; R];
    for (edge, row) in edge.iter_mut().zip(results.chunks(stride)) {
        edge[..columns.len()].copy_from_slice(&row[columns.clone()]);
    }
    let mut sums = [[T::splat(simd, T::ZERO); V]; R];
    for (sums, edge) in sums.iter_mut().zip(&edge) {
        sums.copy_from_slice(&T::vectors::<S>(edge)[..V]);
    }
    let rows: [&[T]; R] = std::array::from_fn(|row| &factors[row * depth..][..depth]);
    for (k, step) in panel.iter().enumerate() {
        let step = &T::vectors::<S>(step)[..V];
        for row in 0..R {
            let factor = T::splat(simd, rows[row][k]);
            for lane in 0..V {
                sums[row][lane] = T::times_plus(simd, factor, step[lane], sums[row][lane]);
            }
        }
    }
    for (sums, edge) in sums.iter().zip(&mut edge) {
        T::vectors_mut::<S>(edge)[..V].copy_from_slice(sums);
    }
    for (edge, row) in edge.iter().zip(results.chunks_mut(stride)) {
        row[columns.clone()].copy_from_slice(&edge[..columns.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(seed: usize) -> f64 {
        ((seed * 2_654_435_761 % 1_000_003) as f64 / 500_000.0 - 1.0) * 1.1
    }

    /// Computes the products by definition, one result at a time.
    fn plainly<const W: usize>(
        results: &mut [f64],
        stride: usize,
        columns: usize,
        factors: &[f64],
        panels: &[Panel<f64, W>],
    ) {
        let depth = panels[0].len();
        for (row, factors) in results.chunks_mut(stride).zip(factors.chunks(depth)) {
            for (column, result) in row[..columns].iter_mut().enumerate() {
                for (k, &a) in factors.iter().enumerate() {
                    *result = a.mul_add(panels[column / W][k][column % W], *result);
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
