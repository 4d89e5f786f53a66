//! Resizes pixels like Pillow, to the bit.
//!
//! The model was trained on Pillow's bicubic filter. It is a cubic convolution with a = −1/2,
//! widened by the factor of a reduction so that no pixel is skipped. Weights are integer multiples
//! of 2⁻²². There are two passes, first across, then down, and each rounds to 8 bits. A convolution
//! with different weights or a single rounding would differ by one in some pixels.

/// Fraction bits of a weight. A sum of weights times 8 bits stays within 31 bits.
const FRACTION: u32 = 22;
/// Pixels to each side that the filter covers before it is widened.
const REACH: f64 = 2.0;
const CHANNELS: usize = 3;

/// Rows that are resized across at a time. This is enough to make the cost of computing weights
/// small. It is few enough that a picture of 64 million rows needs no more memory than its pixels.
const BAND: usize = 256;

/// The pixels whose weighted sum is one pixel of the result.
struct Window {
    start: usize,
    end: usize,
    center: f64,
    /// 1 over the factor by which the filter is widened.
    narrowed: f64,
    sum: f64,
}

impl Window {
    fn of(index: usize, from: usize, to: usize) -> Window {
        let scale = from as f64 / to as f64;
        let widened = scale.max(1.0);
        let reach = REACH * widened;
        let center = (index as f64 + 0.5) * scale;
        // Casts truncate towards zero, and negative values become zero.
        let start = (center - reach + 0.5) as usize;
        let end = ((center + reach + 0.5) as usize).min(from);
        let mut window = Window { start, end, center, narrowed: 1.0 / widened, sum: 0.0 };
        window.sum = (start..end).map(|pixel| window.share(pixel)).sum();
        window
    }

    fn share(&self, pixel: usize) -> f64 {
        cubic((pixel as f64 - self.center + 0.5) * self.narrowed)
    }

    fn weight(&self, pixel: usize) -> i32 {
        (self.share(pixel) / self.sum * f64::from(1 << FRACTION)).round() as i32
    }
}

/// Resizes RGB pixels in rows without gaps. All sides are 1 or more.
///
/// In addition to the result, this needs four bytes for each of its values, and [`BAND`] rows of
/// its width.
pub(crate) fn resize(pixels: &[u8], from: (usize, usize), to: (usize, usize)) -> Vec<u8> {
    let row = to.0 * CHANNELS;
    let mut result = Down::new(row, from.1, to.1);
    for (index, band) in pixels.chunks(from.0 * CHANNELS * BAND).enumerate() {
        match from.0 == to.0 {
            true => result.add(index * BAND, band),
            false => result.add(index * BAND, &across(band, from.0, to.0)),
        }
    }
    result.finish()
}

fn cubic(at: f64) -> f64 {
    const A: f64 = -0.5;
    let at = at.abs();
    if at < 1.0 {
        ((A + 2.0) * at - (A + 3.0)) * at * at + 1.0
    } else if at < 2.0 {
        (((at - 5.0) * at + 8.0) * at - 4.0) * A
    } else {
        0.0
    }
}

fn rounded(sum: i32) -> u8 {
    (sum >> FRACTION).clamp(0, 255) as u8
}

/// Resizes rows of `from` pixels to rows of `to` pixels.
fn across(pixels: &[u8], from: usize, to: usize) -> Vec<u8> {
    let mut result = vec![0; pixels.len() / from * to];
    let mut weights = Vec::new();
    for index in 0..to {
        let window = Window::of(index, from, to);
        weights.clear();
        weights.extend((window.start..window.end).map(|pixel| window.weight(pixel)));
        let rows = pixels.chunks_exact(from * CHANNELS).zip(result.chunks_exact_mut(to * CHANNELS));
        for (row, result) in rows {
            let mut sums = [1 << (FRACTION - 1); CHANNELS];
            let seen = &row[window.start * CHANNELS..window.end * CHANNELS];
            for (pixel, weight) in seen.chunks_exact(CHANNELS).zip(&weights) {
                for (sum, value) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(*value) * weight;
                }
            }
            result[index * CHANNELS..(index + 1) * CHANNELS].copy_from_slice(&sums.map(rounded));
        }
    }
    result
}

