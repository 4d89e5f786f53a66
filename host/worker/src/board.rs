//! A memory page shared by worker and host. The worker's signal handler records a crash there with
//! plain stores, since nothing else is reliable after a crash.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::os::{self, Region};

/// Content of the page, all zero until a crash. All fields are atomic, since two processes access
/// them.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Board {
    /// The signal that is about to end the worker.
    pub(crate) signal: AtomicU32,
    /// 1 if `address` is valid.
    pub(crate) has_address: AtomicU32,
    /// The address that faulted.
    pub(crate) address: AtomicU64,
    /// 1 if no memory could be allocated at that time.
    pub(crate) exhausted: AtomicU32,
}

pub(crate) struct BoardPage(Region);

impl BoardPage {
    /// Creates a page, and a descriptor of it for the other side.
    pub(crate) fn new() -> io::Result<(BoardPage, OwnedFd)> {
        let fd = os::shared_memory(os::page())?;
        let region = Region::map(fd.as_fd(), os::page(), 1)?;
        Ok((BoardPage(region), fd))
    }

    /// Maps the page of a descriptor.
    pub(crate) fn of(fd: OwnedFd) -> io::Result<BoardPage> {
        if os::sealed_length(fd.as_fd())? < os::page() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Region::map(fd.as_fd(), os::page(), 1).map(BoardPage)
    }

    pub(crate) fn board(&self) -> &Board {
        // SAFETY: a page is longer than a board and aligned. Any bytes are a valid board, and both
        // sides only use atomics.
        unsafe { &*self.0.data().cast::<Board>() }
    }
}
