//! Attention of one block of rows to one key head: scores, weights, results.

use super::element::KvElement;
use super::weights::{divide, weigh};
use super::{Block, Heads, Operands, Visible};
use crate::kernels::encoding::{Stored, widen};
use crate::pool::SharedOutput;
use crate::simd::{LANES, Level, Registers, Simd, dispatch};

/// Bytes of the keys or values that stay in the first-level cache while all queries of a block are
/// processed. This is half of a cache of 48 KiB. The other half is for queries or results.
const RUN_BYTES: usize = 24 << 10;

/// Returns the number of keys of such a run, for heads of `head_dim` values.
pub fn run_keys(head_dim: usize) -> usize {
    (RUN_BYTES / size_of::<f32>() / head_dim.max(1)).clamp(8, 64)
}

dispatch! {
    /// Computes scores of the block's positions `first..first + count`. The scores of query i start
    /// at `offset + i · block.count` of the scratch memory.
    pub fn scores_at => scores(
        heads: Heads, operands: Operands<'_>, block: &Block, kv_head: usize, first: usize, count: usize,
        scratch: SharedOutput<'_, f32>, offset: usize, widened: &mut [f32],
    )
}
dispatch! {
    /// Turns scores into weights and returns their sum.
    pub fn weights_at => weights(heads: Heads, scores: &mut [f32]) -> f32
}
dispatch! {
    /// Computes results for values `first..first + count` of the head. Reads the weights of each
    /// query where [`scores_at`] wrote the scores. Divides them by its sum, which is at `sums` plus
    /// its index, unless that is `None`.
    pub fn results_at => results(
        heads: Heads, operands: Operands<'_>, visible: &[Visible], block: &Block, kv_head: usize, first: usize, count: usize,
        scratch: SharedOutput<'_, f32>, offset: usize, sums: Option<usize>, widened: &mut [f32],
        out: SharedOutput<'_, f32>,
    )
}

/// Computes scores, weights and results of a block. The scratch memory contains `queries · count`
/// scores, then one sum per query.
///
/// # Panics
/// When the scratch memory or an operand is too short.
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
pub fn whole_at(
    level: Level,
    heads: Heads,
    operands: Operands<'_>,
    visible: &[Visible],
    block: &Block,
    kv_head: usize,
    scratch: &mut [f32],
    widened: &mut [f32],
    out: SharedOutput<'_, f32>,
) {
    let group = heads.heads / heads.kv_heads;
    let queries = block.rows * group;
    let sums = queries * block.count;
    assert!(scratch.len() >= sums + queries, "scratch too small");
    let shared = SharedOutput::new(scratch);
    scores_at(level, heads, operands, block, kv_head, 0, block.count, shared, 0, widened);
    for query in 0..queries {
        let seen = visible[block.row + query / group];
        let start = (seen.start - block.start) as usize;
        // SAFETY: this function owns `scratch` exclusively, and the two parts do not overlap.
        let (own, sum) =
            unsafe { (shared.part(query * block.count + start, seen.count), shared.part(sums + query, 1)) };
        sum[0] = weights_at(level, heads, own);
    }
    let d = heads.head_dim;
    results_at(level, heads, operands, visible, block, kv_head, 0, d, shared, 0, Some(sums), widened, out);
}

/// Returns the number of queries of a register tile.
#[inline(always)]
fn queries_of_tile<S: Simd>() -> usize {
    match S::REGISTERS {
        Registers::None => 1,
        Registers::Few => 2,
        Registers::Many => 4,
    }
}

/// Rows of keys and values to prefetch if there are few queries. Few queries are limited by memory,
/// many by arithmetic.
const AHEAD: usize = 16;

/// Up to this many queries read encoded keys and values in place if their kernels support it. For
/// more queries, the keys and values are widened once.
pub const FEW_QUERIES: usize = 8;

/// Returns the bits of binary16 if the queries are few enough to read them in place.
#[inline(always)]
fn halves(stored: Stored<'_>, queries: usize) -> Option<&[u16]> {
    if queries <= FEW_QUERIES { stored.halves() } else { None }
}

