//! Sixteen f32 lanes with the same semantics on every processor.
//!
//! A kernel is written once against [`Simd`]. IEEE 754 and the lane order in each method's
//! documentation define every operation exactly, so the scalar twin and the vector forms agree bit
//! for bit.

pub mod dot;
pub mod peak;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
pub mod i8mm;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
#[cfg(test)]
pub use scalar::Wide;
pub use scalar::{Scalar, narrow_f16, widen_bf16, widen_f16};

/// Number of lanes of a vector on every processor.
pub const LANES: usize = 16;

/// Returns `[of(0), …, of(N - 1)]`. `N` must not be 0. Unlike with [`std::array::from_fn`], a large
/// closure is inlined too, and therefore compiled with the instructions of the kernel's level.
#[inline(always)]
pub(crate) fn each<T: Copy, const N: usize>(of: impl Fn(usize) -> T) -> [T; N] {
    let mut all = [of(0); N];
    for (index, one) in all.iter_mut().enumerate().skip(1) {
        *one = of(index);
    }
    all
}

/// Operations on sixteen f32 lanes. A value of the type proves that the processor has the
/// instructions.
///
/// # Safety
/// An implementor must only be constructible where its instructions exist, and every method must
/// behave exactly like the scalar form.
pub unsafe trait Simd: Copy + Send + Sync {
    /// Sixteen lanes.
    type V: Copy;
    /// Size of the register file.
    const REGISTERS: Registers;

    /// Sets all lanes to `value`.
    fn splat(self, value: f32) -> Self::V;
    /// Loads sixteen values from `source`.
    ///
    /// # Safety
    /// `source` must be readable for 16 f32.
    unsafe fn load(self, source: *const f32) -> Self::V;
    /// Loads `count` ≤ 16 values from `source`. The other lanes are zero.
    ///
    /// # Safety
    /// `source` must be readable for `count` f32.
    unsafe fn load_partial(self, source: *const f32, count: usize) -> Self::V;
    /// Prefetches the cache line of `address`, which need not be readable.
    #[inline(always)]
    fn prefetch<T>(self, address: *const T) {
        let _ = address;
    }
    /// Loads sixteen bfloat16 values and widens them exactly.
    ///
    /// # Safety
    /// `source` must be readable for 16 u16.
    unsafe fn load_bf16(self, source: *const u16) -> Self::V;
    /// Loads sixteen binary16 values and widens them exactly.
    ///
    /// # Safety
    /// `source` must be readable for 16 u16.
    unsafe fn load_f16(self, source: *const u16) -> Self::V;
    /// Loads sixteen signed bytes.
    ///
    /// # Safety
    /// `source` must be readable for 16 bytes.
    unsafe fn load_i8(self, source: *const i8) -> Self::V;
    /// Loads sixteen signed values of four bits. Lanes i and i + 8 are in the low and the high half
    /// of byte i.
    ///
    /// # Safety
    /// `source` must be readable for 8 bytes.
    unsafe fn load_i4(self, source: *const u8) -> Self::V;
    /// Loads sixteen signed values of two bits. Lanes i, i + 4, i + 8, i + 12 are in byte i, from
    /// its low bits on.
    ///
    /// # Safety
    /// `source` must be readable for 4 bytes.
    unsafe fn load_i2(self, source: *const u8) -> Self::V;
    /// Stores sixteen values as the nearest binary16, ties to even. Values beyond its range become
    /// infinite.
    ///
    /// # Safety
    /// `target` must be writable for 16 u16.
    unsafe fn store_f16(self, target: *mut u16, v: Self::V);
    /// Stores sixteen integral values within −128 and 127 as bytes.
    ///
    /// # Safety
    /// `target` must be writable for 16 bytes.
    unsafe fn store_i8(self, target: *mut i8, v: Self::V);
    /// Stores sixteen values to `target`.
    ///
    /// # Safety
    /// `target` must be writable for 16 f32.
    unsafe fn store(self, target: *mut f32, v: Self::V);
    /// Stores the first `count` ≤ 16 lanes to `target`.
    ///
    /// # Safety
    /// `target` must be writable for `count` f32.
    unsafe fn store_partial(self, target: *mut f32, count: usize, v: Self::V);

