//! A few rows by panels whose weights are read in place, once from front to back.

use super::Operands;
use super::geometry::STEP;
use super::numbers::Cursor;
use super::results::{
    LONG, OF_BOTH, OF_WEIGHTS, Target, WHOLE, add_unit, finish, finish_long, finish_whole, mode,
};
use super::stored::{Stored, base_of, high_bits, load, product, products};
use super::streams::{FEWER_STREAMS, STREAMS, Streams, ahead};
use crate::simd::dot::{Dot, VECTOR};
use crate::simd::{LANES, Registers, Simd, each};

/// Panels that are read in parallel.
struct Reading<const PANELS: usize> {
    /// Each panel has a pointer, and all share the distances, because there are not enough
    /// registers for more addresses.
    panels: [*const u8; PANELS],
    /// Bytes of a panel.
    bytes: usize,
    /// Distance of prefetches.
    ahead: usize,
    /// Number of inputs that were read.
    place: usize,
}

impl<const PANELS: usize> Reading<PANELS> {
    const NEAR: usize = ahead(PANELS);

    /// Starts at the first inputs of panels that are `bytes` bytes apart.
    ///
    /// # Safety
    /// `first` must be readable for `PANELS` panels.
    #[inline(always)]
    unsafe fn new(first: *const u8, bytes: usize) -> Self {
        // SAFETY: guaranteed by the caller.
        let panels = each(
            #[inline(always)]
            |p| unsafe { first.add(p * bytes) },
        );
        Reading { panels, bytes, ahead: Self::NEAR, place: 0 }
    }

    /// Multiplies the inputs up to `end` of each panel with the same inputs of each row, and adds
    /// the products to the sums. Rows are `length` apart.
    ///
    /// # Safety
    /// `end` must be within the panels, and `q` must be readable for `ROWS` rows.
    #[inline(always)]
    unsafe fn multiply<D: Dot, W: Stored, const ROWS: usize, const CHAINS: usize>(
        &mut self,
        d: D,
        q: *const i8,
        length: usize,
        end: usize,
        sums: &mut [[[D::Sums; CHAINS]; PANELS]; ROWS],
    ) {
        while self.place < end {
            // Prefetching past the end of a panel would fetch the neighbouring panel, which another
            // stream reads. This stream continues after the last of the panels instead.
            let step = W::VECTORS * VECTOR;
            if ROWS == 1 && self.place / W::INPUTS * step + Self::NEAR >= self.bytes {
                self.ahead = Self::NEAR + (PANELS - 1) * self.bytes;
            }
            let place = self.place;
            // SAFETY: within the rows, which are divided into whole steps.
            let steps: [[D::Step; 2]; ROWS] = each(
                #[inline(always)]
                |r| unsafe {
                    let q = q.add(r.wrapping_mul(length).wrapping_add(place));
                    [d.step(q), d.step(q.add(W::INPUTS - STEP))]
                },
            );
            // SAFETY: the panels have as many steps as the rows.
            let high: [D::Bytes; PANELS] = each(
                #[inline(always)]
                |p| unsafe { high_bits::<D, W>(d, self.panels[p]) },
            );
            // Unrolled by hand: a loop that the compiler does not unroll would index its step with
            // a variable.
            macro_rules! vector {
                ($vector:literal) => {
                    if $vector < W::LOW_VECTORS {
                        // SAFETY: the vector is one of the step.
                        unsafe {
                            if ROWS == 1 {
                                self.one_row::<D, W, CHAINS, $vector>(d, &mut sums[0], steps[0], &high);
                            } else {
                                self.few_rows::<D, W, ROWS, CHAINS, $vector>(d, sums, &steps, &high);
                            }
                        }
                    }
                };
            }
            if const { D::GROUPS && W::SMALL } {
                // SAFETY: a step has one or two groups of sixteen inputs.
                unsafe {
                    self.group::<D, W, ROWS, CHAINS, 0>(d, sums, &steps, &high);
                    if const { W::INPUTS > STEP } {
                        self.group::<D, W, ROWS, CHAINS, 1>(d, sums, &steps, &high);
                    }
                }
            } else {
                vector!(0);
                vector!(1);
                vector!(2);
                vector!(3);
            }
            self.place += W::INPUTS;
            for panel in &mut self.panels {
                if W::HIGH {
                    d.prefetch(panel.wrapping_add(step - VECTOR + self.ahead));
                }
                // SAFETY: at most to the end of the panel.
                *panel = unsafe { panel.add(step) };
            }
        }
    }

