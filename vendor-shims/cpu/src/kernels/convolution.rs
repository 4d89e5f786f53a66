//! Convolution over the rows and columns of a plane.
//!
//! For a block of results at a time, the covered values are unfolded in the order of the weight's
//! columns. They are then multiplied as in [`linear`](super::linear), with the same order of
//! reduction.

use serde::{Deserialize, Serialize};

use super::linear::{Panels, linear_alone};
use crate::pool::{Pool, SharedOutput};
use crate::simd::Level;

/// Most rows and columns of a kernel.
pub const MOST_KERNEL: usize = 7;
/// Results of one task. They share the weights in cache, as many as in one task of a linear map.
const BLOCK: usize = 96;

/// Extents of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plane {
    /// Columns of the plane.
    pub width: usize,
    /// Values at each place of the plane.
    pub channels: usize,
    /// Rows and columns of the kernel, 1 to [`MOST_KERNEL`].
    pub kernel: usize,
    /// Step between results, 1 or 2.
    pub stride: usize,
    /// Rows and columns of zeros on every side, fewer than the kernel has.
    pub padding: usize,
}

impl Plane {
    /// Checks whether the engine supports these extents.
    pub fn is_possible(&self) -> bool {
        (1..=MOST_KERNEL).contains(&self.kernel)
            && (1..=2).contains(&self.stride)
            && self.padding < self.kernel
    }

    /// Returns the number of results along an axis of `extent`. Returns `None` if the kernel is not
    /// supported or is larger than the padded axis.
    pub fn results(&self, extent: usize) -> Option<usize> {
        if !self.is_possible() {
            return None;
        }
        let room = extent.checked_add(2 * self.padding)?.checked_sub(self.kernel)?;
        Some(room / self.stride + 1)
    }

    /// Returns the number of values that a result is reduced from. Returns `None` on overflow or if
    /// the kernel is not supported.
    pub fn inputs(&self) -> Option<usize> {
        if !self.is_possible() {
            return None;
        }
        self.channels.checked_mul(self.kernel * self.kernel)
    }
}

/// Returns the number of scratch values that [`convolution`] needs with `threads` threads, or
/// `None` on overflow.
pub fn scratch_values(plane: Plane, threads: usize) -> Option<usize> {
    plane.inputs()?.checked_mul(BLOCK)?.checked_mul(threads)
}

/// Writes the first `rows` rows of results of `x [height, width, channels]`. Positions outside the
/// plane and rows from `height` on count as zeros, regardless of the stored values.
///
/// # Panics
/// When the plane is not supported or a length does not fit the dimensions.
#[allow(clippy::too_many_arguments, reason = "operands, dimensions and where to work")]
pub fn convolution(
    level: Level,
    pool: &Pool,
    plane: Plane,
    x: &[f32],
    weights: Panels<'_>,
    height: usize,
    rows: usize,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    assert!(plane.is_possible(), "{plane:?} is not possible");
    let inputs = plane.inputs().unwrap_or(usize::MAX);
    let columns = plane.results(plane.width).unwrap_or(0);
    assert!(inputs > 0 && columns > 0, "{plane:?} gives nothing");
    let Panels { outputs, .. } = weights;
    assert!(weights.inputs == inputs, "weights of another kernel");
    let x = &x[..height * plane.width * plane.channels];
    let places = rows * columns;
    assert!(out.len() >= places * outputs, "results shorter than the plane");
    let room = inputs * BLOCK;
    assert!(scratch.len() >= room * pool.threads(), "scratch too small");
    let (out, scratch) = (SharedOutput::new(out), SharedOutput::new(scratch));
    let body = |block: usize, worker: usize| {
        let first = block * BLOCK;
        let count = BLOCK.min(places - first);
        // SAFETY: every task has its own results, and the pool numbers the threads of a job
        // uniquely.
        let (unfolded, out) =
            unsafe { (scratch.part(worker * room, room), out.part(first * outputs, count * outputs)) };
        for (place, target) in (first..first + count).zip(unfolded.chunks_exact_mut(inputs)) {
            unfold(plane, x, height, [place / columns, place % columns], target);
        }
        linear_alone(level, unfolded, weights, count, out);
    };
    let work = (places as u64 * outputs as u64).saturating_mul(inputs as u64);
    if pool.worth(work) {
        pool.run_indexed(places.div_ceil(BLOCK), &body);
    } else {
        (0..places.div_ceil(BLOCK)).for_each(|block| body(block, 0));
    }
}

