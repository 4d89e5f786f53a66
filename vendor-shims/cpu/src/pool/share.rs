//! Division of a job among threads. Every thread starts with adjacent units, so that it reads
//! memory sequentially, and takes some of them at a time. A thread that has finished its own units
//! takes units from others. A slow thread therefore holds up a job only by the units that it took
//! last, and near the end of a share these are few.
//!
//! The division uses no clock and no speed of a thread, and results do not depend on it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most units of a job.
pub const MOST_UNITS: usize = u32::MAX as usize;
/// A thread takes more than [`Cut::wide`] units only if they are at most this part of the units
/// that are left in the share: an eighth.
const LARGE: usize = 8;
/// Part of the units left in a share that a thread takes near the end of the share: a sixth. A
/// thread that is three times slower than the others then ends little later than they do.
const SMALL: usize = 6;

/// How many units a thread takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Number of units that are fastest when one thread runs them together. Threads take fewer near
    /// the end of a share.
    pub wide: usize,
    /// Most units at once, a multiple of `wide`.
    pub most: usize,
}

impl Cut {
    /// One unit at a time.
    pub const SINGLE: Cut = Cut { wide: 1, most: 1 };

    /// Returns how many of `left` units to take: a multiple of `wide` while many are left, then
    /// `wide`, then a power of two that is at most `left / small`.
    fn units(self, left: usize, small: usize) -> usize {
        if left >= LARGE * self.wide {
            return (left / LARGE).min(self.most) / self.wide * self.wide;
        }
        left.min(self.wide).min(1 << (left / small).max(1).ilog2())
    }
}

/// Units that have not started: the first in the lower half, the end in the upper half. Aligned to
/// a cache line, since every thread writes its own share.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Share(AtomicU64);

impl Share {
    /// Sets the units to `first..end`, both at most [`MOST_UNITS`].
    fn set(&self, first: usize, end: usize) {
        self.0.store(first as u64 | (end as u64) << 32, Ordering::Relaxed);
    }

    /// Removes `count(left)` of the `left` units, which must be 1 to `left`. The owner of the share
    /// removes its first units. Any other thread removes the last ones, which are farthest from the
    /// owner's position.
    fn take(&self, is_own: bool, count: impl Fn(usize) -> usize) -> Option<Range<usize>> {
        let mut share = self.0.load(Ordering::Relaxed);
        loop {
            let (first, end) = ((share & u64::from(u32::MAX)) as usize, (share >> 32) as usize);
            if first >= end {
                return None;
            }
            let count = count(end - first);
            let (units, left) = match is_own {
                true => (first..first + count, first + count..end),
                false => (end - count..end, first..end - count),
            };
            let left = left.start as u64 | (left.end as u64) << 32;
            match self.0.compare_exchange_weak(share, left, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(units),
                Err(now) => share = now,
            }
        }
    }
}

/// The shares of all threads.
#[derive(Debug)]
pub struct Shares(Box<[Share]>);

/// The position of a thread in a job.
#[derive(Clone, Copy, Debug)]
pub struct Taker {
    thread: usize,
    /// Number of threads of the job.
    threads: usize,
    cut: Cut,
    /// Number of shares that the thread has emptied or found empty, its own first.
    emptied: usize,
}

impl Taker {
    /// Creates the position of `thread`, one of the `threads` threads that [`Shares::deal`]
    /// returned.
    pub fn new(thread: usize, threads: usize, cut: Cut) -> Taker {
        Taker { thread, threads, cut, emptied: 0 }
    }
}

impl Shares {
    /// Creates empty shares.
    pub fn new(threads: usize) -> Shares {
        Shares((0..threads).map(|_| Share::default()).collect())
    }

    /// Divides `units` units, at most [`MOST_UNITS`], into equal shares of up to `threads` threads.
    /// Returns the number of threads that have a share.
    pub fn deal(&self, threads: usize, units: usize) -> usize {
        let threads = threads.min(units);
        for (thread, share) in self.0[..threads].iter().enumerate() {
            share.set(thread * units / threads, (thread + 1) * units / threads);
        }
        threads
    }

