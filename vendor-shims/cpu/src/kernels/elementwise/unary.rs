use serde::{Deserialize, Serialize};

use crate::kernels::math;
use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

/// A function of one value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Unary {
    Copy,
    /// Gelu in its tanh form.
    Gelu,
    /// `x / (1 + e^−x)`
    Silu,
    /// `cap · tanh(x / cap)`
    Softcap(f32),
    /// `x + value`
    Add(f32),
    /// `x · value`
    Mul(f32),
    /// `max(x, value)`
    Max(f32),
    Neg,
    Exp,
    Tanh,
    Sqrt,
    /// `1 / √x`
    Rsqrt,
    Reciprocal,
    /// Rounds to the nearest integer, ties to even.
    Round,
    /// `1 / (1 + e^−x)`
    Sigmoid,
    /// `min(max(x, low), high)`, NaN if x is NaN.
    Clamp(f32, f32),
}

/// Values of one task.
const GRAIN: usize = 1 << 14;

/// Computes `out[i] = f(x[i])` for the first `count` values.
///
/// # Panics
/// When `x` or `out` is shorter than `count`.
pub fn unary(level: Level, pool: &Pool, kind: Unary, x: &[f32], count: usize, out: &mut [f32]) {
    assert!(x.len() >= count && out.len() >= count, "values shorter than the count");
    // A transcendental function costs about eight multiply-adds.
    if !pool.worth(8 * count as u64) {
        return values_at(level, kind, &x[..count], &mut out[..count]);
    }
    let out = SharedOutput::new(out);
    pool.run_pieces(count, GRAIN, &|start, length| {
        // SAFETY: every task has its own values.
        values_at(level, kind, &x[start..start + length], unsafe { out.part(start, length) });
    });
}

dispatch! { fn values_at => values(kind: Unary, x: &[f32], out: &mut [f32]) }

#[inline(always)]
fn each<S: Simd>(s: S, x: &[f32], out: &mut [f32], f: impl Fn(S::V) -> S::V) {
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        // SAFETY: both chunks have the same number of values, at most sixteen.
        unsafe {
            if x.len() == LANES {
                s.store(out.as_mut_ptr(), f(s.load(x.as_ptr())));
            } else {
                s.store_partial(out.as_mut_ptr(), x.len(), f(s.load_partial(x.as_ptr(), x.len())));
            }
        }
    }
}

#[inline(always)]
fn values<S: Simd>(s: S, kind: Unary, x: &[f32], out: &mut [f32]) {
    let one = s.splat(1.0);
    match kind {
        Unary::Copy => out.copy_from_slice(x),
        Unary::Gelu => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| math::gelu(s, v),
        ),
        Unary::Silu => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| math::silu(s, v),
        ),
        Unary::Softcap(cap) => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| math::softcap(s, v, cap),
        ),
        Unary::Add(value) => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| s.add(v, s.splat(value)),
        ),
        Unary::Mul(value) => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| s.mul(v, s.splat(value)),
        ),
        Unary::Max(value) => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| s.max(s.splat(value), v),
        ),
        Unary::Neg => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| s.neg(v),
        ),
        Unary::Exp => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| math::exp(s, v),
        ),
        Unary::Tanh => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| math::tanh(s, v),
        ),
        Unary::Sqrt => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| s.sqrt(v),
        ),
        Unary::Rsqrt => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| s.div(one, s.sqrt(v)),
        ),
        Unary::Reciprocal => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| s.div(one, v),
        ),
        Unary::Round => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| s.round(v),
        ),
        Unary::Sigmoid => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| math::sigmoid(s, v),
        ),
        Unary::Clamp(low, high) => each(
            s,
            x,
            out,
            #[inline(always)]
            |v| math::clamp(s, v, low, high),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_definition_at_every_level() {
        let x: Vec<f32> = (1..1000).map(|i| (i as f32 - 500.0) / 37.0).collect();
        type Meaning = fn(f64) -> f64;
        let cases: [(Unary, Meaning); 16] = [
            (Unary::Copy, |v| v),
            (Unary::Gelu, |v| {
                0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v)).tanh())
            }),
            (Unary::Silu, |v| v / (1.0 + (-v).exp())),
            (Unary::Softcap(3.0), |v| 3.0 * (v / 3.0).tanh()),
            (Unary::Add(1.5), |v| v + 1.5),
            (Unary::Mul(-2.0), |v| v * -2.0),
            (Unary::Max(0.25), |v| v.max(0.25)),
            (Unary::Neg, |v| -v),
            (Unary::Exp, f64::exp),
            (Unary::Tanh, f64::tanh),
            (Unary::Sqrt, f64::sqrt),
            (Unary::Rsqrt, |v| 1.0 / v.sqrt()),
            (Unary::Reciprocal, |v| 1.0 / v),
            (Unary::Round, f64::round_ties_even),
            (Unary::Sigmoid, |v| 1.0 / (1.0 + (-v).exp())),
            (Unary::Clamp(-0.75, 2.5), |v| v.clamp(-0.75, 2.5)),
        ];
        for (kind, meaning) in cases {
            let run = |level, threads| {
                let mut out = vec![9.0; x.len()];
                unary(level, &Pool::eager(threads), kind, &x, x.len(), &mut out);
                out.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect::<Vec<u32>>()
            };
            let expected = run(Level::Scalar, 1);
            for (x, got) in x.iter().zip(&expected) {
                let (got, exact) = (f64::from(f32::from_bits(*got)), meaning(f64::from(*x)));
                let close = (got - exact).abs() <= 2e-6 * exact.abs().max(0.1);
                assert!(
                    close || (got.is_nan() && exact.is_nan()) || got == exact,
                    "{kind:?}({x}) = {got}, exactly {exact}"
                );
            }
            for level in Level::available() {
                assert_eq!(run(level, 2), expected, "{kind:?} at {}", level.name());
            }
        }
    }
}
