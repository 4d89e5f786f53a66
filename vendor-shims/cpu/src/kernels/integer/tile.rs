//! The register tile: some rows by some panels, with sums in registers over a block of inputs.

use super::results::{Columns, finish_paired, finish_scaled};
use super::streams::Streams;
use super::{GROUP, Operands};
use crate::kernels::linear::Scales;
use crate::kernels::math::clamp;
use crate::pool::SharedOutput;
use crate::simd::dot::{Dot, VECTOR};
use crate::simd::{LANES, Registers, Simd};

/// Quantised rows (see [`super::quantise_rows`]).
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// `[rows, length]`
    pub q: &'a [i8],
    /// `[rows, blocks]`
    pub sums: &'a [i32],
    /// `[rows]`, or `[rows, blocks]` if the geometry is scaled.
    pub scales: &'a [f32],
    /// Whether `q` is stored plus 128, as unsigned bytes.
    pub raised: bool,
}

/// Destination of the results.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// `[rows, stride]`
    pub out: SharedOutput<'a, f32>,
    /// Number of outputs of a row.
    pub stride: usize,
}

/// Storage format of weights in a vector.
pub trait Stored {
    /// Number of operands unpacked from one vector.
    const PARTS: usize;
    /// Whether the operands are within 0 and 15, because of the offset of their type.
    const SMALL: bool;
    /// Whether the rows are raised instead of the operands.
    const RAISED: bool = false;
    /// Whether many rows are multiplied.
    const MANY: bool = false;
    /// Returns operand `part`.
    fn part<D: Dot>(d: D, bytes: D::Bytes, part: usize) -> D::Bytes;
}

/// Signed bytes.
pub struct I8;
/// Two values in a byte.
pub struct I4;
/// Four values in a byte.
pub struct I2;
/// Signed bytes for raised rows.
pub struct Raised;
/// Operands in the format of [`make_ready`].
pub struct Ready<const SMALL: bool>;

impl Stored for I8 {
    const PARTS: usize = 1;
    const SMALL: bool = false;
    #[inline(always)]
    fn part<D: Dot>(d: D, bytes: D::Bytes, _: usize) -> D::Bytes {
        d.signed(bytes)
    }
}
impl Stored for I4 {
    const PARTS: usize = 2;
    const SMALL: bool = true;
    #[inline(always)]
    fn part<D: Dot>(d: D, bytes: D::Bytes, part: usize) -> D::Bytes {
        d.field(bytes, 4, part)
    }
}
impl Stored for I2 {
    const PARTS: usize = 4;
    const SMALL: bool = true;
    #[inline(always)]
    fn part<D: Dot>(d: D, bytes: D::Bytes, part: usize) -> D::Bytes {
        d.field(bytes, 2, part)
    }
}
impl Stored for Raised {
    const PARTS: usize = 1;
    const SMALL: bool = false;
    const RAISED: bool = true;
    const MANY: bool = true;
    #[inline(always)]
    fn part<D: Dot>(_: D, bytes: D::Bytes, _: usize) -> D::Bytes {
        bytes
    }
}
impl<const S: bool> Stored for Ready<S> {
    const PARTS: usize = 1;
    const SMALL: bool = S;
    const MANY: bool = true;
    #[inline(always)]
    fn part<D: Dot>(_: D, bytes: D::Bytes, _: usize) -> D::Bytes {
        bytes
    }
}

/// Returns the prefetch distance in bytes for each of `streams` streams, because the hardware
/// prefetches within a page only. Measured on an AMD EPYC (Zen 5) with one thread: one stream of
/// four-bit weights is a tenth faster at 4 to 16 KiB than at 2 KiB, and one stream of bytes is
/// equally fast. Eight streams lose a tenth at larger distances. The cache level of the prefetch
/// (T0, T1, NTA) makes no difference.
pub(super) const fn ahead(streams: usize) -> usize {
    if streams == 1 { 8192 } else { 2048 }
}
/// Most panels that are read in parallel for a single row (see [`Streams`]).
pub(super) const STREAMS: usize = 8;
/// Most panels in parallel if the sums of eight panels do not fit into registers.
pub(super) const FEWER_STREAMS: usize = 4;

