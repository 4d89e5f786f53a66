//! Many rows by a group of panels, in products of two rows by two outputs over eight inputs. Sums
//! are exact, so results match the other forms bit for bit. Not used for few rows, for rows with
//! several units only because their sums would overflow, and for weights that are not signed bytes.

use std::arch::aarch64::*;

use super::geometry::STEP;
use super::numbers::Cursor;
use super::pack::IntegerType;
use super::results::{Columns, LONG, OF_WEIGHTS, Target, WHOLE, finish, mode};
use super::stored::{I2, I4, I5, I6, I8, Stored, load_all};
use super::{GROUP, Operands};
use crate::simd::dot::{Dot, NeonDot, VECTOR};
use crate::simd::i8mm::NeonI8mm;
use crate::simd::{LANES, each};

/// Inputs of a product.
const DEPTH: usize = 8;
/// Bytes of the operands of a panel over [`DEPTH`] inputs: pairs of outputs in order, with 8 bytes
/// for each output of a pair.
const STEP_BYTES: usize = LANES * DEPTH;
/// Bytes of a pair of outputs.
const PAIR_BYTES: usize = 2 * DEPTH;

/// Checks whether these products support the weights and units.
pub fn takes(operands: &Operands<'_>) -> bool {
    mode(operands) != LONG && operands.weights.are_bytes()
}

/// Multiplies rows `row..row + rows` by panels `panel..panel + panels`.
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
pub fn multiply(
    i8mm: NeonI8mm,
    operands: Operands<'_>,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    ready: &mut [i8],
    target: Target<'_>,
) {
    let bytes = operands.geometry.length * LANES;
    match operands.weights.kind {
        IntegerType::I8 => make_ready::<I8>(i8mm.vectors(), operands, panel, panels, ready),
        IntegerType::I6 => make_ready::<I6>(i8mm.vectors(), operands, panel, panels, ready),
        IntegerType::I5 => make_ready::<I5>(i8mm.vectors(), operands, panel, panels, ready),
        IntegerType::I4 => make_ready::<I4>(i8mm.vectors(), operands, panel, panels, ready),
        IntegerType::I2 => make_ready::<I2>(i8mm.vectors(), operands, panel, panels, ready),
    }
    let ready = &ready[..panels * bytes];
    let scaled = mode(&operands) != WHOLE;
    let end = row + rows;
    let mut first = row;
    while first < end {
        // The sums of four rows use 16 of 32 registers, and the sums of scaled units use two
        // registers each. The sums of six rows use 24 registers, which leaves too few for the
        // operands of a step.
        let pairs = (end - first).div_ceil(2).min(2);
        let count = (end - first).min(2 * pairs);
        for index in 0..panels {
            let weights = &ready[index * bytes..][..bytes];
            let place = (first, count, panel + index);
            match (scaled, pairs) {
                (false, 1) => whole::<1>(i8mm, operands, place, weights, target),
                (false, _) => whole::<2>(i8mm, operands, place, weights, target),
                (true, 1) => units::<1>(i8mm, operands, place, weights, target),
                (true, _) => units::<2>(i8mm, operands, place, weights, target),
            }
        }
        first += count;
    }
}

/// Stores the signed operands of panels `panel..panel + panels`, panel after panel, in
/// [`STEP_BYTES`] for every [`DEPTH`] inputs.
#[inline(always)]
fn make_ready<W: Stored>(d: NeonDot, operands: Operands<'_>, panel: usize, panels: usize, ready: &mut [i8]) {
    let bytes = operands.geometry.panel_bytes(operands.weights.kind);
    let weights = &operands.weights.data[panel * bytes..][..panels * bytes];
    let room = panels * operands.geometry.length * LANES;
    assert!(panels <= GROUP && ready.len() >= room, "operands for {panels} panels");
    // Signed bytes are stored as they are, and their base is zero.
    let base = operands.weights.base as u8;
    let steps = weights.chunks_exact(W::VECTORS * VECTOR);
    for (source, target) in steps.zip(ready[..room].chunks_exact_mut(W::INPUTS * LANES)) {
        // SAFETY: a step of the type, and `d` proves Advanced SIMD.
        let operands = unsafe { load_all::<NeonDot, W>(d, source.as_ptr()) };
        // Two operands, of four inputs each, are a product's inputs of all outputs.
        for (target, pair) in target.chunks_exact_mut(STEP_BYTES).zip(operands.as_chunks::<2>().0) {
            let [first, second] = pair;
            for (at, pairs) in target.chunks_exact_mut(2 * PAIR_BYTES).enumerate() {
                // SAFETY: two pairs of outputs have this many bytes, and an operand has as many
                // quarters as a target has of them. `d` proves Advanced SIMD.
                unsafe {
                    let signed =
                        |quarter: uint8x16_t| vreinterpretq_u32_u8(vaddq_u8(quarter, vdupq_n_u8(base)));
                    let (first, second) = (signed(first[at]), signed(second[at]));
                    let place = pairs.as_mut_ptr().cast::<u32>();
                    vst1q_u32(place, vzip1q_u32(first, second));
                    vst1q_u32(place.add(PAIR_BYTES / 4), vzip2q_u32(first, second));
                }
            }
        }
    }
}

