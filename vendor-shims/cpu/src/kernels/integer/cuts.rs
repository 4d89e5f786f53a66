//! How products are divided into units that threads take. No division changes a bit of a result.

use std::ops::Range;

use super::GROUP;
use super::streams::STREAMS;
use crate::pool::Cut;
use crate::simd::dot::DotLevel;

/// Cut of products of a few rows. A unit is a panel, and a run of panels is read once from front to
/// back. Threads take as many panels as there are streams, except near the end.
pub const PANELS: Cut = Cut { wide: STREAMS, most: 4 * STREAMS };

/// Cut of products of many rows by a group of panels. A unit is a step of rows by the group, and
/// the units of a group follow each other. Whoever takes several units of a group unpacks its
/// weights once for all of them.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    rows: usize,
    /// Rows of a step. The last step may have fewer.
    step: usize,
    steps: usize,
}

/// Returns the rows of a step. Unpacking is a small part of the products of this many rows.
pub const fn step_rows(dot: DotLevel) -> usize {
    match dot {
        // Two tiles of 32 rows, whose products need less time than unpacking.
        #[cfg(target_arch = "x86_64")]
        DotLevel::Amx => 64,
        // A multiple of the heights of all other tiles.
        _ => 24,
    }
}

/// Returns the first panel and the number of panels of a group.
pub fn panels_of_group(group: usize, panels: usize) -> (usize, usize) {
    let first = group * GROUP;
    (first, GROUP.min(panels - first))
}

impl Steps {
    /// Divides `rows` rows, at least one, into steps of `step` rows.
    pub fn of(rows: usize, step: usize) -> Steps {
        Steps { rows, step, steps: rows.div_ceil(step) }
    }

    /// Returns the number of units of some panels.
    pub fn units(self, panels: usize) -> usize {
        panels.div_ceil(GROUP) * self.steps
    }

    /// Returns the cut of these units. Threads take a whole group at most.
    pub fn cut(self) -> Cut {
        Cut { wide: self.steps, most: self.steps }
    }

    /// Divides units into pieces of one group each. Returns the index of the group and the rows of
    /// each piece.
    pub fn pieces(self, units: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let Steps { rows, step, steps } = self;
        let mut next = units.start;
        std::iter::from_fn(move || {
            if next >= units.end {
                return None;
            }
            let (group, first) = (next / steps, next % steps);
            let end = steps.min(first + units.end - next);
            next += end - first;
            Some((group, first * step..rows.min(end * step)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_all_rows_of_all_groups_once() {
        for (rows, step, panels) in [(1, 24, 3_usize), (24, 24, 4), (50, 24, 9), (512, 64, 40)] {
            let steps = Steps::of(rows, step);
            let groups = panels.div_ceil(GROUP);
            let units = steps.units(panels);
            for part in [1, 2, 3, 7, units] {
                let mut counts = vec![0; groups * rows];
                for first in (0..units).step_by(part) {
                    let pieces: Vec<_> = steps.pieces(first..units.min(first + part)).collect();
                    assert!(pieces.is_sorted_by(|a, b| a.0 < b.0), "a group is unpacked once: {pieces:?}");
                    for (group, rows_of) in pieces {
                        assert!(!rows_of.is_empty());
                        rows_of.for_each(|row| counts[group * rows + row] += 1);
                    }
                }
                assert!(counts.iter().all(|count| *count == 1), "{rows} rows by {panels} panels");
            }
        }
    }
}
