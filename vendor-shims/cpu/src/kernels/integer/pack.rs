//! Memory layout of integer weights.
//!
//! A panel is sixteen outputs. Its inputs are divided into units, each padded to a multiple of
//! sixteen inputs ([`Geometry`]). A panel is a sequence of vectors of 64 bytes. Bytes 4·i to
//! 4·i + 3 of a vector belong to output i. Types of less than eight bits store a weight minus the
//! least one, as an unsigned field:
//! * Eight bits: the bytes are the output's next four inputs, signed.
//! * Six bits: three vectors have the next sixteen inputs. The first two have the low four bits,
//!   like four bits. Bits 4·t + 2·h and 4·t + 2·h + 1 of the third vector are the high bits of half
//!   h of vector t (the low half is 0).
//! * Five bits: five vectors have the next 32 inputs. The first four have the low four bits, like
//!   four bits. Bit 2·t + h of the fifth vector is the high bit of half h of vector t.
//! * Four bits: byte j contains inputs j and j + 4 of the next eight, in its low and its high half.
//! * Two bits: byte j contains inputs j, j + 4, j + 8, j + 12 of the next sixteen, from its low
//!   bits on.
//!
//! So shifting and masking alone turn vectors into operands of sixteen times four bytes, in the
//! order in which the quantised rows are stored. The layouts are the project's own.

use serde::{Deserialize, Serialize};

use super::Geometry;
use crate::simd::LANES;
use crate::simd::dot::VECTOR;

/// Stored type of integer weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IntegerType {
    I8,
    /// Only for weights in blocks.
    I6,
    /// Only for weights in blocks.
    I5,
    I4,
    I2,
}

impl IntegerType {
    /// Returns the bits of one value.
    pub const fn bits(self) -> usize {
        match self {
            IntegerType::I8 => 8,
            IntegerType::I6 => 6,
            IntegerType::I5 => 5,
            IntegerType::I4 => 4,
            IntegerType::I2 => 2,
        }
    }

    /// Returns the lower-case name that reports use.
    pub const fn name(self) -> &'static str {
        match self {
            IntegerType::I8 => "i8",
            IntegerType::I6 => "i6",
            IntegerType::I5 => "i5",
            IntegerType::I4 => "i4",
            IntegerType::I2 => "i2",
        }
    }

    /// Returns the integer that is stored as zero if integers have the range of signed ones. Bytes
    /// are stored as they are.
    pub const fn low(self) -> i32 {
        match self {
            IntegerType::I8 => 0,
            kind => -(1 << (kind.bits() - 1)),
        }
    }

    /// Checks whether rows of `inputs` integers in blocks of `size`, or with a scale per output,
    /// can be stored in this type. Vectors of high bits require whole steps.
    pub fn suits(self, inputs: u64, size: Option<u64>) -> bool {
        let step = match self {
            IntegerType::I6 => 16,
            IntegerType::I5 => 32,
            IntegerType::I8 | IntegerType::I4 | IntegerType::I2 => return true,
        };
        inputs.is_multiple_of(step) && size.is_some_and(|size| size.is_multiple_of(step))
    }

    /// Returns the low bits of a weight, its high bits in the last vector of a step, and the number
    /// of vectors before that one.
    const fn parts(self) -> (usize, usize, usize) {
        match self {
            IntegerType::I6 => (4, 2, 2),
            IntegerType::I5 => (4, 1, 4),
            kind => (kind.bits(), 0, 1),
        }
    }
}

