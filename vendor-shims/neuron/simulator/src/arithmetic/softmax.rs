//! SOFTMAX over the last dimension.
//!
//! 16-bit integers restate `SoftmaxInt16` in
//! `tensorflow/lite/kernels/internal/reference/softmax.h`: a table of 1/(1 + x), and a table of e^x
//! over [−10, 0] below the row's maximum, **saturating below that**. A masked element therefore
//! still has the weight e⁻¹⁰. 8-bit integers use a table of e^x in floating point, as the optimised
//! form of TensorFlow Lite does.

use super::fixed::Multiplier;
use super::table::Table16;
use super::tensor::{Class, Elements, Layout, Tensor, encoded, from_reals, from_stored};

/// The scale of 16-bit results.
pub const SCALE_16: f32 = 1.0 / 32_768.0;

/// Computes softmax(beta·x).
pub fn softmax(x: &Tensor<'_>, beta: f32, out: &Layout, relaxed: bool) -> Elements<'static> {
    let depth = x.layout.dimensions.last().copied().unwrap_or(1).max(1);
    match (&x.elements, x.layout.class(), out.class()) {
        (Elements::I16(elements), Class::Quantised, Class::Quantised) if out.element_bytes() == 2 => {
            let tables = Tables::new(f64::from(x.layout.scale) * f64::from(beta));
            from_stored(out, elements.chunks(depth).flat_map(|row| tables.row(row)))
        }
        (_, Class::Quantised, Class::Quantised) if x.layout.element_bytes() == 1 => {
            let step = x.layout.scale * beta;
            let table: Vec<f32> = (0..256).map(|below| (-step * below as f32).exp()).collect();
            let stored = x.stored();
            let found = stored.chunks(depth).flat_map(|row| {
                let largest = row.iter().copied().max().unwrap_or(0);
                let sum: f32 = row.iter().map(|q| table[(largest - q) as usize]).sum();
                let table = &table;
                row.iter().map(move |q| f64::from(table[(largest - q) as usize] / sum)).collect::<Vec<_>>()
            });
            encoded(out, found, relaxed)
        }
        _ => {
            let decoded: Vec<f32> = match x.layout.class() {
                Class::Real => x.reals(relaxed).into_owned(),
                _ => x.decoded(relaxed).into_iter().map(|x| x as f32).collect(),
            };
            let found: Vec<f32> = decoded
                .chunks(depth)
                .flat_map(|row| {
                    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let powers: Vec<f32> = row.iter().map(|x| ((x - largest) * beta).exp()).collect();
                    let sum: f32 = powers.iter().sum();
                    powers.into_iter().map(move |power| power / sum)
                })
                .collect();
            match out.class() {
                Class::Real => from_reals(out, found.into_iter(), relaxed),
                _ => encoded(out, found.into_iter().map(f64::from), relaxed),
            }
        }
    }
}

struct Tables {
    exponential: Table16,
    reciprocal: Table16,
    /// Scales a difference of stored integers to steps of 10/65535.
    input: Multiplier,
}

impl Tables {
    fn new(step: f64) -> Tables {
        Tables {
            exponential: Table16::new(f64::exp, -10.0, 0.0, -1.0, 1.0),
            reciprocal: Table16::new(|x| 1.0 / (1.0 + x), 0.0, 1.0, -1.0, 1.0),
            input: Multiplier::new(step / (10.0 / 65_535.0)),
        }
    }

    fn row(&self, row: &[i16]) -> Vec<i32> {
        let largest = i32::from(row.iter().copied().max().unwrap_or(0));
        let powers: Vec<i16> = row
            .iter()
            .map(|x| {
                let below = self.input.apply(i32::from(*x) - largest);
                let at = below.saturating_add(32_767).clamp(-32_768, 32_767);
                self.exponential.at(at as i16)
            })
            .collect();
        let sum: i64 = powers.iter().map(|power| i64::from(*power)).sum();
        // The largest element contributes 32767, and a row has fewer than 2¹⁶ elements, so the sum
        // fits into 31 bits.
        let sum = sum.clamp(1, i64::from(i32::MAX)) as u32;
        let headroom = sum.leading_zeros();
        let shifted = ((i64::from(sum) << (headroom - 1)) + (1 << 13)) >> 14;
        let at = (shifted - ((1 << 15) + (1 << 16))).clamp(-32_768, 32_767);
        let reciprocal = i64::from(self.reciprocal.at(at as i16));
        let right = 31 - headroom;
        powers
            .into_iter()
            .map(|power| {
                let round = if right > 0 { 1i64 << (right - 1) } else { 0 };
                ((i64::from(power) * reciprocal + round) >> right).clamp(0, 32_767) as i32
            })
            .collect()
    }
}
