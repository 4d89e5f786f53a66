//! Storage formats of values in memory, and conversions between them.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use shardwright_shims::Port;
use shardwright_vocabulary::{DType, Encoding, ScaleBits};

/// Type of the stored elements, with their scale and zero point: value = (stored − zero point) ·
/// scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Storage {
    /// Type of the stored elements.
    pub dtype: DType,
    /// Scale, a power of two for floats and one for indices.
    pub scale: ScaleBits,
    /// Zero point, zero for floats and indices.
    pub zero_point: i32,
}

impl Storage {
    /// Creates a storage without scale and zero point.
    pub const fn plain(dtype: DType) -> Self {
        Storage { dtype, scale: ScaleBits::ONE, zero_point: 0 }
    }

    /// Plain 32-bit float.
    pub const F32: Storage = Storage::plain(DType::F32);

    /// Checks whether the storage contains real numbers. All such storages convert to each other.
    pub const fn is_numeric(&self) -> bool {
        !matches!(self.dtype, DType::I32 | DType::I64 | DType::I4 | DType::I2)
    }

    /// Checks whether scale and zero point fit the type.
    pub fn is_consistent(&self) -> bool {
        let range = match self.dtype {
            DType::I8 => -128..=127,
            DType::U8 => 0..=255,
            DType::I16 => -32768..=32767,
            DType::U16 => 0..=65535,
            dtype if dtype.is_float() => return self.scale.is_power_of_two() && self.zero_point == 0,
            _ => return *self == Storage::plain(self.dtype),
        };
        range.contains(&self.zero_point)
    }

    /// Sets every element to the representation of zero. `bytes` must contain whole elements.
    pub(crate) fn fill_zero(&self, bytes: &mut [u8]) {
        let zero = self.zero_point.to_le_bytes();
        match self.dtype.bytes() as usize {
            _ if self.zero_point == 0 => bytes.fill(0),
            1 => bytes.fill(zero[0]),
            // The other types with a zero point have two bytes.
            size => bytes.chunks_exact_mut(size).for_each(|element| element.copy_from_slice(&zero[..size])),
        }
    }
}

impl From<Encoding> for Storage {
    fn from(encoding: Encoding) -> Self {
        Storage { dtype: encoding.element, scale: encoding.scale, zero_point: encoding.zero_point }
    }
}

/// Returns the storage of a port: its type, and its encoding for integers.
pub(crate) fn storage_of(port: &Port) -> Storage {
    port.values().map_or(Storage::plain(port.dtype), Storage::from)
}

/// Checks whether type and encoding of a port are consistent and can represent values.
pub(crate) fn is_storable(port: &Port) -> bool {
    let storage = storage_of(port);
    // Integers without an encoding do not represent values.
    storage.dtype == port.dtype
        && port.unit.is_none_or(ScaleBits::is_power_of_two)
        && storage.is_numeric()
        && storage.is_consistent()
        && (port.encoding.is_some() || port.dtype.is_float())
}

/// Returns the number of elements of a port, saturating.
pub(crate) fn elements_of(port: &Port) -> u64 {
    port.shape.iter().fold(1, |product, &extent| product.saturating_mul(extent))
}

/// Returns the size of a port in bytes, saturating.
pub(crate) fn bytes_of(port: &Port) -> u64 {
    elements_of(port).saturating_mul(storage_of(port).dtype.bytes())
}

impl std::fmt::Display for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == Storage::plain(self.dtype) {
            write!(f, "{}", self.dtype)
        } else {
            write!(f, "{}(scale {}, zero {})", self.dtype, self.scale.get(), self.zero_point)
        }
    }
}

/// Number of values converted at a time: small enough for the cache, large enough to keep the loops
/// long.
const BLOCK: usize = 256;

/// Converts elements. Both slices must have the same number of elements. Equal storage is copied
/// unchanged.
///
/// Integers are rounded to even and clamped to their range.
pub(crate) fn convert(from: Storage, source: &[u8], to: Storage, target: &mut [u8]) {
    if from == to {
        target.copy_from_slice(source);
        return;
    }
    let (from_size, to_size) = (from.dtype.bytes() as usize, to.dtype.bytes() as usize);
    let mut values = [0.0_f32; BLOCK];
    for (source, target) in source.chunks(BLOCK * from_size).zip(target.chunks_mut(BLOCK * to_size)) {
        let values = &mut values[..source.len() / from_size];
        widen(from, source, values);
        narrow(to, values, target);
    }
}