/// Mode: a row is one block, whose exact sum is the result.
pub(super) const WHOLE: u8 = 0;
/// Mode: blocks of the weights have scales.
pub(super) const SCALED: u8 = 1;
/// Mode: a row has no blocks, or several blocks only because its sum would overflow.
const LONG: u8 = 2;
/// Mode: blocks of rows have scales, and weights have scales per block or per output.
pub(super) const PAIRED: u8 = 3;

pub(super) fn mode(operands: &Operands<'_>) -> u8 {
    match operands.weights.scales {
        _ if operands.geometry.scaled => PAIRED,
        Scales::PerBlock { .. } => SCALED,
        _ if operands.geometry.blocks == 1 => WHOLE,
        _ => LONG,
    }
}

/// Inputs of a tile of many rows in addition to its operands.
#[derive(Clone, Copy)]
struct Begin<'a> {
    /// Factors of the panels if each row is one block.
    columns: &'a [Columns],
    /// −128 · Σ w of every panel, for raised rows.
    sums: &'a [[i32; LANES]],
    /// Address from which a cache line is prefetched with every [`STEP`](super::pack::STEP) inputs.
    ahead: *const u8,
}

/// Scales of a panel's weights by block of a row, for products whose rows have scales per block.
#[derive(Clone, Copy)]
pub(super) struct BlockScales {
    /// Scales of the next block: sixteen binary16.
    pub(super) next: *const u16,
    /// Distance from one panel to the next, in binary16 elements.
    pub(super) panel: usize,
    /// Blocks of a row in each block of the weights.
    blocks: usize,
    /// Blocks of a row that are left in the current block of the weights.
    left: usize,
}

impl BlockScales {
    /// Creates the scales of panels from `panel` on. Weights with a scale per output get scales of
    /// one, which do not change the sums.
    #[inline(always)]
    pub(super) fn of(operands: &Operands<'_>, panel: usize) -> BlockScales {
        let Scales::PerBlock { size, values } = operands.weights.scales else { return BlockScales::ones() };
        let each = operands.geometry.inputs.div_ceil(size);
        let next = values[panel * each..].as_ptr().cast::<u16>();
        let blocks = size.div_ceil(operands.geometry.block);
        BlockScales { next, panel: each * LANES, blocks, left: blocks }
    }

    #[inline(always)]
    fn ones() -> BlockScales {
        static ONES: [u16; LANES] = [0x3c00; LANES];
        BlockScales { next: ONES.as_ptr(), panel: 0, blocks: usize::MAX, left: usize::MAX }
    }

    /// Moves to the next block of a row.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.next = self.next.wrapping_add(LANES);
            self.left = self.blocks;
        }
    }
}

/// Adds the products of an operand and bytes `4 · index` to `4 · index + 3` of a row's step.
///
/// # Safety
/// See [`Dot::quad_at`].
#[inline(always)]
pub(super) unsafe fn product<D: Dot, W: Stored>(
    d: D,
    sums: D::Sums,
    w: D::Bytes,
    step: D::Step,
    index: usize,
) -> D::Sums {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (W::SMALL, W::RAISED) {
            (true, _) => d.dot_small_at(sums, w, step, index),
            (_, true) => d.dot_raised(sums, w, d.quad_at(step, index)),
            _ => d.dot_at(sums, w, step, index),
        }
    }
}

/// Multiplies one row with vector `VECTOR_AT` of a step of each panel. Each panel's weights are
/// used as soon as they are read, because the weights of all panels would not fit into the
/// registers of every processor.
///
/// # Safety
/// The streams must be readable for the vector, and the row for the step.
#[inline(always)]
unsafe fn one_row<D: Dot, W: Stored, const PANELS: usize, const CHAINS: usize, const VECTOR_AT: usize>(
    d: D,
    sums: &mut [[D::Sums; CHAINS]; PANELS],
    streams: &[*const u8; PANELS],
    ahead: usize,
    step: D::Step,
) {
    for (chains, stream) in sums.iter_mut().zip(streams) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let at = stream.add(VECTOR_AT * VECTOR);
            d.prefetch(at.wrapping_add(ahead));
            let bytes = d.load(at);
            for part in 0..W::PARTS {
                let index = VECTOR_AT * W::PARTS + part;
                let sum = &mut chains[index % CHAINS];
                *sum = product::<D, W>(d, *sum, W::part(d, bytes, part), step, index);
            }
        }
    }
}

