//! Products with blocks of weights that have an affine map instead of a binary16 scale: the scales
//! are binary32, the blocks have minimums, or a stored value other than zero represents zero. The
//! types `Q4_K` and `Q6_K` of GGUF files have such blocks.
//!
//! A weight is `(stored − zero) · scale − minimum`, so a block of a row contributes
//! `scale · Σ q · (stored − zero)` and `−minimum · Σ q`. Both sums are exact. Block after block,
//! `acc = fma(block sum, scale, acc)`, then `acc = fma(Σ q, −minimum, acc)` if there are minimums.
//! If blocks of the row have scales, scale and minimum are multiplied by them first. Each row and
//! panel is computed separately, so the number of rows changes no bit.

use super::pack::STEP;
use super::results::{finish_paired, finish_scaled};
use super::tile::{I2, I4, I8, Stored, Target, product};
use super::{IntegerType, Operands};
use crate::kernels::linear::Scales;
use crate::simd::Simd;
use crate::simd::dot::{Dot, VECTOR, dispatch_dot};

/// Checks whether the blocks of the weights have affine maps.
pub fn takes(operands: &Operands<'_>) -> bool {
    matches!(operands.weights.scales, Scales::Affine { .. })
}

dispatch_dot! {
    /// Multiplies rows `row..row + rows` by panels `panel..panel + panels`. [`takes`] must return
    /// true.
    pub(super) fn multiply_at => multiply(
        operands: Operands<'_>, row: usize, rows: usize, panel: usize, panels: usize, target: Target<'_>,
    )
}

#[inline(always)]
fn multiply<D: Dot>(
    d: D,
    operands: Operands<'_>,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    target: Target<'_>,
) {
    for panel in panel..panel + panels {
        for row in row..row + rows {
            match operands.weights.kind {
                IntegerType::I8 => one_row::<D, I8>(d, operands, row, panel, target),
                IntegerType::I4 => one_row::<D, I4>(d, operands, row, panel, target),
                IntegerType::I2 => one_row::<D, I2>(d, operands, row, panel, target),
            }
        }
    }
}

/// Multiplies a row by a panel.
#[inline(always)]
fn one_row<D: Dot, W: Stored>(d: D, operands: Operands<'_>, row: usize, panel: usize, target: Target<'_>) {
    let Operands { weights, geometry, rows, .. } = operands;
    let Scales::Affine { size, zero, minimum, values } = weights.scales else {
        unreachable!("`takes` returned true")
    };
    let f = d.values();
    let bytes = geometry.panel_bytes(weights.kind);
    let stored = weights.data[panel * bytes..][..bytes].as_chunks::<VECTOR>().0;
    let q = &rows.q[row * geometry.length..][..geometry.length];
    let totals = &rows.sums[row * geometry.blocks..][..geometry.blocks];
    // Operands are stored values plus this offset, which is subtracted together with the zero
    // point.
    let offset = if W::SMALL { weights.kind.offset() } else { D::OFFSET };
    let vectors = 4 / W::PARTS;
    let numbers = if minimum { 2 } else { 1 };
    let first_map = panel * geometry.inputs.div_ceil(size);
    let mut value = f.splat(0.0);
    let mut place = 0;
    for (block, total) in totals.iter().enumerate() {
        let end = place + geometry.places(block);
        let mut sums = d.splat(offset.wrapping_add(zero).wrapping_mul(*total).wrapping_neg());
        let steps = stored[place / STEP * vectors..].chunks_exact(vectors);
        for (q, vectors) in q[place..end].chunks_exact(STEP).zip(steps) {
            // SAFETY: a step of a row has sixteen bytes, and a vector of weights `VECTOR` bytes. A
            // step of weights has four operands.
            unsafe {
                let step = d.step(q.as_ptr());
                for (at, vector) in vectors.iter().enumerate() {
                    let bytes = d.load(vector.as_ptr());
                    for part in 0..W::PARTS {
                        let operand = W::part(d, bytes, part);
                        sums = product::<D, W>(d, sums, operand, step, at * W::PARTS + part);
                    }
                }
            }
        }
        place = end;
        let of_row = match geometry.scaled {
            true => rows.scales[row * geometry.blocks + block],
            false => 1.0,
        };
        let (of_row, map) = (f.splat(of_row), (first_map + block * geometry.block / size) * numbers);
        value = f.fma(d.widen(sums), f.mul(of_row, values.load(f, map)), value);
        if minimum {
            let minimum = f.mul(of_row, values.load(f, map + 1));
            value = f.fma(f.splat(*total as f32), f.neg(minimum), value);
        }
    }
    match geometry.scaled {
        true => finish_paired(f, value, operands, row, panel, target),
        false => finish_scaled(f, value, operands, row, panel, target),
    }
}
