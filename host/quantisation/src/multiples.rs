//! Block scales that are 1 to 16 times one scale of their row, chosen for the least squared error.
//!
//! A row's scale s is an f16 of at most seven significant bits, so every k · s with k ≤ 16 is also
//! an f16. Multiples are therefore exact, and a reader recovers s and the multiples exactly from
//! the blocks' scales.
//!
//! The search starts with one free scale per block. Then it tries row scales s that place the
//! largest block between the 9th and the 16th multiple. For each s, a block uses the best of three
//! multiples: the two around its free scale and the smallest one that clips no value. Finally, s is
//! fitted to the integers of the best candidate, as in [`scale`](crate::scale).
//!
//! One candidate is s slightly above a sixteenth of the largest max-abs scale, without clipping.
//! Therefore the error never exceeds Σ ((m + s) / 2)² over all values, where m is the max-abs scale
//! of a value's block.

use shardwright_vocabulary::DType;

use crate::scale::{FITS, Steps, best_scale, largest, squared_error, sums};

/// Largest multiple of the row's scale that a block may have.
pub(crate) const LARGEST_MULTIPLE: u8 = 16;
/// Significant bits of a row's scale: the 11 of an f16 minus 4 for the multiple.
const ROW_BITS: i32 = 7;
/// Exponent of the smallest positive f16.
const LEAST_EXPONENT: i32 = -24;
/// Largest scale of a row: 127 · 2⁵. Sixteen times that is below the largest f16.
const LARGEST_ROW: f64 = 4064.0;

/// Returns the nearest valid scale of a row.
pub(crate) fn row_scale(wanted: f64) -> f32 {
    let wanted = wanted.clamp(2.0_f64.powi(LEAST_EXPONENT), LARGEST_ROW);
    let step = 2.0_f64.powi((wanted.log2().floor() as i32 - (ROW_BITS - 1)).max(LEAST_EXPONENT));
    ((wanted / step).round_ties_even() * step) as f32
}

/// Returns a row's scale and the multiple of each of its blocks. Values must be finite.
pub(crate) fn best_multiples(
    row: &[f32],
    importance: Option<&[f32]>,
    size: usize,
    steps: Steps,
) -> (f32, Vec<u8>) {
    let blocks: Vec<Block<'_>> = row
        .chunks(size)
        .enumerate()
        .map(|(index, values)| {
            let start = index * size;
            let importance = importance.and_then(|importance| importance.get(start..start + values.len()));
            Block::of(values, importance, steps)
        })
        .collect();
    let most = |of: fn(&Block<'_>) -> f64| blocks.iter().map(of).fold(0.0, f64::max);
    let (plain, free) = (most(|block| block.plain), most(|block| block.free));
    if plain == 0.0 {
        return (1.0, vec![1; blocks.len()]);
    }
    let sixteenth = plain / f64::from(LARGEST_MULTIPLE);
    // 1.02 keeps the scale above a sixteenth after rounding to seven bits, so 16 multiples clip no
    // value.
    let grid = (0..12).map(|step| sixteenth * 1.02 * 0.96_f64.powi(step));
    let parts = (9..=LARGEST_MULTIPLE).map(|multiple| free / f64::from(multiple));
    let mut candidates: Vec<f32> = grid.chain(parts).map(row_scale).collect();
    candidates.sort_unstable_by(|a, b| b.total_cmp(a));
    candidates.dedup();

    let mut best = (candidates[0], vec![LARGEST_MULTIPLE; blocks.len()]);
    let mut least = f64::INFINITY;
    for scale in candidates {
        let (mut error, mut multiples) = (0.0, Vec::with_capacity(blocks.len()));
        for block in &blocks {
            let (multiple, of_block) = block.best_multiple(scale, steps);
            multiples.push(multiple);
            error += of_block;
            if error >= least {
                break;
            }
        }
        if error < least {
            (best, least) = ((scale, multiples), error);
        }
    }
    for _ in 0..FITS {
        let (scale, multiples) = &best;
        let (mut product, mut square) = (0.0, 0.0);
        for (block, &multiple) in blocks.iter().zip(multiples) {
            let (step, times) = (scale * f32::from(multiple), f64::from(multiple));
            let sums = sums(block.values, block.importance, step, steps);
            product += times * f64::from(step) * sums.product;
            square += times * times * sums.square;
        }
        if !(square > 0.0 && product.is_finite()) {
            break;
        }
        let fitted = row_scale(product / square);
        let error: f64 = blocks
            .iter()
            .zip(multiples)
            .map(|(block, &multiple)| block.error(fitted * f32::from(multiple), steps))
            .sum();
        if error >= least {
            break;
        }
        (best.0, least) = (fitted, error);
    }
    best
}

/// Values that share a scale.
struct Block<'v> {
    values: &'v [f32],
    importance: Option<&'v [f32]>,
    /// The max-abs scale, or 0 if all values are zero.
    plain: f64,
    /// The best independent scale, or 0 if all values are zero.
    free: f64,
}

