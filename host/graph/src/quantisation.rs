//! Defines the meaning of stored integers, and decodes them exactly. Activations are affine, with
//! one scale per tensor. Weights are usually symmetric, with scales per tensor, per output channel
//! or per block.

use std::ops::Range;

use half::{bf16, f16};
use shardwright_vocabulary::{DType, Encoding, Error, Granularity, Quantisation, Result, WeightFormat};

use crate::{Weight, WeightData};

/// Returns the result of an operation whose exact result is `value`, in the encoding of its tensor:
/// the nearest value. Integers saturate. Floats are rounded as in IEEE 754, so results beyond the
/// range of `f16` become infinite, as on chips.
pub fn nearest_value(encoding: &Encoding, value: f32) -> f32 {
    let unit = encoding.scale.get();
    match encoding.element {
        DType::F32 => value,
        DType::F16 => f16::from_f32(value / unit).to_f32() * unit,
        DType::Bf16 => bf16::from_f32(value / unit).to_f32() * unit,
        _ => encoding.value(encoding.raw(value)),
    }
}

/// Returns the value that the host stores for `value` in this encoding when it binds a tensor. Like
/// [`nearest_value`], but `f16` saturates at the ends of its range, because an infinity in a mask
/// would turn scores into NaN. Infinite values stay infinite.
pub fn nearest_bound_value(encoding: &Encoding, value: f32) -> f32 {
    let largest = f16::MAX.to_f32() * encoding.scale.get();
    match encoding.element {
        DType::F16 if value.is_finite() => nearest_value(encoding, value.clamp(-largest, largest)),
        _ => nearest_value(encoding, value),
    }
}

/// Representation of a weight's values by its stored integers.
///
/// Our own quantiser does not use zero points (W8 −127..=127, W4 −8..=7, W2 −2..=1). Constants
/// encoded like activations (`U16`, per tensor) have one. Readers accept the whole range of the
/// type.
pub type WeightQuantisation = Quantisation<WeightData>;

/// Returns the error for a weight whose stored bytes this machine cannot address.
pub fn too_large(weight: &str, shape: &[u64]) -> Error {
    Error::invalid(format!("{shape:?} is too large to be stored")).at(format!("weight `{weight}`"))
}

impl Weight {
    /// Returns the format in which this weight is stored, if it is in the list of formats.
    pub fn format(&self) -> Option<WeightFormat> {
        let layout = self.quantisation.as_ref().map(|layout| (layout.granularity, layout.scale_dtype));
        WeightFormat::ALL.iter().copied().find(|format| format.layout() == Some((self.dtype, layout)))
    }

    /// Returns whether the weight is already stored in that format, so that it loses no quality.
    pub fn is_in(&self, format: WeightFormat) -> bool {
        format == WeightFormat::AsStored || self.format() == Some(format)
    }

    /// Returns this weight in another format, counted but not quantised. Its data are
    /// [`WeightData::planned`]. [`WeightFormat::AsStored`] returns it unchanged.
    pub fn planned(&self, format: WeightFormat) -> Result<Weight> {
        let too_large = || too_large(&self.name, &self.shape);
        let planned = |bytes: Option<u64>| {
            bytes.and_then(|bytes| usize::try_from(bytes).ok()).map(WeightData::planned).ok_or_else(too_large)
        };
        let Some((dtype, scales)) = format.layout() else { return Ok(self.clone()) };
        let quantisation = match scales {
            None => None,
            Some((granularity, scale_dtype)) => {
                let quantisation = Quantisation { granularity, scale_dtype, scales: (), zero_point: 0 };
                Some(quantisation.with(planned(quantisation.scale_bytes(&self.shape))?))
            }
        };
        Ok(Weight {
            name: self.name.clone(),
            part: self.part,
            shape: self.shape.clone(),
            dtype,
            data: planned(dtype.packed_bytes(&self.shape))?,
            quantisation,
        })
    }

    /// Returns this weight encoded like an activation, counted but not quantised. Its zero point is
    /// set during quantisation.
    pub fn planned_constant(&self) -> Result<Weight> {
        let (granularity, scale_dtype) = (Granularity::PerTensor, DType::F32);
        let scales = WeightData::planned(4);
        Ok(Weight {
            dtype: DType::U16,
            quantisation: Some(Quantisation { granularity, scale_dtype, scales, zero_point: 0 }),
            ..self.planned(WeightFormat::F16)?
        })
    }