/// Packs one panel. `rows` contains up to sixteen rows of `inputs` integers. `low` is the integer
/// that is stored as zero, which is 0 for bytes. Padding and missing outputs are stored as zero.
///
/// # Panics
/// When a value is outside the range of `kind`, the geometry does not [suit](IntegerType::suits)
/// it, or the target is shorter than the panel.
pub fn pack_tiles(kind: IntegerType, low: i32, geometry: Geometry, rows: &[i8], target: &mut [u8]) {
    let (bits, high_bits, vectors) = kind.parts();
    // Vectors of a step, and operands of a vector.
    let (step, parts) = (vectors + high_bits.min(1), 8 / bits);
    assert!(geometry.length.is_multiple_of(4 * parts * vectors), "{geometry:?} for {kind:?}");
    let mask = u8::MAX >> (8 - bits);
    let range = match kind {
        IntegerType::I8 => -128..128,
        _ => low..low + (1 << kind.bits()),
    };
    let target = &mut target[..geometry.panel_bytes(kind)];
    target.fill(0);
    for (lane, row) in rows.chunks_exact(geometry.inputs.max(1)).take(LANES).enumerate() {
        for (unit, values) in row.chunks(geometry.unit).enumerate() {
            for (quad, values) in values.chunks(4).enumerate() {
                let operand = unit * geometry.stride / 4 + quad;
                let (vector, part) = (operand / parts, operand % parts);
                let (first, vector) = (vector / vectors * step, vector % vectors);
                for (at, &value) in values.iter().enumerate() {
                    let value = i32::from(value);
                    assert!(range.contains(&value), "{value} in tiles of {} bits", kind.bits());
                    let (stored, byte) = ((value - low) as u8, lane * 4 + at);
                    target[(first + vector) * VECTOR + byte] |= (stored & mask) << (part * bits);
                    if high_bits > 0 {
                        let shift = (vector * parts + part) * high_bits;
                        target[(first + vectors) * VECTOR + byte] |= stored >> bits << shift;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::integer::split::{pack_high, panel_bytes};

    const KINDS: [IntegerType; 5] =
        [IntegerType::I8, IntegerType::I6, IntegerType::I5, IntegerType::I4, IntegerType::I2];

    /// Returns the stored field of a place, by the description at the top of this file.
    fn field(kind: IntegerType, panel: &[u8], lane: usize, place: usize) -> u8 {
        let byte = |vector: usize| panel[vector * VECTOR + lane * 4 + place % 4];
        let half = place / 4 % 2;
        match kind {
            IntegerType::I8 => byte(place / 4),
            IntegerType::I4 => byte(place / 8) >> (4 * half) & 15,
            IntegerType::I2 => byte(place / 16) >> (2 * (place / 4 % 4)) & 3,
            IntegerType::I6 => {
                let (first, t) = (place / 16 * 3, place % 16 / 8);
                (byte(first + t) >> (4 * half) & 15) | (byte(first + 2) >> (4 * t + 2 * half) & 3) << 4
            }
            IntegerType::I5 => {
                let (first, t) = (place / 32 * 5, place % 32 / 8);
                (byte(first + t) >> (4 * half) & 15) | (byte(first + 4) >> (2 * t + half) & 1) << 4
            }
        }
    }

    #[test]
    fn every_value_is_packed_at_its_place() {
        for (kind, low) in KINDS.into_iter().flat_map(|kind| [kind.low(), -1].map(|low| (kind, low))) {
            for (inputs, size) in
                [(37, None), (50, Some(20)), (16, Some(16)), (48, Some(32)), (96, Some(32)), (64, Some(64))]
            {
                let is_bytes = kind == IntegerType::I8;
                if !kind.suits(inputs as u64, size.map(|size| size as u64)) || (is_bytes && low != 0) {
                    continue;
                }
                let geometry = Geometry::of(inputs, None, size).expect("short blocks");
                let (span, least) = (1 << kind.bits(), if is_bytes { -128 } else { low });
                let rows: Vec<i8> = (0..5 * inputs as i32).map(|i| (i * 37 % span + least) as i8).collect();
                let mut target = vec![0x77; geometry.panel_bytes(kind) + 1];
                pack_tiles(kind, low, geometry, &rows, &mut target);
                assert_eq!(target.pop(), Some(0x77), "bytes beyond the panel are unchanged");
                let existing: Vec<u8> = (0..LANES * geometry.length)
                    .map(|at| field(kind, &target, at / geometry.length, at % geometry.length))
                    .collect();
                let mut expected = vec![0; LANES * geometry.length];
                for (at, value) in rows.iter().enumerate() {
                    let (lane, k) = (at / inputs, at % inputs);
                    expected[lane * geometry.length + geometry.place(k)] = (i32::from(*value) - low) as u8;
                }
                assert_eq!(existing, expected, "{kind:?} from {low} on, {geometry:?}");
            }
        }
    }

    #[test]
    fn first_parts_of_split_weights_have_the_layout_of_five_bits() {
        let inputs = 128;
        let rows: Vec<i8> = (0..LANES * inputs).map(|at| (at * 37 % 256) as u8 as i8).collect();
        let first: Vec<i8> = rows.iter().map(|weight| weight >> 3).collect();
        let geometry = Geometry::of(inputs, None, Some(32)).expect("short blocks");
        let [mut parts, mut packed] = [(); 2].map(|()| vec![0; panel_bytes(inputs)]);
        pack_high(&rows, inputs, &mut parts);
        pack_tiles(IntegerType::I5, -16, geometry, &first, &mut packed);
        assert_eq!(parts, packed);
    }

    #[test]
    fn high_bits_need_whole_steps_of_blocks() {
        for (kind, step) in [(IntegerType::I6, 16), (IntegerType::I5, 32)] {
            assert!(kind.suits(3 * step, Some(step)) && kind.suits(2 * step, Some(2 * step)));
            for (inputs, size) in [(3 * step, None), (3 * step, Some(step / 2)), (3 * step - 1, Some(step))] {
                assert!(!kind.suits(inputs, size), "{kind:?}, {inputs} in {size:?}");
            }
        }
        for kind in [IntegerType::I8, IntegerType::I4, IntegerType::I2] {
            assert!(kind.suits(1, None) && kind.suits(7, Some(3)));
        }
    }

    #[test]
    #[should_panic = "in tiles of 4 bits"]
    fn values_above_the_range_are_refused() {
        let geometry = Geometry::of(1, None, None).expect("no blocks");
        pack_tiles(IntegerType::I4, -8, geometry, &[8], &mut [0; 128]);
    }

    #[test]
    #[should_panic = "in tiles of 6 bits"]
    fn values_below_the_range_are_refused() {
        let geometry = Geometry::of(16, None, Some(16)).expect("a block");
        pack_tiles(IntegerType::I6, -3, geometry, &[-4; 16], &mut [0; 192]);
    }

    #[test]
    #[should_panic = "for I5"]
    fn half_a_step_is_refused() {
        let geometry = Geometry::of(48, None, Some(32)).expect("short blocks");
        pack_tiles(IntegerType::I5, 0, geometry, &[0; 48], &mut [0; 1024]);
    }
}