/// Returns the addresses of `2 · PAIRS` rows from `first` on, of which `count` exist. Missing rows
/// repeat the last one.
#[inline(always)]
fn rows_of<const PAIRS: usize>(
    operands: &Operands<'_>,
    first: usize,
    count: usize,
) -> [[*const i8; 2]; PAIRS] {
    let length = operands.geometry.length;
    let q = &operands.rows.q[first * length..][..count * length];
    std::array::from_fn(|pair| {
        // SAFETY: the row is one of the slice.
        [0, 1].map(|at| unsafe { q.as_ptr().add((2 * pair + at).min(count - 1) * length) })
    })
}

/// Multiplies [`STEP`] inputs of the rows from `place` on, and adds the products to
/// the sums of each pair of rows with each pair of outputs.
///
/// # Safety
/// The rows must be readable for a step's bytes from `place` on, and `weights` for
/// `2 · STEP_BYTES − 16 · (8 − COLUMNS)`.
#[inline(always)]
unsafe fn step<const PAIRS: usize, const COLUMNS: usize>(
    i8mm: NeonI8mm,
    rows: &[[*const i8; 2]; PAIRS],
    place: usize,
    weights: *const i8,
    sums: &mut [[int32x4_t; COLUMNS]; PAIRS],
) {
    // SAFETY: guaranteed by the caller, and the token proves Advanced SIMD.
    unsafe {
        for half in 0..2 {
            // Half a step at a time, because operands of both halves and all sums would not fit
            // into registers.
            let rows: [int8x16_t; PAIRS] = each(
                #[inline(always)]
                |pair| {
                    let [upper, lower] = rows[pair].map(|row| vld1_s8(row.add(place + DEPTH * half)));
                    vcombine_s8(upper, lower)
                },
            );
            for column in 0..COLUMNS {
                let columns = vld1q_s8(weights.add(half * STEP_BYTES + column * PAIR_BYTES));
                for (sums, rows) in sums.iter_mut().zip(rows) {
                    sums[column] = i8mm.product(sums[column], rows, columns);
                }
            }
        }
    }
}

/// Multiplies `count` rows from `first` on by a panel. Each row is one unit.
#[inline(always)]
fn whole<const PAIRS: usize>(
    i8mm: NeonI8mm,
    operands: Operands<'_>,
    (first, count, panel): (usize, usize, usize),
    weights: &[i8],
    target: Target<'_>,
) {
    let length = operands.geometry.length;
    let rows = rows_of::<PAIRS>(&operands, first, count);
    assert!(weights.len() >= length * LANES, "operands of a panel");
    // SAFETY: the token proves Advanced SIMD.
    let mut sums = [[unsafe { vdupq_n_s32(0) }; LANES / 2]; PAIRS];
    for place in (0..length).step_by(STEP) {
        // SAFETY: rows are of `length` bytes, a multiple of the step, and weights sixteen times as
        // many.
        unsafe { step(i8mm, &rows, place, weights.as_ptr().add(place * LANES), &mut sums) };
    }
    let (d, columns) = (i8mm.vectors(), Columns::of(operands, panel));
    for (pair, sums) in sums.iter().enumerate() {
        for at in 0..2.min(count - 2 * pair) {
            let mut lanes = [0i32; LANES];
            for (quarter, sums) in sums.as_chunks::<2>().0.iter().enumerate() {
                // SAFETY: sixteen lanes are four quarters, and the token proves Advanced SIMD.
                unsafe {
                    let [left, right] = sums.map(|sums| vreinterpretq_s64_s32(sums));
                    let row = if at == 0 { vzip1q_s64(left, right) } else { vzip2q_s64(left, right) };
                    vst1q_s32(lanes.as_mut_ptr().add(4 * quarter), vreinterpretq_s32_s64(row));
                }
            }
            columns.write(d, d.sums(&lanes), operands, first + 2 * pair + at, target);
        }
    }
}

