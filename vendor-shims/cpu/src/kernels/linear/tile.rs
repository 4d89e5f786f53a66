//! The register tile: some rows by some panels, with accumulators in registers over k.

use crate::simd::{LANES, Registers, Simd};

/// One step of k of a panel: sixteen stored weights that widen to f32 exactly.
pub trait Element: Copy + Send + Sync {
    /// Whether widening costs instructions.
    const NARROW: bool;
    /// Whether scales change along k (see [`Blocks`]).
    const SCALED: bool = false;
    /// Whether scales have zero points and minimums, and may be binary32.
    const AFFINE: bool = false;
    /// Loads the sixteen weights and widens them, without their scales.
    ///
    /// # Safety
    /// `source` must be readable.
    unsafe fn load<S: Simd>(s: S, source: *const Self) -> S::V;
}

/// Unconverted floats.
pub type F32 = [f32; LANES];

impl Element for F32 {
    const NARROW: bool = false;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, source: *const Self) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { s.load(source.cast()) }
    }
}

macro_rules! narrow_elements {
    ($($(#[$meta:meta])* $name:ident([$stored:ty; $count:literal]) => $load:ident $(, scaled $scaled:literal)? $(, affine $affine:literal)?;)*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub struct $name([$stored; $count]);

        impl Element for $name {
            const NARROW: bool = true;
            $(const SCALED: bool = $scaled;)?
            $(const AFFINE: bool = $affine;)?
            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, source: *const Self) -> S::V {
                // SAFETY: guaranteed by the caller, and the type is transparent.
                unsafe { s.$load(source.cast()) }
            }
        }
    )* };
}
narrow_elements! {
    /// bfloat16 bits.
    Bf16([u16; 16]) => load_bf16;
    /// binary16 bits.
    F16([u16; 16]) => load_f16;
    /// Signed bytes.
    I8([i8; 16]) => load_i8;
    /// Signed values of four bits, packed.
    I4([u8; 8]) => load_i4;
    /// Signed values of two bits, packed.
    I2([u8; 4]) => load_i2;
    /// Like [`I4`], with a scale per block of k.
    BlockI4([u8; 8]) => load_i4, scaled true;
    /// Like [`I8`], with a scale per block of k.
    BlockI8([i8; 16]) => load_i8, scaled true;
    /// Like [`I4`], with an affine map per block of k.
    AffineI4([u8; 8]) => load_i4, scaled true, affine true;
    /// Like [`I8`], with an affine map per block of k.
    AffineI8([i8; 16]) => load_i8, scaled true, affine true;
}

/// Scales that change along k, relative to the first step of a tile.
#[derive(Clone, Copy)]
pub struct Blocks {
    /// Sixteen binary16 scales per block of the first panel, each followed by sixteen minimums if
    /// `minimum` is true.
    pub half: *const [u16; LANES],
    /// Like `half`, but binary32. Used instead of `half` if `is_single` is true.
    pub single: *const [f32; LANES],
    /// Whether the numbers of affine blocks are binary32.
    pub is_single: bool,
    /// Whether affine blocks have minimums.
    pub minimum: bool,
    /// Zero point of affine blocks.
    pub zero: f32,
    /// Number of blocks of a panel.
    pub stride: usize,
    /// Number of steps of a block.
    pub size: usize,
    /// Number of steps before the first step of the tile.
    pub first: usize,
}

impl Blocks {
    /// Value for weights without such scales.
    pub const NONE: Blocks = Blocks {
        half: std::ptr::null(),
        single: std::ptr::null(),
        is_single: false,
        minimum: false,
        zero: 0.0,
        stride: 0,
        size: 1,
        first: 0,
    };

    /// Returns the scales from a later panel on.
    pub fn panel(self, panel: usize) -> Blocks {
        let vectors = panel * self.stride * self.numbers();
        // The pointers are never dereferenced if there are no scales.
        Blocks { half: self.half.wrapping_add(vectors), single: self.single.wrapping_add(vectors), ..self }
    }

    /// Returns the number of vectors of a block.
    fn numbers(self) -> usize {
        1 + usize::from(self.minimum)
    }

    /// Loads scales and minimums of a block of a panel.
    ///
    /// # Safety
    /// There must be scales of the element's kind for that block.
    #[inline(always)]
    pub unsafe fn map<S: Simd, E: Element>(self, s: S, panel: usize, block: usize) -> [S::V; 2] {
        let first = (panel * self.stride + block) * self.numbers();
        // SAFETY: guaranteed by the caller.
        let load = |vector: usize| unsafe {
            match E::AFFINE && self.is_single {
                true => s.load(self.single.add(vector).cast()),
                false => s.load_f16(self.half.add(vector).cast()),
            }
        };
        [load(first), if E::AFFINE && self.minimum { load(first + 1) } else { s.splat(0.0) }]
    }

    /// Applies scale and minimum to sixteen widened weights.
    #[inline(always)]
    pub fn value<S: Simd, E: Element>(self, s: S, weights: S::V, [scale, minimum]: [S::V; 2]) -> S::V {
        match E::AFFINE {
            // Rounded twice, as in the definition.
            true => s.sub(s.mul(s.sub(weights, s.splat(self.zero)), scale), minimum),
            false => s.mul(weights, scale),
        }
    }
}

