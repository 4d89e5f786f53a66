use std::arch::x86_64::*;

use super::{LANES, Registers, Simd};

/// Proof of AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// Returns the token if the processor has the instructions.
    #[inline]
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Avx2(()))
    }
}

/// Lanes 0–7 and 8–15.
#[derive(Clone, Copy, Debug)]
pub struct Pair(pub __m256, pub __m256);

/// Returns the sum of eight lanes: i with i + 4, i + 2, i + 1.
///
/// # Safety
/// The processor must have AVX.
#[inline(always)]
pub unsafe fn fold_add(a: __m256) -> f32 {
    // SAFETY: the caller guarantees AVX.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

/// Returns the largest of eight lanes, in the order of [`fold_add`].
///
/// # Safety
/// The processor must have AVX.
#[inline(always)]
pub unsafe fn fold_max(a: __m256) -> f32 {
    // SAFETY: the caller guarantees AVX.
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

/// Loads values of four bits as signed bytes, in the lanes of [`Simd::load_i4`].
///
/// # Safety
/// The processor must have SSSE3, and `source` must be readable for 8 bytes.
#[inline(always)]
pub unsafe fn nibbles(source: *const u8) -> __m128i {
    // SAFETY: the caller guarantees SSSE3 and the memory read.
    unsafe {
        let low = _mm_loadl_epi64(source.cast());
        let both = _mm_unpacklo_epi64(low, _mm_srli_epi16::<4>(low));
        let signed = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
        _mm_shuffle_epi8(signed, _mm_and_si128(both, _mm_set1_epi8(15)))
    }
}

/// Loads values of two bits as signed bytes, in the lanes of [`Simd::load_i2`].
///
/// # Safety
/// The processor must have AVX2, and `source` must be readable for 4 bytes.
#[inline(always)]
pub unsafe fn crumbs(source: *const u8) -> __m128i {
    // SAFETY: the caller guarantees AVX2 and the memory read.
    unsafe {
        let word = _mm_set1_epi32(source.cast::<i32>().read_unaligned());
        let shifted = _mm_srlv_epi32(word, _mm_setr_epi32(0, 2, 4, 6));
        let signed = _mm_setr_epi8(0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1);
        _mm_shuffle_epi8(signed, _mm_and_si128(shifted, _mm_set1_epi8(3)))
    }
}

/// Converts sixteen signed bytes to values.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn widen(bytes: __m128i) -> Pair {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        Pair(
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))),
        )
    }
}

