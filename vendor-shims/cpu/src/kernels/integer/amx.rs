//! Tile products of many rows with a group of panels. Sums are exact, so results match the other
//! forms bit for bit.

use std::arch::x86_64::{__m512i, _mm512_load_si512, _mm512_set1_epi8, _mm512_sub_epi8};

use super::pack::{IntegerType, STEP};
use super::results::{Columns, finish_paired, finish_scaled};
use super::tile::{BlockScales, I2, I4, PAIRED, SCALED, Stored, Target, WHOLE, mode};
use super::{GROUP, Operands};
use crate::simd::amx::{Amx, Configured, MOST_BYTES, SIDE, Sums};
use crate::simd::dot::{Avx512Vnni, Dot, VECTOR};
use crate::simd::{LANES, Simd};

/// Rows are always read in groups of this size. Memory beyond the last row must be readable, and
/// its contents are ignored.
pub const ROWS: usize = 2 * SIDE;

/// Checks whether the block length suits tiles.
pub fn takes(operands: &Operands<'_>) -> bool {
    let geometry = operands.geometry;
    match mode(operands) {
        WHOLE => geometry.length > 0,
        SCALED | PAIRED => {
            geometry.stride <= MOST_BYTES && geometry.length == geometry.stride * geometry.blocks
        }
        _ => false,
    }
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
        IntegerType::I4 => make_signed::<I4>(d, weights, IntegerType::I4.offset(), ready),
        IntegerType::I2 => make_signed::<I2>(d, weights, IntegerType::I2.offset(), ready),
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

/// Stores the signed operands of panels like [`super::tile::make_ready`], and returns their
/// address.
#[inline(always)]
fn make_signed<W: Stored>(d: Avx512Vnni, weights: &[u8], offset: i32, ready: &mut [i8]) -> *const u8 {
    assert!(ready.len() >= weights.len() * W::PARTS, "room for the operands");
    let vectors = weights.as_chunks::<VECTOR>().0;
    for (source, target) in vectors.iter().zip(ready.chunks_exact_mut(VECTOR * W::PARTS)) {
        // SAFETY: a vector gives `PARTS` vectors, and `d` proves AVX-512.
        unsafe {
            let bytes = d.load(source.as_ptr());
            for part in 0..W::PARTS {
                let signed: __m512i =
                    _mm512_sub_epi8(W::part(d, bytes, part), _mm512_set1_epi8(offset as i8));
                d.store(target.as_mut_ptr().cast::<u8>().add(part * VECTOR), signed);
            }
        }
    }
    ready.as_ptr().cast()
}

/// Multiplies up to [`ROWS`] rows by a pair of panels. Each row is one block. `sums` is scratch
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

/// Multiplies up to sixteen rows by a panel, in blocks with scales.
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
    let (mut scales, paired) = (BlockScales::of(&operands, panel), geometry.scaled);
    let f = d.values();
    let mut values = [f.splat(0.0); SIDE];
    let mut sums = [Sums::ZERO; 2];
    // SAFETY: guaranteed by the caller.
    let q = unsafe { operands.rows.q.as_ptr().add(row * geometry.length) };
    for first in (0..geometry.blocks).step_by(2) {
        // The last of an odd number of blocks is multiplied twice, and its second result is
        // dropped.
        let blocks = [first, (first + 1).min(geometry.blocks - 1)];
        // SAFETY: blocks are a stride apart in rows and columns, and sums are aligned to their
        // size.
        unsafe {
            let columns = blocks.map(|block| place.add(block * geometry.stride * LANES));
            configured.two_steps(
                blocks.map(|block| q.add(block * geometry.stride)),
                geometry.length,
                columns,
                &mut sums,
            );
            for (block, sums) in (first..=blocks[1]).zip(&sums) {
                let scale = f.load_f16(scales.next);
                scales.advance();
                for (at, (value, sums)) in values.iter_mut().zip(&sums.0).enumerate() {
                    let mut scale = scale;
                    if paired {
                        // Missing rows repeat the last one.
                        let row = row + at.min(rows - 1);
                        let of_row = operands.rows.scales[row * geometry.blocks + block];
                        scale = f.mul(f.splat(of_row), scale);
                    }
                    *value = f.fma(d.widen(_mm512_load_si512(sums.as_ptr().cast())), scale, *value);
                }
            }
        }
    }
    for (at, value) in values.iter().enumerate().take(rows) {
        match paired {
            true => finish_paired(f, *value, operands, row + at, panel, target),
            false => finish_scaled(f, *value, operands, row + at, panel, target),
        }
    }
}
