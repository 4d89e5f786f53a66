//! Interpretation of stored constants, and the forms that this shim supports.

use std::fmt::Display;

use shardwright_shim_abi::raw::{
    SW_DTYPE_BF16, SW_DTYPE_F16, SW_DTYPE_F32, SW_DTYPE_I2, SW_DTYPE_I4, SW_DTYPE_I8, SW_DTYPE_I16,
    SW_DTYPE_U8, SW_DTYPE_U16, SW_QUANTISATION_PER_BLOCK, SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM,
    SW_QUANTISATION_PER_CHANNEL,
};
use shardwright_shim_abi::{Error, WeightView};

use crate::kernels::integer::IntegerType;
use crate::kernels::linear::PanelType;
use crate::program::{MAX_VALUES, NumberForm};
use crate::simd::{narrow_f16, widen_bf16, widen_f16};

/// The values of a constant that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// All values.
    Tensor,
    /// The values with one index of an axis.
    Channel { axis: usize },
    /// Consecutive values of the last axis.
    Block {
        /// Values per scale, at least one.
        size: u64,
        /// Whether minimums follow the scales of every row.
        minimum: bool,
    },
}

/// A constant of a supported type.
#[derive(Clone, Copy)]
pub struct Constant<'a> {
    weight: WeightView<'a>,
    kind: Kind,
    scaling: Option<Scaling>,
    scale_dtype: u32,
    zero_point: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F32,
    F16,
    Bf16,
    I16,
    U16,
    I8,
    U8,
    I4,
    I2,
}

impl Kind {
    fn of(dtype: u32) -> Option<Kind> {
        Some(match dtype {
            SW_DTYPE_F32 => Kind::F32,
            SW_DTYPE_F16 => Kind::F16,
            SW_DTYPE_BF16 => Kind::Bf16,
            SW_DTYPE_I16 => Kind::I16,
            SW_DTYPE_U16 => Kind::U16,
            SW_DTYPE_I8 => Kind::I8,
            SW_DTYPE_U8 => Kind::U8,
            SW_DTYPE_I4 => Kind::I4,
            SW_DTYPE_I2 => Kind::I2,
            _ => return None,
        })
    }

    fn bits(self) -> u64 {
        match self {
            Kind::F32 => 32,
            Kind::F16 | Kind::Bf16 | Kind::I16 | Kind::U16 => 16,
            Kind::I8 | Kind::U8 => 8,
            Kind::I4 => 4,
            Kind::I2 => 2,
        }
    }

    fn is_float(self) -> bool {
        matches!(self, Kind::F32 | Kind::F16 | Kind::Bf16)
    }

    fn is_packed(self) -> bool {
        self.bits() < 8
    }
}

