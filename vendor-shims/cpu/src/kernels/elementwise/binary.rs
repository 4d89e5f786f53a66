use serde::{Deserialize, Serialize};

use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

/// A function of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a − b`
    Sub,
    /// `a · b`
    Mul,
    Div,
    Max,
    /// The smaller.
    Min,
}

/// The dense result shape and the strides of the operands. Stride 0 repeats a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broadcast {
    /// Extents of the result, outermost first, at least one.
    pub shape: Vec<usize>,
    /// Elements of `a` per step along each axis.
    pub a: Vec<usize>,
    /// Elements of `b` per step along each axis.
    pub b: Vec<usize>,
}

impl Broadcast {
    /// Applies NumPy broadcasting to two dense operands. Returns `None` if the shapes do not fit.
    pub fn of(a: &[usize], b: &[usize]) -> Option<Broadcast> {
        let rank = a.len().max(b.len()).max(1);
        let extent = |shape: &[usize], axis: usize| {
            let missing = rank - shape.len();
            if axis < missing { 1 } else { shape[axis - missing] }
        };
        let mut shape = Vec::with_capacity(rank);
        for axis in 0..rank {
            shape.push(match (extent(a, axis), extent(b, axis)) {
                (x, y) if x == y => x,
                (1, y) => y,
                (x, 1) => x,
                _ => return None,
            });
        }
        let strides = |operand: &[usize]| {
            let mut strides = vec![0; rank];
            let mut step = 1usize;
            for axis in (0..rank).rev() {
                let extent = extent(operand, axis);
                if extent != 1 {
                    strides[axis] = step;
                    step = step.saturating_mul(extent);
                }
            }
            strides
        };
        let (a, b) = (strides(a), strides(b));
        Some(Broadcast { shape, a, b })
    }

    /// Merges neighbouring axes, from `keep` on, along which both operands step evenly.
    pub fn merged(&self, keep: usize) -> Broadcast {
        let mut out = Broadcast { shape: Vec::new(), a: Vec::new(), b: Vec::new() };
        for axis in 0..self.shape.len() {
            let (extent, a, b) = (self.shape[axis], self.a[axis], self.b[axis]);
            let last = out.shape.len();
            if last > keep {
                let (outer_a, outer_b) = (out.a[last - 1], out.b[last - 1]);
                let even = |outer: usize, inner: usize| outer == inner.saturating_mul(extent);
                if (even(outer_a, a) && even(outer_b, b)) || extent == 1 {
                    out.shape[last - 1] *= extent;
                    if extent != 1 {
                        (out.a[last - 1], out.b[last - 1]) = (a, b);
                    }
                    continue;
                }
                if out.shape[last - 1] == 1 {
                    out.shape[last - 1] = extent;
                    (out.a[last - 1], out.b[last - 1]) = (a, b);
                    continue;
                }
            }
            out.shape.push(extent);
            out.a.push(a);
            out.b.push(b);
        }
        out
    }

    /// Returns the number of elements that an operand with these strides must have, or `None` on
    /// overflow.
    pub fn reach(shape: &[usize], strides: &[usize]) -> Option<usize> {
        if shape.contains(&0) {
            return Some(0);
        }
        let mut last = 0usize;
        for (extent, stride) in shape.iter().zip(strides) {
            last = last.checked_add((extent - 1).checked_mul(*stride)?)?;
        }
        last.checked_add(1)
    }
}

