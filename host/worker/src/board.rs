//! A page shared by worker and host: the worker's signal handler records the crash there in plain
//! stores, because after a crash nothing else is sure to work.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::os::{self, Region};

/// Content of the page; all zero until a crash. Only atomics, because two processes access it.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Board {
    /// The signal that is about to end the worker.
    pub(crate) signal: AtomicU32,
    /// 1 when `address` is valid.
    pub(crate) has_address: AtomicU32,
    /// Address that faulted.
    pub(crate) address: AtomicU64,
    /// 1 when no memory could be allocated then.
    pub(crate) exhausted: AtomicU32,
}

/// The page, mapped.
pub(crate) struct BoardPage(Region);

impl BoardPage {
    /// Creates a page, and its descriptor for the other side.
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
        // SAFETY: a page is longer than a board and aligned; any bytes are a board, and both sides
        // use atomics only.
        unsafe { &*self.0.data().cast::<Board>() }
    }
}
