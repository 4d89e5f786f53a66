//! Scaled dot-product attention over visible keys only.
//!
//! Keys are visited in the order of their positions, from the first visible one. A result therefore
//! depends only on the visible keys. The capacity of the state, the place where a ring wraps, the
//! contents of other slots, rows, threads and blocks have no effect.
//!
//! Keys and values may be encoded in memory. Runs of them are widened once for all queries of a
//! block, to exactly the values that an f32 state would store. The encoding of a state therefore
//! only determines which values it can represent.
//!
//! * score: `q·k` in sixteen lanes over the head, summed as `Simd::reduce_add`, multiplied by the
//!   scale, then capped;
//! * weight: `exp(score − largest)`, 0 below e⁻⁶⁴, summed in sixteen lanes with key i in lane i mod
//!   16;
//! * result: one accumulator per value, `fma(weight, v, accumulator)` key by key, divided by the
//!   sum at the end.
//!
//! Rows that all see each other use separate kernels, in `all.rs`. Attention whose operands are
//! rounded to 16 bits is in `rounded.rs`.

mod all;
mod block;
mod element;
mod rounded;
mod weights;

pub use all::{Everyone, attention_of_all, scratch_of_all};
pub use rounded::{Products, attention_rounded, scratch_rounded};

pub(super) use weights::{divide, weigh};

use serde::{Deserialize, Serialize};

use crate::kernels::encoding::Stored;
use crate::pool::{Pool, SharedOutput};
use crate::simd::Level;

/// Dimensions and parameters of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heads {
    pub heads: usize,
    /// Number of key and value heads, which must divide `heads`.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Factor on `q·k`.
    pub scale: f32,
    /// Cap in `cap · tanh(score / cap)`, 0 for none.
    pub softcap: f32,
}

/// The keys that one row sees: positions `start..start + count`. Position p is stored in row
/// `p mod capacity` of the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    pub start: u64,
    /// Number of visible positions, at most the capacity. With 0 the result is a row of zeros.
    pub count: usize,
}

/// Dense operands of one attention.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// `[rows, heads · head_dim]`
    pub q: &'a [f32],
    /// `[capacity, kv_heads · head_dim]`
    pub k: Stored<'a>,
    /// `[capacity, kv_heads · head_dim]`
    pub v: Stored<'a>,
    /// Number of rows of `k` and `v`.
    pub capacity: usize,
    /// Distance of these rows, in elements.
    pub stride: usize,
}

impl Operands<'_> {
    /// Checks whether keys or values have all rows, with `width` elements in the last one.
    fn has_rows(&self, stored: Stored<'_>, width: usize) -> bool {
        let before = self.capacity.saturating_sub(1).checked_mul(self.stride);
        let end = before.and_then(|before| before.checked_add(width));
        self.capacity == 0 || (width <= self.stride && end.is_some_and(|end| end <= stored.len()))
    }
}

/// Checks the operands of an attention, and returns the number of keys that all rows see together.
///
/// # Panics
/// When a length does not fit the dimensions or a row sees more than `capacity` keys.
fn checked(heads: Heads, operands: Operands<'_>, visible: &[Visible], out: &[f32]) -> u64 {
    assert!(heads.kv_heads > 0 && heads.heads.is_multiple_of(heads.kv_heads), "heads do not share evenly");
    let queries = visible.len() * heads.heads * heads.head_dim;
    assert!(operands.q.len() >= queries && out.len() >= queries, "queries shorter than the rows");
    let width = heads.kv_heads * heads.head_dim;
    let is_whole = operands.has_rows(operands.k, width) && operands.has_rows(operands.v, width);
    assert!(is_whole, "keys shorter than the capacity");
    let most = visible.iter().map(|row| row.count).max().unwrap_or(0);
    assert!(most <= operands.capacity, "more visible keys than rows of the state");
    visible.iter().map(|row| row.count as u64).sum()
}

/// Number of queries that share the keys in cache, unless their scores would need too much memory.
const BLOCK_QUERIES: usize = 32;
/// Most scores of a block with more than one row: 2 MiB.
const BLOCK_SCORES: usize = 1 << 19;
/// Most and fewest keys per task when a single row is spread over threads.
const SPLIT_KEYS: [usize; 2] = [512, 64];
/// Cost of the weight of one key, in multiply-adds.
const WEIGHT: u64 = 16;
/// Values of a head per task are a multiple of this when a single row is spread over threads.
const SPLIT_VALUES: usize = 64;

/// Tasks of each thread of pools with more than two threads, whose speeds may differ.
const TASKS: usize = 8;
/// Fewest rows of a task that is smaller only because of [`TASKS`]: rows of a task share its keys.
const SHARING_ROWS: usize = 2;