    /// Returns the number of values in one row.
    pub fn row_width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1) as usize
    }

    /// Returns the number of rows, which is the product of all axes except the last.
    pub fn rows(&self) -> usize {
        let outer = &self.shape[..self.shape.len().saturating_sub(1)];
        outer.iter().product::<u64>() as usize
    }

    /// Decodes the values of one row (one line of the last axis) exactly. This defines the meaning
    /// of a stored weight.
    ///
    /// `into` must have [`Weight::row_width`] elements. If bytes are missing (planned data, a short
    /// file), it does not change, and the result is `false`.
    pub fn decode_row(&self, row: usize, into: &mut [f32]) -> bool {
        self.line(row).is_some_and(|line| self.decode(line, &|index| self.scaling(row, index), into))
    }

    /// Like [`decode_row`](Self::decode_row), but for a table that stays out of memory. `buffer`
    /// receives the stored row and its scales, which are read if the file is mapped.
    pub fn read_row(&self, row: usize, buffer: &mut Vec<u8>, into: &mut [f32]) -> bool {
        let Some(line) = self.line_range(row) else { return false };
        let (count, width) = (line.len(), self.row_width());
        let Some(quantisation) = &self.quantisation else {
            buffer.resize(count, 0);
            return self.data.copy(line.start, buffer) && self.decode(buffer, &|_| None, into);
        };
        let first = self.scale_place(quantisation, row, 0);
        let to_minimum = self.to_minimum(quantisation);
        let last = self.scale_place(quantisation, row, width.saturating_sub(1)) + to_minimum.unwrap_or(0);
        let bytes = quantisation.scale_dtype.bytes() as usize;
        let Some(start) = first.checked_mul(bytes) else { return false };
        buffer.resize(count + (last - first + 1) * bytes, 0);
        let (stored, scales) = buffer.split_at_mut(count);
        self.data.copy(line.start, stored)
            && quantisation.scales.copy(start, scales)
            && self.decode(
                stored,
                &|index| {
                    let place = self.scale_place(quantisation, row, index) - first;
                    scaling_of(quantisation.scale_dtype, scales, place, to_minimum)
                },
                into,
            )
    }

    fn decode(&self, line: &[u8], scaling: &dyn Fn(usize) -> Option<Scaling>, into: &mut [f32]) -> bool {
        match self.dtype {
            DType::F32 => fill(into, line.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
            DType::F16 => fill(into, line.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32())),
            // The bits are the upper half of an f32.
            DType::Bf16 => {
                let widen = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                fill(into, line.as_chunks::<2>().0.iter().map(widen));
            }
            _ => {
                let Some(quantisation) = &self.quantisation else { return false };
                let zero = i64::from(quantisation.zero_point);
                let mut stored = RawValues::new(self.dtype, line);
                let span = match quantisation.granularity {
                    Granularity::PerBlock { size, .. } => size.max(1) as usize,
                    Granularity::PerChannel if self.shape.len() == 1 => 1,
                    Granularity::PerChannel | Granularity::PerTensor => self.row_width().max(1),
                };
                for (block, into) in into.chunks_mut(span).enumerate() {
                    let Some(Scaling { scale, minimum }) = scaling(block * span) else { return false };
                    for (into, stored) in into.iter_mut().zip(&mut stored) {
                        *into = (i64::from(stored) - zero) as f32 * scale - minimum;
                    }
                }
            }
        }
        true
    }

    /// Returns the stored integers of one row, or `None` for floats or missing bytes.
    pub fn raw_row(&self, row: usize) -> Option<impl Iterator<Item = i32> + '_> {
        self.quantisation.as_ref()?;
        Some(RawValues::new(self.dtype, self.line(row)?).take(self.row_width()))
    }

    /// Returns the scale of a value by row and index within the row, or `None` for floats or
    /// missing bytes.
    pub fn scale(&self, row: usize, index: usize) -> Option<f32> {
        let quantisation = self.quantisation.as_ref()?;
        scale_of(
            quantisation.scale_dtype,
            quantisation.scales.bytes(),
            self.scale_place(quantisation, row, index),
        )
    }

    /// Returns scale and minimum of a value by row and index within the row.
    fn scaling(&self, row: usize, index: usize) -> Option<Scaling> {
        let quantisation = self.quantisation.as_ref()?;
        scaling_of(
            quantisation.scale_dtype,
            quantisation.scales.bytes(),
            self.scale_place(quantisation, row, index),
            self.to_minimum(quantisation),
        )
    }

    /// Returns how many numbers after its scale the minimum of a block is stored, or `None` without
    /// minimums.
    fn to_minimum(&self, quantisation: &WeightQuantisation) -> Option<usize> {
        match quantisation.granularity {
            Granularity::PerBlock { size, minimum: true } => {
                Some(self.row_width().div_ceil(size.max(1) as usize))
            }
            _ => None,
        }
    }

    /// Returns the index of a value's scale.
    fn scale_place(&self, quantisation: &WeightQuantisation, row: usize, index: usize) -> usize {
        match quantisation.granularity {
            Granularity::PerTensor => 0,
            // The channels are along the first axis: each row of a matrix is a channel.
            Granularity::PerChannel if self.shape.len() == 1 => index,
            Granularity::PerChannel => {
                row / (self.rows() / self.shape.first().map_or(1, |&n| n as usize)).max(1)
            }
            Granularity::PerBlock { size, minimum } => {
                let size = size.max(1) as usize;
                let numbers = self.row_width().div_ceil(size) * if minimum { 2 } else { 1 };
                row * numbers + index / size
            }
        }
    }

    fn line(&self, row: usize) -> Option<&[u8]> {
        self.data.bytes().get(self.line_range(row)?)
    }

    fn line_range(&self, row: usize) -> Option<Range<usize>> {
        let bytes = (self.row_width() as u64 * self.dtype.bits()).div_ceil(8) as usize;
        let start = row.checked_mul(bytes)?;
        Some(start..start.checked_add(bytes)?)
    }
}

