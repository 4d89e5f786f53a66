//! GELU in the tanh form without the adapter's GELU operation:
//! `x · (1 + tanh(x · (a + b·x²))) / 2`.
//!
//! For integers, each step covers only the range that affects the result. Beyond ±6 the result is
//! `x` or 0 to the last step, regardless of the inner values. So squares are clamped to 36, and the
//! argument of the hyperbolic tangent to 8.

use shardwright_shim_npu::lowering::{Binary, Unary};
use shardwright_shim_npu::{Encoding as _, Lowering as _, ValueId};

use super::encoding::OperandEncoding;
use super::import::Importer;

/// `a`, which is `√(2/π)`.
const A: f32 = 0.797_884_6;
/// `b`, which is `A · 0.044715`.
const B: f32 = 0.035_677_407;
/// Upper bound for squares.
const MOST_SQUARE: f32 = 36.0;
/// Upper bound for the argument of the hyperbolic tangent.
const MOST_INNER: f32 = 8.0;

/// Writes GELU as eight operations.
pub(super) fn spelled_out(importer: &mut Importer<'_, '_>, x: ValueId, target: OperandEncoding) -> ValueId {
    let reaching = |most| if target.is_fixed() { OperandEncoding::reaching(most) } else { target };
    let [a, b, one] = [A, B, 1.0].map(|value| importer.number(value, target));
    let square = importer.binary(Binary::Multiply, x, x, reaching(MOST_SQUARE));
    let cubic = importer.binary(Binary::Multiply, square, b, reaching(MOST_SQUARE * B));
    let factor = importer.binary(Binary::Add, cubic, a, reaching(MOST_SQUARE * B + A));
    let inner = importer.binary(Binary::Multiply, x, factor, reaching(MOST_INNER));
    let bounded = importer.unary(Unary::Tanh, inner, target);
    let gate = importer.binary(Binary::Add, bounded, one, reaching(2.0));
    let half = importer.scaled(x, 0.5);
    importer.binary(Binary::Multiply, half, gate, target)
}