/// Converts stored elements to f32. Indices are ignored.
pub(crate) fn widen(from: Storage, source: &[u8], values: &mut [f32]) {
    let (scale, zero) = (from.scale.get(), i64::from(from.zero_point));
    let real = |raw: i64| (raw - zero) as f32 * scale;
    match from.dtype {
        DType::F32 => each(source, values, |bytes| f32::from_le_bytes(bytes) * scale),
        DType::F16 => each(source, values, |bytes| f16::from_le_bytes(bytes).to_f32() * scale),
        DType::Bf16 => each(source, values, |bytes| bf16::from_le_bytes(bytes).to_f32() * scale),
        DType::I16 => each(source, values, |bytes| real(i16::from_le_bytes(bytes).into())),
        DType::U16 => each(source, values, |bytes| real(u16::from_le_bytes(bytes).into())),
        DType::I8 => each(source, values, |bytes| real(i8::from_le_bytes(bytes).into())),
        DType::U8 => each(source, values, |bytes: [u8; 1]| real(bytes[0].into())),
        DType::I32 | DType::I64 | DType::I4 | DType::I2 => {}
    }
}

/// Converts f32 to stored elements. Indices are ignored.
pub(crate) fn narrow(to: Storage, values: &[f32], target: &mut [u8]) {
    let (scale, zero) = (to.scale.get(), to.zero_point as f32);
    let raw = |value: f32, low: f32, high: f32| ((value / scale).round_ties_even() + zero).clamp(low, high);
    match to.dtype {
        DType::F32 => put(values, target, |value| (value / scale).to_le_bytes()),
        // Finite values saturate as the graph defines it (`nearest_bound_value`), because an
        // infinity would turn masked scores into NaN.
        DType::F16 => put(values, target, |value| {
            let within = (value / scale).clamp(f16::MIN.to_f32(), f16::MAX.to_f32());
            f16::from_f32(if value.is_infinite() { value } else { within }).to_le_bytes()
        }),
        DType::Bf16 => put(values, target, |value| bf16::from_f32(value / scale).to_le_bytes()),
        DType::I16 => put(values, target, |value| (raw(value, -32768.0, 32767.0) as i16).to_le_bytes()),
        DType::U16 => put(values, target, |value| (raw(value, 0.0, 65535.0) as u16).to_le_bytes()),
        DType::I8 => put(values, target, |value| (raw(value, -128.0, 127.0) as i8).to_le_bytes()),
        DType::U8 => put(values, target, |value| [raw(value, 0.0, 255.0) as u8]),
        DType::I32 | DType::I64 | DType::I4 | DType::I2 => {}
    }
}

fn each<const N: usize>(source: &[u8], values: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    let (elements, _) = source.as_chunks::<N>();
    for (element, value) in elements.iter().zip(values) {
        *value = read(*element);
    }
}

fn put<const N: usize>(values: &[f32], target: &mut [u8], write: impl Fn(f32) -> [u8; N]) {
    let (elements, _) = target.as_chunks_mut::<N>();
    for (element, value) in elements.iter_mut().zip(values) {
        *element = write(*value);
    }
}

#[cfg(test)]
mod tests {
    use shardwright_graph::nearest_bound_value;

    use super::*;

    fn affine(dtype: DType, scale: f32, zero_point: i32) -> Storage {
        Storage { dtype, scale: ScaleBits::new(scale).unwrap(), zero_point }
    }

