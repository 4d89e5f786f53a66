//! Memory layout of integer weights.
//!
//! A panel is sixteen outputs. Its inputs are divided into blocks, each padded with zeros to a
//! multiple of [`STEP`]. A panel is a sequence of vectors of 64 bytes, in which bytes 4·i to 4·i +
//! 3 belong to output i:
//! * Eight bits: the bytes are the output's next four inputs, signed.
//! * Four bits: byte j contains inputs j and j + 4 of the next eight, in its low and its high half,
//!   each plus 8.
//! * Two bits: byte j contains inputs j, j + 4, j + 8, j + 12 of the next sixteen, from its low
//!   bits on, each plus 2.
//!
//! So shifting and masking alone turn a vector into operands of sixteen times four bytes, in the
//! order in which the quantised rows are stored.

use serde::{Deserialize, Serialize};

use crate::simd::LANES;
use crate::simd::dot::VECTOR;

/// Blocks are padded to a multiple of this many inputs, which is a vector of the narrowest type.
pub const STEP: usize = 16;
/// Most inputs whose sum of products fits in 32 bits: 127 · 128 each, 2¹⁶ of them below 2³¹.
pub const LONGEST: usize = 1 << 16;

/// Stored type of integer weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IntegerType {
    I8,
    I4,
    I2,
}

impl IntegerType {
    /// Returns the bits of one value.
    pub const fn bits(self) -> usize {
        match self {
            IntegerType::I8 => 8,
            IntegerType::I4 => 4,
            IntegerType::I2 => 2,
        }
    }

    /// Returns the lower-case name that reports use.
    pub const fn name(self) -> &'static str {
        match self {
            IntegerType::I8 => "i8",
            IntegerType::I4 => "i4",
            IntegerType::I2 => "i2",
        }
    }

    /// Returns the offset added to a value before it is stored.
    pub const fn offset(self) -> i32 {
        match self {
            IntegerType::I8 => 0,
            IntegerType::I4 => 8,
            IntegerType::I2 => 2,
        }
    }
}

/// Division of a row's inputs into blocks, for quantised rows and packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub inputs: usize,
    /// Number of inputs of a block. The last block may have fewer.
    pub block: usize,
    pub blocks: usize,
    /// Padded number of inputs of a block, except the last.
    pub stride: usize,
    /// Padded number of inputs of a row, a multiple of [`STEP`].
    pub length: usize,
    /// Whether each block of a row of activations has its own scale.
    pub scaled: bool,
}

impl Geometry {
    /// Divides `inputs` into blocks of `size`, or into blocks as long as their sums allow.
    ///
    /// # Panics
    /// When `size` is zero, or on overflow. Callers limit the dimensions first.
    pub fn new(inputs: usize, size: Option<usize>) -> Geometry {
        let block = size.unwrap_or(LONGEST).min(inputs.max(1));
        let blocks = inputs.div_ceil(block);
        let stride = block.next_multiple_of(STEP);
        let last = inputs - block * blocks.saturating_sub(1);
        let length = stride * blocks.saturating_sub(1) + last.next_multiple_of(STEP);
        Geometry { inputs, block, blocks, stride, length, scaled: false }
    }

    /// Divides rows of activations into blocks of `size` with a scale each. `size` must be a
    /// multiple of [`STEP`]. Weights in blocks of `weights` inputs, or with one scale per output,
    /// have the same layout. Returns `None` if a block of the weights ends within a block of the
    /// rows.
    ///
    /// # Panics
    /// See [`Geometry::new`].
    pub fn scaled(inputs: usize, size: usize, weights: Option<usize>) -> Option<Geometry> {
        let fits = |weights: usize| weights >= inputs || weights.is_multiple_of(size);
        let fits = size.is_multiple_of(STEP) && weights.is_none_or(fits);
        fits.then(|| Geometry { scaled: true, ..Geometry::new(inputs, Some(size)) })
    }

    /// Checks whether a row is one block, whose exact sum is multiplied by one scale of the row.
    pub fn is_whole(&self) -> bool {
        self.blocks == 1 && !self.scaled
    }

    /// Returns the number of scales of a row of activations.
    pub fn scales(&self) -> usize {
        if self.scaled { self.blocks } else { 1 }
    }

    /// Returns the padded number of inputs of block `index`.
    #[inline(always)]
    pub fn places(&self, index: usize) -> usize {
        if index + 1 < self.blocks { self.stride } else { self.length - self.stride * index }
    }

    /// Returns the bytes of a panel.
    pub fn panel_bytes(&self, kind: IntegerType) -> usize {
        self.length * LANES * kind.bits() / 8
    }
}

