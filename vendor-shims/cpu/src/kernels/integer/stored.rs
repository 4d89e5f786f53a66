//! Forms in which weights are stored and multiplied.
//!
//! [`pack`](super::pack) describes the vectors of each type.

use super::geometry::STEP;
use crate::simd::dot::{Dot, VECTOR};

/// Form of the operands of a product.
pub trait Form {
    /// Most operands whose products may be added in sixteen bits (see [`Dot::GROUPS`]): four of
    /// bytes within 0 and 31, two of bytes within 0 and 63, one of signed bytes.
    const SUMS: usize;
    /// Whether operands are unsigned fields, within 0 and 63.
    const SMALL: bool = Self::SUMS > 1;
    /// Whether the rows are raised instead of the operands.
    const RAISED: bool = false;
    /// Whether only weights in blocks have this form. The other modes are then not compiled.
    const IN_BLOCKS: bool = false;
}

/// Storage format of weights.
pub trait Stored: Form {
    /// Inputs of a step: [`STEP`], or twice as many.
    const INPUTS: usize = STEP;
    /// Number of operands in a vector.
    const PARTS: usize;
    /// Whether a step ends with a vector of high bits.
    const HIGH: bool = false;
    /// Vectors of a step that contain operands, or their low bits.
    const LOW_VECTORS: usize = Self::INPUTS / 4 / Self::PARTS;
    /// Vectors of a step.
    const VECTORS: usize = Self::LOW_VECTORS + Self::HIGH as usize;
    /// Unpacks operand `index` of a step from the vector that contains it. `high` is the vector of
    /// high bits, if there is one.
    fn operand<D: Dot>(d: D, bytes: D::Bytes, high: D::Bytes, index: usize) -> D::Bytes;
}

/// Signed bytes.
pub struct I8;
/// Six bits: four in a half of a byte, and two in a vector of high bits.
pub struct I6;
/// Five bits: four in a half of a byte, and one in a vector of high bits.
pub struct I5;
/// Two values in a byte.
pub struct I4;
/// Four values in a byte.
pub struct I2;
/// Signed bytes for raised rows.
pub struct Raised;
/// Operands that were unpacked before, with these [sums](Form::SUMS).
pub struct Ready<const SUMS: usize>;

impl Form for I8 {
    const SUMS: usize = 1;
}
impl Form for I6 {
    const SUMS: usize = 2;
    const IN_BLOCKS: bool = true;
}
impl Form for I5 {
    const SUMS: usize = 4;
    const IN_BLOCKS: bool = true;
}
impl Form for I4 {
    const SUMS: usize = 4;
}
impl Form for I2 {
    const SUMS: usize = 4;
}
impl Form for Raised {
    const SUMS: usize = 1;
    const RAISED: bool = true;
}
impl<const S: usize> Form for Ready<S> {
    const SUMS: usize = S;
    // Of the types with two sums, there is only `I6`.
    const IN_BLOCKS: bool = S == I6::SUMS;
}

impl Stored for I8 {
    const PARTS: usize = 1;
    #[inline(always)]
    fn operand<D: Dot>(d: D, bytes: D::Bytes, _: D::Bytes, _: usize) -> D::Bytes {
        d.signed(bytes)
    }
}
impl Stored for I6 {
    const PARTS: usize = 2;
    const HIGH: bool = true;
    #[inline(always)]
    fn operand<D: Dot>(d: D, bytes: D::Bytes, high: D::Bytes, index: usize) -> D::Bytes {
        d.deepen(d.field(bytes, 4, index % 2), high, index)
    }
}
impl Stored for I5 {
    const INPUTS: usize = 2 * STEP;
    const PARTS: usize = 2;
    const HIGH: bool = true;
    #[inline(always)]
    fn operand<D: Dot>(d: D, bytes: D::Bytes, high: D::Bytes, index: usize) -> D::Bytes {
        d.raise(d.field(bytes, 4, index % 2), high, index)
    }
}
impl Stored for I4 {
    const PARTS: usize = 2;
    #[inline(always)]
    fn operand<D: Dot>(d: D, bytes: D::Bytes, _: D::Bytes, index: usize) -> D::Bytes {
        d.field(bytes, 4, index % 2)
    }
}
impl Stored for I2 {
    const PARTS: usize = 4;
    #[inline(always)]
    fn operand<D: Dot>(d: D, bytes: D::Bytes, _: D::Bytes, index: usize) -> D::Bytes {
        d.field(bytes, 2, index % 4)
    }
}

/// Loads the last vector of a step at `at`, which has the high bits of its operands. Types without
/// high bits do not use it.
///
/// # Safety
/// `at` must be readable for a step.
#[inline(always)]
pub(super) unsafe fn high_bits<D: Dot, W: Stored>(d: D, at: *const u8) -> D::Bytes {
    // SAFETY: guaranteed by the caller.
    unsafe { d.load(at.add((W::VECTORS - 1) * VECTOR)) }
}

