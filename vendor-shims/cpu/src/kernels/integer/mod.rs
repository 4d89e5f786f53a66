//! `y = x · wᵀ (+ bias)` over integer weights, with rows dynamically quantised to eight bits.
//!
//! A row has one scale, or one for each block (see [`quantise_rows`]). Weights have a scale per
//! output, or a scale and possibly a minimum per block of inputs. The inputs of a row are divided
//! into units, which are the smaller blocks ([`Geometry`]). Integer products are summed exactly
//! within a unit, so the order of these sums has no effect.
//!
//! If neither rows nor weights have blocks, the exact sum of a row becomes `sum · (row scale ·
//! weight scale) + bias` in f64, rounded once. The result equals the definition of the operation to
//! the bit. Otherwise units are added in their order, in f32 from zero, with one rounding each:
//! * `a = fma(sum, factor, a)`. The factor is the scale of the weights' block, of the row's block
//!   (if weights have a scale per output), or the product of both.
//! * `l = fma(total, minimum, l)` if there are minimums. The total is the sum of the unit's
//!   quantised activations, multiplied by the scale of the row's block if there is one.
//!
//! Then `y = a − l`, or `a` without minimums. If rows have one scale, the result is `y · scale`, or
//! `fma(y, scale, bias)`. If rows have blocks and weights have a scale per output, that scale is
//! multiplied in the same way. Otherwise the result is `y`, or `y + bias`.
//!
//! The definition of the operation adds units in f64. With B units the result differs from it by at
//! most (B + 4)/2²⁴ of the sum of the magnitudes of all terms (and as much of the result). Adding
//! the units in f64 here would cost a third of the rate of many rows.
//!
//! This order is part of the format. Instruction sets, streams, threads, tiles and the stored type
//! of the weights change no bit.
//!
//! Weights are stored in tiles ([`pack`]) that all instruction sets read unchanged: sixteen outputs
//! by four inputs in 64 bytes. A tile is one operand of the wide products and four operands of the
//! narrow ones. A single row streams the tiles once from front to back, in several parallel streams
//! ([`Streams`]). A few rows also stream them, panel by panel, and use each operand for as many
//! rows as fit in registers. For many rows ([`many()`]), the operands of a group of tiles are
//! unpacked once into memory that stays in cache, and multiplied in registers. If products are of
//! an unsigned and a signed byte, many rows are made unsigned and bytes of weights stay unchanged:
//! `Σ (q + 128) · w = Σ q · w + 128 · Σ w`. A group of tiles is then summed once for all rows.

#[cfg(target_arch = "x86_64")]
mod amx;
pub(super) mod cuts;
mod geometry;
#[cfg(target_arch = "aarch64")]
mod i8mm;
mod many;
mod numbers;
pub mod pack;
mod quantise;
mod results;
pub mod split;
mod stored;
mod stream;
mod streams;

pub use geometry::Geometry;
pub use pack::{IntegerType, pack_tiles};
pub use quantise::quantise_rows;
pub use streams::Streams;

use std::ops::Range;

use crate::kernels::linear::Scales;
use crate::pool::{Cut, Pool, SharedOutput};
use crate::simd::dot::{DotLevel, VECTOR};
use crate::simd::{LANES, Level};
use cuts::Steps;
use quantise::Rows;
use results::Target;

/// Packed weights of one linear map.
#[derive(Clone, Copy, Debug)]
pub struct Tiles<'a> {
    pub kind: IntegerType,
    /// Integer weight that a stored zero means. A weight is the stored byte or field plus the base.
    pub base: i32,
    /// Tiles of all panels of sixteen outputs (see [`Geometry::panel_bytes`]).
    pub data: &'a [u8],
    /// One scale per output, or numbers per block.
    pub scales: Scales<'a>,
    /// Number of inputs, K.
    pub inputs: usize,
    /// Number of outputs, N.
    pub outputs: usize,
}