    fn stored(storage: Storage, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; values.len() * storage.dtype.bytes() as usize];
        narrow(storage, values, &mut bytes);
        bytes
    }

    #[test]
    fn every_pair_of_the_list_agrees_on_values_both_can_hold() {
        let storages = [
            Storage::F32,
            Storage::plain(DType::F16),
            Storage::plain(DType::Bf16),
            affine(DType::I16, 0.5, 3),
            affine(DType::U16, 0.5, 1000),
            affine(DType::I8, 0.5, -7),
            affine(DType::U8, 0.5, 128),
        ];
        let values: Vec<f32> = (0..1000).map(|index| (index % 100 - 50) as f32 * 0.5).collect();
        for from in storages {
            for to in storages {
                assert!(from.is_numeric() && from.is_consistent());
                let mut bytes = vec![0; values.len() * to.dtype.bytes() as usize];
                convert(from, &stored(from, &values), to, &mut bytes);
                let mut back = vec![f32::NAN; values.len()];
                widen(to, &bytes, &mut back);
                assert_eq!(back, values, "{from} to {to}");
            }
        }
    }

    #[test]
    fn integers_round_to_even_and_clamp() {
        let storage = affine(DType::I8, 1.0, 0);
        let bytes = stored(storage, &[0.5, 1.5, 2.5, -0.5, 1e9, -1e9, f32::NAN]);
        assert_eq!(bytes, [0, 2, 2, 0, 127, 128, 0]);
    }

    /// The graph defines encodings. This module implements them again for slices.
    #[test]
    fn conversions_are_those_of_the_graph() {
        let mut encodings = vec![Encoding::F32, Encoding::F16, Encoding::of(DType::Bf16, None).unwrap()];
        for bits in [8, 16] {
            for (low, high) in [(-3.0, 5.0), (-1e-3, 70.0), (0.0, 1.0), (-40.0, 0.0)] {
                encodings.push(Encoding::affine_over(low, high, bits));
                encodings.push(Encoding::symmetric_over(low, high, bits));
            }
        }
        let special = [
            0.0,
            -0.0,
            1e-40,
            70_000.0,
            -70_000.0,
            1e30,
            shardwright_graph::INVISIBLE,
            f32::INFINITY,
            f32::NAN,
        ];
        let values: Vec<f32> =
            (0..2000).map(|index| (index as f32 * 0.7).sin() * 6.0).chain(special).collect();
        for encoding in encodings {
            let storage = Storage::from(encoding);
            let bytes = stored(storage, &values);
            let mut back = vec![0.0; values.len()];
            widen(storage, &bytes, &mut back);
            for (value, back) in values.iter().zip(&back) {
                let expected = nearest_bound_value(&encoding, *value);
                assert!(
                    expected == *back || expected.is_nan() && back.is_nan(),
                    "{value} in {encoding}: {back}"
                );
                assert!(back.is_finite() || !value.is_finite());
            }
            // A stored value converts to itself.
            let mut again = vec![0; bytes.len()];
            narrow(storage, &back, &mut again);
            let numbers = (values.len() - 1) * storage.dtype.bytes() as usize;
            assert_eq!(again[..numbers], bytes[..numbers], "{encoding}");
        }
    }

    #[test]
    fn zero_is_the_zero_point() {
        for storage in [
            Storage::F32,
            Storage::plain(DType::Bf16),
            affine(DType::I16, 0.5, -3),
            affine(DType::U16, 0.5, 40_000),
            affine(DType::I8, 0.5, -7),
            affine(DType::U8, 0.5, 200),
        ] {
            let mut bytes = vec![0xaa; 6 * storage.dtype.bytes() as usize];
            storage.fill_zero(&mut bytes);
            assert_eq!(bytes, stored(storage, &[0.0; 6]), "{storage}");
        }
    }

    #[test]
    fn equal_storage_keeps_every_bit() {
        let odd = f32::from_bits(0x7fc1_2345);
        let mut copy = [0; 4];
        convert(Storage::F32, &odd.to_le_bytes(), Storage::F32, &mut copy);
        assert_eq!(copy, odd.to_le_bytes());
    }

    #[test]
    fn indices_are_no_numbers_and_zero_points_lie_in_range() {
        assert!(!Storage::plain(DType::I32).is_numeric() && !Storage::plain(DType::I64).is_numeric());
        // The unit of floats must be a power of two.
        assert!(affine(DType::F16, 0.5, 0).is_consistent() && !affine(DType::F16, 0.3, 0).is_consistent());
        assert!(!affine(DType::F16, 0.5, 1).is_consistent());
        for (dtype, low, high) in
            [(DType::I8, -128, 127), (DType::U8, 0, 255), (DType::I16, -32768, 32767), (DType::U16, 0, 65535)]
        {
            for (zero, fits) in [(low - 1, false), (low, true), (high, true), (high + 1, false)] {
                assert_eq!(affine(dtype, 0.5, zero).is_consistent(), fits, "{dtype} {zero}");
            }
        }
    }

    #[test]
    fn storages_name_themselves() {
        assert_eq!(Storage::F32.to_string(), "f32");
        assert_eq!(affine(DType::U8, 0.5, 128).to_string(), "u8(scale 0.5, zero 128)");
        assert_eq!(Storage::from(Encoding::F16), Storage::plain(DType::F16));
    }
}
