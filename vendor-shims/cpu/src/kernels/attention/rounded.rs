//! Attention whose operands are rounded to 16 bits before they are multiplied.
//!
//! * queries, keys and values are rounded to the nearest value, ties to even;
//! * score: `q·k` in sixteen lanes over the head, as in [`attention`](super::attention);
//! * keys form blocks of [`KEYS`] positions, starting at multiples of it. A row sees all, some or
//!   no keys of a block;
//! * weight: `exp(score − largest)`, with the largest visible score of the block, 0 below e⁻⁶⁴,
//!   rounded to 16 bits. Weights are summed in sixteen lanes, position p in lane p mod 16;
//! * result of a block: one accumulator per value, `fma(weight, v, accumulator)` key by key;
//! * blocks are added in their order: `largest` becomes the larger of both, and sums and results
//!   are multiplied by `exp(own largest − largest)`, 0 below e⁻⁶⁴. The final result is divided by
//!   the final sum.
//!
//! Threads, runs and cuts divide rows and blocks of keys, so they change no bit. A product of two
//! 16-bit floats is exact in f32, but instructions that multiply them are not used. `vdpbf16ps` and
//! AMX flush subnormal numbers and add pairs, `bfmmla` rounds sums to odd, and f16 arithmetic
//! rounds every product. No order of f32 sums equals them all. Operands are widened instead, once
//! for all queries of a task, or in registers where few queries read a state of 16-bit floats.

use serde::{Deserialize, Serialize};

use super::block::{self, FEW_QUERIES, slot};
use super::weights::{NEGLIGIBLE, divide};
use super::{Block, Heads, Operands, Visible, join, last_first, rows_per_thread};
use crate::kernels::encoding::{Element, ElementEncoding, Stored, nearest_at, round, widen};
use crate::kernels::math::{exp, softcap};
use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

/// Positions of a block of keys. The format defines the number.
pub const KEYS: usize = 64;
/// Queries of a task, which share the widened keys. With heads of 256 values, queries, keys and
/// results of a task have 200 KiB.
const QUERIES: usize = 64;
/// Blocks whose results are in memory at once if a row is spread over threads.
const WAVE: usize = 64;
/// Numbers that are kept for a query: the largest score and the sum of weights.
const TOTALS: usize = 2;

/// Type of the operands of an attention's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Products {
    F32,
    Bf16,
    F16,
}

impl Products {
    const fn encoding(self) -> ElementEncoding {
        ElementEncoding::plain(match self {
            Products::F32 => Element::F32,
            Products::Bf16 => Element::Bf16,
            Products::F16 => Element::F16,
        })
    }
}

/// Returns the number of rows of a task.
fn rows_of_task(heads: Heads) -> usize {
    QUERIES.div_ceil(heads.heads / heads.kv_heads)
}

/// Returns the scratch values of a thread: queries and results of its rows, a block of keys or
/// values, scores, and totals of all blocks and of one.
fn per_thread(heads: Heads) -> Option<usize> {
    let queries = rows_of_task(heads).checked_mul(heads.heads / heads.kv_heads)?;
    let values = queries.checked_mul(2)?.checked_add(KEYS)?.checked_mul(heads.head_dim)?;
    values.checked_add(queries.checked_mul(KEYS + 2 * TOTALS)?)
}

/// Returns the number of scratch values that [`attention_rounded`] needs, or `None` on overflow. It
/// does not depend on the length of a text.
pub fn scratch_rounded(heads: Heads, threads: usize) -> Option<usize> {
    let wave = heads.head_dim.checked_add(TOTALS)?.checked_mul(WAVE)?.checked_add(TOTALS)?;
    per_thread(heads)?.checked_mul(threads)?.checked_add(wave.checked_mul(heads.heads)?)
}