/// Conversion of a block's stored integers to values: value = (stored − zero point) · scale −
/// minimum. Source of minimums: the types `Q4_1` and `Q4_K` of ggml.
struct Scaling {
    scale: f32,
    /// 0 without a minimum, which does not change values.
    minimum: f32,
}

/// Returns the scale with index `at` of the stored numbers, and the minimum that follows it.
fn scaling_of(dtype: DType, bytes: &[u8], at: usize, to_minimum: Option<usize>) -> Option<Scaling> {
    let minimum = to_minimum.map_or(Some(0.0), |distance| scale_of(dtype, bytes, at + distance))?;
    Some(Scaling { scale: scale_of(dtype, bytes, at)?, minimum })
}

/// Returns the scale with index `at`.
fn scale_of(dtype: DType, bytes: &[u8], at: usize) -> Option<f32> {
    match dtype {
        DType::F16 => bytes.as_chunks::<2>().0.get(at).map(|b| f16::from_le_bytes(*b).to_f32()),
        _ => bytes.as_chunks::<4>().0.get(at).map(|b| f32::from_le_bytes(*b)),
    }
}

fn fill(into: &mut [f32], values: impl Iterator<Item = f32>) {
    into.iter_mut().zip(values).for_each(|(into, value)| *into = value);
}

/// Iterator over the stored integers of a line, low bits first. They are sign-extended, except `U8`
/// and `U16`.
struct RawValues<'a> {
    dtype: DType,
    line: &'a [u8],
    next: usize,
}

impl<'a> RawValues<'a> {
    fn new(dtype: DType, line: &'a [u8]) -> Self {
        RawValues { dtype, line, next: 0 }
    }
}