/// Multiplies many rows, which share the loaded weights, with vector `VECTOR_AT` of a step of each
/// panel.
///
/// # Safety
/// See [`one_row`].
#[inline(always)]
unsafe fn many_rows<
    D: Dot,
    W: Stored,
    const ROWS: usize,
    const PANELS: usize,
    const CHAINS: usize,
    const VECTOR_AT: usize,
>(
    d: D,
    sums: &mut [[[D::Sums; CHAINS]; PANELS]; ROWS],
    streams: &[*const u8; PANELS],
    ahead: usize,
    steps: &[D::Step; ROWS],
) {
    // SAFETY: guaranteed by the caller.
    let bytes: [D::Bytes; PANELS] = std::array::from_fn(
        #[inline(always)]
        |p| unsafe {
            let at = streams[p].add(VECTOR_AT * VECTOR);
            if !W::MANY {
                d.prefetch(at.wrapping_add(ahead));
            }
            d.load(at)
        },
    );
    for part in 0..W::PARTS {
        let index = VECTOR_AT * W::PARTS + part;
        let operands: [D::Bytes; PANELS] = std::array::from_fn(
            #[inline(always)]
            |p| W::part(d, bytes[p], part),
        );
        for (row, step) in sums.iter_mut().zip(steps) {
            for (chains, w) in row.iter_mut().zip(operands) {
                let sum = &mut chains[index % CHAINS];
                // SAFETY: guaranteed by the caller.
                *sum = unsafe { product::<D, W>(d, *sum, w, *step, index) };
            }
        }
    }
}

/// Computes `ROWS × PANELS` results. `CHAINS` sums of each result hide the latency of the products.
///
/// # Safety
/// Rows `row..row + ROWS` and panels `panel..panel + PANELS` must exist. `w` must be readable for
/// the weights of these panels, which are `panel_bytes` apart. No other task may write their
/// results.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a tile with its operands")]
unsafe fn tile<
    D: Dot,
    W: Stored,
    const MODE: u8,
    const ROWS: usize,
    const PANELS: usize,
    const CHAINS: usize,
