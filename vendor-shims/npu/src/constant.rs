//! Reads constants of a work order in ways that suit any compiler. The shims borrow large
//! constants, so this module does not decode them.

use half::f16;
use shardwright_shim_abi::{QuantisationView, WeightView, raw};

use crate::encoding::dtype_name;

/// Maximum number of values of a constant that is not a matrix, such as norm scales and factors.
/// Such constants are decoded, and encoded again if the compiler needs another type.
pub const MAX_SMALL: u64 = 1 << 20;

/// Returns the scales, or `None` if their bytes are missing.
///
/// # Errors
///
/// The first invalid scale, or the unsupported type of the scales.
pub fn scales(quantisation: &QuantisationView<'_>) -> Result<Option<Vec<f32>>, String> {
    if !matches!(quantisation.scale_dtype(), raw::SW_DTYPE_F32 | raw::SW_DTYPE_F16 | raw::SW_DTYPE_BF16) {
        return Err(format!("its scales are {}", dtype_name(quantisation.scale_dtype())));
    }
    if quantisation.scales().is_err() {
        return Ok(None);
    }
    let scales = quantisation.scale_values().map_err(|error| error.message)?;
    match scales.iter().find(|scale| !scale.is_normal() || **scale < 0.0) {
        Some(scale) => Err(format!("one of its scales is {scale:e}")),
        None => Ok(Some(scales)),
    }
}

/// Returns the quantisation of an integer matrix `[N, K]`. It must not have zero points or
/// minimums, and per-channel scales must be along the output channels.
///
/// # Errors
///
/// The violated condition, with the weight's name.
pub fn symmetric<'a>(weight: &WeightView<'a>) -> Result<QuantisationView<'a>, String> {
    let name = weight.name();
    let Some(quantisation) = weight.quantisation() else {
        return Err(format!("weight `{name}` is {} without scales", dtype_name(weight.dtype())));
    };
    let zeros = quantisation.zero_points().map_err(|error| error.message)?;
    if zeros.iter().any(|zero| *zero != 0) {
        return Err(format!("weight `{name}` has zero points; it must be symmetric"));
    }
    if quantisation.kind() == raw::SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM {
        return Err(format!("weight `{name}` has minimums; it must be symmetric"));
    }
    if quantisation.kind() == raw::SW_QUANTISATION_PER_CHANNEL && quantisation.axis() != 0 {
        return Err(format!("weight `{name}` has scales along axis {}, not per output", quantisation.axis()));
    }
    Ok(quantisation)
}

/// Returns the outputs, the inputs and the bytes per row of a matrix `[N, K]` with `bits` per
/// element. Each row is padded to a whole byte.
///
/// # Errors
///
/// If the weight is not a matrix, or has another length.
pub fn rows_of_bits(weight: &WeightView<'_>, bits: u32) -> Result<(u64, u64, u64), String> {
    let [outputs, inputs] = *weight.shape() else {
        return Err(format!("{:?} is not a matrix", weight.shape()));
    };
    let stride = inputs.checked_mul(u64::from(bits)).ok_or("its rows are too long")?.div_ceil(8);
    let length = stride.checked_mul(outputs).ok_or("it is too large")?;
    match weight.length() == length {
        true => Ok((outputs, inputs, stride)),
        false => Err(format!("{} bytes for {:?}, expected {length}", weight.length(), weight.shape())),
    }
}