    /// Computes `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// Computes `a − b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// Computes `a · b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// Computes `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// Computes `a · b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Computes `a > b ? a : b` per lane. Returns `b` if either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Computes `a < b ? a : b` per lane. Returns `b` if either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Computes `a < b ? x : y` per lane.
    fn select_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// Checks whether `a < b` in every lane.
    fn all_less(self, a: Self::V, b: Self::V) -> bool;
    /// Computes the correctly rounded square root.
    fn sqrt(self, a: Self::V) -> Self::V;
    /// Rounds to the nearest integer, ties to even.
    fn round(self, a: Self::V) -> Self::V;
    /// Computes `2^n` for integral `n` in −126..=127.
    fn exp2_int(self, n: Self::V) -> Self::V;
    /// Flips the sign bit.
    fn neg(self, a: Self::V) -> Self::V;
    /// Clears the sign bit.
    fn abs(self, a: Self::V) -> Self::V;
    /// Returns the magnitude of `a` with the sign of `sign`.
    fn copy_sign(self, a: Self::V, sign: Self::V) -> Self::V;
    /// Returns the sum of the lanes, adding lane i to i + 8, then i + 4, i + 2, i + 1.
    fn reduce_add(self, a: Self::V) -> f32;
    /// Computes [`Simd::reduce_add`] of sixteen vectors. The sum of the first vector is in the
    /// first lane.
    #[inline(always)]
    fn reduce_add_each(self, a: [Self::V; LANES]) -> Self::V {
        let mut sums = [0.0; LANES];
        for (sum, a) in sums.iter_mut().zip(a) {
            *sum = self.reduce_add(a);
        }
        // SAFETY: sixteen values.
        unsafe { self.load(sums.as_ptr()) }
    }
    /// Returns the largest lane by [`Simd::max`], in the order of [`Simd::reduce_add`].
    fn reduce_max(self, a: Self::V) -> f32;
}

/// Size of the register file in vectors of sixteen lanes. It determines the shape of register
/// tiles, never a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registers {
    /// Effectively none. Tiles of one vector keep the code small.
    None,
    /// Eight vectors.
    Few,
    /// Thirty-two vectors.
    Many,
}

/// The instruction sets that a kernel can run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Plain Rust, which defines the results of all other levels.
    Scalar,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Advanced SIMD of aarch64.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Level {
    /// Returns the fastest level of this processor.
    pub fn detect() -> Level {
        *Level::available().last().unwrap_or(&Level::Scalar)
    }

    /// Returns every level of this processor, slowest first.
    pub fn available() -> Vec<Level> {
        let mut levels = vec![Level::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if Avx2::detect().is_some() {
                levels.push(Level::Avx2);
            }
            if Avx512::detect().is_some() {
                levels.push(Level::Avx512);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if Neon::detect().is_some() {
            levels.push(Level::Neon);
        }
        levels
    }

    /// Returns the lower-case name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
        }
    }
}

/// Defines `pub fn $name(level, …)` that runs the generic `$kernel::<S>(s, …)` compiled for the
/// level.
///
/// The kernel must be `#[inline(always)]`, so that it is compiled with the features of the wrapper.
macro_rules! dispatch {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident => $kernel:ident ( $($argument:ident : $type:ty),* $(,)? ) $(-> $result:ty)?) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "kernels take their operands and dimensions one by one")]
        $visibility fn $name(level: $crate::simd::Level, $($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                #[allow(clippy::too_many_arguments, reason = "as the wrapped kernel")]
                fn avx512(s: $crate::simd::Avx512, $($argument: $type),*) $(-> $result)? {
                    $kernel(s, $($argument),*)
                }
                #[target_feature(enable = "avx2,fma,f16c")]
                #[allow(clippy::too_many_arguments, reason = "as the wrapped kernel")]
                fn avx2(s: $crate::simd::Avx2, $($argument: $type),*) $(-> $result)? {
                    $kernel(s, $($argument),*)
                }
                if level == $crate::simd::Level::Avx512
                    && let Some(s) = $crate::simd::Avx512::detect() {
                    // SAFETY: `s` proves that the processor has the enabled features.
                    return unsafe { avx512(s, $($argument),*) };
                }
                if level == $crate::simd::Level::Avx2
                    && let Some(s) = $crate::simd::Avx2::detect() {
                    // SAFETY: `s` proves that the processor has the enabled features.
                    return unsafe { avx2(s, $($argument),*) };
                }
            }
            #[cfg(target_arch = "aarch64")]
            {
                #[target_feature(enable = "neon")]
                #[allow(clippy::too_many_arguments, reason = "as the wrapped kernel")]
                fn neon(s: $crate::simd::Neon, $($argument: $type),*) $(-> $result)? {
                    $kernel(s, $($argument),*)
                }
                if level == $crate::simd::Level::Neon
                    && let Some(s) = $crate::simd::Neon::detect() {
                    // SAFETY: `s` proves that the processor has the enabled features.
                    return unsafe { neon(s, $($argument),*) };
                }
            }
            let _ = level;
            $kernel($crate::simd::Scalar, $($argument),*)
        }
    };
}
pub(crate) use dispatch;

#[cfg(test)]
mod tests;
