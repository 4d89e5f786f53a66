//! Scales and minimums of blocks of weights, read unit by unit.

use super::Operands;
use crate::kernels::linear::{Numbers, Scales};
use crate::simd::dot::{Dot, VECTOR};
use crate::simd::{LANES, Simd};

/// Pieces of the sixteen factors of small numbers.
const FACTORS: usize = 2;

/// Position among the numbers of adjacent panels. Places and distances count vectors of sixteen
/// numbers, or pieces of sixteen bytes if numbers are [small](Numbers::Small).
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    numbers: Numbers<'a>,
    /// Place of the first panel's next scales.
    next: usize,
    /// Distance from one panel to the next.
    panel: usize,
    /// Distance from the scales of a block to its minimums. For small numbers, this is the number
    /// of blocks of the current group.
    lower: usize,
    /// 1 for scales, 2 for scales and minimums.
    kinds: usize,
    /// Units of a block.
    units: usize,
    /// Units that are left in the current block.
    left: usize,
    /// Place of the factors of the current group of small numbers.
    factors: usize,
    /// Blocks from the current group of small numbers on.
    blocks: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at the first unit of panels from `panel` on. Without blocks, every scale is 1.
    #[inline(always)]
    pub(super) fn of(operands: &Operands<'a>, panel: usize) -> Cursor<'a> {
        let none = Cursor {
            numbers: Numbers::F32(&[[1.0; LANES]]),
            next: 0,
            panel: 0,
            lower: 1,
            kinds: 1,
            units: usize::MAX,
            left: usize::MAX,
            factors: 0,
            blocks: 0,
        };
        let Scales::Blocks { size, minimum, numbers } = operands.weights.scales else { return none };
        let (kinds, units) = (1 + usize::from(minimum), size.div_ceil(operands.geometry.unit));
        let blocks = operands.geometry.inputs.div_ceil(size);
        let cursor = Cursor { numbers, kinds, units, left: units, ..none };
        match numbers {
            Numbers::F16(_) | Numbers::F32(_) => {
                Cursor { next: panel * kinds * blocks, panel: kinds * blocks, ..cursor }
            }
            Numbers::Small { group, .. } => {
                let each = kinds * Numbers::pieces(blocks, group);
                let factors = panel * each;
                let (next, lower) = (factors + FACTORS * kinds, group.min(blocks));
                Cursor { next, panel: each, lower, factors, blocks, ..cursor }
            }
        }
    }

    /// Loads the scales of the next unit of `PANELS` panels.
    ///
    /// # Safety
    /// The panels and the unit must exist.
    #[inline(always)]
    pub(super) unsafe fn scales<S: Simd, const PANELS: usize>(&self, s: S) -> [S::V; PANELS] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.load(s, self.next, self.factors) }
    }

    /// Loads the minimums of the next unit of `PANELS` panels.
    ///
    /// # Safety
    /// See [`Cursor::scales`]. The weights must have blocks with minimums.
    #[inline(always)]
    pub(super) unsafe fn minimums<S: Simd, const PANELS: usize>(&self, s: S) -> [S::V; PANELS] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.load(s, self.next + self.lower, self.factors + FACTORS) }
    }

    /// Loads the vector at place `first`, and the corresponding vectors of the next panels. The
    /// factors of small numbers are at place `factors`.
    ///
    /// # Safety
    /// The vectors must exist.
    #[inline(always)]
    unsafe fn load<S: Simd, const PANELS: usize>(
        &self,
        s: S,
        first: usize,
        factors: usize,
    ) -> [S::V; PANELS] {
        let mut vectors = [s.splat(0.0); PANELS];
        // One branch for all panels.
        match self.numbers {
            Numbers::F16(numbers) => {
                for (p, vector) in vectors.iter_mut().enumerate() {
                    // SAFETY: guaranteed by the caller.
                    *vector = unsafe { s.load_f16(numbers.as_ptr().add(first + p * self.panel).cast()) };
                }
            }
            Numbers::F32(numbers) => {
                for (p, vector) in vectors.iter_mut().enumerate() {
                    // SAFETY: guaranteed by the caller.
                    *vector = unsafe { s.load(numbers.as_ptr().add(first + p * self.panel).cast()) };
                }
            }
            Numbers::Small { pieces, .. } => {
                for (p, vector) in vectors.iter_mut().enumerate() {
                    // SAFETY: guaranteed by the caller: two pieces of factors and one of bytes.
                    *vector = unsafe {
                        let panel = pieces.as_ptr().add(p * self.panel);
                        // Exact: eleven bits by eight.
                        s.mul(s.load_f16(panel.add(factors).cast()), s.load_i8(panel.add(first).cast()))
                    };
                }
            }
        }
        vectors
    }

    /// Prefetches the numbers of the `PANELS` panels that follow the current ones.
    #[inline(always)]
    pub(super) fn prefetch<D: Dot, const PANELS: usize>(&self, d: D) {
        let (start, place, bytes) = match self.numbers {
            Numbers::F16(numbers) => (numbers.as_ptr().cast::<u8>(), self.next, 2 * LANES),
            Numbers::F32(numbers) => (numbers.as_ptr().cast::<u8>(), self.next, 4 * LANES),
            Numbers::Small { pieces, .. } => {
                // A group of eight blocks has 5/4 pieces for each number of a block, a larger group
                // fewer.
                let done = (self.next - self.factors - FACTORS * self.kinds) * self.kinds;
                (pieces.as_ptr().cast::<u8>(), self.factors + done + done / 4, LANES)
            }
        };
        for p in PANELS..2 * PANELS {
            let at = start.wrapping_add((place + p * self.panel) * bytes);
            d.prefetch(at);
            if self.kinds * bytes > VECTOR {
                d.prefetch(at.wrapping_add(VECTOR));
            }
        }
    }

    /// Moves to the next unit.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        self.left -= 1;
        if self.left > 0 {
            return;
        }
        self.left = self.units;
        let Numbers::Small { group, .. } = self.numbers else {
            self.next += self.kinds;
            return;
        };
        self.next += 1;
        let first = self.factors + FACTORS * self.kinds;
        if self.next == first + self.lower {
            self.factors = first + self.kinds * self.lower;
            self.next = self.factors + FACTORS * self.kinds;
            self.blocks -= self.lower;
            self.lower = group.min(self.blocks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::integer::quantise::Rows;
    use crate::kernels::integer::{Geometry, IntegerType, Tiles};
    use crate::simd::{Scalar, narrow_f16};

    /// Small numbers are read in the order in which [`Numbers::Small`] describes them.
    #[test]
    fn small_numbers_are_found_at_their_places() {
        let (size, panels) = (16, 2);
        for (blocks, group, minimum) in [(1, 16, true), (16, 16, false), (21, 8, true), (9, 4, false)] {
            let kinds = 1 + usize::from(minimum);
            let (mut pieces, mut expected) = (Vec::<[u16; LANES / 2]>::new(), Vec::new());
            for panel in 0..panels {
                let mut of_panel = vec![[[0.0f32; LANES]; 2]; blocks];
                for (index, part) in of_panel.chunks_mut(group).enumerate() {
                    let factor = |kind: usize, lane: usize| {
                        f32::from(lane as u8 + 16) * 2.0f32.powi((2 * (panel + index) + kind) as i32)
                    };
                    for kind in 0..kinds {
                        let halves: [u16; LANES] = std::array::from_fn(|lane| narrow_f16(factor(kind, lane)));
                        pieces.extend(halves.as_chunks::<{ LANES / 2 }>().0);
                    }
                    for kind in 0..kinds {
                        for (block, numbers) in part.iter_mut().enumerate() {
                            let byte = |lane: usize| (block * 7 + lane * 3 + kind * 60) as u8 as i8;
                            let bytes: [u8; LANES] = std::array::from_fn(|lane| byte(lane) as u8);
                            let pair = |at: usize| u16::from_ne_bytes([bytes[2 * at], bytes[2 * at + 1]]);
                            pieces.push(std::array::from_fn(pair));
                            numbers[kind] =
                                std::array::from_fn(|lane| factor(kind, lane) * f32::from(byte(lane)));
                        }
                    }
                }
                expected.push(of_panel);
            }
            let numbers = Numbers::Small { pieces: &pieces, group };
            assert!(numbers.suffice(panels, blocks, minimum));
            assert!(!numbers.suffice(panels + 1, blocks, minimum));
            // Each block has two units.
            let inputs = blocks * size;
            let whole = Geometry::of(inputs, None, None).expect("short rows");
            let geometry = Geometry { unit: size / 2, ..whole };
            let scales = Scales::Blocks { size, minimum, numbers };
            let (kind, outputs) = (IntegerType::I4, panels * LANES);
            let weights = Tiles { kind, base: 0, data: &[], scales, inputs, outputs };
            let rows = Rows { q: &[], sums: &[], scales: &[], totals: &[], raised: false };
            let operands = Operands { weights, geometry, rows, bias: None, bounds: None };
            let mut cursor = Cursor::of(&operands, 0);
            for (first, second) in expected[0].iter().zip(&expected[1]) {
                for _ in 0..2 {
                    // SAFETY: the panels and the blocks exist.
                    let found: [_; 2] = unsafe { cursor.scales(Scalar) };
                    assert_eq!(found, [first[0], second[0]]);
                    if minimum {
                        // SAFETY: as above, and the blocks have minimums.
                        let found: [_; 2] = unsafe { cursor.minimums(Scalar) };
                        assert_eq!(found, [first[1], second[1]]);
                    }
                    cursor.advance();
                }
            }
            // SAFETY: the panel exists.
            let [found] = unsafe { Cursor::of(&operands, 1).scales::<_, 1>(Scalar) };
            assert_eq!(found, expected[1][0][0]);
        }
    }
}
