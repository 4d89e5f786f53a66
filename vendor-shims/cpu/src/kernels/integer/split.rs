//! `y = x · wᵀ` of one row over signed bytes in two parts, so that finding the top-k of very many
//! results reads little more than the first part.
//!
//! A weight of eight bits is `w = 8·h + l` with `−16 ≤ h ≤ 15` and `0 ≤ l ≤ 7`. With the quantised
//! row q, `Σ w·q = 8·Σ h·q + Σ l·q`, and
//!
//! `Σ l·q = 3.5·Σ q + Σ (l − 3.5)·q ≤ 3.5·Σ q + ‖l − 3.5‖ · ‖q‖` (Cauchy and Schwarz).
//!
//! So the first parts give an upper bound of every result, and every requested result is exact: the
//! second part of a row is skipped only if its bound is below k exact results of other rows, for
//! the k largest requested. For K independent weights the bound exceeds the result by about `0.06 ·
//! √K` standard deviations of the results, and the largest of V results is about `√(2 ln V)` of
//! them above the mean. Measured once for one row by 262,144 of roughly normal weights: of a
//! thousand second parts, 3.5 are read at K = 640, 5.7 at K = 1536.
//!
//! First parts lie in panels of sixteen outputs. Every 32 inputs of a panel are five vectors of 64
//! bytes, bytes 4·i to 4·i + 3 of each for output i: four contain the low four bits of `h + 16`,
//! packed like integers of four bits ([`super::pack`]); bits 2·t and 2·t + 1 of the fifth are the
//! fifth bits of the low and the high half of vector t. Second parts lie row by row, as
//! [`Dot::thirds`] reads them: few are read, far apart.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};

use super::tile::{FEWER_STREAMS, STREAMS, ahead, value};
use super::{Geometry, Streams, bytes_of, integers_of, quantise_rows};
use crate::kernels::math::softcap;
use crate::pool::{Pool, SharedOutput};
use crate::simd::dot::{Dot, DotLevel, THIRDS, VECTOR, dispatch_dot};
use crate::simd::{LANES, Level, Registers, Simd};

/// Second parts are read this many inputs at a time; the number of inputs is a multiple of it.
pub const STEP: usize = 2 * VECTOR;
/// Most inputs: sums of first parts are exact in f32, `16 · 127 · 2¹³ < 2²⁴`.
pub const LONGEST: usize = 1 << 13;
/// Largest supported top-k; for a larger request all results are computed.
pub const MOST: usize = 256;
/// Inputs of a block of first parts, and the vectors it has.
const BLOCK: usize = 32;
const BLOCK_VECTORS: usize = 5;
/// One step of a row's spread, as a fraction of √K.
const SPREAD: f32 = 3.5 / 255.0;
/// Panels whose bounds are compared while they are in cache.
const PANELS: usize = 64;
/// Outputs of [`PANELS`] panels.
const CHUNK: usize = PANELS * LANES;

/// Packed weights of one linear map, a scale per output, no bias.
#[derive(Clone, Copy, Debug)]
pub struct Split<'a> {
    /// First parts, panel after panel; see [`pack_high`].
    pub high: &'a [u8],
    /// Second parts, [`row_bytes`] of each output; see [`pack_low`].
    pub low: &'a [u8],
    /// Per output: `‖l − 3.5‖` in steps of `3.5/255 · √inputs`, rounded up.
    pub spread: &'a [u8],
    /// One per output.
    pub scales: &'a [f32],
    /// Inputs, K: a multiple of [`STEP`], at most [`LONGEST`].
    pub inputs: usize,
    /// Outputs, N.
    pub outputs: usize,
}

impl Split<'_> {
    /// Whether matrices with this many inputs can be split.
    pub const fn takes(inputs: u64) -> bool {
        inputs > 0 && inputs.is_multiple_of(STEP as u64) && inputs <= LONGEST as u64
    }

    /// # Panics
    /// When there are fewer weights or scales than the dimensions say, or the dimensions cannot be
    /// split.
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

/// Bytes of the first parts of a panel.
pub const fn panel_bytes(inputs: usize) -> usize {
    inputs / BLOCK * BLOCK_VECTORS * VECTOR
}

