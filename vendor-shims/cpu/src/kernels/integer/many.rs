//! Many rows by a group of panels, whose operands are unpacked once into memory that stays in
//! cache.

use super::geometry::STEP;
use super::numbers::Cursor;
use super::results::{
    Columns, LONG, OF_BOTH, OF_WEIGHTS, Target, WHOLE, add_unit, finish, finish_long, finish_whole, mode,
};
use super::stored::{Form, Stored, base_of, load_all, product, products};
use super::{GROUP, Operands};
use crate::simd::dot::{Dot, VECTOR};
use crate::simd::{LANES, Registers, Simd, each};

/// Inputs of a tile in addition to its operands.
#[derive(Clone, Copy)]
struct Begin<'a> {
    /// Factors of the panels if each row is one unit.
    columns: &'a [Columns],
    /// −128 · Σ w of every panel, for raised rows.
    sums: &'a [[i32; LANES]],
    /// Address from which a cache line is prefetched with every [`STEP`] inputs.
    ahead: *const u8,
}

/// Multiplies inputs `places` of each row with the same inputs of each panel, and adds the products
/// to the sums.
///
/// # Safety
/// `q` must be readable for `ROWS` rows of `length` inputs, and each of `panels` for sixteen times
/// `length`.
#[inline(always)]
unsafe fn multiply_unit<D: Dot, W: Form, const ROWS: usize, const PANELS: usize>(
    d: D,
    q: *const i8,
    panels: &[*const u8; PANELS],
    (length, places): (usize, std::ops::Range<usize>),
    ahead: *const u8,
    sums: &mut [[D::Sums; PANELS]; ROWS],
) {
    let mut place = places.start;
    while place < places.end {
        d.prefetch(ahead.wrapping_add(place / STEP * VECTOR));
        // SAFETY: within the rows, whose length is a multiple of a step.
        let steps: [D::Step; ROWS] = each(
            #[inline(always)]
            |r| unsafe { d.step(q.add(r.wrapping_mul(length).wrapping_add(place))) },
        );
        if const { D::GROUPS && W::SMALL } {
            for (p, panel) in panels.iter().enumerate() {
                // SAFETY: a step of sixteen inputs is four vectors, of which the panel has as many
                // as the row has steps.
                let operands: [D::Bytes; 4] = each(
                    #[inline(always)]
                    |index| unsafe { d.load(panel.add(place * LANES + index * VECTOR)) },
                );
                for (row, step) in sums.iter_mut().zip(&steps) {
                    // SAFETY: the operands are small, and the step is one of the row.
                    row[p] = unsafe { products::<D, W>(d, row[p], operands, *step) };
                }
            }
            place += STEP;
            continue;
        }
        // Unrolled by hand: a loop that the compiler does not unroll would index its step with a
        // variable.
        macro_rules! vector {
            ($vector:literal) => {
                let operands: [D::Bytes; PANELS] = each(
                    #[inline(always)]
                    // SAFETY: a step of sixteen inputs is four vectors, of which the panel has as
                    // many as the row has steps.
                    |p| unsafe { d.load(panels[p].add(place * LANES + $vector * VECTOR)) },
                );
                for (row, step) in sums.iter_mut().zip(&steps) {
                    for (sum, w) in row.iter_mut().zip(operands) {
                        // SAFETY: a step has four operands.
                        *sum = unsafe { product::<D, W>(d, *sum, w, *step, $vector) };
                    }
                }
            };
        }
        vector!(0);
        vector!(1);
        vector!(2);
        vector!(3);
        place += STEP;
    }
}

