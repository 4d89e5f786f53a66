//! Search for the largest results of a product in two parts. Bounds from the first parts alone
//! determine which outputs need their exact result.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{CHUNK, LIST, ROWS, Row, Run, SPREAD, high, outputs_of, row_bytes};
use crate::kernels::integer::integers_of;
use crate::pool::SharedOutput;
use crate::simd::dot::{Dot, VECTOR, dispatch_dot};
use crate::simd::{LANES, Simd};

/// Work of one step of a search on the outputs of a run of panels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Computes the sums of first parts, and the exact result of the output with the highest bound,
    /// unless that bound is below the bar. The result is likely to be high and raises the bar for
    /// all others.
    Begin,
    /// Computes exact results of all other outputs whose bounds reach the bar.
    End,
    /// Performs both phases in order.
    Both,
}

/// State shared by the threads of a search.
pub(super) struct Search<'a> {
    pub(super) rows: &'a [Row<'a>],
    /// [`length`] of each row.
    pub(super) lengths: [f32; ROWS],
    /// [`key`] of a bar for each row. Results below the bar are not among the largest, because as
    /// many exact results as requested reach it.
    pub(super) bars: &'a [AtomicU32; ROWS],
    /// Number of requested results of a row.
    pub(super) wanted: usize,
}

/// Returns the value of one step of spread: `‖q‖` times the step, rounded up by more than all
/// rounding errors here and in the bounds.
pub(super) fn length(row: &Row<'_>) -> f32 {
    let squares: i64 = row.q.iter().map(|q| i64::from(*q).pow(2)).sum();
    (squares as f64).sqrt() as f32 * SPREAD * (row.split.inputs as f32).sqrt() * (1.0 + 1e-3)
}

/// Maps values to integers in the same order. Both zeros are equal, and NaN is above all others.
pub(super) fn key(value: f32) -> u32 {
    let bits = if value.is_nan() { f32::NAN.to_bits() } else { (value + 0.0).to_bits() };
    bits ^ if bits >> 31 == 0 { 1 << 31 } else { u32::MAX }
}

/// Returns the value of a number's key. Key 0 gives a value below all others.
pub(super) fn value_of(key: u32) -> f32 {
    match key {
        0 => f32::NEG_INFINITY,
        key if key >> 31 == 1 => f32::from_bits(key ^ (1 << 31)),
        key => f32::from_bits(!key),
    }
}

/// The best of some results in descending order. Among equal results the lower index comes first.
/// The memory contains a count, padding, then bits and index of each result.
pub(super) struct Best<'a> {
    count: &'a mut i32,
    entries: &'a mut [[i32; 2]],
}

