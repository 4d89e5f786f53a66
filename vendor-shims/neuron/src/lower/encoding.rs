//! Encodings of activations, including encodings that the lowering itself chooses.

use shardwright_neuron_adapter::operand;
use shardwright_shim_abi::{TensorView, raw};
use shardwright_shim_npu as npu;
use shardwright_shim_npu::encoding::{dtype_name, per_tensor};

/// Largest stored value of a signed 16-bit integer.
pub(super) const LARGEST: f32 = 32_767.0;

/// How the elements of an activation are stored. Integers are signed, have 16 bits and no zero
/// point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OperandEncoding {
    /// f32, computed in 16 bits.
    Single,
    Half,
    /// i16, `value = stored · scale`.
    Fixed(f32),
    /// i32, for positions and slots.
    Index,
}

/// Family of types in which operations compute. All operands of an operation belong to one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// f32, computed in 16 bits.
    Single,
    Half,
    /// 16-bit integers.
    Fixed,
}

impl npu::Encoding for OperandEncoding {
    const HALF: OperandEncoding = OperandEncoding::Half;
    /// Range of the results of softmax, sigmoid and hyperbolic tangent: −1 to 1 minus one step, as
    /// TFLite defines it for 16 bits.
    const FRACTION: OperandEncoding = OperandEncoding::Fixed(1.0 / 32_768.0);
    const SIGNED_FRACTION: OperandEncoding = OperandEncoding::FRACTION;

    fn of(tensor: &TensorView<'_>) -> Result<OperandEncoding, String> {
        match tensor.dtype() {
            raw::SW_DTYPE_F32 => Ok(OperandEncoding::Single),
            raw::SW_DTYPE_F16 => Ok(OperandEncoding::Half),
            raw::SW_DTYPE_I32 if tensor.quantisation().is_none() => Ok(OperandEncoding::Index),
            raw::SW_DTYPE_I16 => match per_tensor(tensor)? {
                (scale, 0) => Ok(OperandEncoding::Fixed(scale)),
                (_, zero) => Err(format!("its zero point is {zero}; 16-bit activations must not have one")),
            },
            raw::SW_DTYPE_U16 => Err(
                "u16 activations have a zero point, which no operation on 16 bits is known to take here; the format `a16-symmetric` has none"
                    .to_owned(),
            ),
            other => Err(format!("{} activations are not supported", dtype_name(other))),
        }
    }

    fn is_index(self) -> bool {
        self == OperandEncoding::Index
    }

    fn is_fixed(self) -> bool {
        matches!(self, OperandEncoding::Fixed(_))
    }

    fn scaled(self, factor: f32) -> OperandEncoding {
        match self {
            OperandEncoding::Fixed(scale) => OperandEncoding::Fixed((scale * factor).max(f32::MIN_POSITIVE)),
            other => other,
        }
    }

    fn ends(self) -> Option<(f32, f32)> {
        self.reach().map(|most| (-most, most))
    }

    fn describe(self) -> String {
        match self {
            OperandEncoding::Single => "f32".to_owned(),
            OperandEncoding::Half => "f16".to_owned(),
            OperandEncoding::Index => "i32".to_owned(),
            OperandEncoding::Fixed(scale) => format!("i16 (scale {scale:e})"),
        }
    }
}

impl OperandEncoding {
    /// Creates an i16 encoding that reaches from −`most` to `most`.
    pub fn reaching(most: f32) -> OperandEncoding {
        OperandEncoding::Fixed((most / LARGEST).max(f32::MIN_POSITIVE))
    }

    /// Returns the family in which values of this encoding are computed, or `None` for indices.
    pub fn family(self) -> Option<Family> {
        match self {
            OperandEncoding::Single => Some(Family::Single),
            OperandEncoding::Half => Some(Family::Half),
            OperandEncoding::Fixed(_) => Some(Family::Fixed),
            OperandEncoding::Index => None,
        }
    }

    /// Returns the scale of an integer encoding.
    pub fn scale(self) -> Option<f32> {
        match self {
            OperandEncoding::Fixed(scale) => Some(scale),
            _ => None,
        }
    }

    /// Returns the largest value that an integer encoding can store.
    pub fn reach(self) -> Option<f32> {
        self.scale().map(|scale| scale * LARGEST)
    }

    /// Returns the adapter's operand type.
    pub fn kind(self) -> i32 {
        match self {
            OperandEncoding::Single => operand::TENSOR_FLOAT32,
            OperandEncoding::Half => operand::TENSOR_FLOAT16,
            OperandEncoding::Fixed(_) => operand::TENSOR_QUANT16_SYMM,
            OperandEncoding::Index => operand::TENSOR_INT32,
        }
    }
}
