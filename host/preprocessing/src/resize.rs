//! Resizing pixels as Pillow does, to the bit.
//!
//! The model was trained on Pillow's bicubic filter. It is a cubic convolution with a = −1/2,
//! widened by the factor of a reduction so that no pixel is skipped; weights are whole numbers of
//! 2⁻²², and each of the two passes, across and then down, rounds to 8 bits. A convolution with
//! other weights or one rounding would differ by one in some pixels.

/// Bits of a weight after the point: a sum of weights times 8 bits stays within 31.
const FRACTION: u32 = 22;
/// Pixels to each side that the filter sees before it is widened.
const REACH: f64 = 2.0;
const CHANNELS: usize = 3;

/// The pixels that one pixel of the result is the weighted sum of.
struct Window {
    start: usize,
    weights: Vec<i32>,
}

/// Resizes RGB pixels in rows without gaps. All sides are 1 or more.
pub(crate) fn resize(pixels: &[u8], from: (usize, usize), to: (usize, usize)) -> Vec<u8> {
    let across =
        if from.0 == to.0 { pixels.to_vec() } else { across(pixels, from.0, &windows(from.0, to.0)) };
    if from.1 == to.1 { across } else { down(&across, to.0 * CHANNELS, &windows(from.1, to.1)) }
}

fn windows(from: usize, to: usize) -> Vec<Window> {
    let scale = from as f64 / to as f64;
    let widened = scale.max(1.0);
    let reach = REACH * widened;
    let window = |index: usize| {
        let center = (index as f64 + 0.5) * scale;
        // Casts truncate towards zero, and below zero saturate there.
        let start = (center - reach + 0.5) as usize;
        let end = ((center + reach + 0.5) as usize).min(from);
        let weights: Vec<f64> =
            (start..end).map(|pixel| cubic((pixel as f64 - center + 0.5) * (1.0 / widened))).collect();
        let sum: f64 = weights.iter().sum();
        let whole = |weight: &f64| (weight / sum * f64::from(1 << FRACTION)).round() as i32;
        Window { start, weights: weights.iter().map(whole).collect() }
    };
    (0..to).map(window).collect()
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

fn across(pixels: &[u8], width: usize, windows: &[Window]) -> Vec<u8> {
    let mut result = Vec::with_capacity(pixels.len() / width * windows.len());
    for row in pixels.chunks_exact(width * CHANNELS) {
        for Window { start, weights } in windows {
            let mut sums = [1 << (FRACTION - 1); CHANNELS];
            let seen = &row[start * CHANNELS..(start + weights.len()) * CHANNELS];
            for (pixel, weight) in seen.chunks_exact(CHANNELS).zip(weights) {
                for (sum, value) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(*value) * weight;
                }
            }
            result.extend(sums.map(rounded));
        }
    }
    result
}

/// `row` is the bytes of a row.
fn down(pixels: &[u8], row: usize, windows: &[Window]) -> Vec<u8> {
    let mut result = Vec::with_capacity(row * windows.len());
    let mut sums = vec![0; row];
    for Window { start, weights } in windows {
        sums.fill(1 << (FRACTION - 1));
        for (line, weight) in pixels[start * row..].chunks_exact(row).zip(weights) {
            for (sum, value) in sums.iter_mut().zip(line) {
                *sum += i32::from(*value) * weight;
            }
        }
        result.extend(sums.iter().copied().map(rounded));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noise that the script beside the expected results computes too.
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
        // The filter overshoots beside an edge and is cut off.
        let edge: Vec<u8> = [[0; 3], [0; 3], [255; 3], [255; 3]].concat();
        let wide = resize(&edge, (4, 1), (40, 1));
        assert!(wide.contains(&0) && wide.contains(&255));
    }
}
