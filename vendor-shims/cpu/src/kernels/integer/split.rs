//! `y = x · wᵀ` of a few rows over signed bytes that are stored in two parts. Finding the top-k of
//! very many results of each row then reads little more than the first part, once for all rows.
//!
//! A weight of eight bits is `w = 8·h + l` with `−16 ≤ h ≤ 15` and `0 ≤ l ≤ 7`. With the quantised
//! row q, `Σ w·q = 8·Σ h·q + Σ l·q`, and
//!
//! `Σ l·q = 3.5·Σ q + Σ (l − 3.5)·q ≤ 3.5·Σ q + ‖l − 3.5‖ · ‖q‖` (Cauchy and Schwarz).
//!
//! So the first parts give an upper bound of every result. Every requested result is exact: with
//! the k largest requested, the second part of a row is skipped only if its bound is below k exact
//! results of other rows. For K independent weights the bound exceeds the result by about
//! `0.06 · √K` standard deviations of the results, and the largest of V results is about
//! `√(2 ln V)` standard deviations above the mean. With one row and 262,144 roughly normal weight
//! rows, 3.5 of a thousand second parts were read at K = 640, and 5.7 at K = 1536 (one
//! measurement). The results of a trained model are often closer to each other, and then most
//! second parts are read, one by one. Computing all results is faster in that case ([`Head`]).
//!
//! First parts are stored in panels of sixteen outputs. Every 32 inputs of a panel are five vectors
//! of 64 bytes, with bytes 4·i to 4·i + 3 of each for output i. Four vectors contain the low four
//! bits of `h + 16`, packed like integers of four bits ([`super::pack`]). Bits 2·t and 2·t + 1 of
//! the fifth vector are the fifth bits of the low and the high half of vector t. Second parts are
//! stored row by row, in the format of [`Dot::thirds`], because only few of them are read, far
//! apart.

mod head;
pub(in crate::kernels) mod runs;
mod search;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::AtomicU32;

pub use self::head::Head;
use self::runs::{CUT, EARLY, Run, runs, units_of, units_of_part};
use self::search::{Best, Phase, Search, keep_largest, length, search_at};
use super::results::value;
use super::streams::{FEWER_STREAMS, STREAMS, ahead};
use super::{Geometry, Streams, bytes_of, integers_of, quantise_rows};
use crate::kernels::math::softcap;
use crate::pool::{Pool, SharedOutput};
use crate::simd::dot::{Dot, DotLevel, THIRDS, VECTOR, dispatch_dot};
use crate::simd::{LANES, Level, Registers, Simd, each};

/// Number of inputs of the second parts that are read at a time. The number of inputs is a multiple
/// of it.
pub const STEP: usize = 2 * VECTOR;
/// Largest number of inputs: sums of first parts are exact in f32, since `16 · 127 · 2¹³ < 2²⁴`.
pub const LONGEST: usize = 1 << 13;
/// Largest supported top-k. For a larger request all results are computed.
pub const MOST: usize = 256;
/// Inputs and vectors of a block of first parts.
const BLOCK: usize = 32;
const BLOCK_VECTORS: usize = 5;
/// One step of a row's spread, as a fraction of √K.
const SPREAD: f32 = 3.5 / 255.0;
/// Most panels whose bounds are compared while they are in cache.
const PANELS: usize = 64;
/// Outputs of [`PANELS`] panels.
const CHUNK: usize = PANELS * LANES;
/// Number of rows for which first parts are read once. More rows are processed in groups of this
/// size.
pub const ROWS: usize = 16;

/// Packed weights of one linear map with a scale per output and without bias.
#[derive(Clone, Copy, Debug)]
pub struct Split<'a> {
    /// First parts, panel after panel (see [`pack_high`]).
    pub high: &'a [u8],
    /// Second parts, [`row_bytes`] of each output (see [`pack_low`]).
    pub low: &'a [u8],
    /// `‖l − 3.5‖` of each output in steps of `3.5/255 · √inputs`, rounded up.
    pub spread: &'a [u8],
    /// One scale per output.
    pub scales: &'a [f32],
    /// Number of inputs, K: a multiple of [`STEP`], at most [`LONGEST`].
    pub inputs: usize,
    /// Number of outputs, N.
    pub outputs: usize,
}

