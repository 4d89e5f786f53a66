//! The tasks of a job that one thread starts with. They are adjacent, so that the thread reads
//! memory sequentially. A thread that has finished its own tasks takes tasks from others.

use std::sync::atomic::{AtomicU64, Ordering};

/// Tasks that have not started: the first in the lower half, the end in the upper half. Aligned to
/// a cache line, since every thread writes its own share.
#[repr(align(64))]
#[derive(Debug, Default)]
pub struct Share(AtomicU64);

/// Most tasks of a job.
pub const MOST_TASKS: usize = u32::MAX as usize;

impl Share {
    /// Sets the tasks to `first..end`, both at most [`MOST_TASKS`].
    pub fn set(&self, first: usize, end: usize) {
        self.0.store(first as u64 | (end as u64) << 32, Ordering::Relaxed);
    }

    /// Removes the first task, for the thread that owns the share.
    pub fn first(&self) -> Option<usize> {
        self.take(|first, end| (first, first + 1, end))
    }

    /// Removes the last task, for any other thread. This is the task farthest from the owner's
    /// position.
    pub fn last(&self) -> Option<usize> {
        self.take(|first, end| (end - 1, first, end - 1))
    }

    /// Removes a task if `first < end`. `choose` returns the task and the new bounds.
    fn take(&self, choose: impl Fn(u64, u64) -> (u64, u64, u64)) -> Option<usize> {
        let parts = |share: u64| (share & u64::from(u32::MAX), share >> 32);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |share| {
            let (first, end) = parts(share);
            (first < end).then(|| {
                let (_, first, end) = choose(first, end);
                first | end << 32
            })
        });
        let (first, end) = parts(taken.ok()?);
        Some(choose(first, end).0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_taken_from_both_ends() {
        let share = Share::default();
        assert_eq!((share.first(), share.last()), (None, None));
        share.set(3, 7);
        assert_eq!(
            (share.first(), share.last(), share.first(), share.last()),
            (Some(3), Some(6), Some(4), Some(5))
        );
        assert_eq!((share.first(), share.last()), (None, None));
        share.set(MOST_TASKS - 1, MOST_TASKS);
        assert_eq!((share.last(), share.first()), (Some(MOST_TASKS - 1), None));
    }
}
