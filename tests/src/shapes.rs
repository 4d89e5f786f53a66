//! Checkpoints of random shapes, for properties that must be true for all of them.

use shardwright_test_checkpoints::{Family, Random, Spec, Spelling};

/// Returns the specification of a checkpoint with a random shape.
pub fn random_spec(random: &mut Random, seed: u64) -> Spec {
    let base = [Spec::gemma3(), Spec::gemma4(), Spec::gemma4(), Spec::qwen3()];
    let base = base[random.below(4) as usize].clone();
    let mut among = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
    let kv_heads = among(&[1, 2, 3]);
    let depth = among(&[1, 2, 3, 5, 8]) as usize;
    let mut spec = Spec {
        spelling: if among(&[0, 1]) == 0 { Spelling::Older } else { Spelling::Newer },
        vocabulary: among(&[33, 96, 257]),
        hidden: among(&[8, 20, 36, 72]),
        intermediate: among(&[7, 24, 100]),
        heads: kv_heads * among(&[1, 2, 4]),
        kv_heads,
        head_dim: among(&[4, 8, 18, 32]),
        global_head_dim: among(&[8, 16, 40]),
        window: among(&[1, 2, 3, 7, 19, 200]),
        query_scalar: among(&[4, 8, 31]) as f64,
        softcap: [None, Some(30.0)][among(&[0, 1]) as usize],
        tied: among(&[0, 1]) == 0,
        dtype: ["F32", "F16", "BF16"][among(&[0, 1, 2]) as usize],
        files: among(&[1, 1, 2, 3]) as usize,
        layers: (0..depth).map(|_| if among(&[0, 0, 1]) == 0 { 'S' } else { 'F' }).collect(),
        seed,
        ..base
    };
    match spec.family {
        Family::Qwen3 => spec.layers = "F".repeat(depth),
        Family::Gemma4 => {
            // The last layer of this family is always full, whatever the list contains.
            spec.layers.pop();
            spec.layers.push('F');
            spec.per_layer = among(&[0, 4, 10]);
            spec.double_wide = among(&[0, 1]) == 0;
            spec.stale_keys = among(&[0, 1]) == 0;
            spec.multimodal = among(&[0, 0, 1]) == 0;
            spec.partial = [0.25, 0.5, 1.0][among(&[0, 1, 2]) as usize];
            spec.kv_shared = sharable(&spec.layers, among(&[0, 1, 2, 4]) as usize);
        }
        _ => {}
    }
    spec
}

/// Returns the largest number of layers, up to `wanted`, that have a donor of their own kind before
/// them.
fn sharable(layers: &str, wanted: usize) -> usize {
    let fits = |shared: &usize| {
        let (own, sharing) = layers.split_at(layers.len() - shared);
        sharing.chars().all(|kind| own.contains(kind))
    };
    (0..=wanted.min(layers.len() - 1)).filter(fits).max().unwrap_or(0)
}