/// Computes the attention of the rows that `visible` describes and writes
/// `out [rows, heads · head_dim]`. `blocks` is a buffer that is reused between calls.
///
/// # Panics
/// When a length does not fit the dimensions or a row sees more than `capacity` keys.
#[allow(clippy::too_many_arguments, reason = "operands, dimensions and where to work")]
pub fn attention_rounded(
    level: Level,
    pool: &Pool,
    heads: Heads,
    products: Products,
    operands: Operands<'_>,
    visible: &[Visible],
    blocks: &mut Vec<Block>,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let total = super::checked(heads, operands, visible, out);
    let enough = scratch_rounded(heads, pool.threads());
    assert!(enough.is_some_and(|enough| scratch.len() >= enough), "scratch too small");
    let room = per_thread(heads).unwrap_or(usize::MAX);
    let (rooms, wave) = scratch.split_at_mut(room * pool.threads());
    let rooms = SharedOutput::new(rooms);
    // SAFETY: the pool numbers the threads of a job uniquely, so every thread has its own part.
    let room = |worker: usize| unsafe { rooms.part(worker * room, room) };

    let share = rows_per_thread(visible.len(), heads.kv_heads, pool.threads());
    join(visible, rows_of_task(heads).min(share), blocks);
    let blocks = &*blocks;
    let units = blocks.len() * heads.kv_heads;
    let is_worth = pool.worth(total.saturating_mul(2 * (heads.heads * heads.head_dim) as u64));
    let rows = |first: usize, count: usize, kv_head: usize| {
        let visible = &visible[first..first + count];
        Rows { level, heads, products, operands, visible, first, kv_head }
    };
    let output = SharedOutput::new(out);
    if !is_worth || units >= pool.threads() {
        let body = |unit: usize, worker: usize| {
            let (block, kv_head) = (last_first(blocks, unit / heads.kv_heads), unit % heads.kv_heads);
            rows(block.row, block.rows, kv_head).attend(room(worker), output);
        };
        match is_worth {
            true => pool.run_indexed(units, &body),
            false => (0..units).for_each(|unit| body(unit, 0)),
        }
        return;
    }
    // Few rows and many keys: the blocks of one row at a time are spread over the threads.
    for row in 0..visible.len() {
        spread(pool, |kv_head| rows(row, 1, kv_head), &room, wave, output);
    }
}

/// Computes one row, a wave of blocks of keys at a time. `one` returns the row at a key head, and
/// `room` the memory of a thread.
fn spread<'a>(
    pool: &Pool,
    one: impl Fn(usize) -> Rows<'a> + Sync,
    room: &(impl Fn(usize) -> &'a mut [f32] + Sync),
    wave: &mut [f32],
    output: SharedOutput<'_, f32>,
) {
    let row = one(0);
    let Heads { heads, kv_heads, head_dim: d, .. } = row.heads;
    let (all, wave) = wave.split_at_mut(heads * TOTALS);
    let (totals, mixed) = wave.split_at_mut(WAVE * heads * TOTALS);
    let (totals, mixed) = (SharedOutput::new(totals), SharedOutput::new(mixed));
    // SAFETY: no task has values of the output, and these are within it.
    let results = unsafe { output.part(row.first * heads * d, heads * d) };
    clear(all);
    results.fill(0.0);
    let blocks = row.blocks();
    for first in blocks.clone().step_by(WAVE) {
        let count = WAVE.min((blocks.end - first) as usize);
        pool.run_indexed(count * kv_heads, &|task, worker| {
            let (kv_head, block) = (task / count, task % count);
            let row = one(kv_head);
            let group = row.group();
            let memory = Room::of(row.heads, 1, room(worker));
            row.round_queries(memory.queries);
            let place = block * heads + kv_head * group;
            // SAFETY: every task has its own block of its own heads.
            let (totals, mixed) =
                unsafe { (totals.part(place * TOTALS, group * TOTALS), mixed.part(place * d, group * d)) };
            row.block(first + block as u64, memory.queries, memory.keys, memory.scores, totals, mixed);
        });
        for block in 0..count {
            // SAFETY: the tasks of the wave have ended.
            let (totals, mixed) = unsafe {
                (
                    totals.part(block * heads * TOTALS, heads * TOTALS),
                    mixed.part(block * heads * d, heads * d),
                )
            };
            add_at(row.level, d, all, totals, mixed, results);
        }
    }
    finish_at(row.level, d, all, results);
}

/// Sets totals as for no keys.
fn clear(totals: &mut [f32]) {
    let (totals, _) = totals.as_chunks_mut::<TOTALS>();
    totals.fill([f32::NEG_INFINITY, 0.0]);
}

/// Parts of the memory of a thread.
struct Room<'a> {
    /// Rounded queries, `[rows, group · head_dim]`.
    queries: &'a mut [f32],
    /// Results of a block of keys, like the queries.
    mixed: &'a mut [f32],
    /// A block of keys or values, `[KEYS, head_dim]`.
    keys: &'a mut [f32],
    /// Scores, then weights, `[queries, KEYS]`.
    scores: &'a mut [f32],
    /// Totals of all blocks so far.
    all: &'a mut [f32],
    /// Totals of a block.
    totals: &'a mut [f32],
}

