//! Jobs by a virtual clock. Threads of given speeds take units from the same shares as the threads
//! of a pool, so work and idle time of machines can be counted that are not at hand. Costs of
//! handing over and of memory are not simulated.

use std::ops::Range;

use super::share::{Cut, Shares, Taker};

/// The end of a simulated job.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Time at which the last thread ends.
    pub(crate) end: f64,
    /// Units that each thread ran.
    pub(crate) units: Vec<usize>,
    /// Number of times that each thread took units.
    pub(crate) takes: Vec<usize>,
    /// Time in which each thread had no units.
    pub(crate) idle: Vec<f64>,
}

/// Runs `units` units on threads of these speeds, in cost per time. `cost` returns the cost of a
/// range of units.
pub(crate) fn simulate(
    speeds: &[f64],
    units: usize,
    cut: Cut,
    cost: impl Fn(Range<usize>) -> f64,
) -> Outcome {
    let shares = Shares::new(speeds.len());
    let threads = shares.deal(speeds.len(), units);
    let mut takers: Vec<Taker> = (0..threads).map(|thread| Taker::new(thread, threads, cut)).collect();
    let mut clocks = vec![0.0f64; speeds.len()];
    let (mut counts, mut takes) = (vec![0; speeds.len()], vec![0; speeds.len()]);
    let mut busy: Vec<usize> = (0..threads).collect();
    // The thread whose clock is the earliest takes next. Of several, the first one does.
    while let Some(thread) = busy.iter().copied().min_by(|a, b| clocks[*a].total_cmp(&clocks[*b])) {
        let Some(taken) = shares.take(&mut takers[thread]) else {
            busy.retain(|other| *other != thread);
            continue;
        };
        counts[thread] += taken.len();
        takes[thread] += 1;
        clocks[thread] += cost(taken) / speeds[thread];
    }
    let end = clocks.iter().copied().fold(0.0, f64::max);
    Outcome { end, units: counts, takes, idle: clocks.iter().map(|clock| end - clock).collect() }
}

/// Returns the time of the best split of `units` equal units on threads of these speeds. No thread
/// runs a part of a unit.
pub(crate) fn ideal(speeds: &[f64], units: usize, cost: f64) -> f64 {
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    let (mut low, mut high) = (0.0, cost * units as f64 / fastest);
    let done = |time: f64| speeds.iter().map(|speed| (time * speed / cost + 1e-9).floor()).sum::<f64>();
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if done(middle) >= units as f64 {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// Returns the speeds of `threads` threads of equal cores.
pub(crate) fn equal(threads: usize) -> Vec<f64> {
    vec![1.0; threads]
}

/// Returns the speeds of `threads` threads of cores as on a phone: of every eight, a prime core,
/// three performance cores and four efficiency cores.
pub(crate) fn phone(threads: usize) -> Vec<f64> {
    [3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0].into_iter().cycle().take(threads).collect()
}

/// Returns the speeds of `threads` threads of equal cores, of which thread `slow` is slowed by a
/// factor of three.
pub(crate) fn one_slow(threads: usize, slow: usize) -> Vec<f64> {
    (0..threads).map(|thread| if thread == slow { 1.0 } else { 3.0 }).collect()
}

mod tests {
    use super::*;

    #[test]
    fn work_and_idle_time_are_counted() {
        let outcome = simulate(&[1.0, 1.0], 8, Cut::SINGLE, |units| units.len() as f64);
        assert_eq!((outcome.end, outcome.units, outcome.takes), (4.0, vec![4, 4], vec![4, 4]));
        assert_eq!(outcome.idle, [0.0, 0.0]);
        // A job of one unit needs one thread.
        let outcome = simulate(&[2.0, 0.5, 1.0], 1, Cut::SINGLE, |_| 4.0);
        assert_eq!((outcome.end, outcome.idle), (2.0, vec![0.0, 2.0, 2.0]));
        // The fast thread takes two of the four units of the other one.
        let outcome = simulate(&[3.0, 1.0], 8, Cut::SINGLE, |units| units.len() as f64);
        assert_eq!((outcome.end, outcome.units), (2.0, vec![6, 2]));
    }

    #[test]
    fn the_ideal_split_has_whole_units() {
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}");
        near(ideal(&equal(4), 8, 3.0), 6.0);
        near(ideal(&equal(64), 40, 1.0), 1.0);
        near(ideal(&phone(8), 26, 1.0), 2.0);
        near(ideal(&[3.0, 1.0], 2, 1.0), 2.0 / 3.0);
    }
}
