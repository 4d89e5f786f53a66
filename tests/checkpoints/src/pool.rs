use std::collections::HashMap;
use std::io::{self, Write};

use crate::{Random, Spec, TensorSpec, tensors};

/// Number of normally distributed numbers in a pool. It is prime, so that no two rows of a matrix
/// are equal.
const NUMBERS: usize = 1_048_573;

/// Number of values written at once.
const CHUNK: usize = 1 << 16;

/// Numbers for weights of real sizes. Generating each of them would need minutes, so all matrices
/// and tables are filled from one pool, each from a place of its own.
pub(crate) struct Pool {
    normals: Vec<f32>,
    /// The pool multiplied by a deviation, in an element type. It is long enough to be read from
    /// any place.
    scaled: HashMap<(u64, &'static str), Vec<u8>>,
}

impl Pool {
    pub fn new() -> Self {
        let mut random = Random::new(0, "pool");
        Pool { normals: (0..NUMBERS).map(|_| random.normal() as f32).collect(), scaled: HashMap::new() }
    }

    /// Writes the values of a tensor in an element type.
    pub fn write(
        &mut self,
        spec: &Spec,
        tensor: &TensorSpec,
        dtype: &'static str,
        to: &mut dyn Write,
    ) -> io::Result<()> {
        let Some(deviation) = tensors::deviation(spec, tensor) else {
            return to.write_all(&stored(dtype, tensors::values(spec, tensor)));
        };
        let normals = &self.normals;
        let scaled = self.scaled.entry((deviation.to_bits(), dtype)).or_insert_with(|| {
            let turned = normals.iter().chain(&normals[..CHUNK]);
            stored(dtype, turned.map(|normal| (f64::from(*normal) * deviation) as f32))
        });
        let width = scaled.len() / (NUMBERS + CHUNK);
        let mut place = Random::new(spec.seed, &tensor.name).below(NUMBERS as u64) as usize;
        let mut left = tensor.shape.iter().product::<u64>() as usize;
        while left > 0 {
            let count = left.min(CHUNK);
            to.write_all(&scaled[place * width..(place + count) * width])?;
            place = (place + count) % NUMBERS;
            left -= count;
        }
        Ok(())
    }
}

/// Encodes values in an element type, in little-endian order.
pub(crate) fn stored(dtype: &str, values: impl Iterator<Item = f32>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        match dtype {
            "F32" => bytes.extend_from_slice(&value.to_le_bytes()),
            "F16" => bytes.extend_from_slice(&half::f16::from_f32(value).to_le_bytes()),
            "BF16" => bytes.extend_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
            other => panic!("no content of type {other}"),
        }
    }
    bytes
}
