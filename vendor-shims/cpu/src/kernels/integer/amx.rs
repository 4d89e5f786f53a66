//! Tile products of many rows with a group of panels. Sums are exact, so results match the other
//! forms bit for bit.

use std::arch::x86_64::{_mm512_add_epi8, _mm512_load_si512, _mm512_set1_epi8};

use super::geometry::STEP;
use super::numbers::Cursor;
use super::pack::IntegerType;
use super::results::{Columns, LONG, OF_WEIGHTS, Target, WHOLE, finish, mode};
use super::stored::{I2, I4, I5, I6, Stored, load_all};
use super::{GROUP, Operands};
use crate::simd::amx::{Amx, Configured, MOST_BYTES, SIDE, Sums};
use crate::simd::dot::{Avx512Vnni, Dot, VECTOR};
use crate::simd::{LANES, Simd};

/// Rows are always read in groups of this size. Memory beyond the last row must be readable, and
/// its contents are ignored.
pub const ROWS: usize = 2 * SIDE;

/// Checks whether the weights are signed bytes, and whether the length of units suits tiles.
pub fn takes(operands: &Operands<'_>) -> bool {
    let geometry = operands.geometry;
    let fits = match mode(operands) {
        WHOLE => geometry.length > 0,
        LONG => false,
        _ => geometry.stride <= MOST_BYTES && geometry.length == geometry.stride * geometry.units,
    };
    fits && operands.weights.are_bytes()
}

/// Multiplies rows `row..row + rows` by panels `panel..panel + panels`.
///
/// # Safety
/// [`takes`] must return true, and the quantised rows must be followed by [`ROWS`] − 1 readable
/// rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
pub unsafe fn multiply(
    amx: Amx,
    operands: Operands<'_>,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    ready: &mut [i8],
    target: Target<'_>,
) {
    let d = amx.vectors();
    let length = operands.geometry.length;
    let bytes = operands.geometry.panel_bytes(operands.weights.kind);
    let weights = &operands.weights.data[panel * bytes..][..panels * bytes];
    assert!(panels <= GROUP && ready.len() >= panels * length * LANES, "operands for {panels} panels");
    // Signed bytes are multiplied in place, directly from the mapped artefact.
    let ready = match operands.weights.kind {
        IntegerType::I8 => weights.as_ptr(),
        IntegerType::I6 => make_signed::<I6>(d, weights, operands.weights.base, ready),
        IntegerType::I5 => make_signed::<I5>(d, weights, operands.weights.base, ready),
        IntegerType::I4 => make_signed::<I4>(d, weights, operands.weights.base, ready),
        IntegerType::I2 => make_signed::<I2>(d, weights, operands.weights.base, ready),
    };
    // SAFETY: `panels` panels of `length` steps of sixteen bytes are ready.
    let place = |index: usize| unsafe { ready.add(index * length * LANES) };
    if mode(&operands) == WHOLE {
        let step = [64, 48, 32].into_iter().find(|step| length.is_multiple_of(*step)).unwrap_or(STEP);
        let configured = amx.configure(step);
        let mut index = 0;
        let mut sums = [Sums::ZERO; 4];
        while index < panels {
            // A panel without a right neighbour is multiplied twice, and its second result is
            // dropped.
            let pair = [index, (index + 1).min(panels - 1)];
            // While this pair is multiplied, the next one is prefetched. After the last pair, that
            // is the first pair of the next task if it is adjacent.
            let mut ahead = place(pair[0]).wrapping_add(2 * length * LANES);
            for first in (row..row + rows).step_by(ROWS) {
                let count = ROWS.min(row + rows - first);
                // SAFETY: guaranteed by the caller, and the panels are ready as above.
                unsafe {
                    whole(
                        d,
                        &configured,
                        operands,
                        [first, count],
                        panel,
                        pair,
                        pair.map(place),
                        ahead,
                        target,
                        &mut sums,
                    )
                };
                ahead = ahead.wrapping_add(length / step * Configured::FETCHED);
            }
            index += 2;
        }
        return;
    }
    let configured = amx.configure(operands.geometry.stride);
    for index in 0..panels {
        let mut first = row;
        while first < row + rows {
            let count = SIDE.min(row + rows - first);
            // SAFETY: guaranteed by the caller, and the panels are ready as above.
            unsafe { scaled(d, &configured, operands, [first, count], panel + index, place(index), target) };
            first += SIDE;
        }
    }
}

