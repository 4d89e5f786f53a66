//! Memory of a shim in this process.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use shardwright_shim_abi::raw::*;

use super::Local;
use crate::buffer::{Buffer, Memory};
use crate::call::c_text;
use crate::descriptor::{self, Descriptor};
use crate::error::ShimError;

/// A buffer of a shim's device.
pub(super) struct ShimMemory {
    local: Arc<Local>,
    device: String,
    raw: *mut SwBuffer,
    pointer: *mut u8,
    length: u64,
    /// The imported descriptor. The contract requires it to stay open until the buffer is freed.
    _fd: Option<Descriptor>,
}

// SAFETY: the shim's functions are called under the instance's lock.
unsafe impl Send for ShimMemory {}
// SAFETY: as above.
unsafe impl Sync for ShimMemory {}

// SAFETY: the shim mapped that many bytes until the buffer is freed, which happens when this is
// dropped.
unsafe impl Memory for ShimMemory {
    fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn sync(&self, direction: u32) -> Result<(), ShimError> {
        let local = &self.local;
        let Some(function) = local.table.0.buffer_sync else { return Ok(()) };
        let _one = local.enter();
        // SAFETY: pointers are as the contract specifies. The error came from this table.
        unsafe {
            let error = function(local.raw, self.raw, 0, self.length, direction);
            local.take("buffer_sync", error)
        }
    }
}

impl Drop for ShimMemory {
    fn drop(&mut self) {
        if let Some(free) = self.local.table.0.buffer_free {
            let _one = self.local.enter();
            // SAFETY: created by this instance, freed once. No view is left, because views keep the
            // buffer alive.
            unsafe { free(self.local.raw, self.raw) };
        }
    }
}

impl ShimMemory {
    pub(super) fn allocate(
        local: &Arc<Local>,
        device: &str,
        length: u64,
        alignment: u64,
    ) -> Result<Buffer, ShimError> {
        let Some(function) = local.table.0.buffer_allocate else {
            return Buffer::host(length, alignment);
        };
        let name = c_text("the device", device)?;
        let mut raw = ptr::null_mut();
        {
            let _one = local.enter();
            // SAFETY: pointers are as the contract specifies. The error came from this table.
            unsafe {
                let error = function(local.raw, name.as_ptr(), length, alignment, &mut raw);
                local.take("buffer_allocate", error)?;
            }
        }
        ShimMemory::wrap(local, device, raw, length, None, "buffer_allocate")
    }

    pub(super) fn import(
        local: &Arc<Local>,
        device: &str,
        fd: Descriptor,
        offset: u64,
        length: u64,
    ) -> Result<Buffer, ShimError> {
        let function = local.table.0.buffer_import.ok_or_else(|| local.missing("buffer_import"))?;
        let name = c_text("the device", device)?;
        let import = SwImport {
            size: size_of::<SwImport>() as u64,
            kind: SW_MEMORY_DMA_BUF,
            fd: descriptor::number(&fd),
            fd_offset: offset,
            handle: ptr::null_mut(),
            length,
        };
        let mut raw = ptr::null_mut();
        {
            let _one = local.enter();
            // SAFETY: pointers are as the contract specifies. The error came from this table.
            unsafe {
                let error = function(local.raw, name.as_ptr(), &import, &mut raw);
                local.take("buffer_import", error)?;
            }
        }
        ShimMemory::wrap(local, device, raw, length, Some(fd), "buffer_import")
    }

    fn wrap(
        local: &Arc<Local>,
        device: &str,
        raw: *mut SwBuffer,
        length: u64,
        fd: Option<Descriptor>,
        function: &'static str,
    ) -> Result<Buffer, ShimError> {
        if raw.is_null() {
            return Err(local.contract(function, "success without a buffer"));
        }
        // From here on, dropping frees the shim's buffer.
        let (local, device) = (local.clone(), device.to_owned());
        let mut memory = ShimMemory { local, device, raw, pointer: ptr::null_mut(), length, _fd: fd };
        let local = &memory.local;
        if let Some(map) = local.table.0.buffer_map {
            let mut pointer: *mut c_void = ptr::null_mut();
            let mapped = {
                let _one = local.enter();
                // SAFETY: pointers are as the contract specifies. The error came from this table.
                unsafe {
                    let error = map(local.raw, raw, &mut pointer);
                    local.take("buffer_map", error)
                }
            };
            // A buffer that cannot be mapped is still usable by its own shim.
            if let Err(error) = mapped {
                tracing::debug!(shim = local.name, "buffer not mapped: {error}");
            } else if pointer.is_null() && length > 0 {
                return Err(local.contract("buffer_map", "success without a pointer"));
            }
            memory.pointer = pointer.cast();
        }
        Ok(Buffer::new(memory))
    }

    /// Returns the shim's handle, if this memory belongs to that instance and device.
    pub(super) fn handle_for(&self, local: &Arc<Local>, device: &str) -> Option<*mut SwBuffer> {
        (Arc::ptr_eq(&self.local, local) && self.device == device).then_some(self.raw)
    }
}
