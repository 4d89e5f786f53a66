use std::arch::x86_64::*;

use super::{LANES, Registers, Simd};

/// Proof of AVX-512 F, BW, DQ and VL (with AVX2, FMA and F16C).
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// Returns the token if the processor has the instructions.
    #[inline]
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Avx512(()))
    }
}

#[inline(always)]
fn first(count: usize) -> __mmask16 {
    if count >= LANES { !0 } else { (1u16 << count) - 1 }
}

// SAFETY: the private field leaves `detect` as the only constructor, and the tests compare every
// method with the scalar form.
unsafe impl Simd for Avx512 {
    type V = __m512;
    const REGISTERS: Registers = Registers::Many;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    fn prefetch<T>(self, address: *const T) {
        // SAFETY: a prefetch hint never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> Self::V {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory read.
        unsafe { _mm512_loadu_ps(source) }
    }
    #[inline(always)]
    unsafe fn load_partial(self, source: *const f32, count: usize) -> Self::V {
        if count >= LANES {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.load(source) };
        }
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory read.
        unsafe { _mm512_maskz_loadu_ps(first(count), source) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, source: *const u16) -> Self::V {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory read.
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
                source.cast(),
            ))))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, source: *const u16) -> Self::V {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory read.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(source.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8(self, source: *const i8) -> Self::V {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory read.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(source.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_i8(self, target: *mut i8, v: Self::V) {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory written.
        unsafe { _mm_storeu_si128(target.cast(), _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(v))) }
    }
    #[inline(always)]
    unsafe fn load_i4(self, source: *const u8) -> Self::V {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory read.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(super::avx2::nibbles(source))) }
    }
    #[inline(always)]
    unsafe fn load_i2(self, source: *const u8) -> Self::V {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory read.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(super::avx2::crumbs(source))) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, target: *mut u16, v: Self::V) {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory written.
        unsafe {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            _mm256_storeu_si256(target.cast(), _mm512_cvtps_ph::<NEAREST>(v))
        }
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32, v: Self::V) {
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory written.
        unsafe { _mm512_storeu_ps(target, v) }
    }
    #[inline(always)]
    unsafe fn store_partial(self, target: *mut f32, count: usize, v: Self::V) {
        if count >= LANES {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.store(target, v) };
        }
        // SAFETY: `self` proves AVX-512, and the caller guarantees the memory written.
        unsafe { _mm512_mask_storeu_ps(target, first(count), v) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn select_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }
    #[inline(always)]
    fn all_less(self, a: Self::V, b: Self::V) -> bool {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) == !0 }
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn exp2_int(self, n: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(
                _mm512_cvtps_epi32(n),
                _mm512_set1_epi32(127),
            )))
        }
    }
    #[inline(always)]
    fn neg(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_xor_ps(a, _mm512_set1_ps(-0.0)) }
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_andnot_ps(_mm512_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    fn copy_sign(self, a: Self::V, sign: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let mask = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(mask, a), _mm512_and_ps(mask, sign))
        }
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            super::avx2::fold_add(half)
        }
    }
    #[inline(always)]
    fn reduce_add_each(self, a: [Self::V; LANES]) -> Self::V {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            // Halves of two vectors are added at once, so that each addition has sixteen sums to
            // compute. The last two steps leave the sums of vectors 4·p + b in lane 4·b + p, and
            // the order of the first step compensates for this.
            let mut eight = [self.splat(0.0); 8];
            for (pair, sum) in eight.iter_mut().enumerate() {
                let [first, second] = [2 * pair, 2 * pair + 1].map(
                    #[inline(always)]
                    |place| a[place % 4 * 4 + place / 4],
                );
                let lower = _mm512_shuffle_f32x4::<0b01_00_01_00>(first, second);
                *sum = _mm512_add_ps(lower, _mm512_shuffle_f32x4::<0b11_10_11_10>(first, second));
            }
            let mut four = [self.splat(0.0); 4];
            for (pair, sum) in four.iter_mut().enumerate() {
                let [first, second] = [eight[2 * pair], eight[2 * pair + 1]];
                let lower = _mm512_shuffle_f32x4::<0b10_00_10_00>(first, second);
                *sum = _mm512_add_ps(lower, _mm512_shuffle_f32x4::<0b11_01_11_01>(first, second));
            }
            let mut two = [self.splat(0.0); 2];
            for (pair, sum) in two.iter_mut().enumerate() {
                let [first, second] = [four[2 * pair], four[2 * pair + 1]].map(
                    #[inline(always)]
                    |sums| _mm512_castps_pd(sums),
                );
                let lower = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
                *sum = _mm512_add_ps(lower, _mm512_castpd_ps(_mm512_unpackhi_pd(first, second)));
            }
            let lower = _mm512_shuffle_ps::<0b10_00_10_00>(two[0], two[1]);
            _mm512_add_ps(lower, _mm512_shuffle_ps::<0b11_01_11_01>(two[0], two[1]))
        }
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            super::avx2::fold_max(half)
        }
    }
}