impl<'a> Room<'a> {
    /// Divides memory for a task of `rows` rows.
    fn of(heads: Heads, rows: usize, memory: &'a mut [f32]) -> Room<'a> {
        let queries = rows * (heads.heads / heads.kv_heads);
        let values = queries * heads.head_dim;
        let (own, rest) = memory.split_at_mut(values);
        let (mixed, rest) = rest.split_at_mut(values);
        let (keys, rest) = rest.split_at_mut(KEYS * heads.head_dim);
        let (scores, rest) = rest.split_at_mut(KEYS * queries);
        let (all, rest) = rest.split_at_mut(TOTALS * queries);
        Room { queries: own, mixed, keys, scores, all, totals: &mut rest[..TOTALS * queries] }
    }
}

/// Rows that are computed together at one key head.
#[derive(Clone, Copy)]
struct Rows<'a> {
    level: Level,
    heads: Heads,
    products: Products,
    operands: Operands<'a>,
    /// The keys that each of the rows sees.
    visible: &'a [Visible],
    /// First of the rows.
    first: usize,
    kv_head: usize,
}

impl Rows<'_> {
    fn group(&self) -> usize {
        self.heads.heads / self.heads.kv_heads
    }

    /// Returns the numbers of the blocks of keys that at least one row sees, or lies between.
    fn blocks(&self) -> std::ops::Range<u64> {
        let seen = || self.visible.iter().filter(|row| row.count > 0);
        let start = seen().map(|row| row.start).min().unwrap_or(0);
        let end = seen().map(|row| row.start + row.count as u64).max().unwrap_or(0);
        start / KEYS as u64..end.div_ceil(KEYS as u64)
    }

    /// Computes all blocks and writes the results of the rows.
    fn attend(&self, memory: &mut [f32], output: SharedOutput<'_, f32>) {
        let (d, values) = (self.heads.head_dim, self.group() * self.heads.head_dim);
        let Room { queries, mixed, keys, scores, all, totals } =
            Room::of(self.heads, self.visible.len(), memory);
        self.round_queries(queries);
        // SAFETY: only this task has these heads of these rows.
        let results = |row: usize| unsafe { output.part(self.column(row), values) };
        let of_row = |row: usize| row * self.group() * TOTALS..(row + 1) * self.group() * TOTALS;
        clear(all);
        (0..self.visible.len()).for_each(|row| results(row).fill(0.0));
        for block in self.blocks() {
            for row in self.block(block, queries, keys, scores, totals, mixed) {
                let mixed = &mixed[row * values..][..values];
                add_at(self.level, d, &mut all[of_row(row)], &totals[of_row(row)], mixed, results(row));
            }
        }
        (0..self.visible.len()).for_each(|row| finish_at(self.level, d, &all[of_row(row)], results(row)));
    }

    /// Returns the place of the queries and results of a row.
    fn column(&self, row: usize) -> usize {
        ((self.first + row) * self.heads.heads + self.kv_head * self.group()) * self.heads.head_dim
    }

    /// Writes the rounded queries of all rows.
    fn round_queries(&self, queries: &mut [f32]) {
        let values = self.group() * self.heads.head_dim;
        for (row, query) in queries.chunks_exact_mut(values.max(1)).enumerate() {
            query.copy_from_slice(&self.operands.q[self.column(row)..][..values]);
        }
        nearest_at(self.level, self.products.encoding(), queries);
    }

    /// Computes totals and results of a block of keys, and returns the rows that see at least one
    /// of its keys. Totals of other rows stay as for no keys.
    fn block(
        &self,
        block: u64,
        queries: &[f32],
        keys: &mut [f32],
        scores: &mut [f32],
        totals: &mut [f32],
        mixed: &mut [f32],
    ) -> std::ops::Range<usize> {
        let (group, d, base) = (self.group(), self.heads.head_dim, block * KEYS as u64);
        let mut seen = [Visible { start: base, count: 0 }; QUERIES];
        let seen = &mut seen[..self.visible.len()];
        for (seen, row) in seen.iter_mut().zip(self.visible) {
            let start = row.start.max(base);
            let end = (row.start + row.count as u64).min(base + KEYS as u64);
            if start < end {
                *seen = Visible { start, count: (end - start) as usize };
            }
        }
        clear(totals);
        let Some(first) = seen.iter().position(|row| row.count > 0) else { return 0..0 };
        let last = seen.iter().rposition(|row| row.count > 0).map_or(first, |last| last + 1);
        let visible = || seen[first..last].iter().filter(|row| row.count > 0);
        let start = visible().map(|row| row.start).min().unwrap_or(base);
        let end = visible().map(|row| row.start + row.count as u64).max().unwrap_or(base);
        let (from, count) = ((start - base) as usize, (end - start) as usize);

        // Queries, results, keys and values of one key head, as if there were no others.
        let heads = Heads { heads: group, kv_heads: 1, ..self.heads };
        let rows = Block { row: first, rows: last - first, start: base, count: KEYS };
        let offset = first * group * KEYS;
        let is_few = (last - first) * group <= FEW_QUERIES;
        {
            let k = self.read(self.operands.k, (start, count), is_few, keys);
            let operands = Operands { q: queries, ..k };
            let shared = SharedOutput::new(scores);
            block::scores_at(self.level, heads, operands, &rows, 0, from, count, shared, offset, &mut []);
        }
        for (query, scores) in scores.chunks_exact_mut(KEYS).enumerate().skip(first * group) {
            let Some(row) = seen.get(query / group).filter(|row| row.count > 0) else { continue };
            let lanes = [(row.start - base) as f32, (row.start - base + row.count as u64) as f32];
            let own = weigh_at(self.level, heads, self.products.encoding(), lanes, scores);
            totals[query * TOTALS..][..TOTALS].copy_from_slice(&own);
        }
        let operands = self.read(self.operands.v, (start, count), is_few, keys);
        let (weights, out) = (SharedOutput::new(scores), SharedOutput::new(mixed));
        block::results_at(
            self.level,
            heads,
            operands,
            seen,
            &rows,
            0,
            0,
            d,
            weights,
            offset,
            None,
            &mut [],
            out,
        );
        first..last
    }

    /// Returns keys or values of this key head from position `start` on: in place if the queries
    /// are few and nothing must be rounded, otherwise widened in `keys`.
    fn read<'k>(
        &'k self,
        stored: Stored<'k>,
        (start, count): (u64, usize),
        is_few: bool,
        keys: &'k mut [f32],
    ) -> Operands<'k> {
        let Operands { capacity, stride, .. } = self.operands;
        let (d, encoding) = (self.heads.head_dim, self.products.encoding());
        let own = stored.skip(self.kv_head * d);
        if is_few && self.products == Products::F16 && own.halves().is_some() {
            return Operands { q: &[], k: own, v: own, capacity, stride };
        }
        widen_at(self.level, own, encoding, (start, count), (capacity, stride), d, keys);
        let own = Stored::values(keys);
        Operands { q: &[], k: own, v: own, capacity: KEYS, stride: d }
    }
}

