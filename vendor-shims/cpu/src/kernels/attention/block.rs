//! One block of rows against one key head: scores, weights, results.

use super::{Block, Heads, Operands, Visible};
use crate::kernels::math::{exp, softcap};
use crate::pool::SharedOutput;
use crate::simd::{LANES, Simd, dispatch};

/// Keys whose rows stay in cache while all queries of a block pass over them.
const KEY_BLOCK: usize = 64;

dispatch! {
    /// Scores, weights and results of a block. Scratch: `queries · count` scores, then one sum per query.
    pub fn whole_at => whole(
        heads: Heads, operands: Operands<'_>, visible: &[Visible], block: &Block, kv_head: usize, scratch: &mut [f32],
        out: SharedOutput<'_, f32>,
    )
}
dispatch! {
    /// Scores of the block's positions `first..first + count`; query i at `offset + i · block.count` of the scratch.
    pub fn scores_at => scores(
        heads: Heads, operands: Operands<'_>, block: &Block, kv_head: usize, first: usize, count: usize,
        scratch: SharedOutput<'_, f32>, offset: usize,
    )
}
dispatch! {
    /// Turns scores into weights and returns their sum.
    pub fn weights_at => weights(heads: Heads, scores: &mut [f32]) -> f32
}
dispatch! {
    /// Results for values `first..first + count` of the head; weights and sums of query i as [`scores_at`] laid them.
    pub fn results_at => results(
        heads: Heads, operands: Operands<'_>, visible: &[Visible], block: &Block, kv_head: usize, first: usize, count: usize,
        scratch: SharedOutput<'_, f32>, offset: usize, sums: usize, out: SharedOutput<'_, f32>,
    )
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
fn whole<S: Simd>(
    s: S,
    heads: Heads,
    operands: Operands<'_>,
    visible: &[Visible],
    block: &Block,
    kv_head: usize,
    scratch: &mut [f32],
    out: SharedOutput<'_, f32>,
) {
    let group = heads.heads / heads.kv_heads;
    let queries = block.rows * group;
    let sums = queries * block.count;
    assert!(scratch.len() >= sums + queries, "scratch too small");
    let shared = SharedOutput::new(scratch);
    scores(s, heads, operands, block, kv_head, 0, block.count, shared, 0);
    for query in 0..queries {
        let seen = visible[block.row + query / group];
        let start = (seen.start - block.start) as usize;
        // SAFETY: `scratch` is exclusively ours, and the two parts do not overlap.
        let (own, sum) =
            unsafe { (shared.part(query * block.count + start, seen.count), shared.part(sums + query, 1)) };
        sum[0] = weights(s, heads, own);
    }
    results(s, heads, operands, visible, block, kv_head, 0, heads.head_dim, shared, 0, sums, out);
}

/// Row of the keys that holds a position.
#[inline(always)]
fn slot(position: u64, capacity: usize) -> usize {
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
) {
    let Operands { q, k, capacity, .. } = operands;
    let d = heads.head_dim;
    let group = heads.heads / heads.kv_heads;
    let kv_width = heads.kv_heads * d;
    let queries = block.rows * group;
    assert!(first + count <= block.count && (block.row + block.rows) * heads.heads * d <= q.len());
    assert!(count == 0 || (capacity > 0 && capacity * kv_width <= k.len() && kv_head < heads.kv_heads));
    let mut done = 0;
    while done < count {
        // A run of keys that lie in a row, short enough to stay in cache.
        let at = slot(block.start + (first + done) as u64, capacity);
        let run = KEY_BLOCK.min(count - done).min(capacity - at);
        let mut query = 0;
        while query < queries {
            let tile = if S::WIDE { 4 } else { 2 }.min(queries - query);
            let mut key = 0;
            while key < run {
                let left = run - key;
                // SAFETY: queries and keys lie within the operands as asserted; scores within the scratch by `part`, and no
                // other task has these keys of these queries.
                unsafe {
                    let keys = k.as_ptr().add((at + key) * kv_width + kv_head * d);
                    let query_at = |index: usize| {
                        let (row, member) = ((query + index) / group, (query + index) % group);
                        q.as_ptr().add(((block.row + row) * heads.heads + kv_head * group + member) * d)
                    };
                    let place = |index: usize, count: usize| {
                        scratch.part(offset + (query + index) * block.count + first + done + key, count)
                    };
                    macro_rules! cover {
                        ($queries:literal, $keys:literal) => {{
                            let sums = dots::<S, $queries, $keys>(s, std::array::from_fn(query_at), keys, kv_width, d);
                            for (index, sums) in sums.iter().enumerate() {
                                place(index, $keys).copy_from_slice(sums);
                            }
                            key += $keys;
                        }};
                    }
                    match (tile, left) {
                        (4, 4..) => cover!(4, 4),
                        (4, _) => cover!(4, 1),
                        (3, 4..) => cover!(3, 4),
                        (3, _) => cover!(3, 1),
                        (2, 4..) if S::WIDE => cover!(2, 4),
                        (2, 2..) => cover!(2, 2),
                        (2, _) => cover!(2, 1),
                        (_, 4..) => cover!(1, 4),
                        (_, _) => cover!(1, 1),
                    }
                }
            }
            query += tile;
        }
        done += run;
    }
}

/// `queries × keys` dot products over `d` values.
///
/// # Safety
/// Every query is readable for `d` f32, `keys` for `KEYS` rows of `stride` of which `d` are used.
#[inline(always)]
unsafe fn dots<S: Simd, const QUERIES: usize, const KEYS: usize>(
    s: S,
    queries: [*const f32; QUERIES],
    keys: *const f32,
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
                *k = s.load(keys.add(index * stride + at));
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
                    let k = s.load_partial(keys.add(index * stride + at), d - at);
                    *sum = s.fma(q, k, *sum);
                }
            }
        }
    }
    sums.map(|sums| sums.map(|sum| s.reduce_add(sum)))
}

