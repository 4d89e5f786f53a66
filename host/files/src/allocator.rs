//! Memory that was freed, but that the allocator keeps from the operating system.
//!
//! Opening a model needs several times the memory that the open model has. The allocator of the GNU
//! C library keeps most of it for later. It has a heap for each of several threads, and the
//! unused end of a heap goes back to the system on request only for the first one.

/// Makes the allocator use one heap for all threads, so that [`give_back`] reaches all freed
/// memory. Heaps that exist already stay. Does nothing without the GNU C library.
pub fn use_one_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call has two numbers and changes a setting under the lock of the allocator.
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Gives the whole pages of freed memory back to the operating system. Takes about a millisecond
/// per 10 MB of heap. Does nothing without the GNU C library.
///
/// ```
/// let block = vec![1_u8; 100_000];
/// drop(block);
/// shardwright_files::allocator::give_back();
/// ```
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call has one number, and the allocator only changes memory that is free.
    let _ = unsafe { libc::malloc_trim(0) };
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::give_back;

    /// Returns the bytes of this process that no file has.
    fn anonymous() -> u64 {
        let report = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = report.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").trim_end().parse().unwrap();
        kibibytes * 1024
    }

    #[test]
    fn freed_memory_below_a_block_in_use_goes_back_to_the_system() {
        const BLOCK: usize = 1000;
        const COUNT: usize = 32 << 10;
        let mut blocks: Vec<Vec<u8>> = (0..COUNT).map(|_| vec![1; BLOCK]).collect();
        let all = anonymous();
        assert!(all > (BLOCK * COUNT) as u64);
        // The last block prevents that the heap ends before it.
        blocks.drain(..COUNT - 1);
        assert!(anonymous() > all / 2, "freeing small blocks alone returns little");
        give_back();
        assert!(anonymous() < all / 2, "{} of {all} bytes are left", anonymous());
        assert_eq!(blocks, [[1; BLOCK]]);
    }
}