/// Multiplies `count` rows from `first` on by a panel, in units with scales.
#[inline(always)]
fn units<const PAIRS: usize>(
    i8mm: NeonI8mm,
    operands: Operands<'_>,
    (first, count, panel): (usize, usize, usize),
    weights: &[i8],
    target: Target<'_>,
) {
    // SAFETY: the token proves Advanced SIMD.
    let mut values = [[[unsafe { vdupq_n_f32(0.0) }; 4]; 2]; PAIRS];
    for half in 0..2 {
        let sums = half_units::<PAIRS>(i8mm, operands, (first, count, panel), weights, half);
        for (values, sums) in values.iter_mut().zip(sums) {
            for (quarter, sums) in sums.as_chunks::<2>().0.iter().enumerate() {
                // SAFETY: the token proves Advanced SIMD.
                unsafe {
                    let [left, right] = sums.map(|sums| vreinterpretq_f64_f32(sums));
                    values[0][2 * half + quarter] = vreinterpretq_f32_f64(vzip1q_f64(left, right));
                    values[1][2 * half + quarter] = vreinterpretq_f32_f64(vzip2q_f64(left, right));
                }
            }
        }
    }
    for (at, values) in values.as_flattened().iter().enumerate().take(count) {
        // SAFETY: the rows and the panel exist.
        unsafe { finish(i8mm.vectors(), &[[*values]], &operands, first + at, panel, target) };
    }
}

/// Adds the scaled units of each pair of rows with each pair of one half of the outputs:
/// `value = fma(sum, factor, value)`, unit after unit. The factor is the scale of the weights'
/// block, of the row's block, or their product.
#[inline(always)]
fn half_units<const PAIRS: usize>(
    i8mm: NeonI8mm,
    operands: Operands<'_>,
    (first, count, panel): (usize, usize, usize),
    weights: &[i8],
    half: usize,
) -> [[float32x4_t; LANES / 4]; PAIRS] {
    let geometry = operands.geometry;
    let rows = rows_of::<PAIRS>(&operands, first, count);
    assert!(weights.len() >= geometry.length * LANES, "operands of a panel");
    // SAFETY: the token proves Advanced SIMD.
    let mut values = [[unsafe { vdupq_n_f32(0.0) }; LANES / 4]; PAIRS];
    let (f, mode) = (i8mm.vectors().values(), mode(&operands));
    let mut cursor = Cursor::of(&operands, panel);
    let mut place = 0;
    for unit in 0..geometry.units {
        // SAFETY: the token proves Advanced SIMD.
        let mut sums = [[unsafe { vdupq_n_s32(0) }; LANES / 4]; PAIRS];
        let end = place + geometry.places(unit);
        while place < end {
            // SAFETY: rows are of `length` bytes, a multiple of the step, and weights sixteen times
            // as many. The second half starts half a step's bytes later.
            unsafe {
                let weights = weights.as_ptr().add(place * LANES + half * STEP_BYTES / 2);
                step(i8mm, &rows, place, weights, &mut sums);
            }
            place += STEP;
        }
        // SAFETY: the panel exists, and the cursor advances unit by unit.
        let [of_weights] = unsafe { cursor.scales::<_, 1>(f) };
        cursor.advance();
        // A half is eight of sixteen scales.
        let scales = [of_weights[2 * half], of_weights[2 * half + 1]];
        for (pair, (values, sums)) in values.iter_mut().zip(&sums).enumerate() {
            // Two outputs of the pair's first row, then two outputs of its second row.
            let of_rows = [0, 0, 1, 1].map(|at| match mode {
                OF_WEIGHTS => 1.0,
                _ => {
                    let row = first + (2 * pair + at).min(count - 1);
                    operands.rows.scales[row * geometry.units + unit]
                }
            });
            for column in 0..LANES / 4 {
                // SAFETY: the token proves Advanced SIMD.
                unsafe {
                    // The scales of a pair of outputs, for both rows.
                    let scales = vreinterpretq_f64_f32(scales[column / 2]);
                    let scale =
                        if column % 2 == 0 { vzip1q_f64(scales, scales) } else { vzip2q_f64(scales, scales) };
                    let sums = vcvtq_f32_s32(sums[column]);
                    let mut factor = vreinterpretq_f32_f64(scale);
                    if mode != OF_WEIGHTS {
                        factor = vmulq_f32(vld1q_f32(of_rows.as_ptr()), factor);
                    }
                    values[column] = vfmaq_f32(values[column], sums, factor);
                }
            }
        }
    }
    values
}