/// Checks whether a constant that is not a matrix can be decoded.
///
/// # Errors
///
/// The reason why not, with the constant's name.
pub fn check_small(weight: &WeightView<'_>) -> Result<(), String> {
    let (name, elements) =
        (weight.name(), weight.shape().iter().fold(1u64, |product, extent| product.saturating_mul(*extent)));
    if elements > MAX_SMALL {
        return Err(format!(
            "constant `{name}` {:?} has more than {MAX_SMALL} values and is not a matrix",
            weight.shape()
        ));
    }
    let width = match weight.dtype() {
        raw::SW_DTYPE_F32 => 4,
        raw::SW_DTYPE_F16 | raw::SW_DTYPE_BF16 | raw::SW_DTYPE_U16 | raw::SW_DTYPE_I16 => 2,
        raw::SW_DTYPE_U8 | raw::SW_DTYPE_I8 => 1,
        other => return Err(format!("constant `{name}` is {}", dtype_name(other))),
    };
    if weight.length() != elements * width {
        return Err(format!("constant `{name}` {:?} has {} bytes", weight.shape(), weight.length()));
    }
    let is_integer = !matches!(weight.dtype(), raw::SW_DTYPE_F32 | raw::SW_DTYPE_F16 | raw::SW_DTYPE_BF16);
    match weight.quantisation() {
        None if is_integer => {
            Err(format!("constant `{name}` is {} without a scale", dtype_name(weight.dtype())))
        }
        Some(_) if !is_integer => {
            Err(format!("constant `{name}` is {} with scales", dtype_name(weight.dtype())))
        }
        Some(quantisation) if quantisation.kind() != raw::SW_QUANTISATION_PER_TENSOR => {
            Err(format!("constant `{name}` has many scales and is not a matrix"))
        }
        Some(quantisation) => {
            scales(&quantisation).map(drop).map_err(|reason| format!("constant `{name}`: {reason}"))
        }
        None => Ok(()),
    }
}

/// Returns the scale and zero point of a small integer constant, or `None` if their bytes are
/// missing.
pub fn small_affine(weight: &WeightView<'_>) -> Option<(f32, i32)> {
    let quantisation = weight.quantisation()?;
    let scale = *scales(&quantisation).ok()??.first()?;
    Some((scale, quantisation.zero_points().ok()?.first().copied().unwrap_or(0)))
}

/// Decodes a constant that is not a matrix. Returns `None` if its bytes are missing.
///
/// # Errors
///
/// The errors of [`check_small`].
pub fn small_values(weight: &WeightView<'_>) -> Result<Option<Vec<f32>>, String> {
    check_small(weight)?;
    Ok(stored_values(weight))
}

/// Adds `offset` to every value of a constant.
///
/// # Errors
///
/// If a resulting value is not finite.
pub fn plus(weight: &WeightView<'_>, mut values: Vec<f32>, offset: f32) -> Result<Vec<f32>, String> {
    values.iter_mut().for_each(|value| *value += offset);
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(format!("constant `{}` contains {value}", weight.name())),
        None => Ok(values),
    }
}

fn stored_values(weight: &WeightView<'_>) -> Option<Vec<f32>> {
    let bytes = weight.bytes().ok()?;
    let pairs = || bytes.as_chunks::<2>().0.iter();
    Some(match weight.dtype() {
        raw::SW_DTYPE_F32 => bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
        raw::SW_DTYPE_F16 => pairs().map(|two| f16::from_le_bytes(*two).to_f32()).collect(),
        raw::SW_DTYPE_BF16 => pairs().map(|two| half::bf16::from_le_bytes(*two).to_f32()).collect(),
        integers => {
            let (scale, zero) = small_affine(weight)?;
            let value = |stored: i32| (stored - zero) as f32 * scale;
            match integers {
                raw::SW_DTYPE_U16 => pairs().map(|two| value(u16::from_le_bytes(*two).into())).collect(),
                raw::SW_DTYPE_I16 => pairs().map(|two| value(i16::from_le_bytes(*two).into())).collect(),
                raw::SW_DTYPE_I8 => bytes.iter().map(|byte| value((*byte as i8).into())).collect(),
                _ => bytes.iter().map(|byte| value((*byte).into())).collect(),
            }
        }
    })
}

/// Encodes values as little-endian f16. Values beyond the largest finite f16 are clamped to it.
pub fn halves(values: &[f32]) -> Vec<u8> {
    let limit = f16::MAX.to_f32();
    values.iter().flat_map(|value| f16::from_f32(value.clamp(-limit, limit)).to_le_bytes()).collect()
}
