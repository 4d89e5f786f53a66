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
    let mut y = vec![0.0_f32; shape.iter().product()];
    y.par_chunks_exact_mut(outputs).enumerate().for_each(|(place, y)| {
        let (top, left) = (place / columns * stride, place % columns * stride);
        // Indices of weights, and the values under them. The padding adds nothing.
        let under = |index: usize| {
            let (channel, within) = (index / (kernel * kernel), index % (kernel * kernel));
            let (row, column) = (top + within / kernel, left + within % kernel);
            let inside =
                (padding..height + padding).contains(&row) && (padding..width + padding).contains(&column);
            inside.then(|| {
                let at = ((row - padding) * width + column - padding) * channels + channel;
                (index, f64::from(x[at]))
            })
        };
        let under: Vec<(usize, f64)> = (0..channels * kernel * kernel).filter_map(under).collect();
        for (y, weight) in y.iter_mut().zip(weight.chunks_exact(channels * kernel * kernel)) {
            *y = under.iter().fold(0.0_f64, |sum, &(index, x)| sum + f64::from(weight[index]) * x) as f32;
        }
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
