//! Counters of the workers inside a job. Groups of threads have a counter each, because many
//! threads that enter and leave through one counter would wait for its cache line longer than a
//! small job needs.

use std::sync::atomic::{AtomicU32, Ordering};

/// Threads that share a counter.
const GROUP: usize = 8;
/// Set in a counter while its threads may enter the job.
const OPEN: u32 = 1 << 31;
/// Set in a counter while the caller sleeps and waits for the last of its threads to leave.
const AWAITED: u32 = 1 << 30;

/// [`OPEN`], [`AWAITED`], and the number of threads inside. Aligned to a cache line.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Gate(AtomicU32);

/// The counters of all threads.
#[derive(Debug)]
pub struct Gates(Box<[Gate]>);

impl Gates {
    /// Creates closed gates.
    pub fn new(threads: usize) -> Gates {
        Gates((0..threads.div_ceil(GROUP)).map(|_| Gate::default()).collect())
    }

    /// Returns the gates of the first `threads` threads. The last one may have more threads.
    fn of(&self, threads: usize) -> &[Gate] {
        &self.0[..threads.div_ceil(GROUP)]
    }

    /// Opens the gates of the first `threads` threads. All gates must be closed and empty.
    pub fn open(&self, threads: usize) {
        self.of(threads).iter().for_each(|gate| gate.0.store(OPEN, Ordering::Release));
    }

    /// Closes these gates. Returns whether all were empty.
    pub fn close(&self, threads: usize) -> bool {
        self.of(threads)
            .iter()
            .fold(true, |empty, gate| (gate.0.fetch_and(!OPEN, Ordering::AcqRel) == OPEN) & empty)
    }

    /// Returns whether these gates are closed and empty.
    pub fn are_empty(&self, threads: usize) -> bool {
        self.of(threads).iter().all(|gate| gate.0.load(Ordering::Acquire) == 0)
    }

    /// Enters through the gate of a thread, unless it is closed.
    pub fn enter(&self, thread: usize) -> bool {
        let enter = |gate: u32| (gate & OPEN != 0).then_some(gate + 1);
        self.0[thread / GROUP].0.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_ok()
    }

    /// Leaves. Returns whether the caller waits for this thread.
    pub fn leave(&self, thread: usize) -> bool {
        self.0[thread / GROUP].0.fetch_sub(1, Ordering::AcqRel) == AWAITED | 1
    }

    /// Waits until these gates, which must be closed, are empty. `wait` sleeps until a thread for
    /// which [`Gates::leave`] returned true reports it.
    pub fn await_the_last(&self, threads: usize, mut wait: impl FnMut()) {
        for gate in self.of(threads) {
            let mut inside = gate.0.fetch_or(AWAITED, Ordering::AcqRel);
            while inside & !AWAITED != 0 {
                wait();
                inside = gate.0.load(Ordering::Acquire);
            }
            gate.0.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_threads_of_an_open_gate_enter() {
        let gates = Gates::new(20);
        assert!(!gates.enter(0) && gates.are_empty(20));
        gates.open(9);
        assert!(gates.enter(7) && gates.enter(8) && gates.enter(15));
        assert!(!gates.enter(16) && !gates.enter(19), "the gate of the last threads is closed");
        assert!(!gates.close(9), "three threads are inside");
        assert!(!gates.enter(1) && !gates.are_empty(9));
        assert!(!gates.leave(7) && !gates.leave(15), "the caller does not sleep");
        assert!(!gates.leave(8) && gates.are_empty(20));
        gates.open(20);
        assert!(gates.close(20) && gates.are_empty(20));
    }

    #[test]
    fn the_last_thread_of_an_awaited_gate_reports_it() {
        let gates = Gates::new(16);
        gates.open(16);
        let inside = [1, 2, 9, 10];
        assert!(inside.iter().all(|thread| gates.enter(*thread)));
        gates.close(16);
        // The last thread of the second gate leaves before the caller waits for it.
        let (mut left, mut reports) = (Vec::new(), Vec::new());
        gates.await_the_last(16, || {
            for thread in [[9, 10].as_slice(), &[1], &[2]][left.len()] {
                reports.push(gates.leave(*thread));
            }
            left.push(());
        });
        assert_eq!(reports, [false, false, false, true]);
        assert!(gates.are_empty(16));
    }
}
