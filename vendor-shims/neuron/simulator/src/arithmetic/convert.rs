//! QUANTIZE (also from one quantisation to another), DEQUANTIZE and CAST.
//!
//! Between integers after `Requantize` in
//! `tensorflow/lite/kernels/internal/reference/requantize.h`, restated.

use super::fixed::Multiplier;
use super::tensor::{Class, Elements, Layout, Tensor, encoded, from_stored};

/// The real numbers of x in the quantisation of `out`, or as real numbers.
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

/// CAST: stored numbers without scales; towards zero into integers.
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