/// Returns the row of the keys that stores a position.
#[inline(always)]
pub fn slot(position: u64, capacity: usize) -> usize {
    (position % capacity as u64) as usize
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
fn scores<S: Simd>(
    s: S,
    heads: Heads,
    operands: Operands<'_>,
    block: &Block,
    kv_head: usize,
    first: usize,
    count: usize,
    scratch: SharedOutput<'_, f32>,
    offset: usize,
    widened: &mut [f32],
) {
    let Operands { q, k, capacity, stride, .. } = operands;
    let d = heads.head_dim;
    let group = heads.heads / heads.kv_heads;
    let queries = block.rows * group;
    let (direct, halves) = (k.direct(), halves(k, queries));
    let of = Queries { q, heads, block, kv_head, scratch, offset };
    assert!(first + count <= block.count && (block.row + block.rows) * heads.heads * d <= q.len());
    assert!(count == 0 || (capacity > 0 && operands.has_rows(k, (kv_head + 1) * d)));
    let mut done = 0;
    while done < count {
        // A run of consecutive key rows, short enough to stay in cache.
        let at = slot(block.start + (first + done) as u64, capacity);
        let run = run_keys(d).min(count - done).min(capacity - at);
        let place = at * stride + kv_head * d;
        // SAFETY: keys are within the operand as asserted, and no other task has these keys of
        // these queries.
        unsafe {
            if let Some(k) = direct.filter(|_| queries > FEW_QUERIES) {
                of.scores::<S, f32, false>(s, k[place..].as_ptr(), stride, first + done, run);
            } else if let Some(k) = direct {
                of.scores::<S, f32, true>(s, k[place..].as_ptr(), stride, first + done, run);
            } else if let Some(k) = halves {
                of.scores::<S, u16, true>(s, k[place..].as_ptr(), stride, first + done, run);
            } else {
                for (key, row) in widened[..run * d].chunks_exact_mut(d).enumerate() {
                    widen(s, k, place + key * stride, row);
                }
                of.scores::<S, f32, false>(s, widened.as_ptr(), d, first + done, run);
            }
        }
        done += run;
    }
}

/// The queries of a block and the location of their scores.
struct Queries<'a> {
    q: &'a [f32],
    heads: Heads,
    block: &'a Block,
    kv_head: usize,
    scratch: SharedOutput<'a, f32>,
    offset: usize,
}

impl Queries<'_> {
    /// Computes scores of `run` keys, starting with the block's key `at`.
    ///
    /// # Safety
    /// `keys` must be readable for `run` rows of `stride`, of which one head is used. The queries
    /// must be within `q`, and no other task may access these scores.
    #[inline(always)]
    unsafe fn scores<S: Simd, T: KvElement, const FETCH: bool>(
        &self,
        s: S,
        keys: *const T,
        stride: usize,
        at: usize,
        run: usize,
    ) {
        let queries = self.block.rows * (self.heads.heads / self.heads.kv_heads);
        let mut query = 0;
        while query < queries {
            let count = queries_of_tile::<S>().min(queries - query);
            macro_rules! cover {
                ($queries:literal, $keys:literal) => {
                    // SAFETY: guaranteed by the caller.
                    unsafe { self.tile::<S, T, FETCH, $queries, $keys>(s, query, keys, stride, at, run) }
                };
            }
            match (S::REGISTERS, count) {
                (Registers::None, _) => cover!(1, 1),
                (Registers::Many, 4) => cover!(4, 4),
                (Registers::Many, 3) => cover!(3, 1),
                (_, 2) => cover!(2, 2),
                (_, _) => cover!(1, 4),
            }
            query += count;
        }
    }

    /// Computes scores of `run` keys for queries `query..query + QUERIES`, `KEYS` keys at a time.
    ///
    /// # Safety
    /// See [`Queries::scores`].
    #[inline(always)]
    unsafe fn tile<S: Simd, T: KvElement, const FETCH: bool, const QUERIES: usize, const KEYS: usize>(
        &self,
        s: S,
        query: usize,
        keys: *const T,
        stride: usize,
        at: usize,
        run: usize,
    ) {
        let Heads { heads, kv_heads, head_dim: d, .. } = self.heads;
        let group = heads / kv_heads;
        let mut sources = [self.q.as_ptr(); QUERIES];
        let mut targets = [std::ptr::null_mut::<f32>(); QUERIES];
        for (index, (source, target)) in sources.iter_mut().zip(&mut targets).enumerate() {
            let (row, member) = ((query + index) / group, (query + index) % group);
            let row = self.block.row + row;
            // SAFETY: the caller guarantees that queries are within `q`.
            *source = unsafe { source.add((row * heads + self.kv_head * group + member) * d) };
            *target = self.scratch.address(self.offset + (query + index) * self.block.count + at, run);
        }
        let mut key = 0;
        while key < run {
            macro_rules! cover {
                ($keys:expr) => {
                    // SAFETY: at least as many keys are left. The caller guarantees the rest.
                    unsafe {
                        let sums = dots::<S, T, FETCH, QUERIES, { $keys }>(
                            s,
                            sources,
                            keys.add(key * stride),
                            stride,
                            d,
                        );
                        for (target, sums) in targets.iter().zip(sums) {
                            target.add(key).cast::<[f32; $keys]>().write_unaligned(sums);
                        }
                        key += $keys;
                    }
                };
            }
            if run - key >= KEYS {
                cover!(KEYS);
            } else {
                cover!(1);
            }
        }
    }
}