    /// Removes the next units of a thread: from its own share, then from the shares of the threads
    /// that follow it. Returns `None` when all shares are empty.
    pub fn take(&self, taker: &mut Taker) -> Option<Range<usize>> {
        let Taker { thread, threads, cut, .. } = *taker;
        // With two threads the slower one delays the other by little, and wide runs are worth more.
        let own = threads.saturating_sub(1).clamp(1, SMALL);
        while taker.emptied < threads {
            let at = thread + taker.emptied;
            let share = &self.0[if at < threads { at } else { at - threads }];
            let is_own = taker.emptied == 0;
            let units = share.take(is_own, |left| cut.units(left, if is_own { own } else { SMALL }));
            if units.is_some() {
                return units;
            }
            taker.emptied += 1;
        }
        None
    }

    /// Removes all units, so that none of them starts.
    pub fn clear(&self) {
        self.0.iter().for_each(|share| share.set(0, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_taken_from_both_ends() {
        let share = Share::default();
        let first = || share.take(true, |_| 1);
        let last = || share.take(false, |_| 1);
        assert_eq!((first(), last()), (None, None));
        share.set(3, 7);
        assert_eq!((first(), last(), first(), last()), (Some(3..4), Some(6..7), Some(4..5), Some(5..6)));
        assert_eq!((first(), last()), (None, None));
        share.set(MOST_UNITS - 2, MOST_UNITS);
        assert_eq!(share.take(false, |left| left), Some(MOST_UNITS - 2..MOST_UNITS));
    }

    /// Returns the number of units at each take of one thread that has a share to itself.
    fn takes(cut: Cut, units: usize, small: usize) -> Vec<usize> {
        let (mut left, mut takes) = (units, Vec::new());
        while left > 0 {
            takes.push(cut.units(left, small));
            left -= takes[takes.len() - 1];
        }
        takes
    }

    #[test]
    fn takes_get_smaller_towards_the_end_of_a_share() {
        let cut = Cut { wide: 8, most: 32 };
        assert_eq!(takes(cut, 20, 1), [8, 8, 4]);
        assert_eq!(takes(cut, 48, 1), [8; 6]);
        assert_eq!(takes(cut, 20, SMALL), [2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(takes(cut, 64, 3), [8, 8, 8, 8, 8, 8, 4, 4, 2, 2, 1, 1, 1, 1]);
        assert_eq!(takes(cut, 1024, 1)[..4], [32; 4]);
        assert_eq!(takes(Cut::SINGLE, 3, 1), [1; 3]);
        // The rows of a group of panels, at a width that is not a power of two.
        assert_eq!(takes(Cut { wide: 22, most: 22 }, 33, 1), [22, 8, 2, 1]);
    }

    #[test]
    fn all_units_are_taken_once_by_any_order_of_threads() {
        for (threads, units) in [(1, 5), (2, 1), (3, 100), (5, 4), (7, 1000), (64, 16_384)] {
            for cut in [Cut::SINGLE, Cut { wide: 4, most: 4 }, Cut { wide: 8, most: 32 }] {
                let shares = Shares::new(threads);
                let dealt = shares.deal(threads, units);
                assert_eq!(dealt, threads.min(units));
                let mut takers: Vec<Taker> =
                    (0..dealt).map(|thread| Taker::new(thread, dealt, cut)).collect();
                let mut counts = vec![0; units];
                let mut random = fastrand::Rng::with_seed(units as u64);
                while !takers.is_empty() {
                    let at = random.usize(..takers.len());
                    match shares.take(&mut takers[at]) {
                        Some(taken) => {
                            assert!(!taken.is_empty() && taken.len() <= cut.most, "{taken:?}");
                            counts[taken].iter_mut().for_each(|count| *count += 1);
                        }
                        None => drop(takers.swap_remove(at)),
                    }
                }
                assert!(counts.iter().all(|count| *count == 1), "{threads} threads, {units} units, {cut:?}");
            }
        }
    }

    #[test]
    fn cleared_units_are_not_taken() {
        let shares = Shares::new(3);
        let threads = shares.deal(3, 30);
        let mut taker = Taker::new(1, threads, Cut::SINGLE);
        assert_eq!(shares.take(&mut taker), Some(10..11));
        shares.clear();
        assert_eq!(shares.take(&mut taker), None);
    }
}
