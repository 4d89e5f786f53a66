//! `y = x · wᵀ (+ bias)` over integer weights, with rows dynamically quantised to eight bits.
//!
//! A row has one scale, or one for each block (see [`quantise_rows`]). Integer products are summed
//! exactly, so the order of these sums has no effect. With one scale for a row:
//! * A scale per output (or none but one): the exact sum becomes `sum · (row scale · weight scale)
//!   + bias` in f64, rounded once. The result equals the definition of the operation to the bit.
//! * Scales per block of inputs: `acc = fma(block sum, block scale, acc)` in f32 from zero, block
//!   after block, then `acc · row scale` or `fma(acc, row scale, bias)`. The definition adds the
//!   blocks in f64. With B blocks the result differs from it by at most (B + 2)/2²⁴ of the sum of
//!   the magnitudes of the blocks' terms (and as much of the result). Adding the blocks in f64 here
//!   would cost a third of the rate of many rows.
//!
//! With a scale per block of a row:
//! * Scales per block of inputs, as long as a block of rows or several times as long: `acc =
//!   fma(block sum, row scale · block scale, acc)` in f32 from zero, block after block, then
//!   `acc + bias`.
//! * A scale per output: `acc = fma(block sum, row scale, acc)`, then `acc · weight scale` or
//!   `fma(acc, weight scale, bias)`.
//!
//! With B blocks both are within (B + 3)/2²⁴ of the same sum of magnitudes.
//!
//! Blocks with affine maps add a second term for their minimum (see `affine.rs`), so 2B replaces B
//! in these bounds.
//!
//! Weights are stored in tiles ([`pack`]) that all instruction sets read unchanged: sixteen outputs
//! by four inputs in 64 bytes. A tile is one operand of the wide products and four operands of the
//! narrow ones. A single row streams the tiles once from front to back, in several parallel streams
//! ([`Streams`]). A few rows also stream them, panel by panel, and use each operand for as many
//! rows as fit in registers. For many rows ([`many`]), the operands of a group of tiles are
//! unpacked once into memory that stays in cache, and multiplied in registers. If products are of
//! an unsigned and a signed byte, many rows are made unsigned and bytes of weights stay unchanged:
//! `Σ (q + 128) · w = Σ q · w + 128 · Σ w`. A group of tiles is then summed once for all rows.

mod affine;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "aarch64")]
mod i8mm;
pub mod pack;
mod quantise;
mod results;
pub mod split;
mod streams;
mod tile;

pub use pack::{Geometry, IntegerType, pack_tiles};
pub use quantise::quantise_rows;
pub use streams::Streams;

use crate::kernels::linear::Scales;
use crate::pool::{Pool, SharedOutput};
use crate::simd::dot::{Dot, DotLevel, VECTOR, dispatch_dot};
use crate::simd::{LANES, Level};
use tile::{Rows, Target};

/// Packed weights of one linear map.
#[derive(Clone, Copy, Debug)]
pub struct Tiles<'a> {
    pub kind: IntegerType,
    /// Tiles of all panels of sixteen outputs (see [`Geometry::panel_bytes`]).
    pub data: &'a [u8],
    /// One scale per output, or one scale or affine map per block.
    pub scales: Scales<'a>,
    /// Number of inputs, K.
    pub inputs: usize,
    /// Number of outputs, N.
    pub outputs: usize,
}

impl Tiles<'_> {
    /// Returns how the inputs are divided into blocks.
    pub fn geometry(&self) -> Geometry {
        Geometry::new(self.inputs, self.scales.block())
    }

    /// Returns how rows of activations are divided into blocks, with a scale for every `block`
    /// inputs or one scale for a row. Returns `None` if the blocks of the weights do not fit.
    pub fn rows(&self, block: Option<usize>) -> Option<Geometry> {
        match block {
            Some(block) => Geometry::scaled(self.inputs, block, self.scales.block()),
            None => Some(self.geometry()),
        }
    }

    fn panels(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    /// Checks the lengths of weights and scales.
    ///
    /// # Panics
    /// When there are fewer weights or scales than the dimensions require.
    fn check(&self) {
        let geometry = self.geometry();
        assert!(
            self.data.len() >= self.panels() * geometry.panel_bytes(self.kind),
            "fewer weights than panels"
        );
        match self.scales {
            Scales::None => panic!("integers without scales of their own"),
            Scales::PerOutput(scales) => assert!(scales.len() >= self.outputs, "fewer scales than outputs"),
            Scales::PerBlock { values, .. } => {
                assert!(values.len() >= self.panels() * geometry.blocks, "fewer scales than blocks");
            }
            Scales::Affine { minimum, values, .. } => {
                let numbers = geometry.blocks * if minimum { 2 } else { 1 };
                assert!(values.len() >= self.panels() * numbers, "fewer maps than blocks");
            }
        }
    }
}