#[inline(always)]
fn weights<S: Simd>(s: S, heads: Heads, scores: &mut [f32]) -> f32 {
    let count = scores.len();
    let place = scores.as_mut_ptr();
    let mut largest = s.splat(f32::NEG_INFINITY);
    let mut at = 0;
    while at < count {
        let lanes = LANES.min(count - at);
        // SAFETY: `at + lanes` ≤ `count`.
        unsafe {
            let mut score = s.mul(s.load_partial(place.add(at), lanes), s.splat(heads.scale));
            if heads.softcap != 0.0 {
                score = softcap(s, score, heads.softcap);
            }
            s.store_partial(place.add(at), lanes, score);
            // The lanes beyond the end repeat the first one, which changes no maximum.
            if lanes == LANES {
                largest = s.max(score, largest);
            } else {
                for lane in 0..lanes {
                    largest = s.max(s.splat(*place.add(at + lane)), largest);
                }
            }
        }
        at += lanes;
    }
    let largest = s.splat(s.reduce_max(largest));
    let mut sum = s.splat(0.0);
    let mut at = 0;
    while at < count {
        let lanes = LANES.min(count - at);
        // SAFETY: `at + lanes` ≤ `count`.
        unsafe {
            let weight = exp(s, s.sub(s.load_partial(place.add(at), lanes), largest));
            s.store_partial(place.add(at), lanes, weight);
            // Loaded again, so that lanes beyond the end add nothing.
            sum = s.add(sum, s.load_partial(place.add(at), lanes));
        }
        at += lanes;
    }
    s.reduce_add(sum)
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
    sums: usize,
    out: SharedOutput<'_, f32>,
) {
    let Operands { v, capacity, .. } = operands;
    let d = heads.head_dim;
    let group = heads.heads / heads.kv_heads;
    let kv_width = heads.kv_heads * d;
    let queries = block.rows * group;
    assert!(first + count <= d && (capacity == 0 || capacity * kv_width <= v.len()));
    let rows = &visible[block.row..block.row + block.rows];
    let target = |query: usize| {
        let (row, member) = (query / group, query % group);
        let start = ((block.row + row) * heads.heads + kv_head * group + member) * d + first;
        // SAFETY: no other task has these values of this head of this row.
        unsafe { out.part(start, count) }
    };
    for query in 0..queries {
        target(query).fill(0.0);
    }
    // Positions that all rows see, and around them what only some see: each row in ascending order.
    let common_start = rows.iter().map(|row| row.start).max().unwrap_or(0);
    let common_end = rows.iter().map(|row| row.start + row.count as u64).min().unwrap_or(0).max(common_start);
    let pass = |query: usize, tile: usize, from: u64, to: u64| {
        let mut at = from;
        while at < to {
            let row = slot(at, capacity);
            let run = ((to - at).min((capacity - row) as u64) as usize).min(KEY_BLOCK);
            // SAFETY: values and weights are in bounds as asserted and by the blocks' construction.
            unsafe {
                let values = v.as_ptr().add(row * kv_width + kv_head * d + first);
                let weight = |index: usize| {
                    let start = offset + (query + index) * block.count + (at - block.start) as usize;
                    scratch.address(start, run).cast_const()
                };
                let place = |index: usize| target(query + index).as_mut_ptr();
                macro_rules! cover {
                    ($queries:literal) => {
                        weighted::<S, $queries>(
                            s,
                            std::array::from_fn(weight),
                            values,
                            kv_width,
                            run,
                            std::array::from_fn(place),
                            count,
                        )
                    };
                }
                match tile {
                    4 => cover!(4),
                    3 => cover!(3),
                    2 => cover!(2),
                    _ => cover!(1),
                }
            }
            at += run as u64;
        }
    };
    for query in 0..queries {
        let row = rows[query / group];
        let end = row.start + row.count as u64;
        pass(query, 1, row.start, common_start.min(end));
    }
    let mut from = common_start;
    while from < common_end {
        let to = common_end.min(from + KEY_BLOCK as u64);
        let mut query = 0;
        while query < queries {
            let tile = if S::WIDE { 4 } else { 2 }.min(queries - query);
            pass(query, tile, from, to);
            query += tile;
        }
        from = to;
    }
    for query in 0..queries {
        let row = rows[query / group];
        let end = row.start + row.count as u64;
        pass(query, 1, common_end.max(common_start.min(end)), end);
        // SAFETY: one sum per query, written before; other tasks only read it.
        let sum = unsafe { scratch.address(sums + query, 1).read() };
        if row.count > 0 {
            divide(s, target(query), sum);
        }
    }
}