/// Returns the most rows of a task of `threads` threads, so that every thread gets some.
fn rows_per_thread(rows: usize, kv_heads: usize, threads: usize) -> usize {
    let of = |tasks: usize| rows.div_ceil(tasks.div_ceil(kv_heads));
    match threads {
        0..=2 => of(threads),
        _ => of(TASKS * threads).max(of(threads).min(SHARING_ROWS)),
    }
}

/// Returns the rows of a block that shares keys among [`BLOCK_QUERIES`] queries, limited by the
/// memory for scores.
fn block_rows(group: usize, keys: usize) -> usize {
    let by_queries = BLOCK_QUERIES.div_ceil(group);
    // A block of r rows scores up to `keys + r` positions.
    let mut rows = by_queries;
    while rows > 1 && (rows * group).saturating_mul(keys.saturating_add(rows)) > BLOCK_SCORES {
        rows /= 2;
    }
    rows
}

/// Returns the number of scratch values that [`attention`] needs with `threads` threads if a row
/// sees at most `keys` keys, or `None` on overflow. `encoded` is true if keys or values are
/// encoded.
pub fn scratch_values(heads: Heads, keys: usize, threads: usize, encoded: bool) -> Option<usize> {
    let per_thread = per_thread(heads, keys)?;
    let one_row = keys.checked_add(1)?.checked_mul(heads.heads)?;
    let work = per_thread.checked_mul(threads)?.max(one_row.checked_add(heads.heads)?);
    work.checked_add(widened_values(heads, encoded)?.checked_mul(threads)?)
}

/// Returns the scratch values of a thread for a run of widened keys or values.
fn widened_values(heads: Heads, encoded: bool) -> Option<usize> {
    if encoded { heads.head_dim.checked_mul(block::run_keys(heads.head_dim)) } else { Some(0) }
}

/// Returns the number of scores and sums of one block. This is an upper bound that grows with
/// `keys`: memory planned for the most keys is also enough for fewer, although fewer keys make
/// larger blocks.
fn per_thread(heads: Heads, keys: usize) -> Option<usize> {
    let group = heads.heads / heads.kv_heads;
    let rows = BLOCK_QUERIES.div_ceil(group);
    let many = rows.checked_mul(group)?.checked_mul(keys.checked_add(rows)?)?.min(BLOCK_SCORES);
    let one = group.checked_mul(keys.checked_add(1)?)?;
    many.max(one).checked_add(rows.checked_mul(group)?)
}

