//! Sums of products of bytes, sixteen at a time, with the same semantics on every processor.
//!
//! An integer kernel is written once against [`Dot`]. Integer sums are exact, so all forms agree
//! bit for bit in any order of addition. Further computations with a sum use [`Simd`], whose forms
//! agree as well.

mod scalar;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;

#[cfg(target_arch = "x86_64")]
use super::amx::Amx;
#[cfg(target_arch = "aarch64")]
use super::i8mm::NeonI8mm;
use super::{LANES, Level, Simd};

#[cfg(target_arch = "aarch64")]
pub use neon::{NeonDot, NeonWiden};
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2Pairs, Avx512Vnni, AvxVnni};

/// Bytes of a vector, which has sixteen lanes of four bytes.
pub const VECTOR: usize = 64;
/// Bytes of two vectors of operands with three bits.
pub const THIRDS: usize = 48;

/// Products of bytes in sixteen lanes. A value of the type proves that the processor has the
/// instructions.
///
/// # Safety
/// An implementor must only be constructible where its instructions exist, and every method must
/// behave exactly like the scalar form.
pub unsafe trait Dot: Copy + Send + Sync {
    /// Operations on f32 lanes.
    type F: Simd;
    /// Sixteen sums of type i32.
    type Sums: Copy;
    /// [`VECTOR`] bytes.
    type Bytes: Copy;
    /// Four signed bytes for all lanes.
    type Quad: Copy;
    /// Sixteen bytes of a row, or their address.
    type Step: Copy;
    /// Offset that [`Dot::signed`] adds to every byte. A sum starts correspondingly lower.
    const OFFSET: i32;

