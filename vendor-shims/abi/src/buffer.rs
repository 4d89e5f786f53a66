use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::error::{Error, ErrorClass, Result};
use crate::shim::Buffer;

/// Aligned, zeroed memory of the process.
pub struct HostBuffer {
    pointer: NonNull<u8>,
    layout: Layout,
    length: usize,
}

// SAFETY: the memory is owned and reached only through raw pointers whose users keep the contract's rules for overlap.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Allocates; `alignment` is a power of two, or 0 for 64.
    pub fn new(length: usize, alignment: usize) -> Result<Self> {
        let alignment = if alignment == 0 { 64 } else { alignment };
        let layout = Layout::from_size_align(length.max(1), alignment).map_err(|_| {
            Error::invalid_argument(format!("no buffer of {length} bytes aligned to {alignment} is possible"))
        })?;
        // SAFETY: the layout's size is at least 1.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| {
            Error::new(ErrorClass::ResourceLimit, format!("no memory for a buffer of {length} bytes"))
                .detail("limit", "host-memory")
                .detail("value", length)
        })?;
        Ok(HostBuffer { pointer, layout, length })
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.pointer.as_ptr(), self.layout) }
    }
}

// SAFETY: the allocation lives until drop, does not move and has `length` bytes.
unsafe impl Buffer for HostBuffer {
    fn pointer(&self) -> *mut u8 {
        self.pointer.as_ptr()
    }

    fn length(&self) -> usize {
        self.length
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