dispatch! {
    /// Widens and rounds `count` rows of `d` values from position `start` on. The row of a position
    /// is written at its place in its block.
    fn widen_at => widen_rows(
        stored: Stored<'_>, to: ElementEncoding, positions: (u64, usize), state: (usize, usize), d: usize, out: &mut [f32],
    )
}
dispatch! {
    /// Turns the scores of a query into weights. The first and the end of the visible keys are in
    /// `lanes`. Returns the largest score and the sum of the weights.
    fn weigh_at => weigh_block(heads: Heads, to: ElementEncoding, lanes: [f32; 2], scores: &mut [f32]) -> [f32; TOTALS]
}
dispatch! {
    /// Adds totals and results of a block to those of the blocks before it.
    fn add_at => add(d: usize, all: &mut [f32], totals: &[f32], mixed: &[f32], results: &mut [f32])
}
dispatch! {
    /// Divides results by their sums. Results of rows that see no key stay 0.
    fn finish_at => finish(d: usize, all: &[f32], results: &mut [f32])
}

#[inline(always)]
fn widen_rows<S: Simd>(
    s: S,
    stored: Stored<'_>,
    to: ElementEncoding,
    (start, count): (u64, usize),
    (capacity, stride): (usize, usize),
    d: usize,
    out: &mut [f32],
) {
    let first = slot(start, KEYS);
    let rows = out[first * d..(first + count) * d].chunks_exact_mut(d.max(1));
    let is_exact = stored.encoding().element == to.element;
    for (position, row) in (start..).zip(rows) {
        widen(s, stored, slot(position, capacity) * stride, row);
        if !is_exact {
            round(s, to, row);
        }
    }
}

