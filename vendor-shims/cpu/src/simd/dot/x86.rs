use std::arch::x86_64::*;

use super::Dot;
use crate::simd::avx2::Pair;
use crate::simd::{Avx2, Avx512, LANES};

/// Proof that the processor has AVX-512 VNNI in addition to [`Avx512`].
#[derive(Clone, Copy, Debug)]
pub struct Avx512Vnni(Avx512);

impl Avx512Vnni {
    /// Returns the token if the processor has the instructions.
    #[inline]
    pub fn detect() -> Option<Self> {
        if !is_x86_feature_detected!("avx512vnni") {
            return None;
        }
        Avx512::detect().map(Avx512Vnni)
    }
}

// SAFETY: the private field leaves `detect` as the only constructor, and the tests compare every
// method with the scalar form.
unsafe impl Dot for Avx512Vnni {
    type F = Avx512;
    type Sums = __m512i;
    type Bytes = __m512i;
    type Quad = __m512i;
    type Step = *const i8;
    // The instruction multiplies an unsigned by a signed byte.
    const OFFSET: i32 = 128;
    const RAISES: bool = true;

    #[inline(always)]
    fn values(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn sums(self, lanes: &[i32; LANES]) -> Self::Sums {
        // SAFETY: `self` proves AVX-512, and there are sixteen lanes.
        unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
    }
    #[inline(always)]
    fn splat(self, value: i32) -> Self::Sums {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_set1_epi32(value) }
    }
    #[inline(always)]
    fn add(self, a: Self::Sums, b: Self::Sums) -> Self::Sums {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch hint never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    unsafe fn load(self, source: *const u8) -> Self::Bytes {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory read.
        unsafe { _mm512_loadu_si512(source.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut u8, bytes: Self::Bytes) {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory written.
        unsafe { _mm512_storeu_si512(target.cast(), bytes) }
    }
    #[inline(always)]
    fn signed(self, bytes: Self::Bytes) -> Self::Bytes {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)) }
    }
    #[inline(always)]
    fn field(self, bytes: Self::Bytes, bits: usize, part: usize) -> Self::Bytes {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let mask = _mm512_set1_epi8(if bits == 4 { 15 } else { 3 });
            let shifted = match bits * part {
                0 => bytes,
                2 => _mm512_srli_epi16::<2>(bytes),
                4 => _mm512_srli_epi16::<4>(bytes),
                _ => _mm512_srli_epi16::<6>(bytes),
            };
            _mm512_and_si512(shifted, mask)
        }
    }
    #[inline(always)]
    unsafe fn thirds(self, source: *const u8) -> [Self::Bytes; 2] {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory read.
        unsafe {
            let low = _mm512_broadcast_i64x4(_mm256_loadu_si256(source.cast()));
            let top = _mm512_broadcast_i32x4(_mm_loadu_si128(source.add(32).cast()));
            let (three, four) = (_mm512_set1_epi8(3), _mm512_set1_epi8(4));
            // Bits shifted or rotated in from a neighbouring byte are masked off.
            let one = |low: __m512i, top: __m512i| {
                _mm512_or_si512(_mm512_and_si512(low, three), _mm512_and_si512(top, four))
            };
            let low_by = |first, second| {
                _mm512_srlv_epi64(
                    low,
                    _mm512_set_epi64(second, second, second, second, first, first, first, first),
                )
            };
            // The rotations are left by 2, 1, 0 and −1, and so on.
            let top_by = |a, b, c, d| _mm512_rolv_epi64(top, _mm512_set_epi64(d, d, c, c, b, b, a, a));
            [one(low_by(0, 2), top_by(2, 1, 0, 63)), one(low_by(4, 6), top_by(62, 61, 60, 59))]
        }
    }
    #[inline(always)]
    fn raise(self, small: Self::Bytes, bits: Self::Bytes, part: usize) -> Self::Bytes {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let shifted = match part {
                0 => _mm512_slli_epi16::<4>(bits),
                1 => _mm512_slli_epi16::<3>(bits),
                2 => _mm512_slli_epi16::<2>(bits),
                3 => _mm512_slli_epi16::<1>(bits),
                4 => bits,
                5 => _mm512_srli_epi16::<1>(bits),
                6 => _mm512_srli_epi16::<2>(bits),
                _ => _mm512_srli_epi16::<3>(bits),
            };
            _mm512_or_si512(small, _mm512_and_si512(shifted, _mm512_set1_epi8(16)))
        }
    }
    #[inline(always)]
    fn deepen(self, small: Self::Bytes, bits: Self::Bytes, part: usize) -> Self::Bytes {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            // Bits shifted in from a neighbouring byte are masked off.
            let shifted = match part {
                0 => _mm512_slli_epi16::<4>(bits),
                1 => _mm512_slli_epi16::<2>(bits),
                2 => bits,
                _ => _mm512_srli_epi16::<2>(bits),
            };
            _mm512_or_si512(small, _mm512_and_si512(shifted, _mm512_set1_epi8(48)))
        }
    }
    #[inline(always)]
    unsafe fn quad(self, source: *const i8) -> Self::Quad {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory read.
        unsafe { _mm512_set1_epi32(source.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn step(self, source: *const i8) -> Self::Step {
        source
    }
    #[inline(always)]
    unsafe fn quad_at(self, step: Self::Step, index: usize) -> Self::Quad {
        // SAFETY: guaranteed by the caller.
        unsafe { self.quad(step.add(4 * index)) }
    }
    #[inline(always)]
    fn dot(self, sums: Self::Sums, w: Self::Bytes, q: Self::Quad) -> Self::Sums {
        // SAFETY: `self` proves AVX-512 VNNI.
        unsafe { _mm512_dpbusd_epi32(sums, w, q) }
    }
    #[inline(always)]
    fn dot_raised(self, sums: Self::Sums, w: Self::Bytes, q: Self::Quad) -> Self::Sums {
        // SAFETY: `self` proves AVX-512 VNNI.
        unsafe { _mm512_dpbusd_epi32(sums, q, w) }
    }
    #[inline(always)]
    fn dot_small(self, sums: Self::Sums, w: Self::Bytes, q: Self::Quad) -> Self::Sums {
        self.dot(sums, w, q)
    }
    #[inline(always)]
    fn dot_each(self, sums: Self::Sums, w: Self::Bytes, q: Self::Bytes) -> Self::Sums {
        self.dot(sums, w, q)
    }
    #[inline(always)]
    fn widen(self, sums: Self::Sums) -> __m512 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_cvtepi32_ps(sums) }
    }
    #[inline(always)]
    fn exact(self, sums: __m512i, row: f64, scales: &[f64; LANES], bias: &[f64; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512, and there are two times eight lanes.
        unsafe {
            let row = _mm512_set1_pd(row);
            let half = |sums: __m256i, at: usize| {
                let factor = _mm512_mul_pd(row, _mm512_loadu_pd(scales.as_ptr().add(at)));
                let product = _mm512_mul_pd(_mm512_cvtepi32_pd(sums), factor);
                let value = _mm512_add_pd(product, _mm512_loadu_pd(bias.as_ptr().add(at)));
                _mm256_castps_pd(_mm512_cvtpd_ps(value))
            };
            let low = half(_mm512_castsi512_si256(sums), 0);
            let high = half(_mm512_extracti64x4_epi64::<1>(sums), 8);
            _mm512_castpd_ps(_mm512_insertf64x4::<1>(_mm512_castpd256_pd512(low), high))
        }
    }
    #[inline(always)]
    fn total(self, sums: Self::Sums) -> i32 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_reduce_add_epi32(sums) }
    }
    #[inline(always)]
    fn lanes(self, sums: Self::Sums) -> [i32; LANES] {
        let mut out = [0; LANES];
        // SAFETY: `self` proves AVX-512, and there are sixteen places.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), sums) };
        out
    }
    super::apart!("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");
}

