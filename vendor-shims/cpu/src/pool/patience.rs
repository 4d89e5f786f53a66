//! Spin time of a thread before it sleeps. It only measures time: it wakes no thread and takes no
//! lock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest spin in microseconds: longer than the gap between two kernels or two tokens, too short
/// to count as load.
const MOST: u32 = 500;
/// Shortest: about the cost of falling asleep and waking up. It is also the longest where threads
/// outnumber cores.
const LEAST: u32 = 8;
/// Iterations between two looks at the clock.
const TURNS: u32 = 32;

/// A bound that halves when spinning was in vain and doubles when it was not.
#[derive(Debug)]
pub struct Patience {
    microseconds: AtomicU32,
    most: u32,
}

impl Patience {
    /// The longest patience; the shortest where threads outnumber cores.
    pub fn new(crowded: bool) -> Patience {
        let most = if crowded { LEAST } else { MOST };
        Patience { microseconds: AtomicU32::new(most), most }
    }

    /// Spins until `done` or until the bound, calling `idle` between two checks; returns whether
    /// `done` became true.
    pub fn spin(&self, done: impl Fn() -> bool, mut idle: impl FnMut()) -> bool {
        let bound = self.microseconds.load(Ordering::Relaxed);
        let mut start = None;
        loop {
            for _ in 0..TURNS {
                if done() {
                    // A spin that ended at once says nothing about patience; skipping the update
                    // avoids a write that invalidates the line for other threads.
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
            // On a busy machine the bound may pass between two turns; then it is not success.
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
