//! Encodings of tensors, written independently of every shim: in f64, with the arithmetic of each
//! type spelled out.

use half::{bf16, f16};
use shardwright_shim_abi::raw::*;

/// How a tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableEncoding {
    /// `SW_DTYPE_…`
    pub dtype: u32,
    /// Scale and zero point, for integers that encode real values.
    pub affine: Option<(f32, i32)>,
}

/// Largest finite f16. Larger results become infinite.
const LARGEST_F16: f64 = 65504.0;

/// Returns the smallest and largest stored integer of a type that has scales. Returns `None` for
/// other types.
pub fn range(dtype: u32) -> Option<(i32, i32)> {
    match dtype {
        SW_DTYPE_U16 => Some((0, 65535)),
        SW_DTYPE_I16 => Some((-32768, 32767)),
        SW_DTYPE_U8 => Some((0, 255)),
        SW_DTYPE_I8 => Some((-128, 127)),
        _ => None,
    }
}

/// Returns the bits of a stored type.
pub const fn bits_of(dtype: u32) -> u32 {
    match dtype {
        SW_DTYPE_I2 => 2,
        SW_DTYPE_I4 => 4,
        SW_DTYPE_I8 | SW_DTYPE_U8 => 8,
        SW_DTYPE_F32 | SW_DTYPE_I32 => 32,
        SW_DTYPE_I64 => 64,
        _ => 16,
    }
}

impl TableEncoding {
    /// Unencoded values.
    pub const F32: TableEncoding = TableEncoding::plain(SW_DTYPE_F32);
    pub const F16: TableEncoding = TableEncoding::plain(SW_DTYPE_F16);
    /// The upper half of an f32.
    pub const BF16: TableEncoding = TableEncoding::plain(SW_DTYPE_BF16);
    /// Indices: integers that do not encode real values.
    pub const I32: TableEncoding = TableEncoding::plain(SW_DTYPE_I32);

    /// Creates an encoding without a scale.
    pub const fn plain(dtype: u32) -> TableEncoding {
        TableEncoding { dtype, affine: None }
    }

    /// Creates an encoding of integers with a scale and zero point.
    pub const fn integers(dtype: u32, scale: f32, zero_point: i32) -> TableEncoding {
        TableEncoding { dtype, affine: Some((scale, zero_point)) }
    }

    /// Creates an encoding that covers zero and the values from `low` to `high`, as calibration
    /// chooses it: symmetric for signed types, plain for floats.
    pub fn over(dtype: u32, low: f64, high: f64) -> TableEncoding {
        let Some((least, most)) = range(dtype) else { return TableEncoding::plain(dtype) };
        let (low, high) = (low.min(0.0), high.max(0.0));
        if least == 0 {
            let scale = ((high - low).max(1e-6) / f64::from(most)) as f32;
            return TableEncoding::integers(dtype, scale, (-low / f64::from(scale)).round() as i32);
        }
        TableEncoding::integers(dtype, (low.abs().max(high).max(1e-6) / f64::from(most)) as f32, 0)
    }

    /// Creates an encoding of unsigned integers over ±`reach`, with zero in the middle.
    pub const fn centred(dtype: u32, reach: f32) -> TableEncoding {
        let middle = 1 << (bits_of(dtype) - 1);
        TableEncoding::integers(dtype, reach / middle as f32, middle)
    }

    /// Returns the stored integer for a value.
    fn raw(self, value: f64) -> i32 {
        let (low, high) = range(self.dtype).unwrap_or_else(|| panic!("type {} is not scaled", self.dtype));
        let (scale, zero_point) = self.affine.expect("integers that stand for values");
        let steps = f64::from((value as f32 / scale).round_ties_even());
        (steps + f64::from(zero_point)).clamp(low.into(), high.into()) as i32
    }

    fn value(self, raw: i32) -> f64 {
        let (scale, zero_point) = self.affine.unwrap_or((1.0, 0));
        f64::from((raw - zero_point) as f32 * scale)
    }

    /// Returns a value after encoding and decoding.
    pub fn hold(self, value: f64) -> f64 {
        match self.dtype {
            SW_DTYPE_F32 => f64::from(value as f32),
            SW_DTYPE_F16 => match rounded(f64::from(value as f32), 10, -14) {
                over if over.abs() > LARGEST_F16 => f64::INFINITY.copysign(over),
                within => within,
            },
            SW_DTYPE_BF16 => rounded(f64::from(value as f32), 7, -126),
            _ => self.value(self.raw(value)),
        }
    }