    /// Multiplies one row with vector `VECTOR_AT` of a step of each panel. Each panel's weights are
    /// used as soon as they are read, because the weights of all panels would not fit into the
    /// registers of every processor.
    ///
    /// # Safety
    /// The panels must be readable for the vector, and the row for the step.
    #[inline(always)]
    unsafe fn one_row<D: Dot, W: Stored, const CHAINS: usize, const VECTOR_AT: usize>(
        &self,
        d: D,
        sums: &mut [[D::Sums; CHAINS]; PANELS],
        steps: [D::Step; 2],
        high: &[D::Bytes; PANELS],
    ) {
        for ((chains, panel), high) in sums.iter_mut().zip(&self.panels).zip(high) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let at = panel.add(VECTOR_AT * VECTOR);
                d.prefetch(at.wrapping_add(self.ahead));
                let bytes = d.load(at);
                for part in 0..W::PARTS {
                    let index = VECTOR_AT * W::PARTS + part;
                    let (sum, w) = (&mut chains[index % CHAINS], W::operand(d, bytes, *high, index));
                    *sum = product::<D, W>(d, *sum, w, steps[index / 4], index % 4);
                }
            }
        }
    }

    /// Multiplies several rows, which share the loaded weights, with vector `VECTOR_AT` of a step
    /// of each panel.
    ///
    /// # Safety
    /// See [`Reading::one_row`].
    #[inline(always)]
    unsafe fn few_rows<D: Dot, W: Stored, const ROWS: usize, const CHAINS: usize, const VECTOR_AT: usize>(
        &self,
        d: D,
        sums: &mut [[[D::Sums; CHAINS]; PANELS]; ROWS],
        steps: &[[D::Step; 2]; ROWS],
        high: &[D::Bytes; PANELS],
    ) {
        // SAFETY: guaranteed by the caller.
        let bytes: [D::Bytes; PANELS] = each(
            #[inline(always)]
            |p| unsafe {
                let at = self.panels[p].add(VECTOR_AT * VECTOR);
                d.prefetch(at.wrapping_add(self.ahead));
                d.load(at)
            },
        );
        for part in 0..W::PARTS {
            let index = VECTOR_AT * W::PARTS + part;
            let mut operands = bytes;
            for (operand, high) in operands.iter_mut().zip(high) {
                *operand = W::operand(d, *operand, *high, index);
            }
            for (row, steps) in sums.iter_mut().zip(steps) {
                for (chains, w) in row.iter_mut().zip(operands) {
                    let sum = &mut chains[index % CHAINS];
                    // SAFETY: guaranteed by the caller.
                    *sum = unsafe { product::<D, W>(d, *sum, w, steps[index / 4], index % 4) };
                }
            }
        }
    }

    /// Multiplies rows with inputs `16 · GROUP` to `16 · GROUP + 15` of a step of each panel. Their
    /// four operands are multiplied together ([`Dot::GROUPS`]).
    ///
    /// # Safety
    /// The panels and the rows must be readable for the step, which must have these inputs.
    #[inline(always)]
    unsafe fn group<D: Dot, W: Stored, const ROWS: usize, const CHAINS: usize, const GROUP: usize>(
        &self,
        d: D,
        sums: &mut [[[D::Sums; CHAINS]; PANELS]; ROWS],
        steps: &[[D::Step; 2]; ROWS],
        high: &[D::Bytes; PANELS],
    ) {
        for (p, (panel, high)) in self.panels.iter().zip(high).enumerate() {
            // SAFETY: guaranteed by the caller.
            let operands: [D::Bytes; 4] = each(
                #[inline(always)]
                |index| unsafe { load::<D, W>(d, *panel, *high, 4 * GROUP + index) },
            );
            for (row, steps) in sums.iter_mut().zip(steps) {
                let sum = &mut row[p][GROUP % CHAINS];
                // SAFETY: guaranteed by the caller.
                *sum = unsafe { products::<D, W>(d, *sum, operands, steps[GROUP]) };
            }
        }
    }
}

