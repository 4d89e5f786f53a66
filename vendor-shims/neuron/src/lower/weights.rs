//! Constants: which are taken, and how they are handed over. Large ones are borrowed, never copied.

use half::f16;
use shardwright_neuron_adapter::operand;
use shardwright_shim_abi::{QuantisationView, WeightView, raw};

use super::draft::Constant;
use super::encoding::{Encoding, Family, LARGEST, dtype_name};
use super::{FourBitsRule, Target};
use crate::graph::{Channels, Value};

/// Values of a constant that is not a matrix: norm scales, factors. Those are decoded and encoded anew where their type is another.
pub(super) const MAX_SMALL: u64 = 1 << 20;

/// A format of matrices that the adapter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatrixForm {
    /// Integers with a scale per output.
    PerChannel {
        /// 8 or 4.
        bits: u32,
    },
    /// Integers with one scale.
    PerTensor {
        /// 8 or 4.
        bits: u32,
    },
    /// f16 or f32.
    Float,
}

/// The scales; none when they are not at hand.
fn scales(quantisation: &QuantisationView<'_>) -> Result<Option<Vec<f32>>, String> {
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

/// The form of a matrix that is multiplied with values stored as `x`, or why such a product is refused. Scales are looked at where they
/// are at hand.
pub(super) fn matrix_form(
    weight: &WeightView<'_>,
    x: Encoding,
    target: &Target<'_>,
) -> Result<MatrixForm, String> {
    let name = weight.name();
    let kind = dtype_name(weight.dtype());
    if weight.shape().len() != 2 {
        return Err(format!("weight `{name}` {:?} is not a matrix", weight.shape()));
    }
    let bits = match (weight.dtype(), x.family()) {
        (raw::SW_DTYPE_F16, Some(Family::Half)) | (raw::SW_DTYPE_F32, Some(Family::Single)) => {
            return Ok(MatrixForm::Float);
        }
        (raw::SW_DTYPE_I8, Some(Family::Fixed)) => 8,
        (raw::SW_DTYPE_I4, Some(Family::Fixed)) => 4,
        _ => {
            return Err(format!(
                "weight `{name}` is {kind} beside {}; matrices are i8 or i4 beside i16, f16 beside f16, f32 beside f32",
                x.describe()
            ));
        }
    };
    let Some(quantisation) = weight.quantisation() else {
        return Err(format!("weight `{name}` is {kind} without scales"));
    };
    let zeros = quantisation.zero_points().map_err(|error| error.message)?;
    if zeros.iter().any(|zero| *zero != 0) {
        return Err(format!("weight `{name}` has zero points; matrices are symmetric"));
    }
    let form = match quantisation.kind() {
        raw::SW_QUANTISATION_PER_TENSOR => MatrixForm::PerTensor { bits },
        raw::SW_QUANTISATION_PER_CHANNEL if quantisation.axis() != 0 => {
            return Err(format!(
                "weight `{name}` has scales along axis {}, not per output",
                quantisation.axis()
            ));
        }
        raw::SW_QUANTISATION_PER_CHANNEL => {
            if bits == 4
                && let FourBitsRule::Refused(reason) = target.four_bits_per_channel()
            {
                return Err(format!("weight `{name}` is i4 with a scale per output: {reason}"));
            }
            MatrixForm::PerChannel { bits }
        }
        _ => {
            return Err(format!("weight `{name}` is {kind} in blocks, for which the adapter has no type"));
        }
    };
    scales(&quantisation).map_err(|reason| format!("weight `{name}`: {reason}"))?;
    Ok(form)
}

/// A matrix as it is stored, `[N, K]`.
pub(super) fn matrix<'w>(weight: WeightView<'w>, form: MatrixForm) -> Result<Constant<'w>, String> {
    let [outputs, inputs] = *weight.shape() else {
        return Err(format!("{:?} is not a matrix", weight.shape()));
    };
    let bits: u64 = match form {
        MatrixForm::PerChannel { bits } | MatrixForm::PerTensor { bits } => bits.into(),
        MatrixForm::Float if weight.dtype() == raw::SW_DTYPE_F16 => 16,
        MatrixForm::Float => 32,
    };
    let stride = inputs.checked_mul(bits).ok_or("its rows are too long")?.div_ceil(8);
    let length = stride.checked_mul(outputs).ok_or("it is too large")?;
    if weight.length() != length {
        return Err(format!("{} bytes where {:?} has {length}", weight.length(), weight.shape()));
    }
    let value = match weight.bytes() {
        Err(_) => Value::Absent { length: outputs * inputs * bits.max(8) / 8 },
        Ok(bytes) if bits == 4 => Value::Packed { bytes, columns: inputs as usize },
        Ok(bytes) => Value::Borrowed(bytes),
    };
    let known = weight.quantisation().map(|quantisation| scales(&quantisation)).transpose()?.flatten();
    // Of random values of that many inputs: a stand-in for counting.
    let guess = 1.0 / (128.0 * (inputs as f32).sqrt());
    let mut constant = Constant {
        name: weight.name().to_owned(),
        dims: vec![outputs, inputs],
        kind: operand::TENSOR_FLOAT32,
        scale: 0.0,
        channels: None,
        value,
    };
    match form {
        MatrixForm::Float if bits == 16 => constant.kind = operand::TENSOR_FLOAT16,
        MatrixForm::Float => {}
        MatrixForm::PerTensor { bits } => {
            constant.kind = match bits {
                8 => operand::TENSOR_QUANT8_SYMM,
                _ => operand::EXT_TENSOR_QUANT4_SYMM,
            };
            constant.scale = known.and_then(|scales| scales.first().copied()).unwrap_or(guess);
        }
        MatrixForm::PerChannel { bits } => {
            constant.kind = match bits {
                8 => operand::TENSOR_QUANT8_SYMM_PER_CHANNEL,
                _ => operand::EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL,
            };
            let scales = known.unwrap_or_else(|| vec![guess; outputs as usize]);
            if scales.len() as u64 != outputs {
                return Err(format!("{} scales for {outputs} outputs", scales.len()));
            }
            constant.channels = Some(Channels { dimension: 0, scales });
        }
    }
    Ok(constant)
}

