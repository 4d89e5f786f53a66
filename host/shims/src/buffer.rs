//! Memory that is bound to runs, shared between shards, and read or written by the host between
//! runs.

use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::{Buffer as _, HostBuffer};

use crate::error::ShimError;
use crate::isolated::SharedMemory;
use crate::local::{Local, c_text};

/// A buffer; cloning shares it.
///
/// At any time it has one writer or any number of readers: a run that writes it, a run that reads
/// it, [`Buffer::read`], [`Buffer::write`]. A conflicting use is refused with
/// [`ShimError::BufferBusy`], never waited for.
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

struct Inner {
    memory: Memory,
    /// Host's view; null when there is none.
    pointer: *mut u8,
    length: u64,
    /// Readers, or −1 for a writer.
    users: AtomicI32,
}

enum Memory {
    Host(#[expect(dead_code, reason = "keeps the memory behind `pointer`")] HostBuffer),
    /// Of an instance in a worker: memory of both processes.
    Shared(Arc<SharedMemory>),
    Shim {
        local: Arc<Local>,
        device: String,
        raw: *mut SwBuffer,
        /// The imported descriptor, which the contract keeps open until the buffer is freed.
        _fd: Option<OwnedFd>,
    },
}

// SAFETY: the memory is reached through `users`, which admits one writer or many readers; the
// shim's functions are called under the instance's lock.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Memory::Shim { local, raw, .. } = &self.memory
            && let Some(free) = local.table().0.buffer_free
        {
            let _one = local.enter();
            // SAFETY: made by this instance, freed once; `users` shows that nobody holds a view,
            // for views borrow `self`.
            unsafe { free(local.raw(), *raw) };
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer")
            .field("bytes", &self.0.length)
            .field(
                "kind",
                &match self.0.memory {
                    Memory::Host(_) => "host",
                    Memory::Shared(_) => "shared",
                    Memory::Shim { .. } => "shim",
                },
            )
            .finish_non_exhaustive()
    }
}

impl Buffer {
    /// Zeroed memory of the process; `alignment` is a power of two, or 0 for 64.
    pub fn host(length: u64, alignment: u64) -> Result<Buffer, ShimError> {
        let refuse = |reason: String| ShimError::Argument(reason);
        let too_large =
            |_| refuse(format!("a buffer of {length} bytes aligned to {alignment} is not possible"));
        let memory = HostBuffer::new(
            usize::try_from(length).map_err(too_large)?,
            usize::try_from(alignment).map_err(too_large)?,
        )
        .map_err(|error| refuse(error.message))?;
        let pointer = memory.pointer();
        Ok(Buffer(Arc::new(Inner {
            memory: Memory::Host(memory),
            pointer,
            length,
            users: AtomicI32::new(0),
        })))
    }

    pub(crate) fn shared(memory: SharedMemory) -> Buffer {
        let (pointer, length) = (memory.pointer(), memory.length());
        Buffer(Arc::new(Inner {
            memory: Memory::Shared(Arc::new(memory)),
            pointer,
            length,
            users: AtomicI32::new(0),
        }))
    }

    pub(crate) fn allocate(
        local: &Arc<Local>,
        device: &str,
        length: u64,
        alignment: u64,
    ) -> Result<Buffer, ShimError> {
        let Some(function) = local.table().0.buffer_allocate else {
            return Buffer::host(length, alignment);
        };
        let name = c_text("the device", device)?;
        let mut raw = ptr::null_mut();
        {
            let _one = local.enter();
            // SAFETY: pointers are as the contract says; the error came from this table.
            unsafe {
                let error = function(local.raw(), name.as_ptr(), length, alignment, &mut raw);
                local.take("buffer_allocate", error)?;
            }
        }
        Buffer::wrap(local, device, raw, length, None, "buffer_allocate")
    }

    pub(crate) fn import(
        local: &Arc<Local>,
        device: &str,
        fd: OwnedFd,
        offset: u64,
        length: u64,
    ) -> Result<Buffer, ShimError> {
        let function = local.table().0.buffer_import.ok_or_else(|| local.missing("buffer_import"))?;
        let name = c_text("the device", device)?;
        let import = SwImport {
            size: size_of::<SwImport>() as u64,
            kind: SW_MEMORY_DMA_BUF,
            fd: fd.as_raw_fd(),
            fd_offset: offset,
            handle: ptr::null_mut(),
            length,
        };
        let mut raw = ptr::null_mut();
        {
            let _one = local.enter();
            // SAFETY: pointers are as the contract says; the error came from this table.
            unsafe {
                let error = function(local.raw(), name.as_ptr(), &import, &mut raw);
                local.take("buffer_import", error)?;
            }
        }
        Buffer::wrap(local, device, raw, length, Some(fd), "buffer_import")
    }