/// Bytes of the second parts of a row.
pub const fn row_bytes(inputs: usize) -> usize {
    inputs / STEP * THIRDS
}

/// Packs the first parts of one panel: `rows` contains up to sixteen rows of `inputs` weights;
/// missing outputs become zeros.
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

/// Packs the second parts of a row, [`STEP`] after [`STEP`] as [`Dot::thirds`] reads them, and
/// returns the row's spread.
///
/// # Panics
/// When the row is no multiple of [`STEP`], or the target is shorter than [`row_bytes`].
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
    // At most 3.5·√K, which is 255 steps. The loss here is far less than the margin the search
    // adds.
    (squares.sqrt() / step * (1.0 - 1e-6)).ceil().clamp(0.0, 255.0) as u8
}

/// Where the parts of the scratch memory begin, in values of four bytes.
struct Layout {
    upper: usize,
    list: usize,
    end: usize,
}

/// Values of the list of a thread: a count, padding, then bits and index of each entry.
const LIST: usize = LANES + 2 * MOST;

impl Layout {
    fn new(inputs: usize, threads: usize) -> Option<Layout> {
        let upper = (inputs / 4).checked_next_multiple_of(LANES)?;
        let list = threads.checked_mul(2 * CHUNK)?.checked_add(upper)?;
        Some(Layout { upper, list, end: threads.checked_mul(LIST)?.checked_add(list)? })
    }
}

/// Number of scratch values that [`split_linear`] needs for a pool of `threads` threads; `None` on
/// overflow.
pub fn scratch_values(inputs: usize, threads: usize) -> Option<usize> {
    Some(Layout::new(inputs, threads)?.end)
}

/// Writes `out[n]` of a row `x [inputs]`, quantised as [`quantise_rows`] does; every result is `sum
/// · (row scale · weight scale)` in f64, rounded once. If there is a `cap` (finite and positive),
/// [`softcap`] is applied.
///
/// With `largest = k`, only the k largest results are written, ties going to the lower index, and
/// [`f32::MIN`] in all other places; the choice depends on the operands alone.
///
/// # Panics
/// When a length does not fit the dimensions, or the dimensions cannot be split.
#[allow(clippy::too_many_arguments, reason = "operands and where to work")]
pub fn split_linear(
    level: Level,
    dot: DotLevel,
    streams: Streams,
    pool: &Pool,
    x: &[f32],
    split: Split<'_>,
    cap: Option<f32>,
    largest: Option<NonZeroUsize>,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    split.check();
    let Split { inputs, outputs, .. } = split;
    assert!(x.len() >= inputs && out.len() >= outputs, "operands shorter than the dimensions");
    let layout = Layout::new(inputs, pool.threads()).expect("a row that fits in memory");
    let (q, rest) = scratch[..layout.end].split_at_mut(layout.upper);
    let (room, lists) = rest.split_at_mut(layout.list - layout.upper);
    let (q, lists) = (bytes_of(q), integers_of(lists));
    let (mut sum, mut scale) = ([0], [0.0]);
    quantise_rows(level, pool, x, Geometry::new(inputs, None), 1, false, q, &mut sum, &mut scale);
    let row = Row { split, q: &q[..inputs], sum: sum[0], scale: scale[0], cap, streams };
    let tasks = outputs.div_ceil(CHUNK);
    let out = SharedOutput::new(&mut out[..outputs]);
    let run = |body: &(dyn Fn(usize, usize) + Sync)| match pool.worth((outputs * inputs) as u64 / 4) {
        true => pool.run_indexed(tasks, body),
        false => (0..tasks).for_each(|task| body(task, 0)),
    };
    let wanted = largest.map_or(outputs, NonZeroUsize::get);
    if wanted > MOST || wanted >= outputs || !row.scale.is_finite() {
        return run(&|task, _| complete_at(dot, &row, task, out));
    }
    let squares: i64 = row.q.iter().map(|q| i64::from(*q).pow(2)).sum();
    // Rounded up by more than all rounding errors here and in the bounds.
    let length = (squares as f64).sqrt() as f32 * SPREAD * (inputs as f32).sqrt() * (1.0 + 1e-3);
    let search = Search { row, middle: 3.5 * sum[0] as f32, length, bar: &AtomicU32::new(0) };
    let (room, lists) = (SharedOutput::new(room), SharedOutput::new(lists));
    let list = |thread: usize| {
        // SAFETY: a thread has its own part, and threads are numbered below those of the pool.
        unsafe { lists.part(thread * LIST, LIST) }
    };
    (0..pool.threads()).for_each(|thread| list(thread)[0] = 0);
    for step in [begin_at, search_at] {
        run(&|task, thread| {
            // SAFETY: as above.
            let room = unsafe { room.part(thread * 2 * CHUNK, 2 * CHUNK) };
            step(dot, &search, task, room, &mut Best::of(list(thread), wanted), out);
        });
    }
    let mut best = Best::of(list(0), wanted);
    for thread in 1..pool.threads() {
        for [bits, index] in Best::of(list(thread), wanted).found() {
            best.add(f32::from_bits(*bits as u32), *index as u32);
        }
    }
    for [bits, index] in best.found() {
        // SAFETY: all tasks are done.
        unsafe { out.part(*index as usize, 1)[0] = f32::from_bits(*bits as u32) };
    }
}

