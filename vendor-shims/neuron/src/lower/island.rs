//! Computes in floats, between a `DEQUANTIZE` and a `QUANTIZE`, the operations for which 16-bit
//! integers are too inaccurate.
//!
//! A mean of squares of 16-bit values keeps too few steps if one value is an outlier. A reciprocal
//! root has no range that calibration knows. Norms written out in integers therefore lose several
//! per cent of accuracy. In floats they only lose the precision of 16-bit floats, because the model
//! is relaxed. Before squaring, values are divided by their largest magnitude, so that no value
//! exceeds the range of a 16-bit float. A norm is invariant to this division except for its
//! epsilon, which is divided as well.

use shardwright_neuron_adapter::operation;
use shardwright_shim_npu::lowering::{Binary, Unary};
use shardwright_shim_npu::{Lowering as _, ValueId};

use super::draft::Compute;
use super::encoding::OperandEncoding;
use super::import::Importer;

/// Smallest epsilon of a norm of scaled values: the smallest value that a 16-bit float can
/// represent.
const LEAST_EPSILON: f32 = 6.2e-8;
/// Square of the smallest length by which a vector is divided, from the contract's
/// `max(‖x‖, 1e-12)`.
const L2_EPSILON: f32 = 1e-24;

/// Returns the float encoding in which values with the encoding `target` are computed.
pub(super) fn inside(target: OperandEncoding) -> OperandEncoding {
    match target {
        OperandEncoding::Half => OperandEncoding::Half,
        _ => OperandEncoding::Single,
    }
}

/// Converts a value to floats. Constants are already created in floats.
fn enter(importer: &mut Importer<'_, '_>, value: ValueId, inside: OperandEncoding) -> ValueId {
    match importer.work.draft.encoding(value) {
        None => value,
        Some(_) => importer.convert(value, inside),
    }
}

/// Adds an operation on one value.
pub(super) fn unary(
    importer: &mut Importer<'_, '_>,
    kind: i32,
    x: ValueId,
    target: OperandEncoding,
) -> ValueId {
    let inside = inside(target);
    let x = enter(importer, x, inside);
    let result = importer.work.act_like(Compute::Unary(kind), x, inside);
    importer.convert(result, target)
}

/// Adds an operation on two values.
pub(super) fn binary(
    importer: &mut Importer<'_, '_>,
    kind: Compute,
    a: ValueId,
    b: ValueId,
    target: OperandEncoding,
) -> ValueId {
    let inside = inside(target);
    let (a, b) = (enter(importer, a, inside), enter(importer, b, inside));
    let result = importer.work.act_broadcast(kind, a, b, inside);
    importer.convert(result, target)
}

/// Adds a sum, mean or maximum over the last axis.
pub(super) fn reduce(
    importer: &mut Importer<'_, '_>,
    kind: i32,
    x: ValueId,
    target: OperandEncoding,
) -> ValueId {
    let inside = inside(target);
    let x = enter(importer, x, inside);
    let result = importer.work.act_reduced(Compute::Reduce(kind), x, inside);
    importer.convert(result, target)
}

/// Divides values by the largest magnitude that they can have. Returns the quotient and that
/// magnitude.
fn within_one(importer: &mut Importer<'_, '_>, x: ValueId, inside: OperandEncoding) -> (ValueId, f32) {
    let reach = importer.work.encoding_of(x).reach();
    let x = enter(importer, x, inside);
    let Some(reach) = reach.filter(|reach| reach.is_normal()) else { return (x, 1.0) };
    let part = importer.number(reach.recip(), inside);
    (importer.binary(Binary::Multiply, x, part, inside), reach)
}

/// Adds an RMS norm over the last axis without the extension's operation:
/// `x · rsqrt(mean(x²) + eps) · gamma`.
pub(super) fn rms_norm(
    importer: &mut Importer<'_, '_>,
    x: ValueId,
    gamma: Option<ValueId>,
    eps: f32,
    target: OperandEncoding,
) -> ValueId {
    let inside = inside(importer.work.encoding_of(x));
    let (x, reach) = within_one(importer, x, inside);
    let least = if reach == 1.0 { 0.0 } else { LEAST_EPSILON };
    let eps = importer.number((eps / reach / reach).max(least), inside);
    let squares = importer.binary(Binary::Multiply, x, x, inside);
    let mean = importer.work.act_reduced(Compute::Reduce(operation::MEAN), squares, inside);
    let mean = importer.binary(Binary::Add, mean, eps, inside);
    let root = importer.unary(Unary::ReciprocalRoot, mean, inside);
    let mut normed = importer.binary(Binary::Multiply, x, root, inside);
    if let Some(gamma) = gamma {
        normed = importer.binary(Binary::Multiply, normed, gamma, inside);
    }
    importer.convert(normed, target)
}

/// Adds an L2 normalisation along the last axis.
pub(super) fn l2_normalize(importer: &mut Importer<'_, '_>, x: ValueId, target: OperandEncoding) -> ValueId {
    let inside = inside(importer.work.encoding_of(x));
    let (x, reach) = within_one(importer, x, inside);
    let least = if reach == 1.0 { L2_EPSILON } else { LEAST_EPSILON };
    let squares = importer.binary(Binary::Multiply, x, x, inside);
    let sum = importer.work.act_reduced(Compute::Reduce(operation::REDUCE_SUM), squares, inside);
    let least = importer.number(least, inside);
    let sum = importer.binary(Binary::Maximum, sum, least, inside);
    let root = importer.unary(Unary::ReciprocalRoot, sum, inside);
    let normed = importer.binary(Binary::Multiply, x, root, inside);
    importer.convert(normed, target)
}
