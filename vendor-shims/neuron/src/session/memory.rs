//! Memory behind a file descriptor that is registered with the library.

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use shardwright_neuron_adapter::operand::Memory as RawMemory;
use shardwright_neuron_adapter::setting::MEMORY_ALIGNMENT;

use crate::failure::{NeuronError, Result};
use crate::library::{Library, call};

/// A descriptor's memory, registered with the library.
#[derive(Debug)]
pub struct SharedHandle {
    library: Arc<Library>,
    raw: NonNull<RawMemory>,
    length: usize,
}

// SAFETY: executions only read the handle, until it is freed once.
unsafe impl Send for SharedHandle {}
// SAFETY: as above.
unsafe impl Sync for SharedHandle {}

impl Drop for SharedHandle {
    fn drop(&mut self) {
        if let Some(free) = self.library.functions().memory_free {
            // SAFETY: created by this library and freed once. Executions keep the handles that they
            // use.
            unsafe { free(self.raw.as_ptr()) }
        }
    }
}

impl SharedHandle {
    /// Registers `length` bytes from `offset` of a descriptor with the library. The caller owns the
    /// descriptor and keeps it open as long as this value.
    ///
    /// # Errors
    /// [`NeuronError::Misaligned`] for an offset from which the hardware cannot read, and the
    /// library's errors.
    pub fn from_fd(library: &Arc<Library>, fd: i32, offset: u64, length: usize) -> Result<SharedHandle> {
        aligned("the offset of imported memory", offset)?;
        let offset = usize::try_from(offset).map_err(|_| NeuronError::Impossible {
            what: "imported memory".to_owned(),
            reason: format!("its offset is {offset}"),
        })?;
        library.need(library.functions().memory_free, "NeuronMemory_free")?;
        let mut raw = null_mut();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: plain numbers, a descriptor that the caller keeps open, and a place that outlives
        // the call.
        unsafe {
            call!(
                library,
                memory_create_from_fd = "NeuronMemory_createFromFd",
                (length, access, fd, offset, &mut raw),
                Some(format!("{length} bytes of descriptor {fd} from {offset} on"))
            )
        }?;
        let raw = NonNull::new(raw).ok_or_else(|| library.gave_null("NeuronMemory_createFromFd"))?;
        Ok(SharedHandle { library: library.clone(), raw, length })
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    pub(super) fn raw(&self) -> *const RawMemory {
        self.raw.as_ptr()
    }
}

/// Rejects an address or offset from which the hardware cannot read.
pub(crate) fn aligned(what: &str, at: u64) -> Result<()> {
    match at.is_multiple_of(MEMORY_ALIGNMENT as u64) {
        true => Ok(()),
        false => {
            Err(NeuronError::Misaligned { what: what.to_owned(), at, alignment: MEMORY_ALIGNMENT as u64 })
        }
    }
}