impl<'a> Best<'a> {
    pub(super) fn of(memory: &'a mut [i32], wanted: usize) -> Best<'a> {
        let (head, entries) = memory.split_at_mut(LANES);
        Best { count: &mut head[0], entries: &mut entries.as_chunks_mut::<2>().0[..wanted] }
    }

    pub(super) fn found(&self) -> &[[i32; 2]] {
        &self.entries[..*self.count as usize]
    }

    fn rank([bits, index]: [i32; 2]) -> (u32, u32) {
        (key(f32::from_bits(bits as u32)), !(index as u32))
    }

    /// Adds a result. If the list is full and includes the result, returns the key of its last
    /// entry.
    pub(super) fn add(&mut self, result: f32, index: u32) -> Option<u32> {
        let new = [result.to_bits() as i32, index as i32];
        let count = *self.count as usize;
        let last = self.entries.len() - 1;
        if count > last && Best::rank(self.entries[last]) > Best::rank(new) {
            return None;
        }
        let place = self.found().partition_point(|entry| Best::rank(*entry) > Best::rank(new));
        let end = (count + 1).min(self.entries.len());
        self.entries.copy_within(place..end - 1, place + 1);
        self.entries[place] = new;
        *self.count = end as i32;
        (end > last).then(|| Best::rank(self.entries[last]).0)
    }
}

dispatch_dot! {
    pub(super) fn search_at => search(
        shared: &Search<'_>, phase: Phase, run: Run, room: &mut [f32], lists: &mut [i32], out: SharedOutput<'_, f32>,
    )
}

/// Performs a phase of the search among the outputs of a run. `lists` contains the list of each
/// row, one after the other.
#[inline(always)]
fn search<D: Dot>(
    d: D,
    shared: &Search<'_>,
    phase: Phase,
    run: Run,
    room: &mut [f32],
    lists: &mut [i32],
    out: SharedOutput<'_, f32>,
) {
    if phase != Phase::End {
        high(d, shared.rows, run, out);
    }
    let (upper, rest) = room.split_at_mut(CHUNK);
    let (spreads, candidates) = rest.split_at_mut(CHUNK);
    let split = shared.rows[0].split;
    let outputs = run.outputs(split);
    let first = outputs.start;
    let spread = &split.spread[outputs];
    spreads.iter_mut().zip(spread).for_each(|(to, from)| *to = f32::from(*from));
    for (index, (row, list)) in shared.rows.iter().zip(lists.chunks_exact_mut(LIST)).enumerate() {
        let results = outputs_of(row.split, index, run, out);
        if !row.scale.is_finite() {
            results.fill(f32::NAN);
            continue;
        }
        let mut best = Best::of(list, shared.wanted);
        let likely = bounds(d, shared, index, first, results, spreads, upper);
        let excluded = upper[likely] < value_of(shared.bars[index].load(Ordering::Relaxed));
        if phase != Phase::End && !excluded {
            consider(d, shared, index, first + likely, results[likely], &mut best);
        }
        if phase != Phase::Begin {
            others(d, shared, index, likely, first, results, upper, integers_of(candidates), &mut best);
            results.fill(f32::MIN);
        }
    }
}

/// Keeps the largest results of a run whose results are all in `out`, and replaces them with the
/// least finite number. `lists` contains the list of each row, one after the other. `bars` contains
/// for each row the [`key`] of a result that as many results as wanted reach.
pub(super) fn keep_largest(
    rows: &[Row<'_>],
    bars: &[AtomicU32; ROWS],
    wanted: usize,
    run: Run,
    lists: &mut [i32],
    out: SharedOutput<'_, f32>,
) {
    for (index, (row, list)) in rows.iter().zip(lists.chunks_exact_mut(LIST)).enumerate() {
        let results = outputs_of(row.split, index, run, out);
        if !row.scale.is_finite() {
            results.fill(f32::NAN);
            continue;
        }
        let mut best = Best::of(list, wanted);
        let mut least = value_of(bars[index].load(Ordering::Relaxed));
        for (group, results) in results.chunks(LANES).enumerate() {
            // NaN counts as reaching the bar.
            if results.iter().fold(true, |below, result| below & (*result < least)) {
                continue;
            }
            for (lane, result) in results.iter().enumerate() {
                let output = run.first * LANES + group * LANES + lane;
                if let Some(last) = best.add(*result, output as u32) {
                    least = value_of(bars[index].fetch_max(last, Ordering::Relaxed).max(last));
                }
            }
        }
        results.fill(f32::MIN);
    }
}

/// Computes exact results of all outputs of a run whose bounds reach the bar, except for the one
/// that [`Phase::Begin`] already computed.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a row, its outputs and where to work")]
fn others<D: Dot>(
    d: D,
    shared: &Search<'_>,
    row: usize,
    likely: usize,
    first: usize,
    results: &[f32],
    upper: &[f32],
    candidates: &mut [i32],
    best: &mut Best<'_>,
) {
    let (split, bar) = (shared.rows[row].split, &shared.bars[row]);
    let bytes = row_bytes(split.inputs);
    let least = value_of(bar.load(Ordering::Relaxed));
    let mut found = 0;
    for (group, upper) in upper[..results.len()].chunks(LANES).enumerate() {
        // NaN counts as reaching the bar.
        if upper.iter().fold(true, |below, upper| below & (*upper < least)) {
            continue;
        }
        for (lane, upper) in upper.iter().enumerate() {
            let output = group * LANES + lane;
            if *upper < least || output == likely {
                continue;
            }
            candidates[found] = output as i32;
            found += 1;
            let low = split.low[(first + output) * bytes..].as_ptr();
            (0..bytes).step_by(VECTOR).for_each(|at| d.prefetch(low.wrapping_add(at)));
        }
    }
    for output in &candidates[..found] {
        let output = *output as usize;
        // The bar may have risen in the meantime.
        if upper[output] < value_of(bar.load(Ordering::Relaxed)) {
            continue;
        }
        consider(d, shared, row, first + output, results[output], best);
    }
}

/// Computes the exact result of an output. This is not a closure, because closures are compiled
/// without the target features of their caller.
#[inline(always)]
fn consider<D: Dot>(d: D, shared: &Search<'_>, row: usize, output: usize, high: f32, best: &mut Best<'_>) {
    let (row, bar) = (&shared.rows[row], &shared.bars[row]);
    let mut result = [row.result(d, output, high)];
    row.cap(d, &mut result);
    if let Some(last) = best.add(result[0], output as u32) {
        let least = key(row.below(value_of(last)));
        if least > bar.load(Ordering::Relaxed) {
            bar.fetch_max(least, Ordering::Relaxed);
        }
    }
}

/// Writes upper bounds of the results whose sums of first parts are `results`, using widened
/// spreads. Returns the index of the highest bound.
#[inline(always)]
pub(super) fn bounds<D: Dot>(
    d: D,
    search: &Search<'_>,
    row: usize,
    first: usize,
    results: &[f32],
    spreads: &[f32],
    upper: &mut [f32],
) -> usize {
    let f = d.values();
    let Row { split, scale, sum, .. } = search.rows[row];
    let scales = &split.scales[first..first + results.len()];
    // `3.5·Σ q`
    let middle = 3.5 * sum as f32;
    let [row_scale, middle, length] = [scale, middle, search.lengths[row]].map(|value| f.splat(value));
    let mut highest = f.splat(f32::NEG_INFINITY);
    let places = spreads.chunks_exact(LANES).zip(upper.chunks_exact_mut(LANES));
    for ((results, scales), (spreads, upper)) in results.chunks(LANES).zip(scales.chunks(LANES)).zip(places) {
        let count = results.len();
        // SAFETY: the slices have as many values, and `upper` and `spreads` have sixteen.
        unsafe {
            let scale = f.mul(row_scale, f.load_partial(scales.as_ptr(), count));
            let sum = f.fma(f.splat(8.0), f.load_partial(results.as_ptr(), count), middle);
            // A millionth of the sum exceeds the rounding errors here, and the smallest normal
            // number exceeds the loss of a subnormal scale.
            let slack = f.fma(f.abs(sum), f.splat(1e-6), f.mul(length, f.load(spreads.as_ptr())));
            let most = f.add(f.abs(scale), f.splat(f32::MIN_POSITIVE));
            let bound = f.fma(most, slack, f.mul(scale, sum));
            f.store(upper.as_mut_ptr(), bound);
            if count == LANES {
                highest = f.max(bound, highest);
            }
        }
    }
    // Lanes beyond the end do not count: their spreads are whatever another run left there, and
    // both phases must return the same output.
    let upper = &upper[..results.len()];
    let last = &upper[upper.len() / LANES * LANES..];
    let highest = last.iter().fold(f.reduce_max(highest), |highest, upper| highest.max(*upper));
    let among = |values: &[f32]| values.iter().fold(false, |found, value| found | (*value == highest));
    let group = upper.chunks(LANES).position(among).unwrap_or(0) * LANES;
    group + upper[group..].iter().position(|upper| *upper == highest).unwrap_or(0)
}
