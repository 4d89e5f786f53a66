//! Rotary position embedding.

use shardwright_graph::Rope;

use crate::Array;
use crate::step::rotary_angles;

/// Turns pair `(x[i], x[i + d/2])` of every head by its angle at the row's position.
pub(crate) fn rope(x: &Array, positions: &[i32], rope: &Rope) -> Array {
    let width = x.shape()[1];
    let head_dim = rope.head_dim as usize;
    let half = head_dim / 2;
    let mut y = x.floats().into_owned();
    for (row, &position) in y.chunks_exact_mut(width).zip(positions) {
        let angles = rotary_angles(rope, position);
        for head in row.chunks_exact_mut(head_dim) {
            let (first, second) = head.split_at_mut(half);
            for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(&angles) {
                let (x, y) = (f64::from(*a), f64::from(*b));
                let (cos, sin) = (f64::from(*cos), f64::from(*sin));
                *a = (x * cos - y * sin) as f32;
                *b = (y * cos + x * sin) as f32;
            }
        }
    }
    Array::made(x.shape(), y)
}