/// Computes the attention of the rows that `visible` describes and writes
/// `out [rows, heads · head_dim]`. `blocks` is a buffer that is reused between calls.
///
/// # Panics
/// When a length does not fit the dimensions or a row sees more than `capacity` keys.
#[allow(clippy::too_many_arguments, reason = "operands, dimensions and where to work")]
pub fn attention(
    level: Level,
    pool: &Pool,
    heads: Heads,
    operands: Operands<'_>,
    visible: &[Visible],
    blocks: &mut Vec<Block>,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let total = checked(heads, operands, visible, out);
    let Operands { k, v, .. } = operands;
    let (rows, width) = (visible.len(), heads.heads * heads.head_dim);
    let keys = visible.iter().map(|row| row.count).max().unwrap_or(0);
    let per_thread = per_thread(heads, keys).unwrap_or(usize::MAX);
    let encoded = k.direct().is_none() || v.direct().is_none();
    let enough = scratch_values(heads, keys, pool.threads(), encoded);
    assert!(enough.is_some_and(|enough| scratch.len() >= enough), "scratch too small");
    let room = widened_values(heads, encoded).unwrap_or(0);
    let (widened, scratch) = scratch.split_at_mut(room * pool.threads());

    let group = heads.heads / heads.kv_heads;
    let most = block_rows(group, keys).min(rows_per_thread(rows, heads.kv_heads, pool.threads()));
    join(visible, most, blocks);
    let blocks = &*blocks;
    let units = blocks.len() * heads.kv_heads;
    let work = total.saturating_mul(2 * width as u64);
    let output = SharedOutput::new(out);
    let shared = SharedOutput::new(scratch);
    let widened = SharedOutput::new(widened);
    // SAFETY: the pool numbers the threads of a job uniquely, so every thread has its own part.
    let widened = |worker: usize| unsafe { widened.part(worker * room, room) };
    if !pool.worth(work) || units >= pool.threads() {
        let body = |unit: usize, worker: usize| {
            let (block, kv_head) = (last_first(blocks, unit / heads.kv_heads), unit % heads.kv_heads);
            // SAFETY: the pool numbers the threads of a job uniquely, so every thread has its own
            // part.
            let scratch = unsafe { shared.part(worker * per_thread, per_thread) };
            block::whole_at(
                level,
                heads,
                operands,
                visible,
                block,
                kv_head,
                scratch,
                widened(worker),
                output,
            );
        };
        if pool.worth(work) {
            pool.run_indexed(units, &body);
        } else {
            (0..units).for_each(|unit| body(unit, 0));
        }
        return;
    }
    // Few rows and many keys: one row at a time is spread over the threads. The three steps compute
    // the same results as a whole block.
    for (row, seen) in visible.iter().enumerate() {
        let one = Block { row, rows: 1, start: seen.start, count: seen.count };
        let scores = heads.heads * seen.count;
        let [most, least] = SPLIT_KEYS;
        let tasks = if pool.threads() > 2 { 2 * pool.threads() } else { pool.threads() };
        let chunk = seen.count.div_ceil(tasks).next_multiple_of(least).clamp(least, most);
        let chunks = seen.count.div_ceil(chunk);
        pool.run_indexed(chunks * heads.kv_heads, &|task, worker| {
            let (kv_head, first) = (task / chunks, task % chunks * chunk);
            let count = chunk.min(seen.count - first);
            block::scores_at(
                level,
                heads,
                operands,
                &one,
                kv_head,
                first,
                count,
                shared,
                kv_head * group * seen.count,
                widened(worker),
            );
        });
        let weigh = |head: usize| {
            // SAFETY: each head has its own scores and its own sum.
            let (scores, sum) =
                unsafe { (shared.part(head * seen.count, seen.count), shared.part(scores + head, 1)) };
            sum[0] = block::weights_at(level, heads, scores);
        };
        match pool.worth(scores as u64 * WEIGHT) {
            true => pool.run(heads.heads, &weigh),
            false => (0..heads.heads).for_each(weigh),
        }
        // Slices are as long as possible, because short pieces of rows are slow to read.
        let share =
            heads.head_dim.div_ceil(pool.threads().div_ceil(heads.kv_heads)).next_multiple_of(SPLIT_VALUES);
        let slices = heads.head_dim.div_ceil(share);
        pool.run_indexed(slices * heads.kv_heads, &|task, worker| {
            let (kv_head, first) = (task / slices, task % slices * share);
            let count = share.min(heads.head_dim - first);
            block::results_at(
                level,
                heads,
                operands,
                visible,
                &one,
                kv_head,
                first,
                count,
                shared,
                kv_head * group * seen.count,
                Some(scores + kv_head * group),
                widened(worker),
                output,
            );
        });
    }
}

/// Consecutive rows and the positions that at least one of them may see.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    row: usize,
    rows: usize,
    start: u64,
    count: usize,
}

/// Joins neighbouring rows while the union of the keys they see stays close to the keys that each
/// sees.
fn join(visible: &[Visible], most: usize, blocks: &mut Vec<Block>) {
    blocks.clear();
    let largest = visible.iter().map(|row| row.count).max().unwrap_or(0);
    for (row, seen) in visible.iter().enumerate() {
        let end = seen.start.saturating_add(seen.count as u64);
        if let Some(last) = blocks.last_mut()
            && last.rows < most
        {
            let start = last.start.min(seen.start);
            let union = (last.start + last.count as u64).max(end) - start;
            if union <= (largest + most) as u64 {
                *last = Block { row: last.row, rows: last.rows + 1, start, count: union as usize };
                continue;
            }
        }
        blocks.push(Block { row, rows: 1, start: seen.start, count: seen.count });
    }
}

/// Returns a block, the last one first. Later rows see more keys, and a job that ends with its
/// smallest tasks has the shortest end.
fn last_first(blocks: &[Block], index: usize) -> &Block {
    &blocks[blocks.len() - 1 - index]
}

/// Returns the cost of each task of causal attention, in products of a row and a key of a head, in
/// the order in which threads take them.
#[cfg(test)]
pub(super) fn costs_of_tasks(heads: usize, kv_heads: usize, rows: usize, threads: usize) -> Vec<f64> {
    let visible: Vec<Visible> = (1..=rows).map(|count| Visible { start: 0, count }).collect();
    let most = block_rows(heads / kv_heads, rows).min(rows_per_thread(rows, kv_heads, threads));
    let mut blocks = Vec::new();
    join(&visible, most, &mut blocks);
    let tasks = (0..blocks.len() * kv_heads).map(|unit| last_first(&blocks, unit / kv_heads));
    tasks.map(|block| (block.rows * block.count * heads / kv_heads) as f64).collect()
}

#[cfg(test)]
mod tests;
