//! Encodings of activations, and the encodings that lowering chooses itself.

use shardwright_shim_abi::{TensorView, raw};

use shardwright_shim_npu as npu;
use shardwright_shim_npu::Encoding as _;
use shardwright_shim_npu::encoding::{dtype_name, per_tensor};

use crate::graph::{DataType, QnnEncoding, ScaleOffset};

/// Largest stored value of 16 bits.
const LARGEST_16: f32 = 65_535.0;
/// Zero point at the middle of 16 bits.
const MIDDLE: i32 = 32_768;
/// Largest stored value of 8 bits.
const LARGEST_8: f32 = 255.0;

/// Encoding `value = (stored − zero) · scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Affine {
    /// Positive and finite.
    pub scale: f32,
    /// One of the stored values.
    pub zero: i32,
}

/// Storage of an activation's elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TensorEncoding {
    /// f32, only at ports.
    Single,
    Half,
    /// u16 with one scale.
    Fixed16(Affine),
    /// u8 with one scale, for states and the values written to them.
    Fixed8(Affine),
    /// i32, for positions and slots.
    Index,
}

impl npu::Encoding for TensorEncoding {
    const HALF: TensorEncoding = TensorEncoding::Half;
    /// The interval [0, 1) at 16 bits.
    const FRACTION: TensorEncoding = TensorEncoding::Fixed16(Affine { scale: 1.0 / 65_536.0, zero: 0 });
    const SIGNED_FRACTION: TensorEncoding =
        TensorEncoding::Fixed16(Affine { scale: 1.0 / 32_768.0, zero: 32_768 });

    fn of(tensor: &TensorView<'_>) -> Result<TensorEncoding, String> {
        let affine = || per_tensor(tensor).map(|(scale, zero)| Affine { scale, zero });
        match tensor.dtype() {
            raw::SW_DTYPE_U16 => affine().map(TensorEncoding::Fixed16),
            raw::SW_DTYPE_U8 => affine().map(TensorEncoding::Fixed8),
            raw::SW_DTYPE_F16 => Ok(TensorEncoding::Half),
            raw::SW_DTYPE_F32 => Ok(TensorEncoding::Single),
            raw::SW_DTYPE_I32 if tensor.quantisation().is_none() => Ok(TensorEncoding::Index),
            other => Err(format!("{} activations are computed wrongly or not at all", dtype_name(other))),
        }
    }

    fn is_index(self) -> bool {
        self == TensorEncoding::Index
    }

    fn is_fixed(self) -> bool {
        matches!(self, TensorEncoding::Fixed16(_) | TensorEncoding::Fixed8(_))
    }

    /// Widens 8 bits to 16 bits over the same interval.
    fn computed(self) -> TensorEncoding {
        match (self, self.ends()) {
            (TensorEncoding::Fixed8(_), Some((low, high))) => TensorEncoding::covering(low, high),
            _ => self,
        }
    }

    fn scaled(self, factor: f32) -> TensorEncoding {
        match self {
            TensorEncoding::Fixed16(affine) => {
                let scale = (affine.scale * factor).max(f32::MIN_POSITIVE);
                TensorEncoding::Fixed16(Affine { scale, zero: affine.zero })
            }
            other => other,
        }
    }

    fn ends(self) -> Option<(f32, f32)> {
        let (affine, largest) = match self {
            TensorEncoding::Fixed16(affine) => (affine, LARGEST_16),
            TensorEncoding::Fixed8(affine) => (affine, LARGEST_8),
            _ => return None,
        };
        let zero = affine.zero as f32;
        Some((-zero * affine.scale, (largest - zero) * affine.scale))
    }

    fn describe(self) -> String {
        match self {
            TensorEncoding::Single => "f32".to_owned(),
            TensorEncoding::Half => "f16".to_owned(),
            TensorEncoding::Index => "i32".to_owned(),
            TensorEncoding::Fixed16(affine) => {
                format!("u16 (scale {:e}, zero point {})", affine.scale, affine.zero)
            }
            TensorEncoding::Fixed8(affine) => {
                format!("u8 (scale {:e}, zero point {})", affine.scale, affine.zero)
            }
        }
    }
}

impl TensorEncoding {
    /// Returns u16 over an interval that includes zero.
    pub fn covering(low: f32, high: f32) -> TensorEncoding {
        let (low, high) = (low.min(0.0), high.max(0.0));
        let scale = ((high - low) / LARGEST_16).max(f32::MIN_POSITIVE);
        let zero = (-low / scale).round_ties_even().clamp(0.0, LARGEST_16) as i32;
        TensorEncoding::Fixed16(Affine { scale, zero })
    }

    /// Returns 16 bits over the same interval, which represent exactly the same values, because
    /// 65,535 is 257 times 255. With the 8-bit scale the library's products would round to steps of
    /// that size.
    pub fn widened(self) -> TensorEncoding {
        match self {
            TensorEncoding::Fixed8(affine) => {
                let scale = (affine.scale / 257.0).max(f32::MIN_POSITIVE);
                TensorEncoding::Fixed16(Affine { scale, zero: affine.zero * 257 })
            }
            other => other,
        }
    }

