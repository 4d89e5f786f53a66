//! Decides which constants are supported and how they are passed. Large constants are borrowed,
//! never copied.

use shardwright_neuron_adapter::operand;
use shardwright_shim_abi::{WeightView, raw};
use shardwright_shim_npu::Encoding as _;
use shardwright_shim_npu::constant::{halves, plus, rows_of_bits, scales, small_values, symmetric};
use shardwright_shim_npu::encoding::dtype_name;

use super::draft::{Constant, Content};
use super::encoding::{Family, LARGEST, OperandEncoding};
use super::{FourBitsRule, Target};
use crate::graph::{Channels, Value};

/// A matrix format that the adapter supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatrixForm {
    /// Integers with a scale per output.
    PerChannel {
        /// 8 or 4 bits.
        bits: u32,
    },
    /// Integers with one scale.
    PerTensor {
        /// 8 or 4 bits.
        bits: u32,
    },
    Float,
}

/// Returns the form of a matrix that is multiplied with values of the encoding `x`, or the reason
/// why such a product is refused. Scales are checked if their bytes are present.
pub(super) fn matrix_form(
    weight: &WeightView<'_>,
    x: OperandEncoding,
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
                "weight `{name}` is {kind} with {}; supported are i8 or i4 with i16, f16 with f16, f32 with f32",
                x.describe()
            ));
        }
    };
    let quantisation = symmetric(weight)?;
    let form = match quantisation.kind() {
        raw::SW_QUANTISATION_PER_TENSOR => MatrixForm::PerTensor { bits },
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

/// Returns a matrix as it is stored, `[N, K]`.
pub(super) fn matrix<'w>(weight: WeightView<'w>, form: MatrixForm) -> Result<Constant<'w>, String> {
    let bits = match form {
        MatrixForm::PerChannel { bits } | MatrixForm::PerTensor { bits } => bits,
        MatrixForm::Float if weight.dtype() == raw::SW_DTYPE_F16 => 16,
        MatrixForm::Float => 32,
    };
    let (outputs, inputs, _) = rows_of_bits(&weight, bits)?;
    let value = match weight.bytes() {
        Err(_) => Value::Absent { length: outputs * inputs * u64::from(bits.max(8)) / 8 },
        Ok(bytes) if bits == 4 => Value::Packed { bytes, columns: inputs as usize },
        Ok(bytes) => Value::Borrowed(bytes),
    };
    let known = weight.quantisation().map(|quantisation| scales(&quantisation)).transpose()?.flatten();
    // Scale of random values with that many inputs, a placeholder for counting.
    let guess = 1.0 / (128.0 * (inputs as f32).sqrt());
    let mut content = Content { kind: operand::TENSOR_FLOAT32, scale: 0.0, channels: None, value };
    match form {
        MatrixForm::Float if bits == 16 => content.kind = operand::TENSOR_FLOAT16,
        MatrixForm::Float => {}
        MatrixForm::PerTensor { bits } => {
            content.kind = match bits {
                8 => operand::TENSOR_QUANT8_SYMM,
                _ => operand::EXT_TENSOR_QUANT4_SYMM,
            };
            content.scale = known.and_then(|scales| scales.first().copied()).unwrap_or(guess);
        }
        MatrixForm::PerChannel { bits } => {
            content.kind = match bits {
                8 => operand::TENSOR_QUANT8_SYMM_PER_CHANNEL,
                _ => operand::EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL,
            };
            let scales = known.unwrap_or_else(|| vec![guess; outputs as usize]);
            if scales.len() as u64 != outputs {
                return Err(format!("{} scales for {outputs} outputs", scales.len()));
            }
            content.channels = Some(Channels { dimension: 0, scales });
        }
    }
    Ok(Constant { name: weight.name().to_owned(), dims: vec![outputs, inputs], content })
}

/// Encodes a constant that is not a matrix, for use with activations of a family. `offset` is added
/// to every value.
pub(super) fn small<'w>(weight: WeightView<'w>, family: Family, offset: f32) -> Result<Constant<'w>, String> {
    let values = small_values(&weight)?;
    let dims = weight.shape().to_vec();
    let mut name = format!("{}.{family:?}", weight.name()).to_lowercase();
    if offset != 0.0 {
        name.push_str(&format!(".plus-{offset}"));
    }
    let Some(values) = values else {
        let elements: u64 = dims.iter().product();
        let mut constant = encoded(name, dims, &[1.0], family);
        let width = if constant.content.kind == operand::TENSOR_FLOAT32 { 4 } else { 2 };
        constant.content.value = Value::Absent { length: elements * width };
        return Ok(constant);
    };
    Ok(encoded(name, dims, &plus(&weight, values, offset)?, family))
}

/// Encodes values as a constant of a family. Integers are scaled by the largest magnitude.
pub(super) fn encoded<'w>(name: String, dims: Vec<u64>, values: &[f32], family: Family) -> Constant<'w> {
    let (kind, scale, bytes): (i32, f32, Vec<u8>) = match family {
        Family::Single => {
            (operand::TENSOR_FLOAT32, 0.0, values.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
        Family::Half => (operand::TENSOR_FLOAT16, 0.0, halves(values)),
        Family::Fixed => {
            let most = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let scale = (most / LARGEST).max(f32::MIN_POSITIVE);
            let stored = values.iter().map(|value| (value / scale).round_ties_even() as i16);
            (operand::TENSOR_QUANT16_SYMM, scale, stored.flat_map(i16::to_le_bytes).collect())
        }
    };
    let content = Content { kind, scale, channels: None, value: Value::Owned(bytes) };
    Constant { name, dims, content }
}

/// Encodes a number that is broadcast. It is exact, because its stored integer is a power of two.
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
    let content = Content { kind: operand::TENSOR_QUANT16_SYMM, scale, channels: None, value };
    Constant { name, dims: vec![1], content }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(constant: &Constant<'_>) -> Vec<i16> {
        let Value::Owned(bytes) = &constant.content.value else { panic!("made here") };
        bytes.as_chunks::<2>().0.iter().map(|two| i16::from_le_bytes(*two)).collect()
    }

    #[test]
    fn numbers_are_exact_in_sixteen_bits() {
        for value in [1.0f32, 0.1, 30.0, -2.5, 1e-6, 0.0] {
            let constant = number(value, Family::Fixed);
            assert_eq!(f32::from(stored(&constant)[0]) * constant.content.scale, value);
        }
    }

    #[test]
    fn values_lie_within_a_half_step_of_themselves() {
        let values = [0.5f32, -2.0, 1.999, 0.0];
        let constant = encoded("x".to_owned(), vec![4], &values, Family::Fixed);
        for (stored, value) in stored(&constant).iter().zip(values) {
            assert!(
                (f32::from(*stored) * constant.content.scale - value).abs() <= constant.content.scale / 2.0
            );
        }
        let zeros = encoded("z".to_owned(), vec![2], &[0.0, 0.0], Family::Fixed);
        assert_eq!(stored(&zeros), [0, 0]);
    }
}
