//! Exponential and hyperbolic tangent with the same bits on every instruction set.

use crate::simd::Simd;

/// Computes `eˣ` within 2 ulp: 0 below −104, infinite above 88.73, NaN for NaN.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2, a polynomial of degree 7 in r (minimax, as in the
/// public-domain Cephes library), then a factor of 2ⁿ in two steps, so that subnormal results are
/// rounded once.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // The operand order of `max` and `min` propagates NaN.
    let x = s.max(s.splat(-110.0), s.min(s.splat(100.0), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
        p = s.fma(p, r, s.splat(coefficient));
    }
    let y = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    let half = s.round(s.mul(n, s.splat(0.5)));
    s.mul(s.mul(y, s.exp2_int(half)), s.exp2_int(s.sub(n, half)))
}

/// Computes `tanh x` within 3 ulp.
///
/// Uses an odd polynomial (as in Cephes) below 0.625, else `1 − 2 / (e^2|x| + 1)` with the sign of
/// x.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let magnitude = s.abs(x);
    let z = s.mul(x, x);
    let mut p = s.splat(-5.704_989e-3);
    for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = s.fma(p, z, s.splat(coefficient));
    }
    let near = s.fma(s.mul(p, z), x, x);
    let e = exp(s, s.add(magnitude, magnitude));
    let far = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))));
    s.select_less(magnitude, s.splat(0.625), near, s.copy_sign(far, x))
}

/// Computes `0.5 x (1 + tanh u)` with `u = √(2/π) (x + 0.044715 x³)` as `x / (1 + e^(−2u))`. This
/// form avoids the cancellation of `1 + tanh u` on the negative side.
#[inline(always)]
pub fn gelu<S: Simd>(s: S, x: S::V) -> S::V {
    const MINUS_TWO_ROOT: f32 = -1.595_769; // −2 √(2/π)
    let cube = s.mul(s.mul(x, x), x);
    let u = s.fma(cube, s.splat(0.044715), x);
    s.div(x, s.add(s.splat(1.0), exp(s, s.mul(u, s.splat(MINUS_TWO_ROOT)))))
}

/// Computes `x / (1 + e^(−x))`.
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    s.div(x, s.add(s.splat(1.0), exp(s, s.neg(x))))
}

/// Computes `1 / (1 + e^(−x))`.
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    s.div(s.splat(1.0), s.add(s.splat(1.0), exp(s, s.neg(x))))
}

/// Computes `min(max(x, low), high)`. The operand order propagates NaN.
#[inline(always)]
pub fn clamp<S: Simd>(s: S, x: S::V, low: f32, high: f32) -> S::V {
    s.min(s.splat(high), s.max(s.splat(low), x))
}

/// Computes `cap · tanh(x / cap)`.
#[inline(always)]
pub fn softcap<S: Simd>(s: S, x: S::V, cap: f32) -> S::V {
    s.mul(s.splat(cap), tanh(s, s.div(x, s.splat(cap))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Level, dispatch};

    #[inline(always)]
    fn all<S: Simd>(s: S, input: &[f32; 16]) -> [[f32; 16]; 5] {
        let mut out = [[0.0; 16]; 5];
        // SAFETY: sixteen values each.
        unsafe {
            let x = s.load(input.as_ptr());
            s.store(out[0].as_mut_ptr(), exp(s, x));
            s.store(out[1].as_mut_ptr(), tanh(s, x));
            s.store(out[2].as_mut_ptr(), gelu(s, x));
            s.store(out[3].as_mut_ptr(), silu(s, x));
            s.store(out[4].as_mut_ptr(), softcap(s, x, 30.0));
        }
        out
    }
    dispatch! { fn all_at => all(input: &[f32; 16]) -> [[f32; 16]; 5] }

    fn ulps(got: f32, exact: f64) -> f64 {
        let exact32 = exact as f32;
        if exact32.is_infinite() || got.is_infinite() {
            return if got == exact32 { 0.0 } else { f64::INFINITY };
        }
        let spacing = f64::from(f32::from_bits((exact32.abs().to_bits() & 0x7f80_0000).max(0x0080_0000)))
            * f64::from(f32::EPSILON);
        (f64::from(got) - exact).abs() / spacing
    }

    #[test]
    fn errors_are_bounded_and_levels_agree() {
        let mut worst = [0.0f64; 5];
        for block in 0..40_000 {
            let x: [f32; 16] = std::array::from_fn(|lane| {
                let t = (block * 16 + lane) as f32 / 640_000.0;
                match block % 4 {
                    0 => (t - 0.5) * 210.0,
                    1 => (t - 0.5) * 20.0,
                    2 => (t - 0.5) * 2.0,
                    _ => (t - 0.5) * 1e-3,
                }
            });
            let scalar = all_at(Level::Scalar, &x);
            for level in Level::available() {
                let got = all_at(level, &x);
                for (kind, (got, expected)) in got.iter().zip(&scalar).enumerate() {
                    let bits = |values: &[f32; 16]| values.map(f32::to_bits);
                    assert_eq!(bits(got), bits(expected), "function {kind} at {}", level.name());
                }
            }
            for lane in 0..16 {
                let v = f64::from(x[lane]);
                let u = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v);
                let exact = [
                    v.exp(),
                    v.tanh(),
                    v / (1.0 + (-2.0 * u).exp()),
                    v / (1.0 + (-v).exp()),
                    30.0 * (v / 30.0).tanh(),
                ];
                for kind in 0..5 {
                    // Far on the negative side, `exp` amplifies the rounding error of its argument
                    // by the argument's size.
                    let error = (f64::from(scalar[kind][lane]) - exact[kind]).abs();
                    assert!(kind < 2 || error <= 1e-6 * v.abs(), "function {kind} at {v}");
                    if kind < 2 || kind == 4 || v > -1.0 {
                        worst[kind] = worst[kind].max(ulps(scalar[kind][lane], exact[kind]));
                    }
                }
            }
        }
        let bounds = [2.0, 3.0, 8.0, 6.0, 5.0];
        for (kind, (worst, bound)) in worst.iter().zip(bounds).enumerate() {
            assert!(*worst <= bound, "function {kind}: {worst} ulp, allowed {bound}");
        }
    }

    #[test]
    fn ends_of_the_range() {
        let mut x = [0.0f32; 16];
        x[..8].copy_from_slice(&[f32::NEG_INFINITY, -1e30, -104.5, 0.0, 89.0, f32::INFINITY, f32::NAN, -0.0]);
        for level in Level::available() {
            let [e, t, g, s, _] = all_at(level, &x);
            assert_eq!(&e[..6], &[0.0, 0.0, 0.0, 1.0, f32::INFINITY, f32::INFINITY]);
            assert!(e[6].is_nan() && t[6].is_nan() && g[6].is_nan() && s[6].is_nan());
            assert_eq!(&t[..6], &[-1.0, -1.0, -1.0, 0.0, 1.0, 1.0]);
            assert_eq!((g[2], g[4], s[4]), (0.0, 89.0, 89.0));
        }
    }
}