impl Split<'_> {
    /// Checks whether matrices with this many inputs can be split.
    pub const fn takes(inputs: u64) -> bool {
        inputs > 0 && inputs.is_multiple_of(STEP as u64) && inputs <= LONGEST as u64
    }

    /// Returns how many of the largest results of each row are found, or `None` if all results are
    /// written.
    pub fn wanted(&self, largest: Option<NonZeroUsize>) -> Option<usize> {
        largest.map(NonZeroUsize::get).filter(|wanted| *wanted <= MOST && *wanted < self.outputs)
    }

    /// Checks the dimensions and the lengths of weights and scales.
    ///
    /// # Panics
    /// When there are fewer weights or scales than the dimensions require, or the dimensions cannot
    /// be split.
    fn check(&self) {
        assert!(Split::takes(self.inputs as u64), "{} inputs in two parts", self.inputs);
        let panels = self.outputs.div_ceil(LANES);
        assert!(self.high.len() >= panels * panel_bytes(self.inputs), "fewer first parts than panels");
        assert!(self.low.len() >= self.outputs * row_bytes(self.inputs), "fewer second parts than weights");
        assert!(
            self.spread.len() >= self.outputs && self.scales.len() >= self.outputs,
            "fewer scales than outputs"
        );
    }
}

/// Returns the bytes of the first parts of a panel.
pub const fn panel_bytes(inputs: usize) -> usize {
    inputs / BLOCK * BLOCK_VECTORS * VECTOR
}

/// Returns the bytes of the second parts of a row.
pub const fn row_bytes(inputs: usize) -> usize {
    inputs / STEP * THIRDS
}

/// Packs the first parts of one panel. `rows` contains up to sixteen rows of `inputs` weights.
/// Missing outputs become zeros.
///
/// # Panics
/// When the target is shorter than the panel.
pub fn pack_high(rows: &[i8], inputs: usize, target: &mut [u8]) {
    let target = &mut target[..panel_bytes(inputs)];
    target.fill(0);
    for lane in 0..LANES {
        for input in 0..inputs {
            let part = (rows.get(lane * inputs + input).map_or(0, |weight| weight >> 3) + 16) as u8;
            let (block, vector, half) = (input / BLOCK, input % BLOCK / 8, input / 4 % 2);
            let block = &mut target[block * BLOCK_VECTORS * VECTOR..][..BLOCK_VECTORS * VECTOR];
            let byte = lane * 4 + input % 4;
            block[vector * VECTOR + byte] |= (part & 15) << (4 * half);
            block[4 * VECTOR + byte] |= (part >> 4) << (2 * vector + half);
        }
    }
}

/// Packs the second parts of a row in steps of [`STEP`] inputs, in the format of [`Dot::thirds`],
/// and returns the row's spread.
///
/// # Panics
/// When the length of the row is not a multiple of [`STEP`], or the target is shorter than
/// [`row_bytes`].
pub fn pack_low(row: &[i8], low: &mut [u8]) -> u8 {
    let (steps, rest) = row.as_chunks::<STEP>();
    let low = &mut low[..row_bytes(row.len())];
    assert!(rest.is_empty(), "{} weights in steps of {STEP}", row.len());
    low.fill(0);
    let mut squares = 0.0f64;
    for (weights, low) in steps.iter().zip(low.as_chunks_mut::<THIRDS>().0) {
        for (at, weight) in weights.iter().enumerate() {
            let part = *weight as u8 & 7;
            low[at % 32] |= (part & 3) << (2 * (at / 32));
            low[32 + at % 16] |= (part >> 2) << (at / 16);
            squares += (f64::from(part) - 3.5).powi(2);
        }
    }
    let step = f64::from(SPREAD) * (row.len() as f64).sqrt();
    // The norm is at most 3.5·√K, which is 255 steps. The reduction here is far smaller than the
    // margin that the search adds.
    (squares.sqrt() / step * (1.0 - 1e-6)).ceil().clamp(0.0, 255.0) as u8
}