impl Iterator for RawValues<'_> {
    type Item = i32;

    fn next(&mut self) -> Option<i32> {
        let at = self.next;
        self.next += 1;
        let pair = |at: usize| Some([*self.line.get(2 * at)?, *self.line.get(2 * at + 1)?]);
        Some(match self.dtype {
            DType::I8 => i32::from(*self.line.get(at)? as i8),
            DType::U8 => i32::from(*self.line.get(at)?),
            DType::I16 => i32::from(i16::from_le_bytes(pair(at)?)),
            DType::U16 => i32::from(u16::from_le_bytes(pair(at)?)),
            // Shifting up and back down extends the sign.
            DType::I4 => i32::from((*self.line.get(at / 2)? << (4 - 4 * (at % 2))) as i8 >> 4),
            DType::I2 => i32::from((*self.line.get(at / 4)? << (6 - 2 * (at % 4))) as i8 >> 6),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::{Affine, ErrorKind, ScaleBits, scale_count};

    use super::*;

    fn weight(
        dtype: DType,
        shape: &[u64],
        data: Vec<u8>,
        quantisation: Option<WeightQuantisation>,
    ) -> Weight {
        Weight {
            name: "w".to_owned(),
            part: "q",
            shape: shape.to_vec(),
            dtype,
            data: WeightData::from_vec(data),
            quantisation,
        }
    }

    fn scales(
        granularity: Granularity,
        scale_dtype: DType,
        values: &[f32],
        zero_point: i32,
    ) -> Option<WeightQuantisation> {
        let bytes = values.iter().flat_map(|&value| match scale_dtype {
            DType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        });
        let scales = WeightData::from_vec(bytes.collect());
        Some(WeightQuantisation { granularity, scale_dtype, scales, zero_point })
    }

    fn rows(weight: &Weight) -> Vec<Vec<f32>> {
        let mut rows = vec![vec![f32::NAN; weight.row_width()]; weight.rows()];
        let mut buffer = Vec::new();
        for (index, row) in rows.iter_mut().enumerate() {
            assert!(weight.decode_row(index, row));
            let mut read = vec![f32::NAN; row.len()];
            assert!(weight.read_row(index, &mut buffer, &mut read));
            assert_eq!(read, *row);
        }
        rows
    }

    #[test]
    fn packed_rows_are_low_bits_first_and_padded_to_a_byte() {
        // 1, −2, 7 and −8, 0, −1, each row in two bytes.
        let quantisation = scales(Granularity::PerChannel, DType::F32, &[0.5, 2.0], 0);
        let four = weight(DType::I4, &[2, 3], vec![0xe1, 0x07, 0x08, 0x0f], quantisation);
        assert_eq!(rows(&four), [[0.5, -1.0, 3.5], [-16.0, 0.0, -2.0]]);
        assert_eq!(four.raw_row(1).unwrap().collect::<Vec<_>>(), [-8, 0, -1]);
        assert_eq!(DType::I4.packed_bytes(&[2, 3]), Some(4));
        // 0, 1, −2, −1 and 1.
        let quantisation = scales(Granularity::PerTensor, DType::F32, &[3.0], 0);
        let two = weight(DType::I2, &[1, 5], vec![0b1110_0100, 0b01], quantisation);
        assert_eq!(rows(&two), [[0.0, 3.0, -6.0, -3.0, 3.0]]);
        assert_eq!(DType::I2.packed_bytes(&[3, 5]), Some(6));
        assert_eq!(DType::I2.packed_bytes(&[u64::MAX, 5]), None);
    }

    #[test]
    fn blocks_end_at_the_end_of_a_row() {
        let quantisation = scales(Granularity::blocks(2), DType::F16, &[1.0, 10.0, 100.0, 1000.0], 0);
        let weight = weight(DType::I8, &[2, 3], vec![1, 2, 3, 0xff, 5, 6], quantisation);
        assert_eq!(rows(&weight), [[1.0, 2.0, 30.0], [-100.0, 500.0, 6000.0]]);
        assert_eq!(scale_count(Granularity::blocks(2), &[2, 3]), Some(4));
        assert_eq!(scale_count(Granularity::blocks(0), &[2, 3]), None);
    }

    #[test]
    fn minimums_follow_the_scales_of_their_row() {
        let granularity = Granularity::PerBlock { size: 2, minimum: true };
        let numbers = [1.0, 10.0, 0.5, 0.25, 100.0, 1000.0, -3.0, 0.0];
        let quantisation = scales(granularity, DType::F16, &numbers, -8);
        let weight = weight(DType::I4, &[2, 3], vec![0x98, 0x0a, 0xfe, 0x07], quantisation);
        // The stored integers plus eight are 0, 1, 2 and 6, 7, 15.
        assert_eq!(rows(&weight), [[-0.5, 0.5, 19.75], [603.0, 703.0, 15000.0]]);
        assert_eq!((scale_count(granularity, &[2, 3]), weight.format()), (Some(8), None));
    }

    #[test]
    fn constants_like_activations_have_a_zero_point() {
        let quantisation = scales(Granularity::PerTensor, DType::F32, &[0.25], 4);
        let weight = weight(DType::U16, &[3], vec![4, 0, 0, 0, 0xff, 0xff], quantisation);
        assert_eq!(rows(&weight), [[0.0, -1.0, (65535.0 - 4.0) * 0.25]]);
    }

    #[test]
    fn missing_bytes_are_no_values() {
        let planned =
            weight(DType::F32, &[2, 3], vec![0; 24], None).planned(WeightFormat::W4Block32).unwrap();
        assert_eq!(planned.bytes(), 4 + 2 * 2);
        assert!(!planned.data.is_present() && planned.data.bytes().is_empty());
        assert!(!planned.decode_row(0, &mut [0.0; 3]) && planned.scale(0, 0).is_none());
        assert!(!planned.read_row(0, &mut Vec::new(), &mut [0.0; 3]));
        assert!(!weight(DType::F32, &[2, 3], vec![0; 24], None).decode_row(2, &mut [0.0; 3]));
        assert!(weight(DType::I8, &[1, 3], vec![0; 3], None).raw_row(0).is_none());
        let huge = weight(DType::F32, &[1 << 40, 1 << 40], vec![], None).planned(WeightFormat::F16);
        let error = huge.unwrap_err();
        assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, Some("weight `w`")));
        assert!(error.message().contains("too large to be stored"), "{error}");
    }

    #[test]
    fn every_format_is_found_again_by_its_layout() {
        let float = weight(DType::F32, &[4, 64], vec![0; 1024], None);
        for &format in WeightFormat::ALL {
            let planned = float.planned(format).unwrap();
            let is_made = format.layout().is_some();
            assert_eq!(planned.format(), Some(if is_made { format } else { WeightFormat::F32 }));
            assert_eq!(is_made && format.is_quantised(), planned.quantisation.is_some());
        }
    }

    #[test]
    fn encodings_cover_their_range_and_hold_zero_exactly() {
        for (low, high) in [(-3.0, 5.0), (0.5, 2.0), (-2.0, -1.0), (0.0, 0.0), (-1e-35, 1e-35), (-3e38, 3e38)]
        {
            for bits in [8, 16] {
                for encoding in
                    [Encoding::affine_over(low, high, bits), Encoding::symmetric_over(low, high, bits)]
                {
                    assert!(encoding.is_consistent(), "{encoding}");
                    assert_eq!(nearest_value(&encoding, 0.0), 0.0, "{encoding}");
                    let step = encoding.scale.get();
                    for value in [low, high, (low + high) / 2.0] {
                        let error = (f64::from(nearest_value(&encoding, value)) - f64::from(value)).abs();
                        assert!(error <= f64::from(step) * 0.51 + 1e-29, "{value} in {encoding}: {error}");
                    }
                }
            }
        }
        let encoding = Encoding::affine_over(-1.0, 1.0, 8);
        assert_eq!((encoding.raw(f32::NAN), encoding.raw(-9e9), encoding.raw(9e9)), (0, 0, 255));
        assert_eq!(nearest_value(&Encoding::F16, 1.0 / 3.0), f16::from_f32(1.0 / 3.0).to_f32());
    }

    #[test]
    fn results_in_f16_overflow_and_bound_values_saturate() {
        let divided = Encoding { scale: ScaleBits::power_of_two(4), ..Encoding::F16 };
        for (encoding, unit) in [(Encoding::F16, 1.0), (divided, 16.0)] {
            for (value, result, bound) in [
                (65_519.0, 65_504.0, 65_504.0),
                (65_520.0, f32::INFINITY, 65_504.0),
                (-1e30, f32::NEG_INFINITY, -65_504.0),
                (f32::INFINITY, f32::INFINITY, f32::INFINITY),
            ] {
                let (value, result, bound) = (value * unit, result * unit, bound * unit);
                assert_eq!(nearest_value(&encoding, value), result, "{value} in {encoding}");
                assert_eq!(nearest_bound_value(&encoding, value), bound, "{value} in {encoding}");
            }
            assert!(nearest_bound_value(&encoding, f32::NAN).is_nan());
        }
        let bytes = Encoding::affine_over(-1.0, 1.0, 8);
        assert_eq!(nearest_bound_value(&bytes, 9e9), nearest_value(&bytes, 9e9));
    }

    #[test]
    fn a_type_and_its_quantisation_belong_together() {
        let affine = Some(Affine { scale: ScaleBits::ONE, zero_point: 300 });
        assert!(Encoding::of(DType::U16, affine).is_some());
        assert_eq!(Encoding::of(DType::U8, affine), None);
        assert_eq!(Encoding::of(DType::F32, affine), None);
        assert_eq!(Encoding::of(DType::U16, None), None);
        assert_eq!(Encoding::of(DType::I32, None), None);
        let encoding = Encoding::of(DType::U16, affine).unwrap();
        assert_eq!((encoding.element, encoding.affine()), (DType::U16, affine));
        assert_eq!(Encoding::F32.affine(), None);
    }
}
