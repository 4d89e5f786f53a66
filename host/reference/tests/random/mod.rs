//! Random small models and formats, and the ranges that calibration would find for them.

#![allow(dead_code, reason = "each test binary uses its part")]

use proptest::prelude::*;
use shardwright_graph::{Graph, Range, Ranges};
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_vocabulary::{
    ActivationFormat, AttentionFormat, DType, FormatTuple, RoleFormat, StateFormat, WeightFormat, WeightRole,
};

use crate::support::{LayerRecipe, Noise, Recipe};

/// Generates all kinds of shapes of small models.
pub fn recipes() -> impl Strategy<Value = Recipe> {
    let layer = (0..3_u32, 1..3_u32, 0..3_u32, 0..4_u32, any::<[bool; 4]>()).prop_map(
        |(kv, group, dims, window, [gelu, bias, capped, partial])| {
            let head_dim = [2, 4, 8][dims as usize];
            let kv_heads = [1, 1, 2][kv as usize];
            LayerRecipe {
                heads: kv_heads * group,
                kv_heads,
                head_dim,
                rotated_pairs: if partial { head_dim / 4 } else { head_dim / 2 },
                theta: if gelu { 1e4 } else { 50.0 },
                factor: if capped { 8.0 } else { 1.0 },
                window: [0, 1, 3, 6][window as usize],
                softcap: if capped { 4.0 } else { 0.0 },
                donor: None,
                inner: 10,
                gelu,
                bias,
            }
        },
    );
    let shares = proptest::collection::vec(proptest::option::weighted(0.3, any::<u8>()), 5);
    (proptest::collection::vec(layer, 1..6), shares, any::<u64>(), 0..3_usize, any::<[bool; 5]>()).prop_map(
        |(mut layers, shares, seed, dtype, [per_layer, offset, softcap, encoder, wide])| {
            for (index, share) in shares.iter().enumerate().take(layers.len()).skip(1) {
                let Some(share) = share else { continue };
                let donor = usize::from(*share) % index;
                // Only a layer with its own keys can be a donor, and only to a layer that reads
                // them the same way.
                if layers[donor].donor.is_none() && !encoder {
                    layers[index] = LayerRecipe { gelu: layers[index].gelu, ..layers[donor].clone() };
                    layers[index].donor = Some(donor as u32);
                }
            }
            Recipe {
                seed,
                // A block of 32 and a short one, or a short one alone.
                hidden: if wide { 40 } else { 8 },
                vocabulary: 24,
                per_layer_width: if per_layer && !encoder { 4 } else { 0 },
                dtype: [DType::F32, DType::F16, DType::Bf16][dtype],
                weight_offset: if offset { 1.0 } else { 0.0 },
                softcap: if softcap { 30.0 } else { 0.0 },
                encoder,
                layers,
            }
        },
    )
}

/// Returns token ids below 24.
pub fn ids(seed: u64, count: usize) -> Vec<u32> {
    let mut noise = Noise(seed ^ 0x5eed);
    (0..count).map(|_| ((noise.next() + 1.0) * 11.9) as u32).collect()
}

/// Generates all formats of weights, activations and states, with exceptions for some roles.
pub fn formats() -> impl Strategy<Value = FormatTuple> {
    let of = |index: proptest::sample::Index| WeightFormat::MADE[index.index(WeightFormat::MADE.len())];
    let index = any::<proptest::sample::Index>;
    let exception = (0..WeightRole::ALL.len(), index());
    (index(), index(), index(), proptest::option::of(exception)).prop_map(
        move |(weights, activations, states, exception)| FormatTuple {
            weights: of(weights),
            roles: exception
                .map(|(role, format)| RoleFormat { role: WeightRole::ALL[role], format: of(format) })
                .into_iter()
                .collect(),
            activations: ActivationFormat::ALL[activations.index(ActivationFormat::ALL.len())],
            states: StateFormat::ALL[states.index(StateFormat::ALL.len())],
            // Rounded products have no other form.
            attention: AttentionFormat::F32,
        },
    )
}

/// Returns the smallest and largest value of every tensor over a few texts.
pub fn ranges(graph: &Graph, texts: &[Vec<u32>]) -> Ranges {
    let mut ranges = Ranges::new();
    let model = ReferenceModel::new(graph, Arrangement::whole(1)).unwrap();
    for text in texts {
        model.observe(text, &mut |key, values| collect(&mut ranges, key, values)).unwrap();
    }
    ranges
}

/// Widens the range of a key.
pub fn collect(ranges: &mut Ranges, key: &str, values: &[f32]) {
    let (mut low, mut high, mut masked) = (f32::INFINITY, f32::NEG_INFINITY, false);
    for &value in values {
        if Range::is_masked(value) {
            masked = true;
        } else {
            (low, high) = (low.min(value), high.max(value));
        }
    }
    let seen = if low <= high { Range { low, high, masked } } else { Range { low: 0.0, high: 0.0, masked } };
    ranges.entry(key.to_owned()).and_modify(|range| *range = range.union(seen)).or_insert(seen);
}