/// A quantised row and the weights it is multiplied with.
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

impl Row<'_> {
    /// Writes `Σ h·q` of the outputs of a task to their places.
    #[inline(always)]
    fn high<D: Dot>(&self, d: D, task: usize, results: &mut [f32]) {
        let bytes = panel_bytes(self.split.inputs);
        let panels = results.len().div_ceil(LANES);
        let high = &self.split.high[task * PANELS * bytes..][..panels * bytes];
        let mut panel = 0;
        while panel < panels {
            let (results, high) = (&mut results[panel * LANES..], high[panel * bytes..].as_ptr());
            // SAFETY: at least this many panels are left.
            panel += unsafe {
                if const { matches!(<D::F as Simd>::REGISTERS, Registers::Many) }
                    && self.streams == Streams::Eight
                    && panels - panel >= STREAMS
                {
                    self.panels::<D, STREAMS, 1>(d, high, results)
                } else if self.streams != Streams::One && panels - panel >= FEWER_STREAMS {
                    self.panels::<D, FEWER_STREAMS, 1>(d, high, results)
                } else {
                    self.panels::<D, 1, 4>(d, high, results)
                }
            };
        }
    }

    /// `N` panels side by side, with so many sums of each: one alone would wait for itself.
    ///
    /// # Safety
    /// `high` is readable for `N` panels.
    #[inline(always)]
    unsafe fn panels<D: Dot, const N: usize, const CHAINS: usize>(
        &self,
        d: D,
        high: *const u8,
        results: &mut [f32],
    ) -> usize {
        let bytes = panel_bytes(self.split.inputs);
        let mut sums = [[d.splat(0); CHAINS]; N];
        sums.iter_mut().for_each(|chains| chains[0] = d.splat((-16i32).wrapping_mul(self.sum)));
        let near = const { ahead(N) };
        let mut ahead = near;
        for (block, q) in self.q.as_chunks::<BLOCK>().0.iter().enumerate() {
            let at = |panel: usize, vector: usize| {
                high.wrapping_add(panel * bytes + (block * BLOCK_VECTORS + vector) * VECTOR)
            };
            // Reading ahead past the end of a panel would fetch its neighbour's panel, which the
            // neighbouring stream reads; this stream continues after the last of the panels.
            if block * BLOCK_VECTORS * VECTOR + near >= bytes {
                ahead = near + (N - 1) * bytes;
            }
            // SAFETY: five vectors of each panel, as the caller grants; 32 values.
            unsafe {
                let bits: [D::Bytes; N] = std::array::from_fn(
                    #[inline(always)]
                    |panel| d.load(at(panel, 4)),
                );
                for vector in 0..4 {
                    let bytes: [D::Bytes; N] = std::array::from_fn(
                        #[inline(always)]
                        |panel| {
                            d.prefetch(at(panel, vector).wrapping_add(ahead));
                            d.load(at(panel, vector))
                        },
                    );
                    for half in 0..2 {
                        let quad = d.quad(q.as_ptr().add(8 * vector + 4 * half));
                        for panel in 0..N {
                            let w = d.raise(d.field(bytes[panel], 4, half), bits[panel], 2 * vector + half);
                            let sum = &mut sums[panel][vector % CHAINS];
                            *sum = d.dot_small(*sum, w, quad);
                        }
                    }
                }
                for panel in 0..N {
                    d.prefetch(at(panel, 4).wrapping_add(ahead));
                }
            }
        }
        for (panel, chains) in sums.into_iter().enumerate() {
            let sums = chains[1..].iter().fold(chains[0], |sums, chain| d.add(sums, *chain));
            let results = &mut results[panel * LANES..];
            let count = results.len().min(LANES);
            // SAFETY: so many values.
            unsafe { d.values().store_partial(results.as_mut_ptr(), count, d.widen(sums)) };
        }
        N
    }

    /// `Σ l·q` of an output; prefetches `ahead` bytes.
    #[inline(always)]
    fn low<D: Dot>(&self, d: D, output: usize, ahead: usize) -> i32 {
        let bytes = row_bytes(self.split.inputs);
        let low = self.split.low[output * bytes..][..bytes].as_chunks::<THIRDS>().0;
        let mut sums = [d.splat(0); 2];
        for (low, q) in low.iter().zip(self.q.as_chunks::<STEP>().0) {
            d.prefetch(low.as_ptr().wrapping_add(ahead));
            // SAFETY: every chunk is as long as what is read.
            unsafe {
                let [first, second] = d.thirds(low.as_ptr());
                sums[0] = d.dot_each(sums[0], first, d.load(q.as_ptr().cast()));
                sums[1] = d.dot_each(sums[1], second, d.load(q.as_ptr().add(VECTOR).cast()));
            }
        }
        d.total(d.add(sums[0], sums[1]))
    }

    /// The uncapped result of an output whose sum of first parts is known.
    #[inline(always)]
    fn result<D: Dot>(&self, d: D, output: usize, high: f32) -> f32 {
        let sum = 8 * i64::from(high as i32) + i64::from(self.low(d, output, 0));
        value(sum as f64, f64::from(self.scale), f64::from(self.split.scales[output]), 0.0)
    }

    /// The results of up to sixteen outputs from `first` on, in the places of their sums of first
    /// parts. Finishing them one by one would take as long as their second parts.
    #[inline(always)]
    fn results<D: Dot>(&self, d: D, first: usize, results: &mut [f32], ahead: usize) {
        let (f, count) = (d.values(), results.len());
        let (mut sums, mut scales) = ([0; LANES], [0.0; LANES]);
        for (lane, high) in results.iter().enumerate() {
            // Within 2³¹: |w·q| ≤ 2¹⁴, of 2¹³ inputs.
            sums[lane] = 8 * (*high as i32) + self.low(d, first + lane, ahead);
        }
        scales.iter_mut().zip(&self.split.scales[first..first + count]).for_each(|(to, from)| {
            *to = f64::from(*from);
        });
        let mut values = d.exact(d.sums(&sums), f64::from(self.scale), &scales, &[0.0; LANES]);
        if let Some(cap) = self.cap {
            values = softcap(f, values, cap);
        }
        // SAFETY: so many values.
        unsafe { f.store_partial(results.as_mut_ptr(), count, values) };
    }

    /// Caps results in their places.
    #[inline(always)]
    fn cap<D: Dot>(&self, d: D, results: &mut [f32]) {
        let f = d.values();
        let Some(cap) = self.cap else { return };
        for results in results.chunks_mut(LANES) {
            let count = results.len();
            // SAFETY: so many values.
            unsafe {
                let values = f.load_partial(results.as_ptr(), count);
                f.store_partial(results.as_mut_ptr(), count, softcap(f, values, cap));
            }
        }
    }

    /// Every result below the returned value is less than `least` when capped.
    fn below(&self, least: f32) -> f32 {
        let Some(cap) = self.cap else { return least };
        let cap = f64::from(cap);
        let part = f64::from(least) / cap;
        // `softcap` is within 5e-7 of the exact function: 3 ulp of tanh, a quotient and a product.
        // Subnormal quotients are off by far less than the least normal number.
        let part = (part - 2e-6 * part.abs()).max(-1.0);
        (cap * part.atanh() - f64::from(f32::MIN_POSITIVE) * cap.max(1.0)) as f32
    }
}

