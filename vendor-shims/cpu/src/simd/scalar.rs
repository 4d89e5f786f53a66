use super::{LANES, Registers, Simd};

/// The definition of every operation, in plain Rust.
#[derive(Clone, Copy, Debug)]
pub struct Scalar;

/// Plain Rust with the register tiles of AVX-512, so that tests run them on every processor.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub struct Wide;

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for (lane, value) in out.iter_mut().enumerate() {
        *value = f(lane);
    }
    out
}

#[inline(always)]
fn fold(mut a: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            a[lane] = f(a[lane], a[lane + width]);
        }
        width /= 2;
    }
    a[0]
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Returns the exact value of a bfloat16.
#[inline(always)]
pub fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Returns the exact value of a binary16. A signalling NaN becomes quiet, as in the processors'
/// conversions.
#[inline(always)]
pub fn widen_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let fraction = u32::from(bits & 0x3ff);
    match (exponent, fraction) {
        (0, fraction) => {
            // A subnormal is fraction · 2⁻²⁴, exact in f32.
            let magnitude = fraction as f32 * f32::from_bits(0x3380_0000);
            f32::from_bits(magnitude.to_bits() | sign)
        }
        (0x1f, 0) => f32::from_bits(sign | 0x7f80_0000),
        (0x1f, fraction) => f32::from_bits(sign | 0x7fc0_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (fraction << 13)),
    }
}

/// Returns the nearest binary16, ties to even, or infinity beyond its range. A NaN stays NaN and
/// becomes quiet, as in the processors' conversions.
#[inline(always)]
pub fn narrow_f16(value: f32) -> u16 {
    let sign = ((value.to_bits() >> 16) & 0x8000) as u16;
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let narrowed = if magnitude > 0x7f80_0000 {
        0x7e00 | ((magnitude >> 13) & 0x3ff)
    } else if magnitude >= 0x4780_0000 {
        0x7c00
    } else if magnitude < 0x3880_0000 {
        // For subnormal results, the step of f32 between ½ and 1 is the smallest binary16, so the
        // addition rounds to it.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000
    } else {
        (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x3800_0000) >> 13
    };
    sign | narrowed as u16
}

