//! Floats of a mapped tensor.

use std::fmt;

use half::{bf16, f16};
use shardwright_vocabulary::{DType, Error, Result};

use crate::quantised::{Found, Stored};
use crate::weight_file::{StoredTensor, WeightFile};

/// The floats of a tensor in a mapped file.
#[derive(Clone)]
pub(super) struct Values {
    pub shape: Vec<u64>,
    pub dtype: DType,
    stored: Stored,
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.shape, self.dtype)
    }
}

impl Values {
    pub fn new(file: &WeightFile, tensor: &StoredTensor, dtype: DType) -> Result<Self> {
        let stored = Found { file, tensor }.bytes();
        let stored = stored.ok_or_else(|| Error::internal("the values of an adapter are not present"))?;
        Ok(Values { shape: tensor.shape.clone(), dtype, stored })
    }

    /// Returns the first value that is infinite or not a number, and its index.
    pub fn first_not_finite(&self) -> Option<(usize, f32)> {
        let bytes = self.stored.bytes();
        let size = self.dtype.bytes() as usize;
        let mut values = vec![0.0; CHUNK];
        bytes.chunks(CHUNK * size).enumerate().find_map(|(chunk, bytes)| {
            let values = &mut values[..bytes.len() / size];
            decode(self.dtype, bytes, values);
            let index = values.iter().position(|value| !value.is_finite())?;
            Some((chunk * CHUNK + index, values[index]))
        })
    }

    /// Returns all values.
    pub fn all(&self) -> Vec<f32> {
        let bytes = self.stored.bytes();
        let mut values = vec![0.0; bytes.len() / self.dtype.bytes().max(1) as usize];
        decode(self.dtype, bytes, &mut values);
        values
    }

    /// Decodes the values from `first` on.
    pub fn decode_from(&self, first: usize, into: &mut [f32]) {
        let size = self.dtype.bytes() as usize;
        let bytes = self.stored.bytes().get(first * size..(first + into.len()) * size);
        decode(self.dtype, bytes.unwrap_or_default(), into);
    }
}

/// Values that are checked at a time.
const CHUNK: usize = 1 << 14;

/// Decodes little-endian floats.
pub(super) fn decode(dtype: DType, bytes: &[u8], into: &mut [f32]) {
    let pairs = bytes.as_chunks::<2>().0.iter();
    match dtype {
        DType::F16 => {
            into.iter_mut().zip(pairs).for_each(|(value, pair)| *value = f16::from_le_bytes(*pair).to_f32())
        }
        DType::Bf16 => {
            into.iter_mut().zip(pairs).for_each(|(value, pair)| *value = bf16::from_le_bytes(*pair).to_f32());
        }
        _ => {
            let quads = bytes.as_chunks::<4>().0.iter();
            into.iter_mut().zip(quads).for_each(|(value, quad)| *value = f32::from_le_bytes(*quad));
        }
    }
}

/// Encodes floats as little-endian bytes, rounded to nearest.
pub(super) fn encode(dtype: DType, values: &[f32], into: &mut [u8]) {
    match dtype {
        DType::F16 => {
            let pairs = into.as_chunks_mut::<2>().0.iter_mut();
            pairs.zip(values).for_each(|(pair, value)| *pair = f16::from_f32(*value).to_le_bytes());
        }
        DType::Bf16 => {
            let pairs = into.as_chunks_mut::<2>().0.iter_mut();
            pairs.zip(values).for_each(|(pair, value)| *pair = bf16::from_f32(*value).to_le_bytes());
        }
        _ => {
            let quads = into.as_chunks_mut::<4>().0.iter_mut();
            quads.zip(values).for_each(|(quad, value)| *quad = value.to_le_bytes());
        }
    }
}

/// Rounds a value to the nearest one of a type.
pub(super) fn rounded(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::Bf16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}