/// Fewest rows for which products of whole tiles and of pairs of rows unpack the weights once for
/// all rows (see [`many`]).
pub const MANY: usize = 8;
/// Fewest rows for which products of single rows unpack the weights once. They read the weights in
/// place for fewer rows.
const MANY_SINGLE: usize = 17;
/// Panels that are unpacked together.
const GROUP: usize = 4;
/// Tasks per thread for few rows, if there are enough panels.
const CUTS: usize = 16;
/// Most panels of a task for few rows.
const LONGEST_RUN: usize = 4 * tile::STREAMS;
/// Fewest rows per task, so that unpacking weights stays a small part of it.
const LEAST_ROWS: usize = 48;
/// Rows beyond the last that may be read.
const READ_AHEAD: usize = 31;
/// Ratio of the cost of a float product to the cost of a byte product.
const CHEAPER: u64 = 4;

/// Returns the fewest rows for which weights are unpacked once for all of them at this level.
pub const fn many(dot: DotLevel) -> usize {
    match dot {
        #[cfg(target_arch = "x86_64")]
        DotLevel::Amx => MANY,
        #[cfg(target_arch = "aarch64")]
        DotLevel::NeonI8mm => MANY,
        _ => MANY_SINGLE,
    }
}

/// Offsets of the parts of the scratch memory, in values of four bytes.
struct Layout {
    sums: usize,
    scales: usize,
    ready: usize,
    end: usize,
}

impl Layout {
    fn new(geometry: Geometry, rows: usize, threads: usize) -> Option<Layout> {
        const LINE: usize = VECTOR / 4;
        let part = |from: usize, values: usize| values.checked_next_multiple_of(LINE)?.checked_add(from);
        // Tile products read whole groups of rows.
        let readable = if rows >= MANY { rows.checked_add(READ_AHEAD)? } else { rows };
        let sums = part(0, readable.checked_mul(geometry.length / 4)?)?;
        let scales = part(sums, rows.checked_mul(geometry.blocks)?)?;
        let ready = part(scales, rows.checked_mul(geometry.scales())?)?;
        let group = if rows >= MANY {
            threads.checked_mul(geometry.length)?.checked_mul(GROUP * LANES / 4)?
        } else {
            0
        };
        Some(Layout { sums, scales, ready, end: part(ready, group)? })
    }
}

/// Returns the number of scratch values that [`integer_linear`] needs for a pool of `threads`
/// threads, or `None` on overflow.
pub fn scratch_values(geometry: Geometry, rows: usize, threads: usize) -> Option<usize> {
    Some(Layout::new(geometry, rows, threads)?.end)
}

/// Reinterprets values as bytes.
fn bytes_of(values: &mut [f32]) -> &mut [i8] {
    // SAFETY: a value has four bytes, and every bit pattern is valid for both types.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len() * 4) }
}

/// Reinterprets values as integers.
fn integers_of(values: &mut [f32]) -> &mut [i32] {
    // SAFETY: both types have four bytes, and every bit pattern is valid for both.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
}

/// One of several maps of the same rows.
pub struct Map<'a> {
    /// Packed `[outputs, inputs]`.
    pub weights: Tiles<'a>,
    /// `[outputs]`
    pub bias: Option<&'a [f32]>,
    /// Limits of the results, applied with the bits of [`clamp`](crate::kernels::math::clamp).
    pub bounds: Option<[f32; 2]>,
    /// `[rows, outputs]`
    pub out: &'a mut [f32],
}

/// The body of a task. Its arguments are the map, the index of the task within the map, and the
/// thread.
type MapTask<'t> = dyn Fn(&(Operands<'_>, Target<'_>), usize, usize) + Sync + 't;