impl<'a> Constant<'a> {
    /// Reads a weight's description. The error explains why the weight is not supported.
    pub fn of(weight: WeightView<'a>) -> Result<Constant<'a>, String> {
        let kind = Kind::of(weight.dtype())
            .ok_or_else(|| format!("constants of element type {} are not supported", weight.dtype()))?;
        let plain = Constant { weight, kind, scaling: None, scale_dtype: SW_DTYPE_F32, zero_point: 0 };
        let Some(quantisation) = weight.quantisation() else {
            return match kind.is_float() {
                true => Ok(plain),
                false => Err(format!("integers of element type {} have no scale", weight.dtype())),
            };
        };
        let rank = weight.shape().len();
        let axis = quantisation.axis() as usize;
        let scaling = match quantisation.kind() {
            SW_QUANTISATION_PER_CHANNEL => Scaling::Channel { axis },
            kind @ (SW_QUANTISATION_PER_BLOCK | SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM)
                if axis + 1 == rank =>
            {
                let minimum = kind == SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM;
                Scaling::Block { size: quantisation.block(), minimum }
            }
            SW_QUANTISATION_PER_BLOCK => {
                return Err(format!(
                    "scales per block along axis {axis} of {rank}, only the last is supported"
                ));
            }
            _ => Scaling::Tensor,
        };
        let zero_points = quantisation.zero_points().map_err(|error| error.message)?;
        let zero_point = zero_points.first().copied().unwrap_or(0);
        if zero_points.iter().any(|existing| *existing != zero_point) {
            return Err("zero points differ within one constant".into());
        }
        let scale_dtype = quantisation.scale_dtype();
        if !matches!(scale_dtype, SW_DTYPE_F32 | SW_DTYPE_F16) {
            return Err(format!("scales of element type {scale_dtype}, only f32 and f16 are supported"));
        }
        Ok(Constant { scaling: Some(scaling), scale_dtype, zero_point, ..plain })
    }

    /// Reads a weight like [`Constant::of`], and also checks that it has all its bytes and finite
    /// scales.
    pub fn complete(weight: WeightView<'a>) -> Result<Constant<'a>, Error> {
        let invalid = |reason: String| Error::invalid_weight(weight.name(), reason);
        let constant = Constant::of(weight).map_err(invalid)?;
        let elements = weight.shape().iter().try_fold(1u64, |product, extent| product.checked_mul(*extent));
        if elements.is_none_or(|elements| elements > MAX_VALUES) {
            return Err(invalid(format!("{:?} values are too many", weight.shape())));
        }
        if Some(weight.length()) != constant.row_bytes().checked_mul(constant.rows()) {
            return Err(invalid(format!(
                "{} bytes for {:?} of {} bits each",
                weight.length(),
                weight.shape(),
                constant.kind.bits()
            )));
        }
        constant.stored()?;
        constant.scales()?;
        Ok(constant)
    }

    /// Returns the number of values.
    pub fn elements(&self) -> u64 {
        self.weight.shape().iter().product()
    }

    fn width(&self) -> u64 {
        self.weight.shape().last().copied().unwrap_or(1)
    }

    fn rows(&self) -> u64 {
        let shape = self.weight.shape();
        shape[..shape.len().saturating_sub(1)].iter().product()
    }

    /// Returns the bytes of a row. Cannot overflow, since the total number of values is limited.
    fn row_bytes(&self) -> u64 {
        self.width().saturating_mul(self.kind.bits()).div_ceil(8)
    }

    /// Checks whether the constant stores integers with a scale.
    pub fn is_quantised(&self) -> bool {
        self.scaling.is_some()
    }

    /// Returns which values share a scale, or `None` for floats.
    pub fn scaling(&self) -> Option<Scaling> {
        self.scaling
    }

    /// Returns the type of the constant's tiles as a matrix stored `[outputs, inputs]` whose
    /// integers are multiplied directly. The error explains why the constant cannot be used like
    /// that.
    pub fn integers(&self) -> Result<IntegerType, String> {
        let kind = match self.kind {
            Kind::I8 => IntegerType::I8,
            Kind::I4 => IntegerType::I4,
            Kind::I2 => IntegerType::I2,
            _ => return Err("signed integers of 8, 4 and 2 bits can be multiplied directly".into()),
        };
        match self.scaling {
            None => Err("integers have no scale".into()),
            // Blocks may have scales and minimums of any form and a zero point. `check` sees no
            // numbers, and must give the verdict that `compile` gives when it sees them.
            Some(Scaling::Block { .. }) => Ok(kind),
            Some(_) if self.zero_point != 0 => {
                Err(format!("integers with zero point {} cannot be multiplied directly", self.zero_point))
            }
            Some(Scaling::Tensor | Scaling::Channel { axis: 0 }) if self.scale_dtype != SW_DTYPE_F32 => {
                Err("scales per tensor or per channel are f16, only f32 is supported".into())
            }
            Some(Scaling::Channel { axis }) if axis != 0 => {
                Err(format!("scales per channel of axis {axis}, only axis 0 is supported"))
            }
            Some(_) => Ok(kind),
        }
    }

    /// Returns the narrowest form in which every scale and minimum is exact.
    pub fn number_form(&self) -> NumberForm {
        let exact = |scales: Vec<f32>| scales.into_iter().all(|scale| half(scale).is_some());
        match self.scale_dtype == SW_DTYPE_F16 || self.scales().is_ok_and(exact) {
            true => NumberForm::F16,
            false => NumberForm::F32,
        }
    }

    /// Returns the stored value that represents zero.
    pub fn zero_point(&self) -> i32 {
        self.zero_point
    }

    /// Returns the type of the constant's panels as a matrix stored `[outputs, inputs]` (`by_rows`)
    /// or `[inputs, outputs]`. The error explains why the constant cannot be such a matrix.
    pub fn matrix(&self, by_rows: bool) -> Result<PanelType, String> {
        match (self.kind, self.scaling) {
            (Kind::F32, _) => Ok(PanelType::F32),
            (Kind::F16, _) => Ok(PanelType::F16),
            (Kind::Bf16, _) => Ok(PanelType::Bf16),
            (Kind::I8, Some(Scaling::Block { .. })) if by_rows => Ok(PanelType::I8),
            (Kind::I4, Some(Scaling::Block { .. })) if by_rows => Ok(PanelType::I4),
            (Kind::I8 | Kind::I4 | Kind::I2, Some(scaling)) if by_rows && self.zero_point == 0 => {
                let kind = self.integers()?;
                match (kind, scaling) {
                    (IntegerType::I2, Scaling::Block { .. }) => {
                        Err("scales per block of 2 bits, only 8 and 4 are supported".into())
                    }
                    (IntegerType::I8, _) => Ok(PanelType::I8),
                    (IntegerType::I4, _) => Ok(PanelType::I4),
                    (IntegerType::I2, _) => Ok(PanelType::I2),
                    // No constant of a graph has these widths.
                    (IntegerType::I6 | IntegerType::I5, _) => {
                        Err(format!("a matrix of {} bits", kind.bits()))
                    }
                }
            }
            (kind, _) if kind.is_packed() && by_rows => {
                Err(format!("a matrix of {} bits with a zero point is not supported", kind.bits()))
            }
            (kind, _) if kind.is_packed() => {
                Err(format!("a matrix of {} bits is supported only as [outputs, inputs]", kind.bits()))
            }
            _ => self.values().map(|()| PanelType::F32),
        }
    }

    /// Checks whether the constant can be decoded to values for any use. The error explains why it
    /// cannot.
    pub fn values(&self) -> Result<(), String> {
        match self.scaling {
            _ if self.kind.is_packed() => {
                Err(format!("{} bits are supported only as weights of a matrix product", self.kind.bits()))
            }
            None | Some(Scaling::Tensor) => Ok(()),
            Some(Scaling::Channel { axis }) => {
                Err(format!("scales per channel of axis {axis} are supported only for matrices"))
            }
            Some(Scaling::Block { .. }) => Err("scales per block are supported only for matrices".into()),
        }
    }

    /// Returns the error that the constant is invalid.
    pub fn invalid(&self, reason: impl Display) -> Error {
        Error::invalid_weight(self.weight.name(), reason)
    }

    /// Returns the stored bytes.
    pub fn stored(&self) -> Result<&'a [u8], Error> {
        self.weight.bytes().map_err(|error| self.invalid(error.message))
    }

    /// Returns the scales and minimums as exact f16 values, or an error if one is not
    /// representable.
    pub fn half_scales(&self) -> Result<Vec<u16>, Error> {
        let exact =
            |scale: f32| half(scale).ok_or_else(|| self.invalid(format!("scale {scale:e} is not an f16")));
        self.scales()?.into_iter().map(exact).collect()
    }

    /// Returns the scales as finite f32 values, empty for floats.
    pub fn scales(&self) -> Result<Vec<f32>, Error> {
        match self.weight.quantisation() {
            Some(quantisation) => quantisation.scale_values().map_err(|error| self.invalid(error.message)),
            None => Ok(Vec::new()),
        }
    }

    /// Reads values from `first` on, as f32. The constant must pass [`Constant::values`].
    pub fn read(&self, first: usize, into: &mut [f32]) -> Result<(), Error> {
        let step = self.kind.bits() as usize / 8;
        let end = first.checked_add(into.len()).and_then(|end| end.checked_mul(step));
        let bytes = end
            .and_then(|end| self.stored().ok()?.get(first * step..end))
            .filter(|_| step > 0)
            .ok_or_else(|| self.invalid("values beyond its end"))?;
        let scale = self.scales()?.first().copied().unwrap_or(1.0);
        // A single multiplication decodes a stored integer.
        let integer = |raw: i32| (i64::from(raw) - i64::from(self.zero_point)) as f32 * scale;
        for (into, raw) in into.iter_mut().zip(bytes.chunks_exact(step)) {
            *into = match (self.kind, raw) {
                (Kind::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
                (Kind::F16, &[a, b]) => widen_f16(u16::from_le_bytes([a, b])),
                (Kind::Bf16, &[a, b]) => widen_bf16(u16::from_le_bytes([a, b])),
                (Kind::U16, &[a, b]) => integer(u16::from_le_bytes([a, b]).into()),
                (Kind::I16, &[a, b]) => integer(i16::from_le_bytes([a, b]).into()),
                (Kind::U8, &[a]) => integer(a.into()),
                (_, &[a]) => integer((a as i8).into()),
                _ => 0.0,
            };
        }
        Ok(())
    }

    /// Reads the stored integers of one row of a matrix of signed integers of at most eight bits.
    pub fn read_integers(&self, row: usize, into: &mut [i8]) -> Result<(), Error> {
        let length = self.row_bytes() as usize;
        let line = row.checked_mul(length).and_then(|start| self.stored().ok()?.get(start..start + length));
        let line = line.ok_or_else(|| self.invalid("rows beyond its end"))?;
        let bits = self.kind.bits() as usize;
        let per_byte = 8 / bits.clamp(1, 8);
        for (index, into) in into.iter_mut().enumerate() {
            let byte = line.get(index / per_byte).copied().unwrap_or(0);
            // Low bits come first. The shift to the top and back sign-extends.
            let shift = 8 - bits - bits * (index % per_byte);
            *into = ((byte << shift) as i8) >> (8 - bits);
        }
        Ok(())
    }
}

/// Returns the f16 that equals a scale, if there is one.
fn half(scale: f32) -> Option<u16> {
    let half = narrow_f16(scale);
    (widen_f16(half) == scale).then_some(half)
}