impl<'v> Block<'v> {
    fn of(values: &'v [f32], importance: Option<&'v [f32]>, steps: Steps) -> Self {
        let plain = f64::from(largest(values)) / f64::from(steps.limit);
        let steps = Steps { scale: DType::F32, ..steps };
        let free = if plain == 0.0 { 0.0 } else { f64::from(best_scale(values, importance, steps)) };
        Block { values, importance, plain, free }
    }

    fn error(&self, step: f32, steps: Steps) -> f64 {
        squared_error(self.values, self.importance, step, steps)
    }

    /// Returns the best of the tried multiples of a row's scale, and its error.
    fn best_multiple(&self, scale: f32, steps: Steps) -> (u8, f64) {
        if self.plain == 0.0 {
            return (1, 0.0);
        }
        let existing = |multiple: f64| multiple.clamp(1.0, f64::from(LARGEST_MULTIPLE)) as u8;
        let times = self.free / f64::from(scale);
        let mut tried = [
            existing(times.floor()),
            existing(times.floor() + 1.0),
            existing((self.plain / f64::from(scale)).ceil()),
        ];
        tried.sort_unstable();
        let mut best = (0, f64::INFINITY);
        for multiple in tried {
            // Always accept the first multiple, and try none twice.
            if multiple != best.0 {
                let error = self.error(scale * f32::from(multiple), steps);
                if best.0 == 0 || error < best.1 {
                    best = (multiple, error);
                }
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use proptest::prelude::*;

    use super::*;

    const FOUR_BITS: Steps = Steps::of(DType::I4, DType::F32);

    #[test]
    fn a_row_has_a_scale_whose_multiples_are_halves() {
        for wanted in [0.0, 1e-9, 1e-7, 3.1e-6, 1e-4, 0.0123, 1.0, 77.7, 5e3, 1e30] {
            let scale = row_scale(wanted);
            for multiple in 1..=LARGEST_MULTIPLE {
                let step = scale * f32::from(multiple);
                assert_eq!(f16::from_f32(step).to_f32(), step, "{multiple} · {scale}");
                assert!(step > 0.0 && step.is_finite());
            }
            if (1e-5..4e3).contains(&wanted) {
                assert!((f64::from(scale) / wanted - 1.0).abs() <= 1.0 / 128.0, "{scale} of {wanted}");
            }
        }
    }

    #[test]
    fn zeros_and_extremes_have_usable_scales() {
        assert_eq!(best_multiples(&[0.0; 70], None, 32, FOUR_BITS), (1.0, vec![1; 3]));
        for row in [
            vec![f32::MIN_POSITIVE / 4.0; 40],
            vec![f32::MAX; 40],
            [vec![0.0; 32], vec![1e-30, 1.0]].concat(),
            [vec![1e-8; 32], vec![1.0; 32]].concat(),
        ] {
            let (scale, multiples) = best_multiples(&row, None, 32, FOUR_BITS);
            assert!(scale > 0.0 && scale.is_finite(), "{scale}");
            assert!(multiples.iter().all(|multiple| (1..=LARGEST_MULTIPLE).contains(multiple)));
        }
        let (_, multiples) = best_multiples(&[vec![1e-8; 32], vec![1.0; 32]].concat(), None, 32, FOUR_BITS);
        assert!(multiples[0] == 1 && multiples[1] > 8, "{multiples:?}");
    }

    proptest! {
        #[test]
        fn the_error_keeps_to_its_bound(
            near in prop::collection::vec((-1.0_f32..1.0, prop::bool::weighted(0.05)), 1..400),
            size in 1_usize..70,
            power in -6_i32..6,
            weigh in any::<bool>(),
        ) {
            let row: Vec<f32> = near
                .iter()
                .map(|&(value, far)| value * 2.0_f32.powi(power) * if far { 30.0 } else { 1.0 })
                .collect();
            let importance: Vec<f32> = (0..row.len()).map(|index| 0.1 + (index % 7) as f32).collect();
            let importance = weigh.then_some(importance.as_slice());
            let (scale, multiples) = best_multiples(&row, importance, size, FOUR_BITS);
            prop_assert_eq!(multiples.len(), row.len().div_ceil(size));
            prop_assert_eq!(row_scale(f64::from(scale)), scale);
            let plain = |values: &[f32]| f64::from(largest(values)) / 7.0;
            // A sixteenth of the largest, plus 2 %, rounded to seven bits.
            let step = row.chunks(size).map(plain).fold(0.0, f64::max) / 16.0 * 1.03;
            let (mut found, mut bound) = (0.0, 0.0);
            for (block, values) in row.chunks(size).enumerate() {
                let of_block = f64::from(scale) * f64::from(multiples[block]);
                for (index, &value) in values.iter().enumerate() {
                    let c = importance.map_or(1.0, |importance| f64::from(importance[block * size + index]));
                    let q = (f64::from(value) / of_block).round_ties_even().clamp(-8.0, 7.0);
                    found += c * (f64::from(value) - q * of_block).powi(2);
                    bound += c * ((plain(values) + step) / 2.0).powi(2);
                }
            }
            prop_assert!(found <= bound * (1.0 + 1e-5) + 1e-20, "{found} > {bound}");
        }
    }
}