    /// Returns the token for operations on f32 lanes.
    fn values(self) -> Self::F;
    /// Loads sixteen sums.
    fn sums(self, lanes: &[i32; LANES]) -> Self::Sums;
    /// Sets all sums to `value`.
    fn splat(self, value: i32) -> Self::Sums;
    /// Computes `a + b`, wrapping.
    fn add(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// Loads [`VECTOR`] bytes from `source`.
    ///
    /// # Safety
    /// `source` must be readable for as many bytes.
    unsafe fn load(self, source: *const u8) -> Self::Bytes;
    /// Prefetches the cache line of `address`, which need not be readable.
    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        let _ = address;
    }
    /// Stores [`VECTOR`] bytes to `target`.
    ///
    /// # Safety
    /// `target` must be writable for as many bytes.
    unsafe fn store(self, target: *mut u8, bytes: Self::Bytes);
    /// Converts signed bytes to the form that [`Dot::dot`] requires, by adding [`Dot::OFFSET`].
    fn signed(self, bytes: Self::Bytes) -> Self::Bytes;
    /// Extracts field `part` of each byte: its bits from `part · bits` on. `bits` is 4 or 2.
    fn field(self, bytes: Self::Bytes, bits: usize, part: usize) -> Self::Bytes;
    /// Loads four signed bytes, none of them −128, or four unsigned bytes for [`Dot::dot_raised`].
    ///
    /// # Safety
    /// `source` must be readable for 4 bytes.
    unsafe fn quad(self, source: *const i8) -> Self::Quad;
    /// Loads sixteen bytes of a row.
    ///
    /// # Safety
    /// `source` must be readable for 16 bytes while the result is in use.
    unsafe fn step(self, source: *const i8) -> Self::Step;
    /// Returns bytes `4 · index` to `4 · index + 3` of a step, in the format of [`Dot::quad`].
    ///
    /// # Safety
    /// See [`Dot::step`]. `index` must be below 4.
    unsafe fn quad_at(self, step: Self::Step, index: usize) -> Self::Quad;
    /// Computes `sums[i] + Σ w[4i + j] · q[j]`, wrapping, for bytes that [`Dot::signed`] returned.
    fn dot(self, sums: Self::Sums, w: Self::Bytes, q: Self::Quad) -> Self::Sums;
    /// Computes [`Dot::dot`] of [`Dot::quad_at`]. An `index` that is constant after inlining has no
    /// cost.
    ///
    /// # Safety
    /// See [`Dot::quad_at`].
    #[inline(always)]
    unsafe fn dot_at(self, sums: Self::Sums, w: Self::Bytes, step: Self::Step, index: usize) -> Self::Sums {
        // SAFETY: guaranteed by the caller.
        self.dot(sums, w, unsafe { self.quad_at(step, index) })
    }
    /// Computes [`Dot::dot_small`] of [`Dot::quad_at`], like [`Dot::dot_at`].
    ///
    /// # Safety
    /// See [`Dot::quad_at`].
    #[inline(always)]
    unsafe fn dot_small_at(
        self,
        sums: Self::Sums,
        w: Self::Bytes,
        step: Self::Step,
        index: usize,
    ) -> Self::Sums {
        // SAFETY: guaranteed by the caller.
        self.dot_small(sums, w, unsafe { self.quad_at(step, index) })
    }
    /// Unpacks two vectors of bytes within 0 and 7 from [`THIRDS`] bytes. Of their 128 bytes, byte
    /// t has its lower two bits at bit `2·(t / 32)` of byte `t mod 32`, and its third bit at bit
    /// `t / 16` of byte `32 + t mod 16`.
    ///
    /// # Safety
    /// `source` must be readable for as many bytes.
    unsafe fn thirds(self, source: *const u8) -> [Self::Bytes; 2];
    /// Adds 16 to each byte of `small` (within 0 and 15) whose byte in `bits` has bit `part` set.
    fn raise(self, small: Self::Bytes, bits: Self::Bytes, part: usize) -> Self::Bytes;
    /// Adds 16 times field `part` of each byte of `bits` to the same byte of `small` (within 0 and
    /// 15). A field has two bits, from bit `2 · part` on.
    fn deepen(self, small: Self::Bytes, bits: Self::Bytes, part: usize) -> Self::Bytes;
    /// Whether [`Dot::dot_raised`] is available, because the instruction multiplies unsigned by
    /// signed bytes.
    const RAISES: bool = false;
    /// Computes `sums[i] + Σ w[4i + j] · q[j]`, wrapping, of unconverted signed bytes and unsigned
    /// `q`.
    ///
    /// # Panics
    /// If [`Dot::RAISES`] is false. Callers test this constant first.
    #[inline(always)]
    fn dot_raised(self, sums: Self::Sums, w: Self::Bytes, q: Self::Quad) -> Self::Sums {
        let _ = (sums, w, q);
        unreachable!("a product of unsigned and signed bytes")
    }
    /// Computes [`Dot::dot`] of bytes within 0 and 63.
    fn dot_small(self, sums: Self::Sums, w: Self::Bytes, q: Self::Quad) -> Self::Sums;
    /// Whether [`Dot::dot_four_small`] and [`Dot::dot_two_small`] need fewer instructions than
    /// single products, because they add products in sixteen bits first.
    const GROUPS: bool = false;
    /// Computes [`Dot::dot_small`] of four operands, whose bytes are within 0 and 31, and of all
    /// sixteen bytes of a step.
    ///
    /// # Safety
    /// See [`Dot::step`].
    #[inline(always)]
    unsafe fn dot_four_small(self, sums: Self::Sums, w: [Self::Bytes; 4], step: Self::Step) -> Self::Sums {
        // SAFETY: guaranteed by the caller.
        unsafe { self.dot_two_small(self.dot_two_small(sums, [w[0], w[1]], step, 0), [w[2], w[3]], step, 2) }
    }
    /// Computes [`Dot::dot_small`] of two operands, whose bytes are within 0 and 63, and of the
    /// eight bytes of a step from byte `4 · first` on.
    ///
    /// # Safety
    /// See [`Dot::step`]. `first` must be 0 or 2.
    #[inline(always)]
    unsafe fn dot_two_small(
        self,
        sums: Self::Sums,
        w: [Self::Bytes; 2],
        step: Self::Step,
        first: usize,
    ) -> Self::Sums {
        // SAFETY: guaranteed by the caller.
        unsafe { self.dot_small_at(self.dot_small_at(sums, w[0], step, first), w[1], step, first + 1) }
    }
    /// Computes `sums[i] + Σ w[4i + j] · q[4i + j]`, wrapping, of bytes within 0 and 31 and
    /// unconverted signed bytes, none of them −128.
    fn dot_each(self, sums: Self::Sums, w: Self::Bytes, q: Self::Bytes) -> Self::Sums;
    /// Converts sums to the nearest values, ties to even.
    fn widen(self, sums: Self::Sums) -> <Self::F as Simd>::V;
    /// Computes `(sums[i] · (row · scales[i]) + bias[i])` in f64, rounded to f32.
    #[inline(always)]
    fn exact(
        self,
        sums: Self::Sums,
        row: f64,
        scales: &[f64; LANES],
        bias: &[f64; LANES],
    ) -> <Self::F as Simd>::V {
        let sums = self.lanes(sums);
        let mut results = [0.0; LANES];
        for lane in 0..LANES {
            results[lane] = (f64::from(sums[lane]) * (row * scales[lane]) + bias[lane]) as f32;
        }
        // SAFETY: sixteen values.
        unsafe { self.values().load(results.as_ptr()) }
    }
    /// Returns the total of all sums, wrapping.
    fn total(self, sums: Self::Sums) -> i32;
    /// Returns the sums as an array.
    fn lanes(self, sums: Self::Sums) -> [i32; 16];
    /// Runs a part as a separate function, compiled with the instructions of this level.
    fn apart<P: Part<Self>>(self, part: P);
}