/// Offsets of the parts of the scratch memory, in values of four bytes.
struct Layout {
    upper: usize,
    list: usize,
    end: usize,
}

/// Scratch values of a thread: a spread, a bound, and a candidate for every output of a run.
const ROOM: usize = 3 * CHUNK;
/// Values of the list of a thread and row: a count, padding, then bits and index of each entry.
const LIST: usize = LANES + 2 * MOST;

impl Layout {
    fn new(inputs: usize, rows: usize, threads: usize) -> Option<Layout> {
        let rows = rows.min(ROWS);
        let upper = (inputs / 4).checked_mul(rows)?.checked_next_multiple_of(LANES)?;
        let list = threads.checked_mul(ROOM)?.checked_add(upper)?;
        Some(Layout { upper, list, end: threads.checked_mul(rows * LIST)?.checked_add(list)? })
    }
}

/// Returns the number of scratch values that [`split_linear`] needs for a pool of `threads`
/// threads, or `None` on overflow.
pub fn scratch_values(inputs: usize, rows: usize, threads: usize) -> Option<usize> {
    Some(Layout::new(inputs, rows, threads)?.end)
}

/// Writes `out[r][n]` for `rows` rows of `x [rows, inputs]`, quantised as by [`quantise_rows`].
/// Every result is `sum · (row scale · weight scale)` in f64, rounded once. If there is a `cap`
/// (finite and positive), [`softcap`] is applied.
///
/// With `largest = k`, only the k largest results of each row are written, and all other places
/// receive [`f32::MIN`]. Among equal results the lower index wins. The choice depends only on the
/// operands of the row, not on other rows. All results of a row that is not finite are NaN. `head`
/// selects how the largest results are found.
///
/// # Panics
/// When a length does not fit the dimensions, or the dimensions cannot be split.
#[allow(clippy::too_many_arguments, reason = "operands and where to work")]
pub fn split_linear(
    level: Level,
    dot: DotLevel,
    streams: Streams,
    head: Head,
    pool: &Pool,
    x: &[f32],
    split: Split<'_>,
    cap: Option<f32>,
    largest: Option<NonZeroUsize>,
    rows: usize,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    split.check();
    let Split { inputs, outputs, .. } = split;
    assert!(x.len() >= rows * inputs && out.len() >= rows * outputs, "operands shorter than the dimensions");
    let layout = Layout::new(inputs, rows, pool.threads()).expect("rows that fit in memory");
    let (q, rest) = scratch[..layout.end].split_at_mut(layout.upper);
    let (room, lists) = rest.split_at_mut(layout.list - layout.upper);
    let (q, lists) = (bytes_of(q), integers_of(lists));
    let (room, lists) = (SharedOutput::new(room), SharedOutput::new(lists));
    let find = split.wanted(largest).map(|wanted| (wanted, head));
    for first in (0..rows).step_by(ROWS) {
        let rows = ROWS.min(rows - first);
        let (mut sums, mut scales) = ([0; ROWS], [0.0; ROWS]);
        let x = &x[first * inputs..];
        let whole = Geometry::of(inputs, None, None).expect("few inputs");
        quantise_rows(level, pool, x, whole, rows, false, q, &mut sums, &mut scales, &mut []);
        let all: [Row<'_>; ROWS] = std::array::from_fn(|row| {
            let row = row.min(rows - 1);
            let (q, sum, scale) = (&q[row * inputs..][..inputs], sums[row], scales[row]);
            Row { split, q, sum, scale, cap, streams }
        });
        let out = SharedOutput::new(&mut out[first * outputs..][..rows * outputs]);
        some_rows(dot, pool, &all[..rows], find, room, lists, out);
    }
}