/// Computes `ROWS × PANELS` results. `CHAINS` sums of each result hide the latency of the products.
///
/// # Safety
/// Rows `row..row + ROWS` and panels `panel..panel + PANELS` must exist, and `MODE` must be the
/// operands' mode. `w` must be the address of the first panel. No other task may write their
/// results.
#[inline(always)]
unsafe fn tile<
    D: Dot,
    W: Stored,
    const MODE: u8,
    const ROWS: usize,
    const PANELS: usize,
    const CHAINS: usize,
>(
    d: D,
    operands: Operands<'_>,
    row: usize,
    panel: usize,
    w: *const u8,
    target: Target<'_>,
) {
    let Operands { weights, geometry, rows, .. } = operands;
    let (f, units, length) = (d.values(), geometry.units, geometry.length);
    // SAFETY: the rows exist.
    let (q, row_sums) = unsafe { (rows.q.as_ptr().add(row * length), rows.sums.as_ptr().add(row * units)) };
    let mut values = [[f.splat(0.0); PANELS]; ROWS];
    let mut lanes = [[[0i32; LANES]; PANELS]; ROWS];
    let mut totals = [[[0.0f64; LANES]; PANELS]; ROWS];
    // SAFETY: the panels exist.
    let mut reading = unsafe { Reading::<PANELS>::new(w, geometry.panel_bytes(weights.kind)) };
    let mut cursor = Cursor::of(&operands, panel);
    let base = base_of::<D, W>(weights.base);
    for unit in 0..if MODE == WHOLE { 1 } else { units } {
        let is_last = MODE == WHOLE || unit + 1 == units;
        let end = if is_last { length } else { reading.place + geometry.stride };
        let mut sums = [[[d.splat(0); CHAINS]; PANELS]; ROWS];
        for (r, row) in sums.iter_mut().enumerate() {
            // SAFETY: the rows exist and have as many units.
            let sum = unsafe { *row_sums.add(r.wrapping_mul(units).wrapping_add(unit)) };
            let start = d.splat(base.wrapping_mul(sum));
            for chains in row {
                chains[0] = start;
            }
        }
        // SAFETY: the rows and the panels exist, and `end` is within their length.
        unsafe { reading.multiply::<D, W, ROWS, CHAINS>(d, q, length, end, &mut sums) };
        let mut all = [[d.splat(0); PANELS]; ROWS];
        for (all, row) in all.iter_mut().zip(&sums) {
            for (all, chains) in all.iter_mut().zip(row) {
                *all = chains[0];
                for chain in &chains[1..] {
                    *all = d.add(*all, *chain);
                }
            }
        }
        if MODE == WHOLE || MODE == LONG {
            for (lanes, all) in lanes.iter_mut().zip(&all) {
                for (lanes, all) in lanes.iter_mut().zip(all) {
                    *lanes = d.lanes(*all);
                }
            }
        } else {
            // SAFETY: guaranteed by the caller, and the cursor advances unit by unit.
            unsafe {
                add_unit::<D, MODE, ROWS, PANELS>(d, &operands, (row, unit), &cursor, &all, &mut values);
            }
            cursor.prefetch::<D, PANELS>(d);
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
        WHOLE => finish_whole(d, &lanes, &[], operands, (row, panel), target),
        LONG => finish_long(d, &totals, operands, row, panel, target),
        // SAFETY: guaranteed by the caller.
        _ => unsafe { finish(d, &values, &operands, row, panel, target) },
    }
}

/// Multiplies a few rows by panels `panel..panel + panels`.
#[inline(always)]
pub fn stream<D: Dot, W: Stored>(
    d: D,
    operands: Operands<'_>,
    streams: Streams,
    rows: usize,
    panel: usize,
    panels: usize,
    target: Target<'_>,
) {
    let bytes = operands.geometry.panel_bytes(operands.weights.kind);
    let weights = operands.weights.data[panel * bytes..][..panels * bytes].as_ptr();
    let mode = mode(&operands);
    let mut index = 0;
    while index < panels {
        macro_rules! cover {
            ($mode:ident, $row:expr, $rows:literal, $panels:literal, $chains:literal) => {
                // SAFETY: the panels are within the weights by the slice above, `row + $rows` ≤
                // `rows`, and a task has its own panels.
                unsafe {
                    let w = weights.add(index * bytes);
                    tile::<D, W, $mode, $rows, $panels, $chains>(d, operands, $row, panel + index, w, target)
                }
            };
        }
        // Covers results whose units have scales.
        macro_rules! cover_scaled {
            ($row:expr, $rows:literal, $panels:literal, $chains:literal) => {
                match mode {
                    OF_WEIGHTS => cover!(OF_WEIGHTS, $row, $rows, $panels, $chains),
                    _ => cover!(OF_BOTH, $row, $rows, $panels, $chains),
                }
            };
        }
        if const { matches!(<D::F as Simd>::REGISTERS, Registers::Many) }
            && rows == 1
            && streams == Streams::Eight
            && panels - index >= STREAMS
        {
            match mode {
                WHOLE if const { !W::IN_BLOCKS } => cover!(WHOLE, 0, 1, 8, 1),
                LONG if const { !W::IN_BLOCKS } => cover!(LONG, 0, 1, 8, 1),
                _ => cover_scaled!(0, 1, 8, 1),
            }
            index += STREAMS;
            continue;
        }
        let several = const { !matches!(<D::F as Simd>::REGISTERS, Registers::None) };
        if several && rows == 1 && streams != Streams::One && panels - index >= FEWER_STREAMS {
            match mode {
                WHOLE if const { !W::IN_BLOCKS } => cover!(WHOLE, 0, 1, 4, 1),
                LONG if const { !W::IN_BLOCKS } => cover!(LONG, 0, 1, 4, 1),
                _ if const { matches!(<D::F as Simd>::REGISTERS, Registers::Many) } => {
                    cover_scaled!(0, 1, 4, 1)
                }
                // Sums and values of four panels would use all registers.
                _ => {
                    cover_scaled!(0, 1, 2, 1);
                    index += 2;
                    continue;
                }
            }
            index += FEWER_STREAMS;
            continue;
        }
        let mut row = 0;
        while row < rows {
            // Weights are in cache from the second tile of rows on. Sums of units with scales use
            // two registers each.
            macro_rules! of_mode {
                ($rows:literal, $whole:literal, $scaled:literal) => {{
                    match mode {
                        WHOLE if const { !W::IN_BLOCKS } => cover!(WHOLE, row, $rows, 1, $whole),
                        _ => cover_scaled!(row, $rows, 1, $scaled),
                    }
                    row += $rows;
                }};
            }
            // Conditions that are constant per level remove the unused tile shapes.
            let left = rows - row;
            if const { !W::IN_BLOCKS } && mode == LONG {
                cover!(LONG, row, 1, 1, 1);
                row += 1;
            } else if const { matches!(<D::F as Simd>::REGISTERS, Registers::None) } {
                of_mode!(1, 1, 1);
            } else if const { matches!(<D::F as Simd>::REGISTERS, Registers::Many) } {
                match left {
                    8.. => of_mode!(8, 1, 1),
                    6.. => of_mode!(6, 1, 1),
                    4.. => of_mode!(4, 2, 2),
                    3 => of_mode!(3, 2, 2),
                    2 => of_mode!(2, 4, 2),
                    _ => of_mode!(1, 4, 2),
                }
            } else {
                match (mode, left) {
                    (WHOLE, 4..) => of_mode!(4, 1, 1),
                    (_, 2..) => of_mode!(2, 1, 1),
                    _ => of_mode!(1, 4, 2),
                }
            }
        }
        index += 1;
    }
}