/// Lanes 0–7 and 8–15, or bytes 0–31 and 32–63.
#[derive(Clone, Copy, Debug)]
pub struct Halves(__m256i, __m256i);

/// Implements [`Dot`] for the two tokens with 256-bit registers, which only differ in products.
/// `$gather` adds pairs of sixteen-bit values to sums.
macro_rules! halves {
    ($token:ident, $features:literal, $offset:literal, $flip:literal, |$sum:ident, $w:ident, $q:ident| $dot:expr, $small:expr $(, raised $raised:expr)? $(, grouped $gather:ident)?) => {
        // SAFETY: the private field leaves `detect` as the only constructor, and the tests compare
        // every method with the scalar form.
        unsafe impl Dot for $token {
            type F = Avx2;
            type Sums = Halves;
            type Bytes = Halves;
            type Quad = __m256i;
            type Step = *const i8;
            const OFFSET: i32 = $offset;

            #[inline(always)]
            fn values(self) -> Avx2 {
                self.0
            }
            #[inline(always)]
            fn sums(self, lanes: &[i32; LANES]) -> Self::Sums {
                // SAFETY: `self` proves AVX2, and there are two times eight lanes.
                unsafe {
                    Halves(
                        _mm256_loadu_si256(lanes.as_ptr().cast()),
                        _mm256_loadu_si256(lanes.as_ptr().add(8).cast()),
                    )
                }
            }
            #[inline(always)]
            fn splat(self, value: i32) -> Self::Sums {
                // SAFETY: `self` proves AVX2.
                let half = unsafe { _mm256_set1_epi32(value) };
                Halves(half, half)
            }
            #[inline(always)]
            fn add(self, a: Self::Sums, b: Self::Sums) -> Self::Sums {
                // SAFETY: `self` proves AVX2.
                unsafe { Halves(_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1)) }
            }
            #[inline(always)]
            unsafe fn load(self, source: *const u8) -> Self::Bytes {
                // SAFETY: `self` proves AVX2, and the caller guarantees the memory read.
                unsafe {
                    Halves(_mm256_loadu_si256(source.cast()), _mm256_loadu_si256(source.add(32).cast()))
                }
            }
            #[inline(always)]
            unsafe fn store(self, target: *mut u8, bytes: Self::Bytes) {
                // SAFETY: `self` proves AVX2, and the caller guarantees the memory written.
                unsafe {
                    _mm256_storeu_si256(target.cast(), bytes.0);
                    _mm256_storeu_si256(target.add(32).cast(), bytes.1);
                }
            }
            #[inline(always)]
            fn signed(self, bytes: Self::Bytes) -> Self::Bytes {
                // SAFETY: `self` proves AVX2.
                unsafe {
                    let flip = _mm256_set1_epi8($flip);
                    Halves(_mm256_xor_si256(bytes.0, flip), _mm256_xor_si256(bytes.1, flip))
                }
            }
            #[inline(always)]
            fn field(self, bytes: Self::Bytes, bits: usize, part: usize) -> Self::Bytes {
                // SAFETY: `self` proves AVX2.
                unsafe {
                    let mask = _mm256_set1_epi8(if bits == 4 { 15 } else { 3 });
                    let one = |half: __m256i| {
                        let shifted = match bits * part {
                            0 => half,
                            2 => _mm256_srli_epi16::<2>(half),
                            4 => _mm256_srli_epi16::<4>(half),
                            _ => _mm256_srli_epi16::<6>(half),
                        };
                        _mm256_and_si256(shifted, mask)
                    };
                    Halves(one(bytes.0), one(bytes.1))
                }
            }
            #[inline(always)]
            unsafe fn thirds(self, source: *const u8) -> [Self::Bytes; 2] {
                // SAFETY: `self` proves AVX2, and the caller guarantees the memory read.
                unsafe {
                    let low = _mm256_loadu_si256(source.cast());
                    let top = _mm256_broadcastsi128_si256(_mm_loadu_si128(source.add(32).cast()));
                    // Bits shifted in from a neighbouring byte are masked off.
                    let one = |low: __m256i, top: __m256i| {
                        _mm256_or_si256(
                            _mm256_and_si256(low, _mm256_set1_epi8(3)),
                            _mm256_and_si256(top, _mm256_set1_epi8(4)),
                        )
                    };
                    let pair = |first, second| _mm256_set_epi64x(second, second, first, first);
                    [
                        Halves(
                            one(low, _mm256_sllv_epi64(top, pair(2, 1))),
                            one(_mm256_srli_epi16::<2>(low), _mm256_srlv_epi64(top, pair(0, 1))),
                        ),
                        Halves(
                            one(_mm256_srli_epi16::<4>(low), _mm256_srlv_epi64(top, pair(2, 3))),
                            one(_mm256_srli_epi16::<6>(low), _mm256_srlv_epi64(top, pair(4, 5))),
                        ),
                    ]
                }
            }
            #[inline(always)]
            fn raise(self, small: Self::Bytes, bits: Self::Bytes, part: usize) -> Self::Bytes {
                // A function, because a closure of this size is not inlined, and would then be
                // compiled without AVX2.
                #[inline(always)]
                unsafe fn one(small: __m256i, bits: __m256i, part: usize) -> __m256i {
                    // SAFETY: the caller proves AVX2.
                    unsafe {
                        let shifted = match part {
                            0 => _mm256_slli_epi16::<4>(bits),
                            1 => _mm256_slli_epi16::<3>(bits),
                            2 => _mm256_slli_epi16::<2>(bits),
                            3 => _mm256_slli_epi16::<1>(bits),
                            4 => bits,
                            5 => _mm256_srli_epi16::<1>(bits),
                            6 => _mm256_srli_epi16::<2>(bits),
                            _ => _mm256_srli_epi16::<3>(bits),
                        };
                        _mm256_or_si256(small, _mm256_and_si256(shifted, _mm256_set1_epi8(16)))
                    }
                }
                // SAFETY: `self` proves AVX2.
                unsafe { Halves(one(small.0, bits.0, part), one(small.1, bits.1, part)) }
            }
            #[inline(always)]
            fn deepen(self, small: Self::Bytes, bits: Self::Bytes, part: usize) -> Self::Bytes {
                // A function, as in `raise`.
                #[inline(always)]
                unsafe fn one(small: __m256i, bits: __m256i, part: usize) -> __m256i {
                    // SAFETY: the caller proves AVX2.
                    unsafe {
                        let shifted = match part {
                            0 => _mm256_slli_epi16::<4>(bits),
                            1 => _mm256_slli_epi16::<2>(bits),
                            2 => bits,
                            _ => _mm256_srli_epi16::<2>(bits),
                        };
                        // Bits shifted in from a neighbouring byte are masked off.
                        _mm256_or_si256(small, _mm256_and_si256(shifted, _mm256_set1_epi8(48)))
                    }
                }
                // SAFETY: `self` proves AVX2.
                unsafe { Halves(one(small.0, bits.0, part), one(small.1, bits.1, part)) }
            }
            #[inline(always)]
            unsafe fn quad(self, source: *const i8) -> Self::Quad {
                // SAFETY: `self` proves AVX2, and the caller guarantees the memory read.
                unsafe { _mm256_set1_epi32(source.cast::<i32>().read_unaligned()) }
            }
            #[inline(always)]
            unsafe fn step(self, source: *const i8) -> Self::Step {
                source
            }
            #[inline(always)]
            unsafe fn quad_at(self, step: Self::Step, index: usize) -> Self::Quad {
                // SAFETY: guaranteed by the caller.
                unsafe { self.quad(step.add(4 * index)) }
            }
            #[inline(always)]
            fn dot(self, sums: Self::Sums, w: Self::Bytes, $q: Self::Quad) -> Self::Sums {
                // SAFETY: `self` proves the instructions.
                let one = |$sum: __m256i, $w: __m256i| unsafe { $dot };
                Halves(one(sums.0, w.0), one(sums.1, w.1))
            }
            $(
                const RAISES: bool = true;
                #[inline(always)]
                fn dot_raised(self, sums: Self::Sums, w: Self::Bytes, $q: Self::Quad) -> Self::Sums {
                    // SAFETY: `self` proves the instructions.
                    let one = |$sum: __m256i, $w: __m256i| unsafe { $raised };
                    Halves(one(sums.0, w.0), one(sums.1, w.1))
                }
            )?
            #[inline(always)]
            fn dot_small(self, sums: Self::Sums, w: Self::Bytes, $q: Self::Quad) -> Self::Sums {
                // SAFETY: `self` proves the instructions.
                let one = |$sum: __m256i, $w: __m256i| unsafe { $small };
                Halves(one(sums.0, w.0), one(sums.1, w.1))
            }
            $(
                const GROUPS: bool = true;
                #[inline(always)]
                unsafe fn dot_four_small(
                    self,
                    sums: Self::Sums,
                    w: [Self::Bytes; 4],
                    step: Self::Step,
                ) -> Self::Sums {
                    // SAFETY: `self` proves the instructions, and the caller guarantees the step.
                    unsafe {
                        let (first, second) = (self.quad_at(step, 0), self.quad_at(step, 1));
                        let (third, fourth) = (self.quad_at(step, 2), self.quad_at(step, 3));
                        let one = |sum: __m256i, w: [__m256i; 4]| {
                            let pairs = _mm256_add_epi16(
                                _mm256_add_epi16(
                                    _mm256_maddubs_epi16(w[0], first),
                                    _mm256_maddubs_epi16(w[1], second),
                                ),
                                _mm256_add_epi16(
                                    _mm256_maddubs_epi16(w[2], third),
                                    _mm256_maddubs_epi16(w[3], fourth),
                                ),
                            );
                            $gather(sum, pairs)
                        };
                        let [a, b, c, d] = w;
                        Halves(one(sums.0, [a.0, b.0, c.0, d.0]), one(sums.1, [a.1, b.1, c.1, d.1]))
                    }
                }
                #[inline(always)]
                unsafe fn dot_two_small(
                    self,
                    sums: Self::Sums,
                    w: [Self::Bytes; 2],
                    step: Self::Step,
                    first: usize,
                ) -> Self::Sums {
                    // SAFETY: `self` proves the instructions, and the caller guarantees the step.
                    unsafe {
                        let (left, right) = (self.quad_at(step, first), self.quad_at(step, first + 1));
                        let one = |sum: __m256i, a: __m256i, b: __m256i| {
                            let pairs = _mm256_add_epi16(
                                _mm256_maddubs_epi16(a, left),
                                _mm256_maddubs_epi16(b, right),
                            );
                            $gather(sum, pairs)
                        };
                        Halves(one(sums.0, w[0].0, w[1].0), one(sums.1, w[0].1, w[1].1))
                    }
                }
            )?
            #[inline(always)]
            fn dot_each(self, sums: Self::Sums, w: Self::Bytes, q: Self::Bytes) -> Self::Sums {
                // SAFETY: `self` proves the instructions.
                let one = |$sum: __m256i, $w: __m256i, $q: __m256i| unsafe { $small };
                Halves(one(sums.0, w.0, q.0), one(sums.1, w.1, q.1))
            }
            #[inline(always)]
            fn widen(self, sums: Self::Sums) -> Pair {
                // SAFETY: `self` proves AVX2.
                unsafe { Pair(_mm256_cvtepi32_ps(sums.0), _mm256_cvtepi32_ps(sums.1)) }
            }
            #[inline(always)]
            fn total(self, sums: Self::Sums) -> i32 {
                // SAFETY: `self` proves AVX2.
                unsafe {
                    let eight = _mm256_add_epi32(sums.0, sums.1);
                    let four =
                        _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
                    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b1110>(four));
                    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<1>(two)))
                }
            }
            #[inline(always)]
            fn lanes(self, sums: Self::Sums) -> [i32; LANES] {
                let mut out = [0; LANES];
                // SAFETY: `self` proves AVX2, and there are sixteen places.
                unsafe { self.store(out.as_mut_ptr().cast(), sums) };
                out
            }
            super::apart!($features);
        }
    };
}

