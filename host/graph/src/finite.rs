//! Refuses weights with values that are infinite or not a number.

use half::{bf16, f16};
use shardwright_vocabulary::{DType, Error, Result};

use crate::Weight;

/// Bytes that are checked at a time, a multiple of the size of every float.
const CHUNK: usize = 1 << 20;

/// Values that are checked without a branch, so that a compiler can check several at once.
const PIECE: usize = 1024;

/// Role of a bound that values are clamped to. It has one value, which may be infinite.
const BOUND: &str = "bound";

const HELP: &str =
    "the checkpoint is damaged, or a value exceeds its format: fetch it again, or plan another format";

/// Returns the error of a value that is infinite or not a number. `at` is its index in a weight
/// whose rows have `width` values.
pub fn not_finite(weight: &str, width: usize, at: usize, value: f32) -> Error {
    let (row, column) = (at / width.max(1), at % width.max(1));
    Error::invalid(format!("expected a finite value, got {value}"))
        .at(format!("weight `{weight}`: row {row}, column {column}"))
        .with_help(HELP)
}

impl Weight {
    /// Checks that all stored floats are finite: the values, or the scales of integers. Reads all
    /// bytes.
    ///
    /// # Errors
    /// If a float is infinite or not a number. The place names the weight, the row and the column.
    pub fn expect_finite(&self) -> Result<()> {
        let scales = self.quantisation.as_ref().map(|existing| (existing.scale_dtype, &existing.scales));
        for (dtype, data) in std::iter::once((self.dtype, &self.data)).chain(scales) {
            for (index, chunk) in data.bytes().chunks(CHUNK).enumerate() {
                self.expect_finite_at(dtype, index * CHUNK, chunk)?;
            }
        }
        Ok(())
    }

    /// Checks some of the stored values, or of the scales, which have that type and begin at byte
    /// `offset`. The bytes must be whole values.
    ///
    /// # Errors
    /// The errors of [`Weight::expect_finite`].
    pub fn expect_finite_at(&self, dtype: DType, offset: usize, bytes: &[u8]) -> Result<()> {
        let Some((at, value)) = first_not_finite(dtype, bytes) else { return Ok(()) };
        let at = offset / dtype.bytes() as usize + at;
        if self.quantisation.is_some() {
            return Err(Error::invalid(format!("expected a finite scale, got {value}"))
                .at(format!("weight `{}`: scale {at}", self.name))
                .with_help(HELP));
        }
        match self.part == BOUND && value.is_infinite() {
            true => Ok(()),
            false => Err(not_finite(&self.name, self.row_width(), at, value)),
        }
    }
}

/// Returns the first float that is infinite or not a number, with its index. Integers are finite.
fn first_not_finite(dtype: DType, bytes: &[u8]) -> Option<(usize, f32)> {
    match dtype {
        DType::F32 => {
            let values = bytes.as_chunks::<4>().0;
            let at = first(values, |bytes| u32::from_le_bytes(*bytes) & 0x7f80_0000 == 0x7f80_0000)?;
            Some((at, f32::from_le_bytes(values[at])))
        }
        DType::F16 => {
            let values = bytes.as_chunks::<2>().0;
            let at = first(values, |bytes| u16::from_le_bytes(*bytes) & 0x7c00 == 0x7c00)?;
            Some((at, f16::from_le_bytes(values[at]).to_f32()))
        }
        DType::Bf16 => {
            let values = bytes.as_chunks::<2>().0;
            let at = first(values, |bytes| u16::from_le_bytes(*bytes) & 0x7f80 == 0x7f80)?;
            Some((at, bf16::from_le_bytes(values[at]).to_f32()))
        }
        _ => None,
    }
}

/// Returns the index of the first value with all bits of its exponent set.
fn first<T>(values: &[T], is_set: impl Fn(&T) -> bool) -> Option<usize> {
    let mut pieces = values.chunks(PIECE);
    let piece = pieces.position(|piece| piece.iter().fold(false, |any, value| any | is_set(value)))?;
    let start = piece * PIECE;
    values[start..].iter().position(is_set).map(|at| start + at)
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::{ErrorKind, Granularity};

    use super::*;
    use crate::{WeightData, WeightQuantisation};

    fn weight(dtype: DType, shape: &[u64], bytes: Vec<u8>) -> Weight {
        let (name, shape, data) = ("w".to_owned(), shape.to_vec(), WeightData::from_vec(bytes));
        Weight { name, part: "q", shape, dtype, data, quantisation: None }
    }

    #[test]
    fn the_first_value_that_is_not_finite_is_named_by_its_place() {
        let (rows, width) = (3000_usize, 701_usize);
        let shape = [rows as u64, width as u64];
        let one = |dtype: DType, value: f32| match dtype {
            DType::F32 => value.to_le_bytes().to_vec(),
            DType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            _ => bf16::from_f32(value).to_le_bytes().to_vec(),
        };
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let largest = if dtype == DType::F16 { 65_504.0 } else { 3.0e38 };
            let plain = one(dtype, largest).repeat(rows * width);
            weight(dtype, &shape, plain.clone()).expect_finite().unwrap();
            let bytes = dtype.bytes() as usize;
            for (row, column, value) in
                [(0, 0, f32::NAN), (2999, 700, f32::INFINITY), (1500, 3, f32::NEG_INFINITY)]
            {
                let mut broken = plain.clone();
                // A later value must not be reported.
                for at in [row * width + column, rows * width - 1] {
                    broken[at * bytes..][..bytes].copy_from_slice(&one(dtype, value));
                }
                let error = weight(dtype, &shape, broken).expect_finite().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid);
                let place = format!("weight `w`: row {row}, column {column}");
                assert_eq!(error.place(), Some(place.as_str()), "{error}");
                assert_eq!(error.message(), format!("expected a finite value, got {value}"));
                assert!(error.help().is_some());
            }
        }
    }

    #[test]
    fn scales_are_checked_and_a_bound_may_be_infinite() {
        let scales = |last: f32| WeightQuantisation {
            granularity: Granularity::PerChannel,
            scale_dtype: DType::F32,
            scales: WeightData::from_vec([1.0, last].iter().flat_map(|scale| scale.to_le_bytes()).collect()),
            zero_point: 0,
        };
        let integers = |last| Weight {
            quantisation: Some(scales(last)),
            // These bytes would be NaN as floats.
            ..weight(DType::I8, &[2, 4], vec![0xff; 8])
        };
        integers(2.0).expect_finite().unwrap();
        let error = integers(f32::NAN).expect_finite().unwrap_err();
        assert_eq!(error.to_string(), "weight `w`: scale 1: expected a finite scale, got NaN");

        let bound =
            |value: f32| Weight { part: BOUND, ..weight(DType::F32, &[1], value.to_le_bytes().to_vec()) };
        bound(f32::NEG_INFINITY).expect_finite().unwrap();
        assert!(bound(f32::NAN).expect_finite().is_err());
    }
}
