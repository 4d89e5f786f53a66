//! Attention in which every row sees every row, as two matrix products per head.
//!
//! Keys and values of all heads are packed once, like the weights of linear maps. Blocks of queries
//! are then scored, weighted and mixed one after the other, so that only the scores of one block
//! exist at a time.
//!
//! * score: one accumulator over the head, as in [`linear`](crate::kernels::linear);
//! * weight and result as in [`attention`](super::attention): one accumulator per value, key by
//!   key.

use super::Heads;
use super::weights::{divide, weigh};
use crate::kernels::linear::{PanelData, Panels, Scales, linear_alone, packed_elements};
use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

/// Rows of a task. They share keys and values in cache, and their scores also fit in cache.
const BLOCK: usize = 48;

/// Dense operands.
#[derive(Clone, Copy, Debug)]
pub struct Everyone<'a> {
    /// `[rows, heads · head_dim]`
    pub q: &'a [f32],
    /// `[rows, kv_heads · head_dim]`
    pub k: &'a [f32],
    /// `[rows, kv_heads · head_dim]`
    pub v: &'a [f32],
}

/// Returns the number of values of a head's packed keys, of its packed values, and of a thread's
/// scratch memory, or `None` on overflow.
fn parts(heads: Heads, rows: usize) -> Option<[usize; 3]> {
    let d = heads.head_dim;
    let keys = rows.checked_next_multiple_of(LANES)?.checked_mul(d)?;
    let values = d.checked_next_multiple_of(LANES)?.checked_mul(rows)?;
    let thread = rows.checked_add(d.checked_mul(2)?)?.checked_mul(BLOCK.min(rows))?;
    Some([keys, values, thread])
}

/// Returns the number of scratch values that [`attention_of_all`] needs with `threads` threads for
/// at most `rows` rows, or `None` on overflow.
pub fn scratch_of_all(heads: Heads, rows: usize, threads: usize) -> Option<usize> {
    let [keys, values, thread] = parts(heads, rows)?;
    let packed = keys.checked_add(values)?.checked_mul(heads.kv_heads)?;
    packed.checked_add(thread.checked_mul(threads)?)
}

/// Computes the attention and writes `out [rows, heads · head_dim]`.
///
/// # Panics
/// When a length does not fit the dimensions.
#[allow(clippy::too_many_arguments, reason = "operands, dimensions and where to work")]
pub fn attention_of_all(
    level: Level,
    pool: &Pool,
    heads: Heads,
    operands: Everyone<'_>,
    rows: usize,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let Everyone { q, k, v } = operands;
    let (d, width, kv_width) =
        (heads.head_dim, heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim);
    assert!(heads.kv_heads > 0 && heads.heads.is_multiple_of(heads.kv_heads), "heads do not share evenly");
    assert!(q.len() >= rows * width && out.len() >= rows * width, "queries shorter than the rows");
    assert!(k.len() >= rows * kv_width && v.len() >= rows * kv_width, "keys shorter than the rows");
    let enough = scratch_of_all(heads, rows, pool.threads());
    assert!(enough.is_some_and(|enough| scratch.len() >= enough), "scratch too small");
    if rows == 0 || d == 0 {
        return;
    }
    let [of_keys, of_values, of_thread] = parts(heads, rows).unwrap_or_default();
    let (keys, rest) = scratch.split_at_mut(of_keys * heads.kv_heads);
    let (values, rest) = rest.split_at_mut(of_values * heads.kv_heads);
    let worth = pool.worth((2 * rows as u64 * width as u64).saturating_mul(rows as u64));
    let (key_panels, value_panels) = (rows.div_ceil(LANES), d.div_ceil(LANES));
    {
        let (keys, values) = (SharedOutput::new(keys), SharedOutput::new(values));
        let pack = |task: usize| {
            let (head, panel) = (task / (key_panels + value_panels), task % (key_panels + value_panels));
            // SAFETY: every task has its own panel of its own head.
            unsafe {
                if panel < key_panels {
                    let panel_values = keys.part(head * of_keys + panel * LANES * d, LANES * d);
                    pack_keys(k, kv_width, head * d, panel * LANES, rows, panel_values);
                } else {
                    let panel = panel - key_panels;
                    let panel_values = values.part(head * of_values + panel * LANES * rows, LANES * rows);
                    pack_values(v, kv_width, head * d, panel * LANES, d, panel_values);
                }
            }
        };
        let tasks = heads.kv_heads * (key_panels + value_panels);
        if worth { pool.run(tasks, &pack) } else { (0..tasks).for_each(pack) }
    }
    let (keys, values) = (&*keys, &*values);
    let panels = |packed, inputs: usize, outputs: usize, head: usize| {
        let (packed, size): (&[f32], usize) = (packed, packed_elements(inputs, outputs));
        let data = PanelData::F32(packed[head * size..][..size].as_chunks().0);
        Panels { data, scales: Scales::None, zero: 0, inputs, outputs }
    };
    let (group, blocks) = (heads.heads / heads.kv_heads, rows.div_ceil(BLOCK));
    let (out, threads) = (SharedOutput::new(out), SharedOutput::new(rest));
    let body = |task: usize, worker: usize| {
        let (head, first) = (task / blocks, task % blocks * BLOCK);
        let count = BLOCK.min(rows - first);
        // SAFETY: the pool numbers the threads of a job uniquely, so every thread has its own part.
        let own = unsafe { threads.part(worker * of_thread, of_thread) };
        let (scores, own) = own.split_at_mut(count * rows);
        let (queries, own) = own.split_at_mut(count * d);
        let mixed = &mut own[..count * d];
        for (row, query) in (first..).zip(queries.chunks_exact_mut(d)) {
            query.copy_from_slice(&q[row * width + head * d..][..d]);
        }
        linear_alone(level, queries, panels(keys, d, rows, head / group), count, scores);
        let mut sums = [0.0; BLOCK];
        for (sum, scores) in sums.iter_mut().zip(scores.chunks_exact_mut(rows)) {
            *sum = weigh_at(level, heads, scores);
        }
        linear_alone(level, scores, panels(values, rows, d, head / group), count, mixed);
        for ((row, mixed), sum) in (first..).zip(mixed.chunks_exact_mut(d)).zip(sums) {
            divide_at(level, mixed, sum);
            // SAFETY: every task has its own head of its own rows.
            unsafe { out.part(row * width + head * d, d) }.copy_from_slice(mixed);
        }
    };
    let tasks = heads.heads * blocks;
    if worth { pool.run_indexed(tasks, &body) } else { (0..tasks).for_each(|task| body(task, 0)) }
}

