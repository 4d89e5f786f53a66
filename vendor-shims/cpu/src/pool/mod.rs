//! Threads that run the tasks of one kernel, spin for a short while between kernels, and sleep
//! between runs.
//!
//! A worker waits for the next job, and the caller waits for the end of a job. Both spin first and
//! then sleep. The spin time is bounded and adaptive. If spinning was useless, because there is no
//! work or because the awaited thread has lost its core, the next spin is half as long. A pool with
//! more threads than cores hardly spins at all.

mod ahead;
mod cores;
mod patience;
mod share;

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

pub use ahead::PIECES;
use ahead::{Ahead, Upcoming};
use cores::Processors;
pub use cores::performance_cores;
use patience::Patience;
use share::{MOST_TASKS, Share};

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

/// Set in the gate while a job may be entered.
const OPEN: u32 = 1 << 31;
/// Set in the gate while the caller sleeps and waits for the last worker to leave.
const AWAITED: u32 = 1 << 30;

/// The kernel in progress.
#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize, usize) + Sync),
    /// Number of threads that share the job, including the caller.
    threads: usize,
    upcoming: Upcoming,
}

struct Shared {
    /// Number of jobs so far. A worker sleeps until it changes.
    generation: AtomicU64,
    /// [`OPEN`], [`AWAITED`], and the number of workers inside the job.
    gate: AtomicU32,
    job: UnsafeCell<Option<Job>>,
    /// One share for each thread.
    shares: Box<[Share]>,
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

// SAFETY: `job` is written only while the gate is closed and empty, and read only between entering
// and leaving it.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is dereferenced only during `Pool::run`, which keeps the borrow it
// came from alive.
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
            gate: AtomicU32::new(0),
            job: UnsafeCell::new(None),
            shares: (0..wanted).map(|_| Share::default()).collect(),
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
        let fast = Processors::fast_among_slow().map(Arc::new);
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
        self.run_indexed(tasks, &|task, _| body(task));
    }

    /// Runs tasks like [`Pool::run`]. The second argument of `body` is a unique index of the thread
    /// within this job, below [`Pool::threads`].
    ///
    /// # Panics
    /// See [`Pool::run`].
    pub fn run_indexed(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        let alone = tasks <= 1 || tasks > MOST_TASKS || self.workers.is_empty();
        let guard = if alone { None } else { self.busy.try_lock().ok() };
        let Some(guard) = guard else {
            (0..tasks).for_each(|task| body(task, 0));
            return;
        };
        let upcoming = *guard;
        let (shared, threads) = (&*self.shared, self.threads());
        // SAFETY: this extends the lifetime of the borrow. No worker uses it after the gate below
        // is empty again, and this function does not return before that.
        let body: &'static (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(body) };
        // SAFETY: the gate is closed and empty between jobs, so no worker reads.
        unsafe { *shared.job.get() = Some(Job { body, threads, upcoming }) };
        for (thread, share) in shared.shares[..threads].iter().enumerate() {
            share.set(thread * tasks / threads, (thread + 1) * tasks / threads);
        }
        shared.gate.store(OPEN, Ordering::Release);
        shared.generation.fetch_add(1, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
            shared.wake.notify_all();
        }
        let own = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shared.drain(threads, 0, body)));
        if own.is_err() {
            shared.abandon();
        }
        if shared.gate.fetch_and(!OPEN, Ordering::AcqRel) != OPEN {
            shared.await_the_last(&mut upcoming.share(0, threads));
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
    /// Runs the remaining tasks of the thread's own share, then tasks of the other shares.
    fn drain(&self, threads: usize, index: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        let shares = &self.shares[..threads];
        while let Some(task) = shares[index].first() {
            body(task, index);
        }
        for share in shares[index + 1..].iter().chain(&shares[..index]) {
            while let Some(task) = share.last() {
                body(task, index);
            }
        }
    }

    /// Prevents further tasks of a failed job from starting.
    fn abandon(&self) {
        self.shares.iter().for_each(|share| share.set(0, 0));
    }

    /// Waits until no worker is inside the closed gate, and prefetches meanwhile.
    fn await_the_last(&self, ahead: &mut Ahead) {
        if self.ending.spin(|| self.gate.load(Ordering::Acquire) == 0, || ahead.fetch()) {
            return;
        }
        let mut existing = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // The last worker to leave sees the mark, and locks before it notifies. So either the count
        // is zero here or the notification arrives.
        let mut gate = self.gate.fetch_or(AWAITED, Ordering::AcqRel);
        while gate & !AWAITED != 0 {
            existing = self.left.wait(existing).unwrap_or_else(PoisonError::into_inner);
            gate = self.gate.load(Ordering::Acquire);
        }
        self.gate.store(0, Ordering::Release);
    }

    /// Leaves the job. The worker must not access the job afterwards.
    fn leave(&self) {
        if self.gate.fetch_sub(1, Ordering::AcqRel) == AWAITED | 1 {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.left.notify_one();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        {
            let _guard = self.shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.wake.notify_all();
        }
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
        let entered = shared
            .gate
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |gate| (gate & OPEN != 0).then_some(gate + 1))
            .is_ok();
        if !entered {
            continue;
        }
        // SAFETY: inside the gate the job is not written.
        if let Some(job) = unsafe { *shared.job.get() } {
            let Job { body, threads, .. } = job;
            if job.upcoming != upcoming {
                upcoming = job.upcoming;
                ahead = upcoming.share(index, threads);
            }
            // SAFETY: `Pool::run` keeps the closure alive until the gate is empty.
            let body = unsafe { &*body };
            let done =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shared.drain(threads, index, body)));
            if done.is_err() {
                shared.panicked.store(true, Ordering::Release);
                shared.abandon();
            }
        }
        shared.leave();
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

/// An output that several tasks write, each to its own elements.
pub struct SharedOutput<'a, T> {
    pointer: *mut T,
    length: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedOutput<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SharedOutput<'_, T> {}

// SAFETY: the holder promises at every access that no other task touches the same elements.
unsafe impl<T: Send> Send for SharedOutput<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedOutput<'_, T> {}

impl<'a, T> SharedOutput<'a, T> {
    /// Shares a slice for the duration of its borrow.
    pub fn new(slice: &'a mut [T]) -> Self {
        SharedOutput { pointer: slice.as_mut_ptr(), length: slice.len(), lifetime: PhantomData }
    }

    /// Returns the address of the first element.
    pub fn pointer(&self) -> *mut T {
        self.pointer
    }

    /// Returns the address of a part that other tasks may also read.
    ///
    /// # Panics
    /// When the part is not within the output.
    pub fn address(&self, start: usize, length: usize) -> *mut T {
        assert!(start.checked_add(length).is_some_and(|end| end <= self.length), "part outside the output");
        // SAFETY: within the slice by the assertion.
        unsafe { self.pointer.add(start) }
    }

    /// Returns a part of the output.
    ///
    /// # Safety
    /// No other task may access `start..start + length` while the result is in use.
    ///
    /// # Panics
    /// When the part is not within the output.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub unsafe fn part(&self, start: usize, length: usize) -> &'a mut [T] {
        assert!(start.checked_add(length).is_some_and(|end| end <= self.length), "part outside the output");
        // SAFETY: within the slice by the assertion, and exclusive as guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(start), length) }
    }
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
            assert_eq!(pool.shared.gate.load(Ordering::SeqCst), 0);
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
