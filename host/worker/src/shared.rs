//! Memory shared by host and workers for bound buffers. Where a worker maps it, a guard page
//! follows and precedes each buffer, as close as its alignment allows. The gaps are filled with
//! marked bytes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use shardwright_shim_abi::raw::SW_SYNC_AFTER_HOST;
use shardwright_shims::{Memory, ShimError};

use crate::end::Touched;
use crate::lock;
use crate::os::{self, Region};
use crate::process::Worker;

/// Value of the padding bytes next to a buffer, which must not change.
const MARK: u8 = 0xa5;

/// Number of marked bytes to check before a buffer. All bytes after it are checked, which are fewer
/// than its alignment.
const FRONT: usize = 64;

/// Default alignment in bytes.
const USUAL_ALIGNMENT: u64 = 64;

/// Largest supported alignment in bytes, for which address space is reserved.
const ALIGNMENT_LIMIT: u64 = 1 << 30;

/// A piece of shared memory, which clones share.
#[derive(Clone)]
pub(crate) struct SharedMemory(Arc<Inner>);

struct Inner {
    /// Unique number within this process.
    id: u64,
    fd: OwnedFd,
    region: Region,
    /// Offset within the region.
    offset: usize,
    length: usize,
    alignment: u64,
    /// Number of changes since creation, not counting runs of the worker that owns it.
    changes: AtomicU64,
    /// The worker that the memory was allocated for. The memory is lost when it ends.
    owner: Option<Arc<Worker>>,
    /// Workers that have mapped the memory.
    users: Mutex<Vec<Weak<Worker>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for worker in lock(&self.users).drain(..).filter_map(|worker| worker.upgrade()) {
            worker.forget(self.id);
        }
    }
}

// SAFETY: mapped for that many bytes until the last handle is dropped.
unsafe impl Memory for SharedMemory {
    fn pointer(&self) -> *mut u8 {
        // SAFETY: this is within the region, or one past its end.
        unsafe { self.0.region.data().add(self.0.offset) }
    }

    fn length(&self) -> u64 {
        self.0.length as u64
    }

    fn sync(&self, direction: u32) -> Result<(), ShimError> {
        if direction == SW_SYNC_AFTER_HOST {
            self.changed();
            return Ok(());
        }
        match self.0.owner.as_ref().and_then(|owner| owner.gone("buffer")) {
            None => Ok(()),
            Some(gone) => Err(gone),
        }
    }
}

impl SharedMemory {
    /// Allocates zeroed memory. `alignment` is a power of two, or 0 for 64.
    pub(crate) fn new(
        length: u64,
        alignment: u64,
        owner: Option<Arc<Worker>>,
    ) -> Result<SharedMemory, ShimError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let refuse = |reason: &dyn std::fmt::Display| {
            ShimError::Argument(format!("cannot allocate {length} bytes aligned to {alignment}: {reason}"))
        };
        let alignment = if alignment == 0 { USUAL_ALIGNMENT } else { alignment };
        if !alignment.is_power_of_two() || alignment > ALIGNMENT_LIMIT {
            return Err(refuse(&"the alignment is not supported"));
        }
        let page = os::page();
        let bytes = usize::try_from(length).map_err(|error| refuse(&error))?;
        let close = usize::try_from(alignment).map_or(page, |alignment| alignment.min(page));
        // Place the end as close to the guard page as the alignment of the start allows.
        let total = bytes.max(1).checked_next_multiple_of(page);
        let taken = bytes.checked_next_multiple_of(close);
        let (Some(total), Some(taken)) = (total, taken) else { return Err(refuse(&"too large")) };
        let offset = total - taken;
        let fd = os::shared_memory(total).map_err(|error| refuse(&error))?;
        let region = Region::map(fd.as_fd(), total, alignment as usize).map_err(|error| refuse(&error))?;
        let memory = Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            fd,
            region,
            offset,
            length: bytes,
            alignment,
            changes: AtomicU64::new(0),
            owner,
            users: Mutex::new(Vec::new()),
        };
        let memory = SharedMemory(Arc::new(memory));
        for (start, end) in memory.margins() {
            // SAFETY: this is within the region, which has no other user yet.
            unsafe { memory.0.region.data().add(start).write_bytes(MARK, end - start) };
        }
        Ok(memory)
    }

    /// Returns the marked ranges of the region.
    fn margins(&self) -> [(usize, usize); 2] {
        let end = self.0.offset + self.0.length;
        [(self.0.offset.saturating_sub(FRONT), self.0.offset), (end, self.0.region.length())]
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0.fd
    }

    /// Returns the offset within the shared memory.
    pub(crate) fn offset(&self) -> u64 {
        self.0.offset as u64
    }

    pub(crate) fn alignment(&self) -> u64 {
        self.0.alignment
    }

    /// Returns the worker that the memory belongs to.
    pub(crate) fn owner(&self) -> Option<&Arc<Worker>> {
        self.0.owner.as_ref()
    }

    pub(crate) fn used_by(&self, worker: &Arc<Worker>) {
        let mut users = lock(&self.0.users);
        users.retain(|user| user.strong_count() > 0);
        users.push(Arc::downgrade(worker));
    }

    /// Returns the number of changes.
    pub(crate) fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }

    pub(crate) fn changed(&self) {
        self.0.changes.fetch_add(1, Ordering::Release);
    }

    /// Finds the first changed marked byte, as an offset from the buffer's first byte.
    pub(crate) fn overrun(&self, binding: &str) -> Option<Touched> {
        self.margins().into_iter().find_map(|(start, end)| {
            // SAFETY: this is within the region. A worker that writes at the same time violates the
            // contract, and then any result is acceptable.
            let marked = unsafe { std::slice::from_raw_parts(self.0.region.data().add(start), end - start) };
            let at = start + marked.iter().position(|&byte| byte != MARK)?;
            Some(self.touched(binding, at as i64 - self.0.offset as i64))
        })
    }

    /// Converts an address of a worker to an offset, if it is in or next to this memory, which is
    /// mapped there at `mapped`.
    pub(crate) fn locate(&self, binding: &str, mapped: u64, address: u64) -> Option<Touched> {
        let page = os::page() as u64;
        let from = mapped.checked_sub(page)?;
        let to = mapped.checked_add(self.0.region.length() as u64)?.checked_add(page)?;
        let first = mapped.checked_add(self.0.offset as u64)?;
        (from..to).contains(&address).then(|| self.touched(binding, address.wrapping_sub(first) as i64))
    }

    fn touched(&self, binding: &str, offset: i64) -> Touched {
        Touched { binding: binding.to_owned(), offset, length: self.0.length as u64 }
    }
}
