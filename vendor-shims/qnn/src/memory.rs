//! Memory shared by application and processor on a phone: either allocated by `libcdsprpc.so` or an
//! imported dma-buf.
//!
//! **Untested**, because no phone is available here and the x86-64 library does not register
//! memory. On other machines than phones, plain memory is allocated and imports are refused.
//!
//! A buffer is registered with a context when a run first binds it as a whole. Otherwise its mapped
//! bytes are bound like any others, and the library copies them.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use shardwright_shim_abi::{Buffer, Error, HostBuffer};
use shardwright_shim_npu::error::unsupported_memory;
use shardwright_shim_npu::mapping::Mapping;

/// Library for the transport to the processor. It contains the allocator.
const TRANSPORT: &str = "libcdsprpc.so";
/// Number of the system heap, which is cached.
const SYSTEM_HEAP: c_int = 25;
const CACHED: u32 = 1;
/// Alignment of the allocator.
const PAGE: usize = 4096;

/// Whether this machine may have the processor.
pub const IS_PHONE: bool =
    cfg!(all(target_arch = "aarch64", any(target_os = "android", target_os = "linux")));

type Allocate = unsafe extern "C" fn(c_int, u32, c_int) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type Descriptor = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The allocator of the transport.
#[derive(Debug)]
pub struct Allocator {
    allocate: Allocate,
    free: Free,
    descriptor: Descriptor,
    // Keeps the functions above callable.
    _transport: Library,
}

impl Allocator {
    /// Opens the transport by name.
    ///
    /// # Errors
    ///
    /// `ErrorClass::InvalidArgument` if the transport does not exist. Only phones have it.
    pub fn open() -> Result<Arc<Allocator>, Error> {
        let refuse = |error: libloading::Error| {
            unsupported_memory("memory of the processor", &format!("{TRANSPORT}: {error}"))
        };
        // SAFETY: the platform's own library of that name, whose initialisers are meant to run.
        let transport = unsafe { Library::open(Some(TRANSPORT), RTLD_NOW | RTLD_LOCAL) }.map_err(refuse)?;
        // SAFETY: the platform's documentation specifies these types of the functions. The library
        // is kept with them.
        unsafe {
            Ok(Arc::new(Allocator {
                allocate: *transport.get::<Allocate>(b"rpcmem_alloc").map_err(refuse)?,
                free: *transport.get::<Free>(b"rpcmem_free").map_err(refuse)?,
                descriptor: *transport.get::<Descriptor>(b"rpcmem_to_fd").map_err(refuse)?,
                _transport: transport,
            }))
        }
    }
}

/// Owner of the memory, which frees it.
#[derive(Debug)]
enum Owner {
    Allocator(Arc<Allocator>),
    /// Mapped by us. The host keeps owning the descriptor.
    Mapping {
        _mapping: Mapping,
    },
}

/// Memory with a file descriptor that identifies it to the processor.
#[derive(Debug)]
pub struct SharedMemory {
    pointer: NonNull<u8>,
    length: usize,
    fd: RawFd,
    owner: Owner,
}

// SAFETY: the memory is accessed through raw pointers whose users follow the contract's rules for
// overlap.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Allocates zeroed memory with the transport's allocator.
    fn allocate(allocator: &Arc<Allocator>, length: usize) -> Result<SharedMemory, Error> {
        let refuse = |reason: String| unsupported_memory("memory of the processor", &reason);
        let size = c_int::try_from(length.max(1)).map_err(|_| refuse(format!("{length} bytes at once")))?;
        // SAFETY: the arguments are plain numbers, and a null result is checked.
        let pointer = unsafe { (allocator.allocate)(SYSTEM_HEAP, CACHED, size) };
        let pointer = NonNull::new(pointer.cast::<u8>())
            .ok_or_else(|| refuse(format!("the system heap cannot provide {length} bytes")))?;
        let mut existing =
            SharedMemory { pointer, length, fd: -1, owner: Owner::Allocator(allocator.clone()) };
        // SAFETY: that many bytes were allocated, and no other code has the pointer yet.
        unsafe { pointer.as_ptr().write_bytes(0, length) };
        // SAFETY: allocated above.
        let fd = unsafe { (allocator.descriptor)(pointer.as_ptr().cast()) };
        if fd < 0 {
            return Err(refuse(format!("{length} bytes without a file descriptor")));
        }
        existing.fd = fd;
        Ok(existing)
    }

    fn map(fd: RawFd, offset: u64, length: u64) -> Result<SharedMemory, Error> {
        let refuse = |reason: String| unsupported_memory("a dma-buf", &reason);
        if offset != 0 {
            // The processor identifies memory by the descriptor alone.
            return Err(refuse(format!("it starts at {offset}, but only whole buffers can be imported")));
        }
        let length = usize::try_from(length).ok().filter(|length| (1..=isize::MAX as usize).contains(length));
        let length = length.ok_or_else(|| refuse("its length is invalid".to_owned()))?;
        let mapping =
            Mapping::of(fd, 0, length).map_err(|error| refuse(format!("descriptor {fd}: {error}")))?;
        let (pointer, owner) = (mapping.pointer(), Owner::Mapping { _mapping: mapping });
        Ok(SharedMemory { pointer, length, fd, owner })
    }

    /// Returns the descriptor that identifies the memory to the processor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as this value: the allocator's until it is freed,
        // the host's until the buffer is.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Returns the size in bytes.
    pub fn length(&self) -> usize {
        self.length
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if let Owner::Allocator(allocator) = &self.owner {
            // SAFETY: allocated by it, freed once.
            unsafe { (allocator.free)(self.pointer.as_ptr().cast()) };
        }
    }
}