/// Processes at most [`ROWS`] rows. With `find`, only that many of the largest results of each row
/// are written.
fn some_rows(
    dot: DotLevel,
    pool: &Pool,
    rows: &[Row<'_>],
    find: Option<(usize, Head)>,
    room: SharedOutput<'_, f32>,
    lists: SharedOutput<'_, i32>,
    out: SharedOutput<'_, f32>,
) {
    let Split { inputs, outputs, .. } = rows[0].split;
    let units = units_of(outputs);
    let shared = pool.worth((rows.len() * outputs * inputs) as u64 / 4);
    // Covers units in runs of any length that fit in the scratch memory.
    let run = |units: Range<usize>, body: &(dyn Fn(Run, usize) + Sync)| {
        let some = |taken: Range<usize>, thread: usize| {
            let taken = units.start + taken.start..units.start + taken.end;
            runs(taken, outputs).for_each(|run| body(run, thread));
        };
        match shared {
            true => pool.run_ranges(units.len(), CUT, &some),
            false => some(0..units.len(), 0),
        }
    };
    let Some((wanted, head)) = find else {
        return run(0..units, &|run, _| complete_at(dot, rows, run, out));
    };
    let bars = [const { AtomicU32::new(0) }; ROWS];
    let list = |thread: usize, row: usize| {
        // SAFETY: each thread has its own part, and thread indices are below the pool's number of
        // threads.
        unsafe { lists.part((thread * rows.len() + row) * LIST, LIST) }
    };
    for thread in 0..pool.threads() {
        (0..rows.len()).for_each(|row| list(thread, row)[0] = 0);
    }
    let lists_of = |thread: usize| {
        // SAFETY: as above.
        unsafe { lists.part(thread * rows.len() * LIST, rows.len() * LIST) }
    };
    match head {
        Head::All => run(0..units, &|run, thread| {
            complete_at(dot, rows, run, out);
            keep_largest(rows, &bars, wanted, run, lists_of(thread), out);
        }),
        Head::Bounds => {
            let lengths = std::array::from_fn(|row| length(&rows[row.min(rows.len() - 1)]));
            let search = Search { rows, lengths, bars: &bars, wanted };
            let step = |phase: Phase, run: Run, thread: usize| {
                // SAFETY: as above.
                let room = unsafe { room.part(thread * ROOM, ROOM) };
                search_at(dot, &search, phase, run, room, lists_of(thread), out);
            };
            // The most promising results of some parts come first. They raise the bar for the other
            // parts, which finish while their bounds are in cache. If only one result is wanted,
            // few parts are enough. The first and the last phase need the same parts.
            let part = units_of_part(pool.threads());
            let parts = units.div_ceil(part);
            let early = if wanted == 1 { parts.div_ceil(EARLY) } else { parts };
            let begin_or_end = |phase: Phase| {
                let body = |at: usize, thread: usize| {
                    let units = at * part..units.min((at + 1) * part);
                    runs(units, outputs).for_each(|run| step(phase, run, thread));
                };
                match shared {
                    true => pool.run_indexed(early, &body),
                    false => (0..early).for_each(|at| body(at, 0)),
                }
            };
            begin_or_end(Phase::Begin);
            run(units.min(early * part)..units, &|run, thread| step(Phase::Both, run, thread));
            begin_or_end(Phase::End);
        }
    }
    for row in 0..rows.len() {
        let mut best = Best::of(list(0, row), wanted);
        for thread in 1..pool.threads() {
            for [bits, index] in Best::of(list(thread, row), wanted).found() {
                best.add(f32::from_bits(*bits as u32), *index as u32);
            }
        }
        for [bits, index] in best.found() {
            // SAFETY: all jobs are done.
            unsafe { out.part(row * outputs + *index as usize, 1)[0] = f32::from_bits(*bits as u32) };
        }
    }
}

/// A quantised row and the weights that it is multiplied by.
#[derive(Clone, Copy)]
struct Row<'a> {
    split: Split<'a>,
    q: &'a [i8],
    /// `Σ q`
    sum: i32,
    scale: f32,
    cap: Option<f32>,
    streams: Streams,
}