>(
    d: D,
    operands: Operands<'_>,
    row: usize,
    panel: usize,
    w: *const u8,
    panel_bytes: usize,
    begin: Begin<'_>,
    target: Target<'_>,
) {
    let Operands { weights, geometry, rows, .. } = operands;
    let f = d.values();
    let offset = if W::SMALL { weights.kind.offset() } else { D::OFFSET };
    let (length, blocks) = (geometry.length, geometry.blocks);
    // SAFETY: the rows exist.
    let (q, block_sums) =
        unsafe { (rows.q.as_ptr().add(row * length), rows.sums.as_ptr().add(row * blocks)) };
    let mut values = [[f.splat(0.0); PANELS]; ROWS];
    let mut lanes = [[[0i32; LANES]; PANELS]; ROWS];
    let mut totals = [[[0.0f64; LANES]; PANELS]; ROWS];
    // Each panel has a pointer, and all share the distances, because there are not enough registers
    // for more addresses.
    //
    // SAFETY: the panels exist.
    let mut streams: [*const u8; PANELS] = std::array::from_fn(|p| unsafe { w.add(p * panel_bytes) });
    let mut scales: *const u16 = match weights.scales {
        Scales::PerBlock { values, .. } if MODE == SCALED => {
            values[panel * blocks..][..PANELS * blocks].as_ptr().cast()
        }
        _ => std::ptr::null(),
    };
    let mut paired = match MODE {
        PAIRED => BlockScales::of(&operands, panel),
        _ => BlockScales::ones(),
    };
    // SAFETY: the rows exist and have as many blocks.
    let row_scales = unsafe { rows.scales.as_ptr().add(row * if MODE == PAIRED { blocks } else { 1 }) };
    let near = const { ahead(PANELS) };
    let (mut place, mut ahead) = (0, near);
    for block in 0..if MODE == WHOLE { 1 } else { blocks } {
        let end = if MODE == WHOLE || block + 1 == blocks { length } else { place + geometry.stride };
        let mut sums = [[[d.splat(0); CHAINS]; PANELS]; ROWS];
        for (r, row) in sums.iter_mut().enumerate() {
            // SAFETY: the rows exist and have as many blocks.
            let sum = unsafe { *block_sums.add(r.wrapping_mul(blocks).wrapping_add(block)) };
            let start = offset.wrapping_mul(sum).wrapping_neg();
            for (p, chains) in row.iter_mut().enumerate() {
                chains[0] = match W::RAISED {
                    true => d.sums(&begin.sums[p]),
                    false => d.splat(start),
                };
            }
        }
        while place < end {
            // Prefetching past the end of a panel would fetch the neighbouring panel, which another
            // stream reads. This stream continues after the last of the panels instead.
            if ROWS == 1 && place * LANES / W::PARTS + near >= panel_bytes {
                ahead = near + (PANELS - 1) * panel_bytes;
            }
            if W::MANY {
                d.prefetch(begin.ahead.wrapping_add(place / super::pack::STEP * VECTOR));
            }
            // SAFETY: within the rows, whose length is a multiple of a step.
            let steps: [D::Step; ROWS] = std::array::from_fn(
                #[inline(always)]
                |r| unsafe { d.step(q.add(r.wrapping_mul(length).wrapping_add(place))) },
            );
            // Unrolled by hand: a loop that the compiler does not unroll would index its step with
            // a variable.
            macro_rules! vector {
                ($vector:literal) => {
                    if $vector < 4 / W::PARTS {
                        // SAFETY: a step of sixteen inputs is 4 / PARTS vectors, of which the panel
                        // has as many as the row has steps.
                        unsafe {
                            if ROWS == 1 {
                                one_row::<D, W, PANELS, CHAINS, $vector>(
                                    d,
                                    &mut sums[0],
                                    &streams,
                                    ahead,
                                    steps[0],
                                );
                            } else {
                                many_rows::<D, W, ROWS, PANELS, CHAINS, $vector>(
                                    d, &mut sums, &streams, ahead, &steps,
                                );
                            }
                        }
                    }
                };
            }
            vector!(0);
            vector!(1);
            vector!(2);
            vector!(3);
            place += super::pack::STEP;
            for stream in &mut streams {
                // SAFETY: at most to the end of the panel.
                *stream = unsafe { stream.add(4 / W::PARTS * VECTOR) };
            }
        }
        for p in 0..PANELS {
            let mut scale = f.splat(0.0);
            if MODE == SCALED {
                // SAFETY: sixteen scales for each block of the panel.
                unsafe {
                    let at = scales.add((p * LANES).wrapping_mul(blocks));
                    if !W::MANY {
                        d.prefetch(at.wrapping_add((PANELS * LANES).wrapping_mul(blocks)).cast());
                    }
                    scale = f.load_f16(at);
                }
            }
            if MODE == PAIRED {
                let at = paired.next.wrapping_add(p.wrapping_mul(paired.panel));
                if !W::MANY {
                    d.prefetch(at.wrapping_add(PANELS.wrapping_mul(paired.panel)).cast());
                }
                // SAFETY: sixteen scales for each block of the panel, or for all.
                scale = unsafe { f.load_f16(at) };
            }
            for r in 0..ROWS {
                let mut sum = sums[r][p][0];
                for part in &sums[r][p][1..] {
                    sum = d.add(sum, *part);
                }
                if MODE == SCALED {
                    values[r][p] = f.fma(d.widen(sum), scale, values[r][p]);
                } else if MODE == PAIRED {
                    // SAFETY: a scale for each block of the rows.
                    let of_row = unsafe { *row_scales.add(r.wrapping_mul(blocks).wrapping_add(block)) };
                    values[r][p] = f.fma(d.widen(sum), f.mul(f.splat(of_row), scale), values[r][p]);
                } else {
                    // Stored immediately, with minimal surrounding code, because only loops that
                    // the compiler unrolls keep sums in registers.
                    lanes[r][p] = d.lanes(sum);
                }
            }
        }
        if MODE == SCALED {
            scales = scales.wrapping_add(LANES);
        }
        if MODE == PAIRED {
            paired.advance();
        }
        if MODE == LONG {
            for (totals, lanes) in totals.as_flattened_mut().iter_mut().zip(lanes.as_flattened()) {
                for (total, lane) in totals.iter_mut().zip(lanes) {
                    *total += f64::from(*lane);
                }
            }
        }
    }
    // Opaque counts stop the compiler from duplicating the end of a tile for every result.
    if MODE == SCALED || MODE == PAIRED {
        // Copied, because values that are indexed with a variable are not kept in registers.
        let mut results = [[f.splat(0.0); PANELS]; ROWS];
        for r in 0..ROWS {
            for p in 0..PANELS {
                results[r][p] = values[r][p];
            }
        }
        for result in 0..std::hint::black_box(ROWS * PANELS) {
            let (r, p) = (result / PANELS, result % PANELS);
            match MODE {
                SCALED => finish_scaled(f, results[r][p], operands, row + r, panel + p, target),
                _ => finish_paired(f, results[r][p], operands, row + r, panel + p, target),
            }
        }
        return;
    }
    if MODE == LONG {
        for result in 0..std::hint::black_box(ROWS * PANELS) {
            let (r, p) = (result / PANELS, result % PANELS);
            let columns = Columns::of(operands, panel + p);
            columns.write_lanes(f, totals[r][p], operands, row + r, target);
        }
        return;
    }
    if !W::MANY {
        for (p, panel) in (panel..panel + PANELS).enumerate() {
            let columns = Columns::of(operands, panel);
            for (r, lanes) in lanes.iter().enumerate().take(std::hint::black_box(ROWS)) {
                columns.write(d, d.sums(&lanes[p]), operands, row + r, target);
            }
        }
        return;
    }
    let columns = &begin.columns[..PANELS];
    let scales = &rows.scales[row..row + ROWS];
    let [low, high] = operands.bounds.unwrap_or([f32::NEG_INFINITY, f32::INFINITY]);
    let count: usize = columns.iter().map(|columns| columns.count).sum();
    let first =
        target.out.address(row * target.stride + columns[0].first, (ROWS - 1) * target.stride + count);
    for r in 0..std::hint::black_box(ROWS).min(ROWS) {
        let scale = f64::from(scales[r]);
        for (p, columns) in columns.iter().enumerate() {
            let value = d.exact(d.sums(&lanes[r][p]), scale, &columns.scales, &columns.bias);
            let value = clamp(f, value, low, high);
            // SAFETY: within the part above, which only the caller's task writes. Panels are
            // adjacent, and all but the last have sixteen columns.
            unsafe {
                let out = first.add(r * target.stride + p * LANES);
                match columns.count {
                    LANES => f.store(out, value),
                    count => f.store_partial(out, count, value),
                }
            }
        }
    }
}