/// Proof that the processor has AVX-VNNI in addition to [`Avx2`].
#[derive(Clone, Copy, Debug)]
pub struct AvxVnni(Avx2);

impl AvxVnni {
    /// Returns the token if the processor has the instructions.
    #[inline]
    pub fn detect() -> Option<Self> {
        if !is_x86_feature_detected!("avxvnni") {
            return None;
        }
        Avx2::detect().map(AvxVnni)
    }
}

// The instruction multiplies an unsigned by a signed byte.
halves!(
    AvxVnni,
    "avxvnni,avx2,fma,f16c",
    128,
    -128,
    |sum, w, q| _mm256_dpbusd_avx_epi32(sum, w, q),
    _mm256_dpbusd_avx_epi32(sum, w, q),
    raised _mm256_dpbusd_avx_epi32(sum, q, w)
);

/// Proof of [`Avx2`], whose product of bytes saturates at sixteen bits.
#[derive(Clone, Copy, Debug)]
pub struct Avx2Pairs(Avx2);

impl Avx2Pairs {
    /// Returns the token if the processor has the instructions.
    #[inline]
    pub fn detect() -> Option<Self> {
        Avx2::detect().map(Avx2Pairs)
    }
}

/// Adds pairs of sixteen-bit values to sums.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn gather(sum: __m256i, pairs: __m256i) -> __m256i {
    // SAFETY: the caller guarantees AVX2.
    unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))) }
}

// |w| ≤ 128 and |q| ≤ 127, so two products are at most 32,512 in magnitude and cannot saturate.
// Four pairs of small products are at most 4 · 2 · 31 · 127 = 31,496, and two pairs at most
// 2 · 2 · 63 · 127 = 32,004.
halves!(
    Avx2Pairs,
    "avx2,fma,f16c",
    0,
    0,
    |sum, w, q| gather(sum, _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w))),
    gather(sum, _mm256_maddubs_epi16(w, q)),
    grouped gather
);
