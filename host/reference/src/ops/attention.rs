//! Scaled dot-product attention with grouped heads.

use rayon::prelude::*;
use shardwright_graph::{Attention, KeySource};

use crate::Array;
use crate::ops::product::dot;
use crate::ops::softmax::softmax_in_place;
use crate::step::{row_is_visible, slot_is_visible};

/// Computes attention: each query head mixes the values of the keys it sees. A query that sees no
/// key (possible only beyond the valid rows) returns zeros.
///
/// Keys are visited in slot order. Invisible keys are skipped, so their contribution is exactly
/// zero.
pub(crate) fn attention(
    q: &Array,
    k: &Array,
    v: &Array,
    positions: &[i32],
    attention: &Attention,
    rows: usize,
) -> Array {
    let d = attention.head_dim as usize;
    let key_width = attention.kv_heads as usize * d;
    let group = (attention.heads / attention.kv_heads) as usize;
    let keys = k.shape()[0];
    let (q_values, k, v) = (q.floats(), k.floats(), v.floats());
    let (k, v) = (widened(&k), widened(&v));
    let row_width = q.shape()[1];

    let mut y = vec![0.0_f32; q.elements()];
    y.par_chunks_exact_mut(row_width).enumerate().for_each(|(row, y)| {
        let visible: Vec<usize> = (0..keys)
            .filter(|&key| match attention.keys {
                KeySource::State => slot_is_visible(positions[row], key, keys, attention.window),
                KeySource::Rows => row_is_visible(row, key, rows, attention.window, attention.causal),
            })
            .collect();
        if visible.is_empty() {
            return;
        }
        let q = widened(&q_values[row * row_width..][..row_width]);
        for (head, (q, y)) in q.chunks_exact(d).zip(y.chunks_exact_mut(d)).enumerate() {
            let of_key = |key: usize| key * key_width + head / group * d;
            let mut weights: Vec<f64> = visible
                .iter()
                .map(|&key| {
                    let score = dot(q, &k[of_key(key)..][..d]) * f64::from(attention.scale);
                    match f64::from(attention.softcap) {
                        0.0 => score,
                        cap => cap * (score / cap).tanh(),
                    }
                })
                .collect();
            softmax_in_place(&mut weights);
            let mut mixed = vec![0.0_f64; d];
            for (&key, weight) in visible.iter().zip(&weights) {
                for (mixed, v) in mixed.iter_mut().zip(&v[of_key(key)..][..d]) {
                    *mixed += weight * v;
                }
            }
            for (y, mixed) in y.iter_mut().zip(mixed) {
                *y = mixed as f32;
            }
        }
    });
    Array::made(q.shape(), y)
}

fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}
