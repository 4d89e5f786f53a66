//! Runs of panels that threads take.

use std::ops::Range;

use super::{PANELS, Split};
use crate::kernels::integer::streams::STREAMS;
use crate::pool::Cut;
use crate::simd::LANES;

/// Panels of a unit that threads take.
pub(in crate::kernels) const UNIT: usize = STREAMS;
/// Cut of the units.
pub(in crate::kernels) const CUT: Cut = Cut { wide: PANELS / UNIT, most: PANELS / UNIT };
/// Divisor of the number of parts: some of them are enough to find a result near the largest.
pub(in crate::kernels) const EARLY: usize = 8;

/// Returns the number of units of a map.
pub(in crate::kernels) fn units_of(outputs: usize) -> usize {
    outputs.div_ceil(LANES * UNIT)
}

/// Returns the units of a part of the first and of the last phase of a search. Pools of more than
/// two threads have smaller parts.
pub(in crate::kernels) fn units_of_part(threads: usize) -> usize {
    (2 * CUT.wide / threads.max(2)).max(1)
}

/// At most [`PANELS`] adjacent panels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) first: usize,
    pub(super) end: usize,
}

/// Divides units into runs of panels.
pub(super) fn runs(units: Range<usize>, outputs: usize) -> impl Iterator<Item = Run> {
    let end = (units.end * UNIT).min(outputs.div_ceil(LANES));
    let first = (units.start * UNIT..end).step_by(PANELS);
    first.map(move |first| Run { first, end: end.min(first + PANELS) })
}

impl Run {
    /// Returns the outputs of the panels.
    pub(super) fn outputs(self, split: Split<'_>) -> Range<usize> {
        self.first * LANES..split.outputs.min(self.end * LANES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_all_panels_once() {
        for (outputs, panels) in [(1, 1), (300, 19), (1024, 64), (262_144, 16_384)] {
            let units = units_of(outputs);
            for taken in [1, 3, 8, units] {
                let all: Vec<Run> = (0..units)
                    .step_by(taken)
                    .flat_map(|first| runs(first..units.min(first + taken), outputs))
                    .collect();
                assert!(all.iter().all(|run| run.first < run.end && run.end - run.first <= PANELS));
                assert!(all.windows(2).all(|pair| pair[0].end == pair[1].first));
                assert_eq!((all[0].first, all[all.len() - 1].end), (0, panels));
            }
        }
    }

    #[test]
    fn many_threads_have_small_parts() {
        assert_eq!([1, 2, 4, 8, 16, 64].map(units_of_part), [8, 8, 4, 2, 1, 1]);
    }
}