/// Computes `queries × keys` dot products over `d` values.
///
/// # Safety
/// Every query must be readable for `d` values, and `keys` for `KEYS` rows of `stride`, of which
/// `d` values are used.
#[inline(always)]
unsafe fn dots<S: Simd, T: KvElement, const FETCH: bool, const QUERIES: usize, const KEYS: usize>(
    s: S,
    queries: [*const f32; QUERIES],
    keys: *const T,
    stride: usize,
    d: usize,
) -> [[f32; KEYS]; QUERIES] {
    let mut sums = [[s.splat(0.0); KEYS]; QUERIES];
    let mut at = 0;
    while at + LANES <= d {
        // SAFETY: `at + 16` ≤ `d`.
        unsafe {
            let mut k = [s.splat(0.0); KEYS];
            for (index, k) in k.iter_mut().enumerate() {
                let source = keys.add(index * stride + at);
                if FETCH {
                    s.prefetch(source.wrapping_add(AHEAD * stride));
                }
                *k = T::load(s, source);
            }
            for (sums, query) in sums.iter_mut().zip(queries) {
                let q = s.load(query.add(at));
                for (sum, k) in sums.iter_mut().zip(k) {
                    *sum = s.fma(q, k, *sum);
                }
            }
        }
        at += LANES;
    }
    if at < d {
        for (sums, query) in sums.iter_mut().zip(queries) {
            for (index, sum) in sums.iter_mut().enumerate() {
                // SAFETY: `d − at` values are left.
                unsafe {
                    let q = s.load_partial(query.add(at), d - at);
                    let k = T::load_partial(s, keys.add(index * stride + at), d - at);
                    *sum = s.fma(q, k, *sum);
                }
            }
        }
    }
    let mut out = [[0.0; KEYS]; QUERIES];
    if QUERIES * KEYS == LANES {
        // Collected one by one, since a copy of the whole array would leave the registers.
        let flat = std::array::from_fn(
            #[inline(always)]
            |at| sums[at / KEYS][at % KEYS],
        );
        // SAFETY: as many values as lanes.
        unsafe { s.store(out.as_flattened_mut().as_mut_ptr(), s.reduce_add_each(flat)) };
        return out;
    }
    for (out, sums) in out.iter_mut().zip(sums) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = s.reduce_add(sum);
        }
    }
    out
}

