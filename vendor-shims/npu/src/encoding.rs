//! Encodings of activations: the trait that each vendor's encodings implement, and the parsing that
//! all vendors share.

use std::fmt::Debug;

use shardwright_shim_abi::{TensorView, raw};

/// How one vendor's compiler stores the elements of an activation.
pub trait Encoding: Copy + Debug + PartialEq {
    /// f16, the encoding of a value without an explicit encoding.
    const HALF: Self;
    /// Fractions from 0 to 1, for integer results.
    const FRACTION: Self;
    /// Values from −1 to 1, for integer results.
    const SIGNED_FRACTION: Self;

    /// Returns the encoding of a tensor of an entry.
    ///
    /// # Errors
    ///
    /// The reason why the shim does not support the encoding, phrased to follow the tensor's name.
    fn of(tensor: &TensorView<'_>) -> Result<Self, String>;

    /// Returns whether the elements are positions or slots instead of values.
    fn is_index(self) -> bool;

    /// Returns whether the elements are integers with a scale.
    fn is_fixed(self) -> bool;

    /// Returns the encoding in which an operation computes if its result has this encoding.
    fn computed(self) -> Self {
        self
    }

    /// Returns the encoding in which each stored integer represents `factor` times its value.
    /// Floats are unchanged.
    fn scaled(self, factor: f32) -> Self;

    /// Returns the smallest and largest value of an integer encoding. Returns `None` if the bounds
    /// do not matter, as for floats.
    fn ends(self) -> Option<(f32, f32)>;

    /// Formats the encoding for messages, for example `i16 (scale 1e-3)`.
    fn describe(self) -> String;
}

/// Returns the scale (positive and finite) and zero point of an integer tensor with per-tensor
/// quantisation.
///
/// # Errors
///
/// The fault of its scales.
pub fn per_tensor(tensor: &TensorView<'_>) -> Result<(f32, i32), String> {
    let quantisation = tensor.quantisation().ok_or("integers need a scale")?;
    if quantisation.kind() != raw::SW_QUANTISATION_PER_TENSOR {
        return Err("activations have one scale, got several".to_owned());
    }
    let scale = quantisation.scale_values().map_err(|error| error.message)?;
    let scale = scale.first().copied().unwrap_or(0.0);
    if !scale.is_normal() || scale < 0.0 {
        return Err(format!("its scale is {scale:e}"));
    }
    let zeros = quantisation.zero_points().map_err(|error| error.message)?;
    Ok((scale, zeros.first().copied().unwrap_or(0)))
}

/// Returns the name of an `SW_DTYPE_…`.
pub fn dtype_name(dtype: u32) -> String {
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
        other => return format!("unsupported element type {other}"),
    };
    name.to_owned()
}
