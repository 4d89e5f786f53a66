//! QUANTIZE (also from one quantisation to another), DEQUANTIZE and CAST.
//!
//! Conversion between integers restates `Requantize` in
//! `tensorflow/lite/kernels/internal/reference/requantize.h`.

use super::fixed::Multiplier;
use super::tensor::{Class, Elements, Layout, Tensor, encoded, from_stored};

/// Converts x to the quantisation of `out`, or to real numbers.
pub fn converted(x: &Tensor<'_>, out: &Layout, relaxed: bool) -> Elements<'static> {
    if x.layout.class() == Class::Quantised && out.class() == Class::Quantised && x.layout.channels.is_none()
    {
        if x.layout.means_the_same(out) {
            return from_stored(out, x.stored().into_iter());
        }
        let multiplier = Multiplier::new(f64::from(x.layout.scale) / f64::from(out.scale));
        let (least, greatest) = out.range();
        let zero = x.layout.zero_point;
        let found = x
            .stored()
            .into_iter()
            .map(|q| multiplier.apply(q - zero).saturating_add(out.zero_point).clamp(least, greatest));
        return from_stored(out, found);
    }
    encoded(out, x.decoded(relaxed).into_iter(), relaxed)
}

/// Computes CAST, which converts stored numbers without scales. Casts to integers round towards
/// zero.
pub fn cast(x: &Tensor<'_>, out: &Layout, relaxed: bool) -> Elements<'static> {
    let as_stored: Vec<f64> = match x.layout.class() {
        Class::Real => x.decoded(relaxed),
        _ => x.stored().into_iter().map(f64::from).collect(),
    };
    match out.class() {
        Class::Quantised => {
            let (least, greatest) = out.range();
            from_stored(out, as_stored.into_iter().map(|x| (x as i32).clamp(least, greatest)))
        }
        _ => encoded(out, as_stored.into_iter(), relaxed),
    }
}