#[inline(always)]
fn divide<S: Simd>(s: S, values: &mut [f32], by: f32) {
    let by = s.splat(by);
    for chunk in values.chunks_mut(LANES) {
        // SAFETY: the chunk has `len` ≤ 16 values.
        unsafe {
            let value = s.load_partial(chunk.as_ptr(), chunk.len());
            s.store_partial(chunk.as_mut_ptr(), chunk.len(), s.div(value, by));
        }
    }
}

/// Adds `run` weighted value rows to the accumulators of `QUERIES` queries.
///
/// # Safety
/// Weights are readable for `run`, values for `run` rows of `stride` of which `count` are used, targets readable and
/// writable for `count`.
#[inline(always)]
unsafe fn weighted<S: Simd, const QUERIES: usize>(
    s: S,
    weights: [*const f32; QUERIES],
    values: *const f32,
    stride: usize,
    run: usize,
    targets: [*mut f32; QUERIES],
    count: usize,
) {
    let mut at = 0;
    while at < count {
        let left = count - at;
        // SAFETY: as the caller grants.
        unsafe {
            let values = values.add(at);
            let targets = targets.map(|target| target.add(at));
            if left >= 4 * LANES && S::WIDE {
                weighted_tile::<S, QUERIES, 4>(s, weights, values, stride, run, targets, LANES);
                at += 4 * LANES;
            } else if left >= 2 * LANES {
                weighted_tile::<S, QUERIES, 2>(s, weights, values, stride, run, targets, LANES);
                at += 2 * LANES;
            } else {
                let lanes = left.min(LANES);
                weighted_tile::<S, QUERIES, 1>(s, weights, values, stride, run, targets, lanes);
                at += lanes;
            }
        }
    }
}

/// # Safety
/// As [`weighted`], for `VECTORS · 16` values, or `lanes` with one vector.
#[inline(always)]
unsafe fn weighted_tile<S: Simd, const QUERIES: usize, const VECTORS: usize>(
    s: S,
    weights: [*const f32; QUERIES],
    values: *const f32,
    stride: usize,
    run: usize,
    targets: [*mut f32; QUERIES],
    lanes: usize,
) {
    let mut sums = [[s.splat(0.0); VECTORS]; QUERIES];
    // SAFETY: as the caller grants.
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
                *v = if VECTORS == 1 { s.load_partial(source, lanes) } else { s.load(source) };
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
