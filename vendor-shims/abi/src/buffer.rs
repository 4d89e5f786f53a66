use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::error::{Error, ErrorClass, Result};
use crate::shim::Buffer;

/// Aligned, zeroed process memory. Pages that are never accessed cost no physical memory.
pub struct HostBuffer {
    /// The allocation. The buffer starts `skip` bytes into it.
    base: NonNull<u8>,
    layout: Layout,
    skip: usize,
    length: usize,
}

/// Alignment that allocators provide by default. With a larger one the allocator zeroes memory by
/// writing, which makes every page of a large buffer resident. So this type allocates a little more
/// memory and skips to an aligned address.
const NATURAL: usize = 16;

// SAFETY: the memory is owned. It is accessed only through raw pointers whose users follow the
// contract's rules for overlap.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Allocates `length` zeroed bytes. `alignment` is a power of two, or 0 for 64.
    ///
    /// # Errors
    ///
    /// If the alignment is not a power of two, or the memory is not available.
    pub fn new(length: usize, alignment: usize) -> Result<Self> {
        let alignment = if alignment == 0 { 64 } else { alignment };
        let impossible = || {
            Error::invalid_argument(format!("cannot make a buffer of {length} bytes aligned to {alignment}"))
        };
        // This also rejects alignments that are not a power of two.
        Layout::from_size_align(length, alignment).map_err(|_| impossible())?;
        let more = if alignment > NATURAL { alignment } else { 0 };
        let size = length.checked_add(more).ok_or_else(impossible)?.max(1);
        let layout = Layout::from_size_align(size, alignment.min(NATURAL)).map_err(|_| impossible())?;
        // SAFETY: the layout's size is at least 1.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| {
            Error::new(ErrorClass::ResourceLimit, format!("not enough memory for a buffer of {length} bytes"))
                .detail("limit", "host-memory")
                .detail("value", length)
        })?;
        let skip = (base.as_ptr() as usize).next_multiple_of(alignment) - base.as_ptr() as usize;
        Ok(HostBuffer { base, layout, skip, length })
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

// SAFETY: the allocation lives until drop, does not move and has `length` bytes.
unsafe impl Buffer for HostBuffer {
    fn pointer(&self) -> *mut u8 {
        // SAFETY: `skip` is less than the alignment. If the alignment exceeds the natural one, the
        // allocation is longer by it.
        unsafe { self.base.as_ptr().add(self.skip) }
    }

    fn length(&self) -> usize {
        self.length
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alignment_is_kept_and_the_memory_is_zero() {
        for alignment in [0, 1, 2, 16, 32, 64, 256, 4096, 1 << 16] {
            for length in [0, 1, 100, 5000] {
                let buffer = HostBuffer::new(length, alignment).unwrap();
                assert!((buffer.pointer() as usize).is_multiple_of(alignment.max(1)));
                // SAFETY: as many bytes as the buffer has.
                let bytes = unsafe { std::slice::from_raw_parts(buffer.pointer(), length) };
                assert!(buffer.length() == length && bytes.iter().all(|byte| *byte == 0));
            }
        }
        for (length, alignment) in [(100, 3), (usize::MAX, 64), (isize::MAX as usize, 4096)] {
            assert!(HostBuffer::new(length, alignment).is_err(), "{length} bytes aligned to {alignment}");
        }
    }

    /// Returns the resident pages of this process.
    #[cfg(target_os = "linux")]
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_nobody_touches_is_not_there() {
        let before = resident();
        let buffer = HostBuffer::new(1 << 28, 4096).unwrap();
        // The buffer is 65 536 pages of 4 KiB. Other tests may allocate up to a sixteenth of that
        // meanwhile.
        assert!(resident().saturating_sub(before) < 4096, "the buffer is resident");
        assert_eq!(buffer.length(), 1 << 28);
    }
}
