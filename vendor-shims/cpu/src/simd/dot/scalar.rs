use super::{Dot, THIRDS, VECTOR};
#[cfg(test)]
use crate::simd::Wide;
use crate::simd::{LANES, Scalar};

fn sums(mut sums: [i32; LANES], w: [u8; VECTOR], q: [i8; 4], value: impl Fn(u8) -> i32) -> [i32; LANES] {
    for (sum, w) in sums.iter_mut().zip(w.as_chunks::<4>().0) {
        for (w, q) in w.iter().zip(q) {
            *sum = sum.wrapping_add(value(*w) * i32::from(q));
        }
    }
    sums
}

/// Implements [`Dot`] in plain Rust. `$value` is the factor of a byte to which `$offset` was added.
/// Loops over the bytes of a vector are not inlined, because kernels would otherwise take minutes
/// to compile.
macro_rules! plain {
    ($token:ident, $offset:literal, |$byte:ident| $value:expr) => {
        // SAFETY: plain Rust runs everywhere, and this is the definition.
        unsafe impl Dot for $token {
            type F = $token;
            type Sums = [i32; LANES];
            type Bytes = [u8; VECTOR];
            type Quad = [i8; 4];
            type Step = *const i8;
            const OFFSET: i32 = $offset;
            const RAISES: bool = true;

            #[inline(always)]
            fn values(self) -> $token {
                self
            }
            #[inline(always)]
            fn sums(self, lanes: &[i32; LANES]) -> Self::Sums {
                *lanes
            }
            #[inline(always)]
            fn splat(self, value: i32) -> Self::Sums {
                [value; LANES]
            }
            #[inline(always)]
            fn add(self, a: Self::Sums, b: Self::Sums) -> Self::Sums {
                std::array::from_fn(|lane| a[lane].wrapping_add(b[lane]))
            }
            #[inline(always)]
            unsafe fn load(self, source: *const u8) -> Self::Bytes {
                // SAFETY: the caller guarantees the memory read, and bytes need no alignment.
                unsafe { source.cast::<[u8; VECTOR]>().read() }
            }
            #[inline(always)]
            unsafe fn store(self, target: *mut u8, bytes: Self::Bytes) {
                // SAFETY: the caller guarantees the memory written, and bytes need no alignment.
                unsafe { target.cast::<[u8; VECTOR]>().write(bytes) }
            }
            #[inline(never)]
            fn signed(self, bytes: Self::Bytes) -> Self::Bytes {
                bytes.map(|byte| byte.wrapping_add($offset))
            }
            #[inline(never)]
            fn field(self, bytes: Self::Bytes, bits: usize, part: usize) -> Self::Bytes {
                bytes.map(|byte| (byte >> (bits * part)) & ((1 << bits) - 1))
            }
            #[inline(never)]
            unsafe fn thirds(self, source: *const u8) -> [Self::Bytes; 2] {
                // SAFETY: the caller guarantees the memory read, and bytes need no alignment.
                let bytes = unsafe { source.cast::<[u8; THIRDS]>().read() };
                let part = |at: usize| {
                    (bytes[at % 32] >> (2 * (at / 32)) & 3) | (bytes[32 + at % 16] >> (at / 16) & 1) << 2
                };
                [std::array::from_fn(part), std::array::from_fn(|at| part(VECTOR + at))]
            }
            #[inline(never)]
            fn raise(self, small: Self::Bytes, bits: Self::Bytes, part: usize) -> Self::Bytes {
                std::array::from_fn(|at| small[at] + (bits[at] >> part & 1) * 16)
            }
            #[inline(never)]
            fn deepen(self, small: Self::Bytes, bits: Self::Bytes, part: usize) -> Self::Bytes {
                std::array::from_fn(|at| small[at] + (bits[at] >> (2 * part) & 3) * 16)
            }
            #[inline(always)]
            unsafe fn quad(self, source: *const i8) -> Self::Quad {
                // SAFETY: the caller guarantees the memory read, and bytes need no alignment.
                unsafe { source.cast::<[i8; 4]>().read() }
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
            #[inline(never)]
            fn dot(self, sum: Self::Sums, w: Self::Bytes, q: Self::Quad) -> Self::Sums {
                sums(sum, w, q, |$byte| $value)
            }
            #[inline(never)]
            fn dot_raised(self, mut sum: Self::Sums, w: Self::Bytes, q: Self::Quad) -> Self::Sums {
                for (sum, w) in sum.iter_mut().zip(w.as_chunks::<4>().0) {
                    for (w, q) in w.iter().zip(q) {
                        *sum = sum.wrapping_add(i32::from(*w as i8) * i32::from(q as u8));
                    }
                }
                sum
            }
            #[inline(never)]
            fn dot_small(self, sum: Self::Sums, w: Self::Bytes, q: Self::Quad) -> Self::Sums {
                sums(sum, w, q, i32::from)
            }
            #[inline(never)]
            fn dot_each(self, mut sums: Self::Sums, w: Self::Bytes, q: Self::Bytes) -> Self::Sums {
                let (w, q) = (w.as_chunks::<4>().0, q.as_chunks::<4>().0);
                for (sum, (w, q)) in sums.iter_mut().zip(w.iter().zip(q)) {
                    for (w, q) in w.iter().zip(q) {
                        *sum = sum.wrapping_add(i32::from(*w) * i32::from(*q as i8));
                    }
                }
                sums
            }
            #[inline(always)]
            fn widen(self, sums: Self::Sums) -> [f32; LANES] {
                sums.map(|sum| sum as f32)
            }
            #[inline(always)]
            fn total(self, sums: Self::Sums) -> i32 {
                sums.iter().fold(0, |total, sum| total.wrapping_add(*sum))
            }
            #[inline(always)]
            fn lanes(self, sums: Self::Sums) -> [i32; LANES] {
                sums
            }
            super::apart!();
        }
    };
}
plain!(Scalar, 0, |byte| i32::from(byte as i8));
// As with AVX-512 VNNI, signed bytes are made unsigned.
#[cfg(test)]
plain!(Wide, 128, |byte| i32::from(byte));
