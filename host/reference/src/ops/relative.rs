//! Attention to the preceding rows, with scores for each distance.

use rayon::prelude::*;
use shardwright_graph::RelativeAttention;

use crate::Array;
use crate::ops::product::dot;
use crate::ops::softmax::softmax_in_place;
use crate::step::row_is_visible;

/// Mixes for every row the values of itself and of the preceding rows within the window. Their
/// scores are `q_i · k_j` plus the score of their distance, soft-capped.
pub(crate) fn relative_attention(
    [q, k, v, by_distance]: [&Array; 4],
    attention: &RelativeAttention,
    rows: usize,
) -> Array {
    let d = attention.head_dim as usize;
    let (shape, width) = (q.shape(), q.shape()[1]);
    let all = by_distance.shape()[1];
    let window = all / (attention.heads as usize).max(1);
    let widened = |array: &Array| array.floats().iter().map(|&value| f64::from(value)).collect::<Vec<f64>>();
    let [q, k, v, by_distance] = [q, k, v, by_distance].map(widened);
    let mut y = vec![0.0_f32; q.len()];
    y.par_chunks_exact_mut(width).enumerate().for_each(|(row, y)| {
        let visible: Vec<usize> = (row.saturating_sub(window - 1)..=row)
            .filter(|&key| row_is_visible(row, key, rows, window as u32, true))
            .collect();
        if visible.is_empty() {
            return;
        }
        for (head, y) in y.chunks_exact_mut(d).enumerate() {
            let at = |values: &[f64], row: usize| values[row * width + head * d..][..d].to_vec();
            let query = at(&q, row);
            let score = |&key: &usize| {
                let column = head * window + window - 1 - (row - key);
                let score = dot(&query, &at(&k, key)) + by_distance[row * all + column];
                match f64::from(attention.softcap) {
                    0.0 => score,
                    cap => cap * (score / cap).tanh(),
                }
            };
            let mut weights: Vec<f64> = visible.iter().map(score).collect();
            softmax_in_place(&mut weights);
            for (index, y) in y.iter_mut().enumerate() {
                let mixed = visible
                    .iter()
                    .zip(&weights)
                    .map(|(&key, weight)| weight * v[key * width + head * d + index]);
                *y = mixed.sum::<f64>() as f32;
            }
        }
    });
    Array::made(shape, y)
}
