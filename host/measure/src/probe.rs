//! Measures how fast memory can be read right now. On a shared or virtual machine that changes by a
//! factor of two within minutes, and decoding changes with it. A speed is therefore meaningful only
//! together with probes before and after it.

use std::collections::TryReserveError;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use crate::statistics::{median, range};

/// Threads that read, each its own part. Two saturate a memory channel or two, and other published
/// figures use two.
const THREADS: usize = 2;

/// Passes over the buffer in one probe.
const PASSES: usize = 5;

/// Words to add at once: a cache line, in separate sums, so that few additions wait for an earlier
/// one.
const LANES: usize = 8;

/// Result of a probe, in GB/s (10⁹ bytes).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Probe {
    /// Speed of the fastest pass.
    pub best: f64,
    /// Speed of the median pass.
    pub median: f64,
}

/// A buffer to read.
pub struct Prober {
    buffer: Vec<u64>,
}

impl Prober {
    /// Allocates and fills a buffer of this many mebibytes.
    pub fn new(mebibytes: u32) -> Result<Self, TryReserveError> {
        let words = mebibytes as usize * ((1 << 20) / size_of::<u64>());
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(words)?;
        // Every word is written, so that each page is a separate one.
        buffer.extend((0..words as u64).map(|word| word.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        Ok(Prober { buffer })
    }

    /// Reads the whole buffer a few times.
    pub fn probe(&self) -> Probe {
        let speeds: Vec<f64> = (0..PASSES).map(|_| self.pass()).collect();
        Probe { best: range(&speeds).1, median: median(&speeds) }
    }

    fn pass(&self) -> f64 {
        let part = self.buffer.len().div_ceil(THREADS).max(1);
        let parts: Vec<&[u64]> = self.buffer.chunks(part).collect();
        let barrier = Barrier::new(parts.len() + 1);
        let started = std::thread::scope(|scope| {
            for part in &parts {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    black_box(sum(part));
                });
            }
            barrier.wait();
            // The scope ends when all threads have read.
            Instant::now()
        });
        let seconds = started.elapsed().as_secs_f64().max(1e-9);
        size_of_val(self.buffer.as_slice()) as f64 / seconds / 1e9
    }
}

/// Reads four streams at once. A single stream would wait for memory between its loads, which are
/// narrower here than a processor's widest.
fn sum(words: &[u64]) -> u64 {
    let quarter = words.len() / 4 / LANES * LANES;
    let (first, rest) = words.split_at(quarter);
    let (second, rest) = rest.split_at(quarter);
    let (third, rest) = rest.split_at(quarter);
    let (fourth, rest) = rest.split_at(quarter);
    let mut sums = [0_u64; LANES];
    let pieces = |stream| <[u64]>::chunks_exact(stream, LANES);
    for (((first, second), third), fourth) in
        pieces(first).zip(pieces(second)).zip(pieces(third)).zip(pieces(fourth))
    {
        for (lane, sum) in sums.iter_mut().enumerate() {
            let left = first[lane].wrapping_add(second[lane]);
            *sum = sum.wrapping_add(left).wrapping_add(third[lane].wrapping_add(fourth[lane]));
        }
    }
    sums.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let words: Vec<u64> = (1..=1000).collect();
        assert_eq!(sum(&words), 500_500);
        for length in [0, 1, 7, 31, 32, 33, 127] {
            assert_eq!(sum(&words[..length]), (length * (length + 1) / 2) as u64, "{length}");
        }
    }

    #[test]
    fn a_probe_gives_speeds() {
        let prober = Prober::new(1).expect("a mebibyte");
        assert_eq!(prober.buffer.len() * size_of::<u64>(), 1 << 20);
        let probe = prober.probe();
        assert!(probe.median > 0.0 && probe.best >= probe.median, "{probe:?}");
    }
}