/// Writes `out[r][n]` of every map for `rows` rows of `x [rows, inputs]`. The rows are quantised
/// once, with a scale for every `block` inputs if `block` is set. All maps are one job.
///
/// # Panics
/// When there are no maps, a length does not fit the dimensions, weights have no scales, or maps
/// divide the inputs into different blocks.
#[allow(clippy::too_many_arguments, reason = "operands and where to work")]
pub fn integer_linear<const N: usize>(
    level: Level,
    dot: DotLevel,
    streams: Streams,
    pool: &Pool,
    x: &[f32],
    block: Option<usize>,
    maps: [Option<Map<'_>>; N],
    rows: usize,
    scratch: &mut [f32],
) {
    let first = maps.iter().flatten().next().expect("a map");
    let geometry = first.weights.rows(block).expect("blocks that suit the weights");
    assert!(x.len() >= rows * geometry.inputs, "activations shorter than the rows");
    let layout = Layout::new(geometry, rows, pool.threads()).expect("rows that fit in memory");
    let (q, rest) = scratch[..layout.end].split_at_mut(layout.sums);
    let (sums, rest) = rest.split_at_mut(layout.scales - layout.sums);
    let (scales, ready) = rest.split_at_mut(layout.ready - layout.scales);
    let (q, sums, ready) = (bytes_of(q), integers_of(sums), bytes_of(ready));
    // Raised (unsigned) rows are multiplied with the stored bytes of the weights.
    let bytes = |map: &Map<'_>| map.weights.kind == IntegerType::I8 && map.weights.scales.block().is_none();
    let raised = rows >= many(dot) && geometry.is_whole() && dot.raises() && maps.iter().flatten().all(bytes);
    quantise_rows(level, pool, x, geometry, rows, raised, q, sums, scales);
    let quantised = Rows { q, sums, scales, raised };
    let maps = maps.map(|map| {
        map.map(|Map { weights, bias, bounds, out }| {
            weights.check();
            let same = weights.rows(block) == Some(geometry);
            assert!(same, "maps of the same rows cut them into different blocks");
            assert!(out.len() >= rows * weights.outputs, "results shorter than the rows");
            assert!(bias.is_none_or(|bias| bias.len() >= weights.outputs), "bias shorter than the outputs");
            let target = Target { out: SharedOutput::new(out), stride: weights.outputs };
            (Operands { weights, geometry, rows: quantised, bias, bounds }, target)
        })
    });
    let panels: usize = maps.iter().flatten().map(|(operands, _)| operands.weights.panels()).sum();
    if panels == 0 {
        return;
    }
    let shared = pool.worth(rows as u64 * panels as u64 * (LANES * geometry.length) as u64 / CHEAPER);
    let threads = if shared { pool.threads() } else { 1 };
    // The tasks of one map follow the tasks of the previous one.
    let run = |tasks_of: &dyn Fn(usize) -> usize, body: &MapTask<'_>| {
        let mut ends = [0; N];
        let mut tasks = 0;
        for (end, map) in ends.iter_mut().zip(&maps) {
            tasks += map.as_ref().map_or(0, |(operands, _)| tasks_of(operands.weights.panels()));
            *end = tasks;
        }
        let body = |task: usize, thread: usize| {
            let index = ends.iter().take_while(|end| **end <= task).count();
            let begin = if index == 0 { 0 } else { ends[index - 1] };
            if let Some(Some(map)) = maps.get(index) {
                body(map, task - begin, thread);
            }
        };
        match shared {
            true => pool.run_indexed(tasks, &body),
            false => (0..tasks).for_each(|task| body(task, 0)),
        }
    };
    if rows < many(dot) {
        // A task is a run of panels, read once from front to back. Each thread gets the same number
        // of tasks from every map, and the last tasks are short, since a job ends with its slowest
        // thread.
        let part = panels.div_ceil(threads * CUTS).next_multiple_of(tile::STREAMS).min(LONGEST_RUN);
        let range = |panels: usize| panels.div_ceil(threads).next_multiple_of(tile::FEWER_STREAMS);
        run(&|panels| threads * range(panels).div_ceil(part), &|(operands, target), task, _| {
            let (panels, range) = (operands.weights.panels(), range(operands.weights.panels()));
            let tasks = range.div_ceil(part);
            let first = task / tasks * range + task % tasks * part;
            let end = (first + part).min((task / tasks + 1) * range).min(panels);
            if first < end && affine::takes(operands) {
                affine::multiply_at(dot, *operands, 0, rows, first, end - first, *target);
            } else if first < end {
                stream_at(dot, *operands, streams, rows, first, end - first, *target);
            }
        });
        return;
    }
    let groups = panels.div_ceil(GROUP);
    let part = rows.div_ceil((threads * 4).div_ceil(groups.max(1))).max(LEAST_ROWS);
    let blocks = rows.div_ceil(part);
    let room = GROUP * LANES * geometry.length;
    let ready = SharedOutput::new(ready);
    run(&|panels| panels.div_ceil(GROUP) * blocks, &|(operands, target), task, thread| {
        let (panel, row) = (task / blocks * GROUP, task % blocks * part);
        let (rows, panels) = (part.min(rows - row), GROUP.min(operands.weights.panels() - panel));
        if affine::takes(operands) {
            affine::multiply_at(dot, *operands, row, rows, panel, panels, *target);
            return;
        }
        // SAFETY: each thread has its own part, and thread indices are below the pool's number of
        // threads.
        let ready = unsafe { ready.part(thread * room, room) };
        #[cfg(target_arch = "x86_64")]
        if dot == DotLevel::Amx
            && amx::takes(operands)
            && let Some(amx) = crate::simd::amx::Amx::detect()
        {
            // SAFETY: the layout includes the rows that are read beyond the last one.
            unsafe { amx::multiply(amx, *operands, row, rows, panel, panels, ready, *target) };
            return;
        }
        #[cfg(target_arch = "aarch64")]
        if dot == DotLevel::NeonI8mm
            && i8mm::takes(operands)
            && let Some(i8mm) = crate::simd::i8mm::NeonI8mm::detect()
        {
            i8mm::multiply(i8mm, *operands, row, rows, panel, panels, ready, *target);
            return;
        }
        multiply_at(dot, *operands, row, rows, panel, panels, ready, *target);
    });
}

