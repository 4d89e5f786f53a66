//! Scaled dot-product attention with grouped heads.

use std::collections::BTreeMap;

use half::{bf16, f16};
use rayon::prelude::*;
use shardwright_graph::{Attention, KeySource};
use shardwright_vocabulary::AttentionFormat;

use crate::Array;
use crate::ops::product::dot;
use crate::ops::softmax::softmax_in_place;
use crate::step::{row_is_visible, slot_is_visible, stored_position};

/// Computes attention: each query head mixes the values of the keys it sees. A query that sees no
/// key (possible only beyond the valid rows) returns zeros.
///
/// Keys are visited in slot order. Invisible keys are skipped, so their contribution is exactly
/// zero. Rounded products visit them block by block, see [`Attention`].
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
    let (k, v) = (operands(&k, attention.products), operands(&v, attention.products));
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
        let q = operands(&q_values[row * row_width..][..row_width], attention.products);
        let block_of = |key: usize| match attention.keys {
            KeySource::State => stored_position(positions[row], key, keys) / Attention::BLOCK,
            KeySource::Rows => key as u64 / Attention::BLOCK,
        };
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
            match attention.products.is_rounded() {
                true => rounded_weights(&mut weights, &visible, block_of, attention.products),
                false => softmax_in_place(&mut weights),
            }
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

/// Returns the values as they are multiplied.
fn operands(values: &[f32], products: AttentionFormat) -> Vec<f64> {
    values.iter().map(|&value| rounded(f64::from(value), products)).collect()
}

/// Rounds an f32 value to the format of products.
fn rounded(value: f64, products: AttentionFormat) -> f64 {
    match products {
        AttentionFormat::F32 => value,
        AttentionFormat::Bf16 => bf16::from_f32(value as f32).to_f64(),
        AttentionFormat::F16 => f16::from_f32(value as f32).to_f64(),
    }
}

/// Weights below this power of e are 0.
const NEGLIGIBLE: f64 = -64.0;

/// Returns e to the power of `below`, or 0 for a negligible weight.
fn weight(below: f64) -> f64 {
    if below < NEGLIGIBLE { 0.0 } else { below.exp() }
}

/// Turns the scores of visible keys into weights with the sum 1. Each is rounded relative to the
/// largest score of its block.
fn rounded_weights(
    scores: &mut [f64],
    visible: &[usize],
    block_of: impl Fn(usize) -> u64,
    products: AttentionFormat,
) {
    let mut largest_of: BTreeMap<u64, f64> = BTreeMap::new();
    for (&key, &score) in visible.iter().zip(scores.iter()) {
        let largest = largest_of.entry(block_of(key)).or_insert(f64::NEG_INFINITY);
        *largest = largest.max(score);
    }
    let largest = largest_of.values().copied().fold(f64::NEG_INFINITY, f64::max);
    for (&key, score) in visible.iter().zip(scores.iter_mut()) {
        let own = largest_of[&block_of(key)];
        *score = rounded(weight(*score - own), products) * weight(own - largest);
    }
    let sum: f64 = scores.iter().sum();
    scores.iter_mut().for_each(|weight| *weight /= sum);
}