/// Computes `ROWS × PANELS` results.
///
/// # Safety
/// Rows `row..row + ROWS` and panels `panel..panel + PANELS` must exist, and `MODE` must be the
/// operands' mode. From `w` on there must be the operands of these panels, one panel after the
/// other. No other task may write their results.
#[inline(always)]
unsafe fn tile<D: Dot, W: Form, const MODE: u8, const ROWS: usize, const PANELS: usize>(
    d: D,
    operands: Operands<'_>,
    (row, panel): (usize, usize),
    w: *const u8,
    begin: Begin<'_>,
    target: Target<'_>,
) {
    let Operands { weights, geometry, rows, .. } = operands;
    let (f, units, length) = (d.values(), geometry.units, geometry.length);
    // SAFETY: the rows exist.
    let (q, row_sums) = unsafe { (rows.q.as_ptr().add(row * length), rows.sums.as_ptr().add(row * units)) };
    // SAFETY: the operands of these panels follow each other.
    let panels: [*const u8; PANELS] = each(
        #[inline(always)]
        |p| unsafe { w.add(p * length * LANES) },
    );
    let mut values = [[f.splat(0.0); PANELS]; ROWS];
    let mut lanes = [[[0i32; LANES]; PANELS]; ROWS];
    let mut totals = [[[0.0f64; LANES]; PANELS]; ROWS];
    let mut cursor = Cursor::of(&operands, panel);
    let base = base_of::<D, W>(weights.base);
    let mut place = 0;
    for unit in 0..if MODE == WHOLE { 1 } else { units } {
        let is_last = MODE == WHOLE || unit + 1 == units;
        let end = if is_last { length } else { place + geometry.stride };
        let mut sums = [[d.splat(0); PANELS]; ROWS];
        for (r, row) in sums.iter_mut().enumerate() {
            // SAFETY: the rows exist and have as many units.
            let sum = unsafe { *row_sums.add(r.wrapping_mul(units).wrapping_add(unit)) };
            let start = d.splat(base.wrapping_mul(sum));
            for (p, sum) in row.iter_mut().enumerate() {
                *sum = if W::RAISED { d.sums(&begin.sums[p]) } else { start };
            }
        }
        // SAFETY: the rows and the operands exist, and `end` is within their length.
        unsafe {
            let ahead = begin.ahead;
            multiply_unit::<D, W, ROWS, PANELS>(d, q, &panels, (length, place..end), ahead, &mut sums);
        }
        place = end;
        if MODE == WHOLE || MODE == LONG {
            // With minimal surrounding code, because only loops that the compiler unrolls keep sums
            // in registers.
            for (lanes, sums) in lanes.iter_mut().zip(&sums) {
                for (lanes, sum) in lanes.iter_mut().zip(sums) {
                    *lanes = d.lanes(*sum);
                }
            }
        } else {
            // SAFETY: guaranteed by the caller, and the cursor advances unit by unit.
            unsafe {
                add_unit::<D, MODE, ROWS, PANELS>(d, &operands, (row, unit), &cursor, &sums, &mut values);
            }
            cursor.advance();
        }
        if MODE == LONG {
            for (totals, lanes) in totals.as_flattened_mut().iter_mut().zip(lanes.as_flattened()) {
                for (total, lane) in totals.iter_mut().zip(lanes) {
                    *total += f64::from(*lane);
                }
            }
        }
    }
    match MODE {
        WHOLE => finish_whole(d, &lanes, &begin.columns[..PANELS], operands, (row, panel), target),
        LONG => finish_long(d, &totals, operands, row, panel, target),
        // SAFETY: guaranteed by the caller.
        _ => unsafe { finish(d, &values, &operands, row, panel, target) },
    }
}

/// Unpacks and stores the operands of panels `panel..panel + panels`, panel after panel.
#[inline(always)]
pub fn make_ready<D: Dot, W: Stored>(
    d: D,
    operands: Operands<'_>,
    panel: usize,
    panels: usize,
    ready: &mut [i8],
) {
    let bytes = operands.geometry.panel_bytes(operands.weights.kind);
    let weights = &operands.weights.data[panel * bytes..][..panels * bytes];
    let room = panels * operands.geometry.length * LANES;
    assert!(panels <= GROUP && ready.len() >= room, "operands for {panels} panels");
    let steps = weights.chunks_exact(W::VECTORS * VECTOR);
    for (source, target) in steps.zip(ready.chunks_exact_mut(W::INPUTS * LANES)) {
        // SAFETY: `source` is a step, and `target` has room for its operands.
        unsafe {
            let unpacked = load_all::<D, W>(d, source.as_ptr());
            for (index, operand) in unpacked.into_iter().enumerate().take(W::INPUTS / 4) {
                d.store(target.as_mut_ptr().cast::<u8>().add(index * VECTOR), operand);
            }
        }
    }
}

/// Computes −128 · Σ w of panels `panel..panel + panels`.
#[inline(always)]
fn begin<D: Dot>(d: D, operands: Operands<'_>, panel: usize, panels: usize) -> [[i32; LANES]; GROUP] {
    let bytes = operands.geometry.panel_bytes(operands.weights.kind);
    let weights = &operands.weights.data[panel * bytes..][..panels * bytes];
    // SAFETY: the array has four bytes.
    let lowest = unsafe { d.quad([i8::MIN; 4].as_ptr()) };
    let mut sums = [[0; LANES]; GROUP];
    for (sums, weights) in sums.iter_mut().zip(weights.chunks_exact(bytes.max(1))) {
        // A step has four vectors.
        let mut chains = [d.splat(0); 4];
        for step in weights.as_chunks::<{ 4 * VECTOR }>().0 {
            for (chain, vector) in chains.iter_mut().zip(step.as_chunks::<VECTOR>().0) {
                // SAFETY: `vector` has `VECTOR` bytes.
                *chain = d.dot_raised(*chain, unsafe { d.load(vector.as_ptr()) }, lowest);
            }
        }
        let [a, b, c, e] = chains;
        *sums = d.lanes(d.add(d.add(a, b), d.add(c, e))).map(i32::wrapping_neg);
    }
    sums
}