/// Multiplies a few rows by panels `panel..panel + panels`, whose weights are read in place.
#[inline(always)]
pub fn stream<D: Dot, W: Stored>(
    d: D,
    operands: Operands<'_>,
    streams: Streams,
    rows: usize,
    panel: usize,
    panels: usize,
    target: Target<'_>,
) {
    let bytes = operands.geometry.panel_bytes(operands.weights.kind);
    let weights = operands.weights.data[panel * bytes..][..panels * bytes].as_ptr();
    let mode = mode(&operands);
    let mut index = 0;
    while index < panels {
        macro_rules! cover {
            ($mode:ident, $row:expr, $rows:literal, $panels:literal, $chains:literal) => {
                // SAFETY: the panels are within the weights by the slice above, `row + $rows` ≤
                // `rows`, and a task has its own panels.
                unsafe {
                    let w = weights.add(index * bytes);
                    tile::<D, W, $mode, $rows, $panels, $chains>(
                        d,
                        operands,
                        $row,
                        panel + index,
                        w,
                        bytes,
                        Begin { columns: &[], sums: &[], ahead: std::ptr::null() },
                        target,
                    )
                }
            };
        }
        if const { matches!(<D::F as Simd>::REGISTERS, Registers::Many) }
            && rows == 1
            && streams == Streams::Eight
            && panels - index >= STREAMS
        {
            match mode {
                WHOLE => cover!(WHOLE, 0, 1, 8, 1),
                SCALED => cover!(SCALED, 0, 1, 8, 1),
                PAIRED => cover!(PAIRED, 0, 1, 8, 1),
                _ => cover!(LONG, 0, 1, 8, 1),
            }
            index += STREAMS;
            continue;
        }
        let several = const { !matches!(<D::F as Simd>::REGISTERS, Registers::None) };
        if several && rows == 1 && streams != Streams::One && panels - index >= FEWER_STREAMS {
            match mode {
                WHOLE => cover!(WHOLE, 0, 1, 4, 1),
                SCALED if const { matches!(<D::F as Simd>::REGISTERS, Registers::Many) } => {
                    cover!(SCALED, 0, 1, 4, 1)
                }
                PAIRED if const { matches!(<D::F as Simd>::REGISTERS, Registers::Many) } => {
                    cover!(PAIRED, 0, 1, 4, 1)
                }
                // Sums and values of four panels would use all registers.
                SCALED => {
                    cover!(SCALED, 0, 1, 2, 1);
                    index += 2;
                    continue;
                }
                PAIRED => {
                    cover!(PAIRED, 0, 1, 2, 1);
                    index += 2;
                    continue;
                }
                _ => cover!(LONG, 0, 1, 4, 1),
            }
            index += FEWER_STREAMS;
            continue;
        }
        let mut row = 0;
        while row < rows {
            // Weights are in cache from the second tile of rows on. Sums of blocks with scales use
            // two registers each.
            macro_rules! of_mode {
                ($rows:literal, $whole:literal, $scaled:literal) => {{
                    match mode {
                        WHOLE => cover!(WHOLE, row, $rows, 1, $whole),
                        PAIRED => cover!(PAIRED, row, $rows, 1, $scaled),
                        _ => cover!(SCALED, row, $rows, 1, $scaled),
                    }
                    row += $rows;
                }};
            }
            // Conditions that are constant per level remove the unused tile shapes.
            let left = rows - row;
            if mode == LONG {
                cover!(LONG, row, 1, 1, 1);
                row += 1;
            } else if const { matches!(<D::F as Simd>::REGISTERS, Registers::None) } {
                of_mode!(1, 1, 1);
            } else if const { matches!(<D::F as Simd>::REGISTERS, Registers::Many) } {
                match left {
                    8.. => of_mode!(8, 1, 1),
                    6.. => of_mode!(6, 1, 1),
                    4.. => of_mode!(4, 2, 2),
                    3 => of_mode!(3, 2, 2),
                    2 => of_mode!(2, 4, 2),
                    _ => of_mode!(1, 4, 2),
                }
            } else {
                match (mode, left) {
                    (WHOLE, 4..) => of_mode!(4, 1, 1),
                    (_, 2..) => of_mode!(2, 1, 1),
                    _ => of_mode!(1, 4, 2),
                }
            }
        }
        index += 1;
    }
}

