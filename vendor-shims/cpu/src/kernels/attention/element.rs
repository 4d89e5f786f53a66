//! Keys and values that are read directly from a state and widened while loading into a register.

use crate::simd::{LANES, Simd};

/// An element as stored in memory.
pub trait KvElement: Copy {
    /// Loads sixteen elements.
    ///
    /// # Safety
    /// `source` must be readable for sixteen elements.
    unsafe fn load<S: Simd>(s: S, source: *const Self) -> S::V;

    /// Loads the first `count` elements, at most sixteen. All other lanes are zero.
    ///
    /// # Safety
    /// `source` must be readable for `count` elements.
    unsafe fn load_partial<S: Simd>(s: S, source: *const Self, count: usize) -> S::V;
}

impl KvElement for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, source: *const f32) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { s.load(source) }
    }

    #[inline(always)]
    unsafe fn load_partial<S: Simd>(s: S, source: *const f32, count: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { s.load_partial(source, count) }
    }
}

/// The bits of a binary16.
impl KvElement for u16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, source: *const u16) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { s.load_f16(source) }
    }

    #[inline(always)]
    unsafe fn load_partial<S: Simd>(s: S, source: *const u16, count: usize) -> S::V {
        let mut all = [0; LANES];
        // SAFETY: guaranteed by the caller, and `all` has sixteen places.
        unsafe {
            std::ptr::copy_nonoverlapping(source, all.as_mut_ptr(), count.min(LANES));
            s.load_f16(all.as_ptr())
        }
    }
}