/// Loads operand `index` of a step at `at` with these high bits.
///
/// # Safety
/// `at` must be readable for a step, which has the operand.
#[inline(always)]
pub(super) unsafe fn load<D: Dot, W: Stored>(d: D, at: *const u8, high: D::Bytes, index: usize) -> D::Bytes {
    // SAFETY: guaranteed by the caller.
    W::operand(d, unsafe { d.load(at.add(index / W::PARTS * VECTOR)) }, high, index)
}

/// Loads all operands of a step at `at`. The first `INPUTS / 4` of the result are valid, and the
/// others repeat the last one.
///
/// # Safety
/// `at` must be readable for a step.
#[inline(always)]
pub(super) unsafe fn load_all<D: Dot, W: Stored>(d: D, at: *const u8) -> [D::Bytes; 8] {
    // SAFETY: guaranteed by the caller.
    let high = unsafe { high_bits::<D, W>(d, at) };
    // Constant indices, because a shift by a variable would need a branch.
    macro_rules! operand {
        ($index:literal) => {{
            let index = if $index < W::INPUTS / 4 { $index } else { W::INPUTS / 4 - 1 };
            // SAFETY: the step has the operand.
            unsafe { load::<D, W>(d, at, high, index) }
        }};
    }
    [operand!(0), operand!(1), operand!(2), operand!(3), operand!(4), operand!(5), operand!(6), operand!(7)]
}

/// Returns the weight that operand bytes of zero mean, if stored bytes of zero mean `base`.
#[inline(always)]
pub(super) fn base_of<D: Dot, W: Form>(base: i32) -> i32 {
    match W::SMALL {
        true => base,
        false => base.wrapping_sub(D::OFFSET),
    }
}

/// Adds the products of an operand and bytes `4 · index` to `4 · index + 3` of a row's step.
///
/// # Safety
/// See [`Dot::quad_at`].
#[inline(always)]
pub(super) unsafe fn product<D: Dot, W: Form>(
    d: D,
    sums: D::Sums,
    w: D::Bytes,
    step: D::Step,
    index: usize,
) -> D::Sums {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (W::SMALL, W::RAISED) {
            (true, _) => d.dot_small_at(sums, w, step, index),
            (_, true) => d.dot_raised(sums, w, d.quad_at(step, index)),
            _ => d.dot_at(sums, w, step, index),
        }
    }
}

/// Adds the products of four small operands and all bytes of a row's step.
///
/// # Safety
/// See [`Dot::step`]. The operands must be [small](Form::SMALL).
#[inline(always)]
pub(super) unsafe fn products<D: Dot, W: Form>(
    d: D,
    sums: D::Sums,
    w: [D::Bytes; 4],
    step: D::Step,
) -> D::Sums {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if W::SUMS >= 4 {
            return d.dot_four_small(sums, w, step);
        }
        d.dot_two_small(d.dot_two_small(sums, [w[0], w[1]], step, 0), [w[2], w[3]], step, 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::integer::{Geometry, IntegerType, pack_tiles};
    use crate::simd::{LANES, Scalar};

    /// Checks the operands of packed rows whose values cover every bit pattern at every place.
    fn check<W: Stored>(kind: IntegerType) {
        let (inputs, span) = (6 * W::INPUTS, 1 << kind.bits());
        let geometry = Geometry::of(inputs, None, Some(W::INPUTS)).expect("short blocks");
        assert_eq!(geometry.panel_bytes(kind), 6 * W::VECTORS * VECTOR);
        for shift in 0..span {
            let value = |lane: usize, k: usize| (7 * lane + k + shift) % span;
            let rows = (0..LANES).flat_map(|lane| (0..inputs).map(move |k| (lane, k)));
            // Bytes are stored as they are. Fields begin at −2.
            let low = if kind == IntegerType::I8 { 0 } else { -2 };
            let rows: Vec<i8> = rows.map(|(lane, k)| (value(lane, k) as i32 + low) as i8).collect();
            let mut packed = vec![0; geometry.panel_bytes(kind)];
            pack_tiles(kind, low, geometry, &rows, &mut packed);
            for (step, bytes) in packed.chunks_exact(W::VECTORS * VECTOR).enumerate() {
                // SAFETY: the bytes of a step.
                let operands = unsafe { load_all::<Scalar, W>(Scalar, bytes.as_ptr()) };
                for (index, operand) in operands[..W::INPUTS / 4].iter().enumerate() {
                    for (at, byte) in operand.iter().enumerate() {
                        let k = step * W::INPUTS + 4 * index + at % 4;
                        assert_eq!(usize::from(*byte), value(at / 4, k), "{kind:?}, input {k}");
                    }
                }
            }
        }
    }

    #[test]
    fn operands_are_the_packed_values() {
        check::<I8>(IntegerType::I8);
        check::<I6>(IntegerType::I6);
        check::<I5>(IntegerType::I5);
        check::<I4>(IntegerType::I4);
        check::<I2>(IntegerType::I2);
    }
}