/// Stores the operands of panels plus `base` like [`super::many::make_ready`], and returns their
/// address.
#[inline(always)]
fn make_signed<W: Stored>(d: Avx512Vnni, weights: &[u8], base: i32, ready: &mut [i8]) -> *const u8 {
    let steps = weights.chunks_exact(W::VECTORS * VECTOR);
    assert!(ready.len() >= steps.len() * W::INPUTS * LANES, "room for the operands");
    for (source, target) in steps.zip(ready.chunks_exact_mut(W::INPUTS * LANES)) {
        // SAFETY: `source` is a step, `target` has room for its operands, and `d` proves AVX-512.
        unsafe {
            let unpacked = load_all::<Avx512Vnni, W>(d, source.as_ptr());
            for (index, operand) in unpacked.into_iter().enumerate().take(W::INPUTS / 4) {
                let signed = _mm512_add_epi8(operand, _mm512_set1_epi8(base as i8));
                d.store(target.as_mut_ptr().cast::<u8>().add(index * VECTOR), signed);
            }
        }
    }
    ready.as_ptr().cast()
}

/// Multiplies up to [`ROWS`] rows by a pair of panels. Each row is one unit. `sums` is scratch
/// space.
///
/// # Safety
/// See [`multiply`]. `places` must contain the pair's operands.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
unsafe fn whole(
    d: Avx512Vnni,
    configured: &Configured,
    operands: Operands<'_>,
    [row, rows]: [usize; 2],
    panel: usize,
    pair: [usize; 2],
    places: [*const u8; 2],
    ahead: *const u8,
    target: Target<'_>,
    sums: &mut [Sums; 4],
) {
    let length = operands.geometry.length;
    // SAFETY: guaranteed by the caller: 32 rows are readable from here on, and `length` is a
    // multiple of the step.
    unsafe {
        let q = operands.rows.q.as_ptr().add(row * length);
        configured.four(q, length, places, length / configured.bytes(), ahead, sums);
    }
    let columns = if pair[0] == pair[1] { 1 } else { 2 };
    for (side, index) in pair.iter().enumerate().take(columns) {
        let columns = Columns::of(operands, panel + index);
        for at in 0..rows {
            columns.write(d, d.sums(&sums[at / SIDE * 2 + side].0[at % SIDE]), operands, row + at, target);
        }
    }
}

/// Multiplies up to sixteen rows by a panel, in units with scales.
///
/// # Safety
/// See [`multiply`]. `place` must contain the panel's operands.
#[inline(always)]
unsafe fn scaled(
    d: Avx512Vnni,
    configured: &Configured,
    operands: Operands<'_>,
    [row, rows]: [usize; 2],
    panel: usize,
    place: *const u8,
    target: Target<'_>,
) {
    let geometry = operands.geometry;
    let (mut cursor, mode) = (Cursor::of(&operands, panel), mode(&operands));
    let f = d.values();
    let mut values = [f.splat(0.0); SIDE];
    let mut sums = [Sums::ZERO; 2];
    // SAFETY: guaranteed by the caller.
    let q = unsafe { operands.rows.q.as_ptr().add(row * geometry.length) };
    for first in (0..geometry.units).step_by(2) {
        // The last of an odd number of units is multiplied twice, and its second result is dropped.
        let units = [first, (first + 1).min(geometry.units - 1)];
        // SAFETY: units are a stride apart in rows and columns, sums are aligned to their size, and
        // the cursor advances unit by unit.
        unsafe {
            let columns = units.map(|unit| place.add(unit * geometry.stride * LANES));
            configured.two_steps(
                units.map(|unit| q.add(unit * geometry.stride)),
                geometry.length,
                columns,
                &mut sums,
            );
            for (unit, sums) in (first..=units[1]).zip(&sums) {
                let [of_weights] = cursor.scales::<_, 1>(f);
                cursor.advance();
                for (at, (value, sums)) in values.iter_mut().zip(&sums.0).enumerate() {
                    let mut factor = of_weights;
                    if mode != OF_WEIGHTS {
                        // Missing rows repeat the last one.
                        let row = row + at.min(rows - 1);
                        let of_row = operands.rows.scales[row * geometry.units + unit];
                        factor = f.mul(f.splat(of_row), of_weights);
                    }
                    *value = f.fma(d.widen(_mm512_load_si512(sums.as_ptr().cast())), factor, *value);
                }
            }
        }
    }
    for (at, value) in values.iter().enumerate().take(rows) {
        // SAFETY: the rows and the panel exist.
        unsafe { finish(d, &[[*value]], &operands, row + at, panel, target) };
    }
}
