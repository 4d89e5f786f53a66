//! The narrowest exact forms of integers in blocks, and of the scales and minimums of blocks.
//!
//! A work order has integers of 8, 4 or 2 bits and numbers of 16 or 32 bits. A file may store both
//! in fewer bits. For example, integers of GGUF's `Q5_0` have five bits, and scales of its K-types
//! are small multiples of a binary16 that 256 values share (`ggml-common.h` of llama.cpp). The form
//! is chosen by the values alone. No result depends on it.

use shardwright_shim_abi::Error;

use super::constant::{Constant, Scaling};
use crate::kernels::integer::IntegerType;
use crate::program::NumberForm;
use crate::simd::{narrow_f16, widen_f16};

/// Values whose blocks share a factor.
const SUPERBLOCK: u64 = 256;
/// Most blocks of a group that shares a factor.
const MOST: usize = 16;

/// Returns the type in which tiles store the integers of a matrix with `inputs` inputs, and the
/// weight that a stored zero means. `kind` is the type of the constant.
pub fn narrowest(
    constant: &Constant<'_>,
    kind: IntegerType,
    inputs: u64,
) -> Result<(IntegerType, i32), Error> {
    let zero = constant.zero_point();
    let Some(Scaling::Block { size, .. }) = constant.scaling().filter(|_| kind == IntegerType::I8) else {
        return Ok((kind, kind.low() - zero));
    };
    let size = size.min(inputs.max(1));
    let narrower = narrower(constant.stored()?, inputs, size);
    // Products of tiles and of pairs of rows require that a weight is a signed byte.
    let narrower = narrower.filter(|(_, low)| i8::try_from(low - zero).is_ok());
    Ok(narrower.map_or((kind, -zero), |(kind, low)| (kind, low - zero)))
}

/// Returns the narrowest type of less than eight bits for these bytes, and the least of them.
fn narrower(bytes: &[u8], inputs: u64, size: u64) -> Option<(IntegerType, i32)> {
    let ends = |(least, most): (i8, i8), byte: &u8| (least.min(*byte as i8), most.max(*byte as i8));
    let (least, most) = bytes.iter().fold((i8::MAX, i8::MIN), ends);
    let (least, most) = (i32::from(least), i32::from(most));
    let fits = |kind: &IntegerType| most - least < 1 << kind.bits() && kind.suits(inputs, Some(size));
    let kind = [IntegerType::I4, IntegerType::I5, IntegerType::I6].into_iter().find(fits);
    kind.map(|kind| (kind, least))
}

/// Returns the form in which tiles store the scales and minimums of blocks of `size` values.
pub fn number_form(constant: &Constant<'_>, inputs: u64, size: u64) -> Result<NumberForm, Error> {
    let plain = constant.number_form();
    let group = SUPERBLOCK / size;
    let may_share = SUPERBLOCK.is_multiple_of(size) && (2..=MOST as u64).contains(&group);
    if plain == NumberForm::F16 || !may_share {
        return Ok(plain);
    }
    // The scales of a row, then its minimums, then the next row.
    let blocks = inputs.div_ceil(size).max(1) as usize;
    let numbers = constant.scales()?;
    let mut groups = numbers.chunks(blocks).flat_map(|numbers| numbers.chunks(group as usize));
    match groups.all(|numbers| factors(numbers).is_some()) {
        true => Ok(NumberForm::Small { group }),
        false => Ok(plain),
    }
}