/// Computes `out = f(a, b)` over the broadcast shape, but only for the first `outer` steps of the
/// outermost axis.
///
/// # Panics
/// When an operand or the result is shorter than the shape needs, or `outer` is more than the
/// outermost extent.
#[allow(clippy::too_many_arguments, reason = "operands, shape and where to work")]
pub fn binary(
    level: Level,
    pool: &Pool,
    kind: Binary,
    broadcast: &Broadcast,
    outer: usize,
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
) {
    let Broadcast { shape, a: a_strides, b: b_strides } = broadcast;
    let rank = shape.len();
    assert!(
        rank > 0 && a_strides.len() == rank && b_strides.len() == rank && outer <= shape[0],
        "broken broadcast"
    );
    let fits = |strides: &[usize], length: usize| {
        Broadcast::reach(shape, strides).is_some_and(|reach| reach <= length)
    };
    assert!(fits(a_strides, a.len()) && fits(b_strides, b.len()), "operand shorter than the shape");
    let inner = shape[rank - 1];
    let (runs, run) =
        if rank == 1 { (1, outer) } else { (shape[1..rank - 1].iter().product::<usize>() * outer, inner) };
    let total = runs.checked_mul(run).filter(|total| *total <= out.len());
    assert!(total.is_some(), "result shorter than the shape");
    let steps = (a_strides[rank - 1], b_strides[rank - 1]);
    let out = SharedOutput::new(out);
    let body = |first: usize, count: usize| {
        let mut index = vec![0usize; rank.saturating_sub(1)];
        let (mut a_at, mut b_at) = (0, 0);
        let mut rest = first;
        for axis in (0..rank - 1).rev() {
            let extent = if axis == 0 { outer } else { shape[axis] };
            index[axis] = rest % extent;
            rest /= extent;
            a_at += index[axis] * a_strides[axis];
            b_at += index[axis] * b_strides[axis];
        }
        for at in first..first + count {
            // SAFETY: every task has its own run.
            let out = unsafe { out.part(at * run, run) };
            run_at(level, kind, &a[a_at..], steps.0, &b[b_at..], steps.1, out);
            for axis in (0..rank - 1).rev() {
                index[axis] += 1;
                a_at += a_strides[axis];
                b_at += b_strides[axis];
                if index[axis] < shape[axis] {
                    break;
                }
                a_at -= a_strides[axis] * index[axis];
                b_at -= b_strides[axis] * index[axis];
                index[axis] = 0;
            }
        }
    };
    if run == 0 || runs == 0 {
        return;
    }
    if !pool.worth(runs as u64 * run as u64) || runs == 1 {
        return body(0, runs);
    }
    let grain = (1usize << 14).div_ceil(run);
    pool.run_pieces(runs, grain, &body);
}

dispatch! {
    fn run_at => one_run(kind: Binary, a: &[f32], a_step: usize, b: &[f32], b_step: usize, out: &mut [f32])
}

#[inline(always)]
fn one_run<S: Simd>(s: S, kind: Binary, a: &[f32], a_step: usize, b: &[f32], b_step: usize, out: &mut [f32]) {
    match kind {
        Binary::Add => each(
            s,
            a,
            a_step,
            b,
            b_step,
            out,
            #[inline(always)]
            |x, y| s.add(x, y),
        ),
        Binary::Sub => each(
            s,
            a,
            a_step,
            b,
            b_step,
            out,
            #[inline(always)]
            |x, y| s.sub(x, y),
        ),
        Binary::Mul => each(
            s,
            a,
            a_step,
            b,
            b_step,
            out,
            #[inline(always)]
            |x, y| s.mul(x, y),
        ),
        Binary::Div => each(
            s,
            a,
            a_step,
            b,
            b_step,
            out,
            #[inline(always)]
            |x, y| s.div(x, y),
        ),
        Binary::Max => each(
            s,
            a,
            a_step,
            b,
            b_step,
            out,
            #[inline(always)]
            |x, y| s.max(x, y),
        ),
        Binary::Min => each(
            s,
            a,
            a_step,
            b,
            b_step,
            out,
            #[inline(always)]
            |x, y| s.min(x, y),
        ),
    }
}

