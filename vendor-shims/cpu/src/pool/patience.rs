//! Spin time of a thread before it sleeps. This module only measures time. It does not wake threads
//! or acquire locks.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest spin in microseconds. It exceeds the gap between two kernels or two tokens, but is too
/// short to count as load.
const MOST: u32 = 500;
/// Shortest spin in microseconds, about the cost of falling asleep and waking up. It is also the
/// longest if threads outnumber cores.
const LEAST: u32 = 8;
/// Iterations between two reads of the clock.
const TURNS: u32 = 32;

/// A spin time that halves after useless spinning and doubles after success.
#[derive(Debug)]
pub struct Patience {
    microseconds: AtomicU32,
    most: u32,
}

impl Patience {
    /// Starts with the longest spin time, or with the shortest if threads outnumber cores.
    pub fn new(crowded: bool) -> Patience {
        let most = if crowded { LEAST } else { MOST };
        Patience { microseconds: AtomicU32::new(most), most }
    }

    /// Spins until `done` returns true or the spin time is over, and calls `idle` between checks.
    /// Returns whether `done` returned true.
    pub fn spin(&self, done: impl Fn() -> bool, mut idle: impl FnMut()) -> bool {
        let bound = self.microseconds.load(Ordering::Relaxed);
        let mut start = None;
        loop {
            for _ in 0..TURNS {
                if done() {
                    // A spin that ended immediately does not affect the spin time. Without the
                    // update there is no write that invalidates the cache line for other threads.
                    if start.is_some() && bound < self.most {
                        self.microseconds.store((bound * 2).min(self.most), Ordering::Relaxed);
                    }
                    return true;
                }
                idle();
            }
            let start = *start.get_or_insert_with(Instant::now);
            if start.elapsed() >= Duration::from_micros(bound.into()) {
                self.microseconds.store((bound / 2).max(LEAST), Ordering::Relaxed);
                return done();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn bound(patience: &Patience) -> u32 {
        patience.microseconds.load(Ordering::Relaxed)
    }

    #[test]
    fn spinning_in_vain_makes_impatient_and_success_patient_again() {
        let patience = Patience::new(false);
        for _ in 0..10 {
            assert!(!patience.spin(|| false, std::hint::spin_loop));
        }
        assert_eq!(bound(&patience), LEAST);
        for _ in 0..20 {
            let turns = Cell::new(0);
            let done = || {
                turns.set(turns.get() + 1);
                turns.get() > TURNS + 1
            };
            // On a busy machine the spin time may pass between two clock reads, which is not a
            // success.
            patience.spin(done, std::hint::spin_loop);
        }
        assert!((LEAST..=MOST).contains(&bound(&patience)));
        assert!(patience.spin(|| true, std::hint::spin_loop));
    }

    #[test]
    fn threads_that_outnumber_cores_are_never_patient() {
        let patience = Patience::new(true);
        assert!(!patience.spin(|| false, std::hint::spin_loop));
        assert_eq!((bound(&patience), patience.most), (LEAST, LEAST));
    }
}
