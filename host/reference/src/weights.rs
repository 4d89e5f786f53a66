use half::f16;
use shardwright_graph::{Tensor, Weight, WeightId};
use shardwright_vocabulary::DType;

use crate::{Array, ReferenceError};

/// The constants that a graph refers to by index: the weights of a model, or of a work order.
#[derive(Clone, Copy)]
pub struct Weights<'w> {
    weights: &'w [Weight],
}

impl<'w> Weights<'w> {
    /// Creates the constants from weights in the order of their ids.
    pub fn new(weights: &'w [Weight]) -> Self {
        Weights { weights }
    }

    /// Returns the constant of a tensor, shared and not copied. It is checked against the tensor's
    /// declaration.
    pub(crate) fn constant(&self, tensor: &Tensor, id: WeightId) -> Result<Array, ReferenceError> {
        let weight = self.weights.get(id.0 as usize).ok_or_else(|| ReferenceError::NoWeight {
            tensor: tensor.name.clone(),
            id,
            available: self.weights.len(),
        })?;
        check_type(weight)?;
        let bytes = weight.data.length() as u64;
        let fits = weight.shape == tensor.shape && weight.dtype == tensor.dtype && bytes == tensor.bytes();
        if !fits {
            return Err(ReferenceError::WeightShape {
                weight: weight.name.clone(),
                found: weight.shape.clone(),
                found_dtype: weight.dtype,
                bytes,
                declared: tensor.shape.clone(),
                declared_dtype: tensor.dtype,
            });
        }
        check(weight)?;
        Ok(Array::constant(weight.clone()))
    }
}

/// Returns all values of a weight, decoded exactly.
pub fn widen(weight: &Weight) -> Result<Vec<f32>, ReferenceError> {
    check(weight)?;
    Ok(Array::constant(weight.clone()).into_floats())
}

/// Checks that a weight can be read: [`check_layout`], and finite scales.
pub(crate) fn check(weight: &Weight) -> Result<(), ReferenceError> {
    check_layout(weight)?;
    let Some(existing) = &weight.quantisation else { return Ok(()) };
    let bytes = existing.scales.bytes();
    let is_finite = match existing.scale_dtype {
        DType::F16 => bytes.as_chunks::<2>().0.iter().all(|&bytes| f16::from_le_bytes(bytes).is_finite()),
        _ => bytes.as_chunks::<4>().0.iter().all(|&bytes| f32::from_le_bytes(bytes).is_finite()),
    };
    if is_finite {
        return Ok(());
    }
    Err(ReferenceError::WeightContents { weight: weight.name.clone(), reason: "a scale is no finite number" })
}

/// Checks that the weight is a float without scales or an integer with scales.
fn check_type(weight: &Weight) -> Result<(), ReferenceError> {
    let is_possible = match &weight.quantisation {
        None => weight.dtype.is_float(),
        Some(_) => weight.dtype.raw_range().is_some(),
    };
    match is_possible {
        true => Ok(()),
        false => Err(ReferenceError::WeightType { weight: weight.name.clone(), dtype: weight.dtype }),
    }
}

/// Checks that values and scales are present and that their numbers match the shape.
pub(crate) fn check_layout(weight: &Weight) -> Result<(), ReferenceError> {
    let fault =
        |reason: &'static str| Err(ReferenceError::WeightContents { weight: weight.name.clone(), reason });
    check_type(weight)?;
    if weight.dtype.packed_bytes(&weight.shape) != Some(weight.data.length() as u64) {
        return fault("its bytes are not as many as its shape says");
    }
    if !weight.data.is_present() {
        return fault("its bytes are not made yet");
    }
    let (Some(existing), Some((low, high))) = (&weight.quantisation, weight.dtype.raw_range()) else {
        return Ok(());
    };
    if !matches!(existing.scale_dtype, DType::F32 | DType::F16) {
        return fault("its scales are neither f32 nor f16");
    }
    if existing.scale_bytes(&weight.shape) != Some(existing.scales.length() as u64)
        || !existing.scales.is_present()
    {
        return fault("its scales are not as many as its shape says");
    }
    if !(low..=high).contains(&existing.zero_point) {
        return fault("its zero point lies outside its type");
    }
    Ok(())
}
