//! Encodings of activations: the trait that each vendor's encodings implement, and the parsing that
//! all vendors share.

use std::fmt::Debug;

use shardwright_shim_abi::{TensorView, raw};

/// How the elements of an activation are stored, as one vendor's compiler has it.
pub trait Encoding: Copy + Debug + PartialEq {
    /// f16: the encoding of a value without an explicit one.
    const HALF: Self;
    /// Fractions 0 to 1 where results are integers.
    const FRACTION: Self;
    /// −1 to 1 where results are integers.
    const SIGNED_FRACTION: Self;

    /// The encoding of a tensor of an entry.
    ///
    /// # Errors
    ///
    /// Why the shim does not support its encoding, phrased to follow the tensor's name.
    fn of(tensor: &TensorView<'_>) -> Result<Self, String>;

    /// Whether it holds positions or slots, not values.
    fn is_index(self) -> bool;

    /// Whether values are integers with a scale.
    fn is_fixed(self) -> bool;

    /// How an operation computes whose result is stored like this.
    fn computed(self) -> Self {
        self
    }

    /// The same stored values, each standing for `factor` times as much; itself for floats.
    fn scaled(self, factor: f32) -> Self;

    /// The least and the most value it can hold, if those are bounds to reckon with: of integers.
    fn ends(self) -> Option<(f32, f32)>;

    /// For reasons: `i16 (scale 1e-3)`.
    fn describe(self) -> String;
}

/// Scale, positive and finite, and zero point of an integer tensor with per-tensor quantisation.
///
/// # Errors
///
/// What is wrong with its scales.
pub fn per_tensor(tensor: &TensorView<'_>) -> Result<(f32, i32), String> {
    let quantisation = tensor.quantisation().ok_or("integers without a scale stand for nothing")?;
    if quantisation.kind() != raw::SW_QUANTISATION_PER_TENSOR {
        return Err("activations have one scale, this one has many".to_owned());
    }
    let scale = quantisation.scale_values().map_err(|error| error.message)?;
    let scale = scale.first().copied().unwrap_or(0.0);
    if !scale.is_normal() || scale < 0.0 {
        return Err(format!("its scale is {scale:e}"));
    }
    let zeros = quantisation.zero_points().map_err(|error| error.message)?;
    Ok((scale, zeros.first().copied().unwrap_or(0)))
}

/// Name of an `SW_DTYPE_…`.
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
        other => return format!("element type {other}"),
    };
    name.to_owned()
}
