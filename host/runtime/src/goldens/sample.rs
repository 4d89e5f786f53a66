//! A picture or clip that is the same on every machine: waves over its patches or frames.

use shardwright_vocabulary::Pass;

use crate::features::Features;
use crate::tower::Tower;

/// Most soft rows of the sample, arranged in a square.
const ROWS: usize = SIDE * SIDE;
const SIDE: usize = 4;

/// Steps of a wave. Consecutive patches or frames are `OF_A_PLACE` steps apart, and neighbouring
/// values `OF_A_VALUE` steps.
const STEPS: usize = 1000;
const OF_A_PLACE: usize = 73;
const OF_A_VALUE: usize = 29;

/// Input of a tower.
pub(super) struct Sample {
    pass: Pass,
    width: usize,
    /// Number of patches or frames.
    count: usize,
    columns: Vec<i32>,
    rows: Vec<i32>,
}

impl Sample {
    /// Creates patches or frames for some soft rows of a tower.
    pub fn for_tower(pass: Pass, tower: &Tower) -> Sample {
        let to_a_row = tower.features_of_a_row().max(1);
        let rows = (tower.most_features() / to_a_row).min(ROWS);
        Sample::of(pass, rows, to_a_row, tower.feature_width())
    }

    /// Creates a sample for `rows` soft rows, with `to_a_row` patches or frames per row and `width`
    /// values each.
    fn of(pass: Pass, rows: usize, to_a_row: usize, width: usize) -> Sample {
        let count = rows * to_a_row;
        // The patches of one soft row also form a square.
        let side = to_a_row.isqrt().max(1);
        let places = |of_row: fn(usize) -> usize, of_patch: &dyn Fn(usize) -> usize| -> Vec<i32> {
            let at = |index: usize| of_row(index / to_a_row) * side + of_patch(index % to_a_row);
            (0..count).map(|index| i32::try_from(at(index)).unwrap_or(0)).collect()
        };
        let (columns, rows) = match pass {
            Pass::Picture => (
                places(|row| row % SIDE, &|patch| patch % side),
                places(|row| row / SIDE, &|patch| patch / side),
            ),
            _ => (Vec::new(), Vec::new()),
        };
        Sample { pass, width, count, columns, rows }
    }

    /// Calls `run` with the sample as features.
    pub fn with<R>(&self, run: impl FnOnce(Features<'_>) -> R) -> R {
        let write = |values: &mut [f32]| {
            for (index, value) in values.iter_mut().enumerate() {
                *value = self.value(index);
            }
        };
        run(Features { count: self.count, columns: &self.columns, rows: &self.rows, write: &write })
    }

    /// Returns a value in the range of a front end: the brightness of a pixel, or the logarithm of
    /// a mel band.
    fn value(&self, index: usize) -> f32 {
        let (place, value) = (index / self.width.max(1), index % self.width.max(1));
        let step = (place * OF_A_PLACE + value * OF_A_VALUE) % STEPS;
        let wave = (2 * step).abs_diff(STEPS) as f32 / STEPS as f32;
        match self.pass {
            Pass::Picture => wave,
            _ => wave * 6.0 - 6.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_patch_has_a_place_of_its_own_and_values_of_a_front_end() {
        let sample = Sample::of(Pass::Picture, 6, 9, 12);
        sample.with(|features| {
            assert_eq!((features.count, features.columns.len(), features.rows.len()), (54, 54, 54));
            let mut places: Vec<_> = features.columns.iter().zip(features.rows).collect();
            places.sort();
            places.dedup();
            assert_eq!(places.len(), 54);
            assert_eq!((places[0], *places[53].0), ((&0, &0), 11));
            let mut values = vec![f32::NAN; 54 * 12];
            (features.write)(&mut values);
            assert!(values.iter().all(|value| (0.0..=1.0).contains(value)));
            assert!(values.windows(2).all(|pair| pair[0] != pair[1]));
        });
        let sample = Sample::of(Pass::Clip, 3, 4, 128);
        sample.with(|features| {
            assert_eq!((features.count, features.columns.len()), (12, 0));
            let mut values = vec![f32::NAN; 12 * 128];
            (features.write)(&mut values);
            assert!(values.iter().all(|value| (-6.0..=0.0).contains(value)));
        });
    }
}
