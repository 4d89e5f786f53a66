//! Memory shared by descriptor, and the device address space that it uses.

use std::sync::atomic::{AtomicU64, Ordering};

use shardwright_neuron_adapter::result::{BAD_DATA, OUT_OF_MEMORY};
use shardwright_neuron_adapter::setting::MEMORY_ALIGNMENT;

use crate::call::{Refused, refuse};
use crate::compilation::no_space;
use crate::configuration::Configuration;

static TAKEN: AtomicU64 = AtomicU64::new(0);

/// A part of the device address space, returned when dropped.
#[derive(Debug)]
pub struct Space(u64);

impl Space {
    /// Reserves `bytes`, if that many are left.
    pub fn take(bytes: u64, configuration: &Configuration) -> Result<Space, Refused> {
        let most = configuration.most_device_bytes.unwrap_or(u64::MAX);
        let taken = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            taken.checked_add(bytes).filter(|sum| *sum <= most)
        });
        match taken {
            Ok(_) => Ok(Space(bytes)),
            Err(taken) => Err(no_space(bytes, most.saturating_sub(taken))),
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// A mapping of shared memory.
#[derive(Debug)]
pub struct Memory {
    mapping: usize,
    mapped: usize,
    inset: usize,
    /// Usable bytes.
    pub length: usize,
    pub writable: bool,
    _space: Space,
}

// The mapping is stored as a `usize`. It stays in place until it is dropped, on any thread.

impl Memory {
    /// Maps `length` bytes of a descriptor, starting at `offset`.
    pub fn map(
        length: usize,
        protection: i32,
        descriptor: i32,
        offset: usize,
        configuration: &Configuration,
    ) -> Result<Memory, Refused> {
        if length == 0 {
            return refuse(BAD_DATA, "no bytes");
        }
        if !offset.is_multiple_of(MEMORY_ALIGNMENT) {
            return refuse(BAD_DATA, format!("the offset {offset} is not a multiple of {MEMORY_ALIGNMENT}"));
        }
        if protection & libc::PROT_READ == 0 || protection & !(libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return refuse(
                BAD_DATA,
                format!("the protection {protection:#x} must be to read, or to read and write"),
            );
        }
        // This works for files, memfds and dma-bufs. The position of the descriptor changes, but no
        // code here depends on it.
        // SAFETY: no memory is passed.
        let size = unsafe { libc::lseek(descriptor, 0, libc::SEEK_END) };
        let end = offset.checked_add(length).and_then(|end| i64::try_from(end).ok());
        if size < 0 || end.is_none_or(|end| end > size) {
            return refuse(
                BAD_DATA,
                format!("{length} bytes from {offset} of descriptor {descriptor}, which has {size}"),
            );
        }
        let space = Space::take(length as u64, configuration)?;
        // SAFETY: reads a number from the system.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let inset = offset % page;
        let mapped = length + inset;
        let start = i64::try_from(offset - inset).unwrap_or(i64::MAX);
        // SAFETY: a new mapping at an address that the system chooses.
        let mapping = unsafe {
            libc::mmap(std::ptr::null_mut(), mapped, protection, libc::MAP_SHARED, descriptor, start)
        };
        if mapping == libc::MAP_FAILED {
            return refuse(
                OUT_OF_MEMORY,
                format!("descriptor {descriptor}: {}", std::io::Error::last_os_error()),
            );
        }
        let memory = Memory {
            mapping: mapping as usize,
            mapped,
            inset,
            length,
            writable: protection & libc::PROT_WRITE != 0,
            _space: space,
        };
        if !memory.address().is_multiple_of(MEMORY_ALIGNMENT) {
            return refuse(
                BAD_DATA,
                format!("the address {:#x} is not a multiple of {MEMORY_ALIGNMENT}", memory.address()),
            );
        }
        Ok(memory)
    }

    /// Returns the address of the first usable byte.
    pub fn address(&self) -> usize {
        self.mapping + self.inset
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this mapping was made in `map` and is unmapped once.
        unsafe { libc::munmap(self.mapping as *mut libc::c_void, self.mapped) };
    }
}
