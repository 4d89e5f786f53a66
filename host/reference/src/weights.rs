use half::f16;
use shardwright_graph::{Tensor, Weight, WeightId};
use shardwright_vocabulary::{DType, Error, Result};

use crate::Array;

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
    pub(crate) fn constant(&self, tensor: &Tensor, id: WeightId) -> Result<Array> {
        let weight = self.weights.get(id.0 as usize).ok_or_else(|| {
            Error::invalid(format!("expected one of {} weights, got weight {}", self.weights.len(), id.0))
                .at(format!("constant `{}`", tensor.name))
        })?;
        check_type(weight)?;
        let bytes = weight.data.length() as u64;
        let fits = weight.shape == tensor.shape && weight.dtype == tensor.dtype && bytes == tensor.bytes();
        if !fits {
            let message = format!(
                "expected {} {:?}, got {} {:?} in {bytes} bytes",
                tensor.dtype, tensor.shape, weight.dtype, weight.shape
            );
            return Err(Error::invalid(message).at(place_of(weight)));
        }
        check(weight)?;
        Ok(Array::constant(weight.clone()))
    }
}

/// Returns all values of a weight, decoded exactly.
pub fn widen(weight: &Weight) -> Result<Vec<f32>> {
    check(weight)?;
    Ok(Array::constant(weight.clone()).into_floats())
}

/// Checks that a weight can be read: [`check_layout`], and finite scales.
pub(crate) fn check(weight: &Weight) -> Result<()> {
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
    Err(unreadable(weight, "a scale is not a finite number"))
}

fn unreadable(weight: &Weight, reason: &str) -> Error {
    Error::invalid(reason).at(place_of(weight)).with_help("quantise the weight again before evaluating it")
}

fn place_of(weight: &Weight) -> String {
    format!("weight `{}`", weight.name)
}

/// Checks that the weight is a float without scales or an integer with scales.
fn check_type(weight: &Weight) -> Result<()> {
    let is_possible = match &weight.quantisation {
        None => weight.dtype.is_float(),
        Some(_) => weight.dtype.raw_range().is_some(),
    };
    if is_possible {
        return Ok(());
    }
    Err(Error::unsupported(format!("stored as {}, which is not supported", weight.dtype))
        .at(place_of(weight))
        .with_help("the evaluator reads f32, f16 and bf16 weights, and integers with scales"))
}

/// Checks that values and scales are present and that their numbers match the shape.
pub(crate) fn check_layout(weight: &Weight) -> Result<()> {
    let fault = |reason| Err(unreadable(weight, reason));
    check_type(weight)?;
    if weight.dtype.packed_bytes(&weight.shape) != Some(weight.data.length() as u64) {
        return fault("the number of bytes does not match the shape");
    }
    if !weight.data.is_present() {
        return fault("the bytes do not exist yet");
    }
    let (Some(existing), Some((low, high))) = (&weight.quantisation, weight.dtype.raw_range()) else {
        return Ok(());
    };
    if !matches!(existing.scale_dtype, DType::F32 | DType::F16) {
        return fault("the scales are neither f32 nor f16");
    }
    if existing.scale_bytes(&weight.shape) != Some(existing.scales.length() as u64)
        || !existing.scales.is_present()
    {
        return fault("the number of scales does not match the shape");
    }
    if !(low..=high).contains(&existing.zero_point) {
        return fault("the zero point is outside the range of the type");
    }
    Ok(())
}