dispatch! { fn weigh_at => weigh_row(heads: Heads, scores: &mut [f32]) -> f32 }
dispatch! { fn divide_at => divide(values: &mut [f32], by: f32) }

#[inline(always)]
fn weigh_row<S: Simd>(s: S, heads: Heads, scores: &mut [f32]) -> f32 {
    weigh(s, heads.scale, heads.softcap, scores)
}

/// Packs sixteen keys from `first` on, value by value, with zeros beyond the last key.
fn pack_keys(k: &[f32], stride: usize, column: usize, first: usize, rows: usize, panel: &mut [f32]) {
    let d = panel.len() / LANES;
    for lane in 0..LANES {
        let key = (first + lane < rows).then(|| &k[(first + lane) * stride + column..][..d]);
        for (at, step) in panel.chunks_exact_mut(LANES).enumerate() {
            step[lane] = key.map_or(0.0, |key| key[at]);
        }
    }
}

/// Packs values `first..first + 16` of a head of `d` values, key by key, with zeros beyond the last
/// value.
fn pack_values(v: &[f32], stride: usize, column: usize, first: usize, d: usize, panel: &mut [f32]) {
    let count = LANES.min(d - first);
    for (key, step) in panel.chunks_exact_mut(LANES).enumerate() {
        step[..count].copy_from_slice(&v[key * stride + column + first..][..count]);
        step[count..].fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::attention::{Operands, Visible, attention, scratch_values};
    use crate::kernels::encoding::Stored;
    use shardwright_shim_testing::{bits, values};

    #[test]
    fn agrees_with_attention_to_all_rows_at_every_level() {
        for (heads, kv_heads, head_dim, rows, softcap) in [
            (1, 1, 1, 1, 0.0),
            (4, 2, 17, 50, 3.0),
            (2, 2, 64, 97, 0.0),
            (3, 1, 34, 16, 20.0),
            (1, 1, 8, 0, 0.0),
        ] {
            let heads = Heads { heads, kv_heads, head_dim, scale: 0.4, softcap };
            let (width, kv_width) = (heads.heads * head_dim, kv_heads * head_dim);
            let (q, k, v) = (
                values(rows * width, 1, 1.5),
                values(rows * kv_width, 2, 1.5),
                values(rows * kv_width, 3, 1.5),
            );
            let run = |level, threads, rows| {
                let mut out = vec![f32::NAN; rows * width];
                let mut scratch = vec![f32::NAN; scratch_of_all(heads, rows, threads).unwrap()];
                let operands = Everyone { q: &q, k: &k, v: &v };
                let pool = Pool::eager(threads);
                attention_of_all(level, &pool, heads, operands, rows, &mut scratch, &mut out);
                out
            };
            let expected = run(Level::Scalar, 1, rows);
            let mut other = vec![0.0; rows * width];
            let mut scratch = vec![0.0; scratch_values(heads, rows, 1, false).unwrap()];
            let visible = vec![Visible { start: 0, count: rows }; rows];
            let (k, v) = (Stored::values(&k), Stored::values(&v));
            let operands = Operands { q: &q, k, v, capacity: rows, stride: kv_width };
            let (pool, blocks) = (Pool::eager(1), &mut Vec::new());
            attention(Level::Scalar, &pool, heads, operands, &visible, blocks, &mut scratch, &mut other);
            for (got, exact) in expected.iter().zip(&other) {
                assert!((got - exact).abs() < 2e-5, "{got} instead of {exact}");
            }
            for level in Level::available() {
                for threads in [1, 3] {
                    assert_eq!(bits(&run(level, threads, rows)), bits(&expected), "at {}", level.name());
                }
            }
        }
    }
}
