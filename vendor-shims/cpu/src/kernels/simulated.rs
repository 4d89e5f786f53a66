//! Decode steps and prompts of real models on machines with 8 to 64 cores, by a virtual clock. Jobs
//! are divided as by the kernels, and threads take units from the pool's own shares. Work is
//! counted in multiply-adds of bytes, of which a float costs as much as four. Norms and other small
//! steps, the memory and handing over are not counted.
//!
//! The ideal split knows the speed of every thread and assigns whole panels, or whole steps of rows
//! by a group of panels.

use std::cell::Cell;
use std::ops::Range;

use super::attention::costs_of_tasks;
use super::integer::cuts::{PANELS, Steps, panels_of_group, step_rows};
use super::integer::split::runs::{CUT, EARLY, UNIT, units_of, units_of_part};
use crate::pool::Cut;
use crate::pool::simulated::{Outcome, equal, ideal, one_slow, phone, simulate};
use crate::simd::LANES;
use crate::simd::dot::DotLevel;

/// Most time of a step or a prompt, compared with the ideal split.
const MOST: f64 = 1.15;
const VOCABULARY: usize = 262_144;
const PROMPT: usize = 512;
const HEAD_DIM: usize = 256;
/// Cost of a float product, in products of bytes.
const FLOAT: f64 = 4.0;
/// Rows that need as much time as unpacking the weights that they are multiplied with.
const UNPACKING: usize = 3;

/// A model, with the products of a layer: inputs, and the outputs of each map of these inputs.
struct Model {
    name: &'static str,
    layers: usize,
    heads: usize,
    hidden: usize,
    products: &'static [(usize, &'static [usize])],
}

const MODELS: [Model; 3] = [
    Model {
        name: "Gemma 3 270M",
        layers: 18,
        heads: 4,
        hidden: 640,
        products: &[(640, &[1024, 256, 256]), (1024, &[640]), (640, &[2048, 2048]), (2048, &[640])],
    },
    Model {
        name: "Gemma 3 1B",
        layers: 26,
        heads: 4,
        hidden: 1152,
        products: &[(1152, &[1024, 256, 256]), (1024, &[1152]), (1152, &[6912, 6912]), (6912, &[1152])],
    },
    Model {
        name: "Gemma 4 E2B",
        layers: 35,
        heads: 8,
        hidden: 1536,
        products: &[
            (1536, &[2048, 256, 256]),
            (2048, &[1536]),
            (1536, &[6144, 6144]),
            (6144, &[1536]),
            (1536, &[256]),
            (256, &[1536]),
        ],
    },
];

/// Time of some jobs, and of their ideal splits.
#[derive(Clone, Copy, Debug, Default)]
struct Time {
    taken: f64,
    ideal: f64,
    /// Time of all threads without units.
    idle: f64,
}

impl Time {
    fn add(&mut self, outcome: &Outcome, ideal: f64, times: usize) {
        self.taken += outcome.end * times as f64;
        self.ideal += ideal * times as f64;
        self.idle += outcome.idle.iter().sum::<f64>() * times as f64;
    }

    fn ratio(self) -> f64 {
        self.taken / self.ideal
    }
}

/// Adds one row by the maps of some inputs, and checks the job by itself.
fn one_row(speeds: &[f64], inputs: usize, maps: &[usize], time: &mut Time, times: usize) {
    let panels: usize = maps.iter().map(|outputs| outputs.div_ceil(LANES)).sum();
    let outcome = simulate(speeds, panels, PANELS, |panels| (panels.len() * inputs) as f64);
    let best = ideal(speeds, panels, inputs as f64);
    assert_eq!(outcome.units.iter().sum::<usize>(), panels);
    let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
    let most = MOST * best + inputs as f64 / slowest;
    assert!(outcome.end <= most, "{panels} panels: {outcome:?}, {best} at best");
    time.add(&outcome, best, times);
}

/// Returns the time of a decode step.
fn decode(model: &Model, speeds: &[f64]) -> Time {
    let mut time = Time::default();
    for (inputs, maps) in model.products {
        one_row(speeds, *inputs, maps, &mut time, model.layers);
    }
    // The head, by bounds: all threads begin with some parts, then the others follow. The last
    // phase reads little.
    let (units, part) = (units_of(VOCABULARY), units_of_part(speeds.len()));
    let early = units.div_ceil(part).div_ceil(EARLY);
    let cost = |units: usize| (units * UNIT * model.hidden) as f64;
    let begin = simulate(speeds, early, Cut::SINGLE, |parts| cost(parts.len() * part));
    let rest = simulate(speeds, units - early * part, CUT, |units| cost(units.len()));
    let best = ideal(speeds, VOCABULARY / LANES, model.hidden as f64);
    time.add(&begin, best, 1);
    time.add(&rest, 0.0, 1);
    time
}

