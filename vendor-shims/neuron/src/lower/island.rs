//! What integers of 16 bits do badly is done in floats, between a `DEQUANTIZE` and a `QUANTIZE`.
//!
//! A mean of squares of 16-bit values keeps too few steps where one value stands out, and a
//! reciprocal root has no range that calibration knows: spelled out, norms lose several per cent in
//! integers. In floats they lose what 16-bit floats lose, since the model is relaxed. Before
//! squares are taken, values are divided by what they reach, so that nothing leaves the range of a
//! 16-bit float; a norm does not notice but for its epsilon, which is divided as well.

use shardwright_neuron_adapter::operation;
use shardwright_shim_npu::ValueId;

use super::draft::Compute;
use super::encoding::{Encoding, Family};
use super::import::Importer;

/// Least epsilon of a norm of values divided by what they reach: what a 16-bit float still holds.
const LEAST_EPSILON: f32 = 6.2e-8;
/// The square of the least length a vector is divided by, of the contract's `max(‖x‖, 1e-12)`.
const L2_EPSILON: f32 = 1e-24;

/// The family computed in for results of an encoding: floats throughout.
pub(super) fn family(target: Encoding) -> Family {
    match target {
        Encoding::Half => Family::Half,
        _ => Family::Single,
    }
}

fn encoding(family: Family) -> Encoding {
    match family {
        Family::Half => Encoding::Half,
        Family::Single | Family::Fixed => Encoding::Single,
    }
}

/// A value in floats. Constants are made for the island as they are.
fn enter(importer: &mut Importer<'_, '_>, value: ValueId, family: Family) -> ValueId {
    match importer.work.draft.encoding(value) {
        None => value,
        Some(_) => importer.convert(value, encoding(family)),
    }
}

/// One operation on one value.
pub(super) fn unary(importer: &mut Importer<'_, '_>, kind: i32, x: ValueId, target: Encoding) -> ValueId {
    let family = family(target);
    let x = enter(importer, x, family);
    let result = importer.unary(kind, x, encoding(family));
    importer.convert(result, target)
}

/// `a / b`.
pub(super) fn divide(importer: &mut Importer<'_, '_>, a: ValueId, b: ValueId, target: Encoding) -> ValueId {
    let family = family(target);
    let (a, b) = (enter(importer, a, family), enter(importer, b, family));
    let result = importer.binary(operation::DIV, a, b, encoding(family));
    importer.convert(result, target)
}

/// `max(x, value)`.
pub(super) fn maximum(importer: &mut Importer<'_, '_>, x: ValueId, value: f32, target: Encoding) -> ValueId {
    let family = family(target);
    let x = enter(importer, x, family);
    let value = importer.number(value, family);
    let result = importer.binary(operation::MAXIMUM, x, value, encoding(family));
    importer.convert(result, target)
}

fn reduced(importer: &mut Importer<'_, '_>, kind: i32, x: ValueId, encoding: Encoding) -> ValueId {
    let mut shape = importer.work.draft.shape(x).to_vec();
    shape.last_mut().into_iter().for_each(|last| *last = 1);
    importer.work.act(Compute::Reduce(kind), &[x], shape, encoding)
}

/// A sum, mean or maximum over the last axis.
pub(super) fn reduce(importer: &mut Importer<'_, '_>, kind: i32, x: ValueId, target: Encoding) -> ValueId {
    let family = family(target);
    let x = enter(importer, x, family);
    let result = reduced(importer, kind, x, encoding(family));
    importer.convert(result, target)
}

/// Values divided by what they reach, and what that is.
fn within_one(importer: &mut Importer<'_, '_>, x: ValueId, family: Family) -> (ValueId, f32) {
    let reach = importer.work.encoding_of(x).reach();
    let x = enter(importer, x, family);
    let Some(reach) = reach.filter(|reach| reach.is_normal()) else { return (x, 1.0) };
    let part = importer.number(reach.recip(), family);
    (importer.binary(operation::MUL, x, part, encoding(family)), reach)
}

/// A root mean square norm over the last axis without the extension's operation:
/// `x · rsqrt(mean(x²) + eps) · gamma`.
pub(super) fn rms_norm(
    importer: &mut Importer<'_, '_>,
    x: ValueId,
    gamma: Option<ValueId>,
    eps: f32,
    target: Encoding,
) -> ValueId {
    let family = family(importer.work.encoding_of(x));
    let inside = encoding(family);
    let (x, reach) = within_one(importer, x, family);
    let least = if reach == 1.0 { 0.0 } else { LEAST_EPSILON };
    let eps = importer.number((eps / reach / reach).max(least), family);
    let squares = importer.binary(operation::MUL, x, x, inside);
    let mean = reduced(importer, operation::MEAN, squares, inside);
    let mean = importer.binary(operation::ADD, mean, eps, inside);
    let root = importer.unary(operation::RSQRT, mean, inside);
    let mut normed = importer.binary(operation::MUL, x, root, inside);
    if let Some(gamma) = gamma {
        normed = importer.binary(operation::MUL, normed, gamma, inside);
    }
    importer.convert(normed, target)
}

/// Vectors of length one along the last axis.
pub(super) fn l2_normalize(importer: &mut Importer<'_, '_>, x: ValueId, target: Encoding) -> ValueId {
    let family = family(importer.work.encoding_of(x));
    let inside = encoding(family);
    let (x, reach) = within_one(importer, x, family);
    let least = if reach == 1.0 { L2_EPSILON } else { LEAST_EPSILON };
    let squares = importer.binary(operation::MUL, x, x, inside);
    let sum = reduced(importer, operation::REDUCE_SUM, squares, inside);
    let least = importer.number(least, family);
    let sum = importer.binary(operation::MAXIMUM, sum, least, inside);
    let root = importer.unary(operation::RSQRT, sum, inside);
    let normed = importer.binary(operation::MUL, x, root, inside);
    importer.convert(normed, target)
}