/// Multiplies rows `row..row + rows` by panels `panel..panel + panels`. The operands are in
/// `ready`. For raised rows, the stored weights are used in place.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
pub fn multiply<D: Dot, W: Form>(
    d: D,
    operands: Operands<'_>,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    ready: &[i8],
    target: Target<'_>,
) {
    let bytes = operands.geometry.length * LANES;
    let stored = operands.geometry.panel_bytes(operands.weights.kind);
    let mode = mode(&operands);
    let (ready, sums) = if W::RAISED {
        let weights = &operands.weights.data[panel * stored..][..panels * bytes];
        (weights.as_ptr(), begin(d, operands, panel, panels))
    } else {
        (ready[..panels * bytes].as_ptr().cast::<u8>(), [[0; LANES]; GROUP])
    };
    let columns = match mode {
        WHOLE => std::array::from_fn(|p| Columns::of(operands, panel + p.min(panels - 1))),
        _ => [const { Columns::NONE }; GROUP],
    };
    let end = row + rows;
    let mut first = row;
    // The next group is usually this thread's next task. It is prefetched during the
    // multiplication, one cache line with every step of inputs. A higher rate would delay the
    // multiplication.
    let next = operands.weights.data.as_ptr().wrapping_add((panel + panels) * stored);
    let mut fetched = 0;
    while first < end {
        let left = end - first;
        macro_rules! cover {
            ($mode:ident, $rows:literal, $panels:literal) => {{
                let mut index = 0;
                while index < panels {
                    // After the last line of the next group, the prefetch address is a line that is
                    // already in cache.
                    let ahead = if fetched < panels * stored { next.wrapping_add(fetched) } else { ready };
                    fetched += operands.geometry.length / STEP * VECTOR;
                    let begin = Begin { columns: &columns[index..], sums: &sums[index..], ahead };
                    let place = (first, panel + index);
                    // SAFETY: the callers guarantee that panels and rows exist, and a task has its
                    // own rows of its own panels.
                    unsafe {
                        let w = ready.add(index * bytes);
                        if panels - index >= $panels {
                            tile::<D, W, $mode, $rows, $panels>(d, operands, place, w, begin, target);
                            index += $panels;
                        } else {
                            tile::<D, W, $mode, $rows, 1>(d, operands, place, w, begin, target);
                            index += 1;
                        }
                    }
                }
                first += $rows;
            }};
        }
        // Covers results whose units have scales.
        macro_rules! cover_scaled {
            ($rows:literal, $panels:literal) => {
                match mode {
                    OF_WEIGHTS => cover!(OF_WEIGHTS, $rows, $panels),
                    _ => cover!(OF_BOTH, $rows, $panels),
                }
            };
        }
        // Sums fill the register file without spilling. Sums of units with scales use two registers
        // each. Shorter tiles, if any, come last.
        if const { matches!(<D::F as Simd>::REGISTERS, Registers::Many) } {
            match (mode, left) {
                (WHOLE, 4 | 5 | 8) if const { !W::IN_BLOCKS } => cover!(WHOLE, 4, 4),
                (WHOLE, 6..) if const { !W::IN_BLOCKS } => cover!(WHOLE, 6, 4),
                (WHOLE, _) if const { !W::IN_BLOCKS } => cover!(WHOLE, 1, 4),
                (LONG, _) if const { !W::IN_BLOCKS } => cover!(LONG, 1, 1),
                (_, 6..) => cover_scaled!(6, 2),
                _ => cover_scaled!(1, 2),
            }
        } else if const { matches!(<D::F as Simd>::REGISTERS, Registers::Few) } {
            match (mode, left) {
                (WHOLE, 4..) if const { !W::IN_BLOCKS } => cover!(WHOLE, 4, 1),
                (WHOLE, _) if const { !W::IN_BLOCKS } => cover!(WHOLE, 1, 1),
                (LONG, _) if const { !W::IN_BLOCKS } => cover!(LONG, 1, 1),
                (_, 2..) => cover_scaled!(2, 1),
                _ => cover_scaled!(1, 1),
            }
        } else {
            match mode {
                WHOLE if const { !W::IN_BLOCKS } => cover!(WHOLE, 1, 1),
                LONG if const { !W::IN_BLOCKS } => cover!(LONG, 1, 1),
                _ => cover_scaled!(1, 1),
            }
        }
    }
}