/// Copies the values that the kernel covers at a result, channel by channel and row by row.
fn unfold(plane: Plane, x: &[f32], height: usize, [row, column]: [usize; 2], target: &mut [f32]) {
    let Plane { width, channels, kernel, stride, padding } = plane;
    let square = kernel * kernel;
    for place in 0..square {
        let at = [(row * stride + place / kernel, height), (column * stride + place % kernel, width)];
        let inside = at.map(|(at, extent)| at.checked_sub(padding).filter(|at| *at < extent));
        let channel_values = target[place..].iter_mut().step_by(square);
        match inside {
            [Some(row), Some(column)] => {
                let values = &x[(row * width + column) * channels..][..channels];
                channel_values.zip(values).for_each(|(target, value)| *target = *value);
            }
            _ => channel_values.for_each(|target| *target = 0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::linear::{PanelData, Scales, pack_from_rows, packed_elements};
    use crate::simd::LANES;
    use shardwright_shim_testing::{bits, values};

    #[test]
    fn agrees_with_the_definition_at_every_level() {
        let kernel = |kernel, stride, padding| (kernel, stride, padding);
        for (height, width, channels, outputs, (kernel, stride, padding)) in [
            (1, 1, 1, 1, kernel(1, 1, 0)),
            (13, 9, 1, 17, kernel(3, 2, 1)),
            (8, 6, 5, 33, kernel(3, 2, 1)),
            (9, 7, 3, 4, kernel(7, 1, 6)),
            (40, 5, 2, 3, kernel(2, 1, 0)),
            (6, 6, 4, 16, kernel(5, 2, 2)),
        ] {
            let plane = Plane { width, channels, kernel, stride, padding };
            let inputs = plane.inputs().unwrap();
            let [all, columns] = [height, width].map(|extent| plane.results(extent).unwrap());
            let weight = values(outputs * inputs, 5, 1.0);
            let mut packed = vec![0.0; packed_elements(inputs, outputs)];
            for (panel, packed) in packed.chunks_exact_mut(inputs * LANES).enumerate() {
                pack_from_rows(&weight, inputs, outputs, panel, packed);
            }
            let data = PanelData::F32(packed.as_chunks().0);
            let weights = Panels { data, scales: Scales::None, zero: 0, inputs, outputs };
            // Rows that are not valid contain NaN.
            for valid in [height, height / 2] {
                let mut x = values(height * width * channels, 6, 1.0);
                x[valid * width * channels..].fill(f32::NAN);
                let rows = if valid == height { all } else { valid.div_ceil(stride).min(all) };
                let run = |level, threads| {
                    let mut out = vec![f32::NAN; rows * columns * outputs];
                    let mut scratch = vec![f32::NAN; scratch_values(plane, threads).unwrap()];
                    let pool = Pool::eager(threads);
                    convolution(level, &pool, plane, &x, weights, valid, rows, &mut scratch, &mut out);
                    out
                };
                let expected = run(Level::Scalar, 1);
                for (at, got) in expected.iter().enumerate() {
                    let (place, output) = (at / outputs, at % outputs);
                    let (top, left) = (place / columns * stride, place % columns * stride);
                    let mut exact = 0.0;
                    for (index, weight) in weight[output * inputs..][..inputs].iter().enumerate() {
                        let (channel, within) = (index / (kernel * kernel), index % (kernel * kernel));
                        let (row, column) = (top + within / kernel, left + within % kernel);
                        if (padding..valid + padding).contains(&row)
                            && (padding..width + padding).contains(&column)
                        {
                            let at = ((row - padding) * width + column - padding) * channels + channel;
                            exact += f64::from(*weight) * f64::from(x[at]);
                        }
                    }
                    assert!((f64::from(*got) - exact).abs() < 1e-5, "{plane:?}: {got}, exactly {exact}");
                }
                for level in Level::available() {
                    assert_eq!(bits(&run(level, 3)), bits(&expected), "{plane:?} at {}", level.name());
                }
            }
        }
    }
}