    /// Returns centred 16 bits that represent the same values. Values of 8 bits are represented
    /// exactly, as the library's products require of a second operand.
    pub fn centred(self) -> TensorEncoding {
        let scale = match (self, self.ends()) {
            // At most 255 steps on either side.
            (TensorEncoding::Fixed8(affine), _) => affine.scale / 128.0,
            (TensorEncoding::Fixed16(affine), Some((low, high))) if affine.zero != MIDDLE => {
                low.abs().max(high.abs()) / (MIDDLE - 1) as f32
            }
            _ => return self,
        };
        TensorEncoding::Fixed16(Affine { scale: scale.max(f32::MIN_POSITIVE), zero: MIDDLE })
    }

    /// Returns u16 over the range of `self`'s values multiplied by anything from −1 to 1. Floats
    /// are unchanged. A range that is symmetric except for one step is unchanged too, because equal
    /// encodings need no conversion.
    pub fn turned(self) -> TensorEncoding {
        match (self, self.ends()) {
            (TensorEncoding::Fixed16(affine), _) if (MIDDLE - 1..=MIDDLE).contains(&affine.zero) => self,
            (_, Some((low, high))) => {
                let reach = low.abs().max(high.abs());
                TensorEncoding::covering(-reach, reach)
            }
            (_, None) => self,
        }
    }

    /// Returns scale and zero point of a port with this encoding. Floats have 1 and 0.
    pub fn affine(self) -> (f64, i64) {
        match self {
            TensorEncoding::Fixed16(affine) | TensorEncoding::Fixed8(affine) => {
                (f64::from(affine.scale), i64::from(affine.zero))
            }
            TensorEncoding::Single | TensorEncoding::Half | TensorEncoding::Index => (1.0, 0),
        }
    }

    /// Returns the element type in the compiler's graph.
    pub fn dtype(self) -> DataType {
        match self {
            TensorEncoding::Single => DataType::Float32,
            TensorEncoding::Half => DataType::Float16,
            TensorEncoding::Fixed16(_) => DataType::Ufixed16,
            TensorEncoding::Fixed8(_) => DataType::Ufixed8,
            TensorEncoding::Index => DataType::Int32,
        }
    }

    /// Returns the encoding in the compiler's graph.
    pub fn qnn(self) -> QnnEncoding {
        match self {
            TensorEncoding::Fixed16(affine) | TensorEncoding::Fixed8(affine) => {
                QnnEncoding::PerTensor(ScaleOffset { scale: affine.scale, offset: -affine.zero })
            }
            TensorEncoding::Single | TensorEncoding::Half | TensorEncoding::Index => QnnEncoding::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use shardwright_shim_npu::Encoding as _;

    use super::*;

    #[test]
    fn chosen_encodings_cover_their_values() {
        for (low, high) in [(-3.0, 5.0), (0.5, 2.0), (-4.0, -1.0), (0.0, 0.0), (-1e-8, 1e8)] {
            let encoding = TensorEncoding::covering(low, high);
            let (from, to) = encoding.ends().expect("fixed point");
            let step = (to - from) / LARGEST_16;
            assert!(from <= low.min(0.0) + step && to >= high.max(0.0) - step, "{low} {high}: {from} {to}");
            assert!(from <= 0.0 && to >= 0.0);
        }
        let state = TensorEncoding::Fixed8(Affine { scale: 0.5, zero: 100 });
        let (low, high) = state.computed().ends().expect("fixed point");
        assert!((low + 50.0).abs() < 0.01 && (high - 77.5).abs() < 0.01);
        assert_eq!(state.widened(), TensorEncoding::Fixed16(Affine { scale: 0.5 / 257.0, zero: 25_700 }));
        assert_eq!(state.centred(), TensorEncoding::Fixed16(Affine { scale: 0.5 / 128.0, zero: 32_768 }));
        let (low, high) = TensorEncoding::covering(-1.0, 7.0).centred().ends().expect("fixed point");
        assert!((low + 7.0).abs() < 0.01 && (high - 7.0).abs() < 0.01);
        assert_eq!(TensorEncoding::SIGNED_FRACTION.centred(), TensorEncoding::SIGNED_FRACTION);
        let (low, high) = state.turned().ends().expect("fixed point");
        assert!((low + 77.5).abs() < 0.01 && (high - 77.5).abs() < 0.01);
        assert_eq!(TensorEncoding::Half.computed(), TensorEncoding::Half);
        assert_eq!(TensorEncoding::Half.turned(), TensorEncoding::Half);
        assert_eq!(TensorEncoding::SIGNED_FRACTION.turned(), TensorEncoding::SIGNED_FRACTION);
    }
}