    fn wrap(
        local: &Arc<Local>,
        device: &str,
        raw: *mut SwBuffer,
        length: u64,
        fd: Option<OwnedFd>,
        function: &'static str,
    ) -> Result<Buffer, ShimError> {
        if raw.is_null() {
            return Err(local.contract(function, "success without a buffer"));
        }
        // From here on dropping frees the shim's buffer.
        let mut buffer = Inner {
            memory: Memory::Shim { local: local.clone(), device: device.to_owned(), raw, _fd: fd },
            pointer: ptr::null_mut(),
            length,
            users: AtomicI32::new(0),
        };
        if let Some(map) = local.table().0.buffer_map {
            let mut pointer: *mut c_void = ptr::null_mut();
            let mapped = {
                let _one = local.enter();
                // SAFETY: pointers are as the contract says; the error came from this table.
                unsafe {
                    let error = map(local.raw(), raw, &mut pointer);
                    local.take("buffer_map", error)
                }
            };
            // A buffer that cannot be mapped is of use to its own shim still.
            if let Err(error) = mapped {
                tracing::debug!(shim = local.name(), "buffer not mapped: {error}");
            } else if pointer.is_null() && length > 0 {
                return Err(local.contract("buffer_map", "success without a pointer"));
            }
            buffer.pointer = pointer.cast();
        }
        Ok(Buffer(Arc::new(buffer)))
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// Whether the host can look into it.
    pub fn is_mapped(&self) -> bool {
        !self.0.pointer.is_null() || self.0.length == 0
    }

    /// Whether two handles are the same memory.
    pub fn same(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The shim's handle, when this memory belongs to that instance and device.
    pub(crate) fn handle_for(&self, local: &Arc<Local>, device: &str) -> Option<*mut SwBuffer> {
        match &self.0.memory {
            Memory::Shim { local: own, device: own_device, raw, .. }
                if Arc::ptr_eq(own, local) && own_device == device =>
            {
                Some(*raw)
            }
            _ => None,
        }
    }

    /// The memory, when workers can map it.
    pub(crate) fn shared_memory(&self) -> Option<&Arc<SharedMemory>> {
        match &self.0.memory {
            Memory::Shared(memory) => Some(memory),
            _ => None,
        }
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        self.0.pointer
    }

    /// Takes a share for reading, or the whole for writing.
    pub(crate) fn acquire(&self, write: bool) -> Result<(), ShimError> {
        let users = &self.0.users;
        let taken = if write {
            users.compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed)
        } else {
            users.fetch_update(Ordering::Acquire, Ordering::Relaxed, |held| (held >= 0).then(|| held + 1))
        };
        taken.map(|_| ()).map_err(|held| ShimError::BufferBusy {
            bytes: self.0.length,
            wanted: if write { "wanted for writing" } else { "wanted for reading" },
            held: if held < 0 { "written" } else { "read" },
        })
    }

    pub(crate) fn release(&self, write: bool) {
        if write {
            self.0.users.store(0, Ordering::Release);
        } else {
            self.0.users.fetch_sub(1, Ordering::Release);
        }
    }

    fn sync(&self, direction: u32) -> Result<(), ShimError> {
        let (local, raw) = match &self.0.memory {
            Memory::Host(_) => return Ok(()),
            Memory::Shared(memory) => return memory.sync(direction),
            Memory::Shim { local, raw, .. } => (local, raw),
        };
        let Some(function) = local.table().0.buffer_sync else { return Ok(()) };
        let _one = local.enter();
        // SAFETY: pointers are as the contract says; the error came from this table.
        unsafe {
            let error = function(local.raw(), *raw, 0, self.0.length, direction);
            local.take("buffer_sync", error)
        }
    }

    fn view(&self, write: bool) -> Result<(), ShimError> {
        if !self.is_mapped() {
            return Err(ShimError::Argument("this buffer cannot be mapped into the process".to_owned()));
        }
        self.acquire(write)?;
        self.sync(SW_SYNC_BEFORE_HOST).inspect_err(|_| self.release(write))
    }

    /// Looks at the bytes. Many may look at once.
    pub fn read(&self) -> Result<BufferRead, ShimError> {
        self.view(false)?;
        Ok(BufferRead(self.clone()))
    }

    /// Changes the bytes; the device sees them once the guard is dropped.
    pub fn write(&self) -> Result<BufferWrite<'_>, ShimError> {
        self.view(true)?;
        Ok(BufferWrite(self))
    }
}

/// The bytes of a buffer, for reading; keeps it.
pub struct BufferRead(Buffer);

impl Deref for BufferRead {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.0.length() {
            0 => &[],
            // SAFETY: mapped for that many bytes as long as the buffer; nobody writes while this
            // guard is held.
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
            // SAFETY: mapped for that many bytes as long as the buffer; only this guard has it.
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
        if let Err(error) = self.0.sync(SW_SYNC_AFTER_HOST) {
            // The next run would read stale bytes; it is the shim that reports it then.
            tracing::error!("buffer not synchronised after writing: {error}");
        }
        self.0.release(true);
    }
}
