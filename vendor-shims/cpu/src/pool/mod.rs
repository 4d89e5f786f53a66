//! Threads that run the tasks of one kernel, spin for a short while between kernels, and sleep
//! between runs.
//!
//! A worker waits for the next job, and the caller waits for the end of a job. Both spin first and
//! then sleep. The spin time is bounded and adaptive. If spinning was useless, because there is no
//! work or because the awaited thread has lost its core, the next spin is half as long. A pool with
//! more threads than cores hardly spins at all.
//!
//! Threads take the units of a job (`share.rs`), so that slow cores do not hold up fast ones. A job
//! with few units calls only as many threads, and the others stay as they are.

mod cores;
mod gate;
mod output;
mod patience;
mod prefetch;
mod share;
#[cfg(test)]
pub(crate) mod simulated;

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use cores::Processors;
pub use cores::performance_cores;
use gate::Gates;
pub use output::SharedOutput;
use patience::Patience;
pub use prefetch::PIECES;
use prefetch::{Ahead, Upcoming};
pub use share::Cut;
use share::{MOST_UNITS, Shares, Taker};

/// Fewest multiply-adds (or values touched) of a job for which sleeping threads are woken: about 20
/// µs of one core.
const WORTH: u64 = 400_000;
/// Fewest multiply-adds of a job that is shared while all threads spin. Handing over then needs
/// less than a microsecond.
const WORTH_AWAKE: u64 = 50_000;
/// Most threads of a pool. Beyond this, a layer has too few panels to share.
pub const MAX_THREADS: usize = 256;

/// Stack size of a thread in bytes. Applications also compile this crate without optimisation, and
/// every vector of a kernel then has a place on the stack. The largest kernel needs between one and
/// two MiB, and Rust's default for threads is two MiB. The system only provides memory for the part
/// that is used.
pub const STACK: usize = 4 << 20;

/// Low bits of the generation, which contain the number of threads that are called to the job.
const CALLED_BITS: u32 = 16;
const CALLED: u64 = (1 << CALLED_BITS) - 1;
const _: () = assert!(MAX_THREADS as u64 <= CALLED);
/// Pieces of a task of [`Pool::run_pieces`], which threads take together except near the end.
const PIECES_OF_TASK: usize = 8;

/// The body of a job. Its arguments are a range of units and the index of the thread.
type Body<'b> = dyn Fn(Range<usize>, usize) + Sync + 'b;

/// The kernel in progress.
#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    cut: Cut,
    /// Number of threads that share the job, including the caller.
    threads: usize,
    /// Number of threads of the pool.
    all: usize,
    upcoming: Upcoming,
}

struct Shared {
    /// Number of jobs so far, and the number of threads that the last one calls. A worker sleeps
    /// until it changes.
    generation: AtomicU64,
    /// Whether workers may enter the job, and how many are inside.
    gates: Gates,
    job: UnsafeCell<Option<Job>>,
    shares: Shares,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    /// Signals that the last worker has left the awaited job.
    left: Condvar,
    /// Spin time of workers that wait for the next job.
    between: Patience,
    /// Spin time of the caller that waits for the end of a job.
    ending: Patience,
}

// SAFETY: `job` is written only while all gates are closed and empty, and read only between
// entering and leaving one.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is dereferenced only during `Pool::run_ranges`, which keeps the
// borrow it came from alive.
unsafe impl Send for Shared {}

