use std::arch::aarch64::*;

use super::Dot;
use crate::simd::{LANES, Neon};

/// Proof that the processor has the product of four bytes in addition to [`Neon`].
#[derive(Clone, Copy, Debug)]
pub struct NeonDot(Neon);

impl NeonDot {
    /// Returns the token if the processor has the instructions.
    #[inline]
    pub fn detect() -> Option<Self> {
        if !std::arch::is_aarch64_feature_detected!("dotprod") {
            return None;
        }
        Neon::detect().map(NeonDot)
    }
}

/// Proof of [`Neon`] alone.
#[derive(Clone, Copy, Debug)]
pub struct NeonWiden(Neon);

impl NeonWiden {
    /// Returns the token if the processor has the instructions.
    #[inline]
    pub fn detect() -> Option<Self> {
        Neon::detect().map(NeonWiden)
    }
}

/// Computes `sum[i] + Σ w[4i + j] · q[4i + j]`.
///
/// # Safety
/// The processor must have the product of four bytes.
#[inline(always)]
unsafe fn four(mut sum: int32x4_t, w: int8x16_t, q: int8x16_t) -> int32x4_t {
    // SAFETY: the caller guarantees the instruction, which only accesses registers.
    unsafe {
        std::arch::asm!(
            ".arch_extension dotprod",
            "sdot {sum:v}.4s, {w:v}.16b, {q:v}.16b",
            sum = inout(vreg) sum,
            w = in(vreg) w,
            q = in(vreg) q,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Computes [`four`] with bytes `4 · index` to `4 · index + 3` of `q` for all lanes.
///
/// # Safety
/// The processor must have the product of four bytes.
#[inline(always)]
unsafe fn four_at(mut sum: int32x4_t, w: int8x16_t, q: int8x16_t, index: usize) -> int32x4_t {
    macro_rules! product {
        ($element:literal) => {
            std::arch::asm!(
                ".arch_extension dotprod",
                concat!("sdot {sum:v}.4s, {w:v}.16b, {q:v}.4b[", $element, "]"),
                sum = inout(vreg) sum,
                w = in(vreg) w,
                q = in(vreg) q,
                options(pure, nomem, nostack, preserves_flags),
            )
        };
    }
    // SAFETY: the caller guarantees the instruction, which only accesses registers.
    unsafe {
        match index {
            0 => product!(0),
            1 => product!(1),
            2 => product!(2),
            _ => product!(3),
        }
    }
    sum
}

/// Computes [`four`] with products widened to sixteen and then to 32 bits.
///
/// # Safety
/// The processor must have Advanced SIMD.
#[inline(always)]
unsafe fn widened(sum: int32x4_t, w: int8x16_t, q: int8x16_t) -> int32x4_t {
    // SAFETY: the caller guarantees Advanced SIMD.
    unsafe { grouped(sum, [w], [q]) }
}

/// Computes [`widened`] of `N` operands, whose products are added in sixteen bits. Their magnitudes
/// are at most 4 · 31 · 127 = 15,748, 2 · 63 · 127 = 16,002, or 128 · 127 for one operand.
///
/// # Safety
/// The processor must have Advanced SIMD.
#[inline(always)]
unsafe fn grouped<const N: usize>(sum: int32x4_t, w: [int8x16_t; N], q: [int8x16_t; N]) -> int32x4_t {
    // SAFETY: the caller guarantees Advanced SIMD.
    unsafe {
        let mut low = vmull_s8(vget_low_s8(w[0]), vget_low_s8(q[0]));
        let mut high = vmull_s8(vget_high_s8(w[0]), vget_high_s8(q[0]));
        for at in 1..N {
            low = vmlal_s8(low, vget_low_s8(w[at]), vget_low_s8(q[at]));
            high = vmlal_s8(high, vget_high_s8(w[at]), vget_high_s8(q[at]));
        }
        vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)))
    }
}