/// Part of a kernel that is compiled once for each level instead of once for each tile.
pub trait Part<D: Dot> {
    /// Runs the part. It must be inlined, to be compiled with the instructions of the level.
    fn run(self, d: D);
}

/// Defines [`Dot::apart`] for a level with these features.
macro_rules! apart {
    ($($features:literal)?) => {
        #[inline(always)]
        fn apart<P: $crate::simd::dot::Part<Self>>(self, part: P) {
            $(#[target_feature(enable = $features)])?
            #[inline(never)]
            fn compiled<D: $crate::simd::dot::Dot, P: $crate::simd::dot::Part<D>>(d: D, part: P) {
                part.run(d);
            }
            #[allow(unused_unsafe, reason = "plain Rust needs no features")]
            // SAFETY: `self` proves that the processor has the features.
            unsafe {
                compiled(self, part);
            }
        }
    };
}
use apart;

/// The instruction sets that an integer kernel can run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotLevel {
    /// Plain Rust, which defines the results of all other levels.
    Scalar,
    /// AVX2: sums of pairs of bytes in sixteen bits, and sums of pairs of these in 32.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The eight-lane product of four bytes.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// The sixteen-lane product of four bytes.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// Like [`DotLevel::Avx512Vnni`], with tile products for many rows.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// Advanced SIMD without a product of four bytes.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Advanced SIMD with a product of four bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// Like [`DotLevel::NeonDot`], with products of pairs of rows for many rows.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
    /// Plain Rust with the register tiles and the offset of AVX-512 VNNI.
    #[cfg(test)]
    Wide,
}

impl DotLevel {
    /// Returns every level of this processor, slowest first.
    pub fn available() -> Vec<DotLevel> {
        let mut levels = vec![DotLevel::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if Avx2Pairs::detect().is_some() {
                levels.push(DotLevel::Avx2);
            }
            if AvxVnni::detect().is_some() {
                levels.push(DotLevel::AvxVnni);
            }
            if Avx512Vnni::detect().is_some() {
                levels.push(DotLevel::Avx512Vnni);
            }
            if Amx::detect().is_some() {
                levels.push(DotLevel::Amx);
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            if NeonWiden::detect().is_some() {
                levels.push(DotLevel::Neon);
            }
            if NeonDot::detect().is_some() {
                levels.push(DotLevel::NeonDot);
            }
            if NeonI8mm::detect().is_some() {
                levels.push(DotLevel::NeonI8mm);
            }
        }
        levels
    }

    /// Returns every level that tests can run, the simulated one last.
    #[cfg(test)]
    pub fn every() -> Vec<DotLevel> {
        [DotLevel::available(), vec![DotLevel::Wide]].concat()
    }

    /// Returns the fastest level of this processor that uses no wider registers than `level`.
    pub fn within(level: Level) -> DotLevel {
        let fits = |dot: &DotLevel| match dot {
            DotLevel::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            DotLevel::Avx2 | DotLevel::AvxVnni => level != Level::Scalar,
            #[cfg(target_arch = "x86_64")]
            DotLevel::Avx512Vnni | DotLevel::Amx => level == Level::Avx512,
            #[cfg(target_arch = "aarch64")]
            DotLevel::Neon | DotLevel::NeonDot | DotLevel::NeonI8mm => level != Level::Scalar,
            #[cfg(test)]
            DotLevel::Wide => false,
        };
        DotLevel::available().into_iter().rfind(fits).unwrap_or(DotLevel::Scalar)
    }

    /// Returns this level if it uses no wider registers and no more units than `most`, otherwise
    /// `most`.
    pub fn at_most(self, most: DotLevel) -> DotLevel {
        let available = DotLevel::available();
        let rank = |level| available.iter().position(|known| *known == level);
        if rank(self).is_some() && rank(self) <= rank(most) { self } else { most }
    }

    /// Returns the levels that may be fastest for many rows if `self` is expected to be. `self` is
    /// the last one. Other candidates have half the width, or no products of whole tiles or of
    /// pairs of rows.
    pub fn rivals(self) -> Vec<DotLevel> {
        let other = match self {
            #[cfg(target_arch = "x86_64")]
            DotLevel::Amx => Some(DotLevel::Avx512Vnni),
            #[cfg(target_arch = "x86_64")]
            DotLevel::Avx512Vnni => Some(DotLevel::AvxVnni),
            #[cfg(target_arch = "aarch64")]
            DotLevel::NeonI8mm => Some(DotLevel::NeonDot),
            _ => None,
        };
        let available = DotLevel::available();
        other.into_iter().filter(|other| available.contains(other)).chain([self]).collect()
    }

    /// Reports whether products of many rows use the rows as unsigned bytes (see [`Dot::RAISES`]).
    pub const fn raises(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            DotLevel::Avx512Vnni => Avx512Vnni::RAISES,
            #[cfg(target_arch = "x86_64")]
            DotLevel::AvxVnni => AvxVnni::RAISES,
            #[cfg(test)]
            DotLevel::Wide => true,
            _ => false,
        }
    }