/// Worker threads plus the calling thread.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Ensures one job at a time. A second caller runs its tasks alone. Stores the memory to
    /// prefetch while waiting after the job.
    busy: Mutex<Upcoming>,
    worth: u64,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Creates a pool of `threads` threads, including the caller. With 0 it has one thread per core
    /// counted by [`performance_cores`]. The pool is smaller if the system refuses threads.
    pub fn new(threads: usize) -> Pool {
        Pool::with_worth(threads, WORTH)
    }

    /// Creates a pool that shares even the smallest job, for tests.
    pub fn eager(threads: usize) -> Pool {
        Pool::with_worth(threads, 0)
    }

    fn with_worth(threads: usize, worth: u64) -> Pool {
        let wanted = match threads {
            0 => performance_cores(),
            threads => threads,
        }
        .clamp(1, MAX_THREADS);
        let crowded = wanted > std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            generation: AtomicU64::new(0),
            gates: Gates::new(wanted),
            job: UnsafeCell::new(None),
            shares: Shares::new(wanted),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            left: Condvar::new(),
            between: Patience::new(crowded),
            ending: Patience::new(crowded),
        });
        let mut workers = Vec::new();
        let fast = Processors::fast_among_slow(wanted).map(Arc::new);
        for index in 1..wanted {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("shim-cpu-{index}")).stack_size(STACK);
            let fast = fast.clone();
            let begin = move || {
                if let Some(fast) = &fast {
                    fast.keep();
                }
                work(&shared, index);
            };
            match builder.spawn(begin) {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        Pool { shared, workers, busy: Mutex::new(Upcoming::default()), worth }
    }

    /// Returns the number of threads that share a job, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Checks whether a job of this many multiply-adds should be shared. The answer depends on
    /// which threads are awake, so it must not affect results.
    pub fn worth(&self, work: u64) -> bool {
        let awake = self.shared.sleepers.load(Ordering::Relaxed) == 0;
        !self.workers.is_empty() && work >= if awake { self.worth.min(WORTH_AWAKE) } else { self.worth }
    }

    /// Announces the memory that the large job after the next one reads, in the order of its tasks.
    /// Threads that wait from then on prefetch it.
    pub fn announce(&self, upcoming: [&[u8]; PIECES]) {
        // If the lock is held, the running job has already made its own announcement.
        if let Ok(mut existing) = self.busy.try_lock() {
            *existing = Upcoming::of(upcoming);
        }
    }

    /// Calls `body(0)` … `body(tasks − 1)`, each once, on any thread, and returns when all are
    /// done.
    ///
    /// # Panics
    /// When a task panicked, after all threads have left the job.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        self.run_ranges(tasks, Cut::SINGLE, &|tasks, _| tasks.for_each(body));
    }

    /// Runs tasks like [`Pool::run`]. The second argument of `body` is a unique index of the thread
    /// within this job, below [`Pool::threads`].
    ///
    /// # Panics
    /// See [`Pool::run`].
    pub fn run_indexed(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        self.run_ranges(tasks, Cut::SINGLE, &|tasks, thread| tasks.for_each(|task| body(task, thread)));
    }

    /// Calls `body(first, count)` for ranges that cover `0..items` once, about `most` items at a
    /// time and fewer near the end.
    ///
    /// # Panics
    /// See [`Pool::run`].
    pub fn run_pieces(&self, items: usize, most: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        let piece = most.div_ceil(PIECES_OF_TASK).max(1);
        let cut = Cut { wide: PIECES_OF_TASK, most: PIECES_OF_TASK };
        self.run_ranges(items.div_ceil(piece), cut, &|pieces, _| {
            let (first, end) = (pieces.start * piece, (pieces.end * piece).min(items));
            body(first, end - first);
        });
    }

    /// Calls `body` for ranges that cover `0..units` once, each on any thread, and returns when all
    /// are done. `cut` and the progress of the threads determine the ranges, so the body must give
    /// the same results for any ranges. A range may have all units. The second argument of `body`
    /// is a unique index of the thread within this job, below [`Pool::threads`].
    ///
    /// # Panics
    /// See [`Pool::run`].
    pub fn run_ranges(&self, units: usize, cut: Cut, body: &Body<'_>) {
        let alone = units <= 1 || units > MOST_UNITS || self.workers.is_empty();
        let guard = if alone { None } else { self.busy.try_lock().ok() };
        let Some(guard) = guard else {
            if units > 0 {
                body(0..units, 0);
            }
            return;
        };
        let upcoming = *guard;
        let (shared, all) = (&*self.shared, self.threads());
        // SAFETY: this extends the lifetime of the borrow. No worker uses it after the gates below
        // are empty again, and this function does not return before that.
        let body: &'static Body<'static> = unsafe { std::mem::transmute(body) };
        let threads = shared.shares.deal(all, units);
        // SAFETY: all gates are closed and empty between jobs, so no worker reads.
        unsafe { *shared.job.get() = Some(Job { body, cut, threads, all, upcoming }) };
        shared.gates.open(threads);
        shared.call(threads);
        let drain = || shared.drain(threads, cut, 0, body);
        let own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(drain));
        if own.is_err() {
            shared.shares.clear();
        }
        if !shared.gates.close(threads) {
            shared.await_the_last(threads, &mut upcoming.share(0, all));
        }
        let lost = shared.panicked.swap(false, Ordering::AcqRel);
        drop(guard);
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(!lost, "a kernel task panicked on a worker thread");
    }
}

