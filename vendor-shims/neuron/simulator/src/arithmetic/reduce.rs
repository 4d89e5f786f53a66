//! MEAN, REDUCE_SUM, REDUCE_MAX and REDUCE_MIN over some dimensions.
//!
//! Quantised elements are summed exactly. MEAN scales the sum with a multiplier divided by the
//! count, as in `kernels/reduce.cc`. SUM scales it and rounds once. Real elements are summed in 32
//! bits.

use super::fixed::Multiplier;
use super::movement::row_major;
use super::tensor::{Class, Elements, Layout, Tensor, encoded, from_reals, from_stored};

/// How elements are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Mean of the elements.
    Mean,
    /// Sum of the elements.
    Sum,
    /// Largest element.
    Maximum,
    /// Smallest element.
    Minimum,
}

/// Folds the elements of each output in order.
fn folded<T: Copy, S: Copy>(
    elements: &[T],
    dimensions: &[usize],
    reduced: &[bool],
    start: S,
    fold: impl Fn(S, T) -> S,
) -> Vec<S> {
    let kept: Vec<usize> =
        dimensions.iter().zip(reduced).map(|(length, reduced)| if *reduced { 1 } else { *length }).collect();
    let (strides, kept_strides) = (row_major(dimensions), row_major(&kept));
    let mut out = vec![start; kept.iter().product()];
    for (at, element) in elements.iter().enumerate() {
        let index: usize = (0..dimensions.len())
            .filter(|place| !reduced[*place])
            .map(|place| at / strides[place] % dimensions[place] * kept_strides[place])
            .sum();
        out[index] = fold(out[index], *element);
    }
    out
}

/// Reduces the dimensions that `reduced` marks.
pub fn reduce(
    reduction: Reduction,
    x: &Tensor<'_>,
    reduced: &[bool],
    out: &Layout,
    relaxed: bool,
) -> Elements<'static> {
    let dimensions = &x.layout.dimensions[..];
    let count: usize =
        dimensions.iter().zip(reduced).filter(|(_, reduced)| **reduced).map(|(length, _)| length).product();
    if x.layout.class() == Class::Real {
        let x = x.reals(relaxed);
        let found = match reduction {
            Reduction::Mean | Reduction::Sum => folded(&x, dimensions, reduced, 0f32, |sum, x| sum + x),
            Reduction::Maximum => folded(&x, dimensions, reduced, f32::NEG_INFINITY, f32::max),
            Reduction::Minimum => folded(&x, dimensions, reduced, f32::INFINITY, f32::min),
        };
        let divisor = if reduction == Reduction::Mean { count as f32 } else { 1.0 };
        return from_reals(out, found.into_iter().map(|x| x / divisor), relaxed);
    }
    let stored = x.stored();
    let zero = if x.layout.class() == Class::Quantised { x.layout.zero_point } else { 0 };
    match reduction {
        Reduction::Maximum | Reduction::Minimum => {
            let larger = reduction == Reduction::Maximum;
            let start = if larger { i32::MIN } else { i32::MAX };
            let found =
                folded(
                    &stored,
                    dimensions,
                    reduced,
                    start,
                    |kept, x| if larger { kept.max(x) } else { kept.min(x) },
                );
            if x.layout.means_the_same(out) {
                return from_stored(out, found.into_iter());
            }
            encoded(out, found.into_iter().map(|q| x.layout.decode(q)), relaxed)
        }
        Reduction::Mean | Reduction::Sum => {
            let sums =
                folded(&stored, dimensions, reduced, 0i64, |sum, x| sum + i64::from(x) - i64::from(zero));
            let quantised = x.layout.class() == Class::Quantised && out.class() == Class::Quantised;
            if reduction == Reduction::Mean && quantised {
                let multiplier = Multiplier::new(f64::from(x.layout.scale) / f64::from(out.scale));
                let multiplier = multiplier.over(count as u64);
                let (least, greatest) = out.range();
                let one = |sum: i64| {
                    let sum = sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
                    multiplier.apply(sum).saturating_add(out.zero_point).clamp(least, greatest)
                };
                return from_stored(out, sums.into_iter().map(one));
            }
            let divisor = if reduction == Reduction::Mean { count as f64 } else { 1.0 };
            let scale = if x.layout.class() == Class::Quantised { f64::from(x.layout.scale) } else { 1.0 };
            encoded(out, sums.into_iter().map(|sum| sum as f64 * scale / divisor), relaxed)
        }
    }
}