/// Implements [`Simd`] in plain Rust.
macro_rules! plain {
    ($token:ident, $registers:expr) => {
        // SAFETY: plain Rust runs everywhere, and this is the definition.
        unsafe impl Simd for $token {
            type V = [f32; LANES];
            const REGISTERS: Registers = $registers;

            #[inline(always)]
            fn splat(self, value: f32) -> Self::V {
                [value; LANES]
            }
            #[inline(always)]
            unsafe fn load(self, source: *const f32) -> Self::V {
                // SAFETY: the caller guarantees 16 f32, and the cast keeps the alignment of f32.
                unsafe { source.cast::<[f32; LANES]>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn load_partial(self, source: *const f32, count: usize) -> Self::V {
                // SAFETY: only the guaranteed `count` values are read.
                each(|lane| if lane < count { unsafe { source.add(lane).read() } } else { 0.0 })
            }
            #[inline(always)]
            unsafe fn load_bf16(self, source: *const u16) -> Self::V {
                // SAFETY: the caller guarantees 16 u16.
                each(|lane| widen_bf16(unsafe { source.add(lane).read() }))
            }
            #[inline(always)]
            unsafe fn load_f16(self, source: *const u16) -> Self::V {
                // SAFETY: the caller guarantees 16 u16.
                each(|lane| widen_f16(unsafe { source.add(lane).read() }))
            }
            #[inline(always)]
            unsafe fn load_i8(self, source: *const i8) -> Self::V {
                // SAFETY: the caller guarantees 16 bytes.
                each(|lane| f32::from(unsafe { source.add(lane).read() }))
            }
            #[inline(always)]
            unsafe fn store_i8(self, target: *mut i8, v: Self::V) {
                for (lane, value) in v.into_iter().enumerate() {
                    // SAFETY: the caller guarantees 16 bytes.
                    unsafe { target.add(lane).write(value as i8) }
                }
            }
            #[inline(always)]
            unsafe fn load_i4(self, source: *const u8) -> Self::V {
                each(|lane| {
                    // SAFETY: the caller guarantees 8 bytes.
                    let byte = unsafe { source.add(lane % 8).read() };
                    // The shift to the top and back sign-extends.
                    f32::from((byte << (4 - 4 * (lane / 8))) as i8 >> 4)
                })
            }
            #[inline(always)]
            unsafe fn load_i2(self, source: *const u8) -> Self::V {
                each(|lane| {
                    // SAFETY: the caller guarantees 4 bytes.
                    let byte = unsafe { source.add(lane % 4).read() };
                    f32::from((byte << (6 - 2 * (lane / 4))) as i8 >> 6)
                })
            }
            #[inline(always)]
            unsafe fn store_f16(self, target: *mut u16, v: Self::V) {
                for (lane, value) in v.into_iter().enumerate() {
                    // SAFETY: the caller guarantees 16 u16.
                    unsafe { target.add(lane).write(narrow_f16(value)) }
                }
            }
            #[inline(always)]
            unsafe fn store(self, target: *mut f32, v: Self::V) {
                // SAFETY: the caller guarantees 16 f32.
                unsafe { target.cast::<[f32; LANES]>().write_unaligned(v) }
            }
            #[inline(always)]
            unsafe fn store_partial(self, target: *mut f32, count: usize, v: Self::V) {
                for (lane, value) in v.into_iter().enumerate().take(count) {
                    // SAFETY: only the guaranteed `count` values are written.
                    unsafe { target.add(lane).write(value) }
                }
            }

            #[inline(always)]
            fn add(self, a: Self::V, b: Self::V) -> Self::V {
                each(|lane| a[lane] + b[lane])
            }
            #[inline(always)]
            fn sub(self, a: Self::V, b: Self::V) -> Self::V {
                each(|lane| a[lane] - b[lane])
            }
            #[inline(always)]
            fn mul(self, a: Self::V, b: Self::V) -> Self::V {
                each(|lane| a[lane] * b[lane])
            }
            #[inline(always)]
            fn div(self, a: Self::V, b: Self::V) -> Self::V {
                each(|lane| a[lane] / b[lane])
            }
            #[inline(always)]
            fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
                each(|lane| a[lane].mul_add(b[lane], c[lane]))
            }
            #[inline(always)]
            fn max(self, a: Self::V, b: Self::V) -> Self::V {
                each(|lane| larger(a[lane], b[lane]))
            }
            #[inline(always)]
            fn min(self, a: Self::V, b: Self::V) -> Self::V {
                each(|lane| if a[lane] < b[lane] { a[lane] } else { b[lane] })
            }
            #[inline(always)]
            fn select_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
                each(|lane| if a[lane] < b[lane] { x[lane] } else { y[lane] })
            }
            #[inline(always)]
            fn all_less(self, a: Self::V, b: Self::V) -> bool {
                a.iter().zip(&b).all(|(a, b)| a < b)
            }
            #[inline(always)]
            fn sqrt(self, a: Self::V) -> Self::V {
                each(|lane| a[lane].sqrt())
            }
            #[inline(always)]
            fn round(self, a: Self::V) -> Self::V {
                each(|lane| a[lane].round_ties_even())
            }
            #[inline(always)]
            fn exp2_int(self, n: Self::V) -> Self::V {
                each(|lane| f32::from_bits(((n[lane] as i32).wrapping_add(127) << 23) as u32))
            }
            #[inline(always)]
            fn neg(self, a: Self::V) -> Self::V {
                each(|lane| -a[lane])
            }
            #[inline(always)]
            fn abs(self, a: Self::V) -> Self::V {
                each(|lane| a[lane].abs())
            }
            #[inline(always)]
            fn copy_sign(self, a: Self::V, sign: Self::V) -> Self::V {
                each(|lane| a[lane].copysign(sign[lane]))
            }
            #[inline(always)]
            fn reduce_add(self, a: Self::V) -> f32 {
                fold(a, |x, y| x + y)
            }
            #[inline(always)]
            fn reduce_max(self, a: Self::V) -> f32 {
                fold(a, larger)
            }
        }
    };
}
plain!(Scalar, Registers::None);
#[cfg(test)]
plain!(Wide, Registers::Many);
