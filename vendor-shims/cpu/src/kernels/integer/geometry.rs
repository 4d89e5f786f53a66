//! Division of the inputs of a row into units. One exact integer sum runs over each unit.

use super::pack::IntegerType;
use crate::simd::LANES;

/// Units are padded to a multiple of this many inputs, which is a vector of the narrowest type.
pub const STEP: usize = 16;
/// Most inputs of a unit. Activations are at most 127 and weights at most 256 in magnitude, so the
/// sum of 2¹⁶ products is below 2³¹.
pub const LONGEST: usize = 1 << 16;

/// Layout of quantised rows and of packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub inputs: usize,
    /// Number of inputs of a unit. The last unit may have fewer.
    pub unit: usize,
    pub units: usize,
    /// Padded number of inputs of a unit, except the last.
    pub stride: usize,
    /// Padded number of inputs of a row, a multiple of [`STEP`].
    pub length: usize,
    /// Whether blocks of a row of activations have their own scales.
    pub scaled: bool,
    /// Number of units that share a scale of a row, if blocks of a row have scales.
    pub per_row_scale: usize,
}

impl Geometry {
    /// Divides `inputs` for rows with a scale for every `rows` inputs, or with one scale, and for
    /// weights with numbers for every `weights` inputs, or with a scale per output. A unit is the
    /// smaller block, or as long as its sum allows. Returns `None` if a block is empty or longer
    /// than [`LONGEST`], if a unit of rows with blocks is not a multiple of [`STEP`], if none of
    /// the blocks is a multiple of the other, or on overflow.
    ///
    /// The layout of the weights does not depend on `rows`.
    pub fn of(inputs: usize, rows: Option<usize>, weights: Option<usize>) -> Option<Geometry> {
        // Padding makes a row at most sixteen times as long.
        inputs.checked_add(1)?.checked_mul(STEP)?;
        // A block that covers the row does not divide it.
        let unit = match (rows, weights.filter(|size| *size < inputs)) {
            (None, None) => LONGEST,
            (None, Some(size)) | (Some(size), None) => size,
            (Some(rows), Some(size)) if size.is_multiple_of(rows) || rows.is_multiple_of(size) => {
                rows.min(size)
            }
            _ => return None,
        };
        let fits = (1..=LONGEST).contains(&unit) && (rows.is_none() || unit.is_multiple_of(STEP));
        if !fits {
            return None;
        }
        let per_row_scale = rows.map_or(1, |rows| rows / unit);
        let unit = unit.min(inputs.max(1));
        let units = inputs.div_ceil(unit);
        let stride = unit.next_multiple_of(STEP);
        let last = inputs - unit * units.saturating_sub(1);
        let length = stride * units.saturating_sub(1) + last.next_multiple_of(STEP);
        Some(Geometry { inputs, unit, units, stride, length, scaled: rows.is_some(), per_row_scale })
    }

    /// Checks whether a row is one unit, whose exact sum is multiplied by one scale of the row.
    pub fn is_whole(&self) -> bool {
        self.units == 1 && !self.scaled
    }

    /// Returns the number of scales that are stored for a row of activations: one, or one for every
    /// unit if blocks have scales.
    pub fn scales(&self) -> usize {
        if self.scaled { self.units } else { 1 }
    }

    /// Returns the padded number of inputs of unit `index`.
    #[inline(always)]
    pub fn places(&self, index: usize) -> usize {
        if index + 1 < self.units { self.stride } else { self.length - self.stride * index }
    }

    /// Returns the place of an input in a padded row.
    pub fn place(&self, input: usize) -> usize {
        input / self.unit * self.stride + input % self.unit
    }

    /// Returns the bytes of a panel.
    pub fn panel_bytes(&self, kind: IntegerType) -> usize {
        self.length * LANES * kind.bits() / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_into_units() {
        let all = |inputs, size| {
            let geometry = Geometry::of(inputs, None, size).expect("blocks that are not too long");
            assert_eq!((geometry.scales(), geometry.per_row_scale), (1, 1));
            (0..geometry.units).map(|unit| geometry.places(unit)).collect::<Vec<usize>>()
        };
        assert_eq!(all(640, None), [640]);
        assert_eq!(all(641, None), [656]);
        assert_eq!(all(100, Some(32)), [32, 32, 32, 16]);
        assert_eq!(all(21, Some(7)), [16, 16, 16]);
        assert_eq!(all(5, Some(70)), [16]);
        assert_eq!(all(0, None), [] as [usize; 0]);
        assert_eq!(all(0, Some(32)), [] as [usize; 0]);
        assert_eq!(all(LONGEST + 3, None), [LONGEST, 16]);
        assert_eq!(all(LONGEST + 3, Some(LONGEST + 3)), [LONGEST, 16], "one block in two sums");
        let geometry = Geometry::of(LONGEST + 3, None, None).expect("no blocks");
        assert_eq!(geometry.panel_bytes(IntegerType::I4), (LONGEST + 16) * 8);
    }

    #[test]
    fn rows_in_blocks_have_the_layout_of_the_weights() {
        for inputs in [0, 1, 16, 17, 31, 32, 40, 100, 640, LONGEST + 3] {
            for size in [None, Some(16), Some(32), Some(64), Some(96), Some(LONGEST)] {
                let rows = Geometry::of(inputs, Some(32), size).expect("blocks that suit");
                let weights = Geometry::of(inputs, None, size).expect("blocks that are not too long");
                let of = |geometry: Geometry| (geometry.length, (0..inputs).map(move |k| geometry.place(k)));
                assert_eq!(of(rows).0, of(weights).0, "{inputs} in {size:?}");
                assert!(of(rows).1.eq(of(weights).1), "{inputs} in {size:?}");
                let unit = if size == Some(16) && inputs > 16 { 16 } else { 32 };
                assert_eq!((rows.units, rows.scales()), (inputs.div_ceil(unit), inputs.div_ceil(unit)));
                assert_eq!(rows.per_row_scale, 32 / unit);
            }
        }
    }

    #[test]
    fn blocks_that_do_not_fit_have_no_layout() {
        assert_eq!(Geometry::of(100, Some(32), Some(48)), None);
        assert_eq!(Geometry::of(100, Some(32), Some(8)), None, "half a step");
        assert_eq!(Geometry::of(100, Some(20), Some(20)), None, "no whole number of steps");
        assert_eq!(Geometry::of(100, Some(0), None), None);
        assert_eq!(Geometry::of(100, None, Some(0)), None);
        assert_eq!(Geometry::of(100, Some(32), Some(0)), None);
        assert_eq!(Geometry::of(100, Some(2 * LONGEST), None), None);
        assert_eq!(Geometry::of(2 * LONGEST, None, Some(LONGEST + 16)), None);
        assert_eq!(Geometry::of(usize::MAX, None, None), None);
        assert!(Geometry::of(40, Some(32), Some(40)).is_some(), "a block is the row");
        assert!(Geometry::of(40, Some(32), Some(41)).is_some(), "a block is longer than the row");
    }
}
