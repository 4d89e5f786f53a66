use serde::{Deserialize, Serialize};

use crate::kernels::math;
use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level, Simd, dispatch};

/// The function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gate {
    /// Gelu in its tanh form.
    Gelu,
    /// `x / (1 + e^−x)`
    Silu,
    /// `1 / (1 + e^−x)`
    Sigmoid,
}

/// Values of one task.
const GRAIN: usize = 1 << 13;

/// Computes `out[i] = f(gate[i]) · up[i]` for the first `count` values, with the same bits as the
/// function followed by the product.
///
/// # Panics
/// When an operand is shorter than `count`.
pub fn gated(level: Level, pool: &Pool, kind: Gate, gate: &[f32], up: &[f32], count: usize, out: &mut [f32]) {
    assert!(gate.len() >= count && up.len() >= count && out.len() >= count, "values shorter than the count");
    // The function costs about eight multiply-adds.
    if !pool.worth(9 * count as u64) {
        return values_at(level, kind, &gate[..count], &up[..count], &mut out[..count]);
    }
    let out = SharedOutput::new(out);
    pool.run_pieces(count, GRAIN, &|start, length| {
        let range = start..start + length;
        // SAFETY: every task has its own values.
        values_at(level, kind, &gate[range.clone()], &up[range], unsafe { out.part(start, length) });
    });
}

/// Computes `a · sigmoid(b)` for the halves a and b of each of the first `groups` groups of
/// `2 · width` values, with the same bits as [`gated`].
///
/// # Panics
/// When a length does not fit the dimensions.
pub fn glu(level: Level, pool: &Pool, x: &[f32], width: usize, groups: usize, out: &mut [f32]) {
    assert!(x.len() >= 2 * groups * width && out.len() >= groups * width, "values shorter than the groups");
    let out = SharedOutput::new(out);
    let body = |first: usize, count: usize| {
        for group in first..first + count {
            let (up, gate) = x[2 * group * width..2 * (group + 1) * width].split_at(width);
            // SAFETY: every task has its own groups.
            values_at(level, Gate::Sigmoid, gate, up, unsafe { out.part(group * width, width) });
        }
    };
    if !pool.worth(9 * groups as u64 * width as u64) {
        return body(0, groups);
    }
    let grain = GRAIN.div_ceil(width.max(1));
    pool.run_pieces(groups, grain, &body);
}

dispatch! { fn values_at => values(kind: Gate, gate: &[f32], up: &[f32], out: &mut [f32]) }

#[inline(always)]
fn values<S: Simd>(s: S, kind: Gate, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let chunks = gate.chunks(LANES).zip(up.chunks(LANES)).zip(out.chunks_mut(LANES));
    for ((gate, up), out) in chunks {
        let count = out.len();
        // SAFETY: each of the three chunks has `count` ≤ 16 values.
        unsafe {
            let gate = s.load_partial(gate.as_ptr(), count);
            let value = match kind {
                Gate::Gelu => math::gelu(s, gate),
                Gate::Silu => math::silu(s, gate),
                Gate::Sigmoid => math::sigmoid(s, gate),
            };
            s.store_partial(out.as_mut_ptr(), count, s.mul(value, s.load_partial(up.as_ptr(), count)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::elementwise::{Unary, unary};

    #[test]
    fn gives_the_bits_of_the_function_and_the_product() {
        let count = 20_011;
        let gate: Vec<f32> = (0..count).map(|at| (at as f32 - 1e4) / 900.0).collect();
        let up: Vec<f32> = (0..count).map(|at| ((at * 31) % 57) as f32 / 9.0 - 3.0).collect();
        for (kind, function) in
            [(Gate::Gelu, Unary::Gelu), (Gate::Silu, Unary::Silu), (Gate::Sigmoid, Unary::Sigmoid)]
        {
            let mut expected = vec![0.0; count];
            unary(Level::Scalar, &Pool::eager(1), function, &gate, count, &mut expected);
            expected.iter_mut().zip(&up).for_each(|(value, up)| *value *= up);
            for level in Level::available() {
                for threads in [1, 2] {
                    let mut out = vec![9.0; count];
                    gated(level, &Pool::eager(threads), kind, &gate, &up, count, &mut out);
                    let same = out.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{kind:?} at {} with {threads} threads", level.name());
                }
            }
        }
    }

    #[test]
    fn halves_gate_each_other_group_by_group() {
        for (width, groups) in [(1, 5), (33, 4), (400, 60), (7, 0)] {
            let x: Vec<f32> =
                (0..2 * width * groups).map(|at| ((at * 37) % 101) as f32 / 9.0 - 5.0).collect();
            let halves = |half: usize| {
                let groups = x.chunks(2 * width).map(|group| &group[half * width..][..width]);
                groups.flatten().copied().collect::<Vec<f32>>()
            };
            let mut expected = vec![0.0; width * groups];
            let (up, gate) = (halves(0), halves(1));
            let count = expected.len();
            gated(Level::Scalar, &Pool::eager(1), Gate::Sigmoid, &gate, &up, count, &mut expected);
            for level in Level::available() {
                for threads in [1, 2] {
                    let mut out = vec![9.0; count];
                    glu(level, &Pool::eager(threads), &x, width, groups, &mut out);
                    assert_eq!(out, expected, "{width} at {} with {threads} threads", level.name());
                }
            }
        }
    }
}
