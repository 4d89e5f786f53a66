//! The shim through the contract's door, with the real library where there is one.

mod bad;
mod compiling;
mod estimates;
mod flags;
mod host;
mod layer;
mod platform;
mod running;
mod tables;

use std::io::Write;
use std::path::PathBuf;

pub(crate) use host::{Failure, Host, Loaded, Region};
pub(crate) use layer::Layer;
pub(crate) use tables::{Builder, Encoding, Weight};

/// The vendor's library, or one loud line that a test was skipped for want of it.
fn library(test: &str) -> Option<PathBuf> {
    let choice = shardwright_shim_qnn::library::LibraryChoice::new(None);
    let vendored = shardwright_shim_qnn::library::LibraryChoice::vendored();
    let found = choice.variable.or_else(|| vendored.filter(|path| path.is_file()));
    let found = found.map(|path| if path.is_dir() { path.join("libQnnHtp.so") } else { path });
    if found.is_none() {
        let _ = writeln!(
            std::io::stdout().lock(),
            "SKIPPED: {test}: no libQnnHtp.so; run `cargo xtask vendor qnn` or set SHARDWRIGHT_QNN_LIB"
        );
    }
    found
}

/// Numbers that look random and are the same every time, within ±`scale`.
fn values(count: usize, seed: u64, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
        })
        .collect()
}

/// Cosine between two vectors.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The failure of what must be refused.
fn refused<T>(result: Result<T, Failure>, class: u32, part: &str) -> Failure {
    match result {
        Ok(_) => panic!("taken, although `{part}` was expected"),
        Err(failure) => {
            assert_eq!(failure.class, class, "{failure:?}");
            assert!(failure.message.contains(part), "`{part}` not in {failure:?}");
            failure
        }
    }
}
