//! Convolutions: over the rows and columns of a plane, and along rows.

use rayon::prelude::*;

use crate::Array;

/// Convolves `x [H, W, C]`, with zeros around it, with `weight [O, C·kernel²]`, ordered by channel,
/// row and column.
pub(crate) fn convolution(
    x: &Array,
    weight: &Array,
    shape: &[usize],
    [kernel, stride, padding]: [usize; 3],
) -> Array {
    let [height, width, channels] = [x.shape()[0], x.shape()[1], x.shape()[2]];
    let (columns, outputs) = (shape[1], shape[2]);
    let (x, weight) = (x.floats(), weight.floats());
    // Transposed, so that the sums of all outputs grow together.
    let mut transposed = vec![0.0_f64; weight.len()];
    for (output, weights) in weight.chunks_exact(channels * kernel * kernel).enumerate() {
        for (index, &weight) in weights.iter().enumerate() {
            transposed[index * outputs + output] = f64::from(weight);
        }
    }
    let mut y = vec![0.0_f32; shape.iter().product()];
    let sums = || vec![0.0_f64; outputs];
    y.par_chunks_exact_mut(outputs).enumerate().for_each_init(sums, |sums, (place, y)| {
        let (top, left) = (place / columns * stride, place % columns * stride);
        // Places of the kernel inside the plane. The padding adds nothing.
        let inside = |first: usize, length: usize| {
            padding.saturating_sub(first)..kernel.min((length + padding).saturating_sub(first))
        };
        let (rows, across) = (inside(top, height), inside(left, width));
        sums.fill(0.0);
        for channel in 0..channels {
            for row in rows.clone() {
                for column in across.clone() {
                    let place = (top + row - padding) * width + left + column - padding;
                    let x = f64::from(x[place * channels + channel]);
                    let index = (channel * kernel + row) * kernel + column;
                    let weights = &transposed[index * outputs..][..outputs];
                    sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight * x);
                }
            }
        }
        y.iter_mut().zip(sums).for_each(|(y, sum)| *y = *sum as f32);
    });
    Array::made(shape, y)
}

/// Computes `Σⱼ weight[c, j] · x[r − kernel + 1 + j, c]`. Rows before the first are zeros.
pub(crate) fn depthwise(x: &Array, weight: &Array) -> Array {
    let (channels, kernel) = (weight.shape()[0], weight.shape()[1]);
    let (values, weight) = (x.floats(), weight.floats());
    let of = |index: usize| {
        let (row, channel) = (index / channels, index % channels);
        let places = (0..kernel).filter(|place| row + place + 1 >= kernel);
        let product = |place: usize| {
            let from = row + place + 1 - kernel;
            f64::from(weight[channel * kernel + place]) * f64::from(values[from * channels + channel])
        };
        places.map(product).sum::<f64>() as f32
    };
    Array::made(x.shape(), (0..x.elements()).map(of).collect())
}
