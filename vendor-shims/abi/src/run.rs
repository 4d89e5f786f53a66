use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::error::{Error, ErrorClass, Result};
use crate::shim::Buffer;

/// A mapped compiled artefact. It stays readable as long as the shard made from it.
#[derive(Clone, Copy, Debug)]
pub struct Artefact<'m> {
    pub(crate) head: &'m [u8],
    pub(crate) bytes: &'m [u8],
    pub(crate) file: Option<(i32, u64)>,
}

impl<'m> Artefact<'m> {
    /// Returns the head that compile set.
    pub fn head(&self) -> &'m [u8] {
        self.head
    }

    /// Returns the bytes that compile wrote, page-aligned.
    pub fn bytes(&self) -> &'m [u8] {
        self.bytes
    }

    /// Returns the descriptor of the mapped file and the offset of [`Artefact::bytes`] in it. The
    /// host keeps ownership of the descriptor.
    pub fn file(&self) -> Option<(i32, u64)> {
        self.file
    }
}

/// Arguments of one run: the entry, the number of valid rows, and the bound memory. Fields are
/// public so that bindings can be borrowed one by one.
pub struct Run<'a> {
    /// Index of the loaded entry.
    pub entry: usize,
    /// Number of valid rows, from 1 to the entry's rows.
    pub rows: usize,
    /// Memory for each binding of the entry, in the same order. Each has exactly the binding's
    /// length and at least its alignment.
    pub bound: Vec<Bound<'a>>,
    /// How many of the largest logits of each row must be exact (ties go to the lower index). Every
    /// other logit may be too small, never too large. `None`: all logits must be exact. A shim may
    /// ignore this.
    pub largest_logits: Option<NonZeroUsize>,
    /// Cancellation and deadline of the run.
    pub control: Control<'a>,
}

/// Cancellation and deadline of a run.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    pub(crate) cancelled: &'a AtomicBool,
    pub(crate) deadline: Option<Instant>,
}

impl Control<'_> {
    /// Fails if the run was cancelled or its deadline has passed. The call is cheap without a
    /// deadline. Call it about once per layer.
    pub fn proceed(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorClass::Cancelled, "the run was cancelled"));
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => {
                Err(Error::new(ErrorClass::Deadline, "the run's deadline has passed"))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) enum Memory<'a> {
    Read(&'a [u8]),
    Write(&'a mut [u8]),
    /// The buffer cannot be mapped. Only the shim's own buffer type can access its content.
    Opaque,
}

/// Memory bound for one run.
pub struct Bound<'a> {
    pub(crate) memory: Memory<'a>,
    pub(crate) buffer: Option<(&'a dyn Buffer, usize)>,
}

/// An element type of a typed view. Every bit pattern is a valid value.
pub trait Element: private::Sealed + Copy {}

mod private {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($type:ty),*) => { $(impl private::Sealed for $type {} impl Element for $type {})* };
}
elements!(f32, i32, i16, u16, i8, u8, i64);

impl<'a> Bound<'a> {
    /// Returns the bytes, or an empty slice for a buffer that cannot be mapped.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Read(bytes) => bytes,
            Memory::Write(bytes) => bytes,
            Memory::Opaque => &[],
        }
    }

    /// Returns the bytes of an output or state.
    ///
    /// # Errors
    ///
    /// If the memory is not writable or cannot be mapped.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        match &mut self.memory {
            Memory::Write(bytes) => Ok(bytes),
            Memory::Read(_) | Memory::Opaque => Err(not_writable()),
        }
    }

    /// Returns a typed view of an input, or of an output or state to read back.
    pub fn values<T: Element>(&self) -> Result<&[T]> {
        typed(self.bytes())
    }

    /// Returns a typed view of an output or state.
    pub fn values_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        typed_mut(self.bytes_mut()?)
    }

    /// Returns the bytes of an input, borrowed for the whole run.
    pub fn into_bytes(self) -> Result<&'a [u8]> {
        match self.memory {
            Memory::Read(bytes) => Ok(bytes),
            Memory::Write(bytes) => Ok(bytes),
            Memory::Opaque => Err(Error::invalid_argument("the bound buffer cannot be mapped")),
        }
    }

    /// Returns the bytes of an output or state, borrowed for the whole run.
    pub fn into_bytes_mut(self) -> Result<&'a mut [u8]> {
        match self.memory {
            Memory::Write(bytes) => Ok(bytes),
            Memory::Read(_) | Memory::Opaque => Err(not_writable()),
        }
    }

    /// Returns a typed view of an input, borrowed for the whole run.
    pub fn into_values<T: Element>(self) -> Result<&'a [T]> {
        typed(self.into_bytes()?)
    }

    /// Returns a typed view of an output or state, borrowed for the whole run.
    pub fn into_values_mut<T: Element>(self) -> Result<&'a mut [T]> {
        typed_mut(self.into_bytes_mut()?)
    }

    /// Returns the shim's buffer and the offset into it. `None` if plain memory is bound.
    pub fn buffer(&self) -> Option<(&'a dyn Buffer, usize)> {
        self.buffer
    }
}

fn not_writable() -> Error {
    Error::invalid_argument("the binding is not writable memory")
}

fn misaligned<T>() -> Error {
    Error::invalid_argument(format!("the bytes are not whole, aligned elements of {} bytes", size_of::<T>()))
}

/// Reinterprets bytes as elements.
///
/// # Errors
///
/// If the bytes are misaligned or not a whole number of elements.
pub fn typed<T: Element>(bytes: &[u8]) -> Result<&[T]> {
    // SAFETY: `Element` is sealed to integers and floats, for which every bit pattern is a value.
    let (before, values, after) = unsafe { bytes.align_to::<T>() };
    if before.is_empty() && after.is_empty() { Ok(values) } else { Err(misaligned::<T>()) }
}

/// Reinterprets mutable bytes as elements.
///
/// # Errors
///
/// If the bytes are misaligned or not a whole number of elements.
pub fn typed_mut<T: Element>(bytes: &mut [u8]) -> Result<&mut [T]> {
    // SAFETY: like in `typed`. In addition, every value of `T` is valid as bytes.
    let (before, values, after) = unsafe { bytes.align_to_mut::<T>() };
    if before.is_empty() && after.is_empty() { Ok(values) } else { Err(misaligned::<T>()) }
}