/// The outputs of a task.
#[inline(always)]
fn outputs_of<'a>(row: &Row<'_>, task: usize, out: SharedOutput<'a, f32>) -> (usize, &'a mut [f32]) {
    let first = task * CHUNK;
    // SAFETY: a task has its own outputs.
    (first, unsafe { out.part(first, CHUNK.min(row.split.outputs - first)) })
}

dispatch_dot! { fn complete_at => complete(row: &Row<'_>, task: usize, out: SharedOutput<'_, f32>) }

/// All results of a task.
#[inline(always)]
fn complete<D: Dot>(d: D, row: &Row<'_>, task: usize, out: SharedOutput<'_, f32>) {
    let (first, results) = outputs_of(row, task, out);
    row.high(d, task, results);
    // Several streams of groups of rows, as for panels.
    let streams = row.streams.count();
    let part = results.len().div_ceil(streams).next_multiple_of(LANES);
    for at in (0..part).step_by(LANES) {
        for (stream, results) in results.chunks_mut(part).enumerate() {
            let count = results.len();
            if at < count {
                let group = &mut results[at..count.min(at + LANES)];
                row.results(d, first + stream * part + at, group, ahead(streams));
            }
        }
    }
}

/// State shared by the tasks of a search.
struct Search<'a> {
    row: Row<'a>,
    /// `3.5·Σ q`
    middle: f32,
    /// Value of one step of spread: `‖q‖` times it, rounded up.
    length: f32,
    /// [`key`] of a value: results below it are not among the largest, since as many exact results
    /// as requested are known to be at least that value.
    bar: &'a AtomicU32,
}