/// Numbers of the lanes of a vector.
const NUMBERS: [f32; LANES] = {
    let mut numbers = [0.0; LANES];
    let mut lane = 0;
    while lane < LANES {
        numbers[lane] = lane as f32;
        lane += 1;
    }
    numbers
};

#[inline(always)]
fn weigh_block<S: Simd>(
    s: S,
    heads: Heads,
    to: ElementEncoding,
    [first, end]: [f32; 2],
    scores: &mut [f32],
) -> [f32; TOTALS] {
    let hidden = s.splat(f32::NEG_INFINITY);
    // SAFETY: sixteen numbers.
    let numbers = unsafe { s.load(NUMBERS.as_ptr()) };
    let mut largest = hidden;
    let (vectors, _) = scores.as_chunks_mut::<LANES>();
    for (vector, scores) in vectors.iter_mut().enumerate() {
        let number = s.add(numbers, s.splat((vector * LANES) as f32));
        // SAFETY: sixteen scores.
        unsafe {
            let mut score = s.mul(s.load(scores.as_ptr()), s.splat(heads.scale));
            if heads.softcap != 0.0 {
                score = softcap(s, score, heads.softcap);
            }
            let score = s.select_less(number, s.splat(end), score, hidden);
            let score = s.select_less(number, s.splat(first), hidden, score);
            s.store(scores.as_mut_ptr(), score);
            largest = s.max(score, largest);
        }
    }
    let largest = s.reduce_max(largest);
    for scores in vectors.iter_mut() {
        // SAFETY: sixteen scores.
        unsafe {
            let below = s.sub(s.load(scores.as_ptr()), s.splat(largest));
            s.store(scores.as_mut_ptr(), weight(s, below));
        }
    }
    round(s, to, scores);
    let mut sum = s.splat(0.0);
    let (vectors, _) = scores.as_chunks::<LANES>();
    for weights in vectors {
        // SAFETY: sixteen weights.
        sum = s.add(sum, unsafe { s.load(weights.as_ptr()) });
    }
    [largest, s.reduce_add(sum)]
}

/// Computes e to the power of `below`, or 0 for negligible weights.
#[inline(always)]
fn weight<S: Simd>(s: S, below: S::V) -> S::V {
    s.select_less(below, s.splat(NEGLIGIBLE), s.splat(0.0), exp(s, below))
}

#[inline(always)]
fn add<S: Simd>(s: S, d: usize, all: &mut [f32], totals: &[f32], mixed: &[f32], results: &mut [f32]) {
    let (all, _) = all.as_chunks_mut::<TOTALS>();
    let (totals, _) = totals.as_chunks::<TOTALS>();
    let rows = results.chunks_exact_mut(d.max(1)).zip(mixed.chunks_exact(d.max(1)));
    for ((all, own), (results, mixed)) in all.iter_mut().zip(totals).zip(rows) {
        if own[0] == f32::NEG_INFINITY && own[1] == 0.0 {
            // The row sees no key of the block.
            continue;
        }
        let largest = if own[0] > all[0] { own[0] } else { all[0] };
        let mut factors = [all[0] - largest, own[0] - largest];
        // SAFETY: two values are read and written.
        unsafe {
            let below = s.load_partial(factors.as_ptr(), TOTALS);
            s.store_partial(factors.as_mut_ptr(), TOTALS, weight(s, below));
        }
        let [before, here] = factors;
        *all = [largest, own[1].mul_add(here, all[1] * before)];
        let (before, here) = (s.splat(before), s.splat(here));
        for (results, mixed) in results.chunks_mut(LANES).zip(mixed.chunks(LANES)) {
            // SAFETY: both have as many values, at most sixteen.
            unsafe {
                let old = s.mul(s.load_partial(results.as_ptr(), results.len()), before);
                let new = s.fma(s.load_partial(mixed.as_ptr(), mixed.len()), here, old);
                s.store_partial(results.as_mut_ptr(), results.len(), new);
            }
        }
    }
}

#[inline(always)]
fn finish<S: Simd>(s: S, d: usize, all: &[f32], results: &mut [f32]) {
    let (all, _) = all.as_chunks::<TOTALS>();
    for ([largest, sum], results) in all.iter().zip(results.chunks_exact_mut(d.max(1))) {
        if *largest != f32::NEG_INFINITY || *sum != 0.0 {
            divide(s, results, *sum);
        }
    }
}
