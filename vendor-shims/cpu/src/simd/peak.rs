//! Multiply-adds of registers and nothing else: the most that a core can do, for benchmarks to
//! compare kernels with.

use std::hint::black_box;

use super::dot::{Dot, VECTOR, dispatch_dot};
use super::{LANES, Registers, Simd, dispatch};

dispatch! {
    /// `rounds` of multiply-adds of f32 in sums that do not wait for each other; gives how many
    /// were made.
    pub fn floats => float_rounds(rounds: usize) -> usize
}

dispatch_dot! {
    /// `rounds` of products of bytes in sums that do not wait for each other; `made` becomes how
    /// many were made.
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
    // SAFETY: both are as long as what is read of them.
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