/// Maps values to integers in the same order; both zeros are equal, and NaN is above all.
fn key(value: f32) -> u32 {
    let bits = if value.is_nan() { f32::NAN.to_bits() } else { (value + 0.0).to_bits() };
    bits ^ if bits >> 31 == 0 { 1 << 31 } else { u32::MAX }
}

/// The value of the key of a number; for zero, a value below all others.
fn value_of(key: u32) -> f32 {
    match key {
        0 => f32::NEG_INFINITY,
        key if key >> 31 == 1 => f32::from_bits(key ^ (1 << 31)),
        key => f32::from_bits(!key),
    }
}

/// The best of some results in descending order, ties by lower index. Memory: a count, padding,
/// then bits and index of each.
struct Best<'a> {
    count: &'a mut i32,
    entries: &'a mut [[i32; 2]],
}

impl<'a> Best<'a> {
    fn of(memory: &'a mut [i32], wanted: usize) -> Best<'a> {
        let (head, entries) = memory.split_at_mut(LANES);
        Best { count: &mut head[0], entries: &mut entries.as_chunks_mut::<2>().0[..wanted] }
    }

    fn found(&self) -> &[[i32; 2]] {
        &self.entries[..*self.count as usize]
    }

    fn rank([bits, index]: [i32; 2]) -> (u32, u32) {
        (key(f32::from_bits(bits as u32)), !(index as u32))
    }

    /// Adds a result. If the list is full and the result is in it, returns the key of its last
    /// entry.
    fn add(&mut self, result: f32, index: u32) -> Option<u32> {
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
    fn begin_at => begin(
        shared: &Search<'_>, task: usize, upper: &mut [f32], best: &mut Best<'_>, out: SharedOutput<'_, f32>,
    )
}

/// Sums of first parts of a task, and the exact result of the output with the highest bound: it is
/// likely to be high, and raises the bar for all others.
#[inline(always)]
fn begin<D: Dot>(
    d: D,
    shared: &Search<'_>,
    task: usize,
    upper: &mut [f32],
    best: &mut Best<'_>,
    out: SharedOutput<'_, f32>,
) {
    let (first, results) = outputs_of(&shared.row, task, out);
    shared.row.high(d, task, results);
    let likely = bounds(d, shared, first, results, upper);
    consider(d, shared, first + likely, results[likely], best);
}

dispatch_dot! {
    fn search_at => search(
        shared: &Search<'_>, task: usize, room: &mut [f32], best: &mut Best<'_>, out: SharedOutput<'_, f32>,
    )
}

/// Exact results of all other outputs of a task whose bounds reach the bar.
#[inline(always)]
fn search<D: Dot>(
    d: D,
    shared: &Search<'_>,
    task: usize,
    room: &mut [f32],
    best: &mut Best<'_>,
    out: SharedOutput<'_, f32>,
) {
    let (first, results) = outputs_of(&shared.row, task, out);
    let (count, bytes) = (results.len(), row_bytes(shared.row.split.inputs));
    let (upper, candidates) = room.split_at_mut(CHUNK);
    let likely = bounds(d, shared, first, results, upper);
    let bar = value_of(shared.bar.load(Ordering::Relaxed));
    let candidates = integers_of(candidates);
    let mut found = 0;
    for (group, upper) in upper[..count].chunks(LANES).enumerate() {
        // NaN counts as reaching the bar.
        if upper.iter().fold(true, |below, upper| below & (*upper < bar)) {
            continue;
        }
        for (lane, upper) in upper.iter().enumerate() {
            let output = group * LANES + lane;
            if *upper < bar || output == likely {
                continue;
            }
            candidates[found] = output as i32;
            found += 1;
            let low = shared.row.split.low[(first + output) * bytes..].as_ptr();
            (0..bytes).step_by(VECTOR).for_each(|at| d.prefetch(low.wrapping_add(at)));
        }
    }
    for output in &candidates[..found] {
        let output = *output as usize;
        // The bar may have risen.
        if upper[output] < value_of(shared.bar.load(Ordering::Relaxed)) {
            continue;
        }
        consider(d, shared, first + output, results[output], best);
    }
    results.fill(f32::MIN);
}

/// Computes the exact result of an output. Not a closure: closures are compiled without the target
/// features of their caller.
#[inline(always)]
fn consider<D: Dot>(d: D, shared: &Search<'_>, output: usize, high: f32, best: &mut Best<'_>) {
    let mut result = [shared.row.result(d, output, high)];
    shared.row.cap(d, &mut result);
    if let Some(last) = best.add(result[0], output as u32) {
        let bar = key(shared.row.below(value_of(last)));
        if bar > shared.bar.load(Ordering::Relaxed) {
            shared.bar.fetch_max(bar, Ordering::Relaxed);
        }
    }
}

/// Writes upper bounds of the results whose sums of first parts are `results`; returns the index of
/// the highest.
#[inline(always)]
fn bounds<D: Dot>(d: D, search: &Search<'_>, first: usize, results: &[f32], upper: &mut [f32]) -> usize {
    let f = d.values();
    let Split { spread, scales, .. } = search.row.split;
    let [row_scale, middle, length] =
        [search.row.scale, search.middle, search.length].map(|value| f.splat(value));
    let mut highest = f.splat(f32::NEG_INFINITY);
    let mut wide = [0.0f32; LANES];
    for (group, (results, upper)) in results.chunks(LANES).zip(upper.chunks_exact_mut(LANES)).enumerate() {
        let (from, count) = (first + group * LANES, results.len());
        let (spread, scales) = (&spread[from..from + count], &scales[from..from + count]);
        wide.iter_mut().zip(spread).for_each(|(wide, spread)| *wide = f32::from(*spread));
        // SAFETY: so many values are there, in `upper` and `wide` sixteen.
        unsafe {
            let scale = f.mul(row_scale, f.load_partial(scales.as_ptr(), count));
            let sum = f.fma(f.splat(8.0), f.load_partial(results.as_ptr(), count), middle);
            // A millionth of the sum exceeds the rounding errors here, and the least normal number
            // exceeds the loss of a subnormal scale.
            let slack = f.fma(f.abs(sum), f.splat(1e-6), f.mul(length, f.load(wide.as_ptr())));
            let most = f.add(f.abs(scale), f.splat(f32::MIN_POSITIVE));
            let bound = f.fma(most, slack, f.mul(scale, sum));
            f.store(upper.as_mut_ptr(), bound);
            highest = f.max(bound, highest);
        }
    }
    // A lane beyond the end may be the highest: then any output will do, since none is skipped
    // because of it.
    let highest = f.reduce_max(highest);
    upper[..results.len()].iter().position(|upper| *upper == highest).unwrap_or(0)
}

#[cfg(test)]
mod tests;