// SAFETY: the private field leaves `detect` as the only constructor, and the tests compare every
// method with the scalar form.
unsafe impl Simd for Avx2 {
    type V = Pair;
    const REGISTERS: Registers = Registers::Few;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe {
            let half = _mm256_set1_ps(value);
            Pair(half, half)
        }
    }
    #[inline(always)]
    fn prefetch<T>(self, address: *const T) {
        // SAFETY: a prefetch hint never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C, and the caller guarantees the memory read.
        unsafe { Pair(_mm256_loadu_ps(source), _mm256_loadu_ps(source.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_partial(self, source: *const f32, count: usize) -> Self::V {
        if count >= LANES {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.load(source) };
        }
        // SAFETY: `self` proves AVX2, FMA and F16C, and the caller guarantees the memory read.
        unsafe {
            let mut all = [0.0f32; LANES];
            std::ptr::copy_nonoverlapping(source, all.as_mut_ptr(), count.min(LANES));
            self.load(all.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, source: *const u16) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C, and the caller guarantees the memory read.
        unsafe {
            let widen =
                |bits: __m128i| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)));
            Pair(widen(_mm_loadu_si128(source.cast())), widen(_mm_loadu_si128(source.add(8).cast())))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, source: *const u16) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C, and the caller guarantees the memory read.
        unsafe {
            Pair(
                _mm256_cvtph_ps(_mm_loadu_si128(source.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(source.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, source: *const i8) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C, and the caller guarantees the memory read.
        unsafe { widen(_mm_loadu_si128(source.cast())) }
    }
    #[inline(always)]
    unsafe fn store_i8(self, target: *mut i8, v: Self::V) {
        // SAFETY: `self` proves AVX2, FMA and F16C, and the caller guarantees the memory written.
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvttps_epi32(v.0), _mm256_cvttps_epi32(v.1));
            // Packing interleaves the halves of both: 0–3, 8–11, 4–7, 12–15.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(target.cast(), bytes)
        }
    }
    #[inline(always)]
    unsafe fn load_i4(self, source: *const u8) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C, and the caller guarantees the memory read.
        unsafe { widen(nibbles(source)) }
    }
    #[inline(always)]
    unsafe fn load_i2(self, source: *const u8) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C, and the caller guarantees the memory read.
        unsafe { widen(crumbs(source)) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, target: *mut u16, v: Self::V) {
        // SAFETY: `self` proves AVX2, FMA and F16C, and the caller guarantees the memory written.
        unsafe {
            _mm_storeu_si128(target.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
            _mm_storeu_si128(target.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1))
        }
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32, v: Self::V) {
        // SAFETY: `self` proves AVX2, FMA and F16C, and the caller guarantees the memory written.
        unsafe {
            _mm256_storeu_ps(target, v.0);
            _mm256_storeu_ps(target.add(8), v.1)
        }
    }
    #[inline(always)]
    unsafe fn store_partial(self, target: *mut f32, count: usize, v: Self::V) {
        if count >= LANES {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.store(target, v) };
        }
        // SAFETY: `self` proves AVX2, FMA and F16C, and the caller guarantees the memory written.
        unsafe {
            let mut all = [0.0f32; LANES];
            self.store(all.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(all.as_ptr(), target, count.min(LANES))
        }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe { Pair(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe { Pair(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe { Pair(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe { Pair(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe { Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe { Pair(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe { Pair(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn select_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe {
            let pick = |a, b, x, y| _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
            Pair(pick(a.0, b.0, x.0, y.0), pick(a.1, b.1, x.1, y.1))
        }
    }
    #[inline(always)]
    fn all_less(self, a: Self::V, b: Self::V) -> bool {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe {
            let less = |a, b| _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
            _mm256_movemask_ps(_mm256_and_ps(less(a.0, b.0), less(a.1, b.1))) == 0xff
        }
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe { Pair(_mm256_sqrt_ps(a.0), _mm256_sqrt_ps(a.1)) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            Pair(_mm256_round_ps::<NEAREST>(a.0), _mm256_round_ps::<NEAREST>(a.1))
        }
    }
    #[inline(always)]
    fn exp2_int(self, n: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe {
            let bits =
                |n| _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)));
            Pair(_mm256_castsi256_ps(bits(n.0)), _mm256_castsi256_ps(bits(n.1)))
        }
    }
    #[inline(always)]
    fn neg(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe {
            let mask = _mm256_set1_ps(-0.0);
            Pair(_mm256_xor_ps(a.0, mask), _mm256_xor_ps(a.1, mask))
        }
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe {
            let mask = _mm256_set1_ps(-0.0);
            Pair(_mm256_andnot_ps(mask, a.0), _mm256_andnot_ps(mask, a.1))
        }
    }
    #[inline(always)]
    fn copy_sign(self, a: Self::V, sign: Self::V) -> Self::V {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe {
            let mask = _mm256_set1_ps(-0.0);
            let join = |a, sign| _mm256_or_ps(_mm256_andnot_ps(mask, a), _mm256_and_ps(mask, sign));
            Pair(join(a.0, sign.0), join(a.1, sign.1))
        }
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe { fold_add(_mm256_add_ps(a.0, a.1)) }
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        // SAFETY: `self` proves AVX2, FMA and F16C.
        unsafe { fold_max(_mm256_max_ps(a.0, a.1)) }
    }
}