    /// Returns the level whose vector operations this one uses.
    pub const fn vectors(self) -> DotLevel {
        match self {
            #[cfg(target_arch = "x86_64")]
            DotLevel::Amx => DotLevel::Avx512Vnni,
            #[cfg(target_arch = "aarch64")]
            DotLevel::NeonI8mm => DotLevel::NeonDot,
            level => level,
        }
    }

    /// Returns the lower-case name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            DotLevel::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            DotLevel::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            DotLevel::AvxVnni => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            DotLevel::Avx512Vnni => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            DotLevel::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            DotLevel::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            DotLevel::NeonDot => "neon-dot",
            #[cfg(target_arch = "aarch64")]
            DotLevel::NeonI8mm => "neon-i8mm",
            #[cfg(test)]
            DotLevel::Wide => "wide",
        }
    }
}

impl fmt::Display for DotLevel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Defines a function like [`super::dispatch`], for kernels over [`Dot`].
macro_rules! dispatch_dot {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident => $kernel:ident ( $($argument:ident : $type:ty),* $(,)? )) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "kernels take their operands and dimensions one by one")]
        $visibility fn $name(level: $crate::simd::dot::DotLevel, $($argument: $type),*) {
            macro_rules! with {
                ($level:ident, $token:ident, $features:literal) => {
                    #[allow(clippy::too_many_arguments, reason = "as the wrapped kernel")]
                    #[target_feature(enable = $features)]
                    fn compiled(d: $crate::simd::dot::$token, $($argument: $type),*) {
                        $kernel(d, $($argument),*)
                    }
                    if level.vectors() == $crate::simd::dot::DotLevel::$level
                        && let Some(d) = $crate::simd::dot::$token::detect() {
                        // SAFETY: `d` proves that the processor has the enabled features.
                        return unsafe { compiled(d, $($argument),*) };
                    }
                };
            }
            #[cfg(target_arch = "x86_64")]
            {
                { with!(Avx512Vnni, Avx512Vnni, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"); }
                { with!(AvxVnni, AvxVnni, "avxvnni,avx2,fma,f16c"); }
                { with!(Avx2, Avx2Pairs, "avx2,fma,f16c"); }
            }
            #[cfg(target_arch = "aarch64")]
            {
                { with!(NeonDot, NeonDot, "neon,dotprod"); }
                { with!(Neon, NeonWiden, "neon"); }
            }
            #[cfg(test)]
            if level == $crate::simd::dot::DotLevel::Wide {
                return $kernel($crate::simd::Wide, $($argument),*);
            }
            let _ = level;
            $kernel($crate::simd::Scalar, $($argument),*)
        }
    };
}
pub(crate) use dispatch_dot;

#[cfg(test)]
mod tests;
