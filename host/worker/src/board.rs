//! A page that worker and host share: where the worker's signal handler writes what it knows, in
//! plain stores, because after a crash nothing else is sure to work.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::os::{self, Region};

/// What the page holds; all zero until something happens. Only atomics: two processes look at it.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Board {
    /// The signal that is about to end the worker.
    pub(crate) signal: AtomicU32,
    /// 1 when `address` is one.
    pub(crate) has_address: AtomicU32,
    /// Memory that was touched.
    pub(crate) address: AtomicU64,
    /// 1 when no memory was to be had then.
    pub(crate) exhausted: AtomicU32,
}

/// The page, mapped.
pub(crate) struct BoardPage(Region);

impl BoardPage {
    /// A new page and its descriptor for the other side.
    pub(crate) fn new() -> io::Result<(BoardPage, OwnedFd)> {
        let fd = os::shared_memory(os::page())?;
        let region = Region::map(fd.as_fd(), os::page(), 1)?;
        Ok((BoardPage(region), fd))
    }

    /// The page behind a descriptor.
    pub(crate) fn of(fd: OwnedFd) -> io::Result<BoardPage> {
        if os::sealed_length(fd.as_fd())? < os::page() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Region::map(fd.as_fd(), os::page(), 1).map(BoardPage)
    }

    pub(crate) fn board(&self) -> &Board {
        // SAFETY: a page is longer than a board and aligned; any bytes are a board, and both sides
        // use atomics only.
        unsafe { &*self.0.data().cast::<Board>() }
    }
}