#[inline(always)]
fn each<S: Simd>(
    s: S,
    a: &[f32],
    a_step: usize,
    b: &[f32],
    b_step: usize,
    out: &mut [f32],
    f: impl Fn(S::V, S::V) -> S::V,
) {
    let count = out.len();
    let existing = |values: &[f32], step: usize| {
        if step == 0 { !values.is_empty() } else { values.len() > (count - 1) * step }
    };
    assert!(
        count == 0 || (existing(a, a_step) && existing(b, b_step) && a_step <= 1 && b_step <= 1),
        "operand too short"
    );
    let mut at = 0;
    while at < count {
        let lanes = LANES.min(count - at);
        // SAFETY: with step 1 an operand has `count` values, with step 0 at least one.
        unsafe {
            let operand = |values: &[f32], step: usize| {
                if step == 0 {
                    s.splat(*values.as_ptr())
                } else {
                    s.load_partial(values.as_ptr().add(at), lanes)
                }
            };
            s.store_partial(out.as_mut_ptr().add(at), lanes, f(operand(a, a_step), operand(b, b_step)));
        }
        at += lanes;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
        #[test]
        fn broadcasts_like_numpy(
            extents in prop::collection::vec((1usize..20, any::<bool>(), any::<bool>()), 1..5), drop_a in 0usize..3,
            keep in 0usize..2,
        ) {
            let pick = |hide: fn(&(usize, bool, bool)) -> bool| {
                extents.iter().map(|e| if hide(e) { 1 } else { e.0 }).collect::<Vec<usize>>()
            };
            let full_a = pick(|e| e.1);
            let b_shape = pick(|e| e.2 && !e.1);
            let shape: Vec<usize> = full_a.iter().zip(&b_shape).map(|(x, y)| *x.max(y)).collect();
            let leading = full_a.iter().take_while(|e| **e == 1).count().min(drop_a).min(full_a.len() - 1);
            let a_shape = &full_a[leading..];
            let fill = |shape: &[usize], salt: usize| {
                (0..shape.iter().product::<usize>()).map(|i| ((i * 31 + salt) % 97) as f32 + 1.0).collect::<Vec<f32>>()
            };
            let (a, b) = (fill(a_shape, 3), fill(&b_shape, 5));
            let total: usize = shape.iter().product();
            let at = |operand: &[usize], values: &[f32], mut flat: usize| {
                let mut index = vec![0; shape.len()];
                for axis in (0..shape.len()).rev() {
                    index[axis] = flat % shape[axis];
                    flat /= shape[axis];
                }
                let missing = shape.len() - operand.len();
                let place = operand.iter().enumerate().fold(0, |place, (axis, extent)| {
                    place * extent + if *extent == 1 { 0 } else { index[axis + missing] }
                });
                values[place]
            };
            let broadcast = Broadcast::of(a_shape, &b_shape).unwrap();
            prop_assert_eq!(&broadcast.shape, &shape);
            for broadcast in [broadcast.clone(), broadcast.merged(keep)] {
                for (kind, f) in [
                    (Binary::Add, (|x, y| x + y) as fn(f32, f32) -> f32),
                    (Binary::Sub, |x, y| x - y),
                    (Binary::Mul, |x, y| x * y),
                    (Binary::Div, |x, y| x / y),
                    (Binary::Max, f32::max),
                    (Binary::Min, f32::min),
                ] {
                    for level in Level::available() {
                        let mut out = vec![f32::NAN; total];
                        binary(level, &Pool::eager(2), kind, &broadcast, broadcast.shape[0], &a, &b, &mut out);
                        for (flat, got) in out.iter().enumerate() {
                            prop_assert_eq!(*got, f(at(a_shape, &a, flat), at(&b_shape, &b, flat)));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn only_the_first_steps_are_computed() {
        let broadcast = Broadcast::of(&[4, 3], &[3]).unwrap();
        let a: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let mut out = [-1.0f32; 12];
        let level = Level::detect();
        binary(level, &Pool::eager(1), Binary::Add, &broadcast, 2, &a, &[10.0, 20.0, 30.0], &mut out);
        assert_eq!(out, [10.0, 21.0, 32.0, 13.0, 24.0, 35.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0]);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        assert!(Broadcast::of(&[2, 3], &[2]).is_none());
        assert!(Broadcast::of(&[2, 3], &[4, 2, 1]).is_some());
    }
}
