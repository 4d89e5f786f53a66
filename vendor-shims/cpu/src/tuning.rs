//! Measurements of the fastest ways on this processor, collected during runs. The shards of an
//! instance share them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwright_shim_abi::log;
use shardwright_shim_abi::raw::SW_LOG_INFO;

use crate::choice::Choice;
use crate::kernels::integer::Streams;
use crate::simd::dot::DotLevel;

/// Fewest bytes of weights in a round of one row, so that caches contain little of them and the
/// clock is fine enough.
const STREAMED: u64 = 64 << 20;
/// Fewest products in a round of many rows: about a millisecond.
const MULTIPLIED: u64 = 1 << 28;
/// Fewest products of a step whose measurement is representative of other steps.
const SAMPLE: u64 = 1 << 26;

/// The choices of one level.
pub struct Tuning {
    streams: Mutex<Choice<Streams>>,
    products: Mutex<Products>,
}

/// The choice of instructions for many rows. Layers repeat, so steps of the largest shape alternate
/// between the ways. All other steps use the best way so far. Otherwise a prompt would be slow for
/// as long as the measurement runs.
struct Products {
    choice: Choice<DotLevel>,
    rivals: Vec<DotLevel>,
    sample: Option<Shape>,
}

/// The properties that the speed of a product of many rows depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub rows: usize,
    pub inputs: u64,
    /// Outputs of all maps together.
    pub outputs: u64,
    /// Bytes of the weights, which differ between types.
    pub bytes: u64,
}

impl Shape {
    fn multiplications(&self) -> u64 {
        (self.rows as u64).saturating_mul(self.inputs).saturating_mul(self.outputs)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tuning {
    /// Creates choices without measurements, on a processor whose fastest byte products are `dot`.
    pub fn new(dot: DotLevel) -> Tuning {
        let rivals = dot.rivals();
        let choice = Choice::among(&rivals, MULTIPLIED);
        let products = Products { choice, rivals, sample: None };
        Tuning {
            streams: Mutex::new(Choice::among(Streams::of(dot), STREAMED)),
            products: Mutex::new(products),
        }
    }

    /// Returns how the next token should read weights.
    pub fn streams(&self) -> Streams {
        lock(&self.streams).now()
    }

    /// Records that reading `bytes` bytes of weights for a token took `time`.
    pub fn streamed(&self, streams: Streams, bytes: u64, time: Duration) {
        if let Some(found) = lock(&self.streams).took(streams, bytes, time) {
            let speeds = found.speeds("GB/s");
            log(SW_LOG_INFO, &format!("one row reads weights with streams={}: {speeds}", found.way));
        }
    }

    /// Returns the instructions for a step of many rows.
    pub fn products(&self, shape: Shape) -> DotLevel {
        let products = &mut *lock(&self.products);
        let least = products.sample.map_or(SAMPLE, |sample| sample.multiplications() + 1);
        if !products.choice.was_made() && shape.multiplications() >= least {
            products.sample = Some(shape);
            products.choice = Choice::among(&products.rivals, MULTIPLIED);
        }
        match products.sample == Some(shape) {
            true => products.choice.now(),
            false => products.choice.best(),
        }
    }

    /// Records that a step of many rows took `time`.
    pub fn multiplied(&self, shape: Shape, dot: DotLevel, time: Duration) {
        let products = &mut *lock(&self.products);
        if products.sample != Some(shape) {
            return;
        }
        if let Some(found) = products.choice.took(dot, shape.multiplications(), time) {
            let speeds = found.speeds("GMAC/s");
            log(SW_LOG_INFO, &format!("many rows are multiplied with products={}: {speeds}", found.way));
        }
    }

    /// Returns the fastest streams, or `None` before they are measured.
    pub fn found_streams(&self) -> Option<Streams> {
        let choice = lock(&self.streams);
        choice.was_made().then(|| choice.best())
    }

    /// Returns the fastest products, or `None` before they are measured.
    pub fn found_products(&self) -> Option<DotLevel> {
        let choice = &lock(&self.products).choice;
        choice.was_made().then(|| choice.best())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_largest_shape_take_turns_and_others_have_the_best_that_is_known() {
        let best = *DotLevel::available().last().unwrap();
        let tuning = Tuning::new(best);
        let rivals = best.rivals();
        let small = Shape { rows: 8, inputs: 64, outputs: 64, bytes: 4096 };
        let first = Shape { rows: 16, inputs: 1024, outputs: 8192, bytes: 1 << 23 };
        let sample = Shape { rows: 128, inputs: 1024, outputs: 4096, bytes: 1 << 22 };
        let other = Shape { bytes: 1 << 21, ..sample };
        assert_eq!((tuning.products(small), tuning.products(first)), (best, best));
        tuning.multiplied(first, best, Duration::from_secs(1));
        assert_eq!(tuning.products(sample), best);
        let mut used = Vec::new();
        for _ in 0..20 {
            let dot = tuning.products(sample);
            used.push(dot);
            if tuning.found_products().is_none() {
                assert_eq!((tuning.products(other), tuning.products(small)), (best, best));
            }
            // The first rival is the fastest.
            tuning.multiplied(other, dot, Duration::from_secs(1));
            tuning.multiplied(sample, dot, Duration::from_millis(if dot == rivals[0] { 1 } else { 2 }));
        }
        assert!(rivals.iter().all(|rival| used.contains(rival)), "{used:?}");
        let found = (rivals.len() > 1).then_some(rivals[0]);
        assert_eq!(tuning.found_products(), found);
        assert_eq!(tuning.products(other), rivals[0]);
    }
}