/// Computes `ROWS × PANELS` accumulators over `steps` of k. `columns` of the outputs exist (at most
/// `PANELS · 16`).
///
/// # Safety
/// `x` must be readable for `ROWS` rows of `x_stride`, of which `steps` are used. `weights` must be
/// readable for `PANELS` panels of `panel_stride` steps, and `blocks` for the scales of these steps
/// if the element is scaled. `out` must be readable and writable for `ROWS` rows of `out_stride`,
/// of which `columns` are used.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a tile with its strides")]
unsafe fn tile<S: Simd, E: Element, const ROWS: usize, const PANELS: usize>(
    s: S,
    x: *const f32,
    x_stride: usize,
    weights: *const E,
    panel_stride: usize,
    blocks: Blocks,
    steps: usize,
    out: *mut f32,
    out_stride: usize,
    columns: usize,
    resume: bool,
) {
    let mut sums = [[s.splat(0.0); PANELS]; ROWS];
    let full = columns == PANELS * LANES;
    if resume {
        for (r, row) in sums.iter_mut().enumerate() {
            for (p, sum) in row.iter_mut().enumerate() {
                // SAFETY: only the columns that exist are read.
                *sum = unsafe {
                    let place = out.add(r * out_stride + p * LANES).cast_const();
                    if full { s.load(place) } else { s.load_partial(place, LANES.min(columns - p * LANES)) }
                };
            }
        }
    }
    let mut maps = [[s.splat(1.0), s.splat(0.0)]; PANELS];
    let mut from = 0;
    while from < steps {
        let mut to = steps;
        if E::SCALED {
            let block = (blocks.first + from) / blocks.size;
            to = steps.min((block + 1) * blocks.size - blocks.first);
            for (p, map) in maps.iter_mut().enumerate() {
                // SAFETY: the caller guarantees the scales of these steps.
                *map = unsafe { blocks.map::<S, E>(s, p, block) };
            }
        }
        for k in from..to {
            // SAFETY: `k` < `steps`, and the caller guarantees the rows and panels.
            unsafe {
                let mut w = [s.splat(0.0); PANELS];
                for (p, w) in w.iter_mut().enumerate() {
                    *w = E::load(s, weights.add(p * panel_stride + k));
                    if E::SCALED {
                        *w = blocks.value::<S, E>(s, *w, maps[p]);
                    }
                }
                for (r, row) in sums.iter_mut().enumerate() {
                    let value = s.splat(*x.add(r * x_stride + k));
                    for (sum, w) in row.iter_mut().zip(w) {
                        *sum = s.fma(value, w, *sum);
                    }
                }
            }
        }
        from = to;
    }
    for (r, row) in sums.iter().enumerate() {
        for (p, sum) in row.iter().enumerate() {
            // SAFETY: only the columns that exist are written.
            unsafe {
                let place = out.add(r * out_stride + p * LANES);
                if full {
                    s.store(place, *sum);
                } else {
                    s.store_partial(place, LANES.min(columns - p * LANES), *sum);
                }
            }
        }
    }
}

/// Most rows of a tile.
pub const HIGHEST: usize = 6;

/// Covers `rows × columns` outputs with tiles.
///
/// # Safety
/// See [`tile`], for `rows` rows and the panels that contain `columns` outputs.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "a block with its strides")]
pub unsafe fn rows_by_panels<S: Simd, E: Element>(
    s: S,
    x: *const f32,
    x_stride: usize,
    weights: *const E,
    panel_stride: usize,
    blocks: Blocks,
    steps: usize,
    out: *mut f32,
    out_stride: usize,
    rows: usize,
    columns: usize,
    resume: bool,
) {
    let panels = columns.div_ceil(LANES);
    let mut panel = 0;
    while panel < panels {
        let left = panels - panel;
        // SAFETY: panel, row and column offsets stay within the block that the caller guarantees.
        unsafe {
            let w = weights.add(panel * panel_stride);
            let blocks = blocks.panel(panel);
            let column = panel * LANES;
            macro_rules! cover {
                ($rows:literal, $panels:literal, $row:expr) => {
                    tile::<S, E, $rows, $panels>(
                        s,
                        x.add($row * x_stride),
                        x_stride,
                        w,
                        panel_stride,
                        blocks,
                        steps,
                        out.add($row * out_stride + column),
                        out_stride,
                        (columns - column).min($panels * LANES),
                        resume,
                    )
                };
            }
            macro_rules! cover_rows {
                ($panels:literal) => {{
                    // Tiles have similar heights, because a low tile reads as many weights as a
                    // high one.
                    let (mut row, mut tiles) = (0, rows.div_ceil(HIGHEST));
                    while row < rows {
                        let height = (rows - row).div_ceil(tiles);
                        tiles -= 1;
                        match height {
                            6 => cover!(6, $panels, row),
                            5 => cover!(5, $panels, row),
                            4 => cover!(4, $panels, row),
                            3 => cover!(3, $panels, row),
                            2 => cover!(2, $panels, row),
                            _ => cover!(1, $panels, row),
                        }
                        row += height;
                    }
                }};
            }
            // Eight accumulators of one row hide the latency of the multiply-add. Six rows by four
            // panels (by one, with fewer registers) fill the register file without spilling.
            match (S::REGISTERS, rows) {
                (Registers::None, _) => {
                    for row in 0..rows {
                        cover!(1, 1, row);
                    }
                    panel += 1;
                }
                (Registers::Many, 1) if left >= 8 => {
                    cover!(1, 8, 0);
                    panel += 8;
                }
                (_, 1) if left >= 4 => {
                    cover!(1, 4, 0);
                    panel += 4;
                }
                (Registers::Many, 2..) if left >= 4 => {
                    cover_rows!(4);
                    panel += 4;
                }
                _ => {
                    cover_rows!(1);
                    panel += 1;
                }
            }
        }
    }
}