macro_rules! quarters {
    ($token:ident, $features:literal, $dot:ident $(, by element $element:ident)? $(, grouped $grouped:ident)?) => {
        // SAFETY: the private field leaves `detect` as the only constructor, and the tests compare
        // every method with the scalar form.
        unsafe impl Dot for $token {
            type F = Neon;
            type Sums = [int32x4_t; 4];
            type Bytes = [uint8x16_t; 4];
            type Quad = int8x16_t;
            type Step = int8x16_t;
            const OFFSET: i32 = 0;

            #[inline(always)]
            fn values(self) -> Neon {
                self.0
            }
            #[inline(always)]
            fn sums(self, lanes: &[i32; 16]) -> Self::Sums {
                // SAFETY: `self` proves Advanced SIMD, and there are four times four lanes.
                std::array::from_fn(|at| unsafe { vld1q_s32(lanes.as_ptr().add(4 * at)) })
            }
            #[inline(always)]
            fn splat(self, value: i32) -> Self::Sums {
                // SAFETY: `self` proves Advanced SIMD.
                unsafe { [vdupq_n_s32(value); 4] }
            }
            #[inline(always)]
            fn add(self, a: Self::Sums, b: Self::Sums) -> Self::Sums {
                // SAFETY: `self` proves Advanced SIMD.
                unsafe {
                    [
                        vaddq_s32(a[0], b[0]),
                        vaddq_s32(a[1], b[1]),
                        vaddq_s32(a[2], b[2]),
                        vaddq_s32(a[3], b[3]),
                    ]
                }
            }
            #[inline(always)]
            unsafe fn load(self, source: *const u8) -> Self::Bytes {
                // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory read.
                unsafe {
                    [
                        vld1q_u8(source),
                        vld1q_u8(source.add(16)),
                        vld1q_u8(source.add(32)),
                        vld1q_u8(source.add(48)),
                    ]
                }
            }
            #[inline(always)]
            unsafe fn store(self, target: *mut u8, bytes: Self::Bytes) {
                for (index, bytes) in bytes.into_iter().enumerate() {
                    // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory
                    // written.
                    unsafe { vst1q_u8(target.add(16 * index), bytes) };
                }
            }
            #[inline(always)]
            fn signed(self, bytes: Self::Bytes) -> Self::Bytes {
                bytes
            }
            #[inline(always)]
            fn field(self, bytes: Self::Bytes, bits: usize, part: usize) -> Self::Bytes {
                // SAFETY: `self` proves Advanced SIMD.
                unsafe {
                    let mask = vdupq_n_u8(if bits == 4 { 15 } else { 3 });
                    bytes.map(|quarter| {
                        let shifted = match bits * part {
                            0 => quarter,
                            2 => vshrq_n_u8::<2>(quarter),
                            4 => vshrq_n_u8::<4>(quarter),
                            _ => vshrq_n_u8::<6>(quarter),
                        };
                        vandq_u8(shifted, mask)
                    })
                }
            }
            #[inline(always)]
            unsafe fn thirds(self, source: *const u8) -> [Self::Bytes; 2] {
                // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory read.
                unsafe {
                    let (a, b, top) = (vld1q_u8(source), vld1q_u8(source.add(16)), vld1q_u8(source.add(32)));
                    let one = |low: uint8x16_t, top: uint8x16_t| {
                        vorrq_u8(vandq_u8(low, vdupq_n_u8(3)), vandq_u8(top, vdupq_n_u8(4)))
                    };
                    [
                        [
                            one(a, vshlq_n_u8::<2>(top)),
                            one(b, vshlq_n_u8::<1>(top)),
                            one(vshrq_n_u8::<2>(a), top),
                            one(vshrq_n_u8::<2>(b), vshrq_n_u8::<1>(top)),
                        ],
                        [
                            one(vshrq_n_u8::<4>(a), vshrq_n_u8::<2>(top)),
                            one(vshrq_n_u8::<4>(b), vshrq_n_u8::<3>(top)),
                            one(vshrq_n_u8::<6>(a), vshrq_n_u8::<4>(top)),
                            one(vshrq_n_u8::<6>(b), vshrq_n_u8::<5>(top)),
                        ],
                    ]
                }
            }
            #[inline(always)]
            fn raise(self, small: Self::Bytes, bits: Self::Bytes, part: usize) -> Self::Bytes {
                // A function, because a closure of this size is not inlined.
                #[inline(always)]
                unsafe fn one(small: uint8x16_t, bits: uint8x16_t, part: usize) -> uint8x16_t {
                    // SAFETY: the caller proves Advanced SIMD.
                    unsafe {
                        let shifted = match part {
                            0 => vshlq_n_u8::<4>(bits),
                            1 => vshlq_n_u8::<3>(bits),
                            2 => vshlq_n_u8::<2>(bits),
                            3 => vshlq_n_u8::<1>(bits),
                            4 => bits,
                            5 => vshrq_n_u8::<1>(bits),
                            6 => vshrq_n_u8::<2>(bits),
                            _ => vshrq_n_u8::<3>(bits),
                        };
                        // The selected bits of `small` are zero.
                        vbslq_u8(vdupq_n_u8(16), shifted, small)
                    }
                }
                // SAFETY: `self` proves Advanced SIMD.
                let one = |at: usize| unsafe { one(small[at], bits[at], part) };
                [one(0), one(1), one(2), one(3)]
            }
            #[inline(always)]
            fn deepen(self, small: Self::Bytes, bits: Self::Bytes, part: usize) -> Self::Bytes {
                // A function, as in `raise`.
                #[inline(always)]
                unsafe fn one(small: uint8x16_t, bits: uint8x16_t, part: usize) -> uint8x16_t {
                    // SAFETY: the caller proves Advanced SIMD.
                    unsafe {
                        let shifted = match part {
                            0 => vshlq_n_u8::<4>(bits),
                            1 => vshlq_n_u8::<2>(bits),
                            2 => bits,
                            _ => vshrq_n_u8::<2>(bits),
                        };
                        // The selected bits of `small` are zero.
                        vbslq_u8(vdupq_n_u8(48), shifted, small)
                    }
                }
                // SAFETY: `self` proves Advanced SIMD.
                let one = |at: usize| unsafe { one(small[at], bits[at], part) };
                [one(0), one(1), one(2), one(3)]
            }
            #[inline(always)]
            unsafe fn quad(self, source: *const i8) -> Self::Quad {
                // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory read.
                unsafe { vreinterpretq_s8_s32(vdupq_n_s32(source.cast::<i32>().read_unaligned())) }
            }
            #[inline(always)]
            unsafe fn step(self, source: *const i8) -> Self::Step {
                // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the memory read.
                unsafe { vld1q_s8(source) }
            }
            #[inline(always)]
            unsafe fn quad_at(self, step: Self::Step, index: usize) -> Self::Quad {
                // SAFETY: `self` proves Advanced SIMD.
                unsafe {
                    let words = vreinterpretq_s32_s8(step);
                    vreinterpretq_s8_s32(match index {
                        0 => vdupq_laneq_s32::<0>(words),
                        1 => vdupq_laneq_s32::<1>(words),
                        2 => vdupq_laneq_s32::<2>(words),
                        _ => vdupq_laneq_s32::<3>(words),
                    })
                }
            }
            $(
                #[inline(always)]
                unsafe fn dot_at(
                    self,
                    sums: Self::Sums,
                    w: Self::Bytes,
                    step: Self::Step,
                    index: usize,
                ) -> Self::Sums {
                    // SAFETY: `self` proves the instructions.
                    unsafe {
                        [
                            $element(sums[0], vreinterpretq_s8_u8(w[0]), step, index),
                            $element(sums[1], vreinterpretq_s8_u8(w[1]), step, index),
                            $element(sums[2], vreinterpretq_s8_u8(w[2]), step, index),
                            $element(sums[3], vreinterpretq_s8_u8(w[3]), step, index),
                        ]
                    }
                }
                #[inline(always)]
                unsafe fn dot_small_at(
                    self,
                    sums: Self::Sums,
                    w: Self::Bytes,
                    step: Self::Step,
                    index: usize,
                ) -> Self::Sums {
                    // SAFETY: guaranteed by the caller. A byte of at most 63 is the same when
                    // signed.
                    unsafe { self.dot_at(sums, w, step, index) }
                }
            )?
            $(
                const GROUPS: bool = true;
                #[inline(always)]
                unsafe fn dot_four_small(
                    self,
                    sums: Self::Sums,
                    w: [Self::Bytes; 4],
                    step: Self::Step,
                ) -> Self::Sums {
                    // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the step.
                    unsafe {
                        let q = [
                            self.quad_at(step, 0),
                            self.quad_at(step, 1),
                            self.quad_at(step, 2),
                            self.quad_at(step, 3),
                        ];
                        let one = |at: usize| {
                            let signed = [
                                vreinterpretq_s8_u8(w[0][at]),
                                vreinterpretq_s8_u8(w[1][at]),
                                vreinterpretq_s8_u8(w[2][at]),
                                vreinterpretq_s8_u8(w[3][at]),
                            ];
                            $grouped(sums[at], signed, q)
                        };
                        [one(0), one(1), one(2), one(3)]
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
                    // SAFETY: `self` proves Advanced SIMD, and the caller guarantees the step.
                    unsafe {
                        let q = [self.quad_at(step, first), self.quad_at(step, first + 1)];
                        let one = |at: usize| {
                            let signed = [vreinterpretq_s8_u8(w[0][at]), vreinterpretq_s8_u8(w[1][at])];
                            $grouped(sums[at], signed, q)
                        };
                        [one(0), one(1), one(2), one(3)]
                    }
                }
            )?
            #[inline(always)]
            fn dot(self, sums: Self::Sums, w: Self::Bytes, q: Self::Quad) -> Self::Sums {
                // SAFETY: `self` proves the instructions.
                unsafe {
                    [
                        $dot(sums[0], vreinterpretq_s8_u8(w[0]), q),
                        $dot(sums[1], vreinterpretq_s8_u8(w[1]), q),
                        $dot(sums[2], vreinterpretq_s8_u8(w[2]), q),
                        $dot(sums[3], vreinterpretq_s8_u8(w[3]), q),
                    ]
                }
            }
            #[inline(always)]
            fn dot_small(self, sums: Self::Sums, w: Self::Bytes, q: Self::Quad) -> Self::Sums {
                // A byte of at most 63 is the same when signed.
                self.dot(sums, w, q)
            }
            #[inline(always)]
            fn dot_each(self, sums: Self::Sums, w: Self::Bytes, q: Self::Bytes) -> Self::Sums {
                // SAFETY: `self` proves the instructions. A byte of at most 31 is the same when
                // signed.
                let one = |at: usize| unsafe {
                    $dot(sums[at], vreinterpretq_s8_u8(w[at]), vreinterpretq_s8_u8(q[at]))
                };
                [one(0), one(1), one(2), one(3)]
            }
            #[inline(always)]
            fn widen(self, sums: Self::Sums) -> [float32x4_t; 4] {
                // SAFETY: `self` proves Advanced SIMD.
                unsafe {
                    [
                        vcvtq_f32_s32(sums[0]),
                        vcvtq_f32_s32(sums[1]),
                        vcvtq_f32_s32(sums[2]),
                        vcvtq_f32_s32(sums[3]),
                    ]
                }
            }
            #[inline(always)]
            fn total(self, sums: Self::Sums) -> i32 {
                // SAFETY: `self` proves Advanced SIMD.
                unsafe { vaddvq_s32(vaddq_s32(vaddq_s32(sums[0], sums[1]), vaddq_s32(sums[2], sums[3]))) }
            }
            #[inline(always)]
            fn lanes(self, sums: Self::Sums) -> [i32; LANES] {
                let mut out = [0; LANES];
                for (index, sums) in sums.into_iter().enumerate() {
                    // SAFETY: `self` proves Advanced SIMD, and there are sixteen places.
                    unsafe { vst1q_s32(out.as_mut_ptr().add(4 * index), sums) };
                }
                out
            }
            super::apart!($features);
        }
    };
}
quarters!(NeonDot, "neon,dotprod", four, by element four_at);
quarters!(NeonWiden, "neon", widened, grouped grouped);
