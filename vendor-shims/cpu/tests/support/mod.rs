//! What the tests share: a writer of contract tables, the host's side of the door, and a plain evaluator.
#![allow(dead_code, unused_imports, reason = "every test file uses another part")]

pub mod decoder;
pub mod encode;
pub mod evaluate;
pub mod host;
pub mod tables;

pub use evaluate::{Tensor, evaluate, evaluate_all};
pub use host::{Bound, Host, Loaded, Region};
pub use tables::{Attribute, Builder, Weight, integers, weight};

/// Numbers that look random and are the same every time.
pub fn values(count: usize, seed: u64, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
        })
        .collect()
}

/// The bits, for comparisons that must be exact.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