/// The result, to which rows are added from top to bottom.
enum Down {
    /// The height is unchanged.
    Same(Vec<u8>),
    /// Sums of each row of the result.
    Sums { row: usize, windows: Vec<Window>, sums: Vec<i32> },
}

impl Down {
    /// Starts a result. `row` is the number of bytes in a row.
    fn new(row: usize, from: usize, to: usize) -> Down {
        match from == to {
            true => Down::Same(Vec::with_capacity(row * to)),
            false => Down::Sums {
                row,
                windows: (0..to).map(|index| Window::of(index, from, to)).collect(),
                sums: vec![1 << (FRACTION - 1); row * to],
            },
        }
    }

    /// Adds rows. `first` is the number of the first one.
    fn add(&mut self, first: usize, lines: &[u8]) {
        match self {
            Down::Same(result) => result.extend_from_slice(lines),
            Down::Sums { row, windows, sums } => {
                let end = first + lines.len() / *row;
                // Starts and ends of windows ascend with their rows.
                let begun = windows.partition_point(|window| window.end <= first);
                let all = windows.iter().zip(sums.chunks_exact_mut(*row)).skip(begun);
                for (window, sums) in all.take_while(|(window, _)| window.start < end) {
                    for line in window.start.max(first)..window.end.min(end) {
                        let weight = window.weight(line);
                        let line = &lines[(line - first) * *row..(line - first + 1) * *row];
                        for (sum, value) in sums.iter_mut().zip(line) {
                            *sum += i32::from(*value) * weight;
                        }
                    }
                }
            }
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Down::Same(result) => result,
            Down::Sums { sums, .. } => sums.into_iter().map(rounded).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns noise that the script for the expected results also computes.
    fn noise(width: usize, height: usize) -> Vec<u8> {
        (0..(width * height * CHANNELS) as u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect()
    }

    #[test]
    fn pixels_are_those_of_pillow_to_the_bit() {
        let cases: [(_, _, &[u8]); 4] = [
            ((200, 150), (96, 72), include_bytes!("../tests/preprocessing/files/resized_200x150_96x72.rgb")),
            ((61, 97), (24, 48), include_bytes!("../tests/preprocessing/files/resized_61x97_24x48.rgb")),
            ((40, 7), (48, 96), include_bytes!("../tests/preprocessing/files/resized_40x7_48x96.rgb")),
            ((500, 33), (12, 33), include_bytes!("../tests/preprocessing/files/resized_500x33_12x33.rgb")),
        ];
        for (from, to, expected) in cases {
            assert!(resize(&noise(from.0, from.1), from, to) == expected, "{from:?} to {to:?}");
        }
    }

    /// Bands only affect the order of computing, and not the result.
    #[test]
    fn bands_of_rows_give_what_all_rows_give() {
        for (from, to) in
            [((30, 3 * BAND + 7), (16, 48)), ((5, BAND + 1), (9, 2 * BAND)), ((1, 999), (48, 3))]
        {
            let pixels = noise(from.0, from.1);
            let mut whole = Down::new(to.0 * CHANNELS, from.1, to.1);
            whole.add(0, &across(&pixels, from.0, to.0));
            assert!(resize(&pixels, from, to) == whole.finish(), "{from:?} to {to:?}");
        }
    }

    #[test]
    fn a_picture_of_that_size_stays_as_it_is() {
        assert_eq!(resize(&noise(5, 7), (5, 7), (5, 7)), noise(5, 7));
    }

    #[test]
    fn extremes_stay_within_their_range() {
        for value in [0, 255] {
            for (from, to) in [((1, 1), (48, 48)), ((1, 500), (48, 3)), ((2000, 1), (48, 48))] {
                let resized = resize(&vec![value; from.0 * from.1 * CHANNELS], from, to);
                assert!(resized.iter().all(|it| *it == value), "{from:?} to {to:?}");
            }
        }
        // The filter overshoots next to an edge and is clamped.
        let edge: Vec<u8> = [[0; 3], [0; 3], [255; 3], [255; 3]].concat();
        let wide = resize(&edge, (4, 1), (40, 1));
        assert!(wide.contains(&0) && wide.contains(&255));
    }
}
