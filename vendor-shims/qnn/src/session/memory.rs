use super::{ContextHandle, RegisteredMemory};
use crate::failure::Result;
use crate::ffi::{self, number};
use crate::graph::DataType;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// Memory of one input or output.
#[derive(Clone, Copy, Debug)]
pub enum Memory<'a> {
    /// Bytes of this process.
    Raw { data: *mut u8, bytes: u64 },
    /// Memory shared with the processor.
    Registered(&'a RegisteredMemory),
}

impl Memory<'_> {
    /// Returns its length in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Memory::Raw { bytes, .. } => *bytes,
            Memory::Registered(memory) => memory.bytes(),
        }
    }

    /// Binds it to a tensor. The caller has checked that the length fits the tensor, whose size
    /// fits 32 bits.
    pub(crate) fn bind(&self, tensor: &mut ffi::Tensor) {
        match self {
            Memory::Raw { data, bytes } => {
                tensor.v1.memory_kind = number::MEMORY_RAW;
                let buffer = ffi::RawBuffer { data: data.cast::<c_void>(), size: *bytes as u32 };
                tensor.v1.memory = ffi::MemoryHandleOrBuffer { buffer };
            }
            Memory::Registered(memory) => {
                tensor.v1.memory_kind = number::MEMORY_HANDLE;
                tensor.v1.memory = ffi::MemoryHandleOrBuffer { handle: memory.handle() };
            }
        }
    }
}

/// Registers memory of `dims` elements.
pub(crate) fn register(
    context: &Arc<ContextHandle>,
    kind: u32,
    fd: BorrowedFd<'_>,
    data: *mut c_void,
    data_type: DataType,
    dims: &[u32],
) -> Result<RegisteredMemory> {
    let bytes = dims.iter().fold(data_type.bytes(), |bytes, extent| bytes.saturating_mul(u64::from(*extent)));
    RegisteredMemory::new(context.clone(), kind, fd.as_raw_fd(), data, data_type as u32, dims, bytes)
}
