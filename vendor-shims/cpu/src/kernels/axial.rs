//! Rotary position embedding by two coordinates.

use super::rotary::turn;
use crate::pool::{Pool, SharedOutput};
use crate::simd::{Level, Simd, dispatch};

/// Cosines and sines of one coordinate, each `[rows, head_dim / 4]`.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    pub cos: &'a [f32],
    pub sin: &'a [f32],
}

/// Rotates the first half of every head by the row's first table and the second half by the second
/// table. Each half is rotated as a head in [`rope`](super::rotary::rope).
///
/// # Panics
/// When a length does not fit or `head_dim` is not a multiple of four.
#[allow(clippy::too_many_arguments, reason = "operands, dimensions and where to work")]
pub fn axial_rope(
    level: Level,
    pool: &Pool,
    x: &[f32],
    tables: [Tables<'_>; 2],
    head_dim: usize,
    heads: usize,
    rows: usize,
    out: &mut [f32],
) {
    let (width, pairs) = (heads * head_dim, head_dim / 4);
    assert!(head_dim > 0 && head_dim.is_multiple_of(4), "a head without two halves of pairs");
    assert!(x.len() >= rows * width && out.len() >= rows * width, "values shorter than the rows");
    let fits = |table: &Tables<'_>| table.cos.len() >= rows * pairs && table.sin.len() >= rows * pairs;
    assert!(tables.iter().all(fits), "table too short");
    let out = SharedOutput::new(out);
    let body = |row: usize| {
        // SAFETY: every task has its own row.
        let out = unsafe { out.part(row * width, width) };
        let own = row * pairs..(row + 1) * pairs;
        let tables =
            tables.map(|Tables { cos, sin }| Tables { cos: &cos[own.clone()], sin: &sin[own.clone()] });
        row_at(level, &x[row * width..(row + 1) * width], tables, head_dim, out);
    };
    if pool.worth(2 * rows as u64 * width as u64) { pool.run(rows, &body) } else { (0..rows).for_each(body) }
}

dispatch! { fn row_at => one_row(x: &[f32], tables: [Tables<'_>; 2], head_dim: usize, out: &mut [f32]) }

#[inline(always)]
fn one_row<S: Simd>(s: S, x: &[f32], tables: [Tables<'_>; 2], head_dim: usize, out: &mut [f32]) {
    let half = head_dim / 2;
    for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
        let halves = x.chunks_exact(half).zip(out.chunks_exact_mut(half));
        for ((x, out), table) in halves.zip(&tables) {
            turn(s, x, table.cos, table.sin, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::rotary::{inverse_frequencies, rope, rotary_table};
    use shardwright_shim_testing::{bits, values};

    #[test]
    fn halves_turn_as_heads_of_half_the_size() {
        for (head_dim, heads, rows) in [(4, 1, 3), (64, 3, 7), (20, 2, 5)] {
            let (half, pairs) = (head_dim / 2, head_dim / 4);
            let inverse = inverse_frequencies(half, 100.0, pairs, 1.0);
            let pool = Pool::eager(1);
            let table = |step: i32| {
                let positions: Vec<i32> = (0..rows as i32).map(|row| row * step % 11).collect();
                let (mut cos, mut sin) = (vec![0.0; rows * pairs], vec![0.0; rows * pairs]);
                rotary_table(&pool, &positions, &inverse, rows, &mut cos, &mut sin);
                (cos, sin)
            };
            let (by_column, by_row) = (table(3), table(5));
            let x = values(rows * heads * head_dim, 7, 1.0);
            // Rotates each half alone, in rows of halves.
            let part = |first: usize, (cos, sin): &(Vec<f32>, Vec<f32>)| {
                let half_of = |head: &[f32]| head[first..first + half].to_vec();
                let halves: Vec<f32> = x.chunks(head_dim).flat_map(half_of).collect();
                let mut out = vec![0.0; halves.len()];
                rope(Level::Scalar, &pool, &halves, cos, sin, half, heads, pairs, rows, &mut out);
                out
            };
            let (first, second) = (part(0, &by_column), part(half, &by_row));
            let expected: Vec<f32> =
                first.chunks(half).zip(second.chunks(half)).flat_map(|(a, b)| [a, b].concat()).collect();
            for level in Level::available() {
                for threads in [1, 3] {
                    let mut out = vec![f32::NAN; x.len()];
                    let tables = [&by_column, &by_row].map(|(cos, sin)| Tables { cos, sin });
                    axial_rope(level, &Pool::eager(threads), &x, tables, head_dim, heads, rows, &mut out);
                    assert_eq!(bits(&out), bits(&expected), "{head_dim} at {}", level.name());
                }
            }
        }
    }
}