#[inline(always)]
fn weights<S: Simd>(s: S, heads: Heads, scores: &mut [f32]) -> f32 {
    weigh(s, heads.scale, heads.softcap, scores)
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
fn results<S: Simd>(
    s: S,
    heads: Heads,
    operands: Operands<'_>,
    visible: &[Visible],
    block: &Block,
    kv_head: usize,
    first: usize,
    count: usize,
    scratch: SharedOutput<'_, f32>,
    offset: usize,
    sums: Option<usize>,
    widened: &mut [f32],
    out: SharedOutput<'_, f32>,
) {
    let Operands { v, capacity, stride, .. } = operands;
    let d = heads.head_dim;
    let group = heads.heads / heads.kv_heads;
    let queries = block.rows * group;
    let (direct, halves) = (v.direct(), halves(v, queries));
    assert!(first + count <= d && operands.has_rows(v, (kv_head + 1) * d));
    let rows = &visible[block.row..block.row + block.rows];
    // No other task accesses these values of this head of this row.
    let target = |query: usize| {
        let (row, member) = (query / group, query % group);
        out.address(((block.row + row) * heads.heads + kv_head * group + member) * d + first, count)
    };
    for query in 0..queries {
        // SAFETY: only this task accesses these values.
        unsafe { target(query).write_bytes(0, count) };
    }
    let seen = || rows.iter().filter(|row| row.count > 0);
    let end = seen().map(|row| row.start + row.count as u64).max().unwrap_or(0);
    let mut at = seen().map(|row| row.start).min().unwrap_or(end);
    // Runs of consecutive rows of values stay in cache for all queries. Each query visits the
    // positions that it sees in ascending order.
    while at < end {
        let row = slot(at, capacity);
        let run = ((end - at).min((capacity - row) as u64) as usize).min(run_keys(d));
        let place = row * stride + kv_head * d + first;
        if direct.is_none() && halves.is_none() {
            for (key, values) in widened[..run * count].chunks_exact_mut(count.max(1)).enumerate() {
                widen(s, v, place + key * stride, values);
            }
        }
        for query in (0..queries).step_by(queries_of_tile::<S>()) {
            let tile = queries_of_tile::<S>().min(queries - query);
            for Piece { query, tile, first, end } in pieces(rows, group, (query, tile), (at, run)) {
                let start = offset + query * block.count + (at - block.start) as usize + first;
                let (skipped, run) = (first * stride, end - first);
                let mut of = Weighted {
                    weights: [std::ptr::null(); 4],
                    targets: [std::ptr::null_mut(); 4],
                    run,
                    count,
                };
                for index in 0..tile {
                    of.weights[index] = scratch.address(start + index * block.count, run).cast_const();
                    of.targets[index] = target(query + index);
                }
                // SAFETY: values and weights are in bounds as asserted and by the blocks'
                // construction, and only this task accesses the targets.
                unsafe {
                    if let Some(v) = direct.filter(|_| queries > FEW_QUERIES) {
                        of.add::<S, f32, false>(s, tile, v[place + skipped..].as_ptr(), stride);
                    } else if let Some(v) = direct {
                        of.add::<S, f32, true>(s, tile, v[place + skipped..].as_ptr(), stride);
                    } else if let Some(v) = halves {
                        of.add::<S, u16, true>(s, tile, v[place + skipped..].as_ptr(), stride);
                    } else {
                        of.add::<S, f32, false>(s, tile, widened[first * count..].as_ptr(), count);
                    }
                }
            }
        }
        at += run as u64;
    }
    let Some(sums) = sums else { return };
    for query in 0..queries {
        if rows[query / group].count > 0 {
            // SAFETY: each query has one sum, which was written before and which other tasks only
            // read. Only this task accesses the values.
            unsafe {
                let sum = scratch.address(sums + query, 1).read();
                divide(s, std::slice::from_raw_parts_mut(target(query), count), sum);
            }
        }
    }
}

/// Positions `first..end` of a run that `tile` queries from `query` on see.
#[derive(Clone, Copy, Default)]
struct Piece {
    query: usize,
    tile: usize,
    first: usize,
    end: usize,
}

/// Divides the positions of a run that a tile of at most four queries sees: positions that only
/// some of them see, query by query, around positions that all of them see.
#[inline(always)]
fn pieces(
    rows: &[Visible],
    group: usize,
    (query, tile): (usize, usize),
    (at, run): (u64, usize),
) -> impl Iterator<Item = Piece> {
    let mut bounds = [[0; 2]; 4];
    let mut common = [0, run];
    for (index, bounds) in bounds.iter_mut().enumerate().take(tile) {
        let row = rows[(query + index) / group];
        let first = row.start.saturating_sub(at).min(run as u64) as usize;
        let end = (row.start + row.count as u64).saturating_sub(at).min(run as u64) as usize;
        *bounds = [first, end.max(first)];
        common = [common[0].max(first), common[1].min(end)];
    }
    let [first, end] = [common[0], common[1].max(common[0])];
    let mut all = [Piece::default(); 9];
    for (index, [start, stop]) in bounds.into_iter().enumerate().take(tile) {
        let one = Piece { query: query + index, tile: 1, first: start, end: stop };
        all[index] = Piece { end: stop.min(first), ..one };
        all[5 + index] = Piece { first: start.max(end), ..one };
    }
    all[4] = Piece { query, tile, first, end };
    all.into_iter().filter(|piece| piece.first < piece.end)
}

/// The queries of a tile, at most four, with the weights of a run of keys and `count` accumulators
/// for each query.
struct Weighted {
    weights: [*const f32; 4],
    targets: [*mut f32; 4],
    run: usize,
    count: usize,
}

impl Weighted {
    /// Adds the weighted rows of the run to the accumulators of the first `tile` queries.
    ///
    /// # Safety
    /// Weights must be readable for the run, and values for as many rows of `stride`, of which
    /// `count` are used. Targets must be readable and writable for `count`.
    #[inline(always)]
    unsafe fn add<S: Simd, T: KvElement, const FETCH: bool>(
        &self,
        s: S,
        tile: usize,
        values: *const T,
        stride: usize,
    ) {
        let Weighted { weights: [a, b, c, d], targets: [e, f, g, h], run, count } = *self;
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (S::REGISTERS, tile) {
                (Registers::None, _) => weighted::<S, T, FETCH, 1>(s, [a], values, stride, run, [e], count),
                (Registers::Many, 4) => {
                    weighted::<S, T, FETCH, 4>(s, [a, b, c, d], values, stride, run, [e, f, g, h], count)
                }
                (Registers::Many, 3) => {
                    weighted::<S, T, FETCH, 3>(s, [a, b, c], values, stride, run, [e, f, g], count)
                }
                (_, 2) => weighted::<S, T, FETCH, 2>(s, [a, b], values, stride, run, [e, f], count),
                _ => weighted::<S, T, FETCH, 1>(s, [a], values, stride, run, [e], count),
            }
        }
    }
}