/// Operands shared by all tasks of a product.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    weights: Tiles<'a>,
    geometry: Geometry,
    rows: Rows<'a>,
    bias: Option<&'a [f32]>,
    bounds: Option<[f32; 2]>,
}

dispatch_dot! {
    fn stream_at => stream(operands: Operands<'_>, streams: Streams, rows: usize, panel: usize, panels: usize, target: Target<'_>)
}

/// Multiplies a few rows by a run of panels, whose weights are read in place.
#[inline(always)]
fn stream<D: Dot>(
    d: D,
    operands: Operands<'_>,
    streams: Streams,
    rows: usize,
    panel: usize,
    panels: usize,
    target: Target<'_>,
) {
    match operands.weights.kind {
        IntegerType::I8 => tile::stream::<D, tile::I8>(d, operands, streams, rows, panel, panels, target),
        IntegerType::I4 => tile::stream::<D, tile::I4>(d, operands, streams, rows, panel, panels, target),
        IntegerType::I2 => tile::stream::<D, tile::I2>(d, operands, streams, rows, panel, panels, target),
    }
}

dispatch_dot! {
    fn multiply_at => multiply(
        operands: Operands<'_>, row: usize, rows: usize, panel: usize, panels: usize, ready: &mut [i8], target: Target<'_>,
    )
}

/// Multiplies many rows by a group of panels, whose weights are unpacked first.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
fn multiply<D: Dot>(
    d: D,
    operands: Operands<'_>,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    ready: &mut [i8],
    target: Target<'_>,
) {
    match operands.weights.kind {
        IntegerType::I8 if operands.rows.raised => {
            if const { D::RAISES } {
                tile::multiply::<D, tile::Raised>(d, operands, row, rows, panel, panels, &[], target);
            } else {
                unreachable!("rows are raised where `DotLevel::raises` says so");
            }
        }
        IntegerType::I8 => {
            tile::make_ready::<D, tile::I8>(d, operands, panel, panels, ready);
            tile::multiply::<D, tile::Ready<false>>(d, operands, row, rows, panel, panels, ready, target);
        }
        IntegerType::I4 => {
            tile::make_ready::<D, tile::I4>(d, operands, panel, panels, ready);
            tile::multiply::<D, tile::Ready<true>>(d, operands, row, rows, panel, panels, ready, target);
        }
        IntegerType::I2 => {
            tile::make_ready::<D, tile::I2>(d, operands, panel, panels, ready);
            tile::multiply::<D, tile::Ready<true>>(d, operands, row, rows, panel, panels, ready, target);
        }
    }
}

#[cfg(target_arch = "x86_64")]
const _: () = assert!(READ_AHEAD + 1 == amx::ROWS);

#[cfg(test)]
mod tests;
