//! Unsigned 16-bit integers as values and back.

use serde::{Deserialize, Serialize};
use shardwright_shim_abi::raw::{SW_DTYPE_F32, SW_QUANTISATION_PER_TENSOR};
use shardwright_shim_abi::{Error, QuantisationView, Result};

/// value = (stored − zero point) · scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Affine {
    /// As bits: text would have to be read back to the same ones.
    scale_bits: u32,
    pub(crate) zero_point: i32,
}

impl Affine {
    /// `None` for what no tensor is encoded with.
    pub(crate) fn new(scale: f32, zero_point: i32) -> Option<Affine> {
        let affine = Affine { scale_bits: scale.to_bits(), zero_point };
        affine.is_possible().then_some(affine)
    }

    /// Of a tensor or constant whose kind was judged before.
    pub(crate) fn of(quantisation: QuantisationView<'_>) -> Result<Affine> {
        let wrong = || Error::invalid_argument("a scale or zero point is not one of 16-bit integers");
        let per_tensor = quantisation.kind() == SW_QUANTISATION_PER_TENSOR;
        if !per_tensor || quantisation.scale_dtype() != SW_DTYPE_F32 {
            return Err(wrong());
        }
        let scale = quantisation.scales()?.first_chunk::<4>().copied().ok_or_else(wrong)?;
        let zero_point = quantisation.zero_points()?.first().copied().unwrap_or(0);
        Affine::new(f32::from_le_bytes(scale), zero_point).ok_or_else(wrong)
    }

    pub(crate) fn is_possible(self) -> bool {
        let scale = self.scale();
        scale.is_finite() && scale > 0.0 && (0..=i32::from(u16::MAX)).contains(&self.zero_point)
    }

    pub(crate) fn scale(self) -> f32 {
        f32::from_bits(self.scale_bits)
    }

    /// Steps from zero.
    pub(crate) fn centred(self, stored: u16) -> i32 {
        i32::from(stored) - self.zero_point
    }

    /// One multiplication in f32.
    pub(crate) fn value(self, stored: u16) -> f32 {
        self.centred(stored) as f32 * self.scale()
    }

    /// The nearest stored value, ties to even, ends saturating; NaN is stored as 0.
    pub(crate) fn store(self, value: f32) -> u16 {
        let steps = (value / self.scale()).round_ties_even();
        // A cast saturates and turns NaN into 0.
        (f64::from(steps) + f64::from(self.zero_point)) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_even_and_ends_saturate() {
        let affine = Affine::new(0.5, 100).unwrap();
        let cases = [
            (0.0, 100),
            (0.25, 100),
            (0.75, 102),
            (-0.25, 100),
            (-50.0, 0),
            (-50.5, 0),
            (1e9, 65535),
            (f32::NAN, 0),
            (f32::INFINITY, 65535),
            (f32::NEG_INFINITY, 0),
        ];
        for (value, stored) in cases {
            assert_eq!(affine.store(value), stored, "{value}");
        }
        for stored in 0..=u16::MAX {
            assert_eq!(affine.store(affine.value(stored)), stored);
        }
        assert_eq!((affine.value(0), affine.value(103)), (-50.0, 1.5));
    }

    #[test]
    fn impossible_encodings_are_none() {
        for (scale, zero_point) in
            [(0.0, 0), (-1.0, 0), (f32::NAN, 0), (f32::INFINITY, 0), (1.0, -1), (1.0, 65536)]
        {
            assert_eq!(Affine::new(scale, zero_point), None, "{scale} {zero_point}");
        }
    }
}