/// Adds the rows of a prompt by the maps of some inputs. Returns the costs of all rows, and of
/// unpacking weights.
fn many_rows(speeds: &[f64], inputs: usize, maps: &[usize], time: &mut Time, times: usize) -> [f64; 2] {
    let steps = Steps::of(PROMPT, step_rows(DotLevel::Scalar));
    let panels: Vec<usize> = maps.iter().map(|outputs| outputs.div_ceil(LANES)).collect();
    let units = panels.iter().map(|panels| steps.units(*panels)).sum();
    let (multiplied, unpacked) = (Cell::new(0), Cell::new(0));
    let cost = |range: Range<usize>| {
        let (mut begin, mut cost) = (0, 0);
        for panels in &panels {
            let end = begin + steps.units(*panels);
            let (first, last) = (range.start.max(begin), range.end.min(end));
            for (group, rows) in steps.pieces(first - begin..last.max(first) - begin) {
                let (_, count) = panels_of_group(group, *panels);
                cost += rows.len() * count;
                unpacked.set(unpacked.get() + UNPACKING * count);
            }
            begin = end;
        }
        multiplied.set(multiplied.get() + cost);
        (cost * inputs * LANES) as f64
    };
    let outcome = simulate(speeds, units, steps.cut(), cost);
    let all: usize = panels.iter().map(|panels| panels * PROMPT).sum();
    assert_eq!(multiplied.get(), all);
    // Groups have up to four panels, and the last step of a group has fewer rows.
    let step = (step_rows(DotLevel::Scalar) * 4 * inputs * LANES) as f64;
    let whole: usize = panels.iter().map(|panels| panels / 4 * (PROMPT / step_rows(DotLevel::Scalar))).sum();
    let work = (all * inputs * LANES) as f64;
    time.add(&outcome, ideal(speeds, whole, step).max(work / speeds.iter().sum::<f64>()), times);
    [work, (unpacked.get() * inputs * LANES) as f64].map(|cost| cost * times as f64)
}

/// Returns the time of a prompt without its head, and the part of the work that unpacking adds.
fn prefill(model: &Model, speeds: &[f64]) -> (Time, f64) {
    let mut time = Time::default();
    let (mut work, mut unpacking) = (0.0, 0.0);
    for (inputs, maps) in model.products {
        let [rows, weights] = many_rows(speeds, *inputs, maps, &mut time, model.layers);
        work += rows;
        unpacking += weights;
    }
    // Queries and keys, then weights and values.
    let costs: Vec<f64> = costs_of_tasks(model.heads, 1, PROMPT, speeds.len())
        .iter()
        .map(|products| products * 2.0 * HEAD_DIM as f64 * FLOAT)
        .collect();
    let outcome = simulate(speeds, costs.len(), Cut::SINGLE, |tasks| costs[tasks].iter().sum());
    let (all, largest) = (costs.iter().sum::<f64>(), costs.iter().copied().fold(0.0, f64::max));
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    let best = (all / speeds.iter().sum::<f64>()).max(largest / fastest);
    time.add(&outcome, best, model.layers);
    (time, unpacking / work)
}

#[test]
fn wide_and_uneven_machines_are_near_the_ideal_split() {
    for threads in [8, 16, 32, 64] {
        for (kind, speeds) in [("equal", equal(threads)), ("uneven", phone(threads))] {
            for model in &MODELS {
                let step = decode(model, &speeds);
                let (prompt, unpacking) = prefill(model, &speeds);
                println!(
                    "{}, {threads} {kind} threads: step {:.3} (idle {:.1} %), prompt {:.3} (idle {:.1} %, \
                     unpacking {:.1} %)",
                    model.name,
                    step.ratio(),
                    100.0 * step.idle / (step.taken * threads as f64),
                    prompt.ratio(),
                    100.0 * prompt.idle / (prompt.taken * threads as f64),
                    100.0 * unpacking
                );
                assert!(step.ratio() <= MOST, "{}, {threads} {kind} threads: {step:?}", model.name);
                assert!(prompt.ratio() <= MOST, "{}, {threads} {kind} threads: {prompt:?}", model.name);
                assert!(unpacking <= 0.15, "{}, {threads} threads: {unpacking}", model.name);
            }
        }
    }
}

#[test]
fn a_thread_slowed_by_a_factor_of_three_does_not_hold_up_the_others() {
    for model in &MODELS {
        for slow in 0..8 {
            let time = decode(model, &one_slow(8, slow));
            assert!(time.ratio() <= MOST, "{}, thread {slow} of 8 is slow: {time:?}", model.name);
        }
        // With more threads, a product of few panels waits for the one panel of the slow thread.
        for threads in [16, 32, 64] {
            for slow in [0, 1, threads / 2, threads - 1] {
                decode(model, &one_slow(threads, slow));
            }
        }
    }
}

/// Two threads of equal speed take the same runs of eight panels as if the shares were fixed.
#[test]
fn two_equal_threads_take_wide_runs_and_are_never_idle() {
    for (panels, takes) in [(40, 3), (72, 5), (96, 6), (256, 15), (16_384, 269)] {
        let outcome = simulate(&equal(2), panels, PANELS, |panels| panels.len() as f64);
        assert_eq!((outcome.end, outcome.idle), (panels as f64 / 2.0, vec![0.0; 2]));
        assert!(outcome.takes.iter().all(|count| *count <= takes), "{panels} panels: {:?}", outcome.takes);
    }
    for model in &MODELS {
        let time = prefill(model, &equal(2)).0;
        assert!(time.ratio() <= 1.01, "{}: {time:?}", model.name);
    }
}
