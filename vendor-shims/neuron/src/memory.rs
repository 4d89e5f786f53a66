//! Memory shared by application and device: a file descriptor of a dma-buf heap or of plain memory.
//!
//! On import, the descriptor is registered with the library once, and mapped if the system allows
//! it. A heap that cannot be mapped is still bound, without a view for the host. The kind of memory
//! behind the descriptor makes no difference to this module. Addresses and offsets must be
//! multiples of 64, or the import is refused for that reason.
//!
//! **Untested** with memory of a dma-buf heap: the test imports such memory if a machine has
//! `/dev/dma_heap/system`, but no test machine had it.

use std::os::fd::RawFd;
use std::sync::Arc;

use shardwright_neuron_adapter::setting::MEMORY_ALIGNMENT;
use shardwright_shim_abi::{Buffer, HostBuffer, MemoryKinds};
use shardwright_shim_npu::error::unsupported_memory;
use shardwright_shim_npu::mapping::Mapping;

use crate::failure::NeuronError;
use crate::library::Library;
use crate::session::SharedHandle;

/// The memory kinds that runs accept.
pub(crate) const MEMORY_KINDS: MemoryKinds =
    MemoryKinds::HOST.and(MemoryKinds::SHIM).and(MemoryKinds::DMA_BUF);

/// Memory imported from a descriptor.
pub struct SharedBuffer {
    mapping: Option<Mapping>,
    handle: Arc<SharedHandle>,
}

impl SharedBuffer {
    /// Makes a descriptor's memory visible to the library and the host. The host owns the
    /// descriptor and keeps it open as long as the buffer.
    ///
    /// # Errors
    /// [`NeuronError::Misaligned`] for an offset or address that is not a multiple of 64.
    /// `ErrorClass::InvalidArgument` for a length of zero or a range beyond the file's end. Also
    /// the library's errors.
    pub fn import(
        library: &Arc<Library>,
        fd: RawFd,
        offset: u64,
        length: u64,
    ) -> shardwright_shim_abi::Result<SharedBuffer> {
        let refuse = |reason: String| unsupported_memory("a descriptor's memory", &reason);
        let whole = usize::try_from(length).ok().filter(|length| (1..=isize::MAX as usize).contains(length));
        let whole = whole.ok_or_else(|| refuse(format!("a length of {length} bytes is invalid")))?;
        // SAFETY: all zeros is a valid value of a struct of numbers.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: any number may be passed, and the struct outlives the call.
        if unsafe { libc::fstat(fd, &mut status) } != 0 {
            return Err(refuse(format!("descriptor {fd}: {}", std::io::Error::last_os_error())));
        }
        // An access beyond the end of a file kills the process. dma-buf heaps report 0 or their
        // size.
        let end = offset.checked_add(length).ok_or_else(|| refuse("its end is invalid".to_owned()))?;
        let is_file = status.st_mode & libc::S_IFMT == libc::S_IFREG;
        if is_file && u64::try_from(status.st_size).unwrap_or(0) < end {
            return Err(refuse(format!("{} bytes, expected {end}", status.st_size)));
        }
        let handle = Arc::new(SharedHandle::from_fd(library, fd, offset, whole)?);
        let mapping = Mapping::of(fd, offset, whole).ok();
        if let Some(mapping) = &mapping {
            let at = mapping.pointer().as_ptr() as u64;
            if !at.is_multiple_of(MEMORY_ALIGNMENT as u64) {
                let what = "the address of imported memory".to_owned();
                return Err(NeuronError::Misaligned { what, at, alignment: MEMORY_ALIGNMENT as u64 }.into());
            }
        }
        Ok(SharedBuffer { mapping, handle })
    }

    /// Returns the memory's handle in the library.
    pub(crate) fn handle(&self) -> &Arc<SharedHandle> {
        &self.handle
    }
}

// SAFETY: the mapping lives as long as the value, does not move and has that many bytes.
unsafe impl Buffer for SharedBuffer {
    fn pointer(&self) -> *mut u8 {
        self.mapping.as_ref().map_or(std::ptr::null_mut(), |mapping| mapping.pointer().as_ptr())
    }

    fn length(&self) -> usize {
        self.handle.length()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Allocates zeroed memory of the process that the hardware can read.
pub(crate) fn allocate(length: usize, alignment: usize) -> shardwright_shim_abi::Result<Box<dyn Buffer>> {
    Ok(Box::new(HostBuffer::new(length, alignment.max(MEMORY_ALIGNMENT))?))
}
