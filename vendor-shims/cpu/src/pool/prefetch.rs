//! Prefetching by waiting threads. They load the weights of the next large job into their own
//! caches. Between the products of a token, one thread runs small steps, and memory, which is the
//! bottleneck, would otherwise be idle.
//!
//! These addresses are only used for prefetch hints, and no result depends on them. Memory that was
//! unmapped in the meantime is not fetched.

/// Number of memory ranges that a job reads in parallel.
pub const PIECES: usize = 4;
/// Most bytes that a thread fetches. Memory delivers about this much in the longest wait, and it is
/// half of a small second-level cache.
const MOST: usize = 256 << 10;
/// Bytes of a cache line, or of half a line on processors with longer lines.
const LINE: usize = 64;
/// Lines fetched between two checks of whether the wait is over.
const LINES: usize = 4;

/// Memory that the job after the current one reads, in the order of its tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upcoming {
    /// First address and length of each range. Unused ranges have length 0.
    pieces: [(usize, usize); PIECES],
}

/// The memory that a thread has yet to fetch.
#[derive(Debug, Default)]
pub struct Ahead {
    next: usize,
    end: usize,
}

impl Upcoming {
    /// Creates an announcement of these memory ranges.
    pub fn of(pieces: [&[u8]; PIECES]) -> Upcoming {
        Upcoming { pieces: pieces.map(|piece| (piece.as_ptr() as usize, piece.len())) }
    }

    /// Returns the part that thread `thread` of `threads` reads first.
    pub fn share(self, thread: usize, threads: usize) -> Ahead {
        let total = self.pieces.iter().fold(0usize, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let mut before = (total as u128 * thread as u128 / threads.max(1) as u128) as usize;
        for (start, bytes) in self.pieces {
            if before < bytes {
                let next = start + before;
                return Ahead { next, end: start + bytes.min(before.saturating_add(MOST)) };
            }
            before -= bytes;
        }
        Ahead::default()
    }
}

impl Ahead {
    /// Fetches a few lines. If all are fetched, pauses for a moment.
    #[inline]
    pub fn fetch(&mut self) {
        if self.next >= self.end {
            return std::hint::spin_loop();
        }
        for _ in 0..LINES {
            fetch_line(self.next);
            self.next += LINE;
        }
    }
}

/// Fetches a line into the second-level cache. The first-level cache is too small for data that is
/// not used immediately.
#[inline(always)]
fn fetch_line(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch hint is valid for any address, and every x86-64 processor has this
        // instruction.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address as *const i8) }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch hint is valid for any address and has no effect that a program can
    // observe.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_begins_at_its_own_tasks() {
        let (bytes, none) = (vec![0u8; 3 << 20], &[][..]);
        let (first, second) = bytes.split_at(1 << 20);
        let upcoming = Upcoming::of([first, second, none, none]);
        let at = |ahead: &Ahead| ahead.next - bytes.as_ptr() as usize;
        let shares: Vec<Ahead> = (0..4).map(|thread| upcoming.share(thread, 4)).collect();
        assert_eq!(shares.iter().map(at).collect::<Vec<_>>(), [0, 3 << 18, 3 << 19, 9 << 18]);
        assert!(shares.iter().all(|ahead| ahead.end - ahead.next == MOST), "{shares:?}");
        // A thread does not fetch beyond the end of a range.
        let last = upcoming.share(47, 48);
        assert_eq!((at(&last), last.end - last.next), ((3 << 20) - (1 << 16), 1 << 16));
        let none = Upcoming::default().share(1, 2);
        assert_eq!((none.next, none.end), (0, 0));
    }

    #[test]
    fn the_rest_shrinks_until_nothing_is_left() {
        let bytes = [0u8; 5 * LINES * LINE];
        let mut ahead = Upcoming::of([&bytes, &[], &[], &[]]).share(0, 1);
        for left in (0..5).rev() {
            ahead.fetch();
            assert_eq!(ahead.end - ahead.next, left * LINES * LINE);
        }
        ahead.fetch();
        assert_eq!(ahead.next, ahead.end);
    }

    #[test]
    fn unmapped_memory_is_not_fetched() {
        let mut ahead = Ahead { next: 64, end: 1 << 12 };
        (0..100).for_each(|_| ahead.fetch());
        let mut ahead = Upcoming { pieces: [(usize::MAX - 4096, 4096); PIECES] }.share(3, 4);
        (0..100).for_each(|_| ahead.fetch());
    }
}