impl Tiles<'_> {
    /// Returns how rows of activations are divided, with a scale for every `block` inputs or one
    /// scale for a row. Returns `None` if the blocks of the weights do not fit.
    pub fn rows(&self, block: Option<usize>) -> Option<Geometry> {
        Geometry::of(self.inputs, block, self.scales.block())
    }

    fn panels(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    /// Checks whether every weight is a signed byte: the stored byte itself, or a field plus the
    /// base.
    pub fn are_bytes(&self) -> bool {
        match self.kind {
            IntegerType::I8 => self.base == 0,
            kind => {
                let most = self.base.saturating_add((1 << kind.bits()) - 1);
                i8::try_from(self.base).is_ok() && i8::try_from(most).is_ok()
            }
        }
    }

    /// Checks the lengths of weights and scales.
    ///
    /// # Panics
    /// When there are fewer weights or scales than the dimensions require, or the blocks do not
    /// suit the type.
    fn check(&self, geometry: Geometry) {
        let size = self.scales.block().map(|size| size as u64);
        assert!(self.kind.suits(self.inputs as u64, size), "{:?} in other blocks", self.kind);
        let bytes = self.panels() * geometry.panel_bytes(self.kind);
        assert!(self.data.len() >= bytes, "fewer weights than panels");
        match self.scales {
            Scales::None => panic!("integers without scales of their own"),
            Scales::PerOutput(scales) => assert!(scales.len() >= self.outputs, "fewer scales than outputs"),
            Scales::Blocks { size, minimum, numbers } => {
                let found = numbers.suffice(self.panels(), self.inputs.div_ceil(size), minimum);
                assert!(found, "fewer numbers than blocks");
            }
        }
    }
}

/// Fewest rows for which products of whole tiles and of pairs of rows unpack the weights once for
/// all rows (see [`many()`]).
pub const MANY: usize = 8;
/// Fewest rows for which products of single rows unpack the weights once. They read the weights in
/// place for fewer rows.
const MANY_SINGLE: usize = 17;
/// Panels that are unpacked together.
const GROUP: usize = 4;
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
    totals: usize,
    ready: usize,
    end: usize,
}

