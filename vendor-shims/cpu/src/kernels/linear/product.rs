use super::{Finish, PanelData, Panels, Scales, linear, pack_from_columns, pack_from_rows, packed_elements};
use crate::kernels::elementwise::Broadcast;
use crate::pool::{Pool, SharedOutput};
use crate::simd::{LANES, Level};

/// Extents of a product: `[m, k] · [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Rows of the result.
    pub m: usize,
    /// Inner length.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
    /// Whether the right matrix is stored `[n, k]`.
    pub transpose_b: bool,
}

/// Returns the number of scratch values that [`mat_mul`] needs, or `None` on overflow.
pub fn scratch_values(sizes: Sizes) -> Option<usize> {
    sizes.n.checked_next_multiple_of(LANES)?.checked_mul(sizes.k)
}

/// Multiplies matrices over the axes of `batch`, whose strides count matrices. The right matrix is
/// first packed into panels, so every element is reduced as in [`linear`].
///
/// # Panics
/// When an operand, the result or the scratch memory is shorter than the sizes require.
#[allow(clippy::too_many_arguments, reason = "operands, sizes and where to work")]
pub fn mat_mul(
    level: Level,
    pool: &Pool,
    sizes: Sizes,
    batch: &Broadcast,
    a: &[f32],
    b: &[f32],
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let Sizes { m, k, n, transpose_b } = sizes;
    let count: usize = batch.shape.iter().product();
    let (a_size, b_size, out_size) = (m * k, k * n, m * n);
    let packed_size = packed_elements(k, n);
    let packed = &mut scratch[..packed_size];
    let mut existing = None;
    for index in 0..count {
        let (mut rest, mut a_at, mut b_at) = (index, 0, 0);
        for axis in (0..batch.shape.len()).rev() {
            let step = rest % batch.shape[axis];
            rest /= batch.shape[axis];
            a_at += step * batch.a[axis];
            b_at += step * batch.b[axis];
        }
        let matrix = &b[b_at * b_size..(b_at + 1) * b_size];
        if existing != Some(b_at) {
            existing = Some(b_at);
            let target = SharedOutput::new(packed);
            let body = |panel: usize| {
                // SAFETY: every task has its own panel.
                let panel_values = unsafe { target.part(panel * k * LANES, k * LANES) };
                if transpose_b {
                    pack_from_rows(matrix, k, n, panel, panel_values);
                } else {
                    pack_from_columns(matrix, k, n, panel, panel_values);
                }
            };
            let panels = n.div_ceil(LANES);
            if pool.worth(b_size as u64) { pool.run(panels, &body) } else { (0..panels).for_each(body) }
        }
        let data = PanelData::F32(packed.as_chunks().0);
        let weights = Panels { data, scales: Scales::None, zero: 0, inputs: k, outputs: n };
        let rows = &a[a_at * a_size..(a_at + 1) * a_size];
        linear(
            level,
            pool,
            rows,
            weights,
            Finish::default(),
            m,
            &mut out[index * out_size..(index + 1) * out_size],
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_definition() {
        let fill = |count: usize, salt: usize| {
            (0..count).map(|i| ((i * 37 + salt) % 23) as f32 - 11.0).collect::<Vec<f32>>()
        };
        for transpose_b in [false, true] {
            for (m, k, n) in [(1, 1, 1), (3, 17, 20), (20, 5, 33)] {
                let sizes = Sizes { m, k, n, transpose_b };
                let batch = Broadcast::of(&[2, 3], &[2, 1]).unwrap();
                let (a, b) = (fill(6 * m * k, 1), fill(2 * k * n, 2));
                let mut scratch = vec![f32::NAN; scratch_values(sizes).unwrap()];
                let mut out = vec![f32::NAN; 6 * m * n];
                mat_mul(Level::detect(), &Pool::eager(2), sizes, &batch, &a, &b, &mut scratch, &mut out);
                for index in 0..6 {
                    for row in 0..m {
                        for column in 0..n {
                            let exact: f32 = (0..k)
                                .map(|inner| {
                                    let place =
                                        if transpose_b { column * k + inner } else { inner * n + column };
                                    a[(index * m + row) * k + inner] * b[index / 3 * k * n + place]
                                })
                                .sum();
                            // The values are small integers, so every order gives the same result.
                            assert_eq!(out[(index * m + row) * n + column], exact);
                        }
                    }
                }
            }
        }
    }
}
