//! Measurements of the fastest ways, collected during runs. The shards of an instance share
//! [`Tuning`], which depends on the processor. Each shard has its own [`HeadTuning`], which depends
//! on its weights too.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwright_shim_abi::log;
use shardwright_shim_abi::raw::SW_LOG_INFO;

use crate::choice::Choice;
use crate::kernels::integer::Streams;
use crate::kernels::integer::split::Head;
use crate::simd::dot::DotLevel;

/// Fewest bytes of weights in a round of one row, so that caches contain little of them and the
/// clock is fine enough.
const STREAMED: u64 = 64 << 20;
/// Fewest products in a round of many rows: about a millisecond.
const MULTIPLIED: u64 = 1 << 28;
/// Fewest products of a step whose measurement is representative of other steps.
const SAMPLE: u64 = 1 << 26;
/// Steps of a round in which the largest logits are found one way.
const STEPS: u64 = 4;
/// Most rows of a step that waits for memory rather than for products.
const FEW: usize = 4;

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

/// The choices of how a shard finds the largest logits: for few rows and for more, and for one
/// logit of a row and for several.
pub struct HeadTuning([Mutex<Choice<Head>>; 4]);

impl Default for HeadTuning {
    fn default() -> HeadTuning {
        HeadTuning(std::array::from_fn(|_| Mutex::new(Choice::among(&Head::ALL, STEPS))))
    }
}

impl HeadTuning {
    fn choice(&self, rows: usize, wanted: usize) -> MutexGuard<'_, Choice<Head>> {
        lock(&self.0[2 * usize::from(rows > FEW) + usize::from(wanted > 1)])
    }

    /// Returns how a step should find the `wanted` largest logits of each row.
    pub fn now(&self, rows: usize, wanted: usize) -> Head {
        self.choice(rows, wanted).now()
    }

    /// Records that finding the `wanted` largest logits of each row took `time`.
    pub fn took(&self, rows: usize, wanted: usize, head: Head, time: Duration) {
        if let Some(found) = self.choice(rows, wanted).took(head, 1, time) {
            let times = found.paces.iter().map(|(head, pace)| format!("{:.2} ms with {head}", pace / 1e6));
            let times = times.collect::<Vec<_>>().join(", ");
            let head = found.way;
            let what = format!("the {wanted} largest logits of {rows} rows are found with head={head}");
            log(SW_LOG_INFO, &format!("{what}: {times}"));
        }
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

    #[test]
    fn the_faster_way_to_the_largest_logits_is_found_for_each_kind_of_step() {
        let heads = HeadTuning::default();
        let kinds = [(1, 1, Head::Bounds), (5, 1, Head::All), (1, 2, Head::All), (16, 40, Head::Bounds)];
        for (rows, wanted, fastest) in kinds {
            let mut used = Vec::new();
            // A round touches pages, then both ways have two rounds.
            for _ in 0..5 * STEPS {
                let head = heads.now(rows, wanted);
                used.push(head);
                heads.took(rows, wanted, head, Duration::from_millis(if head == fastest { 1 } else { 2 }));
            }
            assert_eq!(used[0], Head::All, "the guess is used first");
            assert!(used.contains(&Head::Bounds), "{used:?}");
            for _ in 0..5 * STEPS {
                assert_eq!(heads.now(rows, wanted), fastest, "{wanted} of {rows} rows");
                heads.took(rows, wanted, fastest, Duration::from_secs(1));
            }
        }
        assert_eq!((heads.now(4, 1), heads.now(6, 1)), (Head::Bounds, Head::All));
        assert_eq!((heads.now(4, 256), heads.now(5, 256)), (Head::All, Head::Bounds));
    }
}
