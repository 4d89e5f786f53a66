//! Memory that is bound to runs and shared between shards. Between runs the host reads or writes
//! it.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use shardwright_shim_abi::HostBuffer;
use shardwright_shim_abi::raw::{SW_SYNC_AFTER_HOST, SW_SYNC_BEFORE_HOST};
use shardwright_vocabulary::{Error, ErrorClass, ErrorKind};

use crate::error::ShimError;

/// The memory behind a [`Buffer`].
///
/// # Safety
///
/// After construction, `pointer` is null or points to `length` bytes that may be read and written
/// as long as the value lives. Neither of the two changes.
pub unsafe trait Memory: Any + Send + Sync {
    /// Returns the host's view, or null if there is none.
    fn pointer(&self) -> *mut u8;

    /// Returns the size in bytes.
    fn length(&self) -> u64;

    /// Synchronises the memory before and after the host accesses it. `direction` is a `SW_SYNC_…`
    /// of the contract.
    fn sync(&self, direction: u32) -> Result<(), ShimError> {
        let _ = direction;
        Ok(())
    }
}

// SAFETY: memory of the process, freed when it is dropped.
unsafe impl Memory for HostBuffer {
    fn pointer(&self) -> *mut u8 {
        shardwright_shim_abi::Buffer::pointer(self)
    }

    fn length(&self) -> u64 {
        shardwright_shim_abi::Buffer::length(self) as u64
    }
}

/// A buffer. Cloning shares it.
///
/// At any time it has one writer or any number of readers: a run that writes it, a run that reads
/// it, [`Buffer::read`], [`Buffer::write`]. A conflicting use never blocks, but fails.
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

struct Inner {
    memory: Box<dyn Memory>,
    pointer: *mut u8,
    length: u64,
    /// Number of readers, or −1 for a writer.
    users: AtomicI32,
}

// SAFETY: the memory is accessed through `users`, which admits one writer or many readers.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("bytes", &self.0.length).finish_non_exhaustive()
    }
}

impl Buffer {
    /// Allocates zeroed memory of the process. `alignment` is a power of two, or 0 for 64.
    pub fn host(length: u64, alignment: u64) -> Result<Buffer, ShimError> {
        let refuse = |reason: String| ShimError::Argument(reason);
        let too_large = |_| refuse(format!("cannot allocate {length} bytes aligned to {alignment}"));
        let memory = HostBuffer::new(
            usize::try_from(length).map_err(too_large)?,
            usize::try_from(alignment).map_err(too_large)?,
        )
        .map_err(|error| refuse(error.message))?;
        Ok(Buffer::new(memory))
    }

    /// Creates a buffer over memory of any kind.
    pub fn new(memory: impl Memory) -> Buffer {
        let (pointer, length) = (memory.pointer(), Memory::length(&memory));
        Buffer(Arc::new(Inner { memory: Box::new(memory), pointer, length, users: AtomicI32::new(0) }))
    }

    /// Returns the size in bytes.
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// Checks whether the host can access its bytes.
    pub fn is_mapped(&self) -> bool {
        !self.0.pointer.is_null() || self.0.length == 0
    }

    /// Checks whether two handles are the same memory.
    pub fn same(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the memory, if it is of that kind.
    pub fn memory<M: Memory>(&self) -> Option<&M> {
        let memory: &dyn Any = &*self.0.memory;
        memory.downcast_ref()
    }

    /// Returns the host's view, or null if there is none.
    pub fn pointer(&self) -> *mut u8 {
        self.0.pointer
    }

    /// Acquires it shared for reading, or exclusively for writing.
    pub(crate) fn acquire(&self, write: bool) -> Result<(), ShimError> {
        let users = &self.0.users;
        let taken = if write {
            users.compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed)
        } else {
            users.fetch_update(Ordering::Acquire, Ordering::Relaxed, |count| (count >= 0).then(|| count + 1))
        };
        taken.map(|_| ()).map_err(|count| {
            let wanted = if write { "write" } else { "read" };
            let in_use = if count < 0 { "written" } else { "read" };
            let bytes = self.0.length;
            let message = format!("cannot {wanted} a buffer of {bytes} bytes while it is being {in_use}");
            let error = Error::new(ErrorKind::Shim, message)
                .with_help("bind another buffer, or wait for the other user");
            ShimError::Other(ErrorClass::InvalidArgument, error)
        })
    }

    pub(crate) fn release(&self, write: bool) {
        if write {
            self.0.users.store(0, Ordering::Release);
        } else {
            self.0.users.fetch_sub(1, Ordering::Release);
        }
    }

    fn view(&self, write: bool) -> Result<(), ShimError> {
        if !self.is_mapped() {
            return Err(ShimError::Argument("the buffer cannot be mapped into this process".to_owned()));
        }
        self.acquire(write)?;
        self.0.memory.sync(SW_SYNC_BEFORE_HOST).inspect_err(|_| self.release(write))
    }

    /// Gives read access to the bytes. Several readers may coexist.
    pub fn read(&self) -> Result<BufferRead, ShimError> {
        self.view(false)?;
        Ok(BufferRead(self.clone()))
    }

    /// Gives write access to the bytes. The device sees changes once the guard is dropped.
    pub fn write(&self) -> Result<BufferWrite<'_>, ShimError> {
        self.view(true)?;
        Ok(BufferWrite(self))
    }
}

/// The bytes of a buffer, for reading. Keeps the buffer alive.
pub struct BufferRead(Buffer);

impl Deref for BufferRead {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.0.length() {
            0 => &[],
            // SAFETY: mapped for that many bytes as long as the buffer lives. No writer exists
            // while this guard exists.
            length => unsafe { std::slice::from_raw_parts(self.0.pointer(), length as usize) },
        }
    }
}

impl Drop for BufferRead {
    fn drop(&mut self) {
        self.0.release(false);
    }
}

/// The bytes of a buffer, for writing.
pub struct BufferWrite<'a>(&'a Buffer);

impl Deref for BufferWrite<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.0.length() {
            0 => &[],
            // SAFETY: mapped for that many bytes as long as the buffer lives. Only this guard
            // accesses it.
            length => unsafe { std::slice::from_raw_parts(self.0.pointer(), length as usize) },
        }
    }
}

impl DerefMut for BufferWrite<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self.0.length() {
            0 => &mut [],
            // SAFETY: as in `deref`.
            length => unsafe { std::slice::from_raw_parts_mut(self.0.pointer(), length as usize) },
        }
    }
}

impl Drop for BufferWrite<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.0.memory.sync(SW_SYNC_AFTER_HOST) {
            // The next run would read stale bytes, and the shim then reports that.
            tracing::error!("buffer not synchronised after writing: {error}");
        }
        self.0.release(true);
    }
}