impl Shared {
    /// Starts the next generation and calls the first `threads` threads to it. Wakes sleeping
    /// threads.
    fn call(&self, threads: usize) {
        // Only the holder of `busy`, or of the pool itself, calls.
        let next = (self.generation.load(Ordering::Relaxed) >> CALLED_BITS).wrapping_add(1);
        self.generation.store(next << CALLED_BITS | threads as u64, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
    }

    /// Runs units of the thread's own share, then of the other shares, until none is left.
    fn drain(&self, threads: usize, cut: Cut, index: usize, body: &Body<'_>) {
        let mut taker = Taker::new(index, threads, cut);
        while let Some(units) = self.shares.take(&mut taker) {
            body(units, index);
        }
    }

    /// Waits until no worker is inside the closed gates of the first `threads` threads, and
    /// prefetches meanwhile.
    fn await_the_last(&self, threads: usize, ahead: &mut Ahead) {
        if self.ending.spin(|| self.gates.are_empty(threads), || ahead.fetch()) {
            return;
        }
        // The last worker to leave a gate sees the mark, and locks before it notifies. So either
        // the gate is empty when it is marked or the notification arrives.
        let mut held = Some(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.gates.await_the_last(threads, || {
            held = held.take().map(|held| self.left.wait(held).unwrap_or_else(PoisonError::into_inner));
        });
    }

    /// Leaves the job. The worker must not access the job afterwards.
    fn leave(&self, index: usize) {
        if self.gates.leave(index) {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.left.notify_one();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.call(0);
        for worker in self.workers.drain(..) {
            // A worker catches panics of tasks, so joining fails only if the worker was killed.
            // Then there is nothing to do.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    let (mut upcoming, mut ahead) = (Upcoming::default(), Ahead::default());
    loop {
        seen = wait(shared, seen, &mut ahead);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let is_called = (index as u64) < seen & CALLED;
        if !is_called || !shared.gates.enter(index) {
            continue;
        }
        // SAFETY: inside the gate the job is not written.
        if let Some(job) = unsafe { *shared.job.get() } {
            let Job { body, cut, threads, all, .. } = job;
            if job.upcoming != upcoming {
                upcoming = job.upcoming;
                ahead = upcoming.share(index, all);
            }
            // The gate may belong to a later job, which calls fewer threads.
            if index < threads {
                // SAFETY: `Pool::run_ranges` keeps the closure alive until the gates are empty.
                let body = unsafe { &*body };
                let drain = || shared.drain(threads, cut, index, body);
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(drain)).is_err() {
                    shared.panicked.store(true, Ordering::Release);
                    shared.shares.clear();
                }
            }
        }
        shared.leave(index);
    }
}

/// Waits until the generation differs from `seen` and returns it. Prefetches meanwhile.
fn wait(shared: &Shared, seen: u64, ahead: &mut Ahead) -> u64 {
    let changed = || shared.generation.load(Ordering::Acquire) != seen;
    if shared.between.spin(changed, || ahead.fetch()) {
        return shared.generation.load(Ordering::SeqCst);
    }
    let mut existing = shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
    shared.sleepers.fetch_add(1, Ordering::SeqCst);
    let generation = loop {
        let generation = shared.generation.load(Ordering::SeqCst);
        if generation != seen {
            break generation;
        }
        existing = shared.wake.wait(existing).unwrap_or_else(PoisonError::into_inner);
    };
    shared.sleepers.fetch_sub(1, Ordering::SeqCst);
    generation
}

/// Runs a test on a thread with half the stack of a pool's thread.
#[cfg(test)]
pub(crate) fn on_half_of_a_stack(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(STACK / 2).spawn(test).expect("a thread");
    thread.join().expect("a test that passes");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 4, 7] {
            let pool = Pool::eager(threads);
            assert_eq!(pool.threads(), threads);
            for tasks in [0, 1, 2, 3, 64, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn announcements_are_made_between_jobs_and_change_no_result() {
        let (pool, weights) = (Pool::eager(3), vec![0u8; 1 << 20]);
        for end in [0, 1, 4096, weights.len()] {
            pool.announce([&weights[..end], &weights[end..], &[], &[]]);
            let total = AtomicUsize::new(0);
            pool.run(100, &|task| {
                // Announcements within a job are ignored.
                pool.announce([&[]; PIECES]);
                total.fetch_add(task, Ordering::Relaxed);
            });
            assert_eq!(total.load(Ordering::Relaxed), 4950);
            let existing = *pool.busy.lock().unwrap();
            assert_eq!(existing, Upcoming::of([&weights[..end], &weights[end..], &[], &[]]));
        }
    }

    #[test]
    fn sleeping_workers_wake_up_again() {
        let pool = Pool::eager(3);
        for round in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let total = AtomicUsize::new(0);
            pool.run(100, &|task| {
                total.fetch_add(task, Ordering::Relaxed);
            });
            assert_eq!(total.load(Ordering::Relaxed), 4950, "round {round}");
        }
    }

    #[test]
    fn a_panicking_task_is_reported_and_the_pool_lives_on() {
        let pool = Pool::eager(3);
        for _ in 0..20 {
            let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                pool.run(50, &|task| assert!(task != 17, "seventeen"));
            }));
            assert!(lost.is_err());
            let total = AtomicUsize::new(0);
            pool.run(10, &|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(total.load(Ordering::Relaxed), 10);
        }
    }

    #[test]
    fn idle_workers_sleep() {
        let pool = Pool::eager(4);
        for _ in 0..3 {
            pool.run(50, &|_| {});
            let start = std::time::Instant::now();
            while pool.shared.sleepers.load(Ordering::SeqCst) != 3 {
                assert!(start.elapsed().as_secs() < 60, "workers are busy though nothing is to be done");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_caller_that_waits_for_a_slow_task_sleeps_and_wakes_up() {
        let pool = Pool::eager(3);
        for _ in 0..4 {
            let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
            // Tasks are so slow that a thread that finishes early exceeds its spin time.
            pool.run(3, &|_| {
                begun.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(2 * begun.load(Ordering::SeqCst) as u64));
                done.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(done.load(Ordering::SeqCst), 3);
            assert!(pool.shared.gates.are_empty(3));
        }
    }

    #[test]
    fn more_threads_than_cores_still_end_every_job() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pool = Pool::eager(4 * cores + 1);
        let total = AtomicUsize::new(0);
        for _ in 0..500 {
            pool.run(8 * cores, &|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(total.load(Ordering::Relaxed), 500 * 8 * cores);
    }

    #[test]
    fn a_job_calls_only_as_many_threads_as_it_has_units() {
        let pool = Pool::eager(20);
        for tasks in [2, 3, 9, 19, 40] {
            let total = AtomicUsize::new(0);
            pool.run_indexed(tasks, &|task, thread| {
                assert!(thread < tasks.min(20), "thread {thread} of {tasks} tasks");
                total.fetch_add(task + 1, Ordering::Relaxed);
            });
            assert_eq!(total.load(Ordering::Relaxed), tasks * (tasks + 1) / 2);
        }
    }

    #[test]
    fn ranges_and_pieces_cover_everything_once() {
        for threads in [1, 2, 3, 9] {
            let pool = Pool::eager(threads);
            for (items, most) in [(0, 4), (1, 1), (5, 1000), (1000, 1), (1000, 64), (4099, 100)] {
                let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                let count = |range: Range<usize>| {
                    for item in &counts[range] {
                        item.fetch_add(1, Ordering::Relaxed);
                    }
                };
                pool.run_pieces(items, most, &|first, length| count(first..first + length));
                pool.run_ranges(items, Cut { wide: 4, most: 16 }, &|range, _| count(range));
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 2), "{items} by {most}");
            }
        }
    }

    /// Turns of each thread of a job, counted instead of timed. A thread whose units cost three
    /// turns has a third of the speed, on any machine and under any load.
    struct Turns {
        clocks: Vec<AtomicUsize>,
        /// Units that some thread has begun.
        begun: AtomicUsize,
        units: usize,
    }

    impl Turns {
        /// Spends the turns of some units. Returns when no thread has spent fewer, or when all
        /// units have begun.
        fn spend(&self, thread: usize, units: usize, turns: usize) {
            let own = self.clocks[thread].fetch_add(units * turns, Ordering::SeqCst) + units * turns;
            self.begun.fetch_add(units, Ordering::SeqCst);
            let is_early = |clock: &AtomicUsize| clock.load(Ordering::SeqCst) < own;
            while self.begun.load(Ordering::SeqCst) < self.units && self.clocks.iter().any(is_early) {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn threads_slowed_by_a_factor_of_three_take_a_third_of_the_units() {
        let wide = Cut { wide: 8, most: 32 };
        for (turns, cut) in [
            ([1, 1, 1, 3].as_slice(), wide),
            ([3, 1, 1, 1].as_slice(), wide),
            ([1, 1, 1, 3].as_slice(), Cut::SINGLE),
            ([1, 3, 1, 3, 1, 3, 1, 3].as_slice(), wide),
        ] {
            let (threads, units) = (turns.len(), 1200);
            let pool = Pool::eager(threads);
            assert_eq!(pool.threads(), threads);
            let counters = || (0..threads).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>();
            let (job, taken) = (Turns { clocks: counters(), begun: AtomicUsize::new(0), units }, counters());
            pool.run_ranges(units, cut, &|units, thread| {
                taken[thread].fetch_add(units.len(), Ordering::SeqCst);
                job.spend(thread, units.len(), turns[thread]);
            });
            let of = |all: &[AtomicUsize]| -> Vec<usize> {
                all.iter().map(|count| count.load(Ordering::SeqCst)).collect()
            };
            let (taken, clocks) = (of(&taken), of(&job.clocks));
            assert_eq!(taken.iter().sum::<usize>(), units);
            let ideal = units as f64 / turns.iter().map(|turns| 1.0 / *turns as f64).sum::<f64>();
            let end = clocks.iter().copied().max().unwrap_or(0) as f64;
            assert!(end <= 1.15 * ideal, "{end} turns, {ideal} at best: {taken:?} by {turns:?}");
            for (taken, turns) in taken.iter().zip(turns) {
                let share = ideal / *turns as f64;
                let near = 0.8 * share..=1.2 * share;
                assert!(near.contains(&(*taken as f64)), "{taken} units, expected {share} by {turns}");
            }
        }
    }

    #[test]
    fn a_nested_or_second_caller_runs_alone() {
        let pool = Pool::eager(2);
        let total = AtomicUsize::new(0);
        pool.run(4, &|_| {
            pool.run(5, &|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(total.load(Ordering::Relaxed), 20);
    }
}
