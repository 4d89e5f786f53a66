//! How activations are stored, and the encodings that lowering chooses itself.

use shardwright_neuron_adapter::operand;
use shardwright_shim_abi::{TensorView, raw};

/// Largest stored value of 16 bits with a sign.
pub(super) const LARGEST: f32 = 32_767.0;

/// How the elements of an activation are stored. Integers have a sign, 16 bits and no zero point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Encoding {
    /// f32, computed in 16 bits.
    Single,
    /// f16.
    Half,
    /// i16, `value = stored · scale`.
    Fixed(f32),
    /// i32: positions and slots.
    Index,
}

/// What operations compute in: all operands of one are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// f32, computed in 16 bits.
    Single,
    /// f16.
    Half,
    /// Integers of 16 bits.
    Fixed,
}

impl Encoding {
    /// The encoding of a tensor of an entry, or why this shim has none for it.
    pub fn of(tensor: &TensorView<'_>) -> Result<Encoding, String> {
        let quantisation = tensor.quantisation();
        match tensor.dtype() {
            raw::SW_DTYPE_F32 => Ok(Encoding::Single),
            raw::SW_DTYPE_F16 => Ok(Encoding::Half),
            raw::SW_DTYPE_I32 if quantisation.is_none() => Ok(Encoding::Index),
            raw::SW_DTYPE_I16 => {
                let quantisation = quantisation.ok_or("integers without a scale stand for nothing")?;
                if quantisation.kind() != raw::SW_QUANTISATION_PER_TENSOR {
                    return Err("activations have one scale, this one has many".to_owned());
                }
                let scale = quantisation.scale_values().map_err(|error| error.message)?;
                let scale = scale.first().copied().unwrap_or(0.0);
                if !scale.is_normal() || scale < 0.0 {
                    return Err(format!("its scale is {scale:e}"));
                }
                let zeros = quantisation.zero_points().map_err(|error| error.message)?;
                match zeros.iter().find(|zero| **zero != 0) {
                    None => Ok(Encoding::Fixed(scale)),
                    Some(zero) => {
                        Err(format!("its zero point is {zero}; 16-bit activations have none here"))
                    }
                }
            }
            raw::SW_DTYPE_U16 => Err(
                "u16 activations have a zero point, which no operation on 16 bits is known to take here; the format `a16-symmetric` has none"
                    .to_owned(),
            ),
            other => Err(format!("{} activations are not lowered", dtype_name(other))),
        }
    }

    /// i16 that reaches `most` on both sides.
    pub fn reaching(most: f32) -> Encoding {
        Encoding::Fixed((most / LARGEST).max(f32::MIN_POSITIVE))
    }

    /// What softmax, sigmoid and hyperbolic tangent give: −1 to 1 less one step, as TFLite fixes it for 16 bits.
    pub const FRACTION: Encoding = Encoding::Fixed(1.0 / 32_768.0);

    /// What it is computed in; none for indices.
    pub fn family(self) -> Option<Family> {
        match self {
            Encoding::Single => Some(Family::Single),
            Encoding::Half => Some(Family::Half),
            Encoding::Fixed(_) => Some(Family::Fixed),
            Encoding::Index => None,
        }
    }

    /// Whether values are integers with a scale.
    pub fn is_fixed(self) -> bool {
        matches!(self, Encoding::Fixed(_))
    }

    /// The scale of integers.
    pub fn scale(self) -> Option<f32> {
        match self {
            Encoding::Fixed(scale) => Some(scale),
            _ => None,
        }
    }

    /// The largest value that can be stored, for integers.
    pub fn reach(self) -> Option<f32> {
        self.scale().map(|scale| scale * LARGEST)
    }

    /// Operand type.
    pub fn kind(self) -> i32 {
        match self {
            Encoding::Single => operand::TENSOR_FLOAT32,
            Encoding::Half => operand::TENSOR_FLOAT16,
            Encoding::Fixed(_) => operand::TENSOR_QUANT16_SYMM,
            Encoding::Index => operand::TENSOR_INT32,
        }
    }

    /// For reasons.
    pub fn describe(self) -> String {
        match self {
            Encoding::Single => "f32".to_owned(),
            Encoding::Half => "f16".to_owned(),
            Encoding::Index => "i32".to_owned(),
            Encoding::Fixed(scale) => format!("i16 (scale {scale:e})"),
        }
    }
}

/// Name of an `SW_DTYPE_…`.
pub(super) fn dtype_name(dtype: u32) -> String {
    let name = match dtype {
        raw::SW_DTYPE_F32 => "f32",
        raw::SW_DTYPE_F16 => "f16",
        raw::SW_DTYPE_BF16 => "bf16",
        raw::SW_DTYPE_I32 => "i32",
        raw::SW_DTYPE_I16 => "i16",
        raw::SW_DTYPE_U16 => "u16",
        raw::SW_DTYPE_I8 => "i8",
        raw::SW_DTYPE_U8 => "u8",
        raw::SW_DTYPE_I64 => "i64",
        raw::SW_DTYPE_I4 => "i4",
        raw::SW_DTYPE_I2 => "i2",
        other => return format!("element type {other}"),
    };
    name.to_owned()
}