/// Whether a constant that is no matrix can be decoded.
pub(super) fn check_small(weight: &WeightView<'_>) -> Result<(), String> {
    let (name, elements) =
        (weight.name(), weight.shape().iter().fold(1u64, |product, extent| product.saturating_mul(*extent)));
    if elements > MAX_SMALL {
        return Err(format!(
            "constant `{name}` {:?} has more than {MAX_SMALL} values and is no matrix",
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
            Err(format!("constant `{name}` has many scales and is no matrix"))
        }
        Some(quantisation) => {
            scales(&quantisation).map(drop).map_err(|reason| format!("constant `{name}`: {reason}"))
        }
        None => Ok(()),
    }
}

/// The values of a constant that passed [`check_small`]; none where they are not at hand.
fn small_values(weight: &WeightView<'_>) -> Option<Vec<f32>> {
    let bytes = weight.bytes().ok()?;
    let pairs = || bytes.as_chunks::<2>().0.iter();
    Some(match weight.dtype() {
        raw::SW_DTYPE_F32 => bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
        raw::SW_DTYPE_F16 => pairs().map(|two| f16::from_le_bytes(*two).to_f32()).collect(),
        raw::SW_DTYPE_BF16 => pairs().map(|two| half::bf16::from_le_bytes(*two).to_f32()).collect(),
        integers => {
            let quantisation = weight.quantisation()?;
            let scale = *scales(&quantisation).ok()??.first()?;
            let zero = quantisation.zero_points().ok()?.first().copied().unwrap_or(0);
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

/// A constant that is no matrix, beside activations of a family, `offset` added to every value.
pub(super) fn small<'w>(weight: WeightView<'w>, family: Family, offset: f32) -> Result<Constant<'w>, String> {
    check_small(&weight)?;
    let dims = weight.shape().to_vec();
    let mut name = format!("{}.{family:?}", weight.name()).to_lowercase();
    if offset != 0.0 {
        name.push_str(&format!(".plus-{offset}"));
    }
    let Some(values) = small_values(&weight) else {
        let elements: u64 = dims.iter().product();
        let mut constant = encoded(name, dims, &[1.0], family);
        let width = if constant.kind == operand::TENSOR_FLOAT32 { 4 } else { 2 };
        constant.value = Value::Absent { length: elements * width };
        return Ok(constant);
    };
    let values: Vec<f32> = values.into_iter().map(|value| value + offset).collect();
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(format!("constant `{}` holds {value}", weight.name())),
        None => Ok(encoded(name, dims, &values, family)),
    }
}

/// Values as a constant of a family: integers over what they reach.
pub(super) fn encoded<'w>(name: String, dims: Vec<u64>, values: &[f32], family: Family) -> Constant<'w> {
    let (kind, scale, bytes): (i32, f32, Vec<u8>) = match family {
        Family::Single => {
            (operand::TENSOR_FLOAT32, 0.0, values.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
        Family::Half => {
            let limit = f16::MAX.to_f32();
            let halves = values.iter().map(|value| f16::from_f32(value.clamp(-limit, limit)));
            (operand::TENSOR_FLOAT16, 0.0, halves.flat_map(f16::to_le_bytes).collect())
        }
        Family::Fixed => {
            let most = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let scale = (most / LARGEST).max(f32::MIN_POSITIVE);
            let stored = values.iter().map(|value| (value / scale).round_ties_even() as i16);
            (operand::TENSOR_QUANT16_SYMM, scale, stored.flat_map(i16::to_le_bytes).collect())
        }
    };
    Constant { name, dims, kind, scale, channels: None, value: Value::Owned(bytes) }
}

/// One number that is broadcast, exact: a power of two of stored steps.
pub(super) fn number<'w>(value: f32, family: Family) -> Constant<'w> {
    let name = format!("number.{value:e}.{family:?}").to_lowercase();
    if family != Family::Fixed {
        return encoded(name, vec![1], &[value], family);
    }
    let stored: i16 = match value {
        value if value > 0.0 => 16_384,
        value if value < 0.0 => -16_384,
        _ => 0,
    };
    let scale = if stored == 0 { 1.0 } else { (value.abs() / 16_384.0).max(f32::MIN_POSITIVE) };
    let value = Value::Owned(stored.to_le_bytes().to_vec());
    Constant { name, dims: vec![1], kind: operand::TENSOR_QUANT16_SYMM, scale, channels: None, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(constant: &Constant<'_>) -> Vec<i16> {
        let Value::Owned(bytes) = &constant.value else { panic!("made here") };
        bytes.as_chunks::<2>().0.iter().map(|two| i16::from_le_bytes(*two)).collect()
    }

    #[test]
    fn numbers_are_exact_in_sixteen_bits() {
        for value in [1.0f32, 0.1, 30.0, -2.5, 1e-6, 0.0] {
            let constant = number(value, Family::Fixed);
            assert_eq!(f32::from(stored(&constant)[0]) * constant.scale, value);
        }
    }

    #[test]
    fn values_lie_within_a_half_step_of_themselves() {
        let values = [0.5f32, -2.0, 1.999, 0.0];
        let constant = encoded("x".to_owned(), vec![4], &values, Family::Fixed);
        for (stored, value) in stored(&constant).iter().zip(values) {
            assert!((f32::from(*stored) * constant.scale - value).abs() <= constant.scale / 2.0);
        }
        let zeros = encoded("z".to_owned(), vec![2], &[0.0, 0.0], Family::Fixed);
        assert_eq!(stored(&zeros), [0, 0]);
    }
}
