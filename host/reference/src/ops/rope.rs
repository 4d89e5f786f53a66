//! Rotary position embedding.

use shardwright_graph::{AxialRope, Rope};

use crate::Array;
use crate::step::rotary_angles;

/// Rotates pair `(x[i], x[i + d/2])` of every head by its angle at the row's position.
pub(crate) fn rope(x: &Array, positions: &[i32], rope: &Rope) -> Array {
    let width = x.shape()[1];
    let mut y = x.floats().into_owned();
    for (row, &position) in y.chunks_exact_mut(width).zip(positions) {
        turn(row, rope.head_dim as usize, &rotary_angles(rope, position));
    }
    Array::made(x.shape(), y)
}

/// Like [`rope`], but with the cosines and sines of each row as inputs.
pub(crate) fn rotate(x: &Array, cos: &Array, sin: &Array, head_dim: usize) -> Array {
    let (width, pairs) = (x.shape()[1], head_dim / 2);
    let mut y = x.floats().into_owned();
    let (cos, sin) = (cos.floats(), sin.floats());
    let tables = cos.chunks_exact(pairs).zip(sin.chunks_exact(pairs));
    for (row, (cos, sin)) in y.chunks_exact_mut(width).zip(tables) {
        let angles: Vec<(f32, f32)> = cos.iter().copied().zip(sin.iter().copied()).collect();
        turn(row, head_dim, &angles);
    }
    Array::made(x.shape(), y)
}

/// Rotates the first half of every head by its column, and the second by its row.
pub(crate) fn axial_rope(x: &Array, columns: &[i32], rows: &[i32], rope: &AxialRope) -> Array {
    let (width, half) = (x.shape()[1], rope.half());
    let mut y = x.floats().into_owned();
    for ((row, &at_column), &at_row) in y.chunks_exact_mut(width).zip(columns).zip(rows) {
        let [by_column, by_row] = [at_column, at_row].map(|position| rotary_angles(&half, position));
        for head in row.chunks_exact_mut(rope.head_dim as usize) {
            let (first, second) = head.split_at_mut(half.head_dim as usize);
            turn(first, half.head_dim as usize, &by_column);
            turn(second, half.head_dim as usize, &by_row);
        }
    }
    Array::made(x.shape(), y)
}

/// Rotates the pairs of every head of a row by the given cosines and sines.
fn turn(row: &mut [f32], head_dim: usize, angles: &[(f32, f32)]) {
    for head in row.chunks_exact_mut(head_dim) {
        let (first, second) = head.split_at_mut(head_dim / 2);
        for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
            let (x, y) = (f64::from(*a), f64::from(*b));
            let (cos, sin) = (f64::from(*cos), f64::from(*sin));
            *a = (x * cos - y * sin) as f32;
            *b = (y * cos + x * sin) as f32;
        }
    }
}