    /// Returns the distance between neighbouring representable values near `value`, or 0 for f32.
    pub fn step(self, value: f64) -> f64 {
        let relative = |fraction: i32, least: f64| value.abs().max(least) * 2f64.powi(-fraction);
        match self.dtype {
            SW_DTYPE_F16 => relative(10, 2f64.powi(-14)),
            SW_DTYPE_BF16 => relative(7, 2f64.powi(-126)),
            _ => self.affine.map_or(0.0, |(scale, _)| f64::from(scale)),
        }
    }

    /// Encodes values to stored bytes like the host, so finite values saturate in f16.
    pub fn encode(self, values: &[f64]) -> Vec<u8> {
        let each = values.iter().copied();
        let within = |value: f64| match value.is_finite() {
            true => value.clamp(-LARGEST_F16, LARGEST_F16),
            false => value,
        };
        match self.dtype {
            SW_DTYPE_F32 => each.flat_map(|value| (value as f32).to_le_bytes()).collect(),
            SW_DTYPE_F16 => {
                each.flat_map(|value| f16::from_f64(self.hold(within(value))).to_le_bytes()).collect()
            }
            SW_DTYPE_BF16 => each.flat_map(|value| bf16::from_f64(self.hold(value)).to_le_bytes()).collect(),
            SW_DTYPE_I32 => each.flat_map(|value| (value as i32).to_le_bytes()).collect(),
            SW_DTYPE_U16 | SW_DTYPE_I16 => {
                each.flat_map(|value| (self.raw(value) as u16).to_le_bytes()).collect()
            }
            SW_DTYPE_U8 | SW_DTYPE_I8 => each.map(|value| self.raw(value) as u8).collect(),
            other => panic!("a value of type {other}"),
        }
    }

    /// Like [`TableEncoding::encode`], but for f32 values.
    pub fn encode_f32(self, values: &[f32]) -> Vec<u8> {
        self.encode(&values.iter().map(|value| f64::from(*value)).collect::<Vec<f64>>())
    }

    /// Decodes stored bytes to values rounded to f32.
    pub fn decode_f32(self, bytes: &[u8]) -> Vec<f32> {
        self.decode(bytes).into_iter().map(|value| value as f32).collect()
    }

    /// Decodes stored bytes to values.
    pub fn decode(self, bytes: &[u8]) -> Vec<f64> {
        let pairs = || bytes.as_chunks::<2>().0.iter().copied();
        let quads = || bytes.as_chunks::<4>().0.iter().copied();
        match self.dtype {
            SW_DTYPE_F32 => quads().map(|four| f32::from_le_bytes(four).into()).collect(),
            SW_DTYPE_I32 => quads().map(|four| i32::from_le_bytes(four).into()).collect(),
            SW_DTYPE_F16 => pairs().map(|two| f16::from_le_bytes(two).to_f64()).collect(),
            SW_DTYPE_BF16 => pairs().map(|two| bf16::from_le_bytes(two).to_f64()).collect(),
            SW_DTYPE_I16 => pairs().map(|two| self.value(i16::from_le_bytes(two).into())).collect(),
            SW_DTYPE_U16 => pairs().map(|two| self.value(u16::from_le_bytes(two).into())).collect(),
            SW_DTYPE_I8 => bytes.iter().map(|byte| self.value((*byte as i8).into())).collect(),
            SW_DTYPE_U8 => bytes.iter().map(|byte| self.value((*byte).into())).collect(),
            other => panic!("a value of type {other}"),
        }
    }
}

/// Rounds to `fraction` bits after the leading one, ties to even. The exponent is at least `least`,
/// so smaller values become subnormal.
fn rounded(value: f64, fraction: i32, least: i32) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let exponent = value.abs().log2().floor() as i32;
    // The logarithm of a value just below a power of two may round up to that power.
    let exponent = if 2f64.powi(exponent) > value.abs() { exponent - 1 } else { exponent };
    let step = 2f64.powi(exponent.max(least) - fraction);
    (value / step).round_ties_even() * step
}
