//! Multiply-adds on registers alone, which measure the peak rate of a core for benchmarks.

use std::hint::black_box;

use super::dot::{Dot, VECTOR, dispatch_dot};
use super::{LANES, Registers, Simd, dispatch};

dispatch! {
    /// Runs `rounds` of f32 multiply-adds in independent sums. Returns the number of multiply-adds.
    pub fn floats => float_rounds(rounds: usize) -> usize
}

dispatch_dot! {
    /// Runs `rounds` of byte products in independent sums. Sets `made` to the number of products.
    pub fn bytes => byte_rounds(rounds: usize, made: &mut usize)
}

#[inline(always)]
fn float_rounds<S: Simd>(s: S, rounds: usize) -> usize {
    match S::REGISTERS {
        Registers::None => float_chains::<S, 1>(s, rounds),
        Registers::Few => float_chains::<S, 6>(s, rounds),
        Registers::Many => float_chains::<S, 16>(s, rounds),
    }
}

#[inline(always)]
fn float_chains<S: Simd, const CHAINS: usize>(s: S, rounds: usize) -> usize {
    let (a, b) = (s.splat(black_box(0.5)), s.splat(black_box(0.25)));
    let mut sums = [s.splat(black_box(1.0)); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = s.fma(a, *sum, b);
        }
    }
    black_box(sums.map(|sum| s.reduce_max(sum)));
    rounds * CHAINS * LANES
}

#[inline(always)]
fn byte_rounds<D: Dot>(d: D, rounds: usize, made: &mut usize) {
    *made = match D::F::REGISTERS {
        Registers::None => byte_chains::<D, 1>(d, rounds),
        Registers::Few => byte_chains::<D, 6>(d, rounds),
        Registers::Many => byte_chains::<D, 16>(d, rounds),
    };
}

#[inline(always)]
fn byte_chains<D: Dot, const CHAINS: usize>(d: D, rounds: usize) -> usize {
    let weights = black_box([3u8; VECTOR]);
    let row = black_box([2i8; 4]);
    // SAFETY: both arrays have the length that is read.
    let (weights, row) = unsafe { (d.signed(d.load(weights.as_ptr())), d.quad(row.as_ptr())) };
    let mut sums = [d.splat(black_box(0)); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = d.dot(*sum, weights, row);
        }
    }
    black_box(sums.map(|sum| d.total(sum)));
    rounds * CHAINS * VECTOR
}
