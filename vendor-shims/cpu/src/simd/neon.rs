use std::arch::aarch64::*;

use super::{LANES, Registers, Simd};

/// Proof of Advanced SIMD.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

impl Neon {
    /// Returns the token if the processor has the instructions.
    #[inline]
    pub fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Neon(()))
    }
}

/// Converts sixteen signed bytes to values.
///
/// # Safety
/// The processor must have Advanced SIMD.
#[inline(always)]
unsafe fn widen(bytes: int8x16_t) -> [float32x4_t; 4] {
    // SAFETY: the caller guarantees Advanced SIMD.
    unsafe {
        let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
        [
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
            vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
            vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
        ]
    }
}

// SAFETY: the private field leaves `detect` as the only constructor, and the tests compare every
// method with the scalar form.
unsafe impl Simd for Neon {
    type V = [float32x4_t; 4];
    const REGISTERS: Registers = Registers::Few;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe { [vdupq_n_f32(value); 4] }
    }
    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory read.
        unsafe {
            [
                vld1q_f32(source),
                vld1q_f32(source.add(4)),
                vld1q_f32(source.add(2 * 4)),
                vld1q_f32(source.add(3 * 4)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_partial(self, source: *const f32, count: usize) -> Self::V {
        if count >= LANES {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.load(source) };
        }
        // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory read.
        unsafe {
            let mut all = [0.0f32; LANES];
            std::ptr::copy_nonoverlapping(source, all.as_mut_ptr(), count.min(LANES));
            self.load(all.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, source: *const u16) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory read.
        unsafe {
            let widen = |bits: uint16x4_t| vreinterpretq_f32_u32(vshll_n_u16::<16>(bits));
            [
                widen(vld1_u16(source)),
                widen(vld1_u16(source.add(4))),
                widen(vld1_u16(source.add(2 * 4))),
                widen(vld1_u16(source.add(3 * 4))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, source: *const u16) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory read.
        unsafe {
            let widen = |bits: uint16x4_t| vcvt_f32_f16(vreinterpret_f16_u16(bits));
            [
                widen(vld1_u16(source)),
                widen(vld1_u16(source.add(4))),
                widen(vld1_u16(source.add(2 * 4))),
                widen(vld1_u16(source.add(3 * 4))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, source: *const i8) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory read.
        unsafe { widen(vld1q_s8(source)) }
    }
    #[inline(always)]
    unsafe fn store_i8(self, target: *mut i8, v: Self::V) {
        // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory written.
        unsafe {
            let words = v.map(|quarter| vqmovn_s32(vcvtq_s32_f32(quarter)));
            let bytes = [vcombine_s16(words[0], words[1]), vcombine_s16(words[2], words[3])]
                .map(|half| vqmovn_s16(half));
            vst1q_s8(target, vcombine_s8(bytes[0], bytes[1]))
        }
    }
    #[inline(always)]
    unsafe fn load_i4(self, source: *const u8) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory read.
        unsafe {
            let bytes = vld1_u8(source);
            let low = vshr_n_s8::<4>(vreinterpret_s8_u8(vshl_n_u8::<4>(bytes)));
            widen(vcombine_s8(low, vshr_n_s8::<4>(vreinterpret_s8_u8(bytes))))
        }
    }
    #[inline(always)]
    unsafe fn load_i2(self, source: *const u8) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory read.
        unsafe {
            const TO_THE_TOP: [i8; 16] = [6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0];
            let bytes = vreinterpretq_u8_u32(vdupq_n_u32(source.cast::<u32>().read_unaligned()));
            let raised = vshlq_u8(bytes, vld1q_s8(TO_THE_TOP.as_ptr()));
            widen(vshrq_n_s8::<6>(vreinterpretq_s8_u8(raised)))
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, target: *mut u16, v: Self::V) {
        // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory written.
        unsafe {
            for (index, quarter) in v.into_iter().enumerate() {
                vst1_u16(target.add(index * 4), vreinterpret_u16_f16(vcvt_f16_f32(quarter)));
            }
        }
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32, v: Self::V) {
        // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory written.
        unsafe {
            for (index, quarter) in v.into_iter().enumerate() {
                vst1q_f32(target.add(index * 4), quarter);
            }
        }
    }
    #[inline(always)]
    unsafe fn store_partial(self, target: *mut f32, count: usize, v: Self::V) {
        if count >= LANES {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.store(target, v) };
        }
        // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory written.
        unsafe {
            let mut all = [0.0f32; LANES];
            self.store(all.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(all.as_ptr(), target, count.min(LANES))
        }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1]), vaddq_f32(a[2], b[2]), vaddq_f32(a[3], b[3])]
        }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1]), vsubq_f32(a[2], b[2]), vsubq_f32(a[3], b[3])]
        }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1]), vmulq_f32(a[2], b[2]), vmulq_f32(a[3], b[3])]
        }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1]), vdivq_f32(a[2], b[2]), vdivq_f32(a[3], b[3])]
        }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            [
                vfmaq_f32(c[0], a[0], b[0]),
                vfmaq_f32(c[1], a[1], b[1]),
                vfmaq_f32(c[2], a[2], b[2]),
                vfmaq_f32(c[3], a[3], b[3]),
            ]
        }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            [
                vbslq_f32(vcgtq_f32(a[0], b[0]), a[0], b[0]),
                vbslq_f32(vcgtq_f32(a[1], b[1]), a[1], b[1]),
                vbslq_f32(vcgtq_f32(a[2], b[2]), a[2], b[2]),
                vbslq_f32(vcgtq_f32(a[3], b[3]), a[3], b[3]),
            ]
        }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            [
                vbslq_f32(vcltq_f32(a[0], b[0]), a[0], b[0]),
                vbslq_f32(vcltq_f32(a[1], b[1]), a[1], b[1]),
                vbslq_f32(vcltq_f32(a[2], b[2]), a[2], b[2]),
                vbslq_f32(vcltq_f32(a[3], b[3]), a[3], b[3]),
            ]
        }
    }
    #[inline(always)]
    fn select_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            [
                vbslq_f32(vcltq_f32(a[0], b[0]), x[0], y[0]),
                vbslq_f32(vcltq_f32(a[1], b[1]), x[1], y[1]),
                vbslq_f32(vcltq_f32(a[2], b[2]), x[2], y[2]),
                vbslq_f32(vcltq_f32(a[3], b[3]), x[3], y[3]),
            ]
        }
    }
    #[inline(always)]
    fn all_less(self, a: Self::V, b: Self::V) -> bool {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            let first = vandq_u32(vcltq_f32(a[0], b[0]), vcltq_f32(a[1], b[1]));
            let second = vandq_u32(vcltq_f32(a[2], b[2]), vcltq_f32(a[3], b[3]));
            vminvq_u32(vandq_u32(first, second)) == u32::MAX
        }
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe { [vsqrtq_f32(a[0]), vsqrtq_f32(a[1]), vsqrtq_f32(a[2]), vsqrtq_f32(a[3])] }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe { [vrndnq_f32(a[0]), vrndnq_f32(a[1]), vrndnq_f32(a[2]), vrndnq_f32(a[3])] }
    }
    #[inline(always)]
    fn exp2_int(self, n: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            let bits = |n| vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)));
            [
                vreinterpretq_f32_s32(bits(n[0])),
                vreinterpretq_f32_s32(bits(n[1])),
                vreinterpretq_f32_s32(bits(n[2])),
                vreinterpretq_f32_s32(bits(n[3])),
            ]
        }
    }
    #[inline(always)]
    fn neg(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe { [vnegq_f32(a[0]), vnegq_f32(a[1]), vnegq_f32(a[2]), vnegq_f32(a[3])] }
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe { [vabsq_f32(a[0]), vabsq_f32(a[1]), vabsq_f32(a[2]), vabsq_f32(a[3])] }
    }
    #[inline(always)]
    fn copy_sign(self, a: Self::V, sign: Self::V) -> Self::V {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            let mask = vdupq_n_u32(0x8000_0000);
            [
                vbslq_f32(mask, sign[0], a[0]),
                vbslq_f32(mask, sign[1], a[1]),
                vbslq_f32(mask, sign[2], a[2]),
                vbslq_f32(mask, sign[3], a[3]),
            ]
        }
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            let eight = [vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3])];
            let four = vaddq_f32(eight[0], eight[1]);
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        // SAFETY: `self` proves Advanced SIMD.
        unsafe {
            let larger = |a, b| vbslq_f32(vcgtq_f32(a, b), a, b);
            let four = larger(larger(a[0], a[2]), larger(a[1], a[3]));
            let mut last = [0.0f32; 4];
            vst1q_f32(last.as_mut_ptr(), four);
            let pick = |a: f32, b: f32| if a > b { a } else { b };
            pick(pick(last[0], last[2]), pick(last[1], last[3]))
        }
    }
}