impl Layout {
    fn new(geometry: Geometry, rows: usize, threads: usize) -> Option<Layout> {
        const LINE: usize = VECTOR / 4;
        let part = |from: usize, values: usize| values.checked_next_multiple_of(LINE)?.checked_add(from);
        // Tile products read whole groups of rows.
        let readable = if rows >= MANY { rows.checked_add(READ_AHEAD)? } else { rows };
        let units = rows.checked_mul(geometry.units)?;
        let sums = part(0, readable.checked_mul(geometry.length / 4)?)?;
        let scales = part(sums, units)?;
        let totals = part(scales, rows.checked_mul(geometry.scales())?)?;
        let ready = part(totals, units)?;
        let group = if rows >= MANY {
            threads.checked_mul(geometry.length)?.checked_mul(GROUP * LANES / 4)?
        } else {
            0
        };
        Some(Layout { sums, scales, totals, ready, end: part(ready, group)? })
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

/// The body of a job. Its arguments are the operands and the target of a map, a range of the map's
/// units, and the thread.
type MapUnits<'t> = dyn Fn(&Operands<'_>, Target<'_>, Range<usize>, usize) + Sync + 't;

/// Operands shared by all tasks of a product.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    weights: Tiles<'a>,
    geometry: Geometry,
    rows: Rows<'a>,
    bias: Option<&'a [f32]>,
    bounds: Option<[f32; 2]>,
}

/// Writes `out[r][n]` of every map for `rows` rows of `x [rows, inputs]`. The rows are quantised
/// once, with a scale for every `block` inputs if `block` is set. All maps are one job.
///
/// # Panics
/// When there are no maps, a length does not fit the dimensions, weights have no scales, or maps
/// divide the inputs into different units.
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
    let (scales, rest) = rest.split_at_mut(layout.totals - layout.scales);
    let (totals, ready) = rest.split_at_mut(layout.ready - layout.totals);
    let (q, sums, ready) = (bytes_of(q), integers_of(sums), bytes_of(ready));
    let minimums = maps.iter().flatten().any(|map| map.weights.scales.has_minimums());
    let totals: &mut [f32] = if minimums { totals } else { &mut [] };
    // Raised (unsigned) rows are multiplied with the stored bytes of the weights.
    let in_place = |Map { weights, .. }: &Map<'_>| {
        weights.kind == IntegerType::I8 && weights.are_bytes() && weights.scales.block().is_none()
    };
    let suits = rows >= many(dot) && geometry.is_whole() && dot.raises();
    let raised = suits && maps.iter().flatten().all(in_place);
    quantise_rows(level, pool, x, geometry, rows, raised, q, sums, scales, totals);
    let quantised = Rows { q, sums, scales, totals, raised };
    let maps = maps.map(|map| {
        map.map(|Map { weights, bias, bounds, out }| {
            let same = weights.rows(block) == Some(geometry);
            assert!(same, "maps of the same rows cut them into different units");
            weights.check(geometry);
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
    let job = Job { pool, shared, maps, rows };
    match rows < many(dot) {
        true => job.few(dot, streams),
        false => job.many(dot, geometry, ready),
    }
}

/// Products of quantised rows with one or several maps.
struct Job<'j, const N: usize> {
    pool: &'j Pool,
    /// Whether all threads work.
    shared: bool,
    maps: [Option<(Operands<'j>, Target<'j>)>; N],
    rows: usize,
}

impl<const N: usize> Job<'_, N> {
    /// Runs all units. `units_of` returns the number of units of a map with some panels. The units
    /// of one map follow those of the previous one.
    fn run(&self, cut: Cut, units_of: &dyn Fn(usize) -> usize, body: &MapUnits<'_>) {
        let mut ends = [0; N];
        let mut units = 0;
        for (end, map) in ends.iter_mut().zip(&self.maps) {
            units += map.as_ref().map_or(0, |(operands, _)| units_of(operands.weights.panels()));
            *end = units;
        }
        let body = |units: Range<usize>, thread: usize| {
            let mut begin = 0;
            for (end, map) in ends.iter().zip(&self.maps) {
                let (first, last) = (units.start.max(begin), units.end.min(*end));
                if let Some((operands, target)) = map
                    && first < last
                {
                    body(operands, *target, first - begin..last - begin, thread);
                }
                begin = *end;
            }
        };
        match self.shared {
            true => self.pool.run_ranges(units, cut, &body),
            false => body(0..units, 0),
        }
    }

    /// Multiplies a few rows by runs of panels, which are read once from front to back.
    fn few(&self, dot: DotLevel, streams: Streams) {
        let rows = self.rows;
        self.run(cuts::PANELS, &|panels| panels, &|operands, target, panels, _| {
            stream_at(dot, *operands, streams, rows, (panels.start, panels.len()), target);
        });
    }

    /// Multiplies many rows by groups of panels, which are unpacked first.
    fn many(&self, dot: DotLevel, geometry: Geometry, ready: &mut [i8]) {
        let steps = Steps::of(self.rows, cuts::step_rows(dot));
        let room = GROUP * LANES * geometry.length;
        let ready = SharedOutput::new(ready);
        let multiply = |operands: &Operands<'_>,
                        target: Target<'_>,
                        (group, rows): (usize, Range<usize>),
                        thread: usize| {
            let panels = cuts::panels_of_group(group, operands.weights.panels());
            let rows = (rows.start, rows.len());
            // SAFETY: each thread has its own part, and thread indices are below the pool's number
            // of threads.
            let ready = unsafe { ready.part(thread * room, room) };
            #[cfg(target_arch = "x86_64")]
            if dot == DotLevel::Amx
                && amx::takes(operands)
                && let Some(amx) = crate::simd::amx::Amx::detect()
            {
                // SAFETY: the layout includes the rows that are read beyond the last one.
                unsafe { amx::multiply(amx, *operands, rows.0, rows.1, panels.0, panels.1, ready, target) };
                return;
            }
            #[cfg(target_arch = "aarch64")]
            if dot == DotLevel::NeonI8mm
                && i8mm::takes(operands)
                && let Some(i8mm) = crate::simd::i8mm::NeonI8mm::detect()
            {
                i8mm::multiply(i8mm, *operands, rows.0, rows.1, panels.0, panels.1, ready, target);
                return;
            }
            multiply_at(dot, *operands, rows, panels, ready, target);
        };
        self.run(steps.cut(), &|panels| steps.units(panels), &|operands, target, units, thread| {
            for piece in steps.pieces(units) {
                multiply(operands, target, piece, thread);
            }
        });
    }
}

/// Multiplies a few rows by `panels`, a first panel and a number of panels, whose weights are read
/// in place.
fn stream_at(
    dot: DotLevel,
    operands: Operands<'_>,
    streams: Streams,
    rows: usize,
    panels: (usize, usize),
    target: Target<'_>,
) {
    match operands.weights.kind {
        IntegerType::I8 => i8s::stream_at(dot, operands, streams, rows, panels, target),
        IntegerType::I6 => i6s::stream_at(dot, operands, streams, rows, panels, target),
        IntegerType::I5 => i5s::stream_at(dot, operands, streams, rows, panels, target),
        IntegerType::I4 => i4s::stream_at(dot, operands, streams, rows, panels, target),
        IntegerType::I2 => i2s::stream_at(dot, operands, streams, rows, panels, target),
    }
}

/// Multiplies `rows`, a first row and a number of rows, by a group of panels, whose weights are
/// unpacked first.
fn multiply_at(
    dot: DotLevel,
    operands: Operands<'_>,
    rows: (usize, usize),
    panels: (usize, usize),
    ready: &mut [i8],
    target: Target<'_>,
) {
    macro_rules! with {
        ($stored:ident, $form:ident) => {{
            $stored::make_ready_at(dot, operands, panels, ready);
            $form::multiply_at(dot, operands, rows, panels, ready, target);
        }};
    }
    match operands.weights.kind {
        IntegerType::I8 if operands.rows.raised => raised::multiply_at(dot, operands, rows, panels, target),
        IntegerType::I8 => with!(i8s, signed),
        IntegerType::I6 => with!(i6s, six_bits),
        IntegerType::I5 => with!(i5s, five_bits),
        IntegerType::I4 => with!(i4s, five_bits),
        IntegerType::I2 => with!(i2s, five_bits),
    }
}

/// Defines `$name::stream_at(dot, …)`, which multiplies a few rows by weights of one stored type,
/// and `$name::make_ready_at(dot, …)`, which unpacks the weights of a group of panels.
///
/// Each type has its own functions. Without optimisation, the stack frame of a function includes
/// the tiles of all types that it can run.
macro_rules! of_types {
    ($($name:ident: $stored:ident;)*) => { $(
        mod $name {
            use super::stored::$stored as Element;
            use super::{Operands, Streams, Target, many, stream};
            use crate::simd::dot::Dot;

            #[inline(always)]
            fn stream<D: Dot>(
                d: D,
                operands: Operands<'_>,
                streams: Streams,
                rows: usize,
                (panel, panels): (usize, usize),
                target: Target<'_>,
            ) {
                stream::stream::<D, Element>(d, operands, streams, rows, panel, panels, target);
            }

            #[inline(always)]
            fn make_ready<D: Dot>(
                d: D,
                operands: Operands<'_>,
                (panel, panels): (usize, usize),
                ready: &mut [i8],
            ) {
                many::make_ready::<D, Element>(d, operands, panel, panels, ready);
            }

            crate::simd::dot::dispatch_dot! {
                pub(super) fn stream_at => stream(
                    operands: Operands<'_>, streams: Streams, rows: usize, panels: (usize, usize),
                    target: Target<'_>,
                )
            }

            crate::simd::dot::dispatch_dot! {
                pub(super) fn make_ready_at => make_ready(
                    operands: Operands<'_>, panels: (usize, usize), ready: &mut [i8],
                )
            }
        }
    )* };
}
of_types! {
    i8s: I8;
    i6s: I6;
    i5s: I5;
    i4s: I4;
    i2s: I2;
}

/// Defines `$name::multiply_at(dot, …)`, which multiplies many rows by unpacked operands. All types
/// whose operands have the same [sums](stored::Form::SUMS) use the same function.
macro_rules! of_operands {
    ($($name:ident: $sums:literal;)*) => { $(
        mod $name {
            use super::stored::Ready;
            use super::{Operands, Target, many};
            use crate::simd::dot::Dot;

            #[inline(always)]
            fn multiply<D: Dot>(
                d: D,
                operands: Operands<'_>,
                (row, rows): (usize, usize),
                (panel, panels): (usize, usize),
                ready: &[i8],
                target: Target<'_>,
            ) {
                many::multiply::<D, Ready<$sums>>(d, operands, row, rows, panel, panels, ready, target);
            }

            crate::simd::dot::dispatch_dot! {
                pub(super) fn multiply_at => multiply(
                    operands: Operands<'_>, rows: (usize, usize), panels: (usize, usize), ready: &[i8],
                    target: Target<'_>,
                )
            }
        }
    )* };
}
of_operands! {
    signed: 1;
    six_bits: 2;
    five_bits: 4;
}

/// Signed bytes by rows that are raised.
mod raised {
    use super::stored::Raised;
    use super::{Operands, Target, many};
    use crate::simd::dot::Dot;

    #[inline(always)]
    fn multiply<D: Dot>(
        d: D,
        operands: Operands<'_>,
        (row, rows): (usize, usize),
        (panel, panels): (usize, usize),
        target: Target<'_>,
    ) {
        if const { D::RAISES } {
            many::multiply::<D, Raised>(d, operands, row, rows, panel, panels, &[], target);
        } else {
            unreachable!("rows are raised where `DotLevel::raises` says so");
        }
    }

    crate::simd::dot::dispatch_dot! {
        pub(super) fn multiply_at => multiply(
            operands: Operands<'_>, rows: (usize, usize), panels: (usize, usize), target: Target<'_>,
        )
    }
}

#[cfg(target_arch = "x86_64")]
const _: () = assert!(READ_AHEAD + 1 == amx::ROWS);

#[cfg(test)]
mod tests;
