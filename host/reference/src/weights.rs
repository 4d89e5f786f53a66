use half::f16;
use shardwright_graph::{DType, Tensor, Weight, WeightId};

use crate::{Array, ReferenceError};

/// The constants a graph refers to by index: those of a model, or of a work order.
#[derive(Clone, Copy)]
pub struct Weights<'w> {
    weights: &'w [Weight],
}

impl<'w> Weights<'w> {
    /// Constants in the order of their ids.
    pub fn new(weights: &'w [Weight]) -> Self {
        Weights { weights }
    }

    /// The constant of a tensor, shared and not copied; checked against what the tensor declares.
    pub(crate) fn constant(&self, tensor: &Tensor, id: WeightId) -> Result<Array, ReferenceError> {
        let weight = self.weights.get(id.0 as usize).ok_or_else(|| ReferenceError::NoWeight {
            tensor: tensor.name.clone(),
            id,
            available: self.weights.len(),
        })?;
        check_type(weight)?;
        let fits =
            weight.shape == tensor.shape && weight.dtype == tensor.dtype && weight.bytes() == tensor.bytes();
        if !fits {
            return Err(ReferenceError::WeightShape {
                weight: weight.name.clone(),
                found: weight.shape.clone(),
                found_dtype: weight.dtype,
                bytes: weight.bytes(),
                declared: tensor.shape.clone(),
                declared_dtype: tensor.dtype,
            });
        }
        let shape = weight.shape.iter().map(|&extent| extent as usize).collect();
        Ok(Array::stored(shape, weight.dtype, weight.data.clone()))
    }
}

/// All values of a weight as f32; exact for f32, f16 and bf16, refused for others.
pub fn widen(weight: &Weight) -> Result<Vec<f32>, ReferenceError> {
    check_type(weight)?;
    Ok(widen_bytes(weight.dtype, weight.data.bytes()))
}

fn check_type(weight: &Weight) -> Result<(), ReferenceError> {
    if weight.dtype.is_float() {
        Ok(())
    } else {
        Err(ReferenceError::WeightType { weight: weight.name.clone(), dtype: weight.dtype })
    }
}

/// Float elements of a byte string as f32; a rest shorter than an element is ignored.
pub(crate) fn widen_bytes(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F16 => {
            bytes.as_chunks::<2>().0.iter().map(|&pair| f16::from_le_bytes(pair).to_f32()).collect()
        }
        DType::Bf16 => bytes.as_chunks::<2>().0.iter().map(|&pair| bf16_to_f32(pair)).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|&quad| f32::from_le_bytes(quad)).collect(),
    }
}

/// The upper half of an f32, bit for bit.
fn bf16_to_f32(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// Float element `start + i · stride` of a byte string into `into[i]`.
pub(crate) fn widen_element(dtype: DType, bytes: &[u8], start: usize, stride: usize, into: &mut [f64]) {
    match dtype {
        DType::F16 => {
            let elements = &bytes.as_chunks::<2>().0[start..];
            for (to, from) in into.iter_mut().zip(elements.iter().step_by(stride)) {
                *to = f16::from_le_bytes(*from).to_f64();
            }
        }
        DType::Bf16 => {
            let elements = &bytes.as_chunks::<2>().0[start..];
            for (to, from) in into.iter_mut().zip(elements.iter().step_by(stride)) {
                *to = f64::from(bf16_to_f32(*from));
            }
        }
        _ => {
            let elements = &bytes.as_chunks::<4>().0[start..];
            for (to, from) in into.iter_mut().zip(elements.iter().step_by(stride)) {
                *to = f64::from(f32::from_le_bytes(*from));
            }
        }
    }
}
