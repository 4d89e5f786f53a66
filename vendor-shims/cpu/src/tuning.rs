//! What an instance finds to be fastest on its processor, while it runs. Its shards share it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwright_shim_abi::log;
use shardwright_shim_abi::raw::SW_LOG_INFO;

use crate::choice::Choice;
use crate::kernels::integer::Streams;
use crate::simd::dot::DotLevel;

/// Fewest bytes of weights of a round of one row, so that caches hold little of it and the clock is
/// fine enough.
const STREAMED: u64 = 64 << 20;
/// Fewest products of a round of many rows: a millisecond or so.
const MULTIPLIED: u64 = 1 << 28;
/// Fewest products of a step that stands for others.
const SAMPLE: u64 = 1 << 26;

/// The choices of one level.
pub struct Tuning {
    streams: Mutex<Choice<Streams>>,
    products: Mutex<Products>,
}

/// Which products many rows are multiplied with. Layers repeat, so steps of the largest shape take
/// turns; all others have the best that is known, or a prompt would be read slowly for as long as
/// that takes.
struct Products {
    choice: Choice<DotLevel>,
    rivals: Vec<DotLevel>,
    sample: Option<Shape>,
}

/// What the speed of a product of many rows depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub rows: usize,
    /// Inputs.
    pub inputs: u64,
    /// Outputs of all maps.
    pub outputs: u64,
    /// Bytes of their weights, which differ between types.
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
    /// Nothing is measured yet, on a processor whose fastest products are those of `dot`.
    pub fn new(dot: DotLevel) -> Tuning {
        let rivals = dot.rivals();
        let choice = Choice::among(&rivals, MULTIPLIED);
        let products = Products { choice, rivals, sample: None };
        Tuning {
            streams: Mutex::new(Choice::among(Streams::of(dot), STREAMED)),
            products: Mutex::new(products),
        }
    }

    /// How the next token reads weights.
    pub fn streams(&self) -> Streams {
        lock(&self.streams).now()
    }

    /// So many bytes of weights were read for a token in so much time.
    pub fn streamed(&self, streams: Streams, bytes: u64, time: Duration) {
        if let Some(found) = lock(&self.streams).took(streams, bytes, time) {
            let speeds = found.speeds("GB/s");
            log(SW_LOG_INFO, &format!("one row reads weights with streams={}: {speeds}", found.way));
        }
    }

    /// The products for a step of many rows.
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

    /// A step of many rows took so much time.
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

    /// The streams that were found fastest; `None` before.
    pub fn found_streams(&self) -> Option<Streams> {
        let choice = lock(&self.streams);
        choice.was_made().then(|| choice.best())
    }

    /// The products that were found fastest; `None` before.
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
            // The first is the fastest.
            tuning.multiplied(other, dot, Duration::from_secs(1));
            tuning.multiplied(sample, dot, Duration::from_millis(if dot == rivals[0] { 1 } else { 2 }));
        }
        assert!(rivals.iter().all(|rival| used.contains(rival)), "{used:?}");
        let found = (rivals.len() > 1).then_some(rivals[0]);
        assert_eq!(tuning.found_products(), found);
        assert_eq!(tuning.products(other), rivals[0]);
    }
}