/// Returns a binary16 and a signed byte for each of at most [`MOST`] numbers, so that each number
/// equals their product. Returns `None` if no binary16 divides them all. Both zeros are equal.
pub fn factors(numbers: &[f32]) -> Option<(u16, [i8; MOST])> {
    let largest = numbers.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()));
    let Some(largest) = largest.filter(|largest| *largest != 0.0) else { return Some((0, [0; MOST])) };
    // The byte of the largest magnitude is positive if the factor has its sign. Only −128 is left.
    (1..=i8::MAX).chain([i8::MIN]).find_map(|byte| {
        let factor = largest / f32::from(byte);
        // A binary16 has eleven bits. This rejects most candidates.
        if factor.to_bits().trailing_zeros() < 13 {
            return None;
        }
        let half = narrow_f16(factor);
        let mut bytes = [0; MOST];
        for (byte, number) in bytes.iter_mut().zip(numbers) {
            *byte = (number / factor) as i8;
            if f32::from(*byte) * factor != *number {
                return None;
            }
        }
        (widen_f16(half) == factor).then_some((half, bytes))
    })
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// A finite binary16 that is not zero, of either sign, in the range of scales in files.
    fn half(random: &mut Rng) -> f32 {
        let bits = (random.u16(..) & 0x83ff) | (random.u16(3..20) << 10);
        widen_f16(bits)
    }

    fn is_exact(numbers: &[f32]) -> bool {
        let Some((half, bytes)) = factors(numbers) else { return false };
        numbers.iter().zip(bytes).all(|(number, byte)| widen_f16(half) * f32::from(byte) == *number)
    }

    /// Blocks of a superblock, and the bytes of scales and of minimums, of `Q2_K` to `Q6_K`.
    #[test]
    fn factors_are_found_for_every_file_type() {
        let mut random = Rng::with_seed(5);
        for (blocks, bytes) in [(16, 0..=15), (16, -32..=31), (8, 0..=63), (16, -128..=127)] {
            for _ in 0..2000 {
                let factor = half(&mut random);
                let numbers: Vec<f32> =
                    (0..blocks).map(|_| factor * f32::from(random.i8(bytes.clone()))).collect();
                assert!(is_exact(&numbers), "{numbers:?}");
                // A group at the end of a row may be shorter.
                assert!(is_exact(&numbers[..3]), "{numbers:?}");
            }
        }
    }

    #[test]
    fn numbers_without_a_common_factor_are_refused() {
        let mut random = Rng::with_seed(6);
        for _ in 0..2000 {
            let factor = half(&mut random);
            let mut numbers: [f32; 8] = std::array::from_fn(|_| factor * f32::from(random.i8(1..=63)));
            // An odd last bit has no divisor among the binary16.
            let at = random.usize(..8);
            numbers[at] = f32::from_bits(numbers[at].to_bits() | 1);
            assert_eq!(factors(&numbers), None, "{numbers:?}");
        }
        // The quotient is exact, but beyond a byte, or the factor beyond a binary16.
        for numbers in [[1.0, 129.0], [1.0, 255.0], [1e6, 1e6 + 0.0625], [1e-30, 2e-30], [1.0, f32::MAX]] {
            assert_eq!(factors(&numbers), None, "{numbers:?}");
        }
    }

    #[test]
    fn the_ends_of_bytes_zeros_and_signs_are_exact() {
        for numbers in [
            &[][..],
            &[0.0, -0.0],
            &[-0.0, 3.0, 0.0],
            &[-128.0 * 1025.0, 127.0 * 1025.0],
            &[-127.0, 127.0],
            &[65504.0 * 127.0, -65504.0],
            // The least binary16 above zero.
            &[0.0, f32::from_bits(0x3380_0000)],
        ] {
            assert!(is_exact(numbers), "{numbers:?}");
        }
        assert_eq!(factors(&[0.0; MOST]), Some((0, [0; MOST])));
    }

    #[test]
    fn bytes_are_narrowed_to_their_range() {
        let of = |least: i8, most: i8, inputs, size| narrower(&[0, least as u8, most as u8], inputs, size);
        for ((least, most), expected) in [
            ((0, 15), Some((IntegerType::I4, 0))),
            ((-8, 7), Some((IntegerType::I4, -8))),
            ((-8, 8), Some((IntegerType::I5, -8))),
            ((-16, 15), Some((IntegerType::I5, -16))),
            ((0, 31), Some((IntegerType::I5, 0))),
            ((-1, 31), Some((IntegerType::I6, -1))),
            ((-32, 31), Some((IntegerType::I6, -32))),
            ((0, 63), Some((IntegerType::I6, 0))),
            ((-1, 63), None),
            ((-128, 127), None),
        ] {
            assert_eq!(of(least, most, 64, 32), expected, "{least} to {most}");
        }
        // Vectors of high bits need whole steps of blocks.
        assert_eq!(of(0, 31, 48, 16), Some((IntegerType::I6, 0)));
        assert_eq!(of(0, 31, 80, 32), Some((IntegerType::I6, 0)));
        assert_eq!(of(0, 31, 80, 40), None);
        assert_eq!(of(0, 63, 72, 16), None);
        assert_eq!(of(0, 15, 7, 5), Some((IntegerType::I4, 0)));
    }
}
