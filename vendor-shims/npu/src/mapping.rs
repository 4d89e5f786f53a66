//! Memory of a file descriptor, mapped into this process.

use std::io::{Error, ErrorKind};
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// A mapping of a descriptor's pages for reading and writing.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
    /// Offset of the memory in the first page.
    skip: usize,
}

// SAFETY: the memory is accessed through raw pointers whose users follow the contract's rules for
// overlap.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the pages that cover `length` bytes from `offset`.
    ///
    /// # Errors
    ///
    /// The system's error if it cannot map the descriptor.
    pub fn of(fd: RawFd, offset: u64, length: usize) -> Result<Mapping, Error> {
        // SAFETY: only returns a number.
        let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0).max(1);
        let skip = offset % page;
        let whole = usize::try_from(skip).ok().and_then(|skip| skip.checked_add(length));
        let from = libc::off_t::try_from(offset - skip).ok();
        let (whole, from) = whole.zip(from).ok_or(ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address that the system chooses.
        let base = unsafe {
            let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), whole, access, shared, fd, from)
        };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(ErrorKind::Other)?;
        Ok(Mapping { base, length: whole, skip: skip as usize })
    }

    /// Returns the first byte of the memory.
    pub fn pointer(&self) -> NonNull<u8> {
        // SAFETY: less than the mapping's length.
        unsafe { self.base.add(self.skip) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with that length, unmapped once.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.length);
        }
    }
}