/// Unpacks and stores the operands of panels `panel..panel + panels`, panel after panel.
#[inline(always)]
pub fn make_ready<D: Dot, W: Stored>(
    d: D,
    operands: Operands<'_>,
    panel: usize,
    panels: usize,
    ready: &mut [i8],
) {
    let bytes = operands.geometry.panel_bytes(operands.weights.kind);
    let weights = &operands.weights.data[panel * bytes..][..panels * bytes];
    assert!(panels <= GROUP && ready.len() >= weights.len() * W::PARTS, "operands for {panels} panels");
    for (source, target) in
        weights.as_chunks::<VECTOR>().0.iter().zip(ready.chunks_exact_mut(VECTOR * W::PARTS))
    {
        // SAFETY: a vector gives `PARTS` vectors.
        unsafe {
            let bytes = d.load(source.as_ptr());
            for part in 0..W::PARTS {
                d.store(target.as_mut_ptr().cast::<u8>().add(part * VECTOR), W::part(d, bytes, part));
            }
        }
    }
}

/// Computes −128 · Σ w of panels `panel..panel + panels`.
#[inline(always)]
fn begin<D: Dot>(d: D, operands: Operands<'_>, panel: usize, panels: usize) -> [[i32; LANES]; GROUP] {
    let bytes = operands.geometry.panel_bytes(operands.weights.kind);
    let weights = &operands.weights.data[panel * bytes..][..panels * bytes];
    // SAFETY: the array has four bytes.
    let each = unsafe { d.quad([i8::MIN; 4].as_ptr()) };
    let mut sums = [[0; LANES]; GROUP];
    for (sums, weights) in sums.iter_mut().zip(weights.chunks_exact(bytes.max(1))) {
        // A step has four vectors.
        let mut chains = [d.splat(0); 4];
        for step in weights.as_chunks::<{ 4 * VECTOR }>().0 {
            for (chain, vector) in chains.iter_mut().zip(step.as_chunks::<VECTOR>().0) {
                // SAFETY: `vector` has `VECTOR` bytes.
                *chain = d.dot_raised(*chain, unsafe { d.load(vector.as_ptr()) }, each);
            }
        }
        let [a, b, c, e] = chains;
        *sums = d.lanes(d.add(d.add(a, b), d.add(c, e))).map(i32::wrapping_neg);
    }
    sums
}

