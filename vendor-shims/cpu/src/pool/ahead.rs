//! Waiting threads prefetch into their own caches the weights that the next large job reads.
//! Between the products of a token one thread runs small steps, and memory, the bottleneck, would
//! otherwise sit idle.
//!
//! Nothing is read through these addresses and no result depends on them: memory that was unmapped
//! meanwhile is not fetched.

/// Number of memory ranges that a job reads side by side.
pub const PIECES: usize = 4;
/// Most bytes that a thread fetches: as much as memory delivers in the longest of such waits, and
/// half of a small second-level cache.
const MOST: usize = 256 << 10;
/// Bytes of a cache line, or of two where lines are longer.
const LINE: usize = 64;
/// Lines fetched between two checks whether the wait is over.
const LINES: usize = 4;

/// Memory that the job after the current one reads, in the order of its tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upcoming {
    /// First address and length of each range; unused ones have length 0.
    pieces: [(usize, usize); PIECES],
}

/// The rest that a thread has yet to fetch.
#[derive(Debug, Default)]
pub struct Ahead {
    next: usize,
    end: usize,
}

impl Upcoming {
    /// Of these memory ranges.
    pub fn of(pieces: [&[u8]; PIECES]) -> Upcoming {
        Upcoming { pieces: pieces.map(|piece| (piece.as_ptr() as usize, piece.len())) }
    }

    /// The part that thread `thread` of `threads` starts with.
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
    /// Fetches a few lines; if nothing is left, pauses for a moment.
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

/// Into the second-level cache: the first is too small for data that is not used at once.
#[inline(always)]
fn fetch_line(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint about any address, of the instructions that every such processor has.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address as *const i8) }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint about any address; it changes nothing that a program can see.
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
        // Not beyond the end of a range.
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