/// Adds `run` weighted value rows to the accumulators of `QUERIES` queries.
///
/// # Safety
/// Weights must be readable for `run`, and values for `run` rows of `stride`, of which `count` are
/// used. Targets must be readable and writable for `count`.
#[inline(always)]
unsafe fn weighted<S: Simd, T: KvElement, const FETCH: bool, const QUERIES: usize>(
    s: S,
    weights: [*const f32; QUERIES],
    values: *const T,
    stride: usize,
    run: usize,
    targets: [*mut f32; QUERIES],
    count: usize,
) {
    let mut at = 0;
    while at < count {
        let left = count - at;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let values = values.add(at);
            let mut targets = targets;
            for target in &mut targets {
                *target = target.add(at);
            }
            if left >= 4 * LANES && S::REGISTERS == Registers::Many {
                weighted_tile::<S, T, FETCH, QUERIES, 4>(s, weights, values, stride, run, targets, LANES);
                at += 4 * LANES;
            } else if left >= 2 * LANES && S::REGISTERS == Registers::Few {
                weighted_tile::<S, T, FETCH, QUERIES, 2>(s, weights, values, stride, run, targets, LANES);
                at += 2 * LANES;
            } else {
                let lanes = left.min(LANES);
                weighted_tile::<S, T, FETCH, QUERIES, 1>(s, weights, values, stride, run, targets, lanes);
                at += lanes;
            }
        }
    }
}

/// # Safety
/// See [`weighted`], for `VECTORS · 16` values, or `lanes` values with one vector.
#[inline(always)]
unsafe fn weighted_tile<
    S: Simd,
    T: KvElement,
    const FETCH: bool,
    const QUERIES: usize,
    const VECTORS: usize,
>(
    s: S,
    weights: [*const f32; QUERIES],
    values: *const T,
    stride: usize,
    run: usize,
    targets: [*mut f32; QUERIES],
    lanes: usize,
) {
    let mut sums = [[s.splat(0.0); VECTORS]; QUERIES];
    // SAFETY: guaranteed by the caller.
    unsafe {
        for (sums, target) in sums.iter_mut().zip(targets) {
            for (vector, sum) in sums.iter_mut().enumerate() {
                *sum = s.load_partial(target.add(vector * LANES).cast_const(), lanes);
            }
        }
        for key in 0..run {
            let mut v = [s.splat(0.0); VECTORS];
            for (vector, v) in v.iter_mut().enumerate() {
                let source = values.add(key * stride + vector * LANES);
                if FETCH {
                    s.prefetch(source.wrapping_add(AHEAD * stride));
                }
                *v = if VECTORS == 1 { T::load_partial(s, source, lanes) } else { T::load(s, source) };
            }
            for (sums, weight) in sums.iter_mut().zip(weights) {
                let weight = s.splat(*weight.add(key));
                for (sum, v) in sums.iter_mut().zip(v) {
                    *sum = s.fma(weight, v, *sum);
                }
            }
        }
        for (sums, target) in sums.iter().zip(targets) {
            for (vector, sum) in sums.iter().enumerate() {
                s.store_partial(target.add(vector * LANES), lanes, *sum);
            }
        }
    }
}
