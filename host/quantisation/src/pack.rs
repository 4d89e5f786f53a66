//! Packs stored integers into bytes: two's complement, low bits first, every row padded to a whole
//! byte.

use half::{bf16, f16};
use shardwright_vocabulary::DType;

/// Appends one row of stored integers. Each must be within the range of the type.
pub(crate) fn integers(dtype: DType, row: &[i32], into: &mut Vec<u8>) {
    let packed = |bits: usize, into: &mut Vec<u8>| {
        let mask = (1_u8 << bits) - 1;
        into.extend(row.chunks(8 / bits).map(|few| {
            few.iter().enumerate().fold(0, |byte, (at, &value)| byte | (value as u8 & mask) << (at * bits))
        }));
    };
    match dtype {
        DType::I4 => packed(4, into),
        DType::I2 => packed(2, into),
        DType::U16 | DType::I16 => into.extend(row.iter().flat_map(|&value| (value as u16).to_le_bytes())),
        _ => into.extend(row.iter().map(|&value| value as u8)),
    }
}

/// Appends values as floats of a type, each rounded to the nearest finite value.
pub(crate) fn floats(dtype: DType, values: &[f32], into: &mut Vec<u8>) {
    match dtype {
        DType::F16 => into.extend(values.iter().flat_map(|&value| half_of(value).to_le_bytes())),
        DType::Bf16 => into.extend(values.iter().flat_map(|&value| brain_of(value).to_le_bytes())),
        _ => into.extend(values.iter().flat_map(|value| value.to_le_bytes())),
    }
}

fn half_of(value: f32) -> f16 {
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}

fn brain_of(value: f32) -> bf16 {
    bf16::from_f32(value.clamp(bf16::MIN.to_f32(), bf16::MAX.to_f32()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_low_bits_first_and_padded() {
        let of = |dtype, row: &[i32]| {
            let mut bytes = Vec::new();
            integers(dtype, row, &mut bytes);
            bytes
        };
        assert_eq!(of(DType::I4, &[1, -2, 7]), [0xe1, 0x07]);
        assert_eq!(of(DType::I2, &[0, 1, -2, -1, 1]), [0b1110_0100, 0b01]);
        assert_eq!(of(DType::I8, &[-1, 127]), [0xff, 127]);
        assert_eq!(of(DType::U16, &[65535, 1]), [0xff, 0xff, 1, 0]);
    }

    #[test]
    fn narrow_floats_saturate_and_round() {
        let mut bytes = Vec::new();
        floats(DType::F16, &[1e9, -1e9, 1.0], &mut bytes);
        assert_eq!(bytes, [0xff, 0x7b, 0xff, 0xfb, 0x00, 0x3c]);
        bytes.clear();
        floats(DType::Bf16, &[1.0 + 1.0 / 256.0], &mut bytes);
        assert_eq!(bytes, [0x80, 0x3f]);
    }
}