/// Packs one panel. `rows` contains up to sixteen rows of `inputs` integers. Missing outputs become
/// zeros.
///
/// # Panics
/// When a value is outside the range of `kind`, or the target is shorter than the panel.
pub fn pack_tiles(kind: IntegerType, geometry: Geometry, rows: &[i8], target: &mut [u8]) {
    let bits = kind.bits();
    let parts = 8 / bits;
    let least = -(1i32 << (bits - 1));
    let mask = u8::MAX >> (8 - bits);
    let zero = (0..parts).fold(0u8, |byte, part| byte | ((kind.offset() as u8) << (part * bits)));
    let target = &mut target[..geometry.panel_bytes(kind)];
    target.fill(zero);
    for (lane, row) in rows.chunks_exact(geometry.inputs.max(1)).take(LANES).enumerate() {
        for (k, &value) in row.iter().enumerate() {
            assert!((least..-least).contains(&i32::from(value)), "{value} in tiles of {bits} bits");
            let place = k / geometry.block * geometry.stride + k % geometry.block;
            let (vector, part) = (place / (4 * parts), place / 4 % parts);
            let stored = (i32::from(value) + kind.offset()) as u8 & mask;
            let byte = &mut target[vector * VECTOR + lane * 4 + place % 4];
            *byte = *byte & !(mask << (part * bits)) | stored << (part * bits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_into_blocks() {
        let all =
            |geometry: Geometry| (0..geometry.blocks).map(|b| geometry.places(b)).collect::<Vec<usize>>();
        let of = |inputs, size| Geometry::new(inputs, size);
        assert_eq!(all(of(640, None)), [640]);
        assert_eq!(all(of(641, None)), [656]);
        assert_eq!(all(of(100, Some(32))), [32, 32, 32, 16]);
        assert_eq!(all(of(21, Some(7))), [16, 16, 16]);
        assert_eq!(all(of(5, Some(70))), [16]);
        assert_eq!(all(of(0, None)), [] as [usize; 0]);
        assert_eq!(all(of(LONGEST + 3, None)), [LONGEST, 16]);
        assert_eq!(of(LONGEST + 3, None).panel_bytes(IntegerType::I4), (LONGEST + 16) * 8);
    }

    #[test]
    fn scaled_rows_lie_as_weights_of_larger_blocks() {
        for inputs in [0, 1, 16, 31, 32, 40, 100, 640, LONGEST + 3] {
            for size in [None, Some(32), Some(64), Some(96), Some(LONGEST)] {
                let (rows, weights) =
                    (Geometry::scaled(inputs, 32, size).unwrap(), Geometry::new(inputs, size));
                assert_eq!(rows.length, weights.length, "{inputs} in {size:?}");
                assert_eq!((rows.scales(), weights.scales()), (inputs.div_ceil(32), 1));
                // With fewer than 32 inputs there is one shorter block with one scale.
                let place =
                    |geometry: Geometry, k: usize| k / geometry.block * geometry.stride + k % geometry.block;
                assert!((0..inputs).all(|k| place(rows, k) == place(weights, k)), "{inputs} in {size:?}");
            }
        }
        assert_eq!(Geometry::scaled(100, 32, Some(48)), None);
        assert_eq!(Geometry::scaled(100, 32, Some(16)), None);
        assert_eq!(Geometry::scaled(100, 20, Some(20)), None, "no whole number of steps");
        assert!(Geometry::scaled(40, 32, Some(40)).is_some(), "a block is the row");
    }

    #[test]
    fn every_value_is_packed_at_its_place() {
        for kind in [IntegerType::I8, IntegerType::I4, IntegerType::I2] {
            for (inputs, size) in [(37, None), (50, Some(20)), (16, Some(16))] {
                let geometry = Geometry::new(inputs, size);
                let span = 1 << kind.bits();
                let rows: Vec<i8> =
                    (0..5 * inputs as i32).map(|i| (i * 37 % span - span / 2) as i8).collect();
                let mut target = vec![0x77; geometry.panel_bytes(kind) + 1];
                pack_tiles(kind, geometry, &rows, &mut target);
                assert_eq!(target.pop(), Some(0x77), "nothing beyond the panel is touched");
                let mut existing = vec![0i32; LANES * geometry.length];
                let parts = 8 / kind.bits();
                for (at, byte) in target.iter().enumerate() {
                    for part in 0..parts {
                        let place = at / VECTOR * 4 * parts + part * 4 + at % 4;
                        let raw = match kind {
                            IntegerType::I8 => i32::from(*byte as i8),
                            _ => (i32::from(*byte) >> (part * kind.bits())) % span - kind.offset(),
                        };
                        existing[at % VECTOR / 4 * geometry.length + place] = raw;
                    }
                }
                let mut expected = vec![0i32; LANES * geometry.length];
                for (at, value) in rows.iter().enumerate() {
                    let (lane, k) = (at / inputs, at % inputs);
                    let place = k / geometry.block * geometry.stride + k % geometry.block;
                    expected[lane * geometry.length + place] = i32::from(*value);
                }
                assert_eq!(existing, expected, "{kind:?}, {geometry:?}");
            }
        }
    }

    #[test]
    #[should_panic = "in tiles of 4 bits"]
    fn values_out_of_range_are_refused() {
        pack_tiles(IntegerType::I4, Geometry::new(1, None), &[8], &mut [0; 128]);
    }
}