/// A buffer of the contract over shared memory. Shards that registered it keep the memory.
pub struct SharedBuffer(pub Arc<SharedMemory>);

// SAFETY: the memory lives as long as the value, does not move and has that many bytes.
unsafe impl Buffer for SharedBuffer {
    fn pointer(&self) -> *mut u8 {
        self.0.pointer.as_ptr()
    }

    fn length(&self) -> usize {
        self.0.length
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Allocates zeroed memory. It is shared with the processor if there is an allocator, and otherwise
/// belongs to this process.
///
/// # Errors
///
/// Returns the allocator's error, or `ErrorClass::InvalidArgument` if the alignment exceeds a
/// page of the allocator.
pub fn allocate(
    allocator: Option<&Arc<Allocator>>,
    length: usize,
    alignment: usize,
) -> shardwright_shim_abi::Result<Box<dyn Buffer>> {
    let Some(allocator) = allocator else { return Ok(Box::new(HostBuffer::new(length, alignment)?)) };
    if alignment > PAGE {
        let reason = format!("an alignment of {alignment} exceeds the page size of {PAGE}");
        return Err(unsupported_memory("memory of the processor", &reason));
    }
    Ok(Box::new(SharedBuffer(Arc::new(SharedMemory::allocate(allocator, length)?))))
}

/// Imports a dma-buf.
///
/// # Errors
///
/// `ErrorClass::InvalidArgument` on other machines than phones, and for memory that cannot be
/// mapped as a whole.
pub fn import(fd: RawFd, offset: u64, length: u64) -> Result<Box<dyn Buffer>, Error> {
    if !IS_PHONE {
        return Err(unsupported_memory("a dma-buf", "only a phone's library can register memory"));
    }
    Ok(Box::new(SharedBuffer(Arc::new(SharedMemory::map(fd, offset, length)?))))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn mapped_memory_is_the_files_and_is_unmapped() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(8192).expect("grown");
        let memory = SharedMemory::map(file.as_raw_fd(), 0, 8192).expect("mapped");
        let buffer = SharedBuffer(Arc::new(memory));
        assert_eq!((buffer.length(), buffer.0.fd().as_raw_fd()), (8192, file.as_raw_fd()));
        // SAFETY: as many bytes as the buffer has, shared with no other code.
        unsafe { buffer.pointer().add(8191).write(7) };
        drop(buffer);
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, 8191).expect("read");
        assert_eq!(byte, [7]);
        for (offset, length) in [(4096, 4096), (0, 0), (0, u64::MAX)] {
            let refused = SharedMemory::map(file.as_raw_fd(), offset, length).expect_err("refused");
            assert!(refused.message.starts_with("a dma-buf: "), "{refused}");
        }
        assert!(SharedMemory::map(-1, 0, 4096).is_err());
    }

    #[test]
    fn without_the_transport_there_is_plain_memory() {
        if IS_PHONE {
            return;
        }
        assert!(Allocator::open().is_err_and(|error| error.message.starts_with("memory of the processor: ")));
        let buffer = allocate(None, 100, 256).expect("allocated");
        assert!(buffer.as_any().is::<HostBuffer>() && (buffer.pointer() as usize).is_multiple_of(256));
        assert!(import(0, 0, 4096).is_err());
    }
}