/// Writes `Σ h·q` of the outputs of a run to their places in `out`, for every row.
#[inline(always)]
fn high<D: Dot>(d: D, rows: &[Row<'_>], run: Run, out: SharedOutput<'_, f32>) {
    let Row { split: Split { inputs, high, .. }, streams, .. } = rows[0];
    let bytes = panel_bytes(inputs);
    let Run { first: mut panel, end } = run;
    while panel < end {
        let (left, high) = (end - panel, high[panel * bytes..end * bytes].as_ptr());
        macro_rules! cover {
            ($row:expr, $rows:literal, $panels:expr, $chains:literal) => {{
                let rows = rows[$row..].first_chunk().expect("so many rows");
                // SAFETY: at least this many panels are left.
                unsafe { panels::<D, $rows, { $panels }, $chains>(d, rows, $row, high, panel, out) };
            }};
        }
        if rows.len() == 1 && left >= FEWER_STREAMS && streams != Streams::One {
            if const { matches!(<D::F as Simd>::REGISTERS, Registers::Many) }
                && streams == Streams::Eight
                && left >= STREAMS
            {
                cover!(0, 1, STREAMS, 1);
                panel += STREAMS;
            } else {
                cover!(0, 1, FEWER_STREAMS, 1);
                panel += FEWER_STREAMS;
            }
            continue;
        }
        // First parts are in cache from the second tile of rows on. Conditions that are constant
        // per level remove the unused tile shapes.
        let mut row = 0;
        while row < rows.len() {
            macro_rules! of_rows {
                ($rows:literal, $chains:literal) => {{
                    cover!(row, $rows, 1, $chains);
                    row += $rows;
                }};
            }
            match (const { <D::F as Simd>::REGISTERS }, rows.len() - row) {
                (Registers::Many, 8..) => of_rows!(8, 1),
                (Registers::Many, 6..) => of_rows!(6, 1),
                (Registers::Many | Registers::Few, 4..) => of_rows!(4, 1),
                (Registers::Many | Registers::Few, 2..) => of_rows!(2, 2),
                _ => of_rows!(1, 4),
            }
        }
        panel += 1;
    }
}

/// Multiplies panels `panel..panel + N` in parallel by the rows from `row` on. Each result has
/// `CHAINS` sums, because a single sum would wait for itself.
///
/// # Safety
/// `high` must be readable for `N` panels, and no other task may write their results.
#[inline(always)]
unsafe fn panels<D: Dot, const R: usize, const N: usize, const CHAINS: usize>(
    d: D,
    rows: &[Row<'_>; R],
    row: usize,
    high: *const u8,
    panel: usize,
    out: SharedOutput<'_, f32>,
) {
    let Split { inputs, outputs, .. } = rows[0].split;
    let bytes = panel_bytes(inputs);
    let mut sums = [[[d.splat(0); CHAINS]; N]; R];
    for (sums, row) in sums.iter_mut().zip(rows) {
        sums.iter_mut().for_each(|chains| chains[0] = d.splat((-16i32).wrapping_mul(row.sum)));
    }
    let rows: [*const i8; R] = rows.map(|row| row.q[..inputs].as_ptr());
    let near = const { ahead(N) };
    let mut ahead = near;
    for block in 0..inputs / BLOCK {
        let at = |panel: usize, vector: usize| {
            high.wrapping_add(panel * bytes + (block * BLOCK_VECTORS + vector) * VECTOR)
        };
        // Prefetching past the end of a panel would fetch the neighbouring panel, which another
        // stream reads. This stream continues after the last of the panels instead.
        if block * BLOCK_VECTORS * VECTOR + near >= bytes {
            ahead = near + (N - 1) * bytes;
        }
        // SAFETY: the caller guarantees five vectors of each panel, and each row has 32 values
        // here.
        unsafe {
            let bits: [D::Bytes; N] = each(
                #[inline(always)]
                |panel| d.load(at(panel, 4)),
            );
            for vector in 0..4 {
                let bytes: [D::Bytes; N] = each(
                    #[inline(always)]
                    |panel| {
                        d.prefetch(at(panel, vector).wrapping_add(ahead));
                        d.load(at(panel, vector))
                    },
                );
                for half in 0..2 {
                    let quads: [D::Quad; R] = each(
                        #[inline(always)]
                        |row| d.quad(rows[row].add(block * BLOCK + 8 * vector + 4 * half)),
                    );
                    for panel in 0..N {
                        let w = d.raise(d.field(bytes[panel], 4, half), bits[panel], 2 * vector + half);
                        for row in 0..R {
                            let sum = &mut sums[row][panel][vector % CHAINS];
                            *sum = d.dot_small(*sum, w, quads[row]);
                        }
                    }
                }
            }
            for panel in 0..N {
                d.prefetch(at(panel, 4).wrapping_add(ahead));
            }
        }
    }
    for (index, sums) in sums.into_iter().enumerate() {
        for (at, chains) in sums.into_iter().enumerate() {
            let sums = chains[1..].iter().fold(chains[0], |sums, chain| d.add(sums, *chain));
            let first = (panel + at) * LANES;
            let count = LANES.min(outputs - first);
            // SAFETY: as many values exist, and only the caller's task writes them.
            unsafe {
                let out = out.address((row + index) * outputs + first, count);
                d.values().store_partial(out, count, d.widen(sums));
            }
        }
    }
}

impl Row<'_> {
    /// Computes the uncapped result of an output from its sum of first parts.
    #[inline(always)]
    fn result<D: Dot>(&self, d: D, output: usize, high: f32) -> f32 {
        let [low] = low(d, [self.q], self.split, output, 0);
        let sum = 8 * i64::from(high as i32) + i64::from(d.total(low));
        value(sum as f64, f64::from(self.scale), f64::from(self.split.scales[output]), 0.0)
    }

    /// Caps results in place.
    #[inline(always)]
    fn cap<D: Dot>(&self, d: D, results: &mut [f32]) {
        let f = d.values();
        let Some(cap) = self.cap else { return };
        for results in results.chunks_mut(LANES) {
            let count = results.len();
            // SAFETY: the chunk has `count` values.
            unsafe {
                let values = f.load_partial(results.as_ptr(), count);
                f.store_partial(results.as_mut_ptr(), count, softcap(f, values, cap));
            }
        }
    }

    /// Returns a bound such that every result below it is less than `least` after capping.
    fn below(&self, least: f32) -> f32 {
        let Some(cap) = self.cap else { return least };
        let cap = f64::from(cap);
        let part = f64::from(least) / cap;
        // `softcap` is within 5e-7 of the exact function: 3 ulp of tanh, a quotient and a product.
        // The error of subnormal quotients is far below the smallest normal number.
        let part = (part - 2e-6 * part.abs()).max(-1.0);
        (cap * part.atanh() - f64::from(f32::MIN_POSITIVE) * cap.max(1.0)) as f32
    }
}

/// Computes `Σ l·q` of an output for `R` rows, as lanes that add up to it. Prefetches at a distance
/// of `ahead` bytes.
#[inline(always)]
fn low<D: Dot, const R: usize>(
    d: D,
    rows: [&[i8]; R],
    split: Split<'_>,
    output: usize,
    ahead: usize,
) -> [D::Sums; R] {
    let bytes = row_bytes(split.inputs);
    let mut sums = [[d.splat(0); 2]; R];
    let rows = rows.map(|q| q[..split.inputs].as_ptr());
    for (step, low) in split.low[output * bytes..][..bytes].as_chunks::<THIRDS>().0.iter().enumerate() {
        d.prefetch(low.as_ptr().wrapping_add(ahead));
        // SAFETY: every chunk has the length that is read, and rows have a step for each chunk.
        unsafe {
            let [first, second] = d.thirds(low.as_ptr());
            for (sums, q) in sums.iter_mut().zip(rows) {
                let q = q.add(step * STEP).cast::<u8>();
                sums[0] = d.dot_each(sums[0], first, d.load(q));
                sums[1] = d.dot_each(sums[1], second, d.load(q.add(VECTOR)));
            }
        }
    }
    let mut all = [d.splat(0); R];
    for (all, [a, b]) in all.iter_mut().zip(sums) {
        *all = d.add(a, b);
    }
    all
}

/// Computes the results of up to sixteen outputs from `first` on, for the rows from `row` on. The
/// results replace the sums of first parts in `out`. Finishing the outputs one by one would need as
/// much time as their second parts.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "rows, outputs and their places")]
fn results<D: Dot, const R: usize>(
    d: D,
    rows: &[Row<'_>; R],
    row: usize,
    first: usize,
    count: usize,
    ahead: usize,
    out: SharedOutput<'_, f32>,
) {
    let (f, split) = (d.values(), rows[0].split);
    let mut lanes = [[f.splat(0.0); LANES]; R];
    for lane in 0..count {
        let low = low(d, rows.map(|row| row.q), split, first + lane, ahead);
        for (lanes, low) in lanes.iter_mut().zip(low) {
            lanes[lane] = d.widen(low);
        }
    }
    let mut scales = [0.0; LANES];
    scales.iter_mut().zip(&split.scales[first..first + count]).for_each(|(to, from)| {
        *to = f64::from(*from);
    });
    for ((index, row_of), lanes) in rows.iter().enumerate().zip(lanes) {
        // SAFETY: a task has its own outputs.
        let results = unsafe { out.part((row + index) * split.outputs + first, count) };
        let (mut low, mut sums) = ([0.0; LANES], [0; LANES]);
        // Sums of f32 are exact: `7 · 127 · 2¹³ < 2²⁴`.
        // SAFETY: sixteen values.
        unsafe { f.store(low.as_mut_ptr(), f.reduce_add_each(lanes)) };
        for ((sum, high), low) in sums.iter_mut().zip(&*results).zip(low) {
            // The sum is within 2³¹: |w·q| ≤ 2¹⁴, for 2¹³ inputs.
            *sum = 8 * (*high as i32) + low as i32;
        }
        let mut values = d.exact(d.sums(&sums), f64::from(row_of.scale), &scales, &[0.0; LANES]);
        if let Some(cap) = row_of.cap {
            values = softcap(f, values, cap);
        }
        // SAFETY: `results` has `count` values.
        unsafe { f.store_partial(results.as_mut_ptr(), count, values) };
    }
}

/// Returns the results of a run for a row.
#[inline(always)]
fn outputs_of<'a>(split: Split<'_>, row: usize, run: Run, out: SharedOutput<'a, f32>) -> &'a mut [f32] {
    let outputs = run.outputs(split);
    // SAFETY: no other thread has these outputs.
    unsafe { out.part(row * split.outputs + outputs.start, outputs.len()) }
}

dispatch_dot! { fn complete_at => complete(rows: &[Row<'_>], run: Run, out: SharedOutput<'_, f32>) }

/// Computes all results of a run.
#[inline(always)]
fn complete<D: Dot>(d: D, rows: &[Row<'_>], run: Run, out: SharedOutput<'_, f32>) {
    high(d, rows, run, out);
    // Groups of outputs are read in several streams, like panels. For several rows they are in
    // cache.
    let Row { split, streams, .. } = rows[0];
    let streams = streams.count();
    let (begin, count) = (run.first * LANES, run.outputs(split).len());
    let part = count.div_ceil(streams).next_multiple_of(LANES);
    for at in (0..part).step_by(LANES) {
        for from in (at..count).step_by(part) {
            let lanes = LANES.min(count - from);
            let mut row = 0;
            macro_rules! of_rows {
                ($rows:literal) => {{
                    let rows = rows[row..].first_chunk::<$rows>().expect("so many rows");
                    results(d, rows, row, begin + from, lanes, ahead(streams), out);
                    row += $rows;
                }};
            }
            while row < rows.len() {
                match (const { <D::F as Simd>::REGISTERS }, rows.len() - row) {
                    (Registers::Many | Registers::Few, 4..) => of_rows!(4),
                    (Registers::Many | Registers::Few, 2..) => of_rows!(2),
                    _ => of_rows!(1),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