/// Multiplies rows `row..row + rows` by panels `panel..panel + panels`. The operands are in
/// `ready`. For raised rows, the stored weights are used in place.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "operands and the block of work")]
pub fn multiply<D: Dot, W: Stored>(
    d: D,
    operands: Operands<'_>,
    row: usize,
    rows: usize,
    panel: usize,
    panels: usize,
    ready: &[i8],
    target: Target<'_>,
) {
    let bytes = operands.geometry.length * LANES;
    let stored = operands.geometry.panel_bytes(operands.weights.kind);
    let mode = mode(&operands);
    let (ready, sums) = if W::RAISED {
        let weights = &operands.weights.data[panel * stored..][..panels * bytes];
        (weights.as_ptr(), begin(d, operands, panel, panels))
    } else {
        (ready[..panels * bytes].as_ptr().cast::<u8>(), [[0; LANES]; GROUP])
    };
    let columns = match mode {
        WHOLE => std::array::from_fn(|p| Columns::of(operands, panel + p.min(panels - 1))),
        _ => [const { Columns::NONE }; GROUP],
    };
    let end = row + rows;
    let mut first = row;
    // The next group is usually this thread's next task. It is prefetched during the
    // multiplication, one cache line with every step of inputs. A higher rate would delay the
    // multiplication.
    let next = operands.weights.data.as_ptr().wrapping_add((panel + panels) * stored);
    let mut fetched = 0;
    while first < end {
        let left = end - first;
        macro_rules! cover {
            ($mode:ident, $rows:literal, $panels:literal) => {{
                let mut index = 0;
                while index < panels {
                    // After the last line of the next group, the prefetch address is a line that is
                    // already in cache.
                    let ahead = if fetched < panels * stored { next.wrapping_add(fetched) } else { ready };
                    fetched += operands.geometry.length / super::pack::STEP * VECTOR;
                    let begin = Begin { columns: &columns[index..], sums: &sums[index..], ahead };
                    // SAFETY: the callers guarantee that panels and rows exist, and a task has its
                    // own rows of its own panels.
                    unsafe {
                        let w = ready.add(index * bytes);
                        if panels - index >= $panels {
                            tile::<D, W, $mode, $rows, $panels, 1>(
                                d,
                                operands,
                                first,
                                panel + index,
                                w,
                                bytes,
                                begin,
                                target,
                            );
                            index += $panels;
                        } else {
                            tile::<D, W, $mode, $rows, 1, 1>(
                                d,
                                operands,
                                first,
                                panel + index,
                                w,
                                bytes,
                                begin,
                                target,
                            );
                            index += 1;
                        }
                    }
                }
                first += $rows;
            }};
        }
        // Sums fill the register file without spilling. Sums of scaled blocks use two registers
        // each. Shorter tiles, if any, come last.
        if const { matches!(<D::F as Simd>::REGISTERS, Registers::Many) } {
            match (mode, left) {
                (WHOLE, 4 | 5 | 8) => cover!(WHOLE, 4, 4),
                (WHOLE, 6..) => cover!(WHOLE, 6, 4),
                (WHOLE, _) => cover!(WHOLE, 1, 4),
                (SCALED, 6..) => cover!(SCALED, 6, 2),
                (SCALED, _) => cover!(SCALED, 1, 2),
                (PAIRED, 6..) => cover!(PAIRED, 6, 2),
                (PAIRED, _) => cover!(PAIRED, 1, 2),
                _ => cover!(LONG, 1, 1),
            }
        } else if const { matches!(<D::F as Simd>::REGISTERS, Registers::Few) } {
            match (mode, left) {
                (WHOLE, 4..) => cover!(WHOLE, 4, 1),
                (WHOLE, _) => cover!(WHOLE, 1, 1),
                (SCALED, 2..) => cover!(SCALED, 2, 1),
                (SCALED, _) => cover!(SCALED, 1, 1),
                (PAIRED, 2..) => cover!(PAIRED, 2, 1),
                (PAIRED, _) => cover!(PAIRED, 1, 1),
                _ => cover!(LONG, 1, 1),
            }
        } else {
            match mode {
                WHOLE => cover!(WHOLE, 1, 1),
                SCALED => cover!(SCALED, 1, 1),
                PAIRED => cover!(PAIRED, 1, 1),
                _ => cover!(LONG, 1, 1),
            }
        }
    }
}
