//! Queue of requests of a model: they alternate step by step, in the order of their arrival.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

/// A lock that is passed to the thread that waits longest. A thread that releases it and wants it
/// again queues behind all others.
#[derive(Debug, Default)]
pub(crate) struct StepQueue {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    is_taken: bool,
    waiting: VecDeque<Arc<Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    thread: Thread,
    has_turn: AtomicBool,
}

impl StepQueue {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of waiting threads.
    pub fn waiting(&self) -> usize {
        self.queue().waiting.len()
    }

    fn acquire(&self) {
        let waiter = {
            let mut queue = self.queue();
            if !queue.is_taken {
                queue.is_taken = true;
                return;
            }
            queue.join()
        };
        waiter.wait();
    }

    /// Ends the caller's turn and waits for its next one. Both are one step, so that no other
    /// thread has two turns before it.
    fn pass(&self) {
        let waiter = {
            let mut queue = self.queue();
            let waiter = queue.join();
            queue.hand_over();
            waiter
        };
        waiter.wait();
    }

    fn release(&self) {
        self.queue().hand_over();
    }
}

impl Queue {
    /// Queues the caller behind all others.
    fn join(&mut self) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter { thread: thread::current(), has_turn: AtomicBool::new(false) });
        self.waiting.push_back(Arc::clone(&waiter));
        waiter
    }

    /// Passes the turn to the thread that waits longest, so that no other thread can get it first.
    fn hand_over(&mut self) {
        match self.waiting.pop_front() {
            Some(waiter) => {
                waiter.has_turn.store(true, Ordering::Release);
                waiter.thread.unpark();
            }
            None => self.is_taken = false,
        }
    }
}

impl Waiter {
    fn wait(&self) {
        while !self.has_turn.load(Ordering::Acquire) {
            thread::park();
        }
    }
}

/// The place of one request in the queue. Dropping it ends its turn.
#[derive(Debug)]
pub(crate) struct Seat {
    turns: Arc<StepQueue>,
    has_turn: AtomicBool,
}

impl Seat {
    pub fn new(turns: &Arc<StepQueue>) -> Arc<Self> {
        Arc::new(Seat { turns: Arc::clone(turns), has_turn: AtomicBool::new(false) })
    }

    /// Ends the turn, if there is one, and waits for the next.
    pub fn next(&self) {
        if self.has_turn.load(Ordering::Relaxed) {
            self.turns.pass();
        } else {
            self.turns.acquire();
            self.has_turn.store(true, Ordering::Relaxed);
        }
    }

    /// Ends the turn, if there is one.
    pub fn leave(&self) {
        if self.has_turn.swap(false, Ordering::Relaxed) {
            self.turns.release();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Duration;

    use super::*;

    #[test]
    fn threads_alternate_and_none_waits_more_than_a_round() {
        let (turns, log) = (Arc::new(StepQueue::default()), Mutex::new(Vec::new()));
        let (count, rounds) = (4, 50);
        let first = Seat::new(&turns);
        first.next();
        thread::scope(|scope| {
            for name in 0..count {
                let (turns, log) = (&turns, &log);
                scope.spawn(move || {
                    let seat = Seat::new(turns);
                    for _ in 0..rounds {
                        seat.next();
                        log.lock().unwrap().push(name);
                    }
                });
            }
            while turns.waiting() < count {
                thread::sleep(Duration::from_millis(1));
            }
            drop(first);
        });
        let log = log.into_inner().unwrap();
        assert_eq!(log.len(), count * rounds);
        // All queue before the first turn, so they alternate in one order to the end.
        for round in log.chunks(count) {
            assert_eq!(round, &log[..count]);
        }
        assert_eq!(turns.waiting(), 0);
    }

    #[test]
    fn one_thread_at_a_time_has_the_turn() {
        let (turns, inside) = (Arc::new(StepQueue::default()), AtomicBool::new(false));
        let start = Barrier::new(3);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    start.wait();
                    let seat = Seat::new(&turns);
                    for _ in 0..200 {
                        seat.next();
                        assert!(!inside.swap(true, Ordering::SeqCst));
                        thread::yield_now();
                        inside.store(false, Ordering::SeqCst);
                    }
                    seat.leave();
                    seat.leave();
                });
            }
        });
        assert!(!turns.queue().is_taken);
    }
}
